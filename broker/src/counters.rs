//! What a cell has done since this process opened it: for the summary of `dev`, the status page and
//! metrics. Counted where commands are applied; nothing is decided by it.

use std::collections::BTreeMap;

use serde::Serialize;
use sublet_core::{Lease, State};
use sublet_protocol::commands::Outcome;
use sublet_protocol::events::Event;
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::records::Record;
use sublet_protocol::units::{GpuMilli, Millis};

/// Numbers since the start of the process; what a restart replays from the log is not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Commands applied, refused and repeated ones included.
    pub commands: u64,
    /// Of them, refused.
    pub commands_refused: u64,
    /// Of them, answered from an idempotency key.
    pub commands_repeated: u64,
    /// Records journalled.
    pub records: u64,
    /// Times the invariants were checked.
    pub invariants_checked: u64,
    /// Violations found; those found while the log was replayed are counted too.
    pub invariant_violations: u64,
    /// Leases granted.
    pub leases_granted: u64,
    /// Leases that became active.
    pub leases_activated: u64,
    /// Leases ended, by reason.
    pub leases_ended: BTreeMap<EndReason, u64>,
    /// Leases that the owner took back.
    pub owner_reclaims: u64,
    /// Leases taken away for a higher tier.
    pub preemptions: u64,
    /// Measured guest time, in GPU-milliseconds: one whole GPU for one second is 1,000.
    pub gpu_millis_lent: u64,
}

impl Counters {
    /// Leases ended for any reason.
    #[must_use]
    pub fn leases_ended_total(&self) -> u64 {
        self.leases_ended.values().sum()
    }
}

/// Counts, and remembers what of each live lease was counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counters: Counters,
    live: BTreeMap<LeaseId, Live>,
}

#[derive(Debug)]
struct Live {
    gpu: GpuMilli,
    used: Millis,
}

impl Tally {
    /// Goes on from `state`, with the numbers so far.
    pub(crate) fn resume(&mut self, state: &State) {
        let live = |(id, lease): (&LeaseId, &Lease)| {
            (*id, Live { gpu: lease.terms().gpu_total(), used: lease.used() })
        };
        self.live = state.leases().iter().map(live).collect();
    }

    /// Counts one command.
    pub(crate) fn command(&mut self, outcome: &Outcome) {
        self.counters.commands += 1;
        match outcome {
            Outcome::Done { .. } => {}
            Outcome::Repeated { .. } => self.counters.commands_repeated += 1,
            Outcome::Refused { .. } => self.counters.commands_refused += 1,
        }
    }

    /// Counts one record.
    pub(crate) fn record(&mut self, record: &Record) {
        self.counters.records += 1;
        match &record.event {
            Event::LeaseGranted { terms, .. } => {
                self.counters.leases_granted += 1;
                let live = Live { gpu: terms.gpu_total(), used: Millis::ZERO };
                self.live.insert(terms.lease, live);
            }
            Event::LeaseActivated { .. } => self.counters.leases_activated += 1,
            Event::UsageRecorded { lease, used } => self.used(*lease, *used),
            Event::LeaseEnding { cause, .. } => match cause {
                EndReason::Reclaimed => self.counters.owner_reclaims += 1,
                EndReason::Preempted => self.counters.preemptions += 1,
                _other => {}
            },
            Event::LeaseEnded { lease, reason, settlement, .. } => {
                *self.counters.leases_ended.entry(*reason).or_default() += 1;
                self.used(*lease, settlement.billed);
                self.live.remove(lease);
            }
            _other => {}
        }
    }

    fn used(&mut self, lease: LeaseId, used: Millis) {
        let Some(live) = self.live.get_mut(&lease) else { return };
        let more = used.saturating_sub(live.used);
        live.used = live.used.max(used);
        let lent = more.get().saturating_mul(live.gpu.get()) / GpuMilli::DEVICE.get();
        self.counters.gpu_millis_lent = self.counters.gpu_millis_lent.saturating_add(lent);
    }
}
