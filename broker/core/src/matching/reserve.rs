//! Reservations: a request that finds no room takes slices from the instant on at which enough of
//! them will be free, and nobody behind it may take them for longer than until then.
//!
//! What is reserved is told to the tenant and stands in the state as a promise, so it outlives plans,
//! shares that move and leaders that fail. A plan begins with the promises in the order in which they
//! were made, each with the slices it names and at the earliest instant at which those are free: that
//! order never changes, so what ends early moves starts forward and nothing moves one back, unless an
//! owner, a fault, a higher tier or changed terms took something from it. Then another start is looked
//! for at once, and told with its reason.
//!
//! A new reservation stands behind those of its tier on each of its slices. It may still start in a gap
//! before them, like everyone: whoever fits now, and gives back in time, is granted.

mod keeps;
mod start;

use std::cell::{Cell, OnceCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::{PlanGroup, PlanMember};
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId, RequestId, TenantId};
use sublet_protocol::requests::{PromiseCause, RequestSpec, Tier};
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::index::Known;
use super::openings::{Ends, over_by};
use super::problem::Shape;
use super::solve::Spent;
use super::supply::{Kind, Supply};
use crate::state::{PROMISES_MAX, Request, RequestStage, StateView};

use keeps::Keeps;
pub(crate) use keeps::{Devices, device};
use start::Hours;
pub(crate) use start::all_there_at;

/// This many requests of a tier hold reservations at once (conservative backfill). Beyond them each
/// tenant's first request that finds no room still takes one (EASY backfill).
pub(super) const CONSERVATIVE_MAX: usize = 100;
/// As long as fewer promises than this stand, requests may rest until better hours: what is left is for
/// those that find no room.
pub(super) const RESTING_MAX: usize = PROMISES_MAX / 5 * 4;
/// Most nodes and slices that one plan looks at for new starts; a search that has begun is ended.
const STEPS_MAX: usize = 1_000_000;
/// A start that is missed by less is not taken for broken: a guest has its grace after the bought
/// end, and its agent a moment to offer the slice again.
pub const LATE_MAX: Seconds = Seconds::new(5 * 60);
/// How long a slice whose lease has ended may take to be offered again: as long as an offer stands
/// by default.
const RETURN_MAX: Seconds = Seconds::new(15 * 60);
/// A start is moved forward only by at least this much …
const EARLIER_MIN: Seconds = Seconds::new(10 * 60);
/// … and by at least this part of the wait, so that it does not flicker.
const EARLIER_PART: u64 = 4;

/// Who wants a slice from now until when at the latest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    request: RequestId,
    tier: Tier,
    until: Timestamp,
}

impl Claim {
    /// Whether it is this request's.
    pub(super) fn is_of(&self, request: RequestId) -> bool {
        self.request == request
    }

    /// The same claim, behind everybody who has reserved something.
    pub(super) fn behind_all(self) -> Claim {
        Claim { tier: Tier::Opportunistic, ..self }
    }

    /// Whether the span is another's who comes first.
    fn is_behind(&self, keep: &Keep) -> bool {
        keep.request != self.request && keep.tier >= self.tier
    }

    pub(super) fn of(view: StateView<'_>, request: RequestId, spec: &RequestSpec) -> Claim {
        let until = over_by(view.state, spec, view.now);
        Claim { request, tier: spec.class.tier(), until }
    }
}

/// A span of time in which a slice is kept for a request.
#[derive(Debug, Clone, Copy)]
struct Keep {
    from: Timestamp,
    until: Timestamp,
    request: RequestId,
    tier: Tier,
}

/// What a request holds in the future.
#[derive(Debug, Clone)]
struct Held {
    tier: Tier,
    model: GpuModel,
    total: GpuMilli,
    start: Timestamp,
    /// Whether it rests until a start that it asked for.
    hours: Hours,
}

/// What a request holds in the future, or why nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// A reservation.
    Holds,
    /// Nothing: no start is known.
    Barren,
    /// Nothing yet: this plan has looked for enough starts.
    Unsure,
    /// Nothing: it may not take one, or needs none.
    Refused,
}

