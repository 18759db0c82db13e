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
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::PlanGroup;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, NodeId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::records::Record;
use sublet_protocol::requests::{Placement, RequestSpec, Tier};
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
            let Event::CapacityPledged { request, slices, .. } = &record.event else { continue };
            let is_free = |slice: &SliceId| !state.leased().contains_key(slice);
            self.tally.for_quota += u64::from(slices.iter().all(is_free));
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
            let id = group.request();
            let Some(preemptor) = state.requests().get(&id) else { continue };
            for victim in victims(group) {
                self.goes_in_turn(victim, (id, preemptor), (&doomed, limits, groups), now, state);
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
        (id, preemptor): (RequestId, &Request),
        (doomed, limits, groups): (&BTreeSet<LeaseId>, &Limits, &[PlanGroup]),
        now: Timestamp,
        state: &State,
    ) {
        let Some(one) = self.live.leases.get(&victim) else { return };
        let tier = preemptor.spec().class.tier();
        let is_paused = |slice: &SliceId| {
            let node = state.nodes().get(&(slice.cluster, slice.node));
            node.is_some_and(|node| node.is_paused(now))
        };
        // What a paused node frees serves nobody: who ends there ends for quota.
        let is_served =
            |other: &LiveLease| !other.terms.members.iter().any(|member| is_paused(&member.slice));
        // A pledge is of one request; what is kept for it tells whose the victims are.
        let is_free = |other: &LiveLease| {
            other.terms.members.iter().all(|m| !state.pledged().contains_key(&m.slice))
        };
        // On nodes that the leader has not heard, or whose clock is off, nobody ends for another.
        let is_open = |other: &LiveLease| {
            let mut slices = other.terms.members.iter().map(|member| member.slice);
            slices.all(|slice| !limits.closed.contains(&(slice.cluster, slice.node)))
        };
        let has_quota = has_quota(preemptor, one, groups, state);
        let is_anywhere = is_served_anywhere(preemptor.spec()) && has_quota;
        // Where quota is what is missing, another's end may give none back.
        let gives_as_much = |other: &LiveLease| has_quota || other.terms.tenant == one.terms.tenant;
        let goes_first = |other: &&LiveLease| {
            kind(other, state) < kind(one, state)
                && is_alike(one, other, (preemptor.spec(), is_anywhere))
                && gives_as_much(other)
                && !doomed.contains(&other.terms.lease)
                && is_free(other)
                && is_open(other)
                && !is_promised(other, (id, tier), groups, state)
                && (is_reached(one, other, preemptor.spec())
                    || !has_offer_alike(other, preemptor.spec(), state))
                && self.may_go(other, tier, now, state)
                && is_served(other)
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
        !one.is_ending
            && one.terms.tier() < tier
            && count < policy.preemption.per_request
            && now.since(since).get() >= spared.saturating_mul(1_000)
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

/// Whether what the lease has is promised to somebody whom the preemptor may not pass: nobody is ended
/// for what others have reserved.
fn is_promised(
    one: &LiveLease,
    (id, tier): (RequestId, Tier),
    groups: &[PlanGroup],
    state: &State,
) -> bool {
    let is_before = |other: RequestId| {
        let holder = state.requests().get(&other);
        other != id && holder.is_some_and(|holder| holder.spec().class.tier() >= tier)
    };
    let is_its = |slice: &SliceId| {
        one.terms.members.iter().any(|member| {
            let ours = member.slice;
            (slice.cluster, slice.node, slice.device) == (ours.cluster, ours.node, ours.device)
                && slice.part.overlaps(ours.part)
        })
    };
    let by_plan = groups.iter().any(|group| match group {
        PlanGroup::Promise { request, slices, .. } => {
            is_before(*request) && slices.iter().any(is_its)
        }
        PlanGroup::Grant { .. } | PlanGroup::Preempt { .. } | PlanGroup::Withdraw { .. } => false,
    });
    let mut promises = state.promises().iter();
    by_plan
        || promises
            .any(|(request, promise)| is_before(*request) && promise.slices().keys().any(is_its))
}

/// Whether one slice is as good as another of the same capacity, wherever it is: no price or region makes
/// a difference. No tenant of a chaos world has a budget in money.
fn is_served_anywhere(spec: &RequestSpec) -> bool {
    spec.count == 1 && spec.max_price.is_none() && spec.regions.is_empty()
}

/// Whether the preemptor has quota for all that the plan and the pledges may take, so that nobody's end
/// has to give it back first.
fn has_quota(preemptor: &Request, victim: &LiveLease, groups: &[PlanGroup], state: &State) -> bool {
    let left = state.tree().figures(preemptor.tenant(), victim.terms.model).map(|one| one.left);
    let planned = groups.iter().map(PlanGroup::request).chain(state.pledged().values().copied());
    let takers: BTreeSet<RequestId> = planned.collect();
    let most = takers.iter().filter_map(|id| state.requests().get(id)).map(|request| {
        // A slice is a whole GPU at most.
        u64::from(request.spec().count).saturating_mul(1_000)
    });
    left.is_some_and(|left| left.get() >= most.sum())
}

/// Whether either lease would serve the preemptor as well as the other.
fn is_alike(
    victim: &LiveLease,
    other: &LiveLease,
    (wanted, is_anywhere): (&RequestSpec, bool),
) -> bool {
    let ([ours], [theirs]) = (victim.terms.members.as_slice(), other.terms.members.as_slice())
    else {
        return false;
    };
    let is_reached = is_anywhere || is_reached(victim, other, wanted);
    !other.is_ending && is_reached && ours.capacity == theirs.capacity
}

/// Whether both are at one place. Of several slices the rest must be near too; one stands alone.
fn is_reached(victim: &LiveLease, other: &LiveLease, wanted: &RequestSpec) -> bool {
    let nodes = |one: &LiveLease| -> BTreeSet<NodeId> {
        one.terms.members.iter().map(|member| member.slice.node).collect()
    };
    let is_near = match wanted.placement {
        Placement::Cluster => true,
        Placement::Node | Placement::Island => nodes(victim) == nodes(other),
    };
    is_near && other.terms.cluster == victim.terms.cluster
}

/// Whether as much is offered at the place of the lease as its end would free: nobody is ended where as
/// much is free, even if others have reserved it.
fn has_offer_alike(one: &LiveLease, wanted: &RequestSpec, state: &State) -> bool {
    let [member] = one.terms.members.as_slice() else { return false };
    state.offers().iter().any(|(slice, offer)| {
        let is_near = match wanted.placement {
            Placement::Cluster => true,
            Placement::Node | Placement::Island => slice.node == member.slice.node,
        };
        is_near && slice.cluster == one.terms.cluster && *offer.capacity() == member.capacity
    })
}
