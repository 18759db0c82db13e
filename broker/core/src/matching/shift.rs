//! Moves grants of the same plan aside: a request that could stand in several places may have taken
//! the only one that another could use.
//!
//! Nothing that is committed is moved, and nobody who was served before loses by it: whoever moves
//! gets as much elsewhere, for no more money, and in the way of nobody's reservation. Grants move one
//! for the other in chains of at most [`CHAIN_MAX`], the short chains first, and a plan looks at no more than
//! [`LOOKS_MAX`] slots for it.
//!
//! The order stands: a move serves the request whose turn it is. Room that is left where grants were
//! moved away goes to nobody in this plan if one that was passed over could use it; that one comes
//! first in the next.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{PlanGroup, PlanMember};
use sublet_protocol::ids::{ClusterId, GpuModel, RequestId};
use sublet_protocol::requests::{Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, MiB};

use super::place::{Pick, Site, Within, pick_within};
use super::problem::{NodeSlots, Problem, Slot};
use super::score::Rank;
use super::solve::{Walk, want};
use crate::partition::HostUse;
use crate::quota::{Charges, Want};
use crate::state::{Request, RequestStage};

/// Most grants that are moved one for the other.
const CHAIN_MAX: usize = 3;
/// Most slots that one plan looks at to move grants.
const LOOKS_MAX: usize = 200_000;

/// A slice that a grant holds, with what it takes of its node's host.
#[derive(Debug, Clone, Copy)]
struct Seat {
    slice: SliceId,
    cpu: CpuMilli,
    host_memory: MiB,
}

/// A grant of this plan.
#[derive(Debug)]
pub(super) struct Granted {
    request: RequestId,
    /// Its group in the plan.
    group: usize,
    /// Its place among the steps of what is given away.
    step: usize,
    want: Want,
    cluster: ClusterId,
    seats: Vec<Seat>,
    /// Whether it stands on whole offers that were there for others, too.
    is_movable: bool,
}

impl Granted {
    pub(super) fn of(
        (id, request): (RequestId, &Request),
        pick: &Pick,
        want: Want,
        (group, step): (usize, usize),
    ) -> Granted {
        let is_pledged = matches!(request.stage, RequestStage::Pledged { .. });
        Granted {
            request: id,
            group,
            step,
            want,
            cluster: pick.cluster,
            seats: seats(pick),
            is_movable: pick.is_whole() && !is_pledged,
        }
    }

    fn stands_on(&self, site: &Site) -> bool {
        let (cluster, model) = (self.cluster, self.want.model);
        self.seats.iter().any(|seat| site.holds((cluster, seat.slice.node), model))
    }
}

fn seats(pick: &Pick) -> Vec<Seat> {
    let seats = pick.seats().map(|given| Seat {
        slice: given.slice,
        cpu: given.capacity.cpu,
        host_memory: given.capacity.host_memory,
    });
    seats.collect()
}

/// A grant that was moved, and how it stood before.
struct Move {
    granted: usize,
    cluster: ClusterId,
    seats: Vec<Seat>,
    members: Vec<PlanMember>,
    want: Want,
    charges: Option<Charges>,
}

/// The moves that made room for a request.
#[derive(Default)]
pub(super) struct Moves(Vec<Move>);

/// What a plan knows of the grants that it may move.
#[derive(Debug, Default)]
pub(super) struct Shifts {
    granted: Vec<Granted>,
    /// Slots looked at.
    looks: usize,
    /// How often a request got room.
    moves: usize,
    /// Grants that could not be moved off a site by so long a chain, and how many there were then.
    stuck: BTreeMap<(usize, Site, usize), usize>,
}

impl Shifts {
    pub(super) fn add(&mut self, granted: Granted) {
        self.granted.push(granted);
    }

    pub(super) const fn moves(&self) -> usize {
        self.moves
    }

    pub(super) const fn has_moved(&self) -> bool {
        self.moves > 0
    }

    const fn is_spent(&self) -> bool {
        self.looks >= LOOKS_MAX
    }

    /// Whether the grant is known to be stuck. Until something is moved, room only shrinks; a chain
    /// may become possible by what is granted.
    fn is_stuck(&self, at: usize, site: Site, chain: usize) -> bool {
        let known = self.stuck.get(&(at, site, chain));
        known.is_some_and(|count| chain == 0 || *count == self.granted.len())
    }
}

/// Free slots by cluster and model: never fewer than the seats there.
type Tally = BTreeMap<(ClusterId, GpuModel), usize>;

