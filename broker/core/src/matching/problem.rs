//! The problem: free slots by node, and the queue.

use std::collections::BTreeMap;

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::ids::{ClusterId, DeviceId, GpuModel, NodeId, Region, RequestId, TenantId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::requests::{Capability, Class, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Timestamp};

use super::order::{Line, lines};
use crate::fit::Candidate;
use crate::state::{Offer, State, StateView};

/// A slice that can be granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) candidate: Candidate,
    pub(super) generation: u64,
    /// The only request that may have it, if it is kept for one.
    pub(super) kept_for: Option<RequestId>,
    /// Whether this plan has given it away.
    pub(super) is_taken: bool,
}

/// The slots of one node.
#[derive(Debug)]
pub(super) struct NodeSlots {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) slots: Vec<Slot>,
}

/// Free slots and the queue.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub(super) view: StateView<'a>,
    pub(super) nodes: Vec<NodeSlots>,
    pub(super) lines: Vec<Line<'a>>,
}

impl<'a> Problem<'a> {
    pub(super) fn of(view: StateView<'a>) -> Problem<'a> {
        Problem { view, nodes: nodes(view.state, view.now), lines: lines(view.state) }
    }
}

impl<'a> Problem<'a> {
    /// With no slots and no queue yet.
    pub(super) fn bare(view: StateView<'a>) -> Problem<'a> {
        Problem { view, nodes: Vec::new(), lines: Vec::new() }
    }

    /// Adds the slots of these nodes, which are not there yet.
    pub(super) fn add_nodes(&mut self, nodes: impl IntoIterator<Item = (ClusterId, NodeId)>) {
        let (state, now) = (self.view.state, self.view.now);
        let known = self.nodes.len();
        for (cluster, node) in nodes {
            let first = SliceId { cluster, node, device: DeviceId::new(0), part: Part::Whole };
            let here = state.offers.range(first..);
            let here = here.take_while(|(slice, _)| (slice.cluster, slice.node) == (cluster, node));
            let standing = here.filter(|(_, offer)| offer.expires_at() > now);
            let slots: Vec<Slot> =
                standing.map(|(slice, offer)| slot(state, slice, offer)).collect();
            if !slots.is_empty() {
                self.nodes.push(NodeSlots { cluster, node, slots });
            }
        }
        if self.nodes.len() > known {
            self.nodes.sort_by_key(|node| (node.cluster, node.node));
        }
    }
}

fn slot(state: &State, slice: &SliceId, offer: &Offer) -> Slot {
    Slot {
        candidate: Candidate::of(offer),
        generation: offer.terms().generation,
        kept_for: state.pledged.get(slice).copied(),
        is_taken: false,
    }
}

fn nodes(state: &State, now: Timestamp) -> Vec<NodeSlots> {
    let mut nodes: Vec<NodeSlots> = Vec::new();
    for (slice, offer) in state.offers.iter().filter(|(_, offer)| offer.expires_at() > now) {
        let slot = slot(state, slice, offer);
        match nodes.last_mut() {
            // Slices are ordered by cluster and node.
            Some(last) if (last.cluster, last.node) == (slice.cluster, slice.node) => {
                last.slots.push(slot);
            }
            Some(_) | None => nodes.push(NodeSlots {
                cluster: slice.cluster,
                node: slice.node,
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
    class: Class,
    placement: Placement,
    count: u32,
    amounts: (GpuMilli, MiB, CpuMilli, MiB),
    max_price: Option<MicroCredits>,
    models: Vec<GpuModel>,
    regions: Vec<Region>,
    capability: Capability,
}

impl Shape {
    pub(super) fn of(tenant: TenantId, spec: &RequestSpec) -> Shape {
        // Every field by name: whoever adds one decides whether it tells requests apart.
        let RequestSpec {
            project: _,
            class,
            priority: _,
            models,
            count,
            gpu,
            memory,
            cpu,
            host_memory,
            placement,
            duration: _,
            max_price,
            regions,
            capability,
            on_recall: _,
            workload: _,
            prediction: _,
        } = spec;
        Shape {
            tenant,
            class: *class,
            placement: *placement,
            count: *count,
            amounts: (*gpu, *memory, *cpu, *host_memory),
            max_price: *max_price,
            models: models.clone(),
            regions: regions.clone(),
            capability: *capability,
        }
    }
}

/// Requests for which a plan found no room: each shape with the shortest need that failed. Room only
/// shrinks while a plan is made.
#[derive(Debug, Default)]
pub(super) struct Hopeless(BTreeMap<Shape, Millis>);

impl Hopeless {
    pub(super) fn has(&self, shape: &Shape, needed: Millis) -> bool {
        self.0.get(shape).is_some_and(|shortest| needed >= *shortest)
    }

    pub(super) fn add(&mut self, shape: Shape, needed: Millis) {
        let shortest = self.0.entry(shape).or_insert(needed);
        *shortest = needed.min(*shortest);
    }
}
