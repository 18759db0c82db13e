//! The choice of victims against brute force.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::PlanGroup;
use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, DeviceId, LeaseId, NodeId};
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::fewest::{Short, fewest};
use super::search::{choose, choose_of};
use super::{Choice, Hindrance, Room, Victim};
use crate::decide::decide_group;
use crate::fit;
use crate::matching::Limits;
use crate::matching::endable::{Site, Sites, Victims, site};
use crate::matching::problem::Problem;
use crate::matching::solve::Spent;
use crate::preemption::{Order, Place};
use crate::quota::{Charges, Moment, Tree};
use crate::reclaim::{self, Claimant};
use crate::state::{Request, RequestStage, StateView};
use crate::testing::{model, tenant};

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
            let gpu = GpuMilli::new(size * 1_000);
            Victim { place, tenant: tenant("t0"), gpu, slices, elsewhere: vec![] }
        })
        .collect();
    victims.sort_by_key(|victim| victim.place);
    (Room { free, reserved: 0, barred: BTreeMap::new() }, victims)
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
        let (chosen, _) = fewest(room.clone(), all.iter(), count, None, &|_| true);
        let Some(Choice { victims, freed, members, .. }) = chosen else {
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

const NAMES: [&str; 5] = ["g", "h", "t0", "t1", "t2"];

/// A tenant or group in whole GPUs: what it brings, what it holds itself, and its limits.
#[derive(Debug, Clone, Copy)]
struct Plain {
    group: Option<usize>,
    nominal: i64,
    borrow: Option<i64>,
    lend: Option<i64>,
    held: i64,
}

/// A tree in which quota is scarce: a group `g` with a group `h` in it and three tenants, who hold what
/// the victims hold and something besides that nobody can end. Each victim gets a tenant.
fn any_tree(numbers: &mut Numbers, victims: &mut [Victim]) -> (Tree, [Plain; 5]) {
    let at = Moment {
        now: Timestamp::new(0),
        half_life: Seconds::new(1_000),
        entry_penalty: Seconds::ZERO,
        tokens: 1,
    };
    let milli = |gpus: i64| GpuMilli::new(1_000 * u64::try_from(gpus).unwrap());
    let mut tree = Tree::default();
    let mut plain = [0, 1, 2, 3, 4].map(|at| {
        let group = match at {
            0 => None,
            1 => (numbers.below(4) > 0).then_some(0),
            _tenant => [None, Some(0), Some(1), Some(1)][place_of(numbers.below(4))],
        };
        let mut few = |most| i64::try_from(numbers.below(most)).unwrap();
        let (nominal, held) = (few(7), if at > 1 { few(3) } else { 0 });
        let (borrow, lend) = (few(15), few(15));
        let limit = |amount: i64| (amount < 6).then_some(amount);
        Plain { group, nominal, borrow: limit(borrow), lend: limit(lend), held }
    });
    for (name, one) in NAMES.into_iter().zip(&plain) {
        tree.insert(tenant(name), one.group.map(|group| tenant(NAMES[group])));
        let (borrow_limit, lend_limit) = (one.borrow.map(milli), one.lend.map(milli));
        let quota = Quota { borrow_limit, lend_limit, ..Quota::of(milli(one.nominal)) };
        tree.set_quota(tenant(name), model(), quota, &at);
    }
    for victim in victims {
        let whose = 1 + place_of(numbers.below(4));
        victim.tenant = tenant(NAMES[whose]);
        plain[whose].held += gpus_of(victim);
    }
    for (name, one) in NAMES.into_iter().zip(&plain) {
        tree.take(tenant(name), model(), milli(one.held), &at);
    }
    (tree, plain)
}

fn gpus_of(victim: &Victim) -> i64 {
    i64::try_from(victim.gpu.get() / 1_000).unwrap()
}

fn place_of(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// What `t0` may still get when these are gone: by the formulas, from below.
fn room_without(mut plain: [Plain; 5], gone: &[&Victim]) -> i64 {
    for victim in gone {
        let whose = NAMES.iter().position(|name| victim.tenant == tenant(name)).unwrap();
        plain[whose].held -= gpus_of(victim);
    }
    let mut sums = [(0, 0); 5];
    for at in (0..5).rev() {
        let below = (0..5).filter(|other| plain[*other].group == Some(at));
        let (mut subtree, mut usage) = (plain[at].nominal, plain[at].held);
        for other in below {
            let (brings, holds): (i64, i64) = sums[other];
            let local = plain[other].lend.map_or(0, |lend| (brings - lend).max(0));
            subtree += brings - local;
            usage += (holds - local).max(0);
        }
        sums[at] = (subtree, usage);
    }
    fn room(plain: &[Plain; 5], sums: &[(i64, i64); 5], at: usize) -> i64 {
        let (subtree, usage) = sums[at];
        let Some(group) = plain[at].group else { return (subtree - usage).max(0) };
        let local = plain[at].lend.map_or(0, |lend| (subtree - lend).max(0));
        let limit = plain[at].borrow.map(|limit| subtree - local - (usage - local).max(0) + limit);
        let shared = room(plain, sums, group);
        (local - usage).max(0) + limit.map_or(shared, |limit| shared.min(limit.max(0)))
    }
    room(&plain, &sums, 2)
}

#[test]
fn where_quota_is_scarce_victims_are_minimal_and_as_cheap_as_any_set_on_a_hundred_thousand_sites() {
    let mut numbers = Numbers(0x5eed_4321_dcba_0002);
    // How often quota was lacking and somebody ended: for quota alone, and where slices were, too.
    let (mut alone, mut both, mut spared) = (0, 0, 0);
    for case in 0..100_000 {
        let (room, mut all) = any_site(&mut numbers);
        let (tree, plain) = any_tree(&mut numbers, &mut all);
        let count = 1 + place_of(numbers.below(6));
        // Some of what ends is elsewhere: it gives back quota only.
        for victim in &mut all {
            if numbers.below(3) == 0 {
                victim.slices.clear();
            }
        }
        let gpu = GpuMilli::new(1_000 * u64::try_from(count).unwrap());
        let has_quota =
            |gone: &[&Victim]| room_without(plain, gone) >= i64::try_from(count).unwrap();
        let whose = (tenant("t0"), model());
        let short = Short::of(&tree, Charges::EMPTY, whose, gpu);
        assert_eq!(short.is_met(), has_quota(&[]), "case {case}");
        let of = |set: u32| -> Vec<&Victim> {
            let taken = all.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
            taken.map(|(_, victim)| victim).collect()
        };
        let suffices = |set: &u32| {
            let gone = of(*set);
            let slices: usize = gone.iter().map(|victim| victim.slices.len()).sum();
            slices + room.free.len() >= count && has_quota(&gone)
        };
        let enough: Vec<u32> = (0..1_u32 << all.len()).filter(suffices).collect();
        let is_short = !short.is_met();
        let (chosen, _) = fewest(room.clone(), all.iter(), count, Some(short), &|_| true);
        let Some(Choice { victims, freed, members, .. }) = chosen else {
            let is_vain = enough.is_empty() || enough.contains(&0);
            assert!(is_vain, "case {case}: {all:?} could end for {count} of {room:?}");
            continue;
        };
        let place = |victim: &Victim| all.iter().position(|v| v.place.lease == victim.place.lease);
        let chosen: u32 = victims.iter().map(|victim| 1 << place(victim).unwrap()).sum();
        assert!(enough.contains(&chosen), "case {case}: too little");
        let parts = enough.iter().filter(|set| **set != chosen && **set & chosen == **set);
        assert_eq!(parts.count(), 0, "case {case}: {victims:?} for {count}");
        let dearest = |set: u32| 31 - set.leading_zeros();
        let cheapest = enough.iter().map(|set| dearest(*set)).min();
        assert_eq!(Some(dearest(chosen)), cheapest, "case {case}: {victims:?}");
        assert_eq!(freed.len() + members.len(), count);
        alone += usize::from(is_short && room.free.len() >= count);
        both += usize::from(is_short && room.free.len() < count);
        spared += usize::from(dearest(chosen) + 1 > chosen.count_ones());
    }
    let seen = (alone, both, spared);
    assert!(alone > 5_000 && both > 5_000 && spared > 5_000, "{seen:?}");
}

/// Who gives way, by a look at all leases.
fn sites_by_look(problem: &Problem<'_>, request: &Request) -> Sites {
    let StateView { state, now } = problem.view;
    let (spec, claimant) = (&request.spec, Claimant::of(request));
    let order = Order::of(state, now);
    let leases = state.leases.iter();
    let is_model = |model| spec.models.is_empty() || spec.models.contains(&model);
    let ending = leases.filter(|(lease, _)| reclaim::may_end(state, **lease, &claimant, now));
    let ending = ending.filter(|(_, lease)| is_model(lease.terms.model));
    let mut places: Vec<Place> = ending.map(|(_, lease)| order.place(lease)).collect();
    places.sort();
    let mut sites: BTreeMap<Site, Victims> = BTreeMap::new();
    for place in &places {
        let all = fit::freed_by(state, place.lease, spec, now);
        for candidate in &all {
            let (victims, slice) =
                (sites.entry(site(spec.placement, candidate)).or_default(), candidate.slice);
            if victims.in_order.last().is_none_or(|last| last.place != *place) {
                let lease = &state.leases[&place.lease];
                victims.in_order.push(Victim::of_quota(*place, lease));
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
    Sites::of(sites, places)
}

/// Checks that for each waiting request the same leases would end as by a look at everything, also when
/// another request was looked at before, and that the rules agree; for how many some would.
pub(crate) fn victims_are_those_of_a_look_at_everything(view: StateView<'_>) -> usize {
    let problem = Problem::within(view, &Limits::NONE);
    let mut found = 0;
    for id in &view.state.waiting {
        let request = &view.state.requests[id];
        let known = choose(&problem, &Spent::default(), *id, request);
        let sites = Rc::new(sites_by_look(&problem, request));
        let plain = choose_of(sites, (&problem, &Spent::default()), *id, request);
        assert_ne!(known.as_ref().err(), Some(&Hindrance::Unsure), "a look at so few is not ended");
        let told = |choice: Choice| PlanGroup::Preempt {
            request: *id,
            victims: choice.victims.iter().map(|one| one.place.lease).collect(),
            freed: choice.freed,
            members: choice.members,
        };
        let (known, plain) = (known.map(|one| told(one.1)), plain.map(|one| told(one.1)));
        assert_eq!(known, plain, "for {id}");
        let Ok(group) = known else { continue };
        let is_free_to_ask = matches!(request.stage, RequestStage::Waiting)
            && !view.state.is_paused(*id, request, view.now);
        if is_free_to_ask && view.state.pledged.is_empty() {
            let judged = decide_group(view.state, &group, view.now);
            assert!(judged.is_ok(), "{group:?}: {judged:?}");
        }
        found += 1;
    }
    found
}
