//! Victims for a request that finds no room: only leases of a lower tier past their protection, the
//! fewest that suffice, lowest tier and newest first. No victim is picked that is not needed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{PlanGroup, PlanMember};
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, NodeId, RequestId};
use sublet_protocol::requests::Placement;
use sublet_protocol::units::GpuMilli;

use super::place::{fitting, price};
use super::problem::Problem;
use super::solve::{Spent, want};
use crate::fit::{self, Candidate};
use crate::mutation::Mutation;
use crate::quota::Want;
use crate::state::Request;

/// Slices that can serve one request together: alike, and as close as asked.
type Site = (ClusterId, GpuModel, GpuMilli, Option<NodeId>, Option<u16>);

fn site(placement: Placement, candidate: &Candidate) -> Site {
    let (slice, capacity) = (&candidate.slice, &candidate.capacity);
    let node = match placement {
        Placement::Cluster => None,
        Placement::Node | Placement::Island => Some(slice.node),
    };
    let island = match placement {
        Placement::Cluster | Placement::Node => None,
        Placement::Island => Some(capacity.island),
    };
    (slice.cluster, capacity.model, capacity.gpu, node, island)
}

/// What a site could give: free slots, and victims with the slices each frees.
#[derive(Default)]
struct Room {
    free: Vec<PlanMember>,
    victims: Vec<(LeaseId, Vec<SliceId>)>,
}

/// Who ends, what of theirs is used, and which free slots are used besides.
struct Choice {
    victims: Vec<LeaseId>,
    freed: Vec<SliceId>,
    members: Vec<PlanMember>,
}

pub(super) fn preempt(
    problem: &mut Problem<'_>,
    spent: &mut Spent,
    id: RequestId,
    request: &Request,
) -> Option<PlanGroup> {
    let state = problem.view.state;
    let count = usize::try_from(request.spec.count).ok()?;
    let mut best: Option<(Want, Choice)> = None;
    for (site, room) in rooms(problem, spent, id, request) {
        let (cluster, model, gpu, _, _) = site;
        let total = gpu.checked_mul(u64::from(request.spec.count))?;
        let Some(price) = price(state, request, cluster, model) else { continue };
        let want = want(request, model, total, price);
        if spent.obstacle(problem.view, &want).is_some() {
            continue;
        }
        let Some(choice) = fewest(room, count) else { continue };
        // Few victims, and among equally few those of the lowest tier (INV-10).
        let harm = |choice: &Choice| {
            let is_blind = state.leaves_out(Mutation::FirstVictims);
            let seen = choice.victims.iter().filter(|_| !is_blind);
            let highest = seen.map(|victim| state.leases[victim].terms.tier());
            (choice.victims.len(), highest.max())
        };
        if best.as_ref().is_none_or(|(_, known)| harm(&choice) < harm(known)) {
            best = Some((want, choice));
        }
    }
    let (want, Choice { victims, freed, members }) = best?;
    spent.doomed.extend(victims.iter().copied());
    // What is freed is not held yet, but two pledges must not count on the same quota.
    spent.give(state, &want);
    for slot in problem.nodes.iter_mut().flat_map(|node| &mut node.slots) {
        slot.is_taken |= members.iter().any(|member| member.slice == slot.candidate.slice);
    }
    Some(PlanGroup::Preempt { request: id, victims, freed, members })
}

/// What each site could give, sites in order.
fn rooms(
    problem: &Problem<'_>,
    spent: &Spent,
    id: RequestId,
    request: &Request,
) -> BTreeMap<Site, Room> {
    let (state, now) = (problem.view.state, problem.view.now);
    let (spec, tier) = (&request.spec, request.spec.class.tier());
    let mut rooms: BTreeMap<Site, Room> = BTreeMap::new();
    let running = state.leases.iter().filter(|(lease, _)| !spent.doomed.contains(lease));
    let mut victims: Vec<_> =
        running.filter(|(lease, _)| fit::is_preemptible(state, **lease, tier, now)).collect();
    victims.sort_by_key(|(lease, entry)| (entry.terms.tier(), Reverse(entry.granted_at), **lease));
    for (lease, _) in victims {
        let mut freed: BTreeMap<Site, Vec<SliceId>> = BTreeMap::new();
        for candidate in fit::freed_by(state, *lease, spec, now) {
            freed.entry(site(spec.placement, &candidate)).or_default().push(candidate.slice);
        }
        for (site, slices) in freed {
            rooms.entry(site).or_default().victims.push((*lease, slices));
        }
    }
    if rooms.is_empty() {
        return rooms;
    }
    for (node, seats) in fitting(problem, id, request).into_values().flatten() {
        for seat in seats {
            let generation = problem.nodes[node].slots[seat.slot].generation;
            let member = PlanMember { slice: seat.candidate.slice, generation };
            if let Some(room) = rooms.get_mut(&site(spec.placement, &seat.candidate)) {
                room.free.push(member);
            }
        }
    }
    rooms
}

/// The first victims that suffice together with the free slots, less those that are not needed.
fn fewest(room: Room, count: usize) -> Option<Choice> {
    let mut members = room.free;
    members.truncate(count);
    let mut missing = count.checked_sub(members.len()).filter(|missing| *missing > 0)?;
    let mut picked: Vec<(LeaseId, Vec<SliceId>)> = Vec::new();
    for (lease, slices) in room.victims {
        missing = missing.saturating_sub(slices.len());
        picked.push((lease, slices));
        if missing == 0 {
            break;
        }
    }
    if missing > 0 {
        return None;
    }
    let sum =
        |picked: &[(LeaseId, Vec<SliceId>)]| picked.iter().map(|(_, s)| s.len()).sum::<usize>();
    // Give back in reverse: the last one completed the set, earlier ones may be superfluous.
    for at in (0..picked.len()).rev() {
        if sum(&picked) - picked[at].1.len() + members.len() >= count {
            picked.remove(at);
        }
    }
    // A victim goes whole, so all it frees is used before free slots are.
    let mut freed: Vec<SliceId> = picked.iter().flat_map(|(_, slices)| slices).copied().collect();
    freed.truncate(count);
    members.truncate(count - freed.len());
    Some(Choice { victims: picked.into_iter().map(|(lease, _)| lease).collect(), freed, members })
}
