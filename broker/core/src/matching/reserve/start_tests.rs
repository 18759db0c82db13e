//! First starts against a look at every slice of every kind.

use std::collections::BTreeMap;

use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{NodeId, RequestId};
use sublet_protocol::requests::Placement;
use sublet_protocol::units::Timestamp;

use super::{Hours, Wish, choose};
use crate::fit;
use crate::fit::price;
use crate::matching::openings::{Ends, Opening, Trust, first_together, trusts};
use crate::matching::reserve::{Claim, Reservations, Start};
use crate::matching::solve::Spent;
use crate::matching::supply::Supply;
use crate::state::{Request, StateView};

type Room = Option<(NodeId, Option<u16>)>;

/// The earliest start, the cheapest among equally early ones, then the first in order: each slice is
/// looked at, and each room.
fn by_look(
    own: &Reservations<'_>,
    supply: &Supply,
    (id, request): (RequestId, &Request),
    (trust, hours): (Trust, Hours),
) -> Option<Start> {
    let (view, spec, spent) = (own.view, &request.spec, Spent::default());
    let claim = Claim::of(view, id, spec);
    let count = usize::try_from(spec.count).unwrap();
    let after = (trust == Trust::Renewed).then_some(view.now);
    let mut best: Option<((Timestamp, i128), Start)> = None;
    for (kind, places) in supply.kinds() {
        let (cluster, model, gpu) = *kind;
        let is_allowed = spec.models.is_empty() || spec.models.contains(&model);
        let Some(price) = price(view.state, request, cluster, model).filter(|_| is_allowed) else {
            continue;
        };
        let total = gpu.checked_mul(u64::from(spec.count)).unwrap();
        let earliest = own.quota_from(Some(supply), &spent, (id, request), model, total);
        let Some(earliest) = earliest.map(|at| at.max(spec.not_before())) else { continue };
        let fits = |one: &u32| {
            let capacity = supply.capacity_of(*one).unwrap();
            fit::fits_kind(view.state, spec, cluster, capacity)
        };
        let fitting = places.capacities.keys().copied().filter(fits).collect();
        let wish = Wish { spec, claim, cluster, fitting, earliest, trust, hours, after, count };
        let mut rooms: BTreeMap<Room, Vec<(Opening, SliceId)>> = BTreeMap::new();
        for (node, spots) in &places.nodes {
            for (spot, opening) in own.openings_on(*node, spots.iter(), &wish) {
                let island = supply.capacity_of(spot.capacity).unwrap().island;
                let room = match spec.placement {
                    Placement::Cluster => None,
                    Placement::Node => Some((*node, None)),
                    Placement::Island => Some((*node, Some(island))),
                };
                rooms.entry(room).or_default().push((opening, spot.slice(cluster, *node)));
            }
        }
        let cost = i128::from(price.per_gpu_hour.get()) * i128::from(total.get());
        for openings in rooms.into_values() {
            let spans: Vec<Opening> = openings.iter().map(|(opening, _)| *opening).collect();
            let Some(at) = first_together(&spans, count, after) else { continue };
            if best.as_ref().is_none_or(|(known, _)| (at, cost) < *known) {
                let slices = choose(openings, at, count);
                let start = Start { at, not_before: earliest, slices, kind: *kind };
                best = Some(((at, cost), start));
            }
        }
    }
    best.map(|(_, start)| start)
}

/// Checks that for each waiting request the first start is the one of a look at everything; how many
/// have one.
pub(crate) fn starts_are_those_of_a_look_at_everything(view: StateView<'_>) -> usize {
    let own = Reservations::of(view, std::collections::BTreeSet::new(), None);
    let mut found = 0;
    for ends in [Ends::Bought, Ends::Predicted] {
        let supply = Supply::of(view, ends);
        for id in &view.state.waiting {
            let request = &view.state.requests[id];
            for hours in [Hours::Asked, Hours::Any] {
                let known = own.place(&supply, &Spent::default(), (*id, request), hours);
                let last = request.spec.deferral.as_ref().map(|deferral| deferral.start_by);
                let is_asked = |start: &Start| match hours {
                    Hours::Any => true,
                    Hours::Asked => last.is_some_and(|last| start.at <= last),
                };
                let plain = trusts(request.spec.class.tier()).iter().find_map(|trust| {
                    by_look(&own, &supply, (*id, request), (*trust, hours)).filter(is_asked)
                });
                assert_eq!(known, plain, "for {id} by {ends:?} ends in {hours:?} hours");
                found += usize::from(plain.is_some());
            }
        }
    }
    found
}
