//! Free slices: those of one kind on one node lie on a shelf, and the shelves of a lot hang in
//! buckets by how long their best slice lasts and how many slices they hold.
//!
//! What lasts long enough and stands together is found by looking at bit masks, not at slices. How
//! long a slice lasts is noted when it is offered and only shrinks afterwards, so a shelf may be
//! shown that does not last any more; one that does is never left out.

use sublet_protocol::capacity::Part;
use sublet_protocol::ids::{ClusterId, DeviceId, NodeId};

use super::lots::{Bucket, COUNTS, Kind, Lot, pack};
use super::table::{Chained, Table, Words, hash_text, number, push_tight, words};
use super::{LotNo, NONE, NodeNo, SlotNo, at};

/// Lots without slices that are remembered, so that a lot that empties and fills is not forgotten.
const EMPTY_LOTS_MAX: usize = 256;

#[derive(Debug, Clone, Copy)]
struct Slot {
    device: Words,
    part: u32,
    shelf: u32,
    /// The next on its shelf; of a slot that is not used, the next of those.
    next: u32,
    previous: u32,
    window: u8,
}

/// The slices of a lot on a node. A shelf that was emptied stays with its node, for the next lot.
#[derive(Debug, Clone, Copy)]
struct Shelf {
    lot: u32,
    node: u32,
    /// Its slots.
    head: u32,
    /// The next shelf of its node.
    on_node: u32,
    /// The next of its bucket, if it holds a slot.
    next: u32,
    previous: u32,
    free: u16,
    window: u8,
}

