//! The words of brokers to one another. They cross the wire and are never stored.
//!
//! New words go to the end of their enum; what an older program must not be told is held back by
//! the level that both sides named in their greeting.

use std::fmt;

use openraft::raft::{AppendEntriesRequest, VoteRequest};
use openraft::type_config::alias::{EntryOf, LogIdOf, VoteOf};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use sublet_protocol::codec::Format;

use super::super::types::Piece;
use super::super::wire::{TypeConfig, WalLogId, WalPayload, WalVote, from_wal, to_wal};
use super::frame::FRAME_MAX;

/// Bytes that are written as one run, not one by one.
#[derive(Clone, PartialEq, Eq)]
pub(in super::super) struct Blob(Vec<u8>);

impl Blob {
    pub(in super::super) fn into_vec(self) -> Vec<u8> {
        self.0
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Blob, E> {
                Ok(Blob(bytes))
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

/// A vote: term, whether a quorum granted it, for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ballot {
    term: u64,
    is_granted: bool,
    node: u64,
}

impl From<&VoteOf<TypeConfig>> for Ballot {
    fn from(vote: &VoteOf<TypeConfig>) -> Self {
        let leader = &vote.leader_id;
        Self { term: leader.term, is_granted: vote.committed, node: leader.voted_for }
    }
}

impl From<Ballot> for VoteOf<TypeConfig> {
    fn from(ballot: Ballot) -> Self {
        WalVote::new(ballot.term, ballot.is_granted, ballot.node).vote()
    }
}

/// An entry as it lies in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogEntry {
    at: WalLogId,
    payload: Blob,
}

impl LogEntry {
    fn of(entry: EntryOf<TypeConfig>) -> std::io::Result<Self> {
        let (at, payload) = WalPayload::of(entry);
        Ok(Self { at, payload: payload.body()?.into() })
    }

    fn entry(&self) -> std::io::Result<EntryOf<TypeConfig>> {
        Ok(WalPayload::parse(&self.payload.0)?.entry(&self.at))
    }
}

/// Entries for a follower, or none: a heartbeat or a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Append {
    vote: Ballot,
    previous: Option<WalLogId>,
    entries: Vec<LogEntry>,
    committed: Option<WalLogId>,
}

impl Append {
    pub(super) fn of(request: AppendEntriesRequest<TypeConfig>) -> std::io::Result<Self> {
        Ok(Self {
            vote: Ballot::from(&request.vote),
            previous: request.prev_log_id.as_ref().map(to_wal),
            entries: request.entries.into_iter().map(LogEntry::of).collect::<Result<_, _>>()?,
            committed: request.leader_commit.as_ref().map(to_wal),
        })
    }

    /// About how many bytes it takes on the wire.
    pub(super) fn bytes(&self) -> usize {
        let entries = self.entries.iter().map(|entry| entry.payload.0.len().saturating_add(24));
        entries.fold(64, usize::saturating_add)
    }

    pub(super) fn request(&self) -> std::io::Result<AppendEntriesRequest<TypeConfig>> {
        Ok(AppendEntriesRequest {
            vote: self.vote.into(),
            prev_log_id: self.previous.as_ref().map(from_wal),
            entries: self.entries.iter().map(LogEntry::entry).collect::<Result<_, _>>()?,
            leader_commit: self.committed.as_ref().map(from_wal),
        })
    }
}

/// What became of an [`Append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Appended {
    /// On the follower's disk up to here.
    UpTo(Option<WalLogId>),
    /// The follower has another entry, or none, at this place.
    Conflict(WalLogId),
    /// The follower knows of a later leader.
    HigherVote(Ballot),
}

/// Who asks for a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Canvass {
    /// Whether the vote would be granted; nothing changes.
    Before,
    /// The vote itself.
    Vote,
}

/// A request for a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Candidacy {
    pub(super) canvass: Canvass,
    vote: Ballot,
    last: Option<WalLogId>,
    is_handed_over: bool,
}

impl Candidacy {
    pub(super) fn of(canvass: Canvass, request: &VoteRequest<TypeConfig>) -> Self {
        Self {
            canvass,
            vote: Ballot::from(&request.vote),
            last: request.last_log_id.as_ref().map(to_wal),
            is_handed_over: request.leadership_transfer,
        }
    }

    pub(super) fn request(&self) -> VoteRequest<TypeConfig> {
        let mut request = VoteRequest::new(self.vote.into(), self.last.as_ref().map(from_wal));
        request.leadership_transfer = self.is_handed_over;
        request
    }
}

