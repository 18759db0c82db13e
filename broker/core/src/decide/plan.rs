//! The leader's plan, judged group by group: what the matcher hoped for is checked again here.

use std::collections::BTreeSet;

use sublet_protocol::capacity::{Origin, Part, SliceId};
use sublet_protocol::commands::{PlanGroup, PlanMember};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, RequestId, TenantId, Token};
use sublet_protocol::leases::{EndReason, LeaseTerms, Member};
use sublet_protocol::money::{self, Account, Line, MicroCredits, Price};
use sublet_protocol::offers::{Division, HostRoom, OfferTerms};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{RequestSpec, Tier};
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::{Decision, ending, promise};
use crate::fit::{self, Candidate};
use crate::mutation::Mutation;
use crate::partition::{self, DeviceRoom};
use crate::quota::{Charges, Want};
use crate::reclaim::{self, After, Claimant};
use crate::state::{LeaseStage, Offer, Request, RequestStage, State};
use crate::{pledges, preemption};

pub(crate) fn decide_group(state: &State, group: &PlanGroup, now: Timestamp) -> Decision {
    let id = group.request();
    let request = state.requests.get(&id).ok_or(Rejection::RequestMissing)?;
    if !request.is_waiting() && !state.leaves_out(Mutation::GrantedAgain) {
        return Err(Rejection::RequestNotWaiting);
    }
    let is_start = match group {
        PlanGroup::Grant { .. } | PlanGroup::Preempt { .. } => true,
        PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. } => false,
    };
    if is_start && state.is_paused(id, request, now) {
        return Err(Rejection::RequestPaused);
    }
    match group {
        PlanGroup::Grant { members, .. } => grant(state, id, request, members, now),
        PlanGroup::Preempt { victims, freed, members, .. } => {
            preempt(state, (id, request), (victims, freed), members, now)
        }
        PlanGroup::Promise { start, not_before, slices, cause, .. } => {
            let promise = promise::Asked { start: *start, not_before: *not_before, slices };
            promise::promise(state, (id, request), &promise, *cause, now)
        }
        PlanGroup::Withdraw { cause, .. } => promise::withdraw(state, id, request, *cause),
    }
}

/// What the request would get of the open offer that a plan's member means, if it still stands and is
/// not kept for another: all of it, or a part that the GPU allows and has room for.
fn offer_of<'a>(
    state: &'a State,
    (id, spec): (RequestId, &RequestSpec),
    member: &PlanMember,
    now: Timestamp,
) -> Result<(&'a Offer, Candidate), Rejection> {
    let slice = member.slice;
    let whole = SliceId { part: Part::Whole, ..slice };
    let divisible = || {
        let offer = state.offers.get(&whole);
        offer.filter(|offer| offer.terms.division != Division::NONE)
    };
    let offer = state.offers.get(&slice).or_else(divisible);
    let offer = offer.ok_or(Rejection::OfferMissing)?;
    let is_meant = offer.terms.generation == member.generation;
    if !is_meant && !state.leaves_out(Mutation::AnyGeneration) {
        return Err(Rejection::OfferOld);
    }
    if offer.expires_at <= now && !state.leaves_out(Mutation::ExpiredOffer) {
        return Err(Rejection::OfferExpired);
    }
    let on_device = |other: &SliceId| SliceId { part: Part::Whole, ..*other } == whole;
    let kept = state.pledged.range(whole..).take_while(|(other, _)| on_device(other));
    let mut others = kept.filter(|(_, holder)| **holder != id);
    if others.any(|(other, _)| other.part.overlaps(slice.part)) {
        return Err(Rejection::SlicePledged);
    }
    let mut given = Candidate::of(offer);
    if slice.part != offer.terms.slice.part {
        let kept = DeviceRoom::kept(state, &offer.terms);
        let room = DeviceRoom::leased(state, slice).with_kept(&kept, id);
        given.capacity = partition::carve(&offer.terms, &room, slice.part, spec)?;
        (given.slice, given.origin) = (slice, Origin::Carved);
    } else if !DeviceRoom::leased(state, slice).is_empty() && slice.part == Part::Whole {
        return Err(Rejection::DeviceTaken);
    }
    let used = partition::host_use(state, slice.cluster, slice.node);
    Ok((offer, given.hosted(offer.terms.host, used, spec)))
}

type Given<'a> = Vec<(&'a Offer, Candidate)>;

