//! When a promise can be kept at the earliest, and where a request could start first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::deferral::Deferral;
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId, RequestId};
use sublet_protocol::offers::IdleFor;
use sublet_protocol::requests::{Placement, PromiseCause, RequestSpec};
use sublet_protocol::units::{GpuMilli, Timestamp};

use super::{Claim, Keep, LATE_MAX, RETURN_MAX, Reservations, Start};
use crate::evolve::taken_away;
use crate::fit::price;
use crate::fit::{self, Candidate};
use crate::matching::openings::{self, Ends, Opening, Trust, first_together, kept_for, trusts};
use crate::matching::solve::Spent;
use crate::matching::supply::{Kind, Places, Spot, Supply};
use crate::state::{LeaseStage, Offer, Promise, Request, State, Whereabouts};

/// How many more slices are looked at when those that are over first do not suffice.
const LOOK_MORE: usize = 8;

/// Among which starts the first one is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::matching) enum Hours {
    /// Those that the request asked to wait for: in its windows, at its last chance at the latest.
    Asked,
    /// All.
    Any,
}

/// What a start is looked for of a kind.
struct Wish<'s> {
    spec: &'s RequestSpec,
    claim: Claim,
    cluster: ClusterId,
    /// Capacities that serve the request.
    fitting: BTreeSet<u32>,
    /// When the tenant may hold it at the earliest.
    earliest: Timestamp,
    trust: Trust,
    hours: Hours,
    /// Only later than this.
    after: Option<Timestamp>,
    count: usize,
}