/// What a search knows while grants are moved.
struct Search {
    tally: Tally,
    /// Sites that are being cleared.
    cleared: Vec<Site>,
    trail: Vec<Move>,
    /// Grants that are being moved.
    moving: Vec<usize>,
}

impl Search {
    fn of(problem: &Problem<'_>) -> Search {
        let tally = tally(&problem.nodes);
        Search { tally, cleared: Vec::new(), trail: Vec::new(), moving: Vec::new() }
    }
}

fn count_of(spec: &RequestSpec) -> usize {
    usize::try_from(spec.count).unwrap_or(usize::MAX)
}

fn is_allowed(spec: &RequestSpec, model: GpuModel) -> bool {
    spec.models.is_empty() || spec.models.contains(&model)
}

impl Walk {
    /// Moves grants of this plan aside until the request fits; where, if that can be done. Whoever
    /// takes the room [settles](Walk::settle) the moves afterwards.
    pub(super) fn make_room(
        &mut self,
        problem: &mut Problem<'_>,
        id: RequestId,
        request: &Request,
    ) -> Option<(Pick, Moves)> {
        let movable =
            |granted: &Granted| granted.is_movable && is_allowed(&request.spec, granted.want.model);
        if self.shifts.is_spent() || !self.shifts.granted.iter().any(movable) {
            return None;
        }
        let mut search = Search::of(problem);
        // Short chains first: they disturb the least.
        let found = (0..CHAIN_MAX)
            .find_map(|chain| self.clear(problem, (id, request), &mut search, chain))?;
        Some((found, Moves(search.trail)))
    }

    /// Moves grants off one site after another until the request fits there. If it does not, all
    /// stand where they stood.
    fn clear(
        &mut self,
        problem: &mut Problem<'_>,
        (id, request): (RequestId, &Request),
        search: &mut Search,
        chain: usize,
    ) -> Option<Pick> {
        for site in self.sites(request, search) {
            let mark = search.trail.len();
            for at in (0..self.shifts.granted.len()).rev() {
                let granted = &self.shifts.granted[at];
                let is_free = granted.is_movable && !search.moving.contains(&at);
                if !is_free || !granted.stands_on(&site) {
                    continue;
                }
                if self.shifts.is_spent() {
                    break;
                }
                search.cleared.push(site);
                let is_moved = self.move_aside(problem, at, search, chain);
                search.cleared.pop();
                if !is_moved {
                    continue;
                }
                let within = Within::Site { only: site, off: &search.cleared, given: None };
                if let Some((_, found)) = self.look(problem, (id, request), within, search) {
                    return Some(found);
                }
            }
            self.undo(problem, search, mark);
        }
        None
    }

    /// Sites where the request could stand if grants were moved off them.
    fn sites(&self, request: &Request, search: &Search) -> Vec<Site> {
        let spec = &request.spec;
        let mut room: BTreeMap<Site, usize> = BTreeMap::new();
        for (at, granted) in self.shifts.granted.iter().enumerate() {
            let is_free = granted.is_movable && !search.moving.contains(&at);
            if !is_free || !is_allowed(spec, granted.want.model) {
                continue;
            }
            for seat in &granted.seats {
                let (cluster, model) = (granted.cluster, granted.want.model);
                let node = match spec.placement {
                    Placement::Cluster => None,
                    Placement::Node | Placement::Island => Some(seat.slice.node),
                };
                *room.entry(Site { cluster, model, node }).or_default() += 1;
            }
        }
        let is_cleared = |site: &Site| {
            search.cleared.iter().any(|other| {
                let same = (other.cluster, other.model) == (site.cluster, site.model);
                same && (other.node.is_none() || other.node == site.node)
            })
        };
        room.retain(|site, movable| {
            let free = search.tally.get(&(site.cluster, site.model)).copied().unwrap_or(0);
            !is_cleared(site) && free + *movable >= count_of(spec)
        });
        room.into_keys().collect()
    }

    /// The best seats for the request there, if there are any.
    fn look(
        &mut self,
        problem: &Problem<'_>,
        (id, request): (RequestId, &Request),
        within: Within<'_>,
        search: &Search,
    ) -> Option<(Rank, Pick)> {
        let Within::Site { only, .. } = within else { return None };
        let free = search.tally.get(&(only.cluster, only.model)).copied().unwrap_or(0);
        if free < count_of(&request.spec) {
            return None;
        }
        let nodes = &problem.nodes[within.nodes(&problem.nodes)];
        let slots: usize = nodes.iter().map(|node| node.slots.len()).sum();
        self.shifts.looks = self.shifts.looks.saturating_add(slots);
        pick_within(problem, &self.spent, (id, request), within)
    }

