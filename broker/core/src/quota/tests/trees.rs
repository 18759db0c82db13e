//! Sums that are kept as they change, against sums that are computed anew.

use super::super::charges::Charges;
use super::reference::{Leaf, Reference, Row, Usage};
use super::*;

/// How many random trees are compared.
const TREES: u64 = 100_000;

struct Pair {
    tree: Tree,
    reference: Reference,
}

impl Pair {
    /// A tree of 2 to 10 tenants on at most four levels.
    fn random(random: &mut Random) -> Pair {
        let mut pair = Pair { tree: Tree::default(), reference: Reference(Vec::new()) };
        let tenants = 2 + random.below(9) as usize;
        for n in 0..tenants {
            let parent = (n > 0 && random.below(10) > 0).then(|| random.below(n as u64) as usize);
            let parent = parent.filter(|parent| pair.reference.level(*parent) < 4);
            pair.tree.insert(name(n), parent.map(name));
            let leaf = Leaf { parent, nominal: 0, borrow: None, lend: None, held: 0 };
            pair.reference.0.push(leaf);
            pair.set(n, random);
        }
        pair
    }

    fn set(&mut self, n: usize, random: &mut Random) {
        let (nominal, borrow, lend) = (random.below(20), random.perhaps(12), random.perhaps(12));
        self.tree.set_quota(name(n), model(), quota(nominal, borrow, lend), &at(0));
        let leaf = &mut self.reference.0[n];
        leaf.nominal = nominal.into();
        (leaf.borrow, leaf.lend) = (borrow.map(i128::from), lend.map(i128::from));
    }

    fn step(&mut self, random: &mut Random) {
        let n = random.below(self.reference.0.len() as u64) as usize;
        match random.below(10) {
            // More than there is, too: the sums do not judge.
            0..4 => {
                let amount = random.below(15);
                self.tree.take(name(n), model(), milli(amount), &at(0));
                self.reference.0[n].held += i128::from(amount);
            }
            4..6 => {
                let held = u64::try_from(self.reference.0[n].held).unwrap();
                let amount = random.below(held + 1);
                self.tree.give_back(name(n), model(), milli(amount), &at(0));
                self.reference.0[n].held -= i128::from(amount);
            }
            6..8 => self.set(n, random),
            _move => {
                let parent = random.perhaps(self.reference.0.len() as u64).map(|p| p as usize);
                if parent.is_none_or(|parent| !self.reference.is_within(parent, n)) {
                    self.tree.set_parent(name(n), parent.map(name), &at(0));
                    self.reference.0[n].parent = parent;
                }
            }
        }
    }

    #[track_caller]
    fn compare(&self, context: (u64, u64)) {
        let (rows, empty) = (self.reference.rows(Usage::Held), self.reference.rows(Usage::Nothing));
        let model = model();
        for (n, row) in rows.iter().enumerate() {
            let id = name(n);
            let node = self.tree.node(id).unwrap();
            let (sums, quota) = (node.row(model).sums, node.row(model).quota);
            let found = Row {
                subtree: wide(sums.subtree),
                local: wide(sums.local(&quota)),
                usage: wide(sums.usage),
                available: self.tree.available(id, model),
            };
            assert_eq!(found, *row, "tenant {n} of {context:?}");
            let most = wide(self.tree.lendable(id, model));
            assert_eq!(most, empty[n].available, "the most of {n} of {context:?}");
            assert_eq!(wide(self.tree.ceiling(id, model)), most);
            self.compare_room(n, row, context);
        }
    }

    /// What may be granted is what is available, and never less than what is kept.
    fn compare_room(&self, n: usize, row: &Row, context: (u64, u64)) {
        let room = self.tree.room(name(n), model(), Charges::EMPTY);
        let spot = self.tree.spot(name(n), model()).unwrap();
        assert!(self.tree.has_room(spot, room));
        assert!(!self.tree.has_room(spot, milli(room.get() + 1)), "{n} of {context:?}");
        let room = wide(room);
        let kept = (row.local - row.usage).max(0);
        assert!(room >= kept && room >= row.available, "room of {n}: {room}, {context:?}");
        let mut above = std::iter::successors(Some(n), |n| self.reference.0[*n].parent);
        if above.all(|group| self.tree.excess(name(group), model()).is_none()) {
            assert_eq!(room, row.available, "room of {n}, {context:?}");
        }
    }
}

fn wide(amount: GpuMilli) -> i128 {
    amount.get().into()
}

#[test]
fn a_hundred_thousand_random_trees_add_up_as_the_formulas_say() {
    let mut seen = Seen::default();
    for seed in 0..TREES {
        let mut random = Random(seed);
        let mut pair = Pair::random(&mut random);
        for _ in 0..random.below(8) {
            pair.step(&mut random);
        }
        pair.compare((seed, 0));
        seen.note(&pair.reference);
    }
    // What the formulas are about is met often enough for a wrong one to be caught.
    let Seen { deep, over, lenders, borrowers, limited } = seen;
    let least = [deep, over, lenders, borrowers, limited].into_iter().min();
    assert!(least > Some(10_000), "too few: {seen:?}");
}

/// In how many trees something was met.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Three levels or more.
    deep: u32,
    /// Someone has more than it may have.
    over: u32,
    /// Someone in a group keeps something for itself.
    lenders: u32,
    /// Someone in a group holds more than it brings.
    borrowers: u32,
    /// For someone the limit on borrowing is what binds, not the group.
    limited: u32,
}

