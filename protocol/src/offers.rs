//! Offers: idle capacity that an agent says can be leased.

use serde::{Deserialize, Serialize};

use crate::capacity::{Capacity, SliceId};
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
}
