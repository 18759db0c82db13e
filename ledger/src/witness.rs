//! A witness after C2SP `tlog-witness`: it signs that a ledger only grew since it last looked.
//!
//! It keeps the newest checkpoint of each ledger that it knows, and signs another one only with a
//! proof that it extends the one that is kept. Two histories then need the witness's key as well. It
//! sees sizes and roots, never a record. Requests and answers are text; who listens is the caller's.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::checkpoint::{Checkpoint, from_base64, number, to_base64};
use crate::merkle::{Hash, TreeHead, is_consistent};
use crate::note::{Kind, NOTE_BYTES_MAX, NoteError, PrivateKey, PublicKey, SignatureLine};

/// Hashes of a request at most, as the protocol says.
const PATH_MAX: usize = 63;
/// Bytes of a request at most.
pub const REQUEST_BYTES_MAX: usize = NOTE_BYTES_MAX + 64 * 64;

/// Why a witness cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WitnessError {
    /// The key signs something else.
    #[error("the key of {0} is not a witness's")]
    Key(String),
    /// A ledger's key is a witness's, or two ledgers have one origin.
    #[error("the key of {0} cannot be that of a ledger, or is given twice")]
    Log(String),
    /// The folder cannot be used.
    #[error("could not use {}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What was kept about a ledger cannot be read. It is not begun anew: the witness would sign
    /// any history then.
    #[error("what was kept in {} cannot be read", path.display())]
    Kept {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: NoteError,
    },
}

/// What a witness answers: an HTTP status with its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// 200: the lines with which it signed.
    Signed(SignatureLine),
    /// 400: the request is not as it must be.
    Malformed,
    /// 403: no signature of the ledger's key.
    NotSigned,
    /// 404: no such ledger.
    Unknown,
    /// 409: the witness has seen as many records as this, or another root of that size.
    Stale(u64),
    /// 422: the proof does not show that the ledger grew.
    Unproven,
    /// 500: it could not be kept, so it was not signed.
    Failed,
}

impl Answer {
    /// The status of HTTP.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Signed(_) => 200,
            Self::Malformed => 400,
            Self::NotSigned => 403,
            Self::Unknown => 404,
            Self::Stale(_) => 409,
            Self::Unproven => 422,
            Self::Failed => 500,
        }
    }

    /// The type of the body.
    pub const fn content_type(&self) -> &'static str {
        match self {
            Self::Stale(_) => "text/x.tlog.size",
            _ => "text/plain; charset=utf-8",
        }
    }

    /// The body.
    pub fn body(&self) -> String {
        match self {
            Self::Signed(line) => format!("{line}\n"),
            Self::Malformed => "the request is not as it must be\n".to_owned(),
            Self::NotSigned => "the key of the ledger has not signed the checkpoint\n".to_owned(),
            Self::Unknown => "this witness does not know the ledger\n".to_owned(),
            Self::Stale(size) => format!("{size}\n"),
            Self::Unproven => "the proof does not lead to the checkpoint\n".to_owned(),
            Self::Failed => "the checkpoint could not be kept\n".to_owned(),
        }
    }
}

/// A witness of some ledgers.
#[derive(Debug)]
pub struct Witness {
    dir: PathBuf,
    key: PrivateKey,
    /// What was kept of each ledger. Held while one is compared, kept and signed, so that no older
    /// checkpoint is signed after a newer one.
    logs: Mutex<Vec<(PublicKey, TreeHead)>>,
}

impl Witness {
    /// A witness that signs with `key` for the ledgers of `logs` and keeps what it saw in `dir`.
    ///
    /// # Errors
    /// [`WitnessError`].
    pub fn open(dir: &Path, key: PrivateKey, logs: Vec<PublicKey>) -> Result<Self, WitnessError> {
        if key.public().kind() != Kind::Witness {
            return Err(WitnessError::Key(key.public().name().to_owned()));
        }
        fs::create_dir_all(dir).map_err(failed(dir))?;
        let mut known: Vec<(PublicKey, TreeHead)> = Vec::new();
        for log in logs {
            let is_known = known.iter().any(|(other, _)| other.name() == log.name());
            if is_known || log.kind() != Kind::Log {
                return Err(WitnessError::Log(log.name().to_owned()));
            }
            let head = kept(&file(dir, &log))?;
            known.push((log, head));
        }
        Ok(Self { dir: dir.to_owned(), key, logs: Mutex::new(known) })
    }

