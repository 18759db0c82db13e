//! The problem: free slots by node, and the queue.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::deferral::Deferral;
use sublet_protocol::ids::{ClusterId, DeviceId, GpuModel, NodeId, Region, RequestId, TenantId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom};
use sublet_protocol::requests::{Capability, Class, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

use super::Limits;
use super::endable::Endable;
use super::index::Known;
use super::order::{Line, lines};
use super::reserve::Reservations;
use crate::fit::Candidate;
use crate::mutation::Mutation;
use crate::partition::{self, DeviceRoom, HostUse, Kept, Typical};
use crate::state::{Offer, State, StateView};

/// How many of the waiting requests say what a typical load is.
const WAITING_SEEN: usize = 128;

/// A slice that can be granted, or a GPU of which parts can.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// All of what is offered.
    pub(super) candidate: Candidate,
    pub(super) generation: u64,
    /// The only request that may have it, if it is kept for one.
    pub(super) kept_for: Option<RequestId>,
    /// Whether this plan has given it away.
    pub(super) is_taken: bool,
    /// Whose CPU and host memory it names.
    pub(super) host: HostRoom,
    /// What is taken of it, if it may be divided.
    pub(super) divided: Option<Box<Divided>>,
}

/// A GPU that may be divided.
#[derive(Debug, Clone)]
pub(super) struct Divided {
    /// What leases hold and this plan has given away.
    pub(super) room: DeviceRoom,
    /// What is kept for requests besides.
    pub(super) kept: Vec<Kept>,
}

impl Divided {
    /// Whether all of it is free.
    pub(super) fn is_untouched(&self) -> bool {
        self.room.is_empty() && self.kept.is_empty()
    }
}

impl Slot {
    pub(super) fn of(state: &State, offer: &Offer) -> Slot {
        let terms = offer.terms();
        let divided = (terms.division != Division::NONE).then(|| {
            let room = DeviceRoom::leased(state, terms.slice);
            Box::new(Divided { room, kept: DeviceRoom::kept(state, terms) })
        });
        Slot {
            candidate: Candidate::of(offer),
            generation: terms.generation,
            kept_for: state.pledged.get(&terms.slice).copied(),
            is_taken: false,
            host: terms.host,
            divided,
        }
    }
}

/// The slots of one node.
#[derive(Debug)]
pub(super) struct NodeSlots {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) slots: Vec<Slot>,
    /// What leases hold of the node's host and this plan has given away.
    pub(super) host: HostUse,
}

/// Free slots and the queue.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub(super) view: StateView<'a>,
    pub(super) nodes: Vec<NodeSlots>,
    pub(super) lines: Vec<Line<'a>>,
    /// Nodes on which nothing new may be put.
    pub(super) closed: BTreeSet<(ClusterId, NodeId)>,
    pub(super) reservations: Reservations<'a>,
    typical: OnceCell<Typical>,
    /// The leases that may be ended, as far as someone has asked.
    pub(super) endable: Endable<'a>,
}

impl<'a> Problem<'a> {
    /// All that is free and all that waits.
    pub(super) fn within(view: StateView<'a>, limits: &Limits) -> Problem<'a> {
        let (nodes, lines) = (nodes(view.state, view.now), lines(view.state, view.now));
        Problem { nodes, lines, ..Problem::bare(view, limits, None) }
    }

    /// Scores placements for this load instead of for what waits.
    pub(super) fn expect(&mut self, typical: Typical) {
        self.typical = OnceCell::from(typical);
    }

    /// The load for which placements are scored: that of the waiting requests with the smallest ids
    /// (ids are drawn at random), unless another was given.
    pub(super) fn typical(&self) -> &Typical {
        let state = self.view.state;
        self.typical.get_or_init(|| {
            let waiting = state.waiting.iter().take(WAITING_SEEN);
            Typical::waiting(waiting.map(|id| &state.requests[id].spec))
        })
    }

    /// With no slots and no queue yet; what an index knows of leases is not looked up again.
    pub(super) fn bare(
        view: StateView<'a>,
        limits: &Limits,
        known: Option<&'a Known>,
    ) -> Problem<'a> {
        let (closed, typical) = (limits.closed.clone(), OnceCell::new());
        let endable = Endable::of(view, known.map(|known| &known.running));
        let reservations = Reservations::of(view, closed.clone(), known);
        let (nodes, lines) = (Vec::new(), Vec::new());
        Problem { view, nodes, lines, closed, reservations, typical, endable }
    }

