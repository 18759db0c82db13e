//! Why a request waits, and what would happen if one were submitted: the same view, no trace.

use std::collections::BTreeMap;

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, RequestId, TenantId};
use sublet_protocol::money::{self, MicroCredits, Price};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{RequestSpec, Tier, WaitReason};
use sublet_protocol::units::{GpuMilli, Timestamp};

use super::advice::{self, Change, Shortfall, Unmet};
use super::index::is_preempted;
use super::openings::{Ends, free_at};
use super::place;
use super::position::position;
use super::problem::Problem;
use super::solve::{Spent, want};
use super::{Limits, Preemption, preempt};
use crate::decide::{could_ever_fit, is_model_known};
use crate::quota::{Charges, Obstacle, Want};
use crate::state::{Request, RequestStage, StateView};
use crate::{fit, pledges};

/// Offers that one rule keeps from a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearMiss {
    /// The first rule that each of them breaks.
    pub reason: WaitReason,
    /// How many they are.
    pub offers: u32,
    /// The one of them that lacks least.
    pub example: SliceId,
    /// What that one lacks, where it is an amount.
    pub short: Option<Shortfall>,
}

/// Why a request waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The one primary reason.
    pub reason: WaitReason,
    /// Its place in the queue, 1 for the first.
    pub position: u32,
    /// Slices it needs.
    pub needed: u32,
    /// Offers that fit it now, wherever they stand.
    pub fitting: u32,
    /// Offers that do not, by reason, most first.
    pub near_misses: Vec<NearMiss>,
    /// What the tenant may still hold of the allowed models, the most of any.
    pub quota_left: GpuMilli,
    /// Slices that are being freed for it.
    pub pledged: u32,
    /// When it will start at the latest, as it was promised, or earlier by now.
    pub promised: Option<Timestamp>,
    /// When it will start, as far as that can be told; nothing if it cannot.
    pub eta: Option<Eta>,
    /// Until when it is not tried, if it pauses or waits for better hours.
    pub deferred_until: Option<Timestamp>,
    /// The smallest single change with which it would start now, if one helps.
    pub change: Option<Change>,
    /// What of it nothing that is known could meet, if that is so.
    pub unmet: Option<Unmet>,
}

/// When a request will start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eta {
    /// If every lease ended as early as one run in ten of those its predictor knows; at its bought
    /// end where nothing was predicted.
    pub earliest: Timestamp,
    /// If every lease ended at its bought end.
    pub latest: Timestamp,
}

/// What would happen to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhatIfOutcome {
    /// It would be granted these slices now.
    Grant {
        /// Where.
        cluster: ClusterId,
        /// Of which model.
        model: GpuModel,
        /// At which price.
        price: Price,
        /// How much of a GPU each slice is: what was asked for or, where no smaller part is on offer,
        /// more; that is what is paid and counted.
        gpu: GpuMilli,
        /// Which slices.
        members: Vec<PlanMember>,
    },
    /// These leases would be ended for it.
    Preempt {
        /// Whose end it would wait for.
        victims: Vec<LeaseId>,
    },
    /// It would wait.
    Wait(Explanation),
    /// It would be refused.
    Refuse(Rejection),
}

/// A dry run of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhatIf {
    /// What would happen.
    pub outcome: WhatIfOutcome,
    /// What would be set aside: the worst case at the price of a grant; none if it would not start
    /// now.
    pub hold: Option<MicroCredits>,
}

/// Why `request` waits; nothing if it does not.
#[must_use]
pub fn explain(view: StateView<'_>, request: RequestId) -> Option<Explanation> {
    explain_within(view, &Limits::NONE, request)
}

/// As [`explain()`], within limits: what would fit on a node on which nothing new is put stands among
/// the near misses, under `breaker`.
#[must_use]
pub fn explain_within(
    view: StateView<'_>,
    limits: &Limits,
    request: RequestId,
) -> Option<Explanation> {
    let entry = view.state.requests.get(&request).filter(|entry| entry.is_waiting())?;
    let problem = Problem::within(view, limits);
    Some(explanation(&problem, request, entry))
}

