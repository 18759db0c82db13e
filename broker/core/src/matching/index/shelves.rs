//! Free slices: those of one kind on one node lie on a shelf, and the shelves of a lot hang in
//! buckets by how long their best slice lasts and how many slices they hold.
//!
//! What lasts long enough and stands together is found by looking at bit masks, not at slices. How
//! long a slice lasts is noted when it is offered and only shrinks afterwards, so a shelf may be
//! shown that does not last any more; one that does is never left out.

use sublet_protocol::capacity::{Capacity, Isolation, Part, SliceId};
use sublet_protocol::ids::{ClusterId, DeviceId, NodeId};
use sublet_protocol::units::Millis;

use super::table::{Chained, Table, Words, hash_text, hash_words, mix, number, push_tight, words};
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
    /// The next on its shelf; of a slot that is not used, the next of those.
    next: u32,
    previous: u32,
    chain: u32,
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

impl Shelf {
    /// The bucket of its lot that it hangs in: its window and its count.
    fn bucket(&self) -> (u32, u32) {
        (u32::from(self.window), u32::from(self.free).min(COUNTS - 1))
    }
}

#[derive(Debug, Clone, Copy)]
struct Node {
    cluster: u32,
    name: NodeId,
    shelves: u32,
    hash: u32,
    chain: u32,
}

#[derive(Debug, Clone)]
struct Lot {
    kind: Kind,
    /// How many shelves it has.
    shelves: u32,
    chain: u32,
    /// A lot that was forgotten waits for another kind.
    is_known: bool,
    /// Which windows have a shelf.
    windows: u32,
    /// By window: which counts have a shelf.
    filled: [u32; 16],
    /// By window and count: the first shelf.
    heads: Vec<u32>,
}

impl Lot {
    fn new(kind: Kind) -> Lot {
        let (filled, heads) = ([0; 16], Vec::new());
        Lot { kind, shelves: 0, chain: NONE, is_known: true, windows: 0, filled, heads }
    }

    /// The windows that have a shelf, from `window` on.
    fn windows_from(&self, window: u8) -> u32 {
        self.windows & (u32::MAX << window.min(WINDOWS))
    }

    /// The least count, from `count` on, of which there is a shelf that lasts for `window` or longer;
    /// `u32::BITS` if there is none.
    fn fewest(&self, count: u32, window: u8) -> u32 {
        let enough = u32::MAX << count.min(COUNTS - 1);
        let (mut windows, mut filled) = (self.windows_from(window), 0);
        while windows != 0 {
            filled |= self.filled[at(windows.trailing_zeros() % u32::from(WINDOWS))];
            windows &= windows - 1;
        }
        (filled & enough).trailing_zeros()
    }

    /// The first shelf of this count in the shortest window, from `window` on, that has one.
    fn shelf(&self, count: u32, window: u8) -> Option<u32> {
        let mut windows = bits(self.windows_from(window));
        let window = windows.find(|window| self.filled[at(*window)] >> count & 1 == 1)?;
        self.heads.get(at(window * COUNTS + count)).copied()
    }

    /// A bucket has its first shelf.
    fn fill(&mut self, (window, count): (u32, u32)) {
        self.filled[at(window)] |= 1 << count;
        self.windows |= 1 << window;
    }

    /// A bucket has lost its last shelf.
    fn empty(&mut self, (window, count): (u32, u32)) {
        let filled = &mut self.filled[at(window)];
        *filled &= !(1 << count);
        self.windows &= !(u32::from(*filled == 0) << window);
    }
}

macro_rules! chained {
    ($($entry:ty: |$self:ident, $seed:ident| $hash:expr;)*) => {$(
        impl Chained for $entry {
            fn hash(&$self, $seed: u64) -> u64 {
                $hash
            }

            fn chain(&self) -> u32 {
                self.chain
            }

            fn chain_mut(&mut self) -> &mut u32 {
                &mut self.chain
            }
        }
    )*};
}

chained! {
    Slot: |self, seed| hash_slice(seed, self.device, self.part);
    Node: |self, _seed| u64::from(self.hash) << 32;
    Lot: |self, seed| self.kind.hash(seed);
}

/// The free slices of a cell.
#[derive(Debug, Clone)]
pub struct Shelves {
    seed: u64,
    clusters: Vec<ClusterId>,
    nodes: Vec<Node>,
    by_name: Table,
    lots: Vec<Lot>,
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

