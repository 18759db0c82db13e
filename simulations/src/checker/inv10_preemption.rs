//! INV-10: victims go in their order: no lease is preempted while one that should go before it runs in
//! the same candidate set; a victim's tier is always below the preemptor's; nobody is preempted
//! before it has run as long as it is spared, nor more often than may be.
//!
//! Of the order, the kinds are looked at: who borrows beyond its share, then the tier. What would be
//! lost, and who is newest, can change between plan and commit, and the rules do not ask again.
//! Candidates are compared where they are plainly alike: of one member, with the same capacity, at
//! the same place; and when the plan is made, on the state that it is made on. In what is committed the
//! order cannot be seen: while the plan is on its way a lease may outgrow the time for which it is
//! spared, or a request that would have taken the first be withdrawn.

use std::collections::{BTreeMap, BTreeSet};

use sublet_core::matching::Limits;
use sublet_core::{Applied, Request, State};
use sublet_protocol::commands::PlanGroup;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::records::Record;
use sublet_protocol::requests::{Placement, Tier};
use sublet_protocol::units::{GpuMilli, Timestamp};

use super::Checker;
use super::live::LiveLease;

/// How often each open request was preempted.
pub(super) type Preempted = BTreeMap<RequestId, u32>;

impl Checker {
    pub(super) fn preempts_in_order(&mut self, applied: &Applied, state: &State) {
        let mut victims: Vec<LeaseId> = Vec::new();
        for record in &applied.records {
            victims.extend(victim(record));
            let Event::CapacityPledged { request, .. } = &record.event else { continue };
            let preemptor = state.requests().get(request);
            for one in std::mem::take(&mut victims) {
                if let Some(preemptor) = preemptor {
                    self.preempts(one, preemptor, record.time, state);
                }
            }
        }
        self.check(10, victims.is_empty(), || format!("{victims:?} are preempted for nobody"));
    }

    /// The leader makes a plan on `state`, which holds all that is committed.
    pub(crate) fn plan_is_in_order(
        &mut self,
        groups: &[PlanGroup],
        limits: &Limits,
        now: Timestamp,
        state: &State,
    ) {
        let victims = |group: &PlanGroup| match group {
            PlanGroup::Grant { .. } | PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. } => {
                Vec::new()
            }
            PlanGroup::Preempt { victims, .. } => victims.clone(),
        };
        let doomed: BTreeSet<LeaseId> = groups.iter().flat_map(victims).collect();
        for group in groups {
            let Some(preemptor) = state.requests().get(&group.request()) else { continue };
            for victim in victims(group) {
                self.goes_in_turn(victim, preemptor, (&doomed, limits), now, state);
            }
        }
    }

    fn preempts(&mut self, victim: LeaseId, preemptor: &Request, now: Timestamp, state: &State) {
        let Some(one) = self.live.leases.get(&victim) else {
            return self.fail(10, format!("{victim} is preempted and was not live"));
        };
        let tier = preemptor.spec().class.tier();
        if one.terms.tier() >= tier {
            return self.fail(10, format!("{victim} is preempted for one of its own tier"));
        }
        if !self.may_go(one, tier, now, state) {
            self.fail(10, format!("{victim} is preempted and was spared"));
        }
    }

    fn goes_in_turn(
        &mut self,
        victim: LeaseId,
        preemptor: &Request,
        (doomed, limits): (&BTreeSet<LeaseId>, &Limits),
        now: Timestamp,
        state: &State,
    ) {
        let Some(one) = self.live.leases.get(&victim) else { return };
        let tier = preemptor.spec().class.tier();
        // A pledge is of one request; what is kept for it tells whose the victims are.
        let is_free = |other: &LiveLease| {
            other.terms.members.iter().all(|m| !state.pledged().contains_key(&m.slice))
        };
        // On nodes that the leader has not heard, or whose clock is off, nobody ends for another.
        let is_open = |other: &LiveLease| {
            let mut slices = other.terms.members.iter().map(|member| member.slice);
            slices.all(|slice| !limits.closed.contains(&(slice.cluster, slice.node)))
        };
        let goes_first = |other: &&LiveLease| {
            kind(other, state) < kind(one, state)
                && is_alike(one, other, preemptor.spec().placement)
                && !doomed.contains(&other.terms.lease)
                && is_free(other)
                && is_open(other)
                && self.may_go(other, tier, now, state)
        };
        if let Some(other) = self.live.leases.values().find(goes_first) {
            let other = other.terms.lease;
            self.fail(10, format!("{victim} is to go, {other} that goes before it is not"));
        }
    }

    /// Whether the lease is below the tier and no longer spared: the rule, said once more.
    fn may_go(&self, one: &LiveLease, tier: Tier, now: Timestamp, state: &State) -> bool {
        let policy = state.policy();
        let count = self.preempted.get(&one.terms.request).copied().unwrap_or(0);
        let Some(since) = one.active_at else { return false };
        let base = policy.min_run.of(one.terms.tier()).get();
        let mut spared = base;
        for _ in 0..count.min(64) {
            spared = spared.saturating_mul(2);
        }
        let spared = spared.min(policy.preemption.min_run_max.get()).max(base);
        let node = |slice: &sublet_protocol::capacity::SliceId| {
            state.nodes().get(&(slice.cluster, slice.node))
        };
        let mut slices = one.terms.members.iter().map(|member| member.slice);
        !one.is_ending
            && one.terms.tier() < tier
            && count < policy.preemption.per_request
            && now.since(since).get() >= spared.saturating_mul(1_000)
            && slices.all(|slice| node(&slice).is_none_or(|node| !node.is_paused(now)))
    }

    /// Counts who was preempted how often.
    pub(super) fn count_preemptions(&mut self, record: &Record) {
        match &record.event {
            Event::RequestRequeued { request, reason: EndReason::Preempted, .. } => {
                *self.preempted.entry(*request).or_default() += 1;
            }
            Event::RequestClosed { request, .. } | Event::RequestCancelled { request, .. } => {
                self.preempted.remove(request);
            }
            _other => {}
        }
    }
}

fn victim(record: &Record) -> Option<LeaseId> {
    match &record.event {
        Event::LeaseEnding { lease, cause: EndReason::Preempted, .. } => Some(*lease),
        _other => None,
    }
}

/// Whoever borrows beyond its share goes first, then the lowest tier.
fn kind(one: &LiveLease, state: &State) -> (bool, Tier) {
    let (tenant, model) = (one.terms.tenant, one.terms.model);
    let figures = state.tree().figures(tenant, model);
    let has_group = state.tree().node(tenant).is_some_and(|node| node.parent().is_some());
    let borrows = figures.is_some_and(|figures| match has_group {
        true => figures.borrowed > GpuMilli::ZERO,
        false => figures.excess > GpuMilli::ZERO,
    });
    (!borrows, one.terms.tier())
}

fn is_alike(victim: &LiveLease, other: &LiveLease, placement: Placement) -> bool {
    let ([ours], [theirs]) = (victim.terms.members.as_slice(), other.terms.members.as_slice())
    else {
        return false;
    };
    let is_near = match placement {
        Placement::Cluster => true,
        Placement::Node | Placement::Island => ours.slice.node == theirs.slice.node,
    };
    !other.is_ending
        && is_near
        && other.terms.cluster == victim.terms.cluster
        && ours.capacity == theirs.capacity
}
