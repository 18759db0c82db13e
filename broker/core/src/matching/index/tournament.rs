//! A tournament tree: the lowest key is known, and when a key changes only the matches on its way to
//! the top are played again.

use super::at;

/// Contestants by their keys, the lowest first. A key says whose it is, so that no two are equal.
#[derive(Debug, Clone)]
pub struct Tournament<K> {
    /// A heap-shaped tree of the keys that won: the root is 1, the children of `n` are `2n` and
    /// `2n + 1`, and the last half are the contestants themselves.
    keys: Vec<K>,
    /// The key of whoever does not take part, above all others.
    none: K,
}

impl<K: Ord + Copy> Tournament<K> {
    /// A tree for as many contestants as there are keys; `none` is the key of whoever does not take
    /// part.
    #[must_use]
    pub fn of(contestants: Vec<K>, none: K) -> Tournament<K> {
        let width = contestants.len().next_power_of_two();
        let mut keys = vec![none; width];
        keys.extend(contestants);
        keys.resize(width * 2, none);
        for node in (1..width).rev() {
            keys[node] = keys[node * 2].min(keys[node * 2 + 1]);
        }
        Tournament { keys, none }
    }

    /// Sets the key of a contestant.
    pub fn set(&mut self, contestant: u32, key: K) {
        let mut node = self.keys.len() / 2 + at(contestant);
        let mut won = key;
        loop {
            let known = std::mem::replace(&mut self.keys[node], won);
            // Who won here before with the same key has won the rest of its matches, too.
            if known == won || node <= 1 {
                return;
            }
            won = won.min(self.keys[node ^ 1]);
            node /= 2;
        }
    }

    /// A contestant does not take part any more.
    pub fn leave(&mut self, contestant: u32) {
        self.set(contestant, self.none);
    }

    /// The key of a contestant, if it takes part.
    #[must_use]
    pub fn key(&self, contestant: u32) -> Option<K> {
        let key = self.keys[self.keys.len() / 2 + at(contestant)];
        (key != self.none).then_some(key)
    }

    /// The lowest key, if anybody takes part.
    #[must_use]
    pub fn best(&self) -> Option<K> {
        self.keys.get(1).copied().filter(|key| *key != self.none)
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<K>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOBODY: (u64, usize) = (u64::MAX, usize::MAX);

    proptest! {
        #[test]
        fn the_lowest_key_wins_and_of_equals_the_lower_number(
            keys in prop::collection::vec(0_u64..6, 0..40),
            steps in prop::collection::vec((0_usize..40, prop::option::of(0_u64..6)), 1..100),
        ) {
            let mut model: Vec<(u64, usize)> = keys.into_iter().zip(0..).collect();
            let mut tree = Tournament::of(model.clone(), NOBODY);
            let best = |model: &[(u64, usize)]| {
                model.iter().copied().min().filter(|key| *key != NOBODY)
            };
            prop_assert_eq!(tree.best(), best(&model));
            for (contestant, key) in steps {
                if model.is_empty() {
                    break;
                }
                let contestant = contestant % model.len();
                model[contestant] = key.map_or(NOBODY, |key| (key, contestant));
                match key {
                    Some(key) => tree.set(contestant as u32, (key, contestant)),
                    None => tree.leave(contestant as u32),
                }
                prop_assert_eq!(tree.key(contestant as u32), key.map(|key| (key, contestant)));
                prop_assert_eq!(tree.best(), best(&model));
            }
        }
    }
}
