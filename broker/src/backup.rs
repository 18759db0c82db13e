//! Backups: the ledger up to one record, in one file, and a cell made of it.
//!
//! The state is the fold of the ledger, so the ledger is all that there is to be kept. What a backup
//! holds is checked as a whole before anything is made of it: the bytes by their digest, the records
//! by their Merkle root, the books by posting every line again, the state by its invariants.
//!
//! A file is: magic (7 bytes), version (one digit), length of the header (u32, big-endian), header
//! (JSON), each record behind its length (u32, big-endian), SHA-256 of all that precedes it.
//!
//! A restored cell is a cell of one broker. It has the ledger of the old one, and one record more:
//! that it was restored, which begins a new epoch of tokens. So no token that the old cell gave out
//! after the backup is ever given out again.

mod error;
mod live;
mod quietly;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sublet_core::{State, invariants};
use sublet_ledger::accounts::Accounts;
use sublet_ledger::journal::{Cursor, Journal};
use sublet_ledger::merkle::{Frontier, Hash};
use sublet_protocol::codec::{self, RECORD_MAX, decode_record, encode_record};
use sublet_protocol::commands::Actor;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{CellId, CommandId};
use sublet_protocol::records::Record;
use sublet_protocol::units::Timestamp;

use crate::folders;
use crate::raft::{self, Endpoint, LogPosition};
use crate::snapshot::{SegmentRef, Snapshot};

pub use error::{Error, Fault, Place};
pub use live::Pieces;
use quietly::quietly;

const MAGIC: &[u8; 7] = b"SBLBKUP";
/// The newest version of the file, and the only one so far.
const VERSION: u8 = b'1';
/// Largest header in bytes.
const HEADER_MAX: usize = 1024 * 1024;
/// Records that are journalled at once.
const BATCH: usize = 512;
const DIGEST: usize = 32;

/// What a backup says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The cell's name.
    pub cell: CellId,
    /// How often the cell had been restored before.
    pub epoch: u32,
    /// Records in it, from the first on.
    pub records: u64,
    /// The ledger's root over them, in hexadecimal digits.
    pub root: String,
    /// Every broker that the cell ever had, by number. A restored one has another number.
    pub brokers: Vec<u64>,
}

/// Makes the bytes of a backup, piece by piece.
pub(crate) struct Writer(Sha256);

impl Writer {
    /// Begins; the first bytes.
    pub(crate) fn begin(header: &Header) -> (Self, Vec<u8>) {
        let json = serde_json::to_vec(header).expect("names and numbers have a JSON form");
        let length = u32::try_from(json.len()).expect("a cell has few brokers");
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&json);
        let mut digest = Sha256::new();
        digest.update(&bytes);
        (Self(digest), bytes)
    }

    /// The bytes of the next records.
    ///
    /// # Errors
    /// A record has no bytes.
    pub(crate) fn records(&mut self, records: &[Record]) -> Result<Vec<u8>, codec::Error> {
        let mut bytes = Vec::new();
        for record in records {
            let record = encode_record(record)?;
            let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&record);
        }
        self.0.update(&bytes);
        Ok(bytes)
    }

    /// The last bytes.
    pub(crate) fn end(self) -> Vec<u8> {
        self.0.finalize().to_vec()
    }
}

/// What a whole backup came to.
#[derive(Debug)]
pub struct Checked {
    /// What it says about itself, which is so.
    pub header: Header,
    /// The books.
    pub accounts: Accounts,
    /// Ledger time of the last record.
    pub time: Timestamp,
    /// Its size in bytes.
    pub bytes: u64,
    state: State,
    term: u64,
}

/// Reads all of a backup and checks it.
///
/// # Errors
/// [`Error::Damaged`] says what is wrong and where; [`Error::Newer`], [`Error::Io`].
pub fn check(file: &Path) -> Result<Checked, Error> {
    read(file, |_| Ok(()), |_| Ok(()))
}

