//! The stored encoding: openraft's type parameters, and how entries and votes lie in the log.
//!
//! Integers are big-endian. A log payload is one byte of kind, then: nothing (a leader's blank
//! entry), or the count of commands and each with its length, or the membership as JSON. raft-log
//! adds the position before it and a CRC-32 after it.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use openraft::impls::{Vote, leader_id_std};
use openraft::type_config::alias::{EntryOf, EntryPayloadOf, LogIdOf, VoteOf};
use openraft::{EntryPayload, LogId};
use raft_log::codeq::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::fatal::Fatal;
use super::types::{Endpoint, LogPosition};

openraft::declare_raft_types!(
    /// openraft's type parameters.
    pub(super) TypeConfig:
        D = Commands,
        R = Replies,
        Node = Endpoint,
        LeaderId = leader_id_std::LeaderId<Self::Term, Self::NodeId>,
);

/// The commands of one entry. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Vec<u8>>", into = "Vec<Vec<u8>>")]
pub(super) struct Commands(pub(super) Arc<Vec<Vec<u8>>>);

impl From<Vec<Vec<u8>>> for Commands {
    fn from(commands: Vec<Vec<u8>>) -> Self {
        Self(Arc::new(commands))
    }
}

impl From<Commands> for Vec<Vec<u8>> {
    fn from(commands: Commands) -> Self {
        Arc::unwrap_or_clone(commands.0)
    }
}

impl Commands {
    fn bytes(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands of {} bytes", self.0.len(), self.bytes())
    }
}

/// The replies to one entry's commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Replies(pub(super) Vec<Vec<u8>>);

/// The position openraft gave an entry, in the facade's words.
pub(super) fn position(log_id: &LogIdOf<TypeConfig>) -> LogPosition {
    LogPosition { term: **log_id.committed_leader_id(), index: log_id.index() }
}

/// raft-log's type parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wal;

impl raft_log::Types for Wal {
    type LogId = WalLogId;
    type LogPayload = WalPayload;
    type Vote = WalVote;
    type Callback = Flushed;
    type UserData = String;

    fn log_index(log_id: &WalLogId) -> u64 {
        log_id.1
    }

    fn payload_size(payload: &WalPayload) -> u64 {
        let bytes = match &payload.0 {
            EntryPayload::Normal(commands) => {
                commands.bytes().saturating_add(commands.0.len() * 24)
            }
            EntryPayload::Blank | EntryPayload::Membership(_) => 64,
        };
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Term and index.
pub(super) type WalLogId = (u64, u64);

pub(super) fn to_wal(log_id: &LogIdOf<TypeConfig>) -> WalLogId {
    let at = position(log_id);
    (at.term, at.index)
}

pub(super) fn from_wal(at: &WalLogId) -> LogIdOf<TypeConfig> {
    LogId::new_term_index(at.0, at.1)
}

/// A vote. Within a term, a granted leadership is above a candidate's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WalVote {
    term: u64,
    committed: bool,
    node: u64,
}

impl WalVote {
    pub(super) const fn new(term: u64, committed: bool, node: u64) -> Self {
        Self { term, committed, node }
    }

    pub(super) const fn term(self) -> u64 {
        self.term
    }

    pub(super) fn of(vote: &VoteOf<TypeConfig>) -> Self {
        let leader = &vote.leader_id;
        Self { term: leader.term, committed: vote.committed, node: leader.voted_for }
    }

    pub(super) fn vote(self) -> VoteOf<TypeConfig> {
        let mut vote = Vote::new(self.term, self.node);
        vote.committed = self.committed;
        vote
    }
}

impl Encode for WalVote {
    fn encode<W: Write>(&self, mut w: W) -> Result<usize, io::Error> {
        Ok(self.term.encode(&mut w)? + self.committed.encode(&mut w)? + self.node.encode(&mut w)?)
    }
}

impl Decode for WalVote {
    fn decode<R: Read>(mut r: R) -> Result<Self, io::Error> {
        Ok(Self {
            term: Decode::decode(&mut r)?,
            committed: Decode::decode(&mut r)?,
            node: Decode::decode(&mut r)?,
        })
    }
}

const BLANK: u8 = 0;
const COMMANDS: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// What an entry carries, as it lies in the log.
#[derive(Debug, Clone)]
pub(super) struct WalPayload(EntryPayloadOf<TypeConfig>);

impl WalPayload {
    pub(super) fn of(entry: EntryOf<TypeConfig>) -> (WalLogId, Self) {
        (to_wal(&entry.log_id), Self(entry.payload))
    }

    pub(super) fn entry(self, at: &WalLogId) -> EntryOf<TypeConfig> {
        openraft::Entry { log_id: from_wal(at), payload: self.0 }
    }

    /// The bytes of the payload alone.
    pub(super) fn body(&self) -> Result<Vec<u8>, io::Error> {
        let mut body = Vec::new();
        match &self.0 {
            EntryPayload::Blank => body.push(BLANK),
            EntryPayload::Normal(commands) => {
                body.reserve(commands.bytes() + commands.0.len() * 4 + 5);
                body.push(COMMANDS);
                body.extend_from_slice(&length(commands.0.len())?.to_be_bytes());
                for command in commands.0.iter() {
                    body.extend_from_slice(&length(command.len())?.to_be_bytes());
                    body.extend_from_slice(command);
                }
            }
            EntryPayload::Membership(membership) => {
                body.push(MEMBERSHIP);
                serde_json::to_writer(&mut body, membership)?;
            }
        }
        Ok(body)
    }