fn explanation(problem: &Problem<'_>, id: RequestId, request: &Request) -> Explanation {
    let mut misses: BTreeMap<WaitReason, NearMiss> = BTreeMap::new();
    let mut fitting = 0;
    let slots = problem.nodes.iter().flat_map(|node| node.slots.iter().map(move |s| (node, s)));
    for (node, slot) in slots {
        let is_closed = problem.closed.contains(&(node.cluster, node.node));
        let obstacle = place::obstacle(problem, (node, slot), id, &request.spec);
        match obstacle.or(is_closed.then_some(WaitReason::Breaker)) {
            Some(reason) => {
                let example = slot.candidate.slice;
                let short = advice::shortfall(problem, &request.spec, &slot.candidate, reason);
                let fresh = NearMiss { reason, offers: 0, example, short };
                let miss = misses.entry(reason).or_insert(fresh);
                miss.offers = miss.offers.saturating_add(1);
                if short.is_some() && short < miss.short {
                    (miss.example, miss.short) = (example, short);
                }
            }
            None => fitting += 1,
        }
    }
    let mut near_misses: Vec<NearMiss> = misses.into_values().collect();
    near_misses.sort_by_key(|miss| (std::cmp::Reverse(miss.offers), miss.reason));
    let pledged = match &request.stage {
        RequestStage::Pledged { slices, .. } => u32::try_from(slices.len()).unwrap_or(u32::MAX),
        RequestStage::Waiting | RequestStage::Granted { .. } => 0,
    };
    Explanation {
        reason: reason(problem, id, request, fitting, &near_misses),
        position: position(problem, id, request),
        needed: request.spec.count,
        fitting,
        near_misses,
        quota_left: quota_left(problem, request),
        pledged,
        promised: problem.reservations.start_of(id),
        eta: eta(problem, id, request),
        deferred_until: deferred_until(problem, id, request),
        change: advice::change(problem, id, request),
        unmet: advice::unmet(problem.view.state, &request.spec),
    }
}

/// Until when the request waits for better hours, or pauses; nothing if it does neither.
fn deferred_until(problem: &Problem<'_>, id: RequestId, request: &Request) -> Option<Timestamp> {
    let StateView { state, now } = problem.view;
    let opens_at = state.opens_at(id, request, now);
    if opens_at > now {
        return Some(opens_at);
    }
    // The next plan will have it rest.
    problem.reservations.would_rest(id, request)?;
    request.spec.deferral.as_ref().map(|deferral| deferral.opens_at(now))
}

/// When the request will start: with what is being freed for it, with what it has reserved, else
/// where there is room first.
fn eta(problem: &Problem<'_>, id: RequestId, request: &Request) -> Option<Eta> {
    let (state, now) = (problem.view.state, problem.view.now);
    if let RequestStage::Pledged { slices, .. } = &request.stage {
        let ends = slices.iter().map(|slice| {
            let lease = state.leased.get(slice).and_then(|lease| state.leases.get(lease));
            lease.map_or(Some(now), |lease| free_at(state, lease, Ends::Bought, now))
        });
        let ends = ends.chain(quota_ends(problem.view, id));
        let latest = ends.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        return Some(Eta { earliest: now, latest });
    }
    let spent = Spent::default();
    let start = |ends| problem.reservations.estimate(&spent, (id, request), ends);
    let reserved = problem.reservations.start_of(id);
    let opens_at = state.opens_at(id, request, now);
    let latest = reserved.or_else(|| start(Ends::Bought).map(|start| start.at));
    let latest = latest?.max(opens_at);
    let earliest = start(Ends::Predicted).map_or(latest, |start| start.at.min(latest));
    let earliest = earliest.max(opens_at);
    Some(Eta { earliest, latest })
}

/// When leases end whose quota a request with a pledge waits for; nobody's if it has enough.
fn quota_ends(view: StateView<'_>, id: RequestId) -> Vec<Option<Timestamp>> {
    let StateView { state, now } = view;
    let kept = pledges::kept(state).remove(&id);
    let lacks = |want: &Want| want.gpu > state.tree.room(want.tenant, want.model, Charges::EMPTY);
    let Some(want) = kept.filter(lacks) else { return Vec::new() };
    let top = state.tree.top(want.tenant);
    let leases = state.leases.values().filter(|lease| {
        let terms = &lease.terms;
        is_preempted(lease) && terms.model == want.model && state.tree.top(terms.tenant) == top
    });
    leases.map(|lease| free_at(state, lease, Ends::Bought, now)).collect()
}

fn allowed_models<'a>(
    problem: &'a Problem<'_>,
    request: &'a Request,
) -> impl Iterator<Item = GpuModel> + 'a {
    let models = problem.view.state.tree.models(request.tenant).into_iter();
    let spec = &request.spec;
    models.filter(move |model| spec.models.is_empty() || spec.models.contains(model))
}

fn quota_left(problem: &Problem<'_>, request: &Request) -> GpuMilli {
    let left = allowed_models(problem, request)
        .map(|model| fit::quota_left(problem.view.state, request.tenant, model));
    left.max().unwrap_or_default()
}