fn offers_of<'a>(
    state: &'a State,
    request: (RequestId, &RequestSpec),
    members: &[PlanMember],
    now: Timestamp,
) -> Result<Given<'a>, Rejection> {
    let given = members.iter().map(|member| offer_of(state, request, member, now));
    let given: Given<'a> = given.collect::<Result<_, Rejection>>()?;
    // Several on one node share its host if their offers say so: together they must fit.
    let spec = request.1;
    for (offer, _) in &given {
        let OfferTerms { slice, capacity, host, .. } = offer.terms;
        let is_here = |other: &Offer| other.terms.slice.node == slice.node;
        let count = given.iter().filter(|(other, _)| is_here(other)).count();
        let used = partition::host_use(state, slice.cluster, slice.node);
        if host == HostRoom::Node && partition::host_seats(&capacity, used, spec) < count {
            return Err(Rejection::SliceUnfit);
        }
    }
    Ok(given)
}

pub(super) fn are_distinct<T: Ord>(items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.into_iter().all(|item| seen.insert(item))
}

/// What all slices of a group have in common.
struct Common {
    cluster: ClusterId,
    owner: TenantId,
    model: GpuModel,
    gpu: GpuMilli,
    price: Price,
}

/// Whether the slices together can serve the request: each fits, they are alike and stand as
/// asked, the price is posted and allowed, the quota with these charges has room.
fn judge(
    state: &State,
    request: &Request,
    slices: &[Candidate],
    charges: &Charges,
    now: Timestamp,
) -> Result<Common, Rejection> {
    let spec = &request.spec;
    let fits = |candidate: &Candidate| fit::misfit(state, spec, candidate, now).is_none();
    if !slices.iter().all(fits) || !fit::stand_as_asked(spec.placement, slices) {
        return Err(Rejection::SliceUnfit);
    }
    // The ranks of a gang take a physical GPU each, as collective libraries demand.
    let device = |slice: &SliceId| SliceId { part: Part::Whole, ..*slice };
    let is_carved = slices.iter().any(|given| given.origin == Origin::Carved);
    if is_carved && !are_distinct(slices.iter().map(|given| device(&given.slice))) {
        return Err(Rejection::SliceUnfit);
    }
    let first = slices.first().ok_or(Rejection::PlanCount)?;
    let (model, gpu) = (first.capacity.model, first.capacity.gpu);
    if slices.iter().any(|other| (other.capacity.model, other.capacity.gpu) != (model, gpu)) {
        return Err(Rejection::SliceUnfit);
    }
    let cluster = first.slice.cluster;
    let owner = state.clusters.get(&cluster).ok_or(Rejection::ClusterMissing)?.owner;
    let price = state.prices.get(&(owner, model, spec.class.tier()));
    let price = *price.ok_or(Rejection::PriceMissing)?;
    if spec.max_price.is_some_and(|cap| price.per_gpu_hour > cap) {
        return Err(Rejection::PriceTooHigh);
    }
    let count = u64::try_from(slices.len()).map_err(|_| Rejection::PlanCount)?;
    let wanted = gpu.checked_mul(count).ok_or(Rejection::QuotaExceeded)?;
    let want = Want { tenant: request.tenant, model, gpu: wanted, price, duration: spec.duration };
    let obstacle = charges.obstacle(&state.tree, &want, now);
    if let Some(obstacle) = obstacle.filter(|_| !state.leaves_out(Mutation::NoQuota)) {
        return Err(obstacle.rejection());
    }
    Ok(Common { cluster, owner, model, gpu, price })
}

pub(super) fn is_asked_count(spec: &RequestSpec, given: usize) -> bool {
    usize::try_from(spec.count).is_ok_and(|asked| asked == given)
}

fn grant(
    state: &State,
    id: RequestId,
    request: &Request,
    plan: &[PlanMember],
    now: Timestamp,
) -> Decision {
    if !is_asked_count(&request.spec, plan.len()) {
        return Err(Rejection::PlanCount);
    }
    if !are_distinct(plan.iter().map(|member| member.slice)) {
        return Err(Rejection::PlanMalformed);
    }
    let given = offers_of(state, (id, &request.spec), plan, now)?;
    let slices: Vec<Candidate> = given.iter().map(|(_, slice)| *slice).collect();
    let common = judge(state, request, &slices, Charges::EMPTY, now)?;
    let members = given.iter().map(|(offer, slice)| member(offer, slice)).collect();
    let mut terms = terms(state, (id, request), members, &common)?;
    let notices = given.iter().map(|(offer, _)| offer.terms.recall_notice);
    terms.recall_notice = notices.max().unwrap_or_default();
    let lines = vec![
        Line::debit(Account::Expense(terms.tenant), terms.hold),
        Line::credit(Account::Hold(terms.tenant), terms.hold),
    ];
    let lines = if terms.hold == MicroCredits::ZERO { Vec::new() } else { lines };
    let mut events = Vec::new();
    if matches!(request.stage, RequestStage::Pledged { .. }) {
        events.push(Event::PledgeEnded { request: id });
    }
    events.push(Event::LeaseGranted { terms, lines });
    Ok(events)
}

