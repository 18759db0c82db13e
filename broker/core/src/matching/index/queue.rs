//! Waiting requests: each in the list of its class, each class in the line of its tenant and tier.
//!
//! Requests that ask for the same are one class: what is found out about one holds for all. A class
//! that found no room *sleeps*: it stands in no line until something wakes it. Lists are intrusive,
//! so that a waiting request costs one entry and nothing else.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use sublet_protocol::ids::RequestId;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Millis, Seconds, Timestamp};

use super::ranked::Ranked;
use super::table::{Table, Words, hash_words, mix, number, push_tight, words};
use super::{ClassNo, FamilyNo, NONE, TenantNo, at};

/// What all requests of a class have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassKey {
    /// Whose they are.
    pub tenant: TenantNo,
    /// What they ask for, but for how long.
    pub family: FamilyNo,
    /// Their rank.
    pub tier: Tier,
    /// Their rank within their tenant and tier.
    pub priority: u8,
    /// How long they will run.
    pub needed: Millis,
    /// How long they may run.
    pub bought: Seconds,
    /// How much GPU each of them takes in all.
    pub gpu: GpuMilli,
}

/// The rank of a request within its line: priority, then first submit time, then size, then id.
type Rank = (Reverse<u8>, Timestamp, Reverse<GpuMilli>, Words);

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: Words,
    submitted_at: Timestamp,
    class: u32,
    next: u32,
    previous: u32,
}

#[derive(Debug, Clone, Copy)]
struct Class {
    key: ClassKey,
    head: u32,
    tail: u32,
    len: u32,
    /// The next that a plan serves; the head between plans.
    cursor: u32,
    is_asleep: bool,
    /// Whether it is for one request that is like no other.
    is_lone: bool,
}

/// The waiting requests of a cell.
#[derive(Debug, Clone)]
pub struct Queue {
    seed: u64,
    entries: Vec<Entry>,
    free_entry: u32,
    by_id: Table,
    classes: Vec<Class>,
    free_classes: Vec<u32>,
    by_key: Table,
    /// By tenant and tier: classes that are awake, by the rank of the request at their cursor.
    lines: Vec<Ranked<Rank>>,
    /// Where a class stands in its line.
    places: Vec<u32>,
    /// By tier: tenants with a class that is awake.
    busy: [BTreeSet<TenantNo>; TIERS],
    len: usize,
}

const TIERS: usize = 3;

const fn tier_number(tier: Tier) -> usize {
    match tier {
        Tier::Opportunistic => 0,
        Tier::Standard => 1,
        Tier::Reserved => 2,
    }
}

fn hash_key(seed: u64, key: &ClassKey) -> u64 {
    let small = u64::from(key.family.0) << 8 | u64::from(key.priority);
    mix(mix(mix(seed, small), key.needed.get()), key.bought.get())
}

impl Queue {
    /// An empty queue. The seed scatters ids over the tables; it changes no answer.
    #[must_use]
    pub fn new(seed: u64) -> Queue {
        Queue {
            seed,
            entries: Vec::new(),
            free_entry: NONE,
            by_id: Table::new(),
            classes: Vec::new(),
            free_classes: Vec::new(),
            by_key: Table::new(),
            lines: Vec::new(),
            places: Vec::new(),
            busy: Default::default(),
            len: 0,
        }
    }

    /// How many requests wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The class of a key, and whether it is new. A new class is awake.
    pub fn class(&mut self, key: ClassKey) -> (ClassNo, bool) {
        let hash = hash_key(self.seed, &key);
        let known = self.by_key.find(hash, |no| self.classes[at(no)].key == key);
        if let Some(known) = known {
            return (ClassNo(known), false);
        }
        let class = self.fresh_class(key, false);
        let (seed, classes) = (self.seed, &self.classes);
        self.by_key.insert(hash, class.0, |no| hash_key(seed, &classes[at(no)].key));
        (class, true)
    }

    /// A class for one request that is like no other, such as one that slices are kept for.
    pub fn lone_class(&mut self, key: ClassKey) -> ClassNo {
        self.fresh_class(key, true)
    }

    fn fresh_class(&mut self, key: ClassKey, is_lone: bool) -> ClassNo {
        let (head, tail, cursor) = (NONE, NONE, NONE);
        let fresh = Class { key, head, tail, len: 0, cursor, is_asleep: false, is_lone };
        let no = if let Some(free) = self.free_classes.pop() {
            self.classes[at(free)] = fresh;
            free
        } else {
            self.classes.push(fresh);
            self.places.push(NONE);
            u32::try_from(self.classes.len() - 1).unwrap_or(NONE)
        };
        ClassNo(no)
    }