/// Reads and checks a backup, and hands on its records with the header before it is known whether
/// all of it is good.
fn read(
    file: &Path,
    begun: impl FnOnce(&Header) -> Result<(), Error>,
    mut take: impl FnMut(Record) -> Result<(), Error>,
) -> Result<Checked, Error> {
    let failed = |action| {
        let path = file.to_owned();
        move |source| Error::Io { action, path, source }
    };
    let opened = File::open(file).map_err(failed("open"))?;
    let bytes = opened.metadata().map_err(failed("read"))?.len();
    let mut reader = Reader { file, input: BufReader::new(opened), digest: Sha256::new() };
    let header = reader.header()?;
    begun(&header)?;
    let (mut state, mut accounts) = (State::default(), Accounts::default());
    let (mut frontier, mut term) = (Frontier::new(), 0);
    for index in 0..header.records {
        let (record, leaf) = reader.record(index)?;
        frontier.append(leaf);
        let damaged = |fault| reader.damaged(Place::Record(index), fault);
        // A record that the rules could not have made here stops the fold with a panic.
        let posted = quietly(|| accounts.post(&record)).ok_or_else(|| damaged(Fault::Books))?;
        posted.map_err(|_| damaged(Fault::Books))?;
        let folded = quietly(|| sublet_core::fold(&mut state, &record));
        folded.ok_or_else(|| damaged(Fault::Impossible))?;
        term = record.term.max(term);
        take(record)?;
    }
    reader.end()?;
    let damaged = |fault| reader.damaged(Place::End, fault);
    let found = frontier.root().to_string();
    if found != header.root {
        return Err(damaged(Fault::Root { noted: header.root.clone(), found }));
    }
    if state.cell() != Some((header.cell, header.epoch)) {
        return Err(damaged(Fault::Cell));
    }
    let broken = quietly(|| invariants::check(&state));
    if let Some(broken) = broken.ok_or_else(|| damaged(Fault::Impossible))?.into_iter().next() {
        let (invariant, what) = (broken.invariant, broken.what);
        return Err(damaged(Fault::Invariant { invariant, what }));
    }
    let time = state.now();
    Ok(Checked { header, accounts, time, bytes, state, term })
}

struct Reader<'a> {
    file: &'a Path,
    input: BufReader<File>,
    digest: Sha256,
}

impl Reader<'_> {
    fn damaged(&self, place: Place, fault: Fault) -> Error {
        Error::Damaged { file: self.file.to_owned(), place, fault }
    }

    /// So many bytes that the digest covers.
    fn exact(&mut self, count: usize, place: Place) -> Result<Vec<u8>, Error> {
        let bytes = self.raw(count, place)?;
        self.digest.update(&bytes);
        Ok(bytes)
    }

    fn raw(&mut self, count: usize, place: Place) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; count];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(place, Fault::Short))
            }
            Err(source) => Err(Error::Io { action: "read", path: self.file.to_owned(), source }),
        }
    }

    /// A length of at most `most`, and so many bytes.
    fn sized(&mut self, most: usize, place: Place, fault: &Fault) -> Result<Vec<u8>, Error> {
        let length = self.exact(4, place)?;
        let length = length.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
        let length = length.and_then(|length| usize::try_from(length).ok());
        match length.filter(|length| *length <= most) {
            Some(length) => self.exact(length, place),
            None => Err(self.damaged(place, fault.clone())),
        }
    }

    fn header(&mut self) -> Result<Header, Error> {
        let start = self.exact(MAGIC.len() + 1, Place::Header)?;
        let Some((version, _)) = start.split_last().filter(|(_, magic)| *magic == MAGIC) else {
            return Err(self.damaged(Place::Header, Fault::Magic));
        };
        if *version > VERSION {
            return Err(Error::Newer { file: self.file.to_owned() });
        }
        if *version != VERSION {
            return Err(self.damaged(Place::Header, Fault::Magic));
        }
        let json = self.sized(HEADER_MAX, Place::Header, &Fault::Header)?;
        serde_json::from_slice(&json).map_err(|_| self.damaged(Place::Header, Fault::Header))
    }

    /// Record `index` and its leaf hash.
    fn record(&mut self, index: u64) -> Result<(Record, Hash), Error> {
        let place = Place::Record(index);
        let bytes = self.sized(RECORD_MAX, place, &Fault::Undecodable)?;
        let record = decode_record(&bytes);
        let record = record.map_err(|_| self.damaged(place, Fault::Undecodable))?;
        if encode_record(&record).ok().as_deref() != Some(&bytes[..]) {
            return Err(self.damaged(place, Fault::Undecodable));
        }
        if record.index != index {
            return Err(self.damaged(place, Fault::Misplaced { found: record.index }));
        }
        Ok((record, Hash::of_leaf(&bytes)))
    }

    /// Checks the digest, and that nothing follows it.
    fn end(&mut self) -> Result<(), Error> {
        let noted = self.raw(DIGEST, Place::End)?;
        if self.digest.clone().finalize().as_slice() != noted {
            return Err(self.damaged(Place::End, Fault::Digest));
        }
        let mut more = [0];
        match self.input.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged(Place::End, Fault::Trailing)),
            Err(source) => Err(Error::Io { action: "read", path: self.file.to_owned(), source }),
        }
    }
}

