//! A follower to which a snapshot is sent, by a leader that this test plays: cut off anywhere,
//! damaged, of the wrong size, by two at once, and exchanged for another halfway.

use std::fs;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use super::super::tests::{Diary, free_port, seal, settings};
use super::super::wire::WalVote;
use super::super::{Begin, FatalHook, Identity, LogPosition, Raft, Security};
use super::frame::Frames;
use super::hello::Purpose;
use super::messages::{Ballot, Failure, Message, Place};
use super::peer::Site;
use super::receive::FILE_MAX;

/// Bytes of a part; a file has some dozen of them.
const PART: usize = 500;
/// How long anything may take: far more than it needs, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const CALL: u64 = 3;

/// A snapshot file of the cell, and what a machine has applied that was restored from it.
struct File {
    at: LogPosition,
    bytes: Vec<u8>,
    commands: Vec<String>,
}

impl File {
    fn parts(&self) -> Vec<&[u8]> {
        self.bytes.chunks(PART).collect()
    }

    fn size(&self) -> u64 {
        u64::try_from(self.bytes.len()).unwrap()
    }
}

/// Two snapshots that broker 1 has made, the older one first.
async fn files() -> [File; 2] {
    let (folder, diary) = (tempfile::tempdir().unwrap(), Diary::new());
    let options = settings(folder.path(), 1, Begin::Found, free_port());
    let raft = Raft::open(options, diary.clone()).await.unwrap();
    let mut files = Vec::new();
    for name in ["one", "two"] {
        for number in 0..30 {
            let command = format!("{name} {number} {}", "x".repeat(200));
            raft.propose(command.into_bytes()).await.unwrap();
        }
        let at = seal(&raft, name).await;
        let path = format!("snapshots/{:020}-{:020}.snap", at.index, at.term);
        let bytes = fs::read(folder.path().join(path)).unwrap();
        files.push(File { at, bytes, commands: diary.commands() });
    }
    raft.shutdown().await;
    files.try_into().unwrap_or_else(|_| panic!("two"))
}

/// Broker 2, which waits to be taken in.
struct Follower {
    folder: TempDir,
    raft: Raft,
    diary: Arc<Diary>,
    struck: Arc<Mutex<Vec<String>>>,
}

