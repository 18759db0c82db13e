//! What one broker of a cell asks another: to do what only a leader can do, and how it is.
//!
//! The broker that a caller talks to has checked who calls; the other one believes it, as a broker of
//! its own cell. Nothing that only agents or the leader itself may ask is taken this way.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sublet_protocol::codec::{self, COMMAND_MAX, Format};
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome};

use crate::cell::Parts;
use crate::error::{Chain, Error};
use crate::raft::{self, AskHandler, Endpoint};
use crate::reconciliation::Reconciled;
use crate::space::{Room, Space};

/// Room round a command for who asks and under which key.
const ROOM: usize = 64 * 1_024;
/// How long a leader may take to change the members: the new one copies the ledger meanwhile.
pub(crate) const MEMBERS_PATIENCE: Duration = Duration::from_secs(8);

/// A question.
#[allow(clippy::large_enum_variant, reason = "one at a time, sent at once, never stored")]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Propose this.
    Propose { actor: Actor, key: Option<IdempotencyKey>, command: Command },
    /// Take a node in.
    Add { node: u64, peer: String, api: String },
    /// Take a node out.
    Remove { node: u64 },
    /// Say how you are.
    Report,
    /// The root of the ledger after the entry at this place of the log.
    Root { entry: u64 },
    /// Hold ledger, broker and agents against each other, as the leader.
    Reconcile,
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// What became of a command, and which entry of the log it was.
    Proposed { outcome: Outcome, entry: u64 },
    /// The members are as they were to be.
    Changed,
    /// How a broker is.
    Report(Report),
    /// Size and root of the ledger there; nothing if it is not known (any more).
    Root(Option<(u64, [u8; 32])>),
    /// It was not done.
    Failed(Failure),
    /// Ledger, broker and agents.
    Reconciled(Reconciled),
}

/// How a broker is, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Its program's version.
    pub(crate) version: String,
    /// The entry it applied last.
    pub(crate) applied: Option<u64>,
    /// Records in its ledger.
    pub(crate) records: u64,
    /// The ledger's root.
    pub(crate) root: [u8; 32],
    /// Its disk; nothing if it does not look, or is not told.
    pub(crate) disk: Option<DiskReport>,
    /// The highest feature level that its program can do.
    pub(crate) feature_level: u16,
}

/// How the disk of a broker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskReport {
    pub(crate) free: u64,
    pub(crate) total: u64,
    pub(crate) room: RoomReport,
}

/// [`Room`] as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RoomReport {
    Full,
    Low,
    Plenty,
}

impl From<Room> for RoomReport {
    fn from(room: Room) -> Self {
        match room {
            Room::Full => Self::Full,
            Room::Low => Self::Low,
            Room::Plenty => Self::Plenty,
        }
    }
}

impl From<RoomReport> for Room {
    fn from(room: RoomReport) -> Self {
        match room {
            RoomReport::Full => Self::Full,
            RoomReport::Low => Self::Low,
            RoomReport::Plenty => Self::Plenty,
        }
    }
}

/// Why something was not done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// The broker does not lead.
    NotLeader(Option<u64>),
    /// Too much waits.
    Busy,
    /// It may have been done.
    Unknown,
    /// The command is too large.
    TooLarge,
    /// The broker stops.
    Stopped,
    /// The members cannot be changed so.
    Members(MembersFailure),
    /// Anything else; the broker's log says what.
    Internal,
    /// The leader's disk has no room for it.
    NoSpace,
    /// A broker is not reached, or does not want or is not wanted.
    Unmet { broker: u64, is_refusal: bool, reason: String },
    /// The broker was taken out of the cell.
    Removed,
}

/// [`raft::MembersError`] as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MembersFailure {
    Exists,
    Missing,
    LastVoter,
    UnderWay,
    Behind,
    NoPeers,
    Used,
}

impl Format for Question {
    const WHAT: &'static str = "question of a broker";
    const VERSION: u8 = 1;
    const MAX: usize = COMMAND_MAX + ROOM;
}