impl Reservations<'_> {
    /// The earliest start with the slices that were promised, or why that is no longer possible.
    ///
    /// `there` is from when on all of it is free and where that is, if an index knows.
    pub(super) fn keepable(
        &self,
        (id, request): (RequestId, &Request),
        promise: &Promise,
        there: Option<(Timestamp, &[(u32, Part)])>,
    ) -> Result<Start, PromiseCause> {
        let (state, now) = (self.view.state, self.view.now);
        let not_before = promise.not_before();
        let mut at = now.max(not_before);
        match there.filter(|_| !self.is_on_paused_node(promise)) {
            Some((there_at, _)) => at = at.max(there_at),
            None => {
                for (slice, standing) in promise.slices() {
                    at = at.max(self.comes_at(request, *slice, *standing)?);
                }
            }
        }
        let (model, gpu) = promise.kind();
        let first = promise.slices().keys().next().ok_or(PromiseCause::CapacityLost)?;
        let kind: Kind = (first.cluster, model, gpu);
        price(state, request, kind.0, kind.1).ok_or(PromiseCause::TermsChanged)?;
        let total = kind.2.checked_mul(u64::from(request.spec.count));
        let total = total.ok_or(PromiseCause::TermsChanged)?;
        let quota_from = self.quota_from(None, &Spent::default(), (id, request), kind.1, total);
        if quota_from.is_none_or(|from| from > promise.start().after(LATE_MAX)) {
            return Err(PromiseCause::TermsChanged);
        }
        let claim = Claim::of(self.view, id, &request.spec);
        let slices: Vec<SliceId> = promise.slices().keys().copied().collect();
        let behind = |at| match there {
            Some((_, places)) => {
                let keeps = |claim| {
                    let all = places.iter();
                    let all = all.flat_map(|(number, part)| self.kept.on_part(*number, *part));
                    all.filter(move |keep| Claim::is_behind(claim, keep))
                };
                self.behind(at, keeps, &request.spec, &claim)
            }
            None => {
                let keeps = |claim| slices.iter().flat_map(move |slice| self.keeps(*slice, claim));
                self.behind(at, keeps, &request.spec, &claim)
            }
        };
        let mut is_outranked = false;
        // Each step passes the end of a reservation or opens a window, and there are only so many.
        loop {
            let (free_at, is_later) = behind(at);
            is_outranked |= is_later;
            at = self.view.state.opens_at(id, request, free_at);
            if at == free_at {
                break;
            }
        }
        if at > promise.start().after(LATE_MAX) {
            let is_outranked = is_outranked || self.is_held_by_higher(&slices, &claim);
            return Err(match is_outranked {
                true => PromiseCause::Outranked,
                false => PromiseCause::Overrun,
            });
        }
        if at <= now && self.is_stuck(request, promise) {
            return Err(PromiseCause::CapacityLost);
        }
        Ok(Start { at, not_before, slices, kind })
    }

    /// Whether its time has come, all of it is there, and still it cannot start: what is offered does
    /// not stay idle for long enough, or for a reason that is not known here.
    fn is_stuck(&self, request: &Request, promise: &Promise) -> bool {
        let (state, now) = (self.view.state, self.view.now);
        let offers = promise.slices().keys().map(|slice| state.offers.get(slice));
        let Some(offers) = offers.collect::<Option<Vec<_>>>() else { return false };
        let lasts = |offer: &&Offer| {
            fit::misfit(state, &request.spec, &Candidate::of(offer), now).is_none()
        };
        !offers.iter().all(lasts) || now > promise.start().after(LATE_MAX)
    }

    /// When a promised slice is free, or why it will not be.
    fn comes_at(
        &self,
        request: &Request,
        slice: SliceId,
        standing: Whereabouts,
    ) -> Result<Timestamp, PromiseCause> {
        let (state, now) = (self.view.state, self.view.now);
        match standing {
            Whereabouts::Lost(cause) => return Err(cause),
            Whereabouts::Missing { since } if now > since.after(RETURN_MAX) => {
                return Err(PromiseCause::CapacityLost);
            }
            Whereabouts::Missing { .. } => return Ok(now),
            Whereabouts::There => {}
        }
        let candidate = fit::there(state, slice).ok_or(PromiseCause::CapacityLost)?;
        let idle = Candidate { idle: None, ..candidate };
        if fit::misfit(state, &request.spec, &idle, now).is_some() {
            return Err(PromiseCause::CapacityLost);
        }
        let free_at = over_at(state, slice, now);
        let free_at = free_at.and_then(|at| openings::after_pledge(state, slice, at));
        free_at.ok_or_else(|| {
            match state.leased.get(&slice).map(|lease| &state.leases[lease].stage) {
                Some(LeaseStage::Ending { cause, .. }) => {
                    taken_away(*cause).unwrap_or(PromiseCause::CapacityLost)
                }
                Some(_) | None => PromiseCause::CapacityLost,
            }
        })
    }

    /// The first instant from `at` on that is behind the reservations of its tier and at which the run
    /// gets in the way of none of a higher one; and whether one of those made it later.
    fn behind<'s, K: Iterator<Item = &'s Keep>>(
        &self,
        mut at: Timestamp,
        keeps: impl Fn(&'s Claim) -> K,
        spec: &RequestSpec,
        claim: &'s Claim,
    ) -> (Timestamp, bool) {
        let run = kept_for(self.view.state, spec);
        let own_tier = keeps(claim).filter(|keep| keep.tier == claim.tier).map(|keep| keep.until);
        at = at.max(own_tier.max().unwrap_or(at));
        let mut is_outranked = false;
        // Each step passes the end of a reservation, and there are only so many.
        loop {
            let over = at.after_millis(run);
            let higher = keeps(claim).filter(|keep| keep.tier > claim.tier);
            let in_the_way = higher.filter(|keep| keep.from < over && at < keep.until);
            let Some(until) = in_the_way.map(|keep| keep.until).max() else {
                return (at, is_outranked);
            };
            is_outranked = true;
            at = until;
        }
    }

    /// Whether a slice that was promised is on a node that may be left out now.
    fn is_on_paused_node(&self, promise: &Promise) -> bool {
        let Some(paused) = self.known.map(|known| &known.paused_nodes) else { return true };
        let mut slices = promise.slices().keys();
        !paused.is_empty() && slices.any(|slice| paused.contains(&(slice.cluster, slice.node)))
    }

    fn is_held_by_higher(&self, slices: &[SliceId], claim: &Claim) -> bool {
        let state = self.view.state;
        let leases = slices.iter().filter_map(|slice| state.leases.get(state.leased.get(slice)?));
        leases.into_iter().any(|lease| lease.terms.tier() > claim.tier)
    }

    /// The earliest start in `supply`, of those in the given hours, that gets in the way of no
    /// reservation before it; the cheapest among equally early ones.
    pub(super) fn place(
        &self,
        supply: &Supply,
        spent: &Spent,
        (id, request): (RequestId, &Request),
        hours: Hours,
    ) -> Option<Start> {
        let last = match (hours, &request.spec.deferral) {
            (Hours::Any, _) => Timestamp::MAX,
            (Hours::Asked, Some(deferral)) => deferral.start_by,
            (Hours::Asked, None) => return None,
        };
        let first = |trust: &Trust| {
            let start = self.place_trusting(supply, spent, (id, request), (*trust, hours));
            start.filter(|start| start.at <= last)
        };
        trusts(request.spec.class.tier()).iter().find_map(first)
    }

    fn place_trusting(
        &self,
        supply: &Supply,
        spent: &Spent,
        (id, request): (RequestId, &Request),
        (trust, hours): (Trust, Hours),
    ) -> Option<Start> {
        let state = self.view.state;
        let (spec, count) = (&request.spec, usize::try_from(request.spec.count).ok()?);
        let claim = Claim::of(self.view, id, spec);
        // What must be said anew cannot be counted on at once.
        let after = match trust {
            Trust::Covered => None,
            Trust::Renewed => Some(self.view.now),
        };
        let mut best: Option<((Timestamp, i128), Start)> = None;
        for (kind, places) in supply.kinds() {
            let (cluster, model, gpu) = *kind;
            if !spec.models.is_empty() && !spec.models.contains(&model) {
                continue;
            }
            let Some(price) = price(state, request, cluster, model) else { continue };
            let Some(total) = gpu.checked_mul(u64::from(spec.count)) else { continue };
            let fits = |place: &u32| {
                let capacity = supply.capacity_of(*place);
                capacity.is_some_and(|known| fit::fits_kind(state, spec, cluster, known))
            };
            let fitting: BTreeSet<u32> = places.capacities.keys().copied().filter(fits).collect();
            if fitting.is_empty() {
                continue;
            }
            let earliest = self.quota_from(Some(supply), spent, (id, request), model, total);
            let Some(earliest) = earliest.map(|at| at.max(spec.not_before())) else { continue };
            let cost = i128::from(price.per_gpu_hour.get()) * i128::from(total.get());
            let known = best.as_ref().map(|(known, _)| *known);
            let is_better = |at| known.is_none_or(|known| (at, cost) < known);
            let wish = Wish { spec, claim, cluster, fitting, earliest, trust, hours, after, count };
            let found = match spec.placement {
                Placement::Cluster => self.first_of_all(places, &wish, is_better),
                Placement::Node | Placement::Island => {
                    self.first_of_nodes(supply, places, &wish, is_better)
                }
            };
            if let Some((at, slices)) = found {
                let start = Start { at, not_before: earliest, slices, kind: *kind };
                best = Some(((at, cost), start));
            }
        }
        best.map(|(_, start)| start)
    }

    /// The first instant at which enough slices of all are open together, and which those are, if that
    /// is a better one.
    ///
    /// Nothing opens before its lease is over: those are looked at that are over first, and more only as
    /// long as one of the others could still open sooner.
    fn first_of_all(
        &self,
        places: &Places,
        wish: &Wish<'_>,
        is_better: impl Fn(Timestamp) -> bool,
    ) -> Option<(Timestamp, Vec<SliceId>)> {
        let soonest = |spot: &Spot| spot.free_at(self.view.now).max(wish.earliest);
        let spots = places.nodes.values().flatten();
        let fitting = spots.filter(|spot| wish.fitting.contains(&spot.capacity));
        let mut times: Vec<Timestamp> = fitting.map(soonest).collect();
        self.walked(times.len());
        let mut looked_at = wish.count;
        while wish.count > 0 && times.len() >= wish.count {
            let last = looked_at.min(times.len()) - 1;
            let (_, bound, _) = times.select_nth_unstable(last);
            let bound = *bound;
            if !is_better(bound) {
                return None;
            }
            let mut openings: Vec<(Opening, SliceId)> = Vec::new();
            for (node, spots) in &places.nodes {
                let spots = spots.iter().filter(|spot| soonest(spot) <= bound);
                let here = self.openings_on(*node, spots, wish).into_iter();
                openings
                    .extend(here.map(|(spot, opening)| (opening, spot.slice(wish.cluster, *node))));
            }
            let spans: Vec<Opening> = openings.iter().map(|(opening, _)| *opening).collect();
            let at = first_together(&spans, wish.count, wish.after);
            let is_all = last + 1 == times.len();
            if let Some(at) = at.filter(|at| is_all || *at <= bound) {
                return is_better(at).then(|| (at, choose(openings, at, wish.count)));
            }
            if is_all {
                return None;
            }
            looked_at = looked_at.saturating_mul(4).saturating_add(LOOK_MORE);
        }
        None
    }

    /// The first instant at which enough slices of a node, or of one of its islands, are open together,
    /// and which those are, if that is a better one: of the first room in order among equally early ones.
    ///
    /// Nodes are looked at in the order in which enough of their leases are over, and only until that is
    /// too late.
    fn first_of_nodes(
        &self,
        supply: &Supply,
        places: &Places,
        wish: &Wish<'_>,
        is_better: impl Fn(Timestamp) -> bool,
    ) -> Option<(Timestamp, Vec<SliceId>)> {
        let (now, last) = (self.view.now, wish.count.checked_sub(1)?);
        let nodes: Vec<(NodeId, &[Spot])> =
            places.nodes.iter().map(|(node, spots)| (*node, &spots[..])).collect();
        self.walked(nodes.len());
        let soonest = nodes.iter().enumerate().filter_map(|(place, (_, spots))| {
            // They are in the order in which their leases are over; pledges only add to that.
            Some(Reverse((spots.get(last)?.over_by(now).max(wish.earliest), place)))
        });
        let mut soonest: BinaryHeap<Reverse<(Timestamp, usize)>> = soonest.collect();
        let mut best: Option<((Timestamp, usize), Vec<SliceId>)> = None;
        while let Some(Reverse((bound, place))) = soonest.pop() {
            let is_late = best.as_ref().is_some_and(|(known, _)| *known < (bound, place));
            if is_late || !is_better(bound) {
                break;
            }
            let (node, spots) = nodes[place];
            let mut rooms: BTreeMap<Option<u16>, Vec<(Opening, SliceId)>> = BTreeMap::new();
            for (spot, opening) in self.openings_on(node, spots.iter(), wish) {
                let island = match wish.spec.placement {
                    Placement::Cluster | Placement::Node => None,
                    Placement::Island => supply.capacity_of(spot.capacity).map(|c| c.island),
                };
                rooms.entry(island).or_default().push((opening, spot.slice(wish.cluster, node)));
            }
            for openings in rooms.into_values() {
                let spans: Vec<Opening> = openings.iter().map(|(opening, _)| *opening).collect();
                let Some(at) = first_together(&spans, wish.count, wish.after) else { continue };
                let is_first = best.as_ref().is_none_or(|(known, _)| (at, place) < *known);
                if is_first && is_better(at) {
                    best = Some(((at, place), choose(openings, at, wish.count)));
                }
            }
        }
        best.map(|((at, _), slices)| (at, slices))
    }

    /// When the request may start on slices of a node.
    fn openings_on<'s>(
        &self,
        node: NodeId,
        spots: impl Iterator<Item = &'s Spot>,
        wish: &Wish<'_>,
    ) -> Vec<(Spot, Opening)> {
        let (state, now) = (self.view.state, self.view.now);
        let name = (wish.cluster, node);
        let mut found = Vec::new();
        let mut spots = spots.filter(|spot| wish.fitting.contains(&spot.capacity)).peekable();
        if spots.peek().is_none() || state.nodes.get(&name).is_some_and(|node| node.is_paused(now))
        {
            return found;
        }
        for spot in spots {
            self.walked(1);
            let slice = spot.slice(wish.cluster, node);
            let idle = match spot.is_offered {
                false => None,
                true => {
                    let offer = state.offers.get(&slice).filter(|offer| offer.expires_at() > now);
                    let Some(offer) = offer.filter(|_| !self.off.contains(&name)) else { continue };
                    Candidate::of(offer).idle
                }
            };
            let openings = self.openings(wish, slice, spot.free_at(now), idle);
            found.extend(openings.into_iter().map(|opening| (*spot, opening)));
        }
        found
    }

    /// Counts what was looked at.
    fn walked(&self, steps: usize) {
        self.steps.set(self.steps.get().saturating_add(steps));
    }

    /// From when on the tenant may hold `total` more of the model beside what it has reserved: what
    /// its own leases give back counts, what others borrow does not.
    fn quota_from(
        &self,
        supply: Option<&Supply>,
        spent: &Spent,
        (id, request): (RequestId, &Request),
        model: GpuModel,
        total: GpuMilli,
    ) -> Option<Timestamp> {
        let tenant = request.tenant;
        let own = self.own(tenant);
        let own = own.filter(|(other, held)| **other != id && held.model == model);
        let needed = own.fold(total, |sum, (_, held)| sum.saturating_add(held.total));
        let left = spent.room(self.view.state, tenant, model);
        let missing = needed.saturating_sub(left);
        if missing == GpuMilli::ZERO {
            return Some(self.view.now);
        }
        let supply = supply.unwrap_or_else(|| self.supply());
        supply.returns_by(tenant, model, missing).map(|at| at.max(self.view.now))
    }

    /// When the request may start on a slice that is free from then on, and idle for so long.
    fn openings(
        &self,
        wish: &Wish<'_>,
        slice: SliceId,
        free_at: Timestamp,
        idle: Option<(IdleFor, Timestamp)>,
    ) -> Vec<Opening> {
        let Wish { spec, claim, earliest, trust, hours, .. } = wish;
        let Some(last) = openings::start_by(spec, idle, *trust) else { return Vec::new() };
        let run = kept_for(self.view.state, spec).get();
        let taken = self.taken.get(&slice).copied();
        // Of what this plan has granted the next one knows more. Until then nothing opens by it.
        if taken.is_some() && *trust == Trust::Renewed {
            return Vec::new();
        }
        let taken = taken.unwrap_or(Timestamp::ZERO);
        let mut from = free_at.max(*earliest).max(taken);
        let mut higher: Vec<(Timestamp, Timestamp)> = Vec::new();
        for keep in self.keeps(slice, claim) {
            match keep.tier > claim.tier {
                true => higher.push((keep.from, keep.until)),
                // Behind its own tier, in a gap before a higher one.
                false => from = from.max(keep.until),
            }
        }
        higher.sort_unstable();
        let mut found = Vec::new();
        for (begins, ends) in higher {
            let until = begins.get().checked_sub(run).map(|until| Timestamp::new(until).min(last));
            if let Some(until) = until.filter(|until| from <= *until) {
                found.push(Opening { from, until });
            }
            from = from.max(ends);
        }
        if from <= last {
            found.push(Opening { from, until: last });
        }
        match (hours, &spec.deferral) {
            (Hours::Asked, Some(deferral)) => within(deferral, &found),
            (Hours::Any, _) | (Hours::Asked, None) => found,
        }
    }
}