impl Seen {
    fn note(&mut self, reference: &Reference) {
        let rows = reference.rows(Usage::Held);
        let members = || (0..rows.len()).filter(|n| reference.0[*n].parent.is_some());
        let free = |n: usize| {
            let Row { subtree, local, usage, .. } = rows[n];
            reference.0[n].borrow.map(|limit| (subtree - local) - (usage - local).max(0) + limit)
        };
        let above = |n: usize| reference.0[n].parent.map(|parent| rows[parent].available);
        let is_limited = |n: usize| free(n).zip(above(n)).is_some_and(|(free, above)| free < above);
        self.deep += u32::from((0..rows.len()).any(|n| reference.level(n) > 2));
        self.over += u32::from(rows.iter().any(|row| row.available < 0));
        self.lenders += u32::from(members().any(|n| rows[n].local > 0));
        self.borrowers += u32::from(members().any(|n| rows[n].usage > rows[n].subtree));
        self.limited += u32::from(members().any(is_limited));
    }
}

#[test]
fn each_of_many_changes_of_one_tree_leaves_it_as_if_it_were_made_anew() {
    let mut random = Random(7);
    for tree in 0..40 {
        let mut pair = Pair::random(&mut random);
        for step in 0..100 {
            pair.step(&mut random);
            pair.compare((tree, step));
        }
    }
}

#[test]
fn what_a_plan_gives_away_leaves_the_room_that_a_grant_would() {
    let mut random = Random(11);
    for _ in 0..2_000 {
        let mut pair = Pair::random(&mut random);
        let mut charges = Charges::default();
        let base = pair.tree.clone();
        for _ in 0..4 {
            let n = random.below(pair.reference.0.len() as u64) as usize;
            let room = base.room(name(n), model(), &charges);
            let gpu = milli(random.below(room.get() + 1));
            charges.give(&base, &want(n, gpu));
            pair.tree.take(name(n), model(), gpu, &at(0));
            for n in 0..pair.reference.0.len() {
                let planned = base.room(name(n), model(), &charges);
                let spot = base.spot(name(n), model()).unwrap();
                assert!(base.covers(spot, planned, &charges));
                assert!(!base.covers(spot, milli(planned.get() + 1), &charges));
                assert_eq!(planned, pair.tree.room(name(n), model(), Charges::EMPTY));
                assert!(pair.tree.excess(name(n), model()).is_none(), "the room was judged");
            }
        }
    }
}

#[test]
fn what_a_plan_takes_back_leaves_the_room_that_an_end_would() {
    let (mut random, mut lent) = (Random(13), 0);
    for _ in 0..2_000 {
        let mut pair = Pair::random(&mut random);
        for n in 0..pair.reference.0.len() {
            let amount = milli(random.below(12));
            pair.tree.take(name(n), model(), amount, &at(0));
            pair.reference.0[n].held += i128::from(amount.get());
        }
        let mut charges = Charges::default();
        let base = pair.tree.clone();
        for _ in 0..4 {
            let n = random.below(pair.reference.0.len() as u64) as usize;
            let held = u64::try_from(pair.reference.0[n].held).unwrap();
            let gpu = milli(random.below(held + 1));
            charges.give_back(&base, (name(n), model()), gpu);
            pair.tree.give_back(name(n), model(), gpu, &at(0));
            pair.reference.0[n].held -= i128::from(gpu.get());
            for n in 0..pair.reference.0.len() {
                let planned = base.room(name(n), model(), &charges);
                let spot = base.spot(name(n), model()).unwrap();
                assert!(base.covers(spot, planned, &charges));
                assert!(!base.covers(spot, milli(planned.get() + 1), &charges));
                assert_eq!(planned, pair.tree.room(name(n), model(), Charges::EMPTY));
            }
            let row = base.node(name(n)).unwrap().row(model());
            let kept = row.sums.local(&row.quota);
            lent += u32::from(kept > milli(0) && gpu > milli(0));
        }
    }
    assert!(lent > 500, "too few keep something for themselves: {lent}");
}

pub(super) fn want(n: usize, gpu: GpuMilli) -> super::super::charges::Want {
    let price = sublet_protocol::money::Price {
        per_gpu_hour: sublet_protocol::money::MicroCredits::ZERO,
        version: 1,
    };
    let duration = Seconds::new(1);
    super::super::charges::Want { tenant: name(n), model: model(), gpu, price, duration }
}

#[test]
fn a_lender_keeps_what_it_does_not_lend_whatever_the_others_take() {
    let mut tree = Tree::default();
    tree.insert(name(0), None);
    for n in 1..4 {
        tree.insert(name(n), Some(name(0)));
    }
    tree.set_quota(name(1), model(), quota(10, None, Some(4)), &at(0));
    // The others take all they can get: of ten, four.
    for n in 2..4 {
        let room = tree.room(name(n), model(), Charges::EMPTY);
        tree.take(name(n), model(), room, &at(0));
    }
    assert_eq!(tree.available(name(2), model()), 0);
    assert_eq!(tree.room(name(1), model(), Charges::EMPTY), milli(6));
    // Also when the group has lost what it lent: its over-admission is not the lender's.
    tree.set_quota(name(1), model(), quota(8, None, Some(2)), &at(0));
    assert_eq!(tree.available(name(1), model()), 4, "by the bare formula");
    assert_eq!(tree.room(name(1), model(), Charges::EMPTY), milli(6));
}
