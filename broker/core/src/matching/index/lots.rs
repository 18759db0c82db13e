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
    /// Which windows have a shelf.
    windows: u32,
    /// By window: which counts have a shelf.
    filled: [u32; 16],
    /// By window and count: the first shelf.
    heads: Vec<u32>,
}

impl Lot {
    pub(super) fn new(kind: Kind) -> Lot {
        let (filled, heads) = ([0; 16], Vec::new());
        Lot { kind, chain: NONE, is_known: true, windows: 0, filled, heads }
    }

    /// Whether it holds no slice.
    pub(super) const fn is_empty(&self) -> bool {
        self.windows == 0
    }

    /// The windows that have a shelf, from `window` on.
    #[inline]
    pub(super) fn windows_from(&self, window: u8) -> u32 {
        self.windows & (u32::MAX << window.min(WINDOWS))
    }

    /// The least count, from `count` on, of which there is a shelf that lasts for `window` or longer;
    /// `u32::BITS` if there is none.
    #[inline]
    pub(super) fn fewest(&self, count: u32, window: u8) -> u32 {
        let enough = u32::MAX << count.min(COUNTS - 1);
        let (mut windows, mut filled) = (self.windows_from(window), 0);
        while windows != 0 {
            filled |= self.filled[at(windows.trailing_zeros() % u32::from(WINDOWS))];
            windows &= windows - 1;
        }
        (filled & enough).trailing_zeros()
    }

    /// The first shelf of this count in the shortest window, from `window` on, that has one.
    pub(super) fn shelf(&self, count: u32, window: u8) -> Option<u32> {
        let mut windows = bits(self.windows_from(window));
        let window = windows.find(|window| self.filled[at(*window)] >> count & 1 == 1)?;
        self.heads.get(at(window * COUNTS + count)).copied()
    }

    /// Puts a shelf first into a bucket. Gives the shelf that was first.
    #[inline]
    pub(super) fn push(&mut self, (window, count): Bucket, shelf: u32) -> u32 {
        let bucket = at(window * COUNTS + count);
        if bucket >= self.heads.len() {
            self.heads.resize(at((window + 1) * COUNTS), NONE);
        }
        self.windows |= 1 << window;
        self.filled[at(window)] |= 1 << count;
        std::mem::replace(&mut self.heads[bucket], shelf)
    }

    /// The first shelf of a bucket is gone; `next` was behind it.
    #[inline]
    pub(super) fn pop(&mut self, (window, count): Bucket, next: u32) {
        self.heads[at(window * COUNTS + count)] = next;
        if next == NONE {
            let filled = &mut self.filled[at(window)];
            *filled &= !(1 << count);
            self.windows &= !(u32::from(*filled == 0) << window);
        }
    }

    /// The first shelves of all buckets from `window` on.
    pub(super) fn heads_from(&self, window: u8) -> impl Iterator<Item = u32> + '_ {
        let windows = bits(self.windows_from(window));
        let buckets = windows.flat_map(move |window| {
            bits(self.filled[at(window)]).map(move |count| at(window * COUNTS + count))
        });
        buckets.filter_map(|bucket| self.heads.get(bucket).copied())
    }

    /// By bucket: the first shelf, the window and the count.
    #[cfg(test)]
    pub(super) fn buckets(&self) -> Vec<(u32, usize, usize)> {
        let buckets = self.heads.iter().enumerate().map(|(bucket, head)| {
            let (window, count) = (bucket / 32, bucket % 32);
            assert_eq!(*head != NONE, self.filled[window] & (1 << count) != 0);
            assert_eq!(self.filled[window] != 0, self.windows & (1 << window) != 0);
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