fn terms(
    state: &State,
    (id, request): (RequestId, &Request),
    mut members: Vec<Member>,
    common: &Common,
) -> Result<LeaseTerms, Rejection> {
    let spec = &request.spec;
    let attempt = request.attempts.checked_add(1).ok_or(Rejection::CounterExhausted)?;
    let lease = LeaseId::derive(id, attempt);
    if state.leases.contains_key(&lease) {
        return Err(Rejection::LeaseExists);
    }
    let step = u64::from(!state.leaves_out(Mutation::SameToken) || state.tokens == 0);
    let counter = state.tokens.checked_add(step).ok_or(Rejection::CounterExhausted)?;
    let (_, epoch) = state.cell.ok_or(Rejection::CellMissing)?;
    members.sort_by_key(|member| member.slice);
    let mut terms = LeaseTerms {
        lease,
        request: id,
        attempt,
        tenant: request.tenant,
        owner: common.owner,
        project: spec.project,
        cluster: common.cluster,
        class: spec.class,
        token: Token { epoch, counter },
        model: common.model,
        gpu: common.gpu,
        members,
        price: common.price,
        duration: spec.duration,
        hold: MicroCredits::ZERO,
        grace: grace(state, spec.class.tier()),
        workload: spec.workload,
        recall_notice: Seconds::ZERO,
    };
    let hold = money::cost_half_even(terms.price, terms.gpu_total(), terms.duration.as_millis());
    if !state.leaves_out(Mutation::NoHold) {
        terms.hold = hold.ok_or(Rejection::CostTooLarge)?;
    }
    let held = state.tenants.get(&request.tenant).ok_or(Rejection::TenantMissing)?.hold;
    held.checked_add(terms.hold).ok_or(Rejection::CostTooLarge)?;
    Ok(terms)
}

/// What the lease gets of the offer.
fn member(offer: &Offer, given: &Candidate) -> Member {
    let OfferTerms { generation, boot, .. } = *offer.terms();
    let Candidate { slice, capacity, origin, .. } = *given;
    Member { slice, generation, boot, capacity, origin }
}

fn grace(state: &State, tier: Tier) -> Seconds {
    match tier {
        Tier::Opportunistic => state.policy.owner_grace_opportunistic,
        Tier::Standard | Tier::Reserved => state.policy.owner_grace,
    }
}

fn preempt(
    state: &State,
    (id, request): (RequestId, &Request),
    (victims, freed): (&[LeaseId], &[SliceId]),
    free: &[PlanMember],
    now: Timestamp,
) -> Decision {
    // One pledge at a time: what is on its way is waited for.
    if matches!(request.stage, RequestStage::Pledged { .. }) {
        return Err(Rejection::RequestNotWaiting);
    }
    let slices_distinct = are_distinct(free.iter().map(|member| member.slice));
    let is_distinct = slices_distinct && are_distinct(freed.iter()) && are_distinct(victims.iter());
    if victims.is_empty() || !is_distinct {
        return Err(Rejection::PlanMalformed);
    }
    let claimant = Claimant::of(request);
    if !victims.iter().all(|victim| reclaim::may_end(state, *victim, &claimant, now)) {
        return Err(Rejection::VictimProtected);
    }
    let given = offers_of(state, (id, &request.spec), free, now)?;
    let mut slices: Vec<Candidate> = given.into_iter().map(|(_, slice)| slice).collect();
    let usable: Vec<Vec<Candidate>> =
        victims.iter().map(|victim| fit::freed_by(state, *victim, &request.spec, now)).collect();
    let total = slices.len() + freed.len();
    let given = usable.iter().flatten().filter(|candidate| freed.contains(&candidate.slice));
    slices.extend(given.copied());
    if slices.len() != total || !is_asked_count(&request.spec, total) {
        return Err(Rejection::VictimsUseless);
    }
    let after = after_ends(state, victims);
    let common = judge(state, request, &slices, &after.claimant, now)?;
    let gpu = slices.iter().fold(GpuMilli::ZERO, |sum, one| sum.saturating_add(one.capacity.gpu));
    let short = Short { charges: &after.claimant, whose: (request.tenant, common.model), gpu };
    if !are_all_needed(state, (id, request), (&slices, &short), (victims, &usable), now) {
        return Err(Rejection::VictimsUseless);
    }
    if victims.iter().any(|victim| reclaim::is_bound(state, *victim, &claimant)) {
        let mut after = after;
        after.end_what_ends(state);
        let is_fair = |victim: &LeaseId| reclaim::is_fair(state, &claimant, *victim, (&after, gpu));
        if !victims.iter().all(is_fair) {
            return Err(Rejection::VictimProtected);
        }
    }
    if !preemption::are_within_budgets(state, victims.iter().copied(), now) {
        return Err(Rejection::PreemptionsExhausted);
    }
    let kept: Vec<SliceId> = slices.iter().map(|candidate| candidate.slice).collect();
    let mut events: Vec<Event> = victims
        .iter()
        .filter_map(|victim| {
            ending::begin(*victim, &state.leases[victim], EndReason::Preempted, now)
        })
        .collect();
    let until = now.after(state.policy.pledge);
    events.push(Event::CapacityPledged { request: id, slices: kept, until });
    Ok(events)
}

