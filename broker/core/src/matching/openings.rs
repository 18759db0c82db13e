//! When slices come free, and the earliest instant at which enough of them are free together.
//!
//! A slice is free from the bought end of its lease on: nothing that runs on it may run longer, so
//! what is promised on it can be kept. For a hopeful estimate the predicted end is used instead.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use sublet_protocol::capacity::{Origin, Part, SliceId};
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId, TenantId};
use sublet_protocol::requests::{Placement, RequestSpec, Tier};
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

use crate::evolve::taken_away;
use crate::fit::{self, Candidate};
use crate::state::{Lease, LeaseStage, RequestStage, State, StateView};

/// Which end of a lease is counted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The end that was bought: it is never later.
    Bought,
    /// The end that one run in ten beats, where the request of the lease has a prediction.
    Predicted,
}

/// A slice that a reservation may count on, and from when on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) candidate: Candidate,
    pub(super) free_at: Timestamp,
}

/// Slices that one grant can take together but for where they stand.
pub(super) type Kind = (ClusterId, GpuModel, GpuMilli);

/// Every slice that is offered or leased, and when tenants give back what they hold.
#[derive(Debug, Default)]
pub(super) struct Supply {
    pub(super) kinds: BTreeMap<Kind, Vec<Spot>>,
    returns: BTreeMap<(TenantId, GpuModel), Vec<(Timestamp, GpuMilli)>>,
}

impl Supply {
    /// Of all nodes but those that `is_off` names.
    pub(super) fn of(
        view: StateView<'_>,
        ends: Ends,
        is_off: impl Fn(&(ClusterId, NodeId)) -> bool,
    ) -> Supply {
        let (state, now) = (view.state, view.now);
        let is_off = |node: &(ClusterId, NodeId)| {
            is_off(node) || state.nodes.get(node).is_some_and(|node| node.is_paused(now))
        };
        let mut supply = Supply::default();
        for (slice, offer) in state.offers.iter().filter(|(_, offer)| offer.expires_at() > now) {
            let parts = over_parts(state, *slice, ends, now);
            if let Some(free_at) = parts.and_then(|at| after_pledge(state, *slice, at))
                && !is_off(&(slice.cluster, slice.node))
            {
                supply.add(Spot { candidate: Candidate::of(offer), free_at });
            }
        }
        for lease in state.leases.values() {
            let terms = &lease.terms;
            let free_at = free_at(state, lease, ends, now);
            let back = free_at.unwrap_or(now);
            let returns = supply.returns.entry((terms.tenant, terms.model)).or_default();
            returns.push((back, terms.gpu_total()));
            let Some(free_at) = free_at else { continue };
            // What was carved out of a GPU goes back into it: the GPU itself is on offer.
            let whole = terms.members.iter().filter(|member| member.origin == Origin::Offered);
            for member in whole {
                let slice = member.slice;
                let Some(free_at) = after_pledge(state, slice, free_at) else { continue };
                let candidate = Candidate {
                    slice,
                    capacity: member.capacity,
                    origin: member.origin,
                    idle: None,
                };
                supply.add(Spot { candidate, free_at });
            }
        }
        supply.returns.values_mut().for_each(|returns| returns.sort());
        supply
    }

    fn add(&mut self, spot: Spot) {
        let capacity = &spot.candidate.capacity;
        let kind = (spot.candidate.slice.cluster, capacity.model, capacity.gpu);
        self.kinds.entry(kind).or_default().push(spot);
    }

    /// How many slices it names.
    pub(super) fn len(&self) -> usize {
        self.kinds.values().map(Vec::len).sum()
    }

