//! A timer wheel: what becomes due, found without a look at what does not (Varghese and Lauck,
//! SOSP 1987; the hashed hierarchical form).
//!
//! Time is told in ticks of 1,024 ms: an item fires when its tick begins, so up to one tick before
//! the instant it was set for and never after it.

use sublet_protocol::units::Timestamp;

use super::{NONE, at};

/// Bits of a tick told apart by one level.
const BITS: u32 = 6;
/// Enough levels for every tick of 32 bits, which last until the year 2109.
const LEVELS: usize = 6;
const CELLS: usize = 1 << BITS;

#[derive(Debug, Clone, Copy)]
struct Link {
    next: u32,
    previous: u32,
    due: u32,
    /// Level and cell where it hangs, or `NONE`.
    cell: u32,
}

const LOOSE: Link = Link { next: NONE, previous: NONE, due: 0, cell: NONE };

/// Items by the tick at which they are due.
#[derive(Debug, Clone)]
pub(super) struct Wheel {
    now: u32,
    links: Vec<Link>,
    heads: Vec<u32>,
    /// Which cells of a level hold something.
    filled: [u64; LEVELS],
}

/// The tick that an instant is in.
pub(super) fn tick(instant: Timestamp) -> u32 {
    u32::try_from(instant.get() / 1_024).unwrap_or(u32::MAX)
}

impl Wheel {
    pub(super) fn new(now: u32) -> Wheel {
        Wheel { now, links: Vec::new(), heads: vec![NONE; LEVELS * CELLS], filled: [0; LEVELS] }
    }

    /// `item` is due at `tick`, or at once with the next advance if that is past.
    pub(super) fn set(&mut self, item: u32, due: u32) {
        if at(item) >= self.links.len() {
            self.links.resize(at(item) + 1, LOOSE);
        }
        self.cancel(item);
        self.hang(item, due.max(self.now.saturating_add(1)));
    }

    fn hang(&mut self, item: u32, due: u32) {
        // Items that differ from now in a high digit hang high, and come down when it is reached.
        let level = (31 - (due ^ self.now).leading_zeros().min(31)) / BITS;
        let digit = (due >> (level * BITS)) & (u32::MAX >> (32 - BITS));
        let cell = level * (1 << BITS) + digit;
        let head = std::mem::replace(&mut self.heads[at(cell)], item);
        self.links[at(item)] = Link { next: head, previous: NONE, due, cell };
        if head != NONE {
            self.links[at(head)].previous = item;
        }
        self.filled[at(level)] |= 1 << digit;
    }

    /// `item` is not due any more.
    pub(super) fn cancel(&mut self, item: u32) {
        let Some(link) = self.links.get(at(item)).copied() else { return };
        if link.cell == NONE {
            return;
        }
        self.links[at(item)] = LOOSE;
        if link.next != NONE {
            self.links[at(link.next)].previous = link.previous;
        }
        if link.previous == NONE {
            self.heads[at(link.cell)] = link.next;
            if link.next == NONE {
                self.filled[at(link.cell >> BITS)] &=
                    !(1 << (link.cell & (u32::MAX >> (32 - BITS))));
            }
        } else {
            self.links[at(link.previous)].next = link.next;
        }
    }

    /// Lets time pass until `tick` and hands over what became due, by tick.
    pub(super) fn advance(&mut self, tick: u32, mut on_due: impl FnMut(u32)) {
        while let Some((level, digit, begins)) = self.next_cell() {
            if begins > tick {
                break;
            }
            self.now = begins;
            let cell = level * CELLS + digit;
            let mut item = std::mem::replace(&mut self.heads[cell], NONE);
            self.filled[level] &= !(1 << digit);
            while item != NONE {
                let link = std::mem::replace(&mut self.links[at(item)], LOOSE);
                if link.due <= self.now {
                    on_due(item);
                } else {
                    self.hang(item, link.due);
                }
                item = link.next;
            }
        }
        self.now = self.now.max(tick);
    }

    /// The first cell that holds something, with the tick at which it begins. Lower levels hold
    /// what comes before all of the higher ones.
    fn next_cell(&self) -> Option<(usize, usize, u32)> {
        let level = self.filled.iter().position(|filled| *filled != 0)?;
        let digit = self.filled[level].trailing_zeros();
        let shift = u32::try_from(level).ok()? * BITS;
        // Digits above this level's are those of now; those below are zero.
        let above = u64::from(self.now) >> (shift + BITS) << (shift + BITS);
        let begins = above | (u64::from(digit) << shift);
        Some((level, at(digit), u32::try_from(begins).unwrap_or(u32::MAX)))
    }

    pub(super) const fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn everything_fires_at_its_tick_and_nothing_before(
            start in prop_oneof![0_u32..200, 4_000_000_000..u32::MAX - 3_000_000],
            steps in prop::collection::vec(
                (0_u32..20, prop_oneof![0_u32..5, 0_u32..5_000, 0_u32..900_000], any::<u8>()),
                1..100,
            ),
        ) {
            let (mut wheel, mut model) = (Wheel::new(start), BTreeMap::new());
            let mut now = start;
            for (item, span, kind) in steps {
                match kind % 4 {
                    0 | 1 => {
                        wheel.set(item, now + span);
                        model.insert(item, (now + span).max(now + 1));
                    }
                    2 => {
                        wheel.cancel(item);
                        model.remove(&item);
                    }
                    _ => {
                        now += span / 40;
                        let mut fired = Vec::new();
                        wheel.advance(now, |item| fired.push(item));
                        fired.sort_unstable();
                        let due: Vec<u32> =
                            model.iter().filter(|(_, due)| **due <= now).map(|(i, _)| *i).collect();
                        model.retain(|_, due| *due > now);
                        prop_assert_eq!(fired, due);
                    }
                }
            }
        }
    }
}