/// When and where a request could start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) at: Timestamp,
    /// It could not before this, whatever came free.
    pub(super) not_before: Timestamp,
    pub(super) slices: Vec<SliceId>,
    pub(super) kind: Kind,
}

/// What is reserved while a plan is made.
#[derive(Debug)]
pub(super) struct Reservations<'a> {
    view: StateView<'a>,
    off: BTreeSet<(ClusterId, NodeId)>,
    /// What an index knows, or what is looked up if someone asks.
    known: Option<&'a Known>,
    supply: OnceCell<Supply>,
    kept: Keeps<'a>,
    held: BTreeMap<RequestId, Held>,
    /// By tenant: those that hold one.
    of_tenant: BTreeMap<TenantId, BTreeSet<RequestId>>,
    /// Promises that cannot be kept as they are.
    broken: BTreeMap<RequestId, PromiseCause>,
    /// Requests that this plan has served.
    served: BTreeSet<RequestId>,
    /// Slices that this plan has granted, with the end of that at the latest.
    taken: BTreeMap<SliceId, Timestamp>,
    /// Shapes for which no start in these hours is known.
    barren: BTreeSet<(Hours, Shape)>,
    /// Nodes and slices looked at.
    steps: Cell<usize>,
    /// How many of those that do not rest hold one in each tier.
    count: BTreeMap<Tier, usize>,
}

