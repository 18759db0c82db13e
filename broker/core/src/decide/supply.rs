//! What agents say of their nodes: starts, offers, owners that come back, silence.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Isolation, Origin, Part, SliceId};
use sublet_protocol::commands::{Actor, GuestOutcome, ReclaimCause};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, ClusterId, DeviceId, HostHash, LeaseId, NodeId, Token};
use sublet_protocol::leases::EndReason;
use sublet_protocol::offers::{Division, OfferTerms, RescindReason};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::ending::{self, Stop};
use super::{Decision, only_agent, only_leader, only_operator};
use crate::mutation::Mutation;
use crate::partition;
use crate::state::{Node, State};

pub(super) fn register_node(
    state: &State,
    actor: &Actor,
    (cluster, node): (ClusterId, NodeId),
    (boot, host): (Boot, HostHash),
    now: Timestamp,
) -> Decision {
    only_agent(actor, cluster, node)?;
    if !state.clusters.contains_key(&cluster) {
        return Err(Rejection::ClusterMissing);
    }
    if let Some(known) = state.nodes.get(&(cluster, node)) {
        if host != known.host {
            return fence(state, (cluster, node), known, host, now);
        }
        if boot < known.boot {
            return Err(Rejection::BootOld);
        }
        if boot == known.boot {
            return Ok(Vec::new());
        }
    }
    // A newer start has stopped every guest of the earlier one and verified its slices (LA3, LE1).
    let mut events = vacate(state, cluster, node, RescindReason::NewBoot, now);
    events.push(Event::NodeRegistered { cluster, node, boot, host });
    Ok(events)
}

/// Another machine claims the node's id (LF3): which one is right cannot be seen from here, so nothing
/// is taken from either, and what runs there must go. Journalled once.
fn fence(
    state: &State,
    (cluster, node): (ClusterId, NodeId),
    known: &Node,
    other: HostHash,
    now: Timestamp,
) -> Decision {
    if known.is_fenced {
        return Err(Rejection::HostConflict);
    }
    let reason = RescindReason::HostConflict;
    let mut events: Vec<Event> = offers_on(state, cluster, node)
        .map(|(slice, generation)| Event::OfferRescinded { slice, generation, reason })
        .collect();
    let leases: BTreeSet<LeaseId> = state.leases_on(cluster, node).map(|(id, _)| id).collect();
    events.extend(
        leases
            .iter()
            .filter_map(|id| ending::begin(*id, &state.leases[id], EndReason::Revoked, now)),
    );
    events.push(Event::NodeFenced { cluster, node, other });
    Ok(events)
}

/// The node's machine is gone, or was never the right one: its id is free again.
///
/// Only when nobody could be harmed: its agent is not heard, or is one of two that claim the id, and
/// every lease there has ended.
pub(super) fn remove_node(
    state: &State,
    actor: &Actor,
    (cluster, node): (ClusterId, NodeId),
) -> Decision {
    only_operator(actor)?;
    let known = state.nodes.get(&(cluster, node)).ok_or(Rejection::NodeMissing)?;
    if !known.is_silent && !known.is_fenced {
        return Err(Rejection::NodeHeard);
    }
    if state.leases_on(cluster, node).next().is_some() {
        return Err(Rejection::NodeInUse);
    }
    let reason = RescindReason::AgentLost;
    let mut events: Vec<Event> = offers_on(state, cluster, node)
        .map(|(slice, generation)| Event::OfferRescinded { slice, generation, reason })
        .collect();
    events.push(Event::NodeRemoved { cluster, node });
    Ok(events)
}

/// Every offer of the node ends, and every guest on it is gone.
fn vacate(
    state: &State,
    cluster: ClusterId,
    node: NodeId,
    reason: RescindReason,
    now: Timestamp,
) -> Vec<Event> {
    let mut events: Vec<Event> = offers_on(state, cluster, node)
        .map(|(slice, generation)| Event::OfferRescinded { slice, generation, reason })
        .collect();
    if reason == RescindReason::NewBoot && state.leaves_out(Mutation::NoVacancy) {
        return events;
    }
    let mut gone: BTreeMap<LeaseId, Vec<SliceId>> = BTreeMap::new();
    for (lease, slice) in state.leases_on(cluster, node) {
        gone.entry(lease).or_default().push(slice);
    }
    for (id, slices) in gone {
        let used = state.leases[&id].used;
        let stop = |slice| Stop { slice, used, outcome: GuestOutcome::Stopped };
        let stops: Vec<Stop> = slices.into_iter().map(stop).collect();
        events.extend(ending::stop(state, id, &stops, EndReason::AgentLost, now));
    }
    events
}