    /// The upper half of the hash of a node's name, which is all that an entry has room for.
    fn hash_node(&self, cluster: ClusterId, name: NodeId) -> u32 {
        let seed = hash_text(self.seed, cluster.as_str().as_bytes());
        let hash = hash_text(seed, name.as_str().as_bytes());
        u32::try_from(hash >> 32).unwrap_or(u32::MAX)
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
        let is_meant =
            |node: &Node| node.name == name && self.clusters[at(node.cluster)] == cluster;
        self.by_name.find(&self.nodes, u64::from(hash) << 32, is_meant).map(NodeNo)
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
        let hash = self.hash_node(cluster, name);
        let (shelves, chain) = (NONE, NONE);
        push_tight(&mut self.nodes, Node { cluster: cluster_no, name, shelves, hash, chain });
        self.by_name.insert(&mut self.nodes, self.seed, no);
        NodeNo(no)
    }

    /// The lot of a kind, if it is known.
    #[must_use]
    pub fn find_lot(&self, kind: &Kind) -> Option<LotNo> {
        self.by_kind.find(&self.lots, kind.hash(self.seed), |lot| lot.kind == *kind).map(LotNo)
    }

    /// The lot of a kind, and whether it is new.
    pub fn lot(&mut self, kind: &Kind) -> (LotNo, bool) {
        if let Some(known) = self.find_lot(kind) {
            return (known, false);
        }
        if self.empty_lots > EMPTY_LOTS_MAX {
            self.forget_empty_lots();
        }
        self.empty_lots += 1;
        let no = match self.lots.iter().position(|lot| !lot.is_known) {
            Some(free) => {
                self.lots[free] = Lot::new(*kind);
                free
            }
            None => {
                self.lots.push(Lot::new(*kind));
                self.lots.len() - 1
            }
        };
        let no = u32::try_from(no).unwrap_or(NONE);
        self.by_kind.insert(&mut self.lots, self.seed, no);
        (LotNo(no), true)
    }

    fn forget_empty_lots(&mut self) {
        for (place, no) in (0..self.lots.len()).zip(0..) {
            let lot = &mut self.lots[place];
            if lot.is_known && lot.shelves == 0 {
                lot.is_known = false;
                let hash = lot.kind.hash(self.seed);
                self.by_kind.remove(&mut self.lots, hash, |known, _| known == no);
            }
        }
        self.empty_lots = 0;
    }

    /// What the slices of a lot have in common; nothing if the lot was forgotten.
    #[must_use]
    pub fn kind(&self, lot: LotNo) -> Option<&Kind> {
        self.lots.get(lot.at()).filter(|lot| lot.is_known).map(|lot| &lot.kind)
    }