impl Format for Answer {
    const WHAT: &'static str = "answer of a broker";
    const VERSION: u8 = 1;
    const MAX: usize = COMMAND_MAX + ROOM;
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        match error {
            Error::NotLeader { leader } => Self::NotLeader(*leader),
            Error::Busy => Self::Busy,
            Error::Unknown => Self::Unknown,
            Error::TooLarge => Self::TooLarge,
            Error::NoSpace => Self::NoSpace,
            Error::Stopped => Self::Stopped,
            Error::Removed => Self::Removed,
            Error::Unmet { broker, is_refusal, reason } => {
                let (broker, is_refusal, reason) = (*broker, *is_refusal, reason.clone());
                Self::Unmet { broker, is_refusal, reason }
            }
            Error::Members(why) => Self::Members(match why {
                raft::MembersError::Exists => MembersFailure::Exists,
                raft::MembersError::Missing => MembersFailure::Missing,
                raft::MembersError::LastVoter => MembersFailure::LastVoter,
                raft::MembersError::NoPeers => MembersFailure::NoPeers,
                raft::MembersError::UnderWay => MembersFailure::UnderWay,
                raft::MembersError::Behind => MembersFailure::Behind,
                raft::MembersError::Used => MembersFailure::Used,
            }),
            other => {
                tracing::error!(error = %Chain(other), "what another broker asked failed");
                Self::Internal
            }
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotLeader(leader) => Self::NotLeader { leader },
            Failure::Busy => Self::Busy,
            // That it failed does not say that it was not done.
            Failure::Unknown | Failure::Internal => Self::Unknown,
            Failure::TooLarge => Self::TooLarge,
            Failure::NoSpace => Self::NoSpace,
            // The other one: there is another leader.
            Failure::Removed => Self::NotLeader { leader: None },
            Failure::Unmet { broker, is_refusal, reason } => {
                Self::Unmet { broker, is_refusal, reason }
            }
            // The one that stops is the other broker: there will be another leader.
            Failure::Stopped => Self::NotLeader { leader: None },
            Failure::Members(why) => Self::Members(match why {
                MembersFailure::Exists => raft::MembersError::Exists,
                MembersFailure::Missing => raft::MembersError::Missing,
                MembersFailure::LastVoter => raft::MembersError::LastVoter,
                MembersFailure::NoPeers => raft::MembersError::NoPeers,
                MembersFailure::UnderWay => raft::MembersError::UnderWay,
                MembersFailure::Behind => raft::MembersError::Behind,
                MembersFailure::Used => raft::MembersError::Used,
            }),
        }
    }
}

/// The cell that answers, once it is there.
#[derive(Clone, Default)]
pub(crate) struct Answering(Arc<OnceLock<Weak<Parts>>>);

impl Answering {
    /// From now on questions are answered.
    pub(crate) fn begin(&self, parts: &Arc<Parts>) {
        // A cell is opened once.
        let _set = self.0.set(Arc::downgrade(parts));
    }

    /// What the replication layer asks.
    pub(crate) fn handler(&self) -> AskHandler {
        let answering = self.clone();
        AskHandler::new(move |bytes| {
            let parts = answering.0.get().and_then(Weak::upgrade);
            Box::pin(async move {
                let answer = match parts {
                    Some(parts) => parts.answer(&bytes).await,
                    None => Answer::Failed(Failure::NotLeader(None)),
                };
                // An answer that cannot be written is none: the other side takes it for unknown.
                codec::encode(&answer).unwrap_or_default()
            })
        })
    }
}