    /// Gives a grant as much at another site, if there is one with room or that can be cleared.
    fn move_aside(
        &mut self,
        problem: &mut Problem<'_>,
        at: usize,
        search: &mut Search,
        chain: usize,
    ) -> bool {
        let Some(site) = search.cleared.last().copied() else { return false };
        let is_first = search.cleared.len() == 1 && search.trail.is_empty();
        if self.shifts.is_stuck(at, site, chain) {
            return false;
        }
        let id = self.shifts.granted[at].request;
        let Some(request) = problem.view.state.requests.get(&id) else { return false };
        let mark = search.trail.len();
        self.release(problem, at, search);
        search.moving.push(at);
        let mut found = self.elsewhere(problem, (id, request), at, search);
        if found.is_none() && chain > 0 {
            found = self.clear(problem, (id, request), search, chain - 1);
        }
        search.moving.pop();
        match found.filter(Pick::is_whole) {
            Some(found) => {
                self.put(problem, at, (request, found), search);
                true
            }
            None => {
                self.undo(problem, search, mark);
                self.retake(problem, at, search);
                if is_first && !self.shifts.is_spent() {
                    let count = self.shifts.granted.len();
                    self.shifts.stuck.insert((at, site, chain), count);
                }
                false
            }
        }
    }

    /// The best seats for a grant off the sites that are being cleared.
    fn elsewhere(
        &mut self,
        problem: &Problem<'_>,
        (id, request): (RequestId, &Request),
        at: usize,
        search: &Search,
    ) -> Option<Pick> {
        let want = self.shifts.granted[at].want;
        let places: Vec<(ClusterId, GpuModel)> = search.tally.keys().copied().collect();
        let mut best: Option<(Rank, Pick)> = None;
        for (cluster, model) in
            places.into_iter().filter(|place| is_allowed(&request.spec, place.1))
        {
            let only = Site { cluster, model, node: None };
            if search.cleared.contains(&only) {
                continue;
            }
            let within = Within::Site { only, off: &search.cleared, given: Some(&want) };
            let found = self.look(problem, (id, request), within, search);
            if let Some((rank, pick)) = found
                && best.as_ref().is_none_or(|(known, _)| rank < *known)
            {
                best = Some((rank, pick));
            }
        }
        best.map(|(_, pick)| pick)
    }

    /// Lets go of a grant's seats.
    fn release(&self, problem: &mut Problem<'_>, at: usize, search: &mut Search) {
        let Granted { cluster, want, seats, .. } = &self.shifts.granted[at];
        set_taken(&mut problem.nodes, seats, false);
        *search.tally.entry((*cluster, want.model)).or_default() += seats.len();
    }

    /// Takes a grant's seats again.
    fn retake(&self, problem: &mut Problem<'_>, at: usize, search: &mut Search) {
        let Granted { cluster, want, seats, .. } = &self.shifts.granted[at];
        set_taken(&mut problem.nodes, seats, true);
        let free = search.tally.entry((*cluster, want.model)).or_default();
        *free = free.saturating_sub(seats.len());
    }

    /// Puts a grant that has let go of its seats on others.
    fn put(
        &mut self,
        problem: &mut Problem<'_>,
        at: usize,
        (request, found): (&Request, Pick),
        search: &mut Search,
    ) {
        let granted = &mut self.shifts.granted[at];
        let wanted = want(request, found.model, found.total, found.price);
        let changes = wanted.model != granted.want.model || wanted.price != granted.want.price;
        let charges = changes.then(|| self.spent.replace(problem.view.state, granted.step, wanted));
        let cluster = std::mem::replace(&mut granted.cluster, found.cluster);
        let seats = std::mem::replace(&mut granted.seats, seats(&found));
        let want = std::mem::replace(&mut granted.want, wanted);
        let free = search.tally.entry((found.cluster, found.model)).or_default();
        *free = free.saturating_sub(granted.seats.len());
        let mut members = found.take(&mut problem.nodes);
        if let Some(PlanGroup::Grant { members: own, .. }) = self.groups.get_mut(granted.group) {
            std::mem::swap(own, &mut members);
        }
        search.trail.push(Move { granted: at, cluster, seats, members, want, charges });
    }