fn offers_on(
    state: &State,
    cluster: ClusterId,
    node: NodeId,
) -> impl Iterator<Item = (SliceId, u64)> + '_ {
    let first = SliceId { cluster, node, device: DeviceId::new(0), part: Part::Whole };
    let here = state.offers.range(first..);
    let here = here.take_while(move |(s, _)| s.cluster == cluster && s.node == node);
    here.map(|(slice, offer)| (*slice, offer.terms.generation))
}

/// The node of an agent's message, if its start is the newest.
fn current_node(state: &State, slice: SliceId, boot: Boot) -> Result<&Node, Rejection> {
    let node = state.nodes.get(&(slice.cluster, slice.node)).ok_or(Rejection::NodeMissing)?;
    if boot == node.boot || state.leaves_out(Mutation::AnyBoot) {
        Ok(node)
    } else {
        Err(Rejection::BootOld)
    }
}

pub(super) fn offer_capacity(
    state: &State,
    actor: &Actor,
    offer: &OfferTerms,
    now: Timestamp,
) -> Decision {
    let slice = offer.slice;
    only_agent(actor, slice.cluster, slice.node)?;
    let cluster = state.clusters.get(&slice.cluster).ok_or(Rejection::ClusterMissing)?;
    let node = current_node(state, slice, offer.boot)?;
    if node.is_fenced {
        return Err(Rejection::HostConflict);
    }
    check_numbers(offer)?;
    let known = node.generations.get(&(slice.device, slice.part)).copied().unwrap_or(0);
    if offer.generation <= known {
        // The same offer again is not an error: messages are repeated until they are answered.
        let is_same = state.offers.get(&slice).is_some_and(|open| open.terms == *offer);
        return if is_same { Ok(Vec::new()) } else { Err(Rejection::OfferOld) };
    }
    let is_new_device = !cluster.devices.contains_key(&slice.device);
    let devices = u32::try_from(cluster.devices.len()).unwrap_or(u32::MAX);
    if is_new_device && devices >= cluster.devices_max {
        return Err(Rejection::OffersExhausted);
    }
    let is_new_offer = !state.offers.contains_key(&slice);
    if is_new_offer && cluster.open_offers >= state.policy.offers_per_cluster {
        return Err(Rejection::OffersExhausted);
    }
    let moved_from = cluster.devices.get(&slice.device).filter(|node| **node != slice.node);
    if moved_from.is_some_and(|from| is_in_use(state, SliceId { node: *from, ..slice })) {
        return Err(Rejection::OfferOverlaps);
    }
    check_device(state, offer)?;
    let ttl = offer.ttl.min(state.policy.offer_ttl);
    Ok(vec![Event::CapacityOffered { offer: *offer, expires_at: now.after(ttl) }])
}

fn check_numbers(offer: &OfferTerms) -> Result<(), Rejection> {
    let (capacity, idle) = (&offer.capacity, &offer.idle_for);
    let is_some = capacity.gpu > GpuMilli::ZERO && offer.ttl > Seconds::ZERO;
    let is_whole = offer.slice.part == Part::Whole;
    let fits_part = match (capacity.isolation, offer.slice.part) {
        (Isolation::Exclusive, part) => part == Part::Whole,
        (Isolation::Mig, part) => matches!(part, Part::Mig { .. }),
        (Isolation::Mps | Isolation::TimeSlice, part) => matches!(part, Part::Share { .. }),
    };
    let fits_gpu =
        capacity.gpu <= GpuMilli::DEVICE && (!is_whole || capacity.gpu == GpuMilli::DEVICE);
    let is_sorted = idle.p10 <= idle.p50 && idle.p50 <= idle.p90;
    let has_memory = capacity.memory <= sublet_protocol::requests::MEMORY_MAX;
    // Only a whole GPU can be divided, and nothing holds more than the GPU it is of.
    let is_divided = offer.division != Division::NONE;
    let is_sound = partition::is_legal(&capacity.hardware, offer.slice.part)
        && (is_whole || !is_divided)
        && capacity.hardware.memory_total.is_none_or(|total| capacity.memory <= total);
    match is_some && fits_part && fits_gpu && is_sorted && has_memory && is_sound {
        true => Ok(()),
        false => Err(Rejection::OfferInvalid),
    }
}

/// Whether anything on this device of this node is offered or leased.
fn is_in_use(state: &State, slice: SliceId) -> bool {
    let first = SliceId { part: Part::Whole, ..slice };
    let same = |other: &SliceId| {
        (other.cluster, other.node, other.device) == (slice.cluster, slice.node, slice.device)
    };
    let offered = state.offers.range(first..).next().is_some_and(|(other, _)| same(other));
    offered || state.leased.range(first..).next().is_some_and(|(other, _)| same(other))
}

