//! What can break, and how often it did: a run that never broke something proves nothing about it.

use std::fmt;

use serde::Serialize;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A message was lost.
    Lost,
    /// A message came twice.
    Doubled,
    /// A message took more than 10 s, up to 90 s.
    Late,
    /// Messages of one sender arrived in another order.
    Reordered,
    /// An agent was cut off in both directions.
    CutOff,
    /// Nothing of an agent reached the brokers.
    CutUp,
    /// Nothing reached an agent.
    CutDown,
    /// The brokers were cut off from all agents at once.
    AllCut,
    /// A second agent was started on a node, and refused.
    SecondStart,
    /// An agent's process died between two effects; its guests did not at once.
    AgentCrash,
    /// An agent died after it decided to keep something and before it was kept.
    LostWrite,
    /// A node lost its power.
    NodeReboot,
    /// A node was suspended.
    Suspend,
    /// An agent stood still for a moment.
    Stall,
    /// A broker's process died.
    BrokerCrash,
    /// A broker died between two effects of its leader's logic.
    BrokerCrashInEffects,
    /// A broker was cut off from the others but not from the agents.
    BrokerIsolated,
    /// A leader was cut off from the others with some agents on its side.
    Split,
    /// Leadership moved though nobody died.
    LeaderChange,
    /// What a leader had proposed was lost with it.
    LostSuffix,
    /// What a leader had proposed was committed by its successor.
    KeptSuffix,
    /// A leader planned again before it knew what came of its last plan.
    PlanTwice,
    /// A plan was long on its way to the log.
    PlanLate,
    /// A deposed leader answered or sent something.
    DeposedSpoke,
    /// A command of a leader came into the log under a later term.
    OtherTerm,
    /// A broker's wall clock jumped.
    WallJump,
    /// A node's clock ran more than 4 % too fast or too slow.
    WrongRate,
    /// The owner came while a guest was there.
    OwnerArrived,
    /// A stranger's process came while a guest was there.
    ForeignUse,
    /// A device was lost while a guest was there.
    DeviceLost,
    /// A guest ignored its signal.
    IgnoredSignal,
    /// A guest was killed by its guard at the deadline, not by its agent.
    GuardAtDeadline,
    /// A guest was killed by its guard because its agent was gone.
    GuardAtEof,
    /// A guest did not start.
    NotStarted,
    /// A slice was not clean at once.
    NotClean,
    /// An agent said more use than there was.
    UsageLie,
    /// An agent offered what its owner used.
    OfferLie,
    /// An agent spoke of another cluster's slices.
    ForgedMessage,
    /// Two machines claimed one node.
    TwoHosts,
    /// A client asked again what may have been done.
    Retried,
    /// A client used a key for something else.
    KeyMisused,
    /// A quota was cut below what was held.
    QuotaCut,
    /// A broker's machine lost its power.
    PowerLoss,
    /// What was not synced was lost with it.
    UnsyncedLost,
    /// A write was torn at a sector's border by it.
    TornWrite,
    /// A bit of a ledger's files flipped.
    BitFlip,
    /// A call on a disk failed.
    DiskError,
    /// A disk was full.
    DiskFull,
    /// A damaged store was made anew from segments and log.
    StoreRebuilt,
    /// A damaged segment was brought back from another broker.
    SegmentRestored,
    /// A broker started from the older of its two snapshots.
    OlderSnapshot,
    /// An agent could not read something of a device.
    ReadingMissing,
}

impl Fault {
    /// Every kind; each must have occurred in a set of seeds.
    pub const ALL: [Fault; 52] = [
        Fault::Lost,
        Fault::Doubled,
        Fault::Late,
        Fault::Reordered,
        Fault::CutOff,
        Fault::CutUp,
        Fault::CutDown,
        Fault::AllCut,
        Fault::SecondStart,
        Fault::AgentCrash,
        Fault::LostWrite,
        Fault::NodeReboot,
        Fault::Suspend,
        Fault::Stall,
        Fault::BrokerCrash,
        Fault::BrokerCrashInEffects,
        Fault::BrokerIsolated,
        Fault::Split,
        Fault::LeaderChange,
        Fault::LostSuffix,
        Fault::KeptSuffix,
        Fault::PlanTwice,
        Fault::PlanLate,
        Fault::DeposedSpoke,
        Fault::OtherTerm,
        Fault::WallJump,
        Fault::WrongRate,
        Fault::OwnerArrived,
        Fault::ForeignUse,
        Fault::DeviceLost,
        Fault::IgnoredSignal,
        Fault::GuardAtDeadline,
        Fault::GuardAtEof,
        Fault::NotStarted,
        Fault::NotClean,
        Fault::UsageLie,
        Fault::OfferLie,
        Fault::ForgedMessage,
        Fault::TwoHosts,
        Fault::Retried,
        Fault::KeyMisused,
        Fault::QuotaCut,
        Fault::PowerLoss,
        Fault::UnsyncedLost,
        Fault::TornWrite,
        Fault::BitFlip,
        Fault::DiskError,
        Fault::DiskFull,
        Fault::StoreRebuilt,
        Fault::SegmentRestored,
        Fault::OlderSnapshot,
        Fault::ReadingMissing,
    ];

    fn place(self) -> usize {
        Fault::ALL.iter().position(|one| *one == self).unwrap_or(0)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{self:?}");
        for (i, c) in text.char_indices() {
            let is_word = c.is_ascii_uppercase() && i > 0;
            write!(f, "{}{}", if is_word { "_" } else { "" }, c.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// How often each kind occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults([u64; Fault::ALL.len()]);

impl Default for Faults {
    fn default() -> Faults {
        Faults([0; Fault::ALL.len()])
    }
}

impl Faults {
    pub(super) fn count(&mut self, fault: Fault) {
        self.count_many(fault, 1);
    }

    pub(super) fn count_many(&mut self, fault: Fault, times: u64) {
        self.0[fault.place()] += times;
    }

    /// How often `fault` occurred.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault.place()]
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Faults) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Kinds that never occurred.
    pub fn missing(&self) -> impl Iterator<Item = Fault> + '_ {
        Fault::ALL.into_iter().filter(|fault| self.of(*fault) == 0)
    }
}
