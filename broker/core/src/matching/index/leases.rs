//! Running leases in pools, each pool by who gives way first: what a reclaim or a preemption looks
//! through, without a look at the leases that stay.
//!
//! A lease that is guarded (it has not run for its minimum time) is in no pool until a timer says
//! that its guard is over.

use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::Timestamp;

use super::ranked::Ranked;
use super::table::{Table, Words, hash_words, number, push_tight, words};
use super::wheel::{Wheel, tick};
use super::{NONE, PoolNo, at};

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: Words,
    rank: u64,
    /// What it holds, in thousandths of a GPU.
    gpu: u32,
    pool: u32,
    guarded_until: Timestamp,
    /// The next entry that is not used.
    next_free: u32,
}

/// What is known of a running lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// With which it competes.
    pub pool: PoolNo,
    /// Its place among them: the lowest gives way first.
    pub rank: u64,
    /// What it holds, in thousandths of a GPU.
    pub gpu: u32,
    /// Until when it gives way to nobody.
    pub guarded_until: Timestamp,
}

/// The running leases of a cell.
#[derive(Debug, Clone)]
pub struct Leases {
    seed: u64,
    entries: Vec<Entry>,
    free: u32,
    by_id: Table,
    pools: Vec<Ranked<u64>>,
    places: Vec<u32>,
    guards: Wheel,
    /// Leases whose guard ends within the tick that has begun.
    soon: Vec<u32>,
    now: Timestamp,
    len: usize,
}

impl Leases {
    /// None, at `now`. The seed scatters ids over the tables; it changes no answer.
    #[must_use]
    pub fn new(seed: u64, now: Timestamp) -> Leases {
        Leases {
            seed,
            entries: Vec::new(),
            free: NONE,
            by_id: Table::new(),
            pools: Vec::new(),
            places: Vec::new(),
            guards: Wheel::new(tick(now)),
            soon: Vec::new(),
            now,
            len: 0,
        }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn find(&self, lease: LeaseId) -> Option<u32> {
        let id = words(lease.get());
        self.by_id.find(hash_words(self.seed, id), |no| self.entries[at(no)].id == id)
    }

    /// A lease runs, or its standing has changed. Whether it could give way at once.
    pub fn put(&mut self, lease: LeaseId, standing: Standing) -> bool {
        self.remove(lease);
        let Standing { pool, rank, gpu, guarded_until } = standing;
        let fresh = Entry {
            id: words(lease.get()),
            rank,
            gpu,
            pool: pool.0,
            guarded_until,
            next_free: NONE,
        };
        let no = if self.free == NONE {
            push_tight(&mut self.entries, fresh);
            push_tight(&mut self.places, NONE);
            u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
        } else {
            let free = self.free;
            self.free = self.entries[at(free)].next_free;
            self.entries[at(free)] = fresh;
            free
        };
        let (seed, entries) = (self.seed, &self.entries);
        self.by_id
            .insert(hash_words(seed, fresh.id), no, |no| hash_words(seed, entries[at(no)].id));
        self.len += 1;
        if pool.at() >= self.pools.len() {
            self.pools.resize_with(pool.at() + 1, Ranked::new);
        }
        let is_free = guarded_until <= self.now;
        if is_free {
            self.pools[pool.at()].set(no, rank, &mut self.places);
        } else {
            self.guards.set(no, tick(guarded_until));
        }
        is_free
    }

    /// A lease does not run any more.
    pub fn remove(&mut self, lease: LeaseId) {
        let Some(no) = self.find(lease) else { return };
        let entry = self.entries[at(no)];
        let (seed, entries) = (self.seed, &self.entries);
        self.by_id
            .remove(hash_words(seed, entry.id), no, |no| hash_words(seed, entries[at(no)].id));
        self.pools[at(entry.pool)].remove(no, &mut self.places);
        self.guards.cancel(no);
        self.soon.retain(|other| *other != no);
        self.entries[at(no)].next_free = self.free;
        self.free = no;
        self.len -= 1;
    }

    /// Time has passed: guards that are over end. Gives the pools that gained a lease.
    pub fn advance(&mut self, now: Timestamp, mut on_gain: impl FnMut(PoolNo)) {
        let soon = &mut self.soon;
        self.guards.advance(tick(now), |no| soon.push(no));
        let (entries, pools, places) = (&self.entries, &mut self.pools, &mut self.places);
        // A tick is coarser than a guard: within it, look at each.
        soon.retain(|no| {
            let Entry { pool, rank, guarded_until, .. } = entries[at(*no)];
            let is_over = guarded_until <= now;
            if is_over {
                pools[at(pool)].set(*no, rank, places);
                on_gain(PoolNo(pool));
            }
            !is_over
        });
        self.now = self.now.max(now);
    }

    /// The leases of a pool that are not guarded, who gives way first before the others, with what
    /// each holds in thousandths of a GPU.
    pub fn giving_way(&self, pool: PoolNo) -> impl Iterator<Item = (LeaseId, u32)> + '_ {
        let pool = self.pools.get(pool.at()).into_iter();
        pool.flat_map(Ranked::in_order).map(|(_, no)| {
            let entry = &self.entries[at(no)];
            (LeaseId::new(number(entry.id)), entry.gpu)
        })
    }

    /// Whether a pool holds a lease that is not guarded.
    #[must_use]
    pub fn gives_way(&self, pool: PoolNo) -> bool {
        self.pools.get(pool.at()).is_some_and(|pool| pool.first().is_some())
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.places.capacity() * size_of::<u32>()
            + self.pools.iter().map(Ranked::bytes).sum::<usize>()
            + self.pools.capacity() * size_of::<Ranked<u64>>()
            + self.by_id.bytes()
            + self.guards.bytes()
    }
}