impl Parts {
    /// Answers another broker.
    async fn answer(&self, question: &[u8]) -> Answer {
        let question = match codec::decode(question) {
            Ok(question) => question,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "a broker's question cannot be read");
                return Answer::Failed(Failure::Internal);
            }
        };
        let done = match question {
            Question::Propose { actor: Actor::Leader | Actor::Agent { .. }, .. } => {
                tracing::error!("another broker asked for what is not its to ask");
                return Answer::Failed(Failure::Internal);
            }
            Question::Propose { actor, key, command } => {
                let term = self.raft.leadership().borrow().term;
                let proposed = self.propose_at(actor, key, command, term).await;
                proposed.map(|(outcome, entry)| Answer::Proposed { outcome, entry })
            }
            Question::Add { .. } | Question::Remove { .. } => {
                self.change_members_here(&question).await.map(|()| Answer::Changed)
            }
            Question::Report => self.report().map(Answer::Report),
            Question::Root { entry } => Ok(Answer::Root(self.machine.root_after(entry))),
            Question::Reconcile => self.reconcile_here().await.map(Answer::Reconciled),
        };
        done.unwrap_or_else(|error| Answer::Failed(Failure::from(&error)))
    }

    /// How this broker is.
    pub(crate) fn report(&self) -> Result<Report, Error> {
        let head = self.journal(|journal| Ok(journal.head()))?;
        Ok(Report {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            applied: self.raft.status().applied.map(|at| at.index),
            records: head.size,
            root: *head.root.as_bytes(),
            disk: self.space.as_ref().and_then(|watch| {
                let Space { free, total } = watch.space()?;
                Some(DiskReport { free, total, room: watch.room().into() })
            }),
            feature_level: self.machine.level(),
        })
    }

    /// Asks the leader.
    ///
    /// # Errors
    /// [`Error::NotLeader`], [`Error::Busy`]: it was not done. [`Error::Unknown`]: it may have been.
    pub(crate) async fn ask_leader(&self, question: &Question) -> Result<Answer, Error> {
        let bytes = codec::encode(question).map_err(|_| Error::TooLarge)?;
        read(&self.raft.ask_leader(bytes).await?)
    }

    /// Asks the broker `node`.
    ///
    /// # Errors
    /// As [`Parts::ask_leader`].
    pub(crate) async fn ask_node(&self, node: u64, question: &Question) -> Result<Answer, Error> {
        let bytes = codec::encode(question).map_err(|_| Error::TooLarge)?;
        read(&self.raft.ask_node(node, bytes).await?)
    }

    /// Has the leader propose a command, and waits until what it became can be read here.
    pub(crate) async fn forward(
        &self,
        actor: Actor,
        key: Option<IdempotencyKey>,
        command: Command,
    ) -> Result<Outcome, Error> {
        match self.ask_leader(&Question::Propose { actor, key, command }).await? {
            Answer::Proposed { outcome, entry } => {
                // It is done, whatever is the matter here: asked again the caller hears the same.
                self.raft.wait_applied(entry).await.map_err(|_| Error::Unknown)?;
                Ok(outcome)
            }
            Answer::Changed
            | Answer::Report(_)
            | Answer::Root(_)
            | Answer::Reconciled(_)
            | Answer::Failed(_) => Err(Error::Unknown),
        }
    }

    /// Changes the members as their leader. Everything that can be known before is checked before.
    pub(crate) async fn change_members_here(&self, question: &Question) -> Result<(), Error> {
        match question {
            Question::Add { node, peer, api } => {
                let endpoint = Endpoint { peer: peer.clone(), api: api.clone() };
                self.take_in(*node, endpoint).await
            }
            Question::Remove { node } => {
                self.raft.read_barrier().await?;
                self.enlist(|member| member.is_voter).await?;
                Ok(self.raft.remove_member(*node, MEMBERS_PATIENCE).await?)
            }
            Question::Propose { .. }
            | Question::Report
            | Question::Root { .. }
            | Question::Reconcile => Ok(()),
        }
    }

    /// Takes a broker in: if it is there and is the one that is meant, it copies the log; then its
    /// number counts as used, and then it votes.
    async fn take_in(&self, node: u64, endpoint: Endpoint) -> Result<(), Error> {
        self.raft.read_barrier().await?;
        if !self.raft.status().members.iter().any(|member| member.node_id == node) {
            if self.machine.read(|state| state.brokers().contains(&node)) {
                return Err(Error::Members(raft::MembersError::Used));
            }
            self.raft.meet(node, &endpoint.peer).await?;
        }
        self.raft.admit_member(node, endpoint, MEMBERS_PATIENCE).await?;
        self.enlist(|member| member.is_voter || member.node_id == node).await?;
        Ok(self.raft.promote_member(node, MEMBERS_PATIENCE).await?)
    }

    /// Has the state remember the numbers of these members.
    async fn enlist(&self, whom: impl Fn(&raft::Member) -> bool) -> Result<(), Error> {
        let members = self.raft.status().members;
        let term = self.raft.leadership().borrow().term;
        for broker in members.iter().filter(|member| whom(member)).map(|member| member.node_id) {
            if self.machine.read(|state| state.brokers().contains(&broker)) {
                continue;
            }
            let enlist = Command::EnlistBroker { broker };
            match self.propose(Actor::Leader, None, enlist, term).await? {
                Outcome::Done { .. } | Outcome::Repeated { .. } => {}
                Outcome::Refused { rejection } => {
                    tracing::warn!(broker, %rejection, "a broker's number was not enlisted");
                    return Err(Error::NotLeader { leader: None });
                }
            }
        }
        Ok(())
    }

    /// Has the leader change the members.
    pub(crate) async fn change_members(&self, question: &Question) -> Result<(), Error> {
        match self.ask_leader(question).await? {
            Answer::Changed => Ok(()),
            Answer::Proposed { .. }
            | Answer::Report(_)
            | Answer::Root(_)
            | Answer::Reconciled(_)
            | Answer::Failed(_) => Err(Error::Unknown),
        }
    }
}

fn read(answer: &[u8]) -> Result<Answer, Error> {
    match codec::decode(answer) {
        Ok(Answer::Failed(failure)) => Err(failure.into()),
        Ok(answer) => Ok(answer),
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "a broker's answer cannot be read");
            Err(Error::Unknown)
        }
    }
}
