//! A heap whose items can be found again: when an item ranks differently, or to take it out of its
//! middle.

use super::table::push_tight;
use super::{NONE, at};

/// How items rank, and where each stands in its heap.
pub(super) trait Ranking {
    /// Whether an item comes before another.
    fn is_before(&self, item: u32, other: u32) -> bool;

    /// Where an item stands, or `NONE`.
    fn place(&self, item: u32) -> u32;

    /// Notes where an item stands.
    fn set_place(&mut self, item: u32, place: u32);
}

/// Items by their ranks, the lowest first. Each item is in at most one heap of those that share a
/// [`Ranking`]; whoever changes its rank must [`set`](Ranked::set) it at once.
#[derive(Debug, Clone)]
pub(super) struct Ranked {
    items: Vec<u32>,
}

impl Ranked {
    pub(super) const fn new() -> Ranked {
        Ranked { items: Vec::new() }
    }

    pub(super) fn first(&self) -> Option<u32> {
        self.items.first().copied()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the item is in and no other is.
    pub(super) fn is_only(&self, item: u32) -> bool {
        self.items[..] == [item]
    }

    /// Puts an item in, or moves the item that is in to where it belongs now.
    pub(super) fn set(&mut self, item: u32, ranking: &mut impl Ranking) {
        let known = ranking.place(item);
        let spot = if known == NONE {
            push_tight(&mut self.items, item);
            self.items.len() - 1
        } else {
            at(known)
        };
        let spot = self.rise(spot, ranking);
        self.sink(spot, ranking);
    }

    /// Takes an item out, if it is in.
    pub(super) fn remove(&mut self, item: u32, ranking: &mut impl Ranking) {
        let known = ranking.place(item);
        if known == NONE {
            return;
        }
        ranking.set_place(item, NONE);
        let spot = at(known);
        self.items.swap_remove(spot);
        if spot < self.items.len() {
            let spot = self.rise(spot, ranking);
            self.sink(spot, ranking);
        }
    }

    fn rise(&mut self, mut spot: usize, ranking: &mut impl Ranking) -> usize {
        let moved = self.items[spot];
        while spot > 0 && ranking.is_before(moved, self.items[(spot - 1) / 2]) {
            self.settle(spot, self.items[(spot - 1) / 2], ranking);
            spot = (spot - 1) / 2;
        }
        self.settle(spot, moved, ranking);
        spot
    }

    fn sink(&mut self, mut spot: usize, ranking: &mut impl Ranking) {
        let moved = self.items[spot];
        loop {
            let (left, right) = (2 * spot + 1, 2 * spot + 2);
            let Some(mut least) = self.items.get(left).map(|_| left) else { break };
            let is_right = |other: &u32| ranking.is_before(*other, self.items[left]);
            if self.items.get(right).is_some_and(is_right) {
                least = right;
            }
            if !ranking.is_before(self.items[least], moved) {
                break;
            }
            self.settle(spot, self.items[least], ranking);
            spot = least;
        }
        self.settle(spot, moved, ranking);
    }

    fn settle(&mut self, spot: usize, item: u32, ranking: &mut impl Ranking) {
        self.items[spot] = item;
        ranking.set_place(item, u32::try_from(spot).unwrap_or(NONE));
    }

    pub(super) const fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone)]
    struct Keys {
        keys: Vec<u64>,
        places: Vec<u32>,
    }

    impl Ranking for Keys {
        fn is_before(&self, item: u32, other: u32) -> bool {
            (self.keys[at(item)], item) < (self.keys[at(other)], other)
        }

        fn place(&self, item: u32) -> u32 {
            self.places[at(item)]
        }

        fn set_place(&mut self, item: u32, place: u32) {
            self.places[at(item)] = place;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn it_gives_what_is_in_by_key_and_then_by_number(
            steps in prop::collection::vec((0_u32..30, prop::option::of(0_u64..9)), 1..200),
        ) {
            let mut heap = Ranked::new();
            let mut ranking = Keys { keys: vec![0; 30], places: vec![NONE; 30] };
            let mut model = BTreeMap::new();
            for (item, key) in steps {
                match key {
                    Some(key) => {
                        ranking.keys[at(item)] = key;
                        heap.set(item, &mut ranking);
                        model.insert(item, key);
                    }
                    None => {
                        heap.remove(item, &mut ranking);
                        model.remove(&item);
                    }
                }
                let mut expected: Vec<(u64, u32)> = model.iter().map(|(i, k)| (*k, *i)).collect();
                expected.sort_unstable();
                let first = expected.first().map(|(_, item)| *item);
                prop_assert_eq!(heap.first(), first);
                prop_assert_eq!(heap.is_empty(), first.is_none());
                let (mut rest, mut rest_ranking) = (heap.clone(), ranking.clone());
                for (_, item) in expected {
                    prop_assert_eq!(rest.first(), Some(item));
                    rest.remove(item, &mut rest_ranking);
                }
            }
        }
    }
}
