//! Free slices: those of one kind on one node lie on a shelf, and the shelves of a lot hang in
//! buckets by how long their best slice lasts and how many slices they hold.
//!
//! What lasts long enough and stands together is found by looking at bit masks, not at slices. How
//! long a slice lasts is noted when it is offered and only shrinks afterwards, so a shelf may be
//! shown that does not last any more; one that does is never left out.

use sublet_protocol::capacity::{Capacity, Isolation, Part, SliceId};
use sublet_protocol::ids::{ClusterId, DeviceId, NodeId};
use sublet_protocol::units::Millis;

use super::table::{Table, Words, hash_text, hash_words, mix, number, push_tight, words};
use super::{LotNo, NONE, NodeNo, SlotNo, at};

/// Windows of idle time, each twice as long as the one before; the last has no end.
const WINDOWS: u8 = 16;
/// Free counts told apart; the last stands for it and more.
const COUNTS: u32 = 32;
/// Lots without slices that are remembered, so that a lot that empties and fills is not forgotten.
const EMPTY_LOTS_MAX: usize = 256;

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

    fn hash(&self, seed: u64) -> u64 {
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
fn pack(part: Part) -> u32 {
    match part {
        Part::Whole => 0,
        Part::Mig { profile, start } => 1 << 16 | u32::from(profile) << 8 | u32::from(start),
        Part::Share { index } => 2 << 16 | u32::from(index),
    }
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    device: Words,
    part: u32,
    shelf: u32,
    next: u32,
    previous: u32,
    window: u8,
}

#[derive(Debug, Clone, Copy)]
struct Shelf {
    lot: u32,
    node: u32,
    /// Its slots.
    head: u32,
    /// The next shelf of its node; of a shelf that is not used, the next of those.
    on_node: u32,
    next: u32,
    previous: u32,
    free: u16,
    window: u8,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    cluster: u32,
    name: NodeId,
    shelves: u32,
}

#[derive(Debug, Clone)]
struct Lot {
    kind: Kind,
    shelves: u32,
    /// Which windows have a shelf.
    windows: u32,
    /// By window: which counts have a shelf.
    filled: [u32; 16],
    /// By window and count: the first shelf.
    heads: Vec<u32>,
}

/// The free slices of a cell.
#[derive(Debug, Clone)]
pub struct Shelves {
    seed: u64,
    clusters: Vec<ClusterId>,
    nodes: Vec<Node>,
    by_name: Table,
    lots: Vec<Option<Lot>>,
    by_kind: Table,
    empty_lots: usize,
    shelves: Vec<Shelf>,
    free_shelf: u32,
    slots: Vec<Slot>,
    free_slot: u32,
    by_slice: Table,
    len: usize,
}

/// GPUs have ids of their own, so that the node adds nothing.
fn hash_slice(seed: u64, device: Words, part: u32) -> u64 {
    hash_words(seed ^ u64::from(part), device)
}

impl Shelves {
    /// No slices. The seed scatters ids over the tables; it changes no answer.
    #[must_use]
    pub fn new(seed: u64) -> Shelves {
        Shelves {
            seed,
            clusters: Vec::new(),
            nodes: Vec::new(),
            by_name: Table::new(),
            lots: Vec::new(),
            by_kind: Table::new(),
            empty_lots: 0,
            shelves: Vec::new(),
            free_shelf: NONE,
            slots: Vec::new(),
            free_slot: NONE,
            by_slice: Table::new(),
            len: 0,
        }
    }

    /// How many slices lie here.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn hash_node(&self, cluster: ClusterId, name: NodeId) -> u64 {
        let seed = hash_text(self.seed, cluster.as_str().as_bytes());
        hash_text(seed, name.as_str().as_bytes())
    }

    fn node_name(&self, node: u32) -> (ClusterId, NodeId) {
        let Node { cluster, name, .. } = self.nodes[at(node)];
        (self.clusters[at(cluster)], name)
    }

    /// The node of an ordinal.
    #[must_use]
    pub fn name(&self, node: NodeNo) -> (ClusterId, NodeId) {
        self.node_name(node.0)
    }

    /// The ordinal of a node, if it ever had a slice here.
    #[must_use]
    pub fn find_node(&self, cluster: ClusterId, name: NodeId) -> Option<NodeNo> {
        let hash = self.hash_node(cluster, name);
        self.by_name.find(hash, |no| self.node_name(no) == (cluster, name)).map(NodeNo)
    }

    /// The ordinal of a node, a new one if need be.
    pub fn node(&mut self, cluster: ClusterId, name: NodeId) -> NodeNo {
        if let Some(known) = self.find_node(cluster, name) {
            return known;
        }
        let cluster_no = match self.clusters.iter().position(|known| *known == cluster) {
            Some(known) => known,
            None => {
                self.clusters.push(cluster);
                self.clusters.len() - 1
            }
        };
        let no = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        let cluster_no = u32::try_from(cluster_no).unwrap_or(NONE);
        push_tight(&mut self.nodes, Node { cluster: cluster_no, name, shelves: NONE });
        let hash = self.hash_node(cluster, name);
        let mut table = std::mem::replace(&mut self.by_name, Table::new());
        table.insert(hash, no, |no| {
            let (cluster, name) = self.node_name(no);
            self.hash_node(cluster, name)
        });
        self.by_name = table;
        NodeNo(no)
    }

    /// The lot of a kind, if it is known.
    #[must_use]
    pub fn find_lot(&self, kind: &Kind) -> Option<LotNo> {
        let is_meant = |no| self.lots[at(no)].as_ref().is_some_and(|lot| lot.kind == *kind);
        self.by_kind.find(kind.hash(self.seed), is_meant).map(LotNo)
    }

    /// The lot of a kind, and whether it is new.
    pub fn lot(&mut self, kind: &Kind) -> (LotNo, bool) {
        let hash = kind.hash(self.seed);
        if let Some(known) = self.find_lot(kind) {
            return (known, false);
        }
        if self.empty_lots > EMPTY_LOTS_MAX {
            self.forget_empty_lots();
        }
        self.empty_lots += 1;
        let fresh =
            Some(Lot { kind: *kind, shelves: 0, windows: 0, filled: [0; 16], heads: Vec::new() });
        let no = match self.lots.iter().position(Option::is_none) {
            Some(free) => {
                self.lots[free] = fresh;
                free
            }
            None => {
                self.lots.push(fresh);
                self.lots.len() - 1
            }
        };
        let no = u32::try_from(no).unwrap_or(NONE);
        let (seed, lots) = (self.seed, &self.lots);
        self.by_kind.insert(hash, no, |no| lots[at(no)].as_ref().map_or(0, |l| l.kind.hash(seed)));
        (LotNo(no), true)
    }

    fn forget_empty_lots(&mut self) {
        let (seed, lots) = (self.seed, &self.lots);
        let hash_of = |no| lots[at(no)].as_ref().map_or(0, |lot| lot.kind.hash(seed));
        let mut gone = Vec::new();
        for (no, lot) in lots.iter().enumerate() {
            if lot.as_ref().is_some_and(|lot| lot.shelves == 0) {
                let no = u32::try_from(no).unwrap_or(NONE);
                self.by_kind.remove(hash_of(no), no, hash_of);
                gone.push(no);
            }
        }
        for no in gone {
            self.lots[at(no)] = None;
        }
        self.empty_lots = 0;
    }

    /// What the slices of a lot have in common; nothing if the lot was forgotten.
    #[must_use]
    pub fn kind(&self, lot: LotNo) -> Option<&Kind> {
        self.lots.get(lot.at())?.as_ref().map(|lot| &lot.kind)
    }

    /// Lots that hold a slice or did not long ago.
    pub fn known_lots(&self) -> impl Iterator<Item = LotNo> + '_ {
        let numbers = self.lots.iter().zip(0..).filter(|(lot, _)| lot.is_some());
        numbers.map(|(_, no)| LotNo(no))
    }

    /// Lots that hold a slice.
    pub fn lots(&self) -> impl Iterator<Item = LotNo> + '_ {
        let filled = |lot: &Option<Lot>| lot.as_ref().is_some_and(|lot| lot.shelves > 0);
        let numbers = self.lots.iter().zip(0..).filter(move |(lot, _)| filled(lot));
        numbers.map(|(_, no)| LotNo(no))
    }

    fn find(&self, node: u32, device: Words, part: u32) -> Option<u32> {
        let hash = hash_slice(self.seed, device, part);
        self.by_slice.find(hash, |no| {
            let slot = &self.slots[at(no)];
            (slot.device, slot.part) == (device, part) && self.shelves[at(slot.shelf)].node == node
        })
    }

    /// Where a slice lies, if it lies here.
    #[must_use]
    pub fn find_slot(&self, node: NodeNo, device: DeviceId, part: Part) -> Option<SlotNo> {
        self.find(node.0, words(device.get()), pack(part)).map(SlotNo)
    }

    /// The lot a slice lies in.
    #[must_use]
    pub fn lot_of(&self, slot: SlotNo) -> LotNo {
        LotNo(self.shelves[at(self.slots[slot.at()].shelf)].lot)
    }

    /// The node a slice is on.
    #[must_use]
    pub fn node_of(&self, slot: SlotNo) -> NodeNo {
        NodeNo(self.shelves[at(self.slots[slot.at()].shelf)].node)
    }

    /// The GPU a slice is on.
    #[must_use]
    pub fn device(&self, slot: SlotNo) -> DeviceId {
        DeviceId::new(number(self.slots[slot.at()].device))
    }

    /// A slice is free and lasts for `window`. It must not lie here.
    pub fn put(
        &mut self,
        (node, lot): (NodeNo, LotNo),
        (device, part): (DeviceId, Part),
        window: u8,
    ) -> SlotNo {
        let shelf = self.shelf(node, lot);
        let (device, part) = (words(device.get()), pack(part));
        let head = self.shelves[at(shelf)].head;
        let fresh = Slot { device, part, shelf, next: head, previous: NONE, window };
        let no = if self.free_slot == NONE {
            push_tight(&mut self.slots, fresh);
            u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
        } else {
            let free = self.free_slot;
            self.free_slot = self.slots[at(free)].next;
            self.slots[at(free)] = fresh;
            free
        };
        if head != NONE {
            self.slots[at(head)].previous = no;
        }
        self.len += 1;
        let (seed, slots) = (self.seed, &self.slots);
        let hash_of = |no| hash_slice(seed, slots[at(no)].device, slots[at(no)].part);
        self.by_slice.insert(hash_slice(seed, device, part), no, hash_of);
        let entry = self.shelves[at(shelf)];
        if entry.free > 0 {
            self.unhang(shelf);
        }
        let entry = &mut self.shelves[at(shelf)];
        entry.head = no;
        entry.free = entry.free.saturating_add(1);
        entry.window = entry.window.max(window);
        self.hang(shelf);
        SlotNo(no)
    }

    /// A slice is not free any more.
    pub fn take(&mut self, slot: SlotNo) {
        let Slot { device, part, shelf, next, previous, window } = self.slots[slot.at()];
        let (seed, slots) = (self.seed, &self.slots);
        let hash_of = |no| hash_slice(seed, slots[at(no)].device, slots[at(no)].part);
        self.by_slice.remove(hash_slice(seed, device, part), slot.0, hash_of);
        self.unhang(shelf);
        if previous == NONE {
            self.shelves[at(shelf)].head = next;
        } else {
            self.slots[at(previous)].next = next;
        }
        if next != NONE {
            self.slots[at(next)].previous = previous;
        }
        self.slots[slot.at()].next = self.free_slot;
        self.free_slot = slot.0;
        self.len -= 1;
        let known = self.shelves[at(shelf)].window;
        let longest = if known == window { self.longest(shelf, known) } else { known };
        let entry = &mut self.shelves[at(shelf)];
        entry.free -= 1;
        entry.window = longest;
        if entry.free > 0 {
            self.hang(shelf);
        } else {
            self.drop_shelf(shelf);
        }
    }

    /// The longest window on a shelf that had one of `known`.
    fn longest(&self, shelf: u32, known: u8) -> u8 {
        let (mut next, mut longest) = (self.shelves[at(shelf)].head, 0);
        while let Some(slot) = self.slots.get(at(next)) {
            longest = slot.window.max(longest);
            if longest == known {
                break;
            }
            next = slot.next;
        }
        longest
    }

    /// The shelf of a node and lot, a new one if need be.
    fn shelf(&mut self, node: NodeNo, lot: LotNo) -> u32 {
        let first = self.nodes[node.at()].shelves;
        let mut known = first;
        while let Some(shelf) = self.shelves.get(at(known)) {
            if shelf.lot == lot.0 {
                return known;
            }
            known = shelf.on_node;
        }
        let fresh = Shelf {
            lot: lot.0,
            node: node.0,
            head: NONE,
            on_node: first,
            next: NONE,
            previous: NONE,
            free: 0,
            window: 0,
        };
        let no = if self.free_shelf == NONE {
            push_tight(&mut self.shelves, fresh);
            u32::try_from(self.shelves.len() - 1).unwrap_or(NONE)
        } else {
            let free = self.free_shelf;
            self.free_shelf = self.shelves[at(free)].on_node;
            self.shelves[at(free)] = fresh;
            free
        };
        self.nodes[node.at()].shelves = no;
        if let Some(lot) = &mut self.lots[lot.at()] {
            self.empty_lots -= usize::from(lot.shelves == 0);
            lot.shelves += 1;
        }
        no
    }

    fn drop_shelf(&mut self, shelf: u32) {
        let Shelf { lot, node, on_node, .. } = self.shelves[at(shelf)];
        let mut before = self.nodes[at(node)].shelves;
        if before == shelf {
            self.nodes[at(node)].shelves = on_node;
        } else {
            while self.shelves[at(before)].on_node != shelf {
                before = self.shelves[at(before)].on_node;
            }
            self.shelves[at(before)].on_node = on_node;
        }
        self.shelves[at(shelf)].on_node = self.free_shelf;
        self.free_shelf = shelf;
        if let Some(lot) = &mut self.lots[at(lot)] {
            lot.shelves -= 1;
            self.empty_lots += usize::from(lot.shelves == 0);
        }
    }

    /// Hangs a shelf into the bucket of its window and count.
    fn hang(&mut self, shelf: u32) {
        let Shelf { lot, free, window, .. } = self.shelves[at(shelf)];
        let count = u32::from(free).min(COUNTS - 1);
        let Some(lot) = &mut self.lots[at(lot)] else { return };
        let bucket = at(u32::from(window) * COUNTS + count);
        if bucket >= lot.heads.len() {
            lot.heads.resize(at((u32::from(window) + 1) * COUNTS), NONE);
        }
        let head = std::mem::replace(&mut lot.heads[bucket], shelf);
        lot.filled[usize::from(window)] |= 1 << count;
        lot.windows |= 1 << window;
        (self.shelves[at(shelf)].next, self.shelves[at(shelf)].previous) = (head, NONE);
        if head != NONE {
            self.shelves[at(head)].previous = shelf;
        }
    }

    fn unhang(&mut self, shelf: u32) {
        let Shelf { lot, free, window, next, previous, .. } = self.shelves[at(shelf)];
        let count = u32::from(free).min(COUNTS - 1);
        if next != NONE {
            self.shelves[at(next)].previous = previous;
        }
        if previous != NONE {
            self.shelves[at(previous)].next = next;
            return;
        }
        let Some(lot) = &mut self.lots[at(lot)] else { return };
        lot.heads[at(u32::from(window) * COUNTS + count)] = next;
        if next == NONE {
            lot.filled[usize::from(window)] &= !(1 << count);
            lot.windows &= !(u32::from(lot.filled[usize::from(window)] == 0) << window);
        }
    }

    /// A shelf of the lot with at least `count` slices and the fewest of those, lasting for
    /// `window` or longer; its node, how many slices it holds, and one of them.
    #[must_use]
    pub fn tightest(&self, lot: LotNo, count: u32, window: u8) -> Option<(NodeNo, u32, SlotNo)> {
        let lot = self.lots.get(lot.at())?.as_ref()?;
        let enough = u32::MAX << count.min(COUNTS - 1);
        let mut windows = lot.windows & (u32::MAX << window.min(WINDOWS));
        let mut best: Option<(u32, u32)> = None;
        while windows != 0 {
            let window = windows.trailing_zeros();
            windows &= windows - 1;
            let filled = lot.filled[at(window)] & enough;
            let fewest = filled.trailing_zeros();
            if filled != 0 && best.is_none_or(|(known, _)| fewest < known) {
                best = Some((fewest, lot.heads[at(window * COUNTS + fewest)]));
            }
        }
        let shelf = &self.shelves[at(best?.1)];
        Some((NodeNo(shelf.node), u32::from(shelf.free), SlotNo(shelf.head)))
    }

    /// The nodes with a slice of the lot that may last for `window`, in no order.
    pub fn nodes(&self, lot: LotNo, window: u8) -> impl Iterator<Item = NodeNo> + '_ {
        let lot = self.lots.get(lot.at()).and_then(Option::as_ref);
        let windows = lot.map_or(0, |lot| lot.windows & (u32::MAX << window.min(WINDOWS)));
        let buckets = bits(windows).flat_map(move |window| {
            let filled = lot.map_or(0, |lot| lot.filled[at(window)]);
            bits(filled).map(move |count| at(window * COUNTS + count))
        });
        let heads = buckets.filter_map(move |bucket| lot?.heads.get(bucket).copied());
        heads.flat_map(move |head| {
            let mut next = head;
            std::iter::from_fn(move || {
                let shelf = self.shelves.get(at(next))?;
                next = shelf.next;
                Some(NodeNo(shelf.node))
            })
        })
    }

    /// The lots with slices on a node.
    pub fn lots_on(&self, node: NodeNo) -> impl Iterator<Item = LotNo> + '_ {
        let mut next = self.nodes[node.at()].shelves;
        std::iter::from_fn(move || {
            let shelf = self.shelves.get(at(next))?;
            next = shelf.on_node;
            Some(LotNo(shelf.lot))
        })
    }

    /// The shelves of a lot: node, bucket, and the devices and windows of its slices.
    #[cfg(test)]
    pub(super) fn contents(&self, lot: LotNo) -> Vec<ShelfContents> {
        let Some(entry) = &self.lots[lot.at()] else { return Vec::new() };
        let mut found = Vec::new();
        for (bucket, head) in entry.heads.iter().enumerate() {
            let (window, count) = (bucket / 32, bucket % 32);
            assert_eq!(*head != NONE, entry.filled[window] & (1 << count) != 0);
            let mut next = *head;
            while let Some(shelf) = self.shelves.get(at(next)) {
                let mut slices = Vec::new();
                let mut slot = shelf.head;
                while let Some(entry) = self.slots.get(at(slot)) {
                    slices.push((number(entry.device), entry.part, entry.window));
                    slot = entry.next;
                }
                slices.sort_unstable();
                assert_eq!(slices.len(), usize::from(shelf.free));
                found.push((self.node_name(shelf.node), bucket, slices));
                next = shelf.next;
            }
        }
        found.sort();
        found
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let heads = self.lots.iter().flatten().map(|lot| lot.heads.capacity());
        heads.sum::<usize>() * size_of::<u32>()
            + self.lots.capacity() * size_of::<Option<Lot>>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.shelves.capacity() * size_of::<Shelf>()
            + self.slots.capacity() * size_of::<Slot>()
            + self.by_name.bytes()
            + self.by_kind.bytes()
            + self.by_slice.bytes()
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

/// See [`Shelves::contents`].
#[cfg(test)]
pub(super) type ShelfContents = ((ClusterId, NodeId), usize, Vec<(u128, u32, u8)>);