    /// Its public key.
    pub const fn public_key(&self) -> &PublicKey {
        self.key.public()
    }

    /// Answers `add-checkpoint` at `now`, in seconds since 1970.
    pub fn add_checkpoint(&self, request: &str, now: u64) -> Answer {
        let Some(Request { old, path, checkpoint }) = Request::read(request) else {
            return Answer::Malformed;
        };
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = logs.iter_mut().find(|(log, _)| log.name() == checkpoint.origin());
        let Some((log, seen)) = known else { return Answer::Unknown };
        if !checkpoint.is_of(log) {
            return Answer::NotSigned;
        }
        let new = checkpoint.head();
        if old > new.size {
            return Answer::Malformed;
        }
        if old != seen.size || (new.size == seen.size && seen.size > 0 && new.root != seen.root) {
            return Answer::Stale(seen.size);
        }
        if !is_consistent(seen, &new, &path) {
            return Answer::Unproven;
        }
        if let Err(error) = keep(&self.dir, &file(&self.dir, log), &checkpoint) {
            tracing::error!(%error, origin = checkpoint.origin(), "a checkpoint could not be kept");
            return Answer::Failed;
        }
        *seen = new;
        Answer::Signed(self.key.sign(checkpoint.note().text(), now))
    }
}

/// A request of `add-checkpoint`.
#[derive(Debug)]
pub struct Request {
    /// Records that the witness has seen.
    pub old: u64,
    /// What leads from there to the checkpoint.
    pub path: Vec<Hash>,
    /// The checkpoint.
    pub checkpoint: Checkpoint,
}

impl Request {
    fn read(text: &str) -> Option<Self> {
        if text.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let (header, checkpoint) = text.split_once("\n\n")?;
        let mut lines = header.split('\n');
        let old = number(lines.next()?.strip_prefix("old ")?)?;
        let path: Vec<Hash> = lines.map(from_base64).collect::<Option<_>>()?;
        let checkpoint = checkpoint.parse().ok()?;
        (path.len() <= PATH_MAX).then_some(Self { old, path, checkpoint })
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "old {}", self.old)?;
        self.path.iter().try_for_each(|hash| writeln!(f, "{}", to_base64(hash)))?;
        write!(f, "\n{}", self.checkpoint)
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> WitnessError {
    move |source| WitnessError::Io { path: path.to_owned(), source }
}

/// The file of a ledger: an origin may hold what no file name may, its hash does not.
fn file(dir: &Path, log: &PublicKey) -> PathBuf {
    dir.join(format!("{}.ckpt", Hash::of_leaf(log.name().as_bytes())))
}

/// The tree that was signed last; the empty one if none was.
fn kept(path: &Path) -> Result<TreeHead, WitnessError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(TreeHead { size: 0, root: Hash::of_nothing() });
        }
        Err(error) => return Err(failed(path)(error)),
    };
    let checkpoint = text.parse::<Checkpoint>();
    let unread = |source| WitnessError::Kept { path: path.to_owned(), source };
    checkpoint.map(|checkpoint| checkpoint.head()).map_err(unread)
}