/// A message. Answers name the `call` (or the `session` of entries) that they answer, since a call
/// may have been given up while its answer was on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Entries. Those of one session are answered in order, the first refusal ends the session.
    Append { session: u64, append: Append },
    /// Answers an `Append`.
    Appended { session: u64, appended: Appended },
    /// A candidate asks for a vote.
    Candidacy { call: u64, candidacy: Candidacy },
    /// Answers a `Candidacy`.
    Voted { call: u64, vote: Ballot, is_granted: bool, last: Option<WalLogId> },
    /// The leader wants this node to lead.
    HandOver { call: u64, vote: Ballot, to: u64, last: Option<WalLogId> },
    /// Answers a `HandOver`: it was taken in, or the log is not that far.
    HandedOver { call: u64, is_accepted: bool },
    /// The leader would send a snapshot file of so many bytes, and can send these pieces.
    Offer { call: u64, vote: Ballot, at: WalLogId, bytes: u64, pieces: Vec<Piece> },
    /// Answers an `Offer`: what is lacking, and from which byte on of the file.
    Want { call: u64, pieces: Vec<u64>, from: u64 },
    /// Bytes of what was wanted, in the order of `Want`, the snapshot file last.
    Part { call: u64, bytes: Blob, crc: u32, place: Place },
    /// The receiver is still at work.
    AtWork { call: u64 },
    /// The snapshot has been taken in, or a later leader is known.
    Installed { call: u64, vote: Ballot },
    /// What was asked cannot be done now. The connection is closed.
    Failed { call: u64, why: Failure },
    /// A question to the leader.
    Ask { call: u64, question: Question },
    /// Answers an `Ask`.
    Answer { call: u64, reply: Reply },
}

/// What a follower asks its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum Question {
    /// What must be applied for a read that begins now.
    ReadIndex,
    /// Something of the layer above.
    Above(Blob),
}

/// What a leader answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum Reply {
    /// A read sees everything once the entry at this place has been applied.
    ReadIndex(WalLogId),
    /// The answer of the layer above.
    Above(Blob),
    /// This node does not lead (any more). Nothing was done.
    NotLeader(Option<u64>),
    /// No quorum answered the leader. Nothing was done.
    NoQuorum,
    /// Nothing was done.
    Stopping,
}

/// Where a [`Message::Part`] stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// More of the same follows.
    Middle,
    /// It is the last of this piece or file.
    End,
}

/// Why something was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Failure {
    /// Another snapshot is being received.
    Busy,
    /// What arrived is damaged.
    Damaged,
    /// The node is stopping, or its storage failed.
    Stopping,
}

impl Format for Message {
    const WHAT: &'static str = "message of a broker";
    const VERSION: u8 = 1;
    const MAX: usize = FRAME_MAX;
}

/// The position openraft knows by `at`.
pub(super) fn log_id(at: Option<WalLogId>) -> Option<LogIdOf<TypeConfig>> {
    at.as_ref().map(from_wal)
}

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;
    use sublet_protocol::codec::{decode, encode};

    use super::super::super::wire::Commands;
    use super::*;

    fn request() -> AppendEntriesRequest<TypeConfig> {
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Commands::from(vec![b"a".to_vec(), vec![]])),
        ];
        let entries = (7..)
            .zip(payloads)
            .map(|(index, payload)| openraft::Entry { log_id: from_wal(&(3, index)), payload });
        AppendEntriesRequest {
            vote: WalVote::new(3, true, 2).vote(),
            prev_log_id: Some(from_wal(&(2, 6))),
            entries: entries.collect(),
            leader_commit: None,
        }
    }

    #[test]
    fn entries_arrive_as_they_were_sent() {
        let append = Append::of(request()).unwrap();
        let sent = Message::Append { session: 9, append };
        let bytes = encode(&sent).unwrap();
        let Message::Append { session: 9, append } = decode(&bytes).unwrap() else { panic!() };
        let (there, here) = (append.request().unwrap(), request());
        assert_eq!(there.vote, here.vote);
        assert_eq!(there.prev_log_id, here.prev_log_id);
        assert_eq!(there.entries, here.entries);
        assert_eq!(there.leader_commit, here.leader_commit);
        for end in 0..bytes.len() {
            assert!(decode::<Message>(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn an_entry_that_is_damaged_inside_its_frame_is_no_request() {
        let mut append = Append::of(request()).unwrap();
        append.entries[0].payload = vec![9].into();
        assert!(append.request().is_err());
    }

    #[test]
    fn a_candidacy_arrives_as_it_was_sent() {
        let mut request = VoteRequest::new(WalVote::new(4, false, 3).vote(), None);
        request.leadership_transfer = true;
        assert_eq!(Candidacy::of(Canvass::Vote, &request).request(), request);
    }
}