/// The primary reason: what must change first.
fn reason(
    problem: &Problem<'_>,
    id: RequestId,
    request: &Request,
    fitting: u32,
    near_misses: &[NearMiss],
) -> WaitReason {
    let state = problem.view.state;
    if deferred_until(problem, id, request).is_some() {
        return WaitReason::Deferred;
    }
    if request.spec.gpu_total() > quota_left(problem, request) {
        // What was lent to others could be taken back, were it not for the budget.
        if preempt::is_over_budget(problem, &Spent::default(), id, request) {
            return WaitReason::PreemptionBudget;
        }
        let tree = &state.tree;
        let unlimited = allowed_models(problem, request)
            .map(|model| tree.room_without_borrow_limits(request.tenant, model, Charges::EMPTY));
        let is_limited = unlimited.max().is_some_and(|room| request.spec.gpu_total() <= room);
        return if is_limited { WaitReason::BorrowLimit } else { WaitReason::Quota };
    }
    if fitting < request.spec.count {
        // Too few fit. If others would but for one rule, that rule; if none is offered, capacity.
        let enough = |miss: &&NearMiss| miss.offers + fitting >= request.spec.count;
        let blocking = near_misses.iter().find(enough).map(|miss| miss.reason);
        if preempt::is_over_budget(problem, &Spent::default(), id, request) {
            return WaitReason::PreemptionBudget;
        }
        return blocking.unwrap_or(WaitReason::NoCapacity);
    }
    let alike = place::fitting(problem, id, request);
    let is_priced = |cluster, model| fit::price(state, request, cluster, model).is_some();
    let priced = alike.iter().filter(|((cluster, model, _), _)| is_priced(*cluster, *model));
    if priced.clone().next().is_none() {
        return WaitReason::Price;
    }
    let obstacles = priced.map(|((cluster, model, gpu), _)| {
        let total = gpu.checked_mul(u64::from(request.spec.count));
        let price = fit::price(state, request, *cluster, *model);
        let Some((total, price)) = total.zip(price) else { return Some(Obstacle::Quota) };
        let want = want(request, *model, total, price);
        Spent::default().obstacle(problem.view, &want)
    });
    // Where nothing stands in the way, nothing is in the way. Else the last of the rules: what
    // passed the others is nearest to a grant.
    if let Some(Some(obstacle)) = obstacles.max_by_key(|o| o.map_or(3, Obstacle::rank)) {
        return match preempt::is_over_budget(problem, &Spent::default(), id, request) {
            true => WaitReason::PreemptionBudget,
            false => obstacle.reason(),
        };
    }
    match place::pick(problem, &Spent::default(), id, request) {
        // It fits and is merely not served yet: those before it come first.
        Some(_) => WaitReason::NoCapacity,
        None => WaitReason::Topology,
    }
}

/// What would happen to a request of `tenant` with `spec` if it were submitted now.
#[must_use]
pub fn what_if(view: StateView<'_>, tenant: TenantId, spec: &RequestSpec) -> WhatIf {
    what_if_within(view, &Limits::NONE, tenant, spec)
}

/// As [`what_if()`], within limits.
#[must_use]
pub fn what_if_within(
    view: StateView<'_>,
    limits: &Limits,
    tenant: TenantId,
    spec: &RequestSpec,
) -> WhatIf {
    let refuse = |rejection| WhatIf { outcome: WhatIfOutcome::Refuse(rejection), hold: None };
    if !view.state.tenants.contains_key(&tenant) {
        return refuse(Rejection::TenantMissing);
    }
    if let Err(error) = spec.validate() {
        return refuse(Rejection::SpecInvalid(error));
    }
    if !is_model_known(view.state, tenant, spec) {
        return refuse(Rejection::ModelUnknown);
    }
    if !could_ever_fit(view.state, tenant, spec) {
        return refuse(Rejection::QuotaTooSmall);
    }
    // An id that no request has: the largest, which is never made.
    let id = RequestId::new(u128::MAX);
    let request = Request {
        tenant,
        spec: spec.clone(),
        submitted_at: view.now,
        since: view.now,
        stage: RequestStage::Waiting,
        attempts: 0,
        failed_starts: 0,
        recalls: 0,
        preemptions: 0,
        paused_until: None,
    };
    let mut problem = Problem::within(view, limits);
    if deferred_until(&problem, id, &request).is_some() {
        let explanation = explanation(&problem, id, &request);
        return WhatIf { outcome: WhatIfOutcome::Wait(explanation), hold: None };
    }
    if let Some(pick) = place::pick(&problem, &Spent::default(), id, &request) {
        let hold = money::cost_half_even(pick.price, pick.total, spec.duration.as_millis());
        let (cluster, model, price) = (pick.cluster, pick.model, pick.price);
        let gpu = GpuMilli::new(pick.total.get() / u64::from(spec.count.max(1)));
        let members = pick.take(&mut problem.nodes);
        let outcome = WhatIfOutcome::Grant { cluster, model, price, gpu, members };
        return WhatIf { outcome, hold };
    }
    let may_end_some =
        spec.class.tier() > Tier::Opportunistic || view.state.tree.may_take_back(tenant);
    let may_preempt = may_end_some && limits.preemption == Preemption::Allowed;
    let group =
        may_preempt.then(|| preempt::preempt(&mut problem, &mut Spent::default(), id, &request));
    if let Some(sublet_protocol::commands::PlanGroup::Preempt { victims, .. }) = group.flatten() {
        return WhatIf { outcome: WhatIfOutcome::Preempt { victims }, hold: None };
    }
    let explanation = explanation(&problem, id, &request);
    WhatIf { outcome: WhatIfOutcome::Wait(explanation), hold: None }
}
