//! A heap whose items can be found again: to change a key or to take an item out of its middle.

use super::table::push_tight;
use super::{NONE, at};

/// Items by their keys, the lowest first; the lower item wins a draw. Each item is in at most one
/// heap of those that share `places`.
#[derive(Debug, Clone)]
pub(super) struct Ranked<K> {
    items: Vec<(K, u32)>,
}

impl<K: Ord + Copy> Ranked<K> {
    pub(super) const fn new() -> Ranked<K> {
        Ranked { items: Vec::new() }
    }

    pub(super) fn first(&self) -> Option<(K, u32)> {
        self.items.first().copied()
    }

    /// Puts an item in, or gives the item that is in another key.
    pub(super) fn set(&mut self, item: u32, key: K, places: &mut [u32]) {
        if let [only] = &mut self.items[..]
            && only.1 == item
        {
            only.0 = key;
            return;
        }
        let known = places[at(item)];
        let spot = if known == NONE {
            push_tight(&mut self.items, (key, item));
            self.items.len() - 1
        } else {
            self.items[at(known)].0 = key;
            at(known)
        };
        let spot = self.rise(spot, places);
        self.sink(spot, places);
    }

    /// Takes an item out, if it is in.
    pub(super) fn remove(&mut self, item: u32, places: &mut [u32]) {
        let known = std::mem::replace(&mut places[at(item)], NONE);
        if known == NONE {
            return;
        }
        let spot = at(known);
        self.items.swap_remove(spot);
        if spot < self.items.len() {
            let spot = self.rise(spot, places);
            self.sink(spot, places);
        }
    }

    fn rise(&mut self, mut spot: usize, places: &mut [u32]) -> usize {
        let moved = self.items[spot];
        while spot > 0 && moved < self.items[(spot - 1) / 2] {
            self.items[spot] = self.items[(spot - 1) / 2];
            note(self.items[spot].1, spot, places);
            spot = (spot - 1) / 2;
        }
        self.items[spot] = moved;
        note(moved.1, spot, places);
        spot
    }

    fn sink(&mut self, mut spot: usize, places: &mut [u32]) {
        let moved = self.items[spot];
        loop {
            let (left, right) = (2 * spot + 1, 2 * spot + 2);
            let Some(mut least) = self.items.get(left).map(|_| left) else { break };
            if self.items.get(right).is_some_and(|other| *other < self.items[left]) {
                least = right;
            }
            if moved <= self.items[least] {
                break;
            }
            self.items[spot] = self.items[least];
            note(self.items[spot].1, spot, places);
            spot = least;
        }
        self.items[spot] = moved;
        note(moved.1, spot, places);
    }

    pub(super) const fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<(K, u32)>()
    }
}

fn note(item: u32, spot: usize, places: &mut [u32]) {
    places[at(item)] = u32::try_from(spot).unwrap_or(NONE);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn it_gives_what_is_in_by_key_and_then_by_number(
            steps in prop::collection::vec((0_u32..30, prop::option::of(0_u64..9)), 1..200),
        ) {
            let (mut heap, mut places) = (Ranked::new(), vec![NONE; 30]);
            let mut model = BTreeMap::new();
            for (item, key) in steps {
                match key {
                    Some(key) => {
                        heap.set(item, key, &mut places);
                        model.insert(item, key);
                    }
                    None => {
                        heap.remove(item, &mut places);
                        model.remove(&item);
                    }
                }
                let mut expected: Vec<(u64, u32)> = model.iter().map(|(i, k)| (*k, *i)).collect();
                expected.sort_unstable();
                prop_assert_eq!(heap.first(), expected.first().copied());
                let (mut rest, mut rest_places) = (heap.clone(), places.clone());
                for (key, item) in expected {
                    prop_assert_eq!(rest.first(), Some((key, item)));
                    rest.remove(item, &mut rest_places);
                }
            }
        }
    }
}
