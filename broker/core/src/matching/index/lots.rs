//! Lots: what slices of one kind have in common, and the buckets in which their shelves hang.

use sublet_protocol::capacity::{Capacity, Isolation, Part, SliceId};
use sublet_protocol::ids::ClusterId;
use sublet_protocol::units::Millis;

use super::table::{Chained, hash_text, mix};
use super::{NONE, at};

/// Windows of idle time, each twice as long as the one before; the last has no end.
pub(super) const WINDOWS: u8 = 16;
/// Free counts told apart; the last stands for it and more.
pub(super) const COUNTS: u32 = 32;

/// A window and a count.
pub(super) type Bucket = (u32, u32);

/// The window of a span: 0 below two minutes, then one more for each doubling.
#[must_use]
pub fn window(span: Millis) -> u8 {
    let minutes = span.get() / 60_000;
    let doublings = minutes.checked_ilog2().unwrap_or(0);
    u8::try_from(doublings).unwrap_or(WINDOWS).min(WINDOWS - 1)
}

/// What slices of a lot have in common: whatever fits one of them now fits all, but for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Where they stand.
    pub cluster: ClusterId,
    /// What each holds.
    pub capacity: Capacity,
    /// Which part of a GPU each is, wherever on it.
    pub part: Part,
}

impl Kind {
    /// The kind of a slice.
    #[must_use]
    pub fn of(slice: &SliceId, capacity: &Capacity) -> Kind {
        let part = match slice.part {
            Part::Whole => Part::Whole,
            Part::Mig { profile, .. } => Part::Mig { profile, start: 0 },
            Part::Share { .. } => Part::Share { index: 0 },
        };
        Kind { cluster: slice.cluster, capacity: *capacity, part }
    }

    pub(super) fn hash(&self, seed: u64) -> u64 {
        // A hash may leave things out: equality does not.
        let Capacity { model, gpu, memory, cpu, host_memory, isolation, island, .. } =
            &self.capacity;
        let isolation: u64 = match isolation {
            Isolation::Exclusive => 0,
            Isolation::Mig => 1,
            Isolation::Mps => 2,
            Isolation::TimeSlice => 3,
        };
        let text =
            hash_text(hash_text(seed, self.cluster.as_str().as_bytes()), model.as_str().as_bytes());
        let small = u64::from(pack(self.part)) << 32 | u64::from(*island) << 8 | isolation;
        let words = [gpu.get(), memory.get(), cpu.get(), host_memory.get(), small];
        words.into_iter().fold(text, mix)
    }
}

/// A part as one number.
pub(super) fn pack(part: Part) -> u32 {
    match part {
        Part::Whole => 0,
        Part::Mig { profile, start } => 1 << 16 | u32::from(profile) << 8 | u32::from(start),
        Part::Share { index } => 2 << 16 | u32::from(index),
    }
}

/// The slices of one kind: their shelves, in buckets by window and count.
#[derive(Debug, Clone)]
pub(super) struct Lot {
    pub(super) kind: Kind,
    chain: u32,
    /// A lot that was forgotten waits for another kind.
    pub(super) is_known: bool,
    /// Which counts have a shelf.
    counts: u32,
    /// By count: which windows have a shelf.
    filled: [u16; 32],
    /// By window and count: the first shelf.
    heads: Vec<u32>,
}

impl Lot {
    pub(super) fn new(kind: Kind) -> Lot {
        let (filled, heads) = ([0; 32], Vec::new());
        Lot { kind, chain: NONE, is_known: true, counts: 0, filled, heads }
    }

    /// Whether it holds no slice.
    pub(super) const fn is_empty(&self) -> bool {
        self.counts == 0
    }

    /// The windows from `window` on in which there is a shelf of this count.
    #[inline]
    fn windows_of(&self, count: u32, window: u8) -> u16 {
        let filled = self.filled.get(at(count)).copied().unwrap_or(0);
        filled & (u16::MAX << window.min(WINDOWS - 1))
    }

    /// The bucket of the least count, from `count` on, of which there is a shelf that lasts for `window`
    /// or longer; of those the shortest window.
    #[inline]
    pub(super) fn fewest(&self, count: u32, window: u8) -> Option<Bucket> {
        let mut counts = self.counts & (u32::MAX << count.min(COUNTS - 1));
        while counts != 0 {
            let least = counts.trailing_zeros();
            let windows = self.windows_of(least, window);
            if windows != 0 {
                return Some((windows.trailing_zeros(), least));
            }
            counts &= counts - 1;
        }
        None
    }

    /// The first shelf of a bucket.
    #[inline]
    pub(super) fn shelf(&self, (window, count): Bucket) -> Option<u32> {
        self.heads.get(at(window * COUNTS + count)).copied()
    }

    /// Puts a shelf first into a bucket. Gives the shelf that was first.
    #[inline]
    pub(super) fn push(&mut self, (window, count): Bucket, shelf: u32) -> u32 {
        let bucket = at(window * COUNTS + count);
        if bucket >= self.heads.len() {
            self.heads.resize(at((window + 1) * COUNTS), NONE);
        }
        self.counts |= 1 << count;
        self.filled[at(count)] |= 1 << window;
        std::mem::replace(&mut self.heads[bucket], shelf)
    }

    /// The first shelf of a bucket is gone; `next` was behind it.
    #[inline]
    pub(super) fn pop(&mut self, (window, count): Bucket, next: u32) {
        self.heads[at(window * COUNTS + count)] = next;
        if next == NONE {
            let filled = &mut self.filled[at(count)];
            *filled &= !(1 << window);
            self.counts &= !(u32::from(*filled == 0) << count);
        }
    }

    /// The first shelves of all buckets from `window` on.
    pub(super) fn heads_from(&self, window: u8) -> impl Iterator<Item = u32> + '_ {
        let buckets = bits(self.counts).flat_map(move |count| {
            let windows = bits(u32::from(self.windows_of(count, window)));
            windows.map(move |window| (window, count))
        });
        buckets.filter_map(|bucket| self.shelf(bucket))
    }

    /// By bucket: the first shelf, the window and the count.
    #[cfg(test)]
    pub(super) fn buckets(&self) -> Vec<(u32, usize, usize)> {
        let buckets = self.heads.iter().enumerate().map(|(bucket, head)| {
            let (window, count) = (bucket / 32, bucket % 32);
            assert_eq!(*head != NONE, self.filled[count] & (1 << window) != 0);
            assert_eq!(self.filled[count] != 0, self.counts & (1 << count) != 0);
            (*head, window, count)
        });
        buckets.collect()
    }

    /// What it takes of memory besides itself, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<u32>()
    }
}

impl Chained for Lot {
    fn hash(&self, seed: u64) -> u64 {
        self.kind.hash(seed)
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn chain_mut(&mut self) -> &mut u32 {
        &mut self.chain
    }
}

/// The places of the bits that are set, the lowest first.
fn bits(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros());
        mask &= mask.wrapping_sub(1);
        lowest
    })
}
