//! INV-4: each charge is the price times what is billed, and what is billed is what ran: never more
//! than 2.5 ρ and a second above it, and not less where the agents reported the end. And it is what an
//! auditor computes who knows the records only.

use std::collections::BTreeMap;

use sublet_core::State;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::events::{Event, Settlement};
use sublet_protocol::ids::{LeaseId, Token};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::cost_half_even;
use sublet_protocol::records::Record;
use sublet_protocol::units::Millis;

use super::Checker;
use super::live::LiveLease;

/// 2.5 ρ for a ρ of 5 %, in thousandths.
const TOLERANCE: u64 = 125;
/// And a second.
const GRAIN: u64 = 1_000;

/// How long guests ran, in true milliseconds.
#[derive(Debug, Default)]
pub(super) struct Runs {
    since: BTreeMap<(SliceId, Token), (LeaseId, u64)>,
    /// The longest run of each lease's members.
    longest: BTreeMap<LeaseId, u64>,
}

impl Checker {
    /// A guest begins to run: its use is measured from now on.
    pub(crate) fn guest_runs(&mut self, now: u64, slice: SliceId, token: Token, lease: LeaseId) {
        self.runs.since.insert((slice, token), (lease, now));
    }

    /// A guest's processes are gone.
    pub(crate) fn guest_gone(&mut self, now: u64, slice: SliceId, token: Token) {
        self.guest_stops(slice, token);
        if let Some((lease, since)) = self.runs.since.remove(&(slice, token)) {
            let longest = self.runs.longest.entry(lease).or_default();
            *longest = (now - since).max(*longest);
        }
    }

    fn ran(&mut self, now: u64, lease: LeaseId) -> u64 {
        let over = self.runs.longest.remove(&lease).unwrap_or(0);
        let still = self.runs.since.values().filter(|(its, _)| *its == lease);
        still.map(|(_, since)| now - since).fold(over, u64::max)
    }

    /// The charge of a lease that ended.
    pub(super) fn charge_is_right(&mut self, now: u64, record: &Record, state: &State) {
        let Event::LeaseEnded { lease, reason, settlement, .. } = &record.event else { return };
        let ran = self.ran(now, *lease);
        let Some(one) = self.live.leases.get(lease).cloned() else {
            return self.fail(15, format!("{lease} ends and was not live"));
        };
        let terms = &one.terms;
        let Settlement { billed, cost, .. } = *settlement;
        let priced = cost_half_even(terms.price, terms.gpu_total(), billed);
        self.check(4, priced == Some(cost), || format!("{lease} costs {cost} for {billed} ms"));
        let window = one.active_at.map_or(Millis::ZERO, |since| record.time.since(since));
        let most = window.min(terms.duration.as_millis());
        self.check(4, billed <= most, || {
            format!("{lease} is billed {billed} ms of at most {most} ms")
        });
        if self.liar == Some(terms.cluster) {
            return;
        }
        let above = ran + ran * TOLERANCE / 1_000 + GRAIN;
        self.check(4, billed.get() <= above, || {
            format!("{lease} ({}) is billed {billed} ms and ran {ran} ms", reason.code())
        });
        let lost = self.may_be_lost(&one, state);
        let below = (ran - ran * TOLERANCE / 1_000).saturating_sub(GRAIN + lost).min(most.get());
        if is_fully_reported(&one, *reason, billed, state) {
            self.check(4, billed.get() >= below, || {
                format!("{lease} ({}) is billed only {billed} ms and ran {ran} ms", reason.code())
            });
        }
    }
}

impl Checker {
    /// Every hold and charge is what an auditor computes from the records alone.
    pub(super) fn money_is_recounted(&mut self, record: &Record) {
        if let Err(error) = self.books.take(record) {
            self.fail(
                4,
                format!("record {} is not what an auditor computes: {error}", record.index),
            );
        }
    }

    /// What a crash of the agent may cost the owner: what ran since the renewal before the last, and
    /// until the guard saw it. A suspension may hide more.
    fn may_be_lost(&self, one: &LiveLease, state: &State) -> u64 {
        if !one.is_resumed {
            return 0;
        }
        let is_shaken = self.was_suspended(one.terms.lease);
        if is_shaken {
            u64::MAX / 2
        } else {
            state.policy().renew.as_millis().get() * 9 / 4 + 4_000
        }
    }
}

/// Whether nothing of the use may be missing: all members were reported by their agents. What the
/// owner cuts short costs nothing (row F9).
fn is_fully_reported(one: &LiveLease, reason: EndReason, billed: Millis, state: &State) -> bool {
    let is_refunded = reason == EndReason::Reclaimed
        && billed == Millis::ZERO
        && state.policy().min_run.of(one.terms.tier()).as_millis() > Millis::ZERO;
    one.is_reported && !is_refunded
}