    /// What the requests of a class have in common.
    #[must_use]
    pub fn key(&self, class: ClassNo) -> &ClassKey {
        &self.classes[class.at()].key
    }

    /// Whether a class is for one request that is like no other.
    #[must_use]
    pub fn is_lone(&self, class: ClassNo) -> bool {
        self.classes[class.at()].is_lone
    }

    /// How many requests of a class wait.
    #[must_use]
    pub fn class_len(&self, class: ClassNo) -> u32 {
        self.classes[class.at()].len
    }

    /// The class a waiting request is in.
    #[must_use]
    pub fn find(&self, request: RequestId) -> Option<ClassNo> {
        self.entry(request).map(|entry| ClassNo(self.entries[at(entry)].class))
    }

    fn entry(&self, request: RequestId) -> Option<u32> {
        let id = words(request.get());
        self.by_id.find(hash_words(self.seed, id), |no| self.entries[at(no)].id == id)
    }

    /// A request that does not wait yet waits in `class`.
    pub fn arrive(&mut self, request: RequestId, class: ClassNo, submitted_at: Timestamp) {
        let id = words(request.get());
        let fresh = Entry { id, submitted_at, class: class.0, next: NONE, previous: NONE };
        let no = if self.free_entry == NONE {
            push_tight(&mut self.entries, fresh);
            u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
        } else {
            let free = self.free_entry;
            self.free_entry = self.entries[at(free)].next;
            self.entries[at(free)] = fresh;
            free
        };
        let (seed, entries) = (self.seed, &self.entries);
        self.by_id.insert(hash_words(seed, id), no, |no| hash_words(seed, entries[at(no)].id));
        self.len += 1;
        self.link(no, class);
    }

    /// Hangs an entry into its class: almost always at the end, or at the front if it waits again.
    fn link(&mut self, no: u32, class: ClassNo) {
        let rank = |entry: &Entry| (entry.submitted_at, entry.id);
        let own = rank(&self.entries[at(no)]);
        let (head, tail) = (self.classes[class.at()].head, self.classes[class.at()].tail);
        let mut before = tail;
        if head != NONE && own < rank(&self.entries[at(head)]) {
            before = NONE;
        }
        while before != NONE && own < rank(&self.entries[at(before)]) {
            before = self.entries[at(before)].previous;
        }
        let list = &mut self.classes[class.at()];
        list.len += 1;
        let after = if before == NONE {
            std::mem::replace(&mut list.head, no)
        } else {
            std::mem::replace(&mut self.entries[at(before)].next, no)
        };
        if after == NONE {
            list.tail = no;
        } else {
            self.entries[at(after)].previous = no;
        }
        let entry = &mut self.entries[at(no)];
        (entry.next, entry.previous) = (after, before);
        if before == NONE {
            self.rewind(class);
        }
    }

    /// A request does not wait any more. Gives its class, and whether that was its last.
    pub fn leave(&mut self, request: RequestId) -> Option<(ClassNo, bool)> {
        let no = self.entry(request)?;
        let Entry { id, class, next, previous, .. } = self.entries[at(no)];
        let (seed, entries) = (self.seed, &self.entries);
        self.by_id.remove(hash_words(seed, id), no, |no| hash_words(seed, entries[at(no)].id));
        let list = &mut self.classes[at(class)];
        list.len -= 1;
        if previous == NONE {
            list.head = next;
        } else {
            self.entries[at(previous)].next = next;
        }
        if next == NONE {
            list.tail = previous;
        } else {
            self.entries[at(next)].previous = previous;
        }
        self.entries[at(no)].next = self.free_entry;
        self.free_entry = no;
        self.len -= 1;
        let class = ClassNo(class);
        if self.classes[class.at()].head == NONE {
            self.drop_class(class);
            return Some((class, true));
        }
        if previous == NONE {
            self.rewind(class);
        }
        Some((class, false))
    }

    fn drop_class(&mut self, class: ClassNo) {
        let Class { key, is_lone, .. } = self.classes[class.at()];
        let was_empty = self.lines[line_of(&key)].first().is_none();
        self.lines[line_of(&key)].remove(class.0, &mut self.places);
        self.note_busy(class, was_empty);
        if !is_lone {
            let (seed, classes) = (self.seed, &self.classes);
            let hash_of = |no| hash_key(seed, &classes[at(no)].key);
            self.by_key.remove(hash_of(class.0), class.0, hash_of);
        }
        self.free_classes.push(class.0);
    }