/// Quotas as they will be once all that were preempted, and these, are gone. What is kept for others with
/// a pledge is theirs: two must not count on the same. The grant is judged by what quotas are then.
fn after_ends(state: &State, victims: &[LeaseId]) -> After {
    let mut after = After { claimant: Charges::NONE, victims: Charges::NONE };
    for kept in pledges::kept(state).values() {
        after.claimant.keep(&state.tree, kept);
    }
    for (id, lease) in &state.leases {
        let is_going = victims.contains(id)
            || matches!(lease.stage, LeaseStage::Ending { cause: EndReason::Preempted, .. });
        if is_going {
            after.end(state, *id);
        }
    }
    after
}

/// What quotas would lack of a grant of `gpu` if one of the victims were spared.
struct Short<'a> {
    /// Quotas once all victims are gone.
    charges: &'a Charges,
    whose: (TenantId, GpuModel),
    gpu: GpuMilli,
}

impl Short<'_> {
    fn is_without(&self, state: &State, victim: LeaseId) -> bool {
        let Some(lease) = state.leases.get(&victim) else { return false };
        let (terms, mut charges) = (&lease.terms, self.charges.clone());
        charges.hold(&state.tree, (terms.tenant, terms.model), terms.gpu_total());
        charges.lack(&state.tree, self.whose, self.gpu) > 0
    }
}

/// Whether there is too little for the request if any one of the victims is spared: of quota, or of
/// slices, if what the others free at this place, with every free slice there, does not suffice.
fn are_all_needed(
    state: &State,
    (id, request): (RequestId, &Request),
    (slices, short): (&[Candidate], &Short<'_>),
    (victims, usable): (&[LeaseId], &[Vec<Candidate>]),
    now: Timestamp,
) -> bool {
    let (Some(first), Ok(asked)) = (slices.first(), usize::try_from(request.spec.count)) else {
        return false;
    };
    let is_here = |other: &Candidate| {
        let alike = (other.capacity.model, other.capacity.gpu);
        alike == (first.capacity.model, first.capacity.gpu)
            && fit::stand_as_asked(request.spec.placement, &[*first, *other])
    };
    // As they are offered; what could be carved out of a divided GPU besides is not looked for.
    let free = state.offers.values().filter(|offer| {
        let (slice, generation) = (offer.terms.slice, offer.terms.generation);
        let member = PlanMember { slice, generation };
        slice.cluster == first.slice.cluster
            && offer_of(state, (id, &request.spec), &member, now).is_ok_and(|(_, given)| {
                is_here(&given) && fit::misfit(state, &request.spec, &given, now).is_none()
            })
    });
    // More free slices than that change nothing.
    let free = free.take(asked).count();
    let given: Vec<usize> =
        usable.iter().map(|all| all.iter().filter(|one| is_here(one)).count()).collect();
    let sum = free + given.iter().sum::<usize>();
    let mut each = victims.iter().zip(given);
    each.all(|(victim, gives)| sum - gives < asked || short.is_without(state, *victim))
}
