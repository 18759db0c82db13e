//! Waiting requests: each in the list of its class, each class in the line of its tenant and tier.
//!
//! Requests that ask for the same are one class: what is found out about one holds for all. A class
//! that found no room *sleeps*: it stands in no line until something wakes it. Lists are intrusive,
//! so that a waiting request costs one entry and nothing else.

use std::cmp::Reverse;

use sublet_protocol::ids::RequestId;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Millis, Seconds, Timestamp};

use super::ranked::{Ranked, Ranking};
use super::table::{Chained, Table, Words, hash_words, mix, number, push_tight, words};
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
    /// The next of its class; of an entry that is not used, the next of those.
    next: u32,
    previous: u32,
    chain: u32,
}

impl Entry {
    /// Its place among those of its class: the lowest is served first.
    const fn rank(&self) -> (Timestamp, Words) {
        (self.submitted_at, self.id)
    }
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

#[derive(Debug, Clone, Copy)]
struct Class {
    key: ClassKey,
    head: u32,
    tail: u32,
    len: u32,
    /// The next that a plan serves; the head between plans.
    cursor: u32,
    /// Where it stands in its line, if it does.
    place: u32,
    chain: u32,
    is_asleep: bool,
    /// Whether it is for one request that is like no other.
    is_lone: bool,
}

impl Chained for Class {
    fn hash(&self, seed: u64) -> u64 {
        hash_key(seed, &self.key)
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn chain_mut(&mut self) -> &mut u32 {
        &mut self.chain
    }
}

/// The classes, and the requests at their cursors: what lines are ranked by.
struct Ranks<'q> {
    classes: &'q mut [Class],
    entries: &'q [Entry],
}

impl Ranks<'_> {
    fn rank(&self, class: u32) -> Option<Rank> {
        let Class { key, cursor, .. } = &self.classes[at(class)];
        let entry = self.entries.get(at(*cursor))?;
        Some((Reverse(key.priority), entry.submitted_at, Reverse(key.gpu), entry.id))
    }
}