    fn rank(&self, class: ClassNo) -> Option<Rank> {
        let Class { key, cursor, .. } = &self.classes[class.at()];
        let entry = self.entries.get(at(*cursor))?;
        Some((Reverse(key.priority), entry.submitted_at, Reverse(key.gpu), entry.id))
    }

    /// Sets the cursor of a class to its first request.
    pub fn rewind(&mut self, class: ClassNo) {
        let head = self.classes[class.at()].head;
        self.classes[class.at()].cursor = head;
        self.stand(class);
    }

    /// Moves the cursor of a class to its next request.
    pub fn advance(&mut self, class: ClassNo) {
        let cursor = self.classes[class.at()].cursor;
        self.classes[class.at()].cursor =
            self.entries.get(at(cursor)).map_or(NONE, |entry| entry.next);
        self.stand(class);
    }

    /// Puts a class where it belongs in its line: nowhere if it sleeps or its cursor is at the end.
    fn stand(&mut self, class: ClassNo) {
        let line = line_of(&self.classes[class.at()].key);
        if line >= self.lines.len() {
            self.lines.resize_with(line + 1, Ranked::new);
        }
        let was_empty = self.lines[line].first().is_none();
        match self.rank(class).filter(|_| !self.classes[class.at()].is_asleep) {
            Some(rank) => self.lines[line].set(class.0, rank, &mut self.places),
            None => self.lines[line].remove(class.0, &mut self.places),
        }
        self.note_busy(class, was_empty);
    }

    /// Keeps the tenants that have a class awake.
    fn note_busy(&mut self, class: ClassNo, was_empty: bool) {
        let ClassKey { tenant, tier, .. } = self.classes[class.at()].key;
        let is_empty = self.lines[tenant.at() * TIERS + tier_number(tier)].first().is_none();
        match (was_empty, is_empty) {
            (true, false) => self.busy[tier_number(tier)].insert(tenant),
            (false, true) => self.busy[tier_number(tier)].remove(&tenant),
            (true, true) | (false, false) => return,
        };
    }

    /// Tenants with a class of the tier that is awake.
    pub fn busy(&self, tier: Tier) -> impl Iterator<Item = TenantNo> + '_ {
        self.busy[tier_number(tier)].iter().copied()
    }

    /// A class found no room: it leaves its line.
    pub fn sleep(&mut self, class: ClassNo) {
        self.classes[class.at()].is_asleep = true;
        self.stand(class);
    }

    /// Something has changed for a class.
    pub fn wake(&mut self, class: ClassNo) {
        if self.classes[class.at()].is_asleep {
            self.classes[class.at()].is_asleep = false;
            self.stand(class);
        }
    }

    /// Whether a class sleeps.
    #[must_use]
    pub fn is_asleep(&self, class: ClassNo) -> bool {
        self.classes[class.at()].is_asleep
    }

    /// Wakes every class.
    pub fn wake_all(&mut self) {
        for no in 0..self.classes.len() {
            if self.classes[no].head != NONE {
                self.wake(ClassNo(u32::try_from(no).unwrap_or(NONE)));
            }
        }
    }

    /// The best request of a tenant and tier among the classes that are awake.
    #[must_use]
    pub fn first(&self, tenant: TenantNo, tier: Tier) -> Option<(ClassNo, RequestId)> {
        let line = self.lines.get(tenant.at() * TIERS + tier_number(tier))?;
        line.first().map(|((_, _, _, id), class)| (ClassNo(class), RequestId::new(number(id))))
    }

    /// The requests of a class in order.
    pub fn requests(&self, class: ClassNo) -> impl Iterator<Item = RequestId> + '_ {
        let mut next = self.classes[class.at()].head;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at(next))?;
            next = entry.next;
            Some(RequestId::new(number(entry.id)))
        })
    }

    /// Every class that holds a request.
    pub fn classes(&self) -> impl Iterator<Item = ClassNo> + '_ {
        let numbers = 0..u32::try_from(self.classes.len()).unwrap_or(NONE);
        numbers.map(ClassNo).filter(|class| self.classes[class.at()].head != NONE)
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let lines: usize = self.lines.iter().map(Ranked::bytes).sum();
        self.entries.capacity() * size_of::<Entry>()
            + self.classes.capacity() * (size_of::<Class>() + size_of::<u32>())
            + self.lines.capacity() * size_of::<Ranked<Rank>>()
            + lines
            + self.by_id.bytes()
            + self.by_key.bytes()
    }
}

fn line_of(key: &ClassKey) -> usize {
    key.tenant.at() * TIERS + tier_number(key.tier)
}
