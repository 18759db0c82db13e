//! Tests of the replication layer: a machine that keeps what it applied, and helpers.

mod crash;
mod operation;
mod peers;
mod recovery;
mod suite;
mod tls;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) use peers::{free_port, settings};

use super::{Applied, FatalHook, LogPosition, Machine, MachineError, Options, Raft};

/// Keeps every command with its position. A command `seal…` asks for a snapshot, `fail` fails,
/// `panic` panics, `slow` takes 300 ms. The reply is the number of commands before it.
#[derive(Debug, Default)]
pub(super) struct Diary {
    pages: Mutex<Vec<(LogPosition, Vec<u8>)>>,
    /// The positions it was restored at.
    restored: Mutex<Vec<LogPosition>>,
    /// How many entries it was given.
    entries: Mutex<usize>,
}

impl Diary {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// All applied commands as text, in order.
    pub(super) fn commands(&self) -> Vec<String> {
        let pages = self.pages.lock().unwrap();
        pages.iter().map(|(_, command)| String::from_utf8(command.clone()).unwrap()).collect()
    }

    pub(super) fn restored(&self) -> Vec<LogPosition> {
        self.restored.lock().unwrap().clone()
    }

    fn entries(&self) -> usize {
        *self.entries.lock().unwrap()
    }
}

impl Machine for Diary {
    fn apply(&self, at: LogPosition, commands: &[Vec<u8>]) -> Result<Applied, MachineError> {
        *self.entries.lock().unwrap() += 1;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut applied = Applied::default();
        for command in commands {
            assert!(command != b"panic", "asked to");
            if command == b"fail" {
                return Err(MachineError::new("told to fail"));
            }
            if command == b"slow" {
                std::thread::sleep(Duration::from_millis(300));
            }
            applied.replies.push(pages.len().to_string().into_bytes());
            pages.push((at, command.clone()));
        }
        if commands.last().is_some_and(|last| last.starts_with(b"seal")) {
            let mut bytes = Vec::new();
            for (at, command) in pages.iter() {
                bytes.extend_from_slice(&at.term.to_be_bytes());
                bytes.extend_from_slice(&at.index.to_be_bytes());
                bytes.extend_from_slice(&u64::try_from(command.len()).unwrap().to_be_bytes());
                bytes.extend_from_slice(command);
            }
            applied.sealed = Some(bytes);
        }
        Ok(applied)
    }

    fn restore(&self, at: LogPosition, mut snapshot: &[u8]) -> Result<(), MachineError> {
        let mut pages = Vec::new();
        while !snapshot.is_empty() {
            let mut number = || {
                let (head, rest) = snapshot.split_first_chunk::<8>().unwrap();
                snapshot = rest;
                u64::from_be_bytes(*head)
            };
            let (term, index, length) = (number(), number(), number());
            let (command, rest) = snapshot.split_at(usize::try_from(length).unwrap());
            pages.push((LogPosition { term, index }, command.to_vec()));
            snapshot = rest;
        }
        *self.pages.lock().unwrap() = pages;
        self.restored.lock().unwrap().push(at);
        Ok(())
    }
}

/// Options for `directory` with a hook that notes fatal errors instead of aborting.
pub(super) fn options(directory: &Path) -> (Options, Arc<Mutex<Vec<String>>>) {
    let struck = Arc::new(Mutex::new(Vec::new()));
    let mut options = Options::new(directory, "test", 1);
    let told = Arc::clone(&struck);
    options.on_fatal = FatalHook::new(move |reason| told.lock().unwrap().push(reason.to_owned()));
    (options, struck)
}

/// Opens a node in `directory` on a new diary.
async fn open(directory: &Path) -> (Raft, Arc<Diary>) {
    let diary = Diary::new();
    let raft = Raft::open(options(directory).0, diary.clone()).await.unwrap();
    (raft, diary)
}

async fn propose(raft: &Raft, command: &str) -> LogPosition {
    raft.propose(command.as_bytes().to_vec()).await.unwrap().0
}

/// Proposes a seal and waits until its snapshot has been stored.
pub(super) async fn seal(raft: &Raft, name: &str) -> LogPosition {
    let at = raft.propose_last(format!("seal {name}").into_bytes()).await.unwrap().0;
    until(|| raft.status().snapshot == Some(at)).await;
    at
}

/// Waits until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited 10 s in vain");
}