impl Ranking for Ranks<'_> {
    fn is_before(&self, item: u32, other: u32) -> bool {
        (self.rank(item), item) < (self.rank(other), other)
    }

    fn place(&self, item: u32) -> u32 {
        self.classes[at(item)].place
    }

    fn set_place(&mut self, item: u32, place: u32) {
        self.classes[at(item)].place = place;
    }
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
    lines: Vec<Ranked>,
    /// By tenant: a bit for each tier in which a class is awake.
    awake: Vec<u8>,
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
            awake: Vec::new(),
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
        let known = self.by_key.find(&self.classes, hash, |class| class.key == key);
        if let Some(known) = known {
            return (ClassNo(known), false);
        }
        let class = self.fresh_class(key, false);
        self.by_key.insert(&mut self.classes, self.seed, class.0);
        (class, true)
    }

    /// A class for one request that is like no other, such as one that slices are kept for.
    pub fn lone_class(&mut self, key: ClassKey) -> ClassNo {
        self.fresh_class(key, true)
    }

    fn fresh_class(&mut self, key: ClassKey, is_lone: bool) -> ClassNo {
        let fresh = Class {
            key,
            head: NONE,
            tail: NONE,
            len: 0,
            cursor: NONE,
            place: NONE,
            chain: NONE,
            is_asleep: false,
            is_lone,
        };
        let no = if let Some(free) = self.free_classes.pop() {
            self.classes[at(free)] = fresh;
            free
        } else {
            self.classes.push(fresh);
            u32::try_from(self.classes.len() - 1).unwrap_or(NONE)
        };
        ClassNo(no)
    }

    /// What the requests of a class have in common.
    #[must_use]
    #[inline]
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
        self.by_id.find(&self.entries, hash_words(self.seed, id), |entry| entry.id == id)
    }

    /// A request that does not wait yet waits in `class`.
    #[inline]
    pub fn arrive(&mut self, request: RequestId, class: ClassNo, submitted_at: Timestamp) {
        let id = words(request.get());
        let (next, previous, chain) = (NONE, NONE, NONE);
        let fresh = Entry { id, submitted_at, class: class.0, next, previous, chain };
        let no = if let Some(free) = self.entries.get_mut(at(self.free_entry)) {
            let no = std::mem::replace(&mut self.free_entry, free.next);
            *free = fresh;
            no
        } else {
            push_tight(&mut self.entries, fresh);
            u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
        };
        self.by_id.insert(&mut self.entries, self.seed, no);
        self.len += 1;
        self.link(no, class);
    }

    /// Hangs an entry into its class: almost always at the end, or at the front if it waits again.
    #[inline]
    fn link(&mut self, no: u32, class: ClassNo) {
        let own = self.entries[at(no)].rank();
        let list = &mut self.classes[class.at()];
        list.len += 1;
        if let Some(last) = self.entries.get_mut(at(list.tail))
            && last.rank() <= own
        {
            last.next = no;
            self.entries[at(no)].previous = std::mem::replace(&mut list.tail, no);
            return;
        }
        self.link_before_others(no, class);
    }

    /// As [`Queue::link`], for an entry that is not the last of its class, or its first.
    fn link_before_others(&mut self, no: u32, class: ClassNo) {
        let own = self.entries[at(no)].rank();
        let list = &mut self.classes[class.at()];
        let is_behind = |other: u32| self.entries.get(at(other)).is_some_and(|e| e.rank() <= own);
        let mut before = if is_behind(list.head) { list.tail } else { NONE };
        while before != NONE && !is_behind(before) {
            before = self.entries[at(before)].previous;
        }
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
    #[inline]
    pub fn leave(&mut self, request: RequestId) -> Option<(ClassNo, bool)> {
        let id = words(request.get());
        let hash = hash_words(self.seed, id);
        let no = self.by_id.remove(&mut self.entries, hash, |_, entry| entry.id == id)?;
        let entry = &mut self.entries[at(no)];
        let (class, previous) = (ClassNo(entry.class), entry.previous);
        let next = std::mem::replace(&mut entry.next, std::mem::replace(&mut self.free_entry, no));
        let list = &mut self.classes[class.at()];
        list.len -= 1;
        match self.entries.get_mut(at(previous)) {
            Some(before) => before.next = next,
            None => list.head = next,
        }
        match self.entries.get_mut(at(next)) {
            Some(after) => after.previous = previous,
            None => list.tail = previous,
        }
        self.len -= 1;
        if list.head == NONE {
            self.drop_class(class);
            return Some((class, true));
        }
        if previous == NONE {
            self.rewind(class);
        }
        Some((class, false))
    }

    fn drop_class(&mut self, class: ClassNo) {
        self.classes[class.at()].cursor = NONE;
        self.stand(class);
        let Class { key, is_lone, .. } = self.classes[class.at()];
        if !is_lone {
            let hash = hash_key(self.seed, &key);
            self.by_key.remove(&mut self.classes, hash, |no, _| no == class.0);
        }
        self.free_classes.push(class.0);
    }

    /// Sets the cursor of a class to its first request.
    #[inline]
    pub fn rewind(&mut self, class: ClassNo) {
        let entry = &mut self.classes[class.at()];
        entry.cursor = entry.head;
        self.stand(class);
    }

    /// Moves the cursor of a class to its next request.
    pub fn advance(&mut self, class: ClassNo) {
        let entry = &mut self.classes[class.at()];
        entry.cursor = self.entries.get(at(entry.cursor)).map_or(NONE, |entry| entry.next);
        self.stand(class);
    }

    /// Puts a class where it belongs in its line: nowhere if it sleeps or its cursor is at the end.
    #[inline]
    fn stand(&mut self, class: ClassNo) {
        let Class { key, cursor, is_asleep, .. } = &self.classes[class.at()];
        // Most classes are alone in their lines, and stay there.
        let line = self.lines.get(key.tenant.at() * TIERS + tier_number(key.tier));
        let is_alone = line.is_some_and(|line| line.is_only(class.0));
        if !is_alone || *is_asleep || *cursor == NONE {
            self.place(class);
        }
    }

    fn place(&mut self, class: ClassNo) {
        let Class { key, cursor, is_asleep, .. } = self.classes[class.at()];
        let (tenant, tier) = (key.tenant.at(), tier_number(key.tier));
        if tenant >= self.awake.len() {
            self.awake.resize(tenant + 1, 0);
            self.lines.resize_with((tenant + 1) * TIERS, Ranked::new);
        }
        let line = &mut self.lines[tenant * TIERS + tier];
        let mut ranks = Ranks { classes: &mut self.classes, entries: &self.entries };
        if is_asleep || cursor == NONE {
            line.remove(class.0, &mut ranks);
        } else {
            line.set(class.0, &mut ranks);
        }
        let bit = 1 << tier;
        let others = self.awake[tenant] & !bit;
        self.awake[tenant] = others | if line.is_empty() { 0 } else { bit };
    }

    /// Tenants with a class of the tier that is awake.
    pub fn busy(&self, tier: Tier) -> impl Iterator<Item = TenantNo> + '_ {
        let tenants = self.awake.iter().zip(0..);
        let busy = tenants.filter(move |(tiers, _)| **tiers & (1 << tier_number(tier)) != 0);
        busy.map(|(_, tenant)| TenantNo(tenant))
    }

    /// The highest tier in which the tenant has a class that is awake.
    #[must_use]
    #[inline]
    pub fn highest(&self, tenant: TenantNo) -> Option<Tier> {
        let tiers = self.awake.get(tenant.at())?;
        tiers.checked_ilog2().map(|highest| match highest {
            0 => Tier::Opportunistic,
            1 => Tier::Standard,
            _two => Tier::Reserved,
        })
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
    #[inline]
    pub fn first(&self, tenant: TenantNo, tier: Tier) -> Option<(ClassNo, RequestId)> {
        let line = self.lines.get(tenant.at() * TIERS + tier_number(tier))?;
        let class = line.first()?;
        let entry = self.entries.get(at(self.classes[at(class)].cursor))?;
        Some((ClassNo(class), RequestId::new(number(entry.id))))
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
        self.awake.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.classes.capacity() * size_of::<Class>()
            + self.free_classes.capacity() * size_of::<u32>()
            + self.lines.capacity() * size_of::<Ranked>()
            + lines
            + self.by_id.bytes()
            + self.by_key.bytes()
    }
}