/// Writes what `bytes` gives into `file`, which appears whole, checked and durable, or not at all. Only
/// its owner can read it. What an attempt before left aside counts for nothing.
///
/// # Errors
/// As [`check`]; [`Error::Exists`], also where a link leads nowhere.
pub fn keep(bytes: impl Read, file: &Path) -> Result<Checked, Error> {
    let vacant = || match fs::symlink_metadata(file) {
        Ok(_) => Err(Error::Exists { file: file.to_owned() }),
        Err(_) => Ok(()),
    };
    vacant()?;
    let aside = aside(file);
    let kept = write_aside(bytes, &aside).and_then(|checked| {
        vacant()?;
        fs::rename(&aside, file).map_err(failed("rename", &aside))?;
        Ok(checked)
    });
    if kept.is_err() {
        drop(fs::remove_file(&aside));
    }
    let checked = kept?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    folders::sync(folder).map_err(failed("sync", folder))?;
    Ok(checked)
}

fn write_aside(mut bytes: impl Read, aside: &Path) -> Result<Checked, Error> {
    match fs::remove_file(aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", aside)(error));
        }
        _gone => {}
    }
    let made = File::options().write(true).create_new(true).mode(0o600).open(aside);
    let mut out = BufWriter::new(made.map_err(failed("create", aside))?);
    io::copy(&mut bytes, &mut out).map_err(failed("write", aside))?;
    let out = out.into_inner().map_err(io::IntoInnerError::into_error);
    out.and_then(|out| out.sync_all()).map_err(failed("write", aside))?;
    check(aside)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// The broker that a restored cell begins with.
#[derive(Debug, Clone)]
pub struct Founder {
    /// The cell's name.
    pub cell: CellId,
    /// Its number, which no broker of the old cell had.
    pub broker: u64,
    /// Where other brokers and callers find it.
    pub endpoint: Endpoint,
    /// The time of the restoration.
    pub now: Timestamp,
    /// The id of the record that says so: any number never used before.
    pub cause: CommandId,
}

/// Makes the data folder of a cell of one broker out of a backup, all of which is checked before the
/// folder has its name. Over the records of the backup the restored ledger has the same root.
///
/// # Errors
/// As [`check`]; [`Error::Occupied`], [`Error::OldBroker`], [`Error::OtherCell`]: nothing was made.
pub fn restore(file: &Path, folder: &Path, founder: Founder) -> Result<Checked, Error> {
    if folder.exists() {
        let mut names = fs::read_dir(folder).map_err(failed("list", folder))?;
        if names.next().is_some() {
            return Err(Error::Occupied { folder: folder.to_owned() });
        }
        fs::remove_dir(folder).map_err(failed("replace", folder))?;
    }
    // What an earlier attempt left counts for nothing.
    let part = aside(folder);
    if part.exists() {
        fs::remove_dir_all(&part).map_err(failed("remove", &part))?;
    }
    folders::create_private(&part).map_err(failed("create", &part))?;
    let made = make(file, &part, founder);
    if made.is_err() {
        drop(fs::remove_dir_all(&part));
        return made;
    }
    fs::rename(&part, folder).map_err(failed("rename", &part))?;
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(Path::new("."));
    folders::sync(above).map_err(failed("sync", above))?;
    made
}