impl Follower {
    async fn start() -> Self {
        let (folder, diary) = (tempfile::tempdir().unwrap(), Diary::new());
        let struck = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&struck);
        let mut options = settings(folder.path(), 2, Begin::Wait, free_port());
        options.on_fatal =
            FatalHook::new(move |reason| told.lock().unwrap().push(reason.to_owned()));
        let raft = Raft::open(options, diary.clone()).await.unwrap();
        Self { folder, raft, diary, struck }
    }

    /// A connection of broker 1.
    async fn dial(&self) -> Leader {
        let identity = Identity::load(&Security::Plain, "test", 1).unwrap();
        let address = self.raft.listens().unwrap().to_string();
        let folder = self.folder.path().join("dialler");
        let site =
            Site::new(&settings(&folder, 1, Begin::Wait, free_port()), identity, Diary::new());
        Leader(site.dial(2, &address, Purpose::Consensus).await.unwrap())
    }

    /// Offers until the follower wants it; the connection and from which byte on it wants it. It
    /// may take a moment until it has noticed that the sender before is gone.
    async fn begin(&self, file: &File, bytes: u64) -> (Leader, u64) {
        for _ in 0..1_000 {
            let mut leader = self.dial().await;
            match leader.offer(file, file.at.term, bytes).await {
                Message::Want { call: CALL, pieces, from } if pieces.is_empty() => {
                    return (leader, from);
                }
                Message::Failed { call: CALL, why: Failure::Busy } => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("the follower stays busy");
    }

    /// Sends what is lacking; from which byte on that was.
    async fn send(&self, file: &File) -> u64 {
        let (mut leader, from) = self.begin(file, file.size()).await;
        let rest = &file.bytes[usize::try_from(from).unwrap()..];
        for part in rest.chunks(PART) {
            leader.part(part).await;
        }
        let answer = leader.answer().await.unwrap();
        assert!(matches!(answer, Message::Installed { call: CALL, .. }), "{answer:?}");
        from
    }

    /// The follower is as `file` says, was restored as often as that, and is well.
    #[track_caller]
    fn has(&self, file: &File, restored: &[LogPosition]) {
        assert_eq!(self.diary.commands(), file.commands);
        assert_eq!(self.diary.restored(), restored);
        assert_eq!(*self.struck.lock().unwrap(), Vec::<String>::new());
        assert_eq!(self.unfinished(), 0);
    }

    /// Files of transfers that have not ended.
    fn unfinished(&self) -> usize {
        let entries = fs::read_dir(self.folder.path().join("snapshots")).unwrap();
        let is_part = |entry: &io::Result<fs::DirEntry>| {
            let path = entry.as_ref().unwrap().path();
            path.extension().is_some_and(|extension| extension == "part")
        };
        entries.filter(is_part).count()
    }
}

/// The sending side of a connection.
struct Leader(Frames);

impl Leader {
    async fn offer(&mut self, file: &File, term: u64, bytes: u64) -> Message {
        let vote = Ballot::from(&WalVote::new(term, true, 1).vote());
        let at = (file.at.term, file.at.index);
        self.0.send(&Message::Offer { call: CALL, vote, at, bytes, pieces: vec![] }).await.unwrap();
        self.answer().await.unwrap()
    }

    async fn part(&mut self, bytes: &[u8]) {
        self.part_with(bytes, crc32fast::hash(bytes)).await;
    }

    async fn part_with(&mut self, bytes: &[u8], crc: u32) {
        let (bytes, place) = (bytes.to_vec().into(), Place::Middle);
        let part = Message::Part { call: CALL, bytes, crc, place };
        // The follower may have hung up on what came before.
        drop(self.0.send(&part).await);
    }

    async fn answer(&mut self) -> io::Result<Message> {
        loop {
            match self.0.next_within(PATIENCE).await? {
                Message::AtWork { .. } => {}
                other => return Ok(other),
            }
        }
    }

    /// The follower has refused what was sent.
    #[track_caller]
    fn refused(answer: io::Result<Message>) {
        let Ok(answer) = answer else { return };
        assert!(matches!(answer, Message::Failed { why: Failure::Damaged, .. }), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_breaks_off_behind_any_part_is_gone_on_with_there() {
    let ([file, _], follower) = (files().await, Follower::start().await);
    let parts = file.parts();
    assert!(parts.len() > 10);
    for (number, part) in parts.iter().enumerate().take(parts.len() - 1) {
        let (mut leader, from) = follower.begin(&file, file.size()).await;
        assert_eq!(usize::try_from(from).unwrap(), number * PART);
        leader.part(part).await;
        assert_eq!(follower.diary.restored(), []);
    }
    let from = follower.send(&file).await;
    assert_eq!(usize::try_from(from).unwrap(), (parts.len() - 1) * PART);
    follower.has(&file, &[file.at]);
    follower.raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_damaged_on_the_way_is_sent_again_and_only_it() {
    let ([file, _], follower) = (files().await, Follower::start().await);
    for number in 0..3 {
        let (mut leader, from) = follower.begin(&file, file.size()).await;
        assert_eq!(usize::try_from(from).unwrap(), number * PART);
        let part = file.parts()[number];
        leader.part(part).await;
        let next = file.parts()[number + 1];
        match number {
            0 => leader.part_with(next, crc32fast::hash(next) ^ 1).await,
            1 => leader.part(&[]).await,
            // A word that has no place here.
            _ => leader.0.send(&Message::AtWork { call: CALL }).await.unwrap(),
        }
        Leader::refused(leader.answer().await);
    }
    assert_eq!(usize::try_from(follower.send(&file).await).unwrap(), 3 * PART);
    follower.has(&file, &[file.at]);
    follower.raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_damaged_where_it_lies_is_thrown_away_whole() {
    let ([file, _], follower) = (files().await, Follower::start().await);
    let mut damaged = file.bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let (mut leader, _) = follower.begin(&file, file.size()).await;
    for part in damaged.chunks(PART) {
        leader.part(part).await;
    }
    Leader::refused(leader.answer().await);
    assert_eq!((follower.diary.restored(), follower.unfinished()), (vec![], 0));
    assert_eq!(follower.send(&file).await, 0);
    follower.has(&file, &[file.at]);
    follower.raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_size_than_was_offered_is_refused() {
    let ([file, _], follower) = (files().await, Follower::start().await);
    let size = file.size();
    for (offered, extra) in [(size - 1, 0), (size + 7, 7), (1, 0), (size / 2, 0)] {
        let (mut leader, from) = follower.begin(&file, offered).await;
        assert_eq!(from, 0);
        let bytes = [&file.bytes[..], &vec![0; extra]].concat();
        for part in bytes.chunks(PART) {
            leader.part(part).await;
        }
        Leader::refused(leader.answer().await);
        assert_eq!(follower.diary.restored(), []);
    }
    let mut leader = follower.dial().await;
    let answer = leader.offer(&file, file.at.term, FILE_MAX + 1).await;
    Leader::refused(Ok(answer));
    assert_eq!(follower.send(&file).await, 0);
    follower.has(&file, &[file.at]);
    follower.raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_senders_the_second_waits_and_the_first_goes_on() {
    let ([file, newer], follower) = (files().await, Follower::start().await);
    let (mut first, _) = follower.begin(&file, file.size()).await;
    let parts = file.parts();
    for (number, part) in parts.iter().enumerate() {
        if number % 4 == 1 {
            let offered = if number == 1 { &file } else { &newer };
            let answer = follower.dial().await.offer(offered, file.at.term, offered.size()).await;
            assert!(matches!(answer, Message::Failed { why: Failure::Busy, .. }), "{answer:?}");
        }
        first.part(part).await;
    }
    let answer = first.answer().await.unwrap();
    assert!(matches!(answer, Message::Installed { .. }), "{answer:?}");
    follower.has(&file, &[file.at]);
    assert_eq!(follower.send(&newer).await, 0);
    follower.has(&newer, &[file.at, newer.at]);
    follower.raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_with_another_snapshot_begins_anew_and_an_older_one_changes_nothing() {
    let ([file, newer], follower) = (files().await, Follower::start().await);
    let (mut leader, _) = follower.begin(&file, file.size()).await;
    for part in &file.parts()[..4] {
        leader.part(part).await;
    }
    drop(leader);
    // Nothing of the one file gets into the other.
    assert_eq!(follower.send(&newer).await, 0);
    follower.has(&newer, &[newer.at]);
    assert_eq!(follower.send(&file).await, 0);
    assert_eq!(follower.diary.commands(), newer.commands);
    assert_eq!(follower.diary.restored(), [newer.at]);
    assert_eq!(follower.raft.status().snapshot, Some(newer.at));
    // One that led before hears who leads now; what it sends is not taken in.
    let mut old = follower.dial().await;
    let from = match old.offer(&file, 0, file.size()).await {
        Message::Want { from, .. } => usize::try_from(from).unwrap(),
        other => panic!("{other:?}"),
    };
    for part in file.bytes[from..].chunks(PART) {
        old.part(part).await;
    }
    let answer = old.answer().await.unwrap();
    let now = Ballot::from(&WalVote::new(newer.at.term, true, 1).vote());
    assert_eq!(answer, Message::Installed { call: CALL, vote: now });
    assert_eq!(follower.diary.commands(), newer.commands);
    assert_eq!(*follower.struck.lock().unwrap(), Vec::<String>::new());
    // It starts again from what it took in.
    let (folder, diary) = (follower.folder, Diary::new());
    follower.raft.shutdown().await;
    let options = settings(folder.path(), 2, Begin::Wait, free_port());
    let raft = Raft::open(options, diary.clone()).await.unwrap();
    assert_eq!(diary.commands(), newer.commands);
    raft.shutdown().await;
}
