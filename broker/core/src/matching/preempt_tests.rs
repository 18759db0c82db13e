//! The choice of victims against brute force.

use std::cmp::Reverse;

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, DeviceId, LeaseId, NodeId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::Timestamp;

use super::{Choice, Room, Victim, fewest};
use crate::preemption::Place;

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
fn site(numbers: &mut Numbers) -> Room {
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
            Victim { lease, place, slices }
        })
        .collect();
    victims.sort_by_key(|victim| victim.place);
    Room { free, victims, reserved: 0 }
}

fn copy(room: &Room) -> Room {
    Room { free: room.free.clone(), victims: room.victims.clone(), reserved: 0 }
}

/// Every set of victims that suffices with the free slots, as bits in the victims' order.
fn sufficing(room: &Room, count: usize) -> Vec<u32> {
    let all = 0..1_u32 << room.victims.len();
    let gives = |set: u32| -> usize {
        let taken = room.victims.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
        taken.map(|(_, victim)| victim.slices.len()).sum()
    };
    all.filter(|set| *set != 0 && gives(*set) + room.free.len() >= count).collect()
}

#[test]
fn victims_are_minimal_and_as_cheap_as_any_set_on_a_hundred_thousand_random_sites() {
    let mut numbers = Numbers(0x5eed_1234_abcd_0001);
    let (mut found, mut gangs) = (0, 0);
    for case in 0..100_000 {
        let room = site(&mut numbers);
        let count = 1 + usize::try_from(numbers.below(10)).unwrap();
        let enough = sufficing(&room, count);
        let is_needed = room.free.len() < count;
        let (choice, _) = fewest(copy(&room), count, &|_| true);
        let Some(Choice { victims, freed, members }) = choice else {
            assert!(enough.is_empty() || !is_needed, "case {case}: there was room in {room:?}");
            continue;
        };
        assert!(is_needed, "case {case}: nobody had to go");
        found += 1;
        gangs += usize::from(victims.len() > 1);
        let place = |victim: &Victim| room.victims.iter().position(|v| v.lease == victim.lease);
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
