//! Looks on while chaos runs, and says which property does not hold. One property a file; what can be
//! seen in one committed state is checked by `sublet_core::invariants`, the same code as in
//! production.
//!
//! The checker sees every committed entry once, in order, and every guest's process as it really is.
//! It knows no more of the rules than the properties themselves.

mod inv01_one_guest;
mod inv03_gone;
mod inv04_money;
mod inv05_keys;
mod inv06_order;
mod inv08_kept;
mod inv09_settled;
mod inv10_preemption;
mod inv11_borders;
mod inv12_fold;
mod inv14_bounds;
mod inv15_grants;
mod inv16_cut_off;
mod inv17_leader;
mod live;
mod view;

use std::collections::BTreeMap;

use sublet_core::{Applied, State, invariants};
use sublet_ledger::charges::Recount;
use sublet_protocol::commands::{Outcome, Stamped};
use sublet_protocol::events::Event;
use sublet_protocol::ids::ClusterId;

pub(crate) use sublet_core::invariants::Violation;

use inv01_one_guest::Guests;
use inv04_money::Runs;
use inv05_keys::Keys;
use inv06_order::Order;
use inv08_kept::Kept;
use inv09_settled::Probes;
use inv10_preemption::Preempted;
use inv16_cut_off::CutOff;
use inv17_leader::Offices;
use live::Live;

/// Counts of what was committed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) commands: u64,
    pub(crate) records: u64,
    pub(crate) grants: u64,
    /// Pledges of slices that were free: somebody ends for quota alone.
    pub(crate) for_quota: u64,
    pub(crate) ends: BTreeMap<&'static str, u64>,
}

/// The onlooker.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    violation: Option<Violation>,
    entries: usize,
    tally: Tally,
    live: Live,
    guests: Guests,
    runs: Runs,
    books: Recount,
    keys: Keys,
    order: Order,
    kept: Kept,
    probes: Probes,
    preempted: Preempted,
    cut_off: CutOff,
    offices: Offices,
    /// Its agents lie about use and idleness.
    liar: Option<ClusterId>,
}

impl Checker {
    pub(crate) fn new(liar: Option<ClusterId>) -> Checker {
        Checker { liar, ..Checker::default() }
    }

    /// The first property that did not hold.
    pub(crate) const fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    pub(crate) fn fail(&mut self, invariant: u8, what: String) {
        self.violation.get_or_insert(Violation { invariant, what });
    }

    fn check(&mut self, invariant: u8, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(invariant, what());
        }
    }

    /// Entries of the log that were looked at.
    pub(crate) const fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The next entry of the log was applied for the first time, which left `state`.
    pub(crate) fn entry(
        &mut self,
        now: u64,
        stamped: &Stamped,
        applied: &Applied,
        state: &State,
        is_sampled: bool,
    ) {
        self.entries += 1;
        self.tally.commands += 1;
        self.kept.cause = stamped.id;
        self.records_in_order(applied, state);
        self.within_borders(stamped, applied);
        self.preempts_in_order(applied, state);
        let mut is_grant = false;
        for record in &applied.records {
            self.tally.records += 1;
            is_grant |= matches!(record.event, Event::LeaseGranted { .. });
            self.grant_is_sound(record, stamped);
            self.key_is_used_once(record);
            self.submitted_once(record);
            if let Event::LeaseEnded { reason, .. } = &record.event {
                *self.tally.ends.entry(reason.code()).or_default() += 1;
            }
            self.charge_is_right(now, record, state);
            self.money_is_recounted(record);
            self.count_preemptions(record);
            self.live.record(now, record, stamped);
            self.no_guest_outlives(record);
        }
        self.tally.grants += u64::from(is_grant);
        if is_sampled || is_grant {
            for Violation { invariant, what } in invariants::check(state) {
                self.fail(invariant, what);
            }
        }
    }

    /// What a client was told of the command applied last.
    pub(crate) fn acknowledged(&mut self, outcome: &Outcome) {
        self.answers_agree(outcome);
        self.kept.acknowledge(outcome);
    }
}