/// No overlap with what is offered or leased on the device, and one isolation on it. A GPU that may be
/// divided is offered whole also while parts of it are leased that were carved out of it.
fn check_device(state: &State, offer: &OfferTerms) -> Result<(), Rejection> {
    let (slice, isolation) = (offer.slice, offer.capacity.isolation);
    let first = SliceId { part: Part::Whole, ..slice };
    let same = |other: &SliceId| {
        (other.cluster, other.node, other.device) == (slice.cluster, slice.node, slice.device)
    };
    let overlaps = |other: Part| partition::overlap(&offer.capacity.hardware, other, slice.part);
    for (other, id) in state.leased.range(first..).take_while(|(other, _)| same(other)) {
        let members = &state.leases[id].terms.members;
        let member = members.iter().find(|member| member.slice == *other);
        let stands = member.is_some_and(|member| match member.origin {
            Origin::Carved => offer.division.allows(member.capacity.isolation),
            Origin::Offered => !overlaps(other.part) && member.capacity.isolation == isolation,
        });
        if !stands && !state.leaves_out(Mutation::OfferOfLeased) {
            return Err(Rejection::SliceLeased);
        }
    }
    let offered = state.offers.range(first..).take_while(|(other, _)| same(other));
    for (other, open) in offered.filter(|(other, _)| **other != slice) {
        if overlaps(other.part) || open.terms.capacity.isolation != isolation {
            return Err(Rejection::OfferOverlaps);
        }
    }
    Ok(())
}

pub(super) fn rescind_offer(
    state: &State,
    actor: &Actor,
    slice: SliceId,
    (generation, boot): (u64, Boot),
    reason: RescindReason,
) -> Decision {
    only_agent(actor, slice.cluster, slice.node)?;
    let node = current_node(state, slice, boot)?;
    let known = node.generations.get(&(slice.device, slice.part)).copied().unwrap_or(0);
    let is_open = state.offers.contains_key(&slice);
    // A rescind that overtook its offer is kept, so that the offer is refused when it arrives.
    if generation > known || (is_open && generation == known) {
        return Ok(vec![Event::OfferRescinded { slice, generation, reason }]);
    }
    if generation < known { Err(Rejection::OfferOld) } else { Ok(Vec::new()) }
}

pub(super) fn reclaim_slice(
    state: &State,
    actor: &Actor,
    slice: SliceId,
    (token, boot): (Token, Boot),
    cause: ReclaimCause,
    now: Timestamp,
) -> Decision {
    only_agent(actor, slice.cluster, slice.node)?;
    current_node(state, slice, boot)?;
    let id = *state.leased.get(&slice).ok_or(Rejection::LeaseMissing)?;
    let lease = &state.leases[&id];
    if lease.terms.token != token {
        return Err(Rejection::TokenMismatch);
    }
    let mut events: Vec<Event> =
        ending::begin(id, lease, cause.end_reason(), now).into_iter().collect();
    if lease.terms.members.iter().any(|m| m.slice == slice && m.origin == Origin::Carved) {
        events.extend(whole_device_goes(state, (id, slice), cause, now));
    }
    Ok(events)
}

/// The owner takes back a GPU, not a part of it: with one carved part go the others, and nothing more
/// is carved out until the agent offers it again.
fn whole_device_goes(
    state: &State,
    (id, slice): (LeaseId, SliceId),
    cause: ReclaimCause,
    now: Timestamp,
) -> Vec<Event> {
    let whole = SliceId { part: Part::Whole, ..slice };
    let here = state.leased.range(whole..);
    let here = here.take_while(|(other, _)| SliceId { part: Part::Whole, ..**other } == whole);
    let others: BTreeSet<LeaseId> = here.map(|(_, lease)| *lease).filter(|l| *l != id).collect();
    let mut events: Vec<Event> = others
        .iter()
        .filter_map(|lease| ending::begin(*lease, &state.leases[lease], cause.end_reason(), now))
        .collect();
    if let Some(open) = state.offers.get(&whole) {
        let reason = match cause {
            ReclaimCause::OwnerArrived => RescindReason::Owner,
            ReclaimCause::ForeignUse => RescindReason::ForeignUse,
            ReclaimCause::DeviceFault => RescindReason::DeviceFault,
        };
        let generation = open.terms.generation;
        events.push(Event::OfferRescinded { slice: whole, generation, reason });
    }
    events
}

pub(super) fn declare_silent(
    state: &State,
    actor: &Actor,
    (cluster, node): (ClusterId, NodeId),
    boot: Boot,
    now: Timestamp,
) -> Decision {
    only_leader(actor)?;
    let known = state.nodes.get(&(cluster, node)).ok_or(Rejection::NodeMissing)?;
    if boot != known.boot {
        return Err(Rejection::BootOld);
    }
    let mut events = vacate(state, cluster, node, RescindReason::AgentLost, now);
    if !known.is_silent {
        events.push(Event::NodeSilenced { cluster, node, boot });
    }
    Ok(events)
}
