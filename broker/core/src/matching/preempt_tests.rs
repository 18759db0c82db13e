//! The choice of victims against brute force.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, DeviceId, LeaseId, NodeId, RequestId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::Timestamp;

use super::{
    Choice, Hindrance, Lent, Problem, Room, Rooms, Site, Spent, Victim, after_ends_of, choose,
    fewest, give_back, is_within_budget, price, site, want,
};
use crate::fit;
use crate::matching::Limits;
use crate::matching::endable::{Sites, Victims};
use crate::preemption::{Order, Place};
use crate::reclaim::{self, Claimant};
use crate::state::{Request, StateView};

/// Numbers that look random, the same each time (Marsaglia's xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn slice(number: u64) -> SliceId {
    let (cluster, node) = (ClusterId::new("c").unwrap(), NodeId::new("n").unwrap());
    SliceId { cluster, node, device: DeviceId::new(u128::from(number)), part: Part::Whole }
}

/// A site with up to four free slots and up to six victims of one to four slices, in order.
fn any_site(numbers: &mut Numbers) -> (Room, Vec<Victim>) {
    let free = numbers.below(5);
    let free = (0..free).map(|n| PlanMember { slice: slice(n), generation: 1 }).collect();
    let count = numbers.below(7);
    let mut next = 100;
    let mut victims: Vec<Victim> = (0..count)
        .map(|number| {
            let size = 1 + numbers.below(4);
            let slices = (next..next + size).map(slice).collect();
            next += size;
            let tier = if numbers.below(2) == 0 { Tier::Opportunistic } else { Tier::Standard };
            let lease = LeaseId::new(u128::from(number));
            let kind = (numbers.below(3) > 0, tier);
            let newest = Reverse(Timestamp::new(numbers.below(3)));
            let place = Place { kind, loss: numbers.below(3), newest, lease };
            Victim { place, slices, elsewhere: vec![] }
        })
        .collect();
    victims.sort_by_key(|victim| victim.place);
    (Room { free, reserved: 0 }, victims)
}

/// Every set of victims that suffices with the free slots, as bits in the victims' order.
fn sufficing(room: &Room, victims: &[Victim], count: usize) -> Vec<u32> {
    let all = 0..1_u32 << victims.len();
    let gives = |set: u32| -> usize {
        let taken = victims.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
        taken.map(|(_, victim)| victim.slices.len()).sum()
    };
    all.filter(|set| *set != 0 && gives(*set) + room.free.len() >= count).collect()
}

#[test]
fn victims_are_minimal_and_as_cheap_as_any_set_on_a_hundred_thousand_random_sites() {
    let mut numbers = Numbers(0x5eed_1234_abcd_0001);
    let (mut found, mut gangs) = (0, 0);
    for case in 0..100_000 {
        let (room, all) = any_site(&mut numbers);
        let count = 1 + usize::try_from(numbers.below(10)).unwrap();
        let enough = sufficing(&room, &all, count);
        let is_needed = room.free.len() < count;
        let (chosen, _) = fewest(room.clone(), all.iter(), count, &|_| true);
        let Some(Choice { victims, freed, members }) = chosen else {
            assert!(enough.is_empty() || !is_needed, "case {case}: there was room in {room:?}");
            continue;
        };
        assert!(is_needed, "case {case}: nobody had to go");
        found += 1;
        gangs += usize::from(victims.len() > 1);
        let place = |victim: &Victim| all.iter().position(|v| v.place.lease == victim.place.lease);
        let chosen: u32 = victims.iter().map(|victim| 1 << place(victim).unwrap()).sum();
        assert!(enough.contains(&chosen), "case {case}: too little");
        // Nobody goes in vain: no part of the set suffices.
        let parts = enough.iter().filter(|set| **set != chosen && **set & chosen == **set);
        assert_eq!(parts.count(), 0, "case {case}: {victims:?} for {count}");
        // Nobody dearer goes than in the cheapest set there is.
        let dearest = |set: u32| 31 - set.leading_zeros();
        let cheapest = enough.iter().map(|set| dearest(*set)).min();
        assert_eq!(Some(dearest(chosen)), cheapest, "case {case}: {victims:?}");
        assert_eq!(freed.len() + members.len(), count);
        let is_used = |victim: &Victim| victim.slices.iter().any(|slice| freed.contains(slice));
        assert!(victims.iter().all(is_used), "case {case}: a victim gives nothing");
    }
    assert!(found > 40_000 && gangs > 10_000, "{found} choices, {gangs} with several victims");
}