    /// Lots that hold a slice or did not long ago.
    pub fn known_lots(&self) -> impl Iterator<Item = LotNo> + '_ {
        let numbers = self.lots.iter().zip(0..).filter(|(lot, _)| lot.is_known);
        numbers.map(|(_, no)| LotNo(no))
    }

    /// Lots that hold a slice.
    pub fn lots(&self) -> impl Iterator<Item = LotNo> + '_ {
        let numbers = self.lots.iter().zip(0..).filter(|(lot, _)| lot.shelves > 0);
        numbers.map(|(_, no)| LotNo(no))
    }

    fn find(&self, node: u32, device: Words, part: u32) -> Option<u32> {
        let hash = hash_slice(self.seed, device, part);
        self.by_slice.find(&self.slots, hash, |slot| {
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
        let no = self.shelf(node, lot);
        let shelf = &mut self.shelves[at(no)];
        let (device, part) = (words(device.get()), pack(part));
        let (next, previous, chain) = (shelf.head, NONE, NONE);
        let fresh = Slot { device, part, shelf: no, next, previous, chain, window };
        let slot = if let Some(free) = self.slots.get_mut(at(self.free_slot)) {
            let slot = std::mem::replace(&mut self.free_slot, free.next);
            *free = fresh;
            slot
        } else {
            push_tight(&mut self.slots, fresh);
            u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
        };
        if let Some(after) = self.slots.get_mut(at(next)) {
            after.previous = slot;
        }
        self.len += 1;
        self.by_slice.insert(&mut self.slots, self.seed, slot);
        let before = *shelf;
        shelf.head = slot;
        shelf.free = shelf.free.saturating_add(1);
        shelf.window = shelf.window.max(window);
        self.rehang(no, &before);
        SlotNo(slot)
    }

    /// A slice is not free any more.
    pub fn take(&mut self, slot: SlotNo) {
        let Slot { device, part, shelf: no, next, previous, window, .. } = self.slots[slot.at()];
        let hash = hash_slice(self.seed, device, part);
        self.by_slice.remove(&mut self.slots, hash, |known, _| known == slot.0);
        let shelf = &mut self.shelves[at(no)];
        let before = *shelf;
        match self.slots.get_mut(at(previous)) {
            Some(before) => before.next = next,
            None => shelf.head = next,
        }
        if let Some(after) = self.slots.get_mut(at(next)) {
            after.previous = previous;
        }
        shelf.free -= 1;
        self.slots[slot.at()].next = std::mem::replace(&mut self.free_slot, slot.0);
        self.len -= 1;
        if before.window == window {
            self.shelves[at(no)].window = self.longest(no, window);
        }
        self.rehang(no, &before);
        if before.free == 1 {
            self.drop_shelf(no);
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
        let no = if let Some(free) = self.shelves.get_mut(at(self.free_shelf)) {
            let no = std::mem::replace(&mut self.free_shelf, free.on_node);
            *free = fresh;
            no
        } else {
            push_tight(&mut self.shelves, fresh);
            u32::try_from(self.shelves.len() - 1).unwrap_or(NONE)
        };
        self.nodes[node.at()].shelves = no;
        let lot = &mut self.lots[lot.at()];
        self.empty_lots -= usize::from(lot.shelves == 0);
        lot.shelves += 1;
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
        let lot = &mut self.lots[at(lot)];
        lot.shelves -= 1;
        self.empty_lots += usize::from(lot.shelves == 0);
    }

    /// Moves a shelf from the bucket where it hung, if it held slices, to that of its window and
    /// count, if it holds some now.
    fn rehang(&mut self, no: u32, before: &Shelf) {
        let shelf = self.shelves[at(no)];
        let (old, new) = (before.bucket(), shelf.bucket());
        if old == new {
            return;
        }
        let lot = &mut self.lots[at(shelf.lot)];
        if before.free > 0 {
            if let Some(after) = self.shelves.get_mut(at(before.next)) {
                after.previous = before.previous;
            }
            if let Some(ahead) = self.shelves.get_mut(at(before.previous)) {
                ahead.next = before.next;
            } else {
                lot.heads[at(old.0 * COUNTS + old.1)] = before.next;
                if before.next == NONE {
                    lot.empty(old);
                }
            }
        }
        if shelf.free == 0 {
            return;
        }
        let bucket = at(new.0 * COUNTS + new.1);
        if bucket >= lot.heads.len() {
            lot.heads.resize(at((new.0 + 1) * COUNTS), NONE);
        }
        let head = std::mem::replace(&mut lot.heads[bucket], no);
        match self.shelves.get_mut(at(head)) {
            Some(after) => after.previous = no,
            None => lot.fill(new),
        }
        let shelf = &mut self.shelves[at(no)];
        (shelf.next, shelf.previous) = (head, NONE);
    }

    /// Of the lots the one whose shelf has the fewest slices, at least `count` that last for `window`
    /// or longer, the first of equals; the shelf's node, how many slices it holds, and one of them.
    #[must_use]
    pub fn tightest(
        &self,
        lots: &[LotNo],
        count: u32,
        window: u8,
    ) -> Option<(LotNo, NodeNo, u32, SlotNo)> {
        let (mut fewest, mut best) = (u32::BITS, None);
        for no in lots {
            let Some(lot) = self.lots.get(no.at()) else { continue };
            let count = lot.fewest(count, window);
            if count < fewest {
                (fewest, best) = (count, Some((*no, lot)));
            }
        }
        let (no, lot) = best?;
        let shelf = self.shelves.get(at(lot.shelf(fewest, window)?))?;
        Some((no, NodeNo(shelf.node), u32::from(shelf.free), SlotNo(shelf.head)))
    }

    /// The nodes with a slice of the lot that may last for `window`, in no order.
    pub fn nodes(&self, lot: LotNo, window: u8) -> impl Iterator<Item = NodeNo> + '_ {
        let lot = self.lots.get(lot.at());
        let windows = bits(lot.map_or(0, |lot| lot.windows_from(window)));
        let buckets = windows.flat_map(move |window| {
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
        let entry = &self.lots[lot.at()];
        let mut found = Vec::new();
        for (bucket, head) in entry.heads.iter().enumerate() {
            let (window, count) = (bucket / 32, bucket % 32);
            assert_eq!(*head != NONE, entry.filled[window] & (1 << count) != 0);
            assert_eq!(entry.filled[window] != 0, entry.windows & (1 << window) != 0);
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
        let heads = self.lots.iter().map(|lot| lot.heads.capacity());
        heads.sum::<usize>() * size_of::<u32>()
            + self.lots.capacity() * size_of::<Lot>()
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
