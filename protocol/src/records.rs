//! Records: one event as the journal keeps it, with its place, time and cause.

use serde::{Deserialize, Serialize};

use crate::commands::Actor;
use crate::events::Event;
use crate::ids::{CommandId, TenantId};
use crate::money::Line;
use crate::units::Timestamp;

/// One entry of the journal. Its canonical bytes are what the Merkle tree hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its place: 0, 1, 2, … without a gap.
    pub index: u64,
    /// The raft term it was committed in.
    pub term: u64,
    /// Ledger time; never decreases from one record to the next.
    pub time: Timestamp,
    /// The command that caused it.
    pub cause: CommandId,
    /// Who asked.
    pub actor: Actor,
    /// What happened.
    pub event: Event,
}

impl Record {
    /// The posting of the record; empty if it moves no money.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        self.event.lines()
    }

    /// The tenant whose business the record is: the event's, else the acting one.
    #[must_use]
    pub const fn tenant(&self) -> Option<TenantId> {
        match (self.event.tenant(), &self.actor) {
            (Some(tenant), _) => Some(tenant),
            (None, Actor::Tenant { tenant, .. }) => Some(*tenant),
            (None, Actor::Operator { .. } | Actor::Agent { .. } | Actor::Leader) => None,
        }
    }

    /// The numbers of the lease, of the request and of the rollback that the record is about.
    pub fn subjects(&self) -> impl Iterator<Item = u128> + use<> {
        let lease = self.event.lease().map(crate::ids::LeaseId::get);
        let request = self.event.request().map(crate::ids::RequestId::get);
        let rollback = self.event.rollback().map(crate::ids::RollbackId::get);
        lease.into_iter().chain(request).chain(rollback)
    }
}