/// Who gives way at each site, by a look at all leases.
fn sites_by_look(problem: &Problem<'_>, request: &Request) -> Sites {
    let StateView { state, now } = problem.view;
    let (spec, claimant) = (&request.spec, Claimant::of(request));
    let order = Order::of(state, now);
    let leases = state.leases.iter();
    let ending = leases.filter(|(lease, _)| reclaim::may_end(state, **lease, &claimant, now));
    let mut places: Vec<Place> = ending.map(|(_, lease)| order.place(lease)).collect();
    places.sort();
    let mut sites: BTreeMap<Site, Victims> = BTreeMap::new();
    for place in places {
        let all = fit::freed_by(state, place.lease, spec, now);
        for candidate in &all {
            let (victims, slice) =
                (sites.entry(site(spec.placement, candidate)).or_default(), candidate.slice);
            if victims.in_order.last().is_none_or(|last| last.place != place) {
                victims.in_order.push(Victim { place, slices: vec![], elsewhere: vec![] });
            }
            victims.in_order.last_mut().unwrap().slices.push(slice);
            victims.slices += 1;
        }
    }
    for victims in sites.values_mut() {
        for victim in &mut victims.in_order {
            let all = fit::freed_by(state, victim.place.lease, spec, now).into_iter();
            let others = all.map(|one| one.slice).filter(|one| !victim.slices.contains(one));
            victim.elsewhere = others.collect();
        }
    }
    sites
}

/// The site with the least harm, each looked at in full; nothing if there is none.
fn by_look(problem: &Problem<'_>, id: RequestId, request: &Request) -> Option<Choice> {
    let StateView { state, now } = problem.view;
    let (spent, sites) = (Spent::default(), sites_by_look(problem, request));
    let count = usize::try_from(request.spec.count).unwrap();
    let mut rooms = Rooms::of(problem, &sites, id, request);
    let mut best: Option<Choice> = None;
    for (site, victims) in sites.iter() {
        let (cluster, model, gpu, ..) = *site;
        let Some(price) = price(state, request, cluster, model) else { continue };
        let total = gpu.checked_mul(u64::from(request.spec.count)).unwrap();
        let room = rooms.free.remove(site).unwrap_or_default();
        let willing = victims.in_order.iter().filter(|one| rooms.may_go(problem, &spent, one));
        let after_ends = after_ends_of(problem, &spent);
        let lent = Lent::of(problem, request, &spent, || &after_ends);
        let is_fair = |victims: &[Victim]| lent.is_fair(victims, total);
        let Some(choice) = fewest(room, willing, count, &is_fair).0 else { continue };
        let mut charges = after_ends_of(problem, &spent);
        choice.victims.iter().for_each(|one| give_back(&mut charges, state, one.place.lease));
        let want = want(request, model, total, price);
        let is_paid = charges.obstacle(&state.tree, &want, now).is_none();
        let is_allowed = is_within_budget(problem, &spent, cluster, choice.victims.len());
        let is_best = best.as_ref().is_none_or(|known| choice.harm(false) < known.harm(false));
        if is_paid && is_allowed && is_best {
            best = Some(choice);
        }
    }
    best
}

/// Checks that for each waiting request the same leases would end as by a look at everything, also when
/// another request was looked at before; for how many some would.
pub(crate) fn victims_are_those_of_a_look_at_everything(view: StateView<'_>) -> usize {
    let problem = Problem::within(view, &Limits::NONE);
    let mut found = 0;
    for id in &view.state.waiting {
        let request = &view.state.requests[id];
        let known = choose(&problem, &Spent::default(), *id, request);
        let plain = by_look(&problem, *id, request);
        let told = |choice: &Choice| {
            let victims: Vec<LeaseId> = choice.victims.iter().map(|one| one.place.lease).collect();
            (victims, choice.freed.clone(), choice.members.clone())
        };
        let is_unsure = matches!(known, Err(Hindrance::Unsure));
        assert!(!is_unsure, "a look at so few leases is not ended");
        assert_eq!(known.ok().map(|(_, one)| told(&one)), plain.as_ref().map(told), "for {id}");
        found += usize::from(plain.is_some());
    }
    found
}
