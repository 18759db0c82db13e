//! Running leases in pools, each pool by who gives way first: what a reclaim or a preemption looks
//! through, without a look at the leases that stay.
//!
//! A pool is a list by rank. The rank of a lease that starts is near the front (what has run least has
//! the least to lose), so a lease finds its place there in a few steps, and those that give way are
//! the first of the list.
//!
//! A lease that is guarded (it has not run for its minimum time) is in no pool until a timer says
//! that its guard is over.

use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::Timestamp;

use super::table::{Chained, Table, Words, hash_words, number, push_tight, words};
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
    /// The next in its pool; of an entry that is not used, the next of those.
    next: u32,
    previous: u32,
    chain: u32,
    is_listed: bool,
}

impl Chained for Entry {
    fn hash(&self, seed: u64) -> u64 {
        hash_words(seed, self.id)
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn chain_mut(&mut self) -> &mut u32 {
        &mut self.chain
    }
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
    /// By pool: who gives way first.
    pools: Vec<u32>,
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
            next: NONE,
            previous: NONE,
            chain: NONE,
            is_listed: false,
        };
        let no = if let Some(free) = self.entries.get_mut(at(self.free)) {
            let no = std::mem::replace(&mut self.free, free.next);
            *free = fresh;
            no
        } else {
            push_tight(&mut self.entries, fresh);
            u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
        };
        self.by_id.insert(&mut self.entries, self.seed, no);
        self.len += 1;
        if pool.at() >= self.pools.len() {
            self.pools.resize(pool.at() + 1, NONE);
        }
        let is_free = guarded_until <= self.now;
        if is_free {
            list(&mut self.entries, &mut self.pools, no);
        } else if tick(guarded_until) <= tick(self.now) {
            self.soon.push(no);
        } else {
            self.guards.set(no, tick(guarded_until));
        }
        is_free
    }

    /// A lease does not run any more.
    pub fn remove(&mut self, lease: LeaseId) {
        let id = words(lease.get());
        let hash = hash_words(self.seed, id);
        let known = self.by_id.remove(&mut self.entries, hash, |_, entry| entry.id == id);
        let Some(no) = known else { return };
        let entry = self.entries[at(no)];
        if entry.is_listed {
            self.unlist(entry);
        } else {
            self.guards.cancel(no);
            self.soon.retain(|other| *other != no);
        }
        self.entries[at(no)].next = self.free;
        self.free = no;
        self.len -= 1;
    }

    /// Time has passed: guards that are over end. Gives the pools that gained a lease.
    pub fn advance(&mut self, now: Timestamp, mut on_gain: impl FnMut(PoolNo)) {
        let soon = &mut self.soon;
        self.guards.advance(tick(now), |no| soon.push(no));
        let (entries, pools) = (&mut self.entries, &mut self.pools);
        // A tick is coarser than a guard: within it, look at each.
        soon.retain(|no| {
            let Entry { pool, guarded_until, .. } = entries[at(*no)];
            let is_over = guarded_until <= now;
            if is_over {
                list(entries, pools, *no);
                on_gain(PoolNo(pool));
            }
            !is_over
        });
        self.now = self.now.max(now);
    }

    fn unlist(&mut self, Entry { pool, next, previous, .. }: Entry) {
        if previous == NONE {
            self.pools[at(pool)] = next;
        } else {
            self.entries[at(previous)].next = next;
        }
        if next != NONE {
            self.entries[at(next)].previous = previous;
        }
    }

    /// The leases of a pool that are not guarded, who gives way first before the others, with what
    /// each holds in thousandths of a GPU.
    pub fn giving_way(&self, pool: PoolNo) -> impl Iterator<Item = (LeaseId, u32)> + '_ {
        let mut next = self.pools.get(pool.at()).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let entry = self.entries.get(at(next))?;
            next = entry.next;
            Some((LeaseId::new(number(entry.id)), entry.gpu))
        })
    }

    /// Whether a pool holds a lease that is not guarded.
    #[must_use]
    pub fn gives_way(&self, pool: PoolNo) -> bool {
        self.pools.get(pool.at()).is_some_and(|first| *first != NONE)
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.pools.capacity() * size_of::<u32>()
            + self.by_id.bytes()
            + self.guards.bytes()
    }
}

/// Puts a lease into the list of its pool: before the first that does not give way before it.
fn list(entries: &mut [Entry], pools: &mut [u32], no: u32) {
    let Entry { pool, rank, id, .. } = entries[at(no)];
    let (mut before, mut after) = (NONE, pools[at(pool)]);
    while let Some(entry) = entries.get(at(after)) {
        if (rank, id) <= (entry.rank, entry.id) {
            break;
        }
        (before, after) = (after, entry.next);
    }
    match before {
        NONE => pools[at(pool)] = no,
        before => entries[at(before)].next = no,
    }
    if after != NONE {
        entries[at(after)].previous = no;
    }
    let entry = &mut entries[at(no)];
    (entry.next, entry.previous, entry.is_listed) = (after, before, true);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn those_give_way_whose_guard_is_over_by_rank_and_then_by_id(
            steps in prop::collection::vec((0_u128..12, 0_u64..5, 0_u64..5_000, 0_u8..4), 1..120),
        ) {
            let mut now = Timestamp::new(1_700_000_000_000);
            let (mut leases, mut model) = (Leases::new(3, now), BTreeMap::new());
            for (id, rank, span, kind) in steps {
                match kind {
                    0 | 1 => {
                        let guarded_until = Timestamp::new(now.get() + span);
                        let standing = Standing { pool: PoolNo(1), rank, gpu: 1, guarded_until };
                        leases.put(LeaseId::new(id), standing);
                        model.insert(id, (rank, guarded_until));
                    }
                    2 => {
                        leases.remove(LeaseId::new(id));
                        model.remove(&id);
                    }
                    _ => {
                        now = Timestamp::new(now.get() + span);
                        let before = leases.giving_way(PoolNo(1)).count();
                        let mut gained = 0;
                        leases.advance(now, |_| gained += 1);
                        prop_assert_eq!(leases.giving_way(PoolNo(1)).count(), before + gained);
                    }
                }
                let over = model.iter().filter(|(_, (_, until))| *until <= now);
                let mut expected: Vec<_> = over.map(|(id, (rank, _))| (*rank, *id)).collect();
                expected.sort_unstable();
                let expected: Vec<_> = expected.iter().map(|(_, id)| LeaseId::new(*id)).collect();
                let found: Vec<_> = leases.giving_way(PoolNo(1)).map(|(id, _)| id).collect();
                prop_assert_eq!(found, expected);
                prop_assert_eq!(leases.len(), model.len());
            }
        }
    }
}