impl<'a> Reservations<'a> {
    /// The promises of the state, each at the earliest instant at which it can be kept. The nodes
    /// that are `off` are not looked at for new ones. What an index knows must be up to date.
    pub(super) fn of(
        view: StateView<'a>,
        off: BTreeSet<(ClusterId, NodeId)>,
        known: Option<&'a Known>,
    ) -> Reservations<'a> {
        let mut own = Reservations {
            view,
            off,
            known,
            supply: OnceCell::new(),
            kept: Keeps::new(known.map(|known| known.promises.devices())),
            held: BTreeMap::new(),
            of_tenant: BTreeMap::new(),
            broken: BTreeMap::new(),
            served: BTreeSet::new(),
            taken: BTreeMap::new(),
            barren: BTreeSet::new(),
            steps: Cell::new(0),
            count: BTreeMap::new(),
        };
        let requests = &view.state.requests;
        let promised = view.state.promises.iter().filter_map(|(id, promise)| {
            let request = requests.get(id)?;
            Some((Reverse(request.spec.class.tier()), promise.made_by(), *id, request, promise))
        });
        let mut promised: Vec<_> = promised.collect();
        promised.sort_by_key(|(tier, made_by, ..)| (*tier, *made_by));
        for (_, _, id, request, promise) in promised {
            let there = own.known.and_then(|known| known.promises.there_at(id));
            match own.keepable((id, request), promise, there) {
                Ok(start) => {
                    let hours = match view.state.rests(id, request) {
                        true => Hours::Asked,
                        false => Hours::Any,
                    };
                    own.hold_at((id, request), &start, there.map(|(_, places)| places), hours);
                }
                Err(cause) => {
                    own.broken.insert(id, cause);
                }
            }
        }
        own
    }

    /// The requests that hold a reservation, or held one that cannot be kept.
    pub(super) fn concerned(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.held.keys().chain(self.broken.keys()).copied()
    }

    /// Whether the request holds a reservation, or held one that cannot be kept.
    pub(super) fn concern(&self, request: RequestId) -> bool {
        self.held.contains_key(&request) || self.broken.contains_key(&request)
    }

    /// When the request will start at the latest, if it holds a reservation.
    pub(super) fn start_of(&self, request: RequestId) -> Option<Timestamp> {
        self.held.get(&request).map(|held| held.start)
    }

    /// Whether the claim may take the slice: it gives it back before anyone of its own or a higher
    /// tier needs it.
    pub(super) fn allows(&self, slice: SliceId, claim: &Claim) -> bool {
        self.kept.is_empty() || self.keeps(slice, claim).all(|keep| keep.from >= claim.until)
    }

    /// Who before the claim keeps the slice, or a part of the same hardware, and when.
    fn keeps<'s>(
        &'s self,
        slice: SliceId,
        claim: &'s Claim,
    ) -> impl Iterator<Item = &'s Keep> + 's {
        self.kept.on(slice).filter(|keep| claim.is_behind(keep))
    }

    /// Whether `total` of a model leaves the tenant's own reservations their quota.
    pub(super) fn leaves_quota(
        &self,
        spent: &Spent,
        (id, request): (RequestId, &Request),
        model: GpuModel,
        total: GpuMilli,
    ) -> bool {
        let (tenant, claim) = (request.tenant, Claim::of(self.view, id, &request.spec));
        let before = self.own(tenant).filter(|(other, held)| {
            let is_before = held.tier >= claim.tier && held.start < claim.until;
            held.model == model && **other != id && is_before
        });
        let left = spent.room(self.view.state, tenant, model);
        let mut needed = total;
        for (_, held) in before {
            needed = needed.saturating_add(held.total);
            if needed > left {
                let back = self.supply().returned(tenant, model, held.start);
                if needed > left.saturating_add(back) {
                    return false;
                }
            }
        }
        true
    }

    /// Requests that are to be looked at whatever else happens: their time has come, or what they were
    /// promised cannot be kept; and whether there are any of the latter.
    pub(super) fn pressing(&self) -> (Vec<RequestId>, bool) {
        let due = self.held.iter().filter(|(_, held)| held.start <= self.view.now);
        let due = due.map(|(id, _)| *id).chain(self.broken.keys().copied()).collect();
        (due, !self.broken.is_empty())
    }

    /// What the tenant has reserved of a model.
    pub(super) fn reserved(&self, tenant: TenantId, model: GpuModel) -> GpuMilli {
        let own = self.own(tenant).filter(|(_, held)| held.model == model);
        own.fold(GpuMilli::ZERO, |sum, (_, held)| sum.saturating_add(held.total))
    }

    /// What the tenant's requests hold in the future.
    fn own(&self, tenant: TenantId) -> impl Iterator<Item = (&RequestId, &Held)> {
        let own = self.of_tenant.get(&tenant).into_iter().flatten();
        own.filter_map(|id| self.held.get_key_value(id))
    }

    /// This plan has granted these slices. What the request had reserved is kept until the plan is
    /// committed: while it is made, room only shrinks.
    pub(super) fn granted(&mut self, id: RequestId, spec: &RequestSpec, members: &[PlanMember]) {
        self.served.insert(id);
        let until = over_by(self.view.state, spec, self.view.now);
        self.taken.extend(members.iter().map(|member| (member.slice, until)));
    }

    /// This plan has moved a grant off these slices.
    pub(super) fn vacated(&mut self, members: &[PlanMember]) {
        for member in members {
            self.taken.remove(&member.slice);
        }
    }

    /// This plan ends leases for the request.
    pub(super) fn pledged(&mut self, id: RequestId) {
        self.served.insert(id);
    }

    /// New starts for the promises that cannot be kept, the highest tier and the earliest first; a word
    /// to those for which there is none.
    pub(super) fn mend(&mut self, spent: &Spent) -> Vec<PlanGroup> {
        let state = self.view.state;
        let broken = self.broken.keys().filter_map(|id| {
            let (request, promise) = (state.requests.get(id)?, state.promises.get(id)?);
            Some((Reverse(request.spec.class.tier()), promise.start(), *id))
        });
        let mut broken: Vec<_> = broken.collect();
        broken.sort_unstable();
        let mut groups = Vec::new();
        for (_, _, id) in broken {
            let request = &state.requests[&id];
            let found = self.search(spent, id, request);
            // What was not looked for is looked for by the next plan.
            if found == Err(Fate::Unsure) {
                break;
            }
            let Some(cause) = self.broken.remove(&id) else { continue };
            groups.push(match found {
                Ok(start) => self.promise(id, request, &start, cause),
                Err(_) => PlanGroup::Withdraw { request: id, cause },
            });
        }
        groups
    }

    /// A reservation for a request that finds no room.
    pub(super) fn reserve(
        &mut self,
        spent: &Spent,
        id: RequestId,
        request: &Request,
    ) -> (Option<PlanGroup>, Fate) {
        if self.held.contains_key(&id) {
            return (None, Fate::Holds);
        }
        if self.view.state.promises.contains_key(&id) {
            return (None, Fate::Unsure);
        }
        if !self.has_place(spent, request) {
            return (None, Fate::Refused);
        }
        match self.search(spent, id, request) {
            // What could start at once was refused for a reason that is not known here.
            Ok(start) if start.at <= self.view.now => (None, Fate::Unsure),
            Ok(start) => {
                (Some(self.promise(id, request, &start, PromiseCause::Queued)), Fate::Holds)
            }
            Err(fate) => (None, fate),
        }
    }

    /// A reservation for a request that asked to wait for better hours than these: it rests from then
    /// on. Nothing if it may start now, holds a promise, or there is no such start in time.
    pub(super) fn rest(
        &mut self,
        spent: &Spent,
        id: RequestId,
        request: &Request,
    ) -> Option<PlanGroup> {
        let is_full = self.held.len() + self.broken.len() >= RESTING_MAX;
        if is_full || !self.may_rest(id, request) {
            return None;
        }
        let start = self.search_in(spent, (id, request), Hours::Asked).ok()?;
        Some(self.promise(id, request, &start, PromiseCause::Queued))
    }

    /// The start for which the request would rest if it were its turn.
    pub(super) fn would_rest(&self, id: RequestId, request: &Request) -> Option<Start> {
        let supply = self.may_rest(id, request).then(|| self.supply())?;
        self.place(supply, &Spent::default(), (id, request), Hours::Asked)
    }

    /// Whether the request asked to wait for better hours than these, and was promised nothing yet.
    fn may_rest(&self, id: RequestId, request: &Request) -> bool {
        let now = self.view.now;
        let waits = request.spec.deferral.as_ref().is_some_and(|asked| asked.opens_at(now) > now);
        let is_waiting = matches!(request.stage, RequestStage::Waiting);
        let is_promised = self.concern(id) || self.view.state.promises.contains_key(&id);
        waits && is_waiting && !is_promised
    }

    /// An earlier start for one of the reservations, if one has become possible. Which one is tried
    /// moves on with the journal.
    pub(super) fn improve(&mut self, spent: &Spent) -> Option<PlanGroup> {
        let (state, now) = (self.view.state, self.view.now);
        let far = |held: &Held| held.start > now.after(EARLIER_MIN);
        let stands = |id: &RequestId| state.promises.contains_key(id);
        let tried: Vec<RequestId> = (self.held.iter())
            .filter(|(id, held)| far(held) && stands(id) && !self.served.contains(id))
            .map(|(id, _)| *id)
            .collect();
        let turn = usize::try_from(state.next_index()).unwrap_or(0).checked_rem(tried.len())?;
        let id = *tried.get(turn)?;
        let request = state.requests.get(&id)?;
        // Who rests waits for what it asked for, although it could start in between.
        let Held { start: known, hours, .. } = *self.held.get(&id)?;
        let start = self.search_in(spent, (id, request), hours).ok()?;
        let gain = known.since(start.at).as_seconds_floor();
        let wait = known.since(now).as_seconds_floor();
        let is_worth_it = gain >= EARLIER_MIN && gain.get() >= wait.get() / EARLIER_PART;
        // What could start at once was refused by the walk for a reason.
        if !is_worth_it || start.at <= now || start.at >= state.promises[&id].start() {
            return None;
        }
        Some(self.promise(id, request, &start, PromiseCause::Earlier))
    }

    /// The earliest start of a request beside all reservations before it, by the given ends.
    pub(super) fn estimate(
        &self,
        spent: &Spent,
        (id, request): (RequestId, &Request),
        ends: Ends,
    ) -> Option<Start> {
        let first = |supply: &Supply| {
            let in_hours = |hours| self.place(supply, spent, (id, request), hours);
            in_hours(Hours::Asked).or_else(|| in_hours(Hours::Any))
        };
        match ends {
            Ends::Bought => first(self.supply()),
            Ends::Predicted => first(&Supply::of(self.view, ends)),
        }
    }

    fn supply(&self) -> &Supply {
        let make = || Supply::of(self.view, Ends::Bought);
        self.known.map_or_else(|| self.supply.get_or_init(make), |known| &known.supply)
    }

    /// Whether one more reservation may be taken: each tenant's first one of a tier may, and more while
    /// there are few. Who is at its quota holds one at most: it must not block what it could not use.
    fn has_place(&self, spent: &Spent, request: &Request) -> bool {
        let (tenant, tier) = (request.tenant, request.spec.class.tier());
        let count = self.count.get(&tier).copied().unwrap_or(0);
        if self.held.len() + self.broken.len() >= PROMISES_MAX {
            return false;
        }
        !self.own(tenant).any(|(_, held)| held.tier == tier && held.hours == Hours::Any)
            || (count < CONSERVATIVE_MAX && self.has_quota_now(spent, request))
    }

    fn has_quota_now(&self, spent: &Spent, request: &Request) -> bool {
        let (state, tenant) = (self.view.state, request.tenant);
        let models = &request.spec.models;
        let known: BTreeSet<GpuModel> =
            self.supply().kinds().keys().map(|(_, model, _)| *model).collect();
        let mut allowed =
            known.into_iter().filter(|model| models.is_empty() || models.contains(model));
        allowed.any(|model| {
            let needed = request.spec.gpu_total().saturating_add(self.reserved(tenant, model));
            needed <= spent.room(state, tenant, model)
        })
    }

    fn promise(
        &mut self,
        id: RequestId,
        request: &Request,
        start: &Start,
        cause: PromiseCause,
    ) -> PlanGroup {
        let (at, not_before, slices) = (start.at, start.not_before, start.slices.clone());
        let deferral = request.spec.deferral.as_ref();
        let hours = match deferral.is_some_and(|deferral| deferral.asks_for(at)) {
            true => Hours::Asked,
            false => Hours::Any,
        };
        self.hold_at((id, request), start, None, hours);
        PlanGroup::Promise { request: id, start: at, not_before, slices, cause }
    }

    /// Keeps slices from a start on; `places` are the numbers of their GPUs, if they are known.
    fn hold_at(
        &mut self,
        (id, request): (RequestId, &Request),
        start: &Start,
        places: Option<&[(u32, Part)]>,
        hours: Hours,
    ) {
        let Start { at, slices, kind: (_, model, gpu), .. } = start;
        let (at, model, gpu, tier) = (*at, *model, *gpu, request.spec.class.tier());
        let until = over_by(self.view.state, &request.spec, at);
        let keep = Keep { from: at, until, request: id, tier };
        match places {
            Some(places) => {
                places.iter().for_each(|(number, part)| self.kept.add(*number, *part, keep));
            }
            None => {
                for slice in slices {
                    let number = self.kept.number(slice);
                    self.kept.add(number, slice.part, keep);
                }
            }
        }
        let total = GpuMilli::new(gpu.get().saturating_mul(u64::from(request.spec.count)));
        self.of_tenant.entry(request.tenant).or_default().insert(id);
        let held = Held { tier, model, total, start: at, hours };
        if self.held.insert(id, held).is_none() && hours == Hours::Any {
            *self.count.entry(tier).or_default() += 1;
        }
    }

    /// The first start in the hours that it asked to wait for, else the first at all.
    fn search(&mut self, spent: &Spent, id: RequestId, request: &Request) -> Result<Start, Fate> {
        match self.search_in(spent, (id, request), Hours::Asked) {
            Err(Fate::Barren) => self.search_in(spent, (id, request), Hours::Any),
            found => found,
        }
    }

    fn search_in(
        &mut self,
        spent: &Spent,
        (id, request): (RequestId, &Request),
        hours: Hours,
    ) -> Result<Start, Fate> {
        let shape = (hours, Shape::of(self.view.state, request.tenant, &request.spec));
        let is_late = request.spec.deferral.as_ref().is_none_or(|d| d.start_by < self.view.now);
        if (hours == Hours::Asked && is_late) || self.barren.contains(&shape) {
            return Err(Fate::Barren);
        }
        if self.steps.get() >= STEPS_MAX {
            return Err(Fate::Unsure);
        }
        let found = self.place(self.supply(), spent, (id, request), hours);
        if found.is_none() {
            self.barren.insert(shape);
        }
        found.ok_or(Fate::Barren)
    }
}

#[cfg(test)]
pub(crate) use start::tests::starts_are_those_of_a_look_at_everything;
