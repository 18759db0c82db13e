//! Offers: idle capacity that an agent says can be leased.

use serde::{Deserialize, Serialize};

use crate::capacity::{Capacity, Isolation, SliceId};
use crate::ids::Boot;
use crate::units::Seconds;

/// How long the slice will stay idle, as quantiles in seconds from now: with probability 0.9, 0.5
/// and 0.1 it stays idle at least `p10`, `p50` and `p90`. Never decreasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IdleFor {
    /// One in ten idle times ends before this.
    pub p10: Seconds,
    /// The median.
    pub p50: Seconds,
    /// Nine in ten idle times end before this.
    pub p90: Seconds,
}

/// How the users of a GPU's shares take turns. Never both on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedBy {
    /// MPS with memory limits.
    Mps,
    /// Turns on the whole GPU.
    TimeSlice,
}

impl SharedBy {
    /// The isolation of such shares.
    #[must_use]
    pub const fn isolation(self) -> Isolation {
        match self {
            SharedBy::Mps => Isolation::Mps,
            SharedBy::TimeSlice => Isolation::TimeSlice,
        }
    }
}

/// Whether MIG instances may be made on a GPU that is offered whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigMode {
    /// They may not.
    Off,
    /// They may, as its PCI device id allows.
    On,
}

/// How a GPU that is offered whole may be divided: in none of these ways, or in one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Division {
    /// Into MIG instances.
    pub mig: MigMode,
    /// Into shares.
    pub shared: Option<SharedBy>,
}

impl Division {
    /// It is leased whole or not at all.
    pub const NONE: Division = Division { mig: MigMode::Off, shared: None };

    /// Whether parts of this isolation may be carved out.
    #[must_use]
    pub fn allows(self, isolation: Isolation) -> bool {
        match isolation {
            Isolation::Exclusive => false,
            Isolation::Mig => self.mig == MigMode::On,
            Isolation::Mps | Isolation::TimeSlice => {
                self.shared.map(SharedBy::isolation) == Some(isolation)
            }
        }
    }
}

/// Whose CPU and host memory an offer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostRoom {
    /// The slice's own.
    Slice,
    /// The node's: all leases on it share them, and each gets what its request asks for.
    Node,
}

/// What an agent offers. The broker turns its spans into instants of ledger time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferTerms {
    /// What is offered.
    pub slice: SliceId,
    /// Strictly increasing per slice and boot: a later offer or rescind replaces earlier ones.
    pub generation: u64,
    /// The agent's start that speaks.
    pub boot: Boot,
    /// How much it holds.
    pub capacity: Capacity,
    /// How long it will stay idle.
    pub idle_for: IdleFor,
    /// How much notice the owner gives before a planned recall.
    pub recall_notice: Seconds,
    /// How long the offer stands unless repeated; the cell's policy caps it.
    pub ttl: Seconds,
    /// How it may be divided. Only a whole GPU may. The offer of one that may says what the whole GPU
    /// holds, also while parts of it are leased, and stands for what is left.
    pub division: Division,
    /// Whose CPU and host memory the capacity names.
    pub host: HostRoom,
}

/// Why an offer ended without a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RescindReason {
    /// The agent no longer finds it idle.
    NotIdle,
    /// The owner's work is there.
    Owner,
    /// A process that neither owner nor guest accounts for.
    ForeignUse,
    /// The device is gone or sick.
    DeviceFault,
    /// Nobody repeated it within its time.
    Expired,
    /// Its agent is silent.
    AgentLost,
    /// Its agent started anew and must offer again.
    NewBoot,
    /// The agent is being drained.
    Drain,
    /// Two machines claim its node id.
    HostConflict,
    /// Its agent could not make a part that was granted.
    PartRefused,
}