    /// Reads what [`WalPayload::body`] gave.
    pub(super) fn parse(body: &[u8]) -> Result<Self, io::Error> {
        let (kind, mut rest) = body.split_first().ok_or_else(malformed)?;
        let payload = match *kind {
            BLANK if rest.is_empty() => EntryPayload::Blank,
            COMMANDS => {
                let mut commands = Vec::new();
                for _ in 0..take_length(&mut rest)? {
                    let size = take_length(&mut rest)?;
                    let (command, after) = rest.split_at_checked(size).ok_or_else(malformed)?;
                    commands.push(command.to_vec());
                    rest = after;
                }
                if !rest.is_empty() {
                    return Err(malformed());
                }
                EntryPayload::Normal(Commands::from(commands))
            }
            MEMBERSHIP => EntryPayload::Membership(serde_json::from_slice(rest)?),
            _ => return Err(malformed()),
        };
        Ok(Self(payload))
    }
}

fn length(count: usize) -> Result<u32, io::Error> {
    u32::try_from(count).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn take_length(rest: &mut &[u8]) -> Result<usize, io::Error> {
    let (head, after) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*head)).map_err(|_| malformed())
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed log payload")
}

impl Encode for WalPayload {
    fn encode<W: Write>(&self, w: W) -> Result<usize, io::Error> {
        let body = self.body()?;
        length(body.len())?;
        body.encode(w)
    }
}

impl Decode for WalPayload {
    fn decode<R: Read>(r: R) -> Result<Self, io::Error> {
        Self::parse(&Vec::<u8>::decode(r)?)
    }
}

/// Who is told when the log's writer has fsynced.
pub(super) enum Flushed {
    /// openraft, about entries it appended. An error ends the process before openraft hears of it.
    Entries(openraft::storage::IOFlushed<TypeConfig>, Fatal),
    /// A call that waits.
    Waiter(tokio::sync::oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for Flushed {
    fn send(self, result: Result<(), io::Error>) {
        match self {
            Self::Entries(told, fatal) => {
                if let Err(error) = &result {
                    fatal.strike(&format!("the raft log cannot be written: {error}"));
                }
                told.io_completed(result);
            }
            // A waiter that has gone needs no answer.
            Self::Waiter(told) => drop(told.send(result)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use openraft::Membership;

    use super::*;

    #[test]
    fn every_payload_reads_back_and_no_shortened_one_does() {
        let second = Endpoint { peer: "10.0.0.2:7500".into(), api: "http://10.0.0.2:80".into() };
        let nodes = BTreeMap::from([(1, Endpoint::default()), (2, second)]);
        let voters = vec![BTreeSet::from([1]), BTreeSet::from([1, 2])];
        let membership = Membership::new(voters, nodes).unwrap();
        let commands = vec![vec![], b"a".to_vec(), vec![7; 1_000]];
        for payload in [
            EntryPayload::Blank,
            EntryPayload::Normal(Commands::from(commands)),
            EntryPayload::Normal(Commands::from(Vec::new())),
            EntryPayload::Membership(membership),
        ] {
            let mut bytes = Vec::new();
            let size = WalPayload(payload.clone()).encode(&mut bytes).unwrap();
            assert_eq!(size, bytes.len());
            assert_eq!(WalPayload::decode(bytes.as_slice()).unwrap().0, payload);
            for end in 0..bytes.len() {
                assert!(WalPayload::decode(&bytes[..end]).is_err());
            }
            let body = &bytes[4..];
            assert!((0..body.len()).all(|end| WalPayload::parse(&body[..end]).is_err()));
            assert!(WalPayload::parse(&[body, &b"x"[..]].concat()).is_err());
        }
        assert!(WalPayload::parse(&[9]).is_err());
    }

    #[test]
    fn votes_read_back_and_a_leader_is_above_a_candidate_of_its_term() {
        let mut claim = Vote::new(3, 9);
        let leader = Vote::new_committed(3, 1);
        for vote in [claim, leader] {
            let mut bytes = Vec::new();
            WalVote::of(&vote).encode(&mut bytes).unwrap();
            assert_eq!(WalVote::decode(bytes.as_slice()).unwrap().vote(), vote);
        }
        assert!(WalVote::of(&leader) > WalVote::of(&claim));
        claim.leader_id.term = 4;
        assert!(WalVote::of(&claim) > WalVote::of(&leader));
    }

    #[test]
    fn members_that_were_written_with_one_address_each_are_still_read() {
        let text = r#"{"configs":[[1]],"nodes":{"1":{"addr":"localhost"}}}"#;
        let body = [&[MEMBERSHIP][..], text.as_bytes()].concat();
        let EntryPayload::Membership(read) = WalPayload::parse(&body).unwrap().0 else { panic!() };
        assert_eq!(read.get_node(&1).unwrap().peer, "localhost");
    }
}