fn make(file: &Path, folder: &Path, founder: Founder) -> Result<Checked, Error> {
    let Founder { cell, broker, endpoint, now, cause } = founder;
    let journal = Journal::open(&folder.join("ledger"), cell).map_err(Error::Ledger)?;
    let mut shelf = Shelf { journal, waiting: Vec::new() };
    let begun = |header: &Header| {
        if header.cell != cell {
            return Err(Error::OtherCell { found: header.cell, expected: cell });
        }
        if header.brokers.contains(&broker) {
            return Err(Error::OldBroker { broker });
        }
        Ok(())
    };
    let mut checked = read(file, begun, |record| shelf.take(record))?;
    // One term above all that the old cell had: its leaders are the old cell's.
    let term = checked.term.saturating_add(1);
    let at = LogPosition { term, index: 1 };
    let restored = Record {
        index: checked.state.next_index(),
        term,
        time: now.max(checked.time),
        cause,
        actor: Actor::Leader,
        event: Event::CellRestored { epoch: checked.header.epoch.saturating_add(1) },
    };
    sublet_core::fold(&mut checked.state, &restored);
    let mut last = restored.clone();
    shelf.take(restored)?;
    // No number is ever given to another disk, also not one that only the old cell has used.
    for number in checked.header.brokers.iter().copied().chain([broker]) {
        if checked.state.brokers().contains(&number) {
            continue;
        }
        let event = Event::BrokerEnlisted { broker: number };
        last = Record { index: checked.state.next_index(), event, ..last };
        sublet_core::fold(&mut checked.state, &last);
        shelf.take(last.clone())?;
    }
    let payload = shelf.finish(at, &checked)?;
    let mut options = raft::Options::new(folder.join("raft"), cell.as_str(), broker);
    // Not running yet, it has nothing to abort.
    options.on_fatal = raft::FatalHook::new(|_| {});
    raft::begin_with(&options, at, endpoint, &payload).map_err(Error::Raft)?;
    Ok(checked)
}

/// The ledger of the restored cell while it is made.
struct Shelf {
    journal: Journal,
    waiting: Vec<Record>,
}

impl Shelf {
    fn take(&mut self, record: Record) -> Result<(), Error> {
        let seals = matches!(record.event, Event::TailSealed { .. });
        let index = record.index;
        if seals || self.waiting.len() >= BATCH {
            self.write()?;
        }
        if seals && let Some(upto) = index.checked_sub(1) {
            // Where the old cell sealed: its segments are these, byte for byte.
            self.journal.seal(upto).map_err(Error::Ledger)?;
        }
        self.waiting.push(record);
        Ok(())
    }

    fn write(&mut self) -> Result<(), Error> {
        // No log knows of them; the snapshot says where it begins.
        let cursor = Cursor { log_index: 0, term: 0 };
        self.journal.append(cursor, &self.waiting).map_err(Error::Ledger)?;
        self.waiting.clear();
        Ok(())
    }

    /// The snapshot that the restored cell begins with.
    fn finish(mut self, at: LogPosition, checked: &Checked) -> Result<Vec<u8>, Error> {
        self.write()?;
        let journal = &mut self.journal;
        let cursor = Cursor { log_index: at.index, term: at.term };
        journal.append(cursor, &[]).map_err(Error::Ledger)?;
        journal.sync().map_err(Error::Ledger)?;
        let sealed = journal.size() - journal.tail_records();
        let tail = journal.range(sealed, usize::MAX).map_err(Error::Ledger)?;
        let segments = journal.seals().iter().map(SegmentRef::from).collect();
        let (state, accounts) = (checked.state.clone(), checked.accounts.clone());
        codec::encode(&Snapshot { state, accounts, segments, tail, names: BTreeMap::new() })
            .map_err(Error::Codec)
    }
}