/// Keeps a checkpoint: on the disk with its name when this returns.
fn keep(dir: &Path, path: &Path, checkpoint: &Checkpoint) -> io::Result<()> {
    let aside = path.with_extension("tmp");
    let mut file = File::create(&aside)?;
    file.write_all(checkpoint.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merkle::consistency_ranges;
    use crate::note::{Note, Signed};
    use crate::subtrees::root_over;

    fn key(kind: Kind, seed: u8) -> PrivateKey {
        PrivateKey::new(&format!("{seed}.example.org"), kind, &[seed; 32]).unwrap()
    }

    fn root(range: std::ops::Range<u64>, history: u64) -> Hash {
        root_over(range.map(|index| Hash::of_leaf(&(index + history * 1_000).to_le_bytes())))
    }

    fn ask(old: u64, new: u64, history: u64, signer: u8) -> String {
        let ranges = consistency_ranges(old, new).unwrap_or_default();
        let path = ranges.into_iter().map(|range| root(range, history)).collect();
        let head = TreeHead { size: new, root: root(0..new, history) };
        Request { old, path, checkpoint: Checkpoint::sign(head, &key(Kind::Log, signer)) }
            .to_string()
    }

    fn open(dir: &Path) -> Witness {
        let logs = vec![key(Kind::Log, 1).public().clone()];
        Witness::open(dir, key(Kind::Witness, 9), logs).unwrap()
    }

    #[test]
    fn it_signs_what_extends_what_it_saw_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let witness = open(dir.path());
        let status = |request: &str| witness.add_checkpoint(request, 77).status();
        let Answer::Signed(line) = witness.add_checkpoint(&ask(0, 5, 0, 1), 77) else {
            panic!("the first checkpoint is taken on trust");
        };
        let checkpoint = Request::read(&ask(0, 5, 0, 1)).unwrap().checkpoint;
        let note = Note::new(checkpoint.note().text().to_owned(), vec![line]);
        assert_eq!(note.signed_by(witness.public_key()), Signed::Yes { time: 77 });

        assert_eq!(status(&ask(5, 12, 0, 1)), 200);
        assert_eq!(witness.add_checkpoint(&ask(5, 20, 0, 1), 77), Answer::Stale(12));
        assert_eq!(status(&ask(12, 12, 0, 1)), 200, "the same once more");
        assert_eq!(status(&ask(12, 12, 1, 1)), 409, "another root of that size");
        assert_eq!(status(&ask(12, 20, 1, 1)), 422, "another history");
        assert_eq!(status(&ask(12, 20, 0, 2)), 404, "a ledger it does not know");
        let unsigned = ask(12, 20, 0, 1).replace("\n20\n", "\n21\n");
        assert_eq!(status(&unsigned), 403);
        let good = ask(12, 20, 0, 1);
        for bad in ["", "old x\n\n", "old 12\n", &good.replace("old 12", "old 012"), &good[..90]] {
            assert_eq!(status(bad), 400, "{bad:?}");
        }
        assert_eq!(status(&good.replace("old 12", "old 99")), 400, "more than there are");
        assert_eq!(status(&good), 200);
    }

    #[test]
    fn what_it_saw_survives_a_restart_and_is_never_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(dir.path()).add_checkpoint(&ask(0, 9, 0, 1), 1).status(), 200);
        assert_eq!(open(dir.path()).add_checkpoint(&ask(0, 9, 1, 1), 1), Answer::Stale(9));
        assert_eq!(open(dir.path()).add_checkpoint(&ask(9, 10, 0, 1), 1).status(), 200);
        let file = file(dir.path(), key(Kind::Log, 1).public());
        fs::write(&file, "torn").unwrap();
        let logs = vec![key(Kind::Log, 1).public().clone()];
        let opened = Witness::open(dir.path(), key(Kind::Witness, 9), logs);
        assert!(matches!(opened, Err(WitnessError::Kept { .. })));
    }

    #[test]
    fn keys_of_the_wrong_kind_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let log = key(Kind::Log, 1);
        assert!(Witness::open(dir.path(), log.clone(), vec![]).is_err());
        let wrong = vec![key(Kind::Witness, 3).public().clone()];
        assert!(Witness::open(dir.path(), key(Kind::Witness, 9), wrong).is_err());
        let twice = vec![log.public().clone(), log.public().clone()];
        assert!(Witness::open(dir.path(), key(Kind::Witness, 9), twice).is_err());
    }
}