    /// Moves back, the last one first, until only `mark` are left.
    fn undo(&mut self, problem: &mut Problem<'_>, search: &mut Search, mark: usize) {
        for moved in search.trail.split_off(mark.min(search.trail.len())).into_iter().rev() {
            let Move { granted: at, cluster, seats, members, want, charges } = moved;
            self.release(problem, at, search);
            let granted = &mut self.shifts.granted[at];
            (granted.cluster, granted.seats, granted.want) = (cluster, seats, want);
            if let Some(charges) = charges {
                self.spent.put_back(granted.step, want, charges);
            }
            if let Some(PlanGroup::Grant { members: own, .. }) = self.groups.get_mut(granted.group)
            {
                *own = members;
            }
            self.retake(problem, at, search);
        }
    }

    /// What was moved stays so. Room that is left where it stood is kept back if one that was passed
    /// over could use it.
    pub(super) fn settle(&mut self, problem: &mut Problem<'_>, Moves(trail): Moves) {
        if trail.is_empty() {
            return;
        }
        self.shifts.moves += 1;
        self.shifts.stuck.clear();
        let mut left: BTreeMap<SliceId, Site> = BTreeMap::new();
        for Move { cluster, members, seats, want, .. } in &trail {
            problem.reservations.vacated(members);
            let site = Site { cluster: *cluster, model: want.model, node: None };
            left.extend(seats.iter().map(|seat| (seat.slice, site)));
        }
        let moved: BTreeSet<usize> = trail.iter().map(|moved| moved.granted).collect();
        for at in moved {
            let Granted { request: id, group, .. } = self.shifts.granted[at];
            if let Some(PlanGroup::Grant { members, .. }) = self.groups.get(group)
                && let Some(request) = problem.view.state.requests.get(&id)
            {
                problem.reservations.granted(id, &request.spec, members);
            }
        }
        let nodes = &mut problem.nodes;
        left.retain(|slice, _| slot_mut(nodes, slice).is_some_and(|(_, slot)| !slot.is_taken));
        let sites: BTreeSet<Site> = left.values().copied().collect();
        if self.is_wanted(problem, &sites) {
            for slice in left.keys() {
                if let Some((_, slot)) = slot_mut(&mut problem.nodes, slice) {
                    slot.is_taken = true;
                }
            }
        }
    }

    /// Whether one that this plan has passed over could stand on one of these sites now.
    fn is_wanted(&mut self, problem: &Problem<'_>, sites: &BTreeSet<Site>) -> bool {
        if sites.is_empty() {
            return false;
        }
        let search = Search::of(problem);
        for id in self.failed.clone() {
            let Some(request) = problem.view.state.requests.get(&id) else { continue };
            for site in sites.iter().filter(|site| is_allowed(&request.spec, site.model)) {
                let within = Within::Site { only: *site, off: &[], given: None };
                if self.shifts.is_spent()
                    || self.look(problem, (id, request), within, &search).is_some()
                {
                    return true;
                }
            }
        }
        false
    }
}

fn tally(nodes: &[NodeSlots]) -> Tally {
    let mut tally = Tally::new();
    for node in nodes {
        for slot in node.slots.iter().filter(|slot| !slot.is_taken) {
            *tally.entry((node.cluster, slot.candidate.capacity.model)).or_default() += 1;
        }
    }
    tally
}

fn slot_mut<'p>(
    nodes: &'p mut [NodeSlots],
    slice: &SliceId,
) -> Option<(&'p mut HostUse, &'p mut Slot)> {
    let name = (slice.cluster, slice.node);
    let at = nodes.binary_search_by_key(&name, |node| (node.cluster, node.node)).ok()?;
    let NodeSlots { slots, host, .. } = nodes.get_mut(at)?;
    let slot = slots.iter_mut().find(|slot| slot.candidate.slice == *slice)?;
    Some((host, slot))
}

fn set_taken(nodes: &mut [NodeSlots], seats: &[Seat], is_taken: bool) {
    for seat in seats {
        let Some((host, slot)) = slot_mut(nodes, &seat.slice) else { continue };
        slot.is_taken = is_taken;
        if is_taken {
            host.add(seat.cpu, seat.host_memory);
        } else {
            host.cpu = host.cpu.saturating_sub(seat.cpu);
            host.memory = host.memory.saturating_sub(seat.host_memory);
        }
    }
}

#[cfg(test)]
#[path = "shift_tests.rs"]
mod tests;