impl Shelf {
    /// The bucket of its lot that it hangs in: its window and its count.
    #[inline]
    fn bucket(&self) -> Bucket {
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

impl Chained for Node {
    fn hash(&self, _seed: u64) -> u64 {
        u64::from(self.hash) << 32
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn chain_mut(&mut self) -> &mut u32 {
        &mut self.chain
    }
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
    slots: Vec<Slot>,
    free_slot: u32,
    len: usize,
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
            slots: Vec::new(),
            free_slot: NONE,
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
            if lot.is_known && lot.is_empty() {
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
        let numbers = self.lots.iter().zip(0..).filter(|(lot, _)| !lot.is_empty());
        numbers.map(|(_, no)| LotNo(no))
    }

    /// Where a slice lies, if it lies here. Looks at the free slices of its node.
    #[must_use]
    pub fn find_slot(&self, node: NodeNo, device: DeviceId, part: Part) -> Option<SlotNo> {
        let (device, part) = (words(device.get()), pack(part));
        let mut no = self.nodes[node.at()].shelves;
        while let Some(shelf) = self.shelves.get(at(no)) {
            let mut slot = shelf.head;
            while let Some(entry) = self.slots.get(at(slot)) {
                if (entry.device, entry.part) == (device, part) {
                    return Some(SlotNo(slot));
                }
                slot = entry.next;
            }
            no = shelf.on_node;
        }
        None
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
    #[inline]
    pub fn device(&self, slot: SlotNo) -> DeviceId {
        DeviceId::new(number(self.slots[slot.at()].device))
    }

    /// A slice is free and lasts for `window`. It must not lie here.
    #[inline]
    pub fn put(
        &mut self,
        (node, lot): (NodeNo, LotNo),
        (device, part): (DeviceId, Part),
        window: u8,
    ) -> SlotNo {
        let no = self.shelf(node, lot);
        if self.shelves[at(no)].free > 0 {
            self.unhang(no);
        }
        let shelf = &mut self.shelves[at(no)];
        let (device, part) = (words(device.get()), pack(part));
        let (next, previous) = (shelf.head, NONE);
        let fresh = Slot { device, part, shelf: no, next, previous, window };
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
        shelf.head = slot;
        shelf.free = shelf.free.saturating_add(1);
        shelf.window = shelf.window.max(window);
        self.hang(no);
        self.len += 1;
        SlotNo(slot)
    }

    /// A slice is not free any more.
    #[inline]
    pub fn take(&mut self, slot: SlotNo) {
        let entry = &mut self.slots[slot.at()];
        let Slot { shelf: no, previous, window, .. } = *entry;
        let free = std::mem::replace(&mut self.free_slot, slot.0);
        let next = std::mem::replace(&mut entry.next, free);
        self.unhang(no);
        let shelf = &mut self.shelves[at(no)];
        match self.slots.get_mut(at(previous)) {
            Some(before) => before.next = next,
            None => shelf.head = next,
        }
        if let Some(after) = self.slots.get_mut(at(next)) {
            after.previous = previous;
        }
        shelf.free -= 1;
        self.len -= 1;
        if shelf.free == 0 {
            shelf.window = 0;
            return;
        }
        if shelf.window == window {
            self.shelves[at(no)].window = self.longest(no, window);
        }
        self.hang(no);
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

    /// The shelf of a node and lot: one that it has, one that is empty, or a new one.
    #[inline]
    fn shelf(&mut self, node: NodeNo, lot: LotNo) -> u32 {
        let first = self.nodes[node.at()].shelves;
        match self.shelves.get(at(first)) {
            Some(shelf) if shelf.lot == lot.0 => first,
            Some(_) | None => self.other_shelf(node, lot),
        }
    }

    fn other_shelf(&mut self, node: NodeNo, lot: LotNo) -> u32 {
        let first = self.nodes[node.at()].shelves;
        let (mut known, mut empty) = (first, NONE);
        while let Some(shelf) = self.shelves.get(at(known)) {
            if shelf.lot == lot.0 {
                return known;
            }
            if shelf.free == 0 {
                empty = known;
            }
            known = shelf.on_node;
        }
        if let Some(shelf) = self.shelves.get_mut(at(empty)) {
            shelf.lot = lot.0;
            return empty;
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
        push_tight(&mut self.shelves, fresh);
        let no = u32::try_from(self.shelves.len() - 1).unwrap_or(NONE);
        self.nodes[node.at()].shelves = no;
        no
    }

    /// Hangs a shelf that holds a slot into the bucket of its window and count.
    #[inline(always)]
    fn hang(&mut self, no: u32) {
        let shelf = &mut self.shelves[at(no)];
        let lot = &mut self.lots[at(shelf.lot)];
        self.empty_lots -= usize::from(lot.is_empty());
        let head = lot.push(shelf.bucket(), no);
        (shelf.next, shelf.previous) = (head, NONE);
        if let Some(after) = self.shelves.get_mut(at(head)) {
            after.previous = no;
        }
    }

    /// Takes a shelf that holds a slot out of its bucket.
    #[inline(always)]
    fn unhang(&mut self, no: u32) {
        let shelf = &self.shelves[at(no)];
        let (bucket, lot) = (shelf.bucket(), shelf.lot);
        let (next, previous) = (shelf.next, shelf.previous);
        if let Some(after) = self.shelves.get_mut(at(next)) {
            after.previous = previous;
        }
        if let Some(before) = self.shelves.get_mut(at(previous)) {
            before.next = next;
            return;
        }
        let lot = &mut self.lots[at(lot)];
        lot.pop(bucket, next);
        self.empty_lots += usize::from(lot.is_empty());
    }

    /// Of the lots the one whose shelf has the fewest slices, at least `count` that last for `window`
    /// or longer, the first of equals; the shelf's node, how many slices it holds, and one of them.
    #[must_use]
    #[inline]
    pub fn tightest(
        &self,
        lots: &[LotNo],
        count: u32,
        window: u8,
    ) -> Option<(LotNo, NodeNo, u32, SlotNo)> {
        let (mut fewest, mut best) = (u32::BITS, None);
        for no in lots {
            let Some(lot) = self.lots.get(no.at()) else { continue };
            let Some(bucket) = lot.fewest(count, window) else { continue };
            if bucket.1 < fewest {
                (fewest, best) = (bucket.1, Some((*no, lot, bucket)));
                if fewest <= count {
                    break;
                }
            }
        }
        let (no, lot, bucket) = best?;
        let shelf = self.shelves.get(at(lot.shelf(bucket)?))?;
        Some((no, NodeNo(shelf.node), u32::from(shelf.free), SlotNo(shelf.head)))
    }

    /// The nodes with a slice of the lot that may last for `window`, in no order.
    pub fn nodes(&self, lot: LotNo, window: u8) -> impl Iterator<Item = NodeNo> + '_ {
        let lot = self.lots.get(lot.at());
        let heads = lot.into_iter().flat_map(move |lot| lot.heads_from(window));
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
        let shelves = std::iter::from_fn(move || {
            let shelf = self.shelves.get(at(next))?;
            next = shelf.on_node;
            Some(shelf)
        });
        shelves.filter(|shelf| shelf.free > 0).map(|shelf| LotNo(shelf.lot))
    }

    /// The shelves of a lot: node, bucket, and the devices and windows of its slices.
    #[cfg(test)]
    pub(super) fn contents(&self, lot: LotNo) -> Vec<ShelfContents> {
        let entry = &self.lots[lot.at()];
        let mut found = Vec::new();
        for (head, window, count) in entry.buckets() {
            let mut next = head;
            while let Some(shelf) = self.shelves.get(at(next)) {
                let mut slices = Vec::new();
                let mut slot = shelf.head;
                while let Some(entry) = self.slots.get(at(slot)) {
                    slices.push((number(entry.device), entry.part, entry.window));
                    slot = entry.next;
                }
                slices.sort_unstable();
                assert_eq!(slices.len(), usize::from(shelf.free));
                found.push((self.node_name(shelf.node), (window, count), slices));
                next = shelf.next;
            }
        }
        found.sort();
        found
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lots.iter().map(Lot::bytes).sum::<usize>()
            + self.lots.capacity() * size_of::<Lot>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.shelves.capacity() * size_of::<Shelf>()
            + self.slots.capacity() * size_of::<Slot>()
            + self.by_name.bytes()
            + self.by_kind.bytes()
    }
}

/// See [`Shelves::contents`].
#[cfg(test)]
pub(super) type ShelfContents = ((ClusterId, NodeId), (usize, usize), Vec<(u128, u32, u8)>);

#[cfg(test)]
#[path = "shelves_tests.rs"]
mod tests;
