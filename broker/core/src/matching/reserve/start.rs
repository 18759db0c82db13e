//! When a promise can be kept at the earliest, and where a request could start first.

use std::collections::BTreeMap;

use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{GpuModel, RequestId};
use sublet_protocol::requests::{PromiseCause, RequestSpec};
use sublet_protocol::units::{GpuMilli, Timestamp};

use super::{Claim, LATE_MAX, RETURN_MAX, Reservations, Start};
use crate::evolve::taken_away;
use crate::fit::{self, Candidate};
use crate::matching::openings::{
    self, Ends, Kind, Opening, Room, Spot, Supply, Trust, first_together, kept_for, room, trusts,
};
use crate::matching::place::price;
use crate::matching::solve::Spent;
use crate::state::{LeaseStage, Offer, Promise, Request, Whereabouts};

impl Reservations<'_> {
    /// The earliest start with the slices that were promised, or why that is no longer possible.
    pub(super) fn keepable(
        &self,
        id: RequestId,
        request: &Request,
        promise: &Promise,
    ) -> Result<Start, PromiseCause> {
        let (state, now) = (self.view.state, self.view.now);
        let not_before = promise.not_before();
        let mut at = now.max(not_before);
        for (slice, standing) in promise.slices() {
            at = at.max(self.comes_at(request, *slice, *standing)?);
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
        let (at, is_outranked) = self.behind(at, &slices, &request.spec, &claim);
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
        let free_at = match state.leased.get(&slice).and_then(|lease| state.leases.get(lease)) {
            None => openings::over_parts(state, slice, Ends::Bought, now),
            Some(lease) => openings::free_at(state, lease, Ends::Bought, now),
        };
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
    fn behind(
        &self,
        mut at: Timestamp,
        slices: &[SliceId],
        spec: &RequestSpec,
        claim: &Claim,
    ) -> (Timestamp, bool) {
        let run = kept_for(self.view.state, spec);
        let own_tier = slices.iter().flat_map(|slice| self.keeps(*slice, claim));
        let own_tier = own_tier.filter(|keep| keep.tier == claim.tier).map(|keep| keep.until);
        at = at.max(own_tier.max().unwrap_or(at));
        let mut is_outranked = false;
        // Each step passes the end of a reservation, and there are only so many.
        loop {
            let over = at.after_millis(run);
            let keeps = slices.iter().flat_map(|slice| self.keeps(*slice, claim));
            let higher = keeps.filter(|keep| keep.tier > claim.tier);
            let in_the_way = higher.filter(|keep| keep.from < over && at < keep.until);
            let Some(last) = in_the_way.max_by_key(|keep| keep.until) else {
                return (at, is_outranked);
            };
            is_outranked = true;
            at = last.until;
        }
    }

    fn is_held_by_higher(&self, slices: &[SliceId], claim: &Claim) -> bool {
        let state = self.view.state;
        let leases = slices.iter().filter_map(|slice| state.leases.get(state.leased.get(slice)?));
        leases.into_iter().any(|lease| lease.terms.tier() > claim.tier)
    }

    /// The earliest start in `supply` that gets in the way of no reservation before it; the cheapest
    /// among equally early ones.
    pub(super) fn place(
        &self,
        supply: &Supply,
        spent: &Spent,
        id: RequestId,
        request: &Request,
    ) -> Option<Start> {
        let trusts = trusts(request.spec.class.tier()).iter();
        trusts.copied().find_map(|trust| self.place_trusting(supply, spent, (id, request), trust))
    }

    fn place_trusting(
        &self,
        supply: &Supply,
        spent: &Spent,
        (id, request): (RequestId, &Request),
        trust: Trust,
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
        for (kind, spots) in &supply.kinds {
            let (cluster, model, gpu) = *kind;
            if !spec.models.is_empty() && !spec.models.contains(&model) {
                continue;
            }
            let Some(price) = price(state, request, cluster, model) else { continue };
            let Some(total) = gpu.checked_mul(u64::from(spec.count)) else { continue };
            let earliest = self.quota_from(Some(supply), spent, (id, request), model, total);
            let Some(earliest) = earliest else { continue };
            let mut rooms: BTreeMap<Room, Vec<(Opening, SliceId)>> = BTreeMap::new();
            for spot in spots.iter().filter(|spot| self.fits(spec, spot)) {
                let room = rooms.entry(room(spec.placement, &spot.candidate)).or_default();
                let openings = self.openings(spec, spot, &claim, (earliest, trust));
                room.extend(openings.into_iter().map(|opening| (opening, spot.candidate.slice)));
            }
            for openings in rooms.into_values() {
                let spans: Vec<Opening> = openings.iter().map(|(opening, _)| *opening).collect();
                let Some(at) = first_together(&spans, count, after) else { continue };
                let cost = i128::from(price.per_gpu_hour.get()) * i128::from(total.get());
                if best.as_ref().is_none_or(|(known, _)| (at, cost) < *known) {
                    let slices = choose(openings, at, count);
                    best =
                        Some(((at, cost), Start { at, not_before: earliest, slices, kind: *kind }));
                }
            }
        }
        best.map(|(_, start)| start)
    }

    fn fits(&self, spec: &RequestSpec, spot: &Spot) -> bool {
        let candidate = Candidate { idle: None, ..spot.candidate };
        fit::misfit(self.view.state, spec, &candidate, self.view.now).is_none()
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
        let own = self
            .held
            .iter()
            .filter(|(other, held)| **other != id && held.tenant == tenant && held.model == model);
        let needed = own.fold(total, |sum, (_, held)| sum.saturating_add(held.total));
        let left = spent.room(self.view.state, tenant, model);
        let missing = needed.saturating_sub(left);
        if missing == GpuMilli::ZERO {
            return Some(self.view.now);
        }
        let supply = supply.unwrap_or_else(|| self.supply());
        supply.returns_by(tenant, model, missing).map(|at| at.max(self.view.now))
    }

    /// When the request may start on the slice.
    fn openings(
        &self,
        spec: &RequestSpec,
        spot: &Spot,
        claim: &Claim,
        (earliest, trust): (Timestamp, Trust),
    ) -> Vec<Opening> {
        let slice = spot.candidate.slice;
        let Some(last) = openings::start_by(spec, &spot.candidate, trust) else {
            return Vec::new();
        };
        let run = kept_for(self.view.state, spec).get();
        let taken = self.taken.get(&slice).copied();
        // Of what this plan has granted the next one knows more. Until then nothing opens by it.
        if taken.is_some() && trust == Trust::Renewed {
            return Vec::new();
        }
        let taken = taken.unwrap_or(Timestamp::ZERO);
        let mut from = spot.free_at.max(earliest).max(taken);
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
        found
    }
}

/// Of those that are open at `at`, `count`: the ones that open last, so that what is free before
/// stays free for others.
fn choose(openings: Vec<(Opening, SliceId)>, at: Timestamp, count: usize) -> Vec<SliceId> {
    let is_open = |opening: &Opening| opening.from <= at && at <= opening.until;
    let mut open: Vec<_> = openings.into_iter().filter(|(opening, _)| is_open(opening)).collect();
    open.sort_by_key(|(opening, slice)| (std::cmp::Reverse(opening.from), *slice));
    open.into_iter().take(count).map(|(_, slice)| slice).collect()
}
