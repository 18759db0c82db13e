//! A tournament tree: the lowest key is known, and when a key changes only the matches on its way to
//! the top are played again.

use super::at;

/// What contestants are ranked by, the lowest first. A key says whose it is, so that no two are equal.
pub trait Key: Ord + Clone {
    /// Enough of the key to decide most matches: of two keys that differ here, the one that is lower
    /// here is the lower.
    fn short(&self) -> (u64, u32);
}

/// Who won a match.
#[derive(Debug, Clone, Copy)]
struct Winner {
    /// Its short key.
    upper: u64,
    lower: u32,
    contestant: u32,
}

impl Winner {
    #[inline]
    fn of<K: Key>(key: &K, contestant: u32) -> Winner {
        let (upper, lower) = key.short();
        Winner { upper, lower, contestant }
    }
}

/// Contestants by their keys, the lowest first.
#[derive(Debug, Clone)]
pub struct Tournament<K> {
    /// By contestant.
    keys: Vec<K>,
    /// A heap-shaped tree of those that won: the root is 1, the children of `n` are `2n` and `2n + 1`,
    /// and the last half are the contestants themselves.
    winners: Vec<Winner>,
    /// The key of whoever does not take part, above all others.
    none: K,
}

impl<K: Key> Tournament<K> {
    /// A tree for as many contestants as there are keys; `none` is the key of whoever does not take
    /// part.
    #[must_use]
    pub fn of(contestants: Vec<K>, none: K) -> Tournament<K> {
        let (width, mut keys) = (contestants.len().next_power_of_two(), contestants);
        keys.resize(width, none.clone());
        let mut winners = vec![Winner::of(&none, 0); width];
        let leaves = keys.iter().zip(0..);
        winners.extend(leaves.map(|(key, contestant)| Winner::of(key, contestant)));
        for node in (1..width).rev() {
            let [left, right] = [winners[node * 2], winners[node * 2 + 1]];
            let parts = |winner: Winner| (winner.upper, winner.lower, winner.contestant);
            winners[node] = if is_first(&keys, parts(right), parts(left)) { right } else { left };
        }
        Tournament { keys, winners, none }
    }

    /// Sets the key of a contestant.
    #[inline]
    pub fn set(&mut self, contestant: u32, key: K) {
        let Tournament { keys, winners, .. } = self;
        let mut won = Winner::of(&key, contestant);
        keys[at(contestant)] = key;
        let mut node = winners.len() / 2 + at(contestant);
        winners[node] = won;
        while node > 1 {
            let Winner { upper, lower, contestant: other } = winners[node ^ 1];
            if is_first(keys, (upper, lower, other), (won.upper, won.lower, won.contestant)) {
                won = Winner { upper, lower, contestant: other };
            }
            node /= 2;
            let winner = &mut winners[node];
            // Another who won here before has won the rest of its matches, too.
            if winner.contestant == won.contestant && won.contestant != contestant {
                return;
            }
            *winner = won;
        }
    }

    /// A contestant does not take part any more.
    pub fn leave(&mut self, contestant: u32) {
        self.set(contestant, self.none.clone());
    }

    /// The key of a contestant, if it takes part.
    #[must_use]
    #[inline]
    pub fn key(&self, contestant: u32) -> Option<&K> {
        self.keys.get(at(contestant)).filter(|key| **key != self.none)
    }

    /// The lowest key, if anybody takes part.
    #[must_use]
    #[inline]
    pub fn best(&self) -> Option<&K> {
        self.key(self.winners.get(1)?.contestant)
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<K>() + self.winners.capacity() * size_of::<Winner>()
    }
}

/// Whether the one that is named first wins a match against the other; not if they are equal.
#[inline(always)]
fn is_first<K: Ord>(keys: &[K], one: (u64, u32, u32), other: (u64, u32, u32)) -> bool {
    if one.0 != other.0 {
        return one.0 < other.0;
    }
    one.1 < other.1 || (one.1 == other.1 && is_before(keys, one.2, other.2))
}

/// As the whole keys say.
#[inline(never)]
fn is_before<K: Ord>(keys: &[K], one: u32, other: u32) -> bool {
    keys.get(at(one)) < keys.get(at(other))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Equal in the short form more often than in all of it.
    type Ranked = (u64, usize);

    const NOBODY: Ranked = (u64::MAX, usize::MAX);

    impl Key for Ranked {
        fn short(&self) -> (u64, u32) {
            (self.0 / 4, u32::from(self.0 % 4 > 1))
        }
    }

    proptest! {
        #[test]
        fn the_lowest_key_wins_and_of_equals_the_lower_number(
            keys in prop::collection::vec(0_u64..6, 0..40),
            steps in prop::collection::vec((0_usize..40, prop::option::of(0_u64..6)), 1..100),
        ) {
            let mut model: Vec<(u64, usize)> = keys.into_iter().zip(0..).collect();
            let mut tree = Tournament::of(model.clone(), NOBODY);
            let best = |model: &[Ranked]| model.iter().copied().min().filter(|key| *key != NOBODY);
            prop_assert_eq!(tree.best().copied(), best(&model));
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
                let expected = key.map(|key| (key, contestant));
                prop_assert_eq!(tree.key(contestant as u32).copied(), expected);
                prop_assert_eq!(tree.best().copied(), best(&model));
            }
        }
    }
}
