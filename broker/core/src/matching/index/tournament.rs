//! A tournament tree: the contestant with the lowest key, in as many steps as the tree is deep.

use super::at;

/// The key of whoever does not take part.
pub(super) const ABSENT: u64 = u64::MAX;

/// The lowest of the keys of contestants `0..width`; the lower number wins a draw.
#[derive(Debug, Clone)]
pub struct Tournament {
    /// A heap-shaped tree: the root is 1, the children of `n` are `2n` and `2n + 1`.
    keys: Vec<u64>,
    width: usize,
}

impl Tournament {
    /// A tree for contestants `0..count`, none of whom takes part yet.
    #[must_use]
    pub fn new(count: usize) -> Tournament {
        let width = count.next_power_of_two();
        Tournament { keys: vec![ABSENT; width * 2], width }
    }

    /// Sets the key of a contestant; `u64::MAX` means that it does not take part.
    pub fn set(&mut self, contestant: u32, key: u64) {
        let mut node = self.width + at(contestant);
        if self.keys[node] == key {
            return;
        }
        self.keys[node] = key;
        while node > 1 {
            let winner = self.keys[node].min(self.keys[node ^ 1]);
            node /= 2;
            if self.keys[node] == winner {
                return;
            }
            self.keys[node] = winner;
        }
    }

    /// The key of a contestant.
    #[must_use]
    pub fn key(&self, contestant: u32) -> u64 {
        self.keys[self.width + at(contestant)]
    }

    /// The contestant with the lowest key; nobody if nobody takes part.
    #[must_use]
    pub fn best(&self) -> Option<u32> {
        let lowest = self.keys[1];
        if lowest == ABSENT {
            return None;
        }
        let mut node = 1;
        while node < self.width {
            node *= 2;
            node += usize::from(self.keys[node] != lowest);
        }
        u32::try_from(node - self.width).ok()
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lowest_key_wins_and_of_equals_the_lower_number(
            count in 1_usize..40,
            steps in prop::collection::vec((0_usize..40, prop::option::of(0_u64..6)), 1..100),
        ) {
            let mut tree = Tournament::new(count);
            let mut model = vec![ABSENT; count];
            for (contestant, key) in steps {
                let contestant = contestant % count;
                model[contestant] = key.unwrap_or(ABSENT);
                tree.set(contestant as u32, model[contestant]);
                let here = model.iter().enumerate().filter(|(_, key)| **key != ABSENT);
                let best = here.min_by_key(|(_, key)| **key).map(|(at, _)| at as u32);
                prop_assert_eq!(tree.best(), best);
            }
        }
    }
}