    /// What the tenant will have given back of a model at `at`.
    pub(super) fn returned(&self, tenant: TenantId, model: GpuModel, at: Timestamp) -> GpuMilli {
        let returns = self.returns.get(&(tenant, model)).into_iter().flatten();
        let until = returns.take_while(|(back, _)| *back <= at);
        until.fold(GpuMilli::ZERO, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    /// When the tenant will have given back `amount` of a model; never, if it holds less.
    pub(super) fn returns_by(
        &self,
        tenant: TenantId,
        model: GpuModel,
        amount: GpuMilli,
    ) -> Option<Timestamp> {
        let mut sum = GpuMilli::ZERO;
        let returns = self.returns.get(&(tenant, model)).into_iter().flatten();
        for (back, part) in returns {
            sum = sum.saturating_add(*part);
            if sum >= amount {
                return Some(*back);
            }
        }
        None
    }
}

/// When a lease's slices are free at the latest; never, if its owner or a fault takes them.
pub(super) fn free_at(
    state: &State,
    lease: &Lease,
    ends: Ends,
    now: Timestamp,
) -> Option<Timestamp> {
    // What its owner wants back is not there for the next one.
    if lease.recalled_by.is_some() {
        return None;
    }
    let bought = match lease.stage {
        LeaseStage::Granted { start_by, .. } => start_by.after(lease.terms.duration),
        LeaseStage::Active { ends_at, .. } => ends_at,
        LeaseStage::Ending { cause, deadline, .. } => match taken_away(cause) {
            Some(_) => return None,
            None => deadline,
        },
    };
    let spec = state.requests.get(&lease.terms.request).map(|request| &request.spec);
    let prediction = spec.and_then(|spec| spec.prediction);
    let end = match (ends, lease.is_running(), prediction) {
        (Ends::Predicted, true, Some(prediction)) => {
            let since = lease.active_since().unwrap_or(now);
            since.after(prediction.duration_q10).min(bought)
        }
        (Ends::Bought | Ends::Predicted, _, _) => bought,
    };
    Some(end.max(now))
}

/// When all that is carved out of an offered slice has been given back.
pub(super) fn over_parts(
    state: &State,
    slice: SliceId,
    ends: Ends,
    now: Timestamp,
) -> Option<Timestamp> {
    let device = SliceId { part: Part::Whole, ..slice };
    let on_device = state.leased.range(device..).take_while(|(other, _)| {
        (other.cluster, other.node, other.device) == (slice.cluster, slice.node, slice.device)
    });
    let parts = on_device.filter(|(other, _)| other.part.overlaps(slice.part));
    let mut ends = parts.map(|(_, lease)| free_at(state, &state.leases[lease], ends, now));
    ends.try_fold(now, |latest, end| end.map(|end| latest.max(end)))
}

/// When a slice that comes free at `at` is free for others than the request it is pledged to: that
/// one may start until its pledge ends, and then run as long as it asks.
pub(super) fn after_pledge(state: &State, slice: SliceId, at: Timestamp) -> Option<Timestamp> {
    let Some(holder) = state.pledged.get(&slice) else { return Some(at) };
    let request = state.requests.get(holder)?;
    let RequestStage::Pledged { until, .. } = request.stage else { return Some(at) };
    Some(until.max(at).after(state.policy.start_timeout).after(request.spec.duration))
}

/// When a request granted at `at` has given its slices back at the latest: it may take its time to
/// start, and then runs no longer than was bought.
pub(super) fn over_by(state: &State, spec: &RequestSpec, at: Timestamp) -> Timestamp {
    at.after(state.policy.start_timeout).after(spec.duration)
}

/// From when on, and until when at the latest, a request may start on a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Opening {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// How far ahead the idle time that an offer promises is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It must cover the wait and the run.
    Covered,
    /// It must cover the run; the agent will say anew how long it stays idle until then.
    Renewed,
}

/// Until when a request may start on what is offered: the idle time must last for its run.
pub(super) fn start_by(
    spec: &RequestSpec,
    candidate: &Candidate,
    trust: Trust,
) -> Option<Timestamp> {
    let Some((idle, said_at)) = candidate.idle else { return Some(Timestamp::MAX) };
    let Some(promised) = fit::promised(idle, spec.class.tier()) else {
        return Some(Timestamp::MAX);
    };
    let spare = promised.as_millis().checked_sub(fit::needed(spec))?;
    match trust {
        Trust::Covered => Some(said_at.after_millis(spare)),
        Trust::Renewed => Some(Timestamp::MAX),
    }
}

/// The earliest instant, later than `after`, at which one of the openings begins and `count` of them are
/// open at once.
pub(super) fn first_together(
    openings: &[Opening],
    count: usize,
    after: Option<Timestamp>,
) -> Option<Timestamp> {
    if openings.len() < count || count == 0 {
        return None;
    }
    let mut from: Vec<Timestamp> = openings.iter().map(|opening| opening.from).collect();
    let mut until: Vec<Timestamp> = openings.iter().map(|opening| opening.until).collect();
    from.sort_unstable();
    until.sort_unstable();
    let mut closed = 0;
    for (opened, at) in from.iter().enumerate() {
        // The same instant opens several: what counts is how many are open once all have.
        while until.get(closed).is_some_and(|end| end < at) {
            closed += 1;
        }
        let is_late_enough = after.is_none_or(|after| *at > after);
        if is_late_enough && opened + 1 - closed >= count {
            return Some(*at);
        }
    }
    None
}

/// What may be taken together: all of a kind, those of a node, or those of an island.
pub(super) type Room = Option<(NodeId, Option<u16>)>;

/// The room a slice stands in, as far as the placement cares.
pub(super) fn room(placement: Placement, candidate: &Candidate) -> Room {
    match placement {
        Placement::Cluster => None,
        Placement::Node => Some((candidate.slice.node, None)),
        Placement::Island => Some((candidate.slice.node, Some(candidate.capacity.island))),
    }
}

/// A supply that is looked up only if someone asks.
#[derive(Debug, Default)]
pub(super) struct Lazy(OnceCell<Supply>);

impl Lazy {
    pub(super) fn get(&self, make: impl FnOnce() -> Supply) -> &Supply {
        self.0.get_or_init(make)
    }
}

/// A tier may rely on nothing but what is covered if it is the highest: such a lease never rests on
/// an offer that is likelier than not to be taken back.
pub(super) const fn trusts(tier: Tier) -> &'static [Trust] {
    match tier {
        Tier::Reserved => &[Trust::Covered],
        Tier::Standard | Tier::Opportunistic => &[Trust::Covered, Trust::Renewed],
    }
}

/// How long a request keeps a slice once it is granted, at the most.
pub(super) fn kept_for(state: &State, spec: &RequestSpec) -> Millis {
    over_by(state, spec, Timestamp::ZERO).since(Timestamp::ZERO)
}