    /// Adds the slots of these nodes, which are not there yet.
    pub(super) fn add_nodes(&mut self, nodes: impl IntoIterator<Item = (ClusterId, NodeId)>) {
        let (state, now) = (self.view.state, self.view.now);
        let known = self.nodes.len();
        for (cluster, node) in nodes {
            let first = SliceId { cluster, node, device: DeviceId::new(0), part: Part::Whole };
            let here = state.offers.range(first..);
            let here = here.take_while(|(slice, _)| (slice.cluster, slice.node) == (cluster, node));
            let standing = here.filter(|(_, offer)| stands(state, offer, now));
            let slots: Vec<Slot> = standing.map(|(_, offer)| Slot::of(state, offer)).collect();
            if !slots.is_empty() {
                let host = partition::host_use(state, cluster, node);
                self.nodes.push(NodeSlots { cluster, node, slots, host });
            }
        }
        if self.nodes.len() > known {
            self.nodes.sort_by_key(|node| (node.cluster, node.node));
        }
    }
}

/// Whether the offer's time is not over.
fn stands(state: &State, offer: &Offer, now: Timestamp) -> bool {
    offer.expires_at() > now || state.leaves_out(Mutation::ExpiredPlanned)
}

fn nodes(state: &State, now: Timestamp) -> Vec<NodeSlots> {
    let mut nodes: Vec<NodeSlots> = Vec::new();
    for (slice, offer) in state.offers.iter().filter(|(_, offer)| stands(state, offer, now)) {
        let slot = Slot::of(state, offer);
        match nodes.last_mut() {
            // Slices are ordered by cluster and node.
            Some(last) if (last.cluster, last.node) == (slice.cluster, slice.node) => {
                last.slots.push(slot);
            }
            Some(_) | None => nodes.push(NodeSlots {
                cluster: slice.cluster,
                node: slice.node,
                host: partition::host_use(state, slice.cluster, slice.node),
                slots: vec![slot],
            }),
        }
    }
    nodes
}

/// What makes two requests of one tenant alike to the matcher but for how long they run: if one
/// finds no room, neither does another that needs as long or longer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    tenant: TenantId,
    fit: Fit,
    count: u32,
    max_price: Option<MicroCredits>,
    deferral: Option<Box<Deferral>>,
    /// The declared time, where a budget must cover it.
    budgeted: Option<Seconds>,
}

/// What a slice must be to serve a request, and how close to the others it must stand: for whom this is
/// the same, the same slices fit, but for how long and at which price.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    class: Class,
    placement: Placement,
    amounts: (GpuMilli, MiB, CpuMilli, MiB),
    models: Vec<GpuModel>,
    regions: Vec<Region>,
    capability: Capability,
}

impl Fit {
    pub(super) fn of(spec: &RequestSpec) -> Fit {
        Fit {
            class: spec.class,
            placement: spec.placement,
            amounts: (spec.gpu, spec.memory, spec.cpu, spec.host_memory),
            models: spec.models.clone(),
            regions: spec.regions.clone(),
            capability: spec.capability,
        }
    }
}

impl Shape {
    pub(super) fn of(state: &State, tenant: TenantId, spec: &RequestSpec) -> Shape {
        // Every field by name: whoever adds one decides whether it tells requests apart.
        let RequestSpec {
            project: _,
            class: _,
            priority: _,
            models: _,
            count,
            gpu: _,
            memory: _,
            cpu: _,
            host_memory: _,
            placement: _,
            duration,
            max_price,
            regions: _,
            capability: _,
            on_recall: _,
            workload: _,
            prediction: _,
            deferral,
        } = spec;
        Shape {
            tenant,
            fit: Fit::of(spec),
            count: *count,
            max_price: *max_price,
            deferral: deferral.clone(),
            budgeted: state.tree.has_budget(tenant).then_some(*duration),
        }
    }
}

/// Requests for which a plan found no room: each shape with the shortest needs that failed, as
/// predicted for the offers' sake and as bought for the reservations'. Room only shrinks while a plan
/// is made: what a served request had reserved is kept until the next one.
#[derive(Debug, Default)]
pub(super) struct Hopeless(BTreeMap<Shape, Needs>);

/// How long a request will run, and how long it may.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    pub(super) predicted: Millis,
    pub(super) bought: Seconds,
}

impl Hopeless {
    pub(super) fn has(&self, shape: &Shape, needs: Needs) -> bool {
        let known = self.0.get(shape);
        known.is_some_and(|k| needs.predicted >= k.predicted && needs.bought >= k.bought)
    }

    pub(super) fn add(&mut self, shape: Shape, needs: Needs) {
        let known = self.0.entry(shape).or_insert(needs);
        // Of two that failed the one that is shorter in both says more.
        if needs.predicted <= known.predicted && needs.bought <= known.bought {
            *known = needs;
        }
    }
}
