//! What becomes of the room that moves leave.

use sublet_protocol::requests::Class;

use super::*;
use crate::matching::Limits;
use crate::state::StateView;
use crate::testing::{World, gpu, spec};

/// A plan that has moved a grant of two from the first two GPUs to the next two, after it has passed
/// over `failed`: whether the first two are kept back.
fn are_kept_back(world: &World, failed: Vec<RequestId>) -> bool {
    let view = StateView { state: &world.state, now: world.now };
    let mut problem = Problem::within(view, &Limits::NONE);
    let id = RequestId::new(1);
    let request = &world.state.requests()[&id];
    let mut walk = Walk::default();
    walk.failed = failed;
    let members = |first: u64| (first..first + 2).map(|n| world.member(gpu(n))).collect::<Vec<_>>();
    let only = Site { cluster: gpu(0).cluster, model: crate::testing::model(), node: None };
    let within = Within::Site { only, off: &[], given: None };
    let (_, pick) = pick_within(&problem, &walk.spent, (id, request), within).unwrap();
    let want = want(request, pick.model, pick.total, pick.price);
    let old = seats(&pick);
    assert_eq!(old.iter().map(|seat| seat.slice).collect::<Vec<_>>(), [gpu(0), gpu(1)]);
    let mut granted = Granted::of((id, request), &pick, want, (0, 0));
    for (seat, slice) in granted.seats.iter_mut().zip([gpu(2), gpu(3)]) {
        seat.slice = slice;
    }
    set_taken(&mut problem.nodes, &granted.seats, true);
    walk.groups.push(PlanGroup::Grant { request: id, members: members(2) });
    walk.shifts.add(granted);
    let cluster = only.cluster;
    let moved = Move { granted: 0, cluster, seats: old, members: members(0), want, charges: None };
    walk.settle(&mut problem, Moves(vec![moved]));
    assert!(walk.shifts.has_moved());
    let kept = [gpu(0), gpu(1)].map(|slice| {
        let (_, slot) = slot_mut(&mut problem.nodes, &slice).unwrap();
        slot.is_taken
    });
    assert_eq!(kept[0], kept[1]);
    kept[0]
}

#[test]
fn room_that_is_left_is_kept_back_if_one_that_was_passed_over_could_use_it() {
    let mut world = World::with_nodes(1);
    world.submit("acme", 1, spec(Class::Batch, 2));
    let fits = world.submit("acme", 2, spec(Class::Batch, 6));
    let too_large = world.submit("acme", 3, spec(Class::Batch, 7));
    assert!(!are_kept_back(&world, vec![]), "nobody was passed over");
    assert!(!are_kept_back(&world, vec![too_large]), "six are free");
    assert!(are_kept_back(&world, vec![too_large, fits]));
}
