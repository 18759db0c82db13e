//! The brokers of the cell, for its operators.

use std::time::Duration;

use futures::future::join_all;
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome};

use crate::cell::Cell;
use crate::error::Error;
use crate::forward::{Answer, Question};
use crate::raft::{self, Endpoint, Role};
use crate::space::{Room, Space};

/// How long a broker may take to say how it is.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);
/// How long a change of the members waits for a leader.
const LEADER_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks for one.
const PAUSE: Duration = Duration::from_millis(100);

/// A broker of the cell.
#[derive(Debug, Clone)]
pub struct Broker {
    /// What the cell's members say of it.
    pub member: raft::Member,
    /// What it says of itself; nothing if it does not answer.
    pub health: Option<Health>,
}

/// How a broker is, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Its program's version.
    pub version: String,
    /// The entry of the log that it applied last.
    pub applied: Option<u64>,
    /// Records in its ledger.
    pub records: u64,
    /// The ledger's root.
    pub root: [u8; 32],
    /// Its disk and what there is room for; nothing if it does not look.
    pub disk: Option<(Space, Room)>,
    /// The highest feature level that its program can do.
    pub feature_level: u16,
}

impl Cell {
    /// The brokers of the cell, each asked how it is. One that does not answer within two seconds
    /// has no health.
    pub async fn brokers(&self) -> Vec<Broker> {
        let members = self.status().members;
        join_all(members.into_iter().map(|member| async {
            let health = self.health(member.node_id).await;
            Broker { member, health }
        }))
        .await
    }

    async fn health(&self, node: u64) -> Option<Health> {
        let parts = self.parts();
        let report = if node == self.status().node_id {
            parts.report().ok()?
        } else {
            let asked = parts.ask_node(node, &Question::Report);
            match tokio::time::timeout(REPORT_PATIENCE, asked).await {
                Ok(Ok(Answer::Report(report))) => report,
                Ok(_) | Err(_) => return None,
            }
        };
        let crate::forward::Report { version, applied, records, root, disk, feature_level } =
            report;
        let disk =
            disk.map(|disk| (Space { free: disk.free, total: disk.total }, disk.room.into()));
        Some(Health { version, applied, records, root, disk, feature_level })
    }

    /// Takes a broker in: it copies the log, then it votes. Asked again it goes on where it was.
    ///
    /// # Errors
    /// [`Error::Members`] says why it cannot be done, or not yet; [`Error::NotLeader`],
    /// [`Error::Unknown`].
    pub async fn add_broker(&self, node: u64, endpoint: Endpoint) -> Result<(), Error> {
        if self.listens().is_none() {
            return Err(Error::Members(raft::MembersError::NoPeers));
        }
        let Endpoint { peer, api } = endpoint;
        self.change(&Question::Add { node, peer, api }).await
    }

    /// Takes a broker out of the cell.
    ///
    /// # Errors
    /// As [`Cell::add_broker`].
    pub async fn remove_broker(&self, node: u64) -> Result<(), Error> {
        self.change(&Question::Remove { node }).await
    }

    /// Lets the cell use what needs feature level `level`, if every broker can do that. There is no
    /// way back: an older program refuses the cell from then on.
    ///
    /// # Errors
    /// [`Error::Level`] names a broker that cannot, or does not answer; as [`Cell::propose`].
    pub async fn raise_level(
        &self,
        actor: Actor,
        key: Option<IdempotencyKey>,
        level: u16,
    ) -> Result<Outcome, Error> {
        self.can_raise(level).await?;
        self.propose(actor, key, Command::RaiseFeatureLevel { level }).await
    }

    /// Whether every broker can do feature level `level`.
    ///
    /// # Errors
    /// [`Error::Level`].
    pub(crate) async fn can_raise(&self, level: u16) -> Result<(), Error> {
        for broker in self.brokers().await {
            let can = broker.health.map(|health| health.feature_level);
            if can.is_none_or(|can| can < level) {
                return Err(Error::Level { broker: broker.member.node_id, can, level });
            }
        }
        Ok(())
    }

    async fn change(&self, question: &Question) -> Result<(), Error> {
        let give_up = tokio::time::Instant::now() + LEADER_PATIENCE;
        loop {
            let changed = match self.status().role {
                Role::Leader => self.parts().change_members_here(question).await,
                Role::Learner | Role::Follower | Role::Candidate | Role::Stopped => {
                    self.parts().change_members(question).await
                }
            };
            match changed {
                Err(Error::NotLeader { .. }) if tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(PAUSE).await;
                }
                changed => return changed,
            }
        }
    }
}