/// When what holds a slice is over.
fn over_at(state: &State, slice: SliceId, now: Timestamp) -> Option<Timestamp> {
    match state.leased.get(&slice).and_then(|lease| state.leases.get(lease)) {
        None => openings::over_parts(state, slice, Ends::Bought, now),
        Some(lease) => openings::free_at(state, lease, Ends::Bought, now),
    }
}

/// From when on all that was promised is free, an instant that has passed meaning now; nothing if some
/// of it is not there, does not serve the request or is kept for another, or if that is not sure.
///
/// It changes with what stands on the nodes of the slices and with nothing else. Nodes may be left out
/// for a while besides.
pub(crate) fn all_there_at(
    state: &State,
    request: &Request,
    promise: &Promise,
) -> Option<Timestamp> {
    let ends = promise.slices().iter().map(|(slice, standing)| {
        let is_free = *standing == Whereabouts::There && !state.pledged.contains_key(slice);
        let candidate = fit::there(state, *slice).filter(|_| is_free)?;
        let is_fit = fit::fits_kind(state, &request.spec, slice.cluster, &candidate.capacity);
        if is_fit { over_at(state, *slice, Timestamp::ZERO) } else { None }
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// The parts of the openings in the hours that a request asked to wait for, or from its last chance on.
fn within(deferral: &Deferral, openings: &[Opening]) -> Vec<Opening> {
    let mut parts = Vec::new();
    for opening in openings {
        let mut from = deferral.opens_at(opening.from);
        while from <= opening.until {
            let closes_at = deferral.closes_at(from);
            // The instant at which a window closes is not in it.
            let last = closes_at.and_then(|at| at.get().checked_sub(1)).map(Timestamp::new);
            let until = last.map_or(opening.until, |last| last.min(opening.until));
            parts.push(Opening { from, until });
            let Some(closes_at) = closes_at else { break };
            from = deferral.opens_at(closes_at);
        }
    }
    parts
}

/// Of those that are open at `at`, `count`: the ones that open last, so that what is free before
/// stays free for others.
fn choose(openings: Vec<(Opening, SliceId)>, at: Timestamp, count: usize) -> Vec<SliceId> {
    let is_open = |opening: &Opening| opening.from <= at && at <= opening.until;
    let mut open: Vec<_> = openings.into_iter().filter(|(opening, _)| is_open(opening)).collect();
    open.sort_by_key(|(opening, slice)| (Reverse(opening.from), *slice));
    open.into_iter().take(count).map(|(_, slice)| slice).collect()
}

#[cfg(test)]
#[path = "start_tests.rs"]
pub(crate) mod tests;
