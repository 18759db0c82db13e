//! What standings look at is kept up with the sums: against the formula, computed anew. And trees that
//! are the same whatever order their tenants came in.

use proptest::strategy::Strategy;
use sublet_protocol::quotas::{TenantTerms, Weight};

use super::super::amounts::{Place, Sums};
use super::super::charges::{Charges, Want};
use super::super::{Among, Node, Standing, standing, standing_at, standing_with};
use super::*;

const TENANTS: usize = 8;
const HALF_LIFE: Seconds = Seconds::new(1_000);

fn models() -> [GpuModel; 3] {
    ["a100", "h200", "l4"].map(|name| GpuModel::new(name).unwrap())
}

/// A tree, and what was asked of it, so that it can be made again in another order.
#[derive(Default)]
struct Made {
    tree: Tree,
    held: [[u64; 3]; TENANTS],
    given: Vec<Want>,
    clock: u64,
}

impl Made {
    fn random(random: &mut Random) -> Made {
        let mut made = Made::default();
        for n in 0..TENANTS {
            let parent = (n > 0 && random.below(8) > 0).then(|| random.below(n as u64) as usize);
            made.tree.insert(name(n), parent.map(name));
        }
        made
    }

    fn step(&mut self, random: &mut Random) {
        self.clock += random.below(600);
        let moment = Moment { entry_penalty: Seconds::new(50), ..at(self.clock) };
        let n = random.below(TENANTS as u64) as usize;
        let m = random.below(3) as usize;
        let (id, model) = (name(n), models()[m]);
        match random.below(12) {
            0..4 => {
                let amount = random.below(9) * 1_000;
                self.tree.take(id, model, milli(amount), &moment);
                self.held[n][m] += amount;
            }
            4..6 => {
                let amount = random.below(self.held[n][m] + 1);
                self.tree.give_back(id, model, milli(amount), &moment);
                self.held[n][m] -= amount;
            }
            6..8 => {
                let (nominal, borrow, lend) =
                    (random.below(20) * 1_000, random.perhaps(12_000), random.perhaps(12_000));
                self.tree.set_quota(id, model, quota(nominal, borrow, lend), &moment);
            }
            8 => {
                let weight = Weight::new([0, 1_000, 2_000][random.below(3) as usize]);
                self.tree.set_terms(id, TenantTerms { weight, ..TenantTerms::default() }, &moment);
            }
            9 => {
                let parent = random.perhaps(TENANTS as u64).map(|parent| name(parent as usize));
                if parent.is_none_or(|parent| !self.tree.is_within(parent, id)) {
                    self.tree.set_parent(id, parent, &moment);
                }
            }
            _given => {
                let gpu = milli(random.below(4) * 1_000);
                self.given.push(Want { model, ..super::trees::want(n, gpu) });
            }
        }
    }

    fn charges(&self) -> Charges {
        let mut charges = Charges::NONE;
        for (number, want) in self.given.iter().enumerate() {
            match number % 3 {
                0 => charges.give_back(&self.tree, (want.tenant, want.model), want.gpu),
                _others => charges.give(&self.tree, want),
            }
        }
        charges
    }
}

/// One level of a standing by the words of `docs/matching.md`.
fn level(tree: &Tree, charges: &Charges, (id, node): (TenantId, Node<'_>), now: u64) -> u64 {
    let of_model = |model: &GpuModel| {
        let spot = tree.spot(id, *model)?;
        let row = node.row(*model);
        let is_given = charges.given(spot.member).any(|given| given == spot);
        let known: Sums = row.sums;
        let usage = charges.usage(spot, row).get();
        let (subtree, place) = (known.subtree.get(), node.place());
        if !row.is_counted && !is_given {
            return None;
        }
        let (whole, counted, is_shared) = match place {
            Place::Root => (subtree, usage, true),
            Place::Child => {
                let group = node.parent().unwrap();
                let lendable = tree.lendable(group, *model).get();
                (lendable, usage.saturating_sub(subtree), usage >= subtree)
            }
        };
        let past = known.past.now(at(now).now, HALF_LIFE, known.counted(place));
        let weight = u128::from(node.terms().weight.get());
        let amount = (u128::from(counted) << 32) + past;
        let most = (1_u64 << 53) - 1;
        let share = match (is_shared, weight, amount, u128::from(whole) * weight) {
            (false, ..) => 0,
            (true, 0, ..) => most,
            (true, _, 0, _) => 0,
            (true, _, _, 0) => most,
            (true, _, _, entitled) => {
                let share = (amount * 1_000_000_000 * 1_000 / entitled) >> 32;
                u64::try_from(share).unwrap_or(most).min(most)
            }
        };
        let of_own = match place {
            Place::Root => 0,
            Place::Child => (usage.min(subtree) * 1_000).checked_div(subtree).unwrap_or(0),
        };
        Some((share << 10) + of_own)
    };
    models().iter().filter_map(of_model).max().unwrap_or(0)
}

fn anew(tree: &Tree, charges: &Charges, id: TenantId, now: u64) -> Vec<u64> {
    let mut levels: Vec<u64> = tree.path(id).map(|node| level(tree, charges, node, now)).collect();
    levels.reverse();
    levels.resize(8, 0);
    levels
}

/// Those of one topmost group are in the same order without its level.
#[track_caller]
fn compare_order(tree: &Tree, charges: &Charges, now: u64) {
    let when = (at(now).now, HALF_LIFE);
    let of = |n: usize, among| standing_with(tree, charges, (name(n), among), when);
    for (n, m) in (0..TENANTS).flat_map(|n| (0..n).map(move |m| (n, m))) {
        let among = tree.among(&[name(n), name(m)]);
        assert_eq!(among == Among::OneTop, tree.top(name(n)) == tree.top(name(m)));
        let order = of(n, Among::All).cmp(&of(m, Among::All));
        assert_eq!(of(n, among).cmp(&of(m, among)), order, "{n} and {m}");
    }
}

#[test]
fn every_standing_on_random_trees_is_the_one_of_the_formula() {
    let mut random = Random(17);
    let (mut kept_only, mut moving) = (0, 0);
    for _ in 0..3_000 {
        let mut made = Made::random(&mut random);
        for _ in 0..random.below(30) {
            made.step(&mut random);
        }
        let now = made.clock + random.below(3_000);
        for charges in [Charges::NONE, made.charges()] {
            compare_order(&made.tree, &charges, now);
            for n in 0..TENANTS {
                let when = (at(now).now, HALF_LIFE);
                let found = standing_with(&made.tree, &charges, (name(n), Among::All), when);
                let expected = anew(&made.tree, &charges, name(n), now);
                assert_eq!(found, Standing::of(expected.try_into().unwrap(), 8), "tenant {n}");
            }
        }
        for n in 0..TENANTS {
            match made.tree.rows.member(made.tree.number(name(n))).moving {
                0 => kept_only += 1,
                _some => moving += 1,
            }
        }
    }
    assert!(kept_only > 5_000 && moving > 5_000, "{kept_only} and {moving}");
}

proptest::proptest! {
    #[test]
    fn standings_are_ordered_as_their_levels_from_the_top(
        pairs in proptest::collection::vec((any_level(), any_level(), 0_u8..3), 8),
        count in 0_usize..=8,
        numbers in (0_u32..4, 0_u32..4),
    ) {
        let mut one = [0; 8];
        let mut other = [0; 8];
        for (at, (a, b, is_other)) in pairs.into_iter().enumerate().take(count) {
            one[at] = a;
            // Mostly equal, so that the lower levels count, too.
            other[at] = if is_other == 0 { b } else { a };
        }
        let (first, second) = (Standing::of(one, count), Standing::of(other, count));
        proptest::prop_assert_eq!(first.cmp(&second), one.cmp(&other));
        let order = (one, numbers.0).cmp(&(other, numbers.1));
        let short = first.short(numbers.0).cmp(&second.short(numbers.1));
        proptest::prop_assert!(short == order || short == std::cmp::Ordering::Equal);
    }
}

/// What is used of one's own, or a share.
fn any_level() -> impl proptest::strategy::Strategy<Value = u64> {
    let share = (0..=(1_u64 << 53) - 1, 0..=1_000_u64).prop_map(|(share, own)| (share << 10) + own);
    proptest::prop_oneof![4 => 0..=1_000_u64, 1 => share, 1 => 1_000_u64..1_030]
}

#[test]
fn where_a_tenant_stands_is_the_same_by_its_spot() {
    let mut random = Random(19);
    let mut made = Made::random(&mut random);
    for _ in 0..60 {
        made.step(&mut random);
    }
    let when = (at(made.clock).now, HALF_LIFE);
    for n in 0..TENANTS {
        let spot = made.tree.spot(name(n), model()).unwrap();
        let whose = (name(n), Among::All);
        let by_name = standing_with(&made.tree, Charges::EMPTY, whose, when);
        assert_eq!(standing_at(&made.tree, spot, Among::All, when), by_name);
    }
}

#[test]
fn a_tree_is_the_same_whatever_order_its_tenants_and_models_came_in() {
    let build = |tenants: [usize; 3], models: [GpuModel; 3]| {
        let mut tree = Tree::default();
        for n in tenants {
            tree.insert(name(n), None);
        }
        for model in models {
            for n in tenants {
                tree.set_quota(name(n), model, quota(n as u64 + 1, None, Some(1)), &at(0));
            }
        }
        tree.set_parent(name(1), Some(name(0)), &at(0));
        tree.set_parent(name(2), Some(name(1)), &at(0));
        tree.take(name(2), models[0].min(models[2]), milli(3), &at(1));
        tree
    };
    let [a, b, c] = models();
    let (one, other) = (build([0, 1, 2], [a, b, c]), build([2, 0, 1], [c, b, a]));
    assert_eq!(one, other);
    let room = |tree: &Tree, n, model| tree.room(name(n), model, Charges::EMPTY);
    for (n, model) in (0..3).flat_map(|n| models().map(|model| (n, model))) {
        assert_eq!(room(&one, n, model), room(&other, n, model));
    }
    for change in 0..3 {
        let mut changed = other.clone();
        match change {
            0 => changed.take(name(0), c, milli(1), &at(2)),
            1 => changed.set_parent(name(2), None, &at(2)),
            _ => changed.insert(name(3), None),
        }
        assert_ne!(one, changed, "change {change}");
    }
}

impl sublet_protocol::codec::Format for Tree {
    const WHAT: &'static str = "tree";
    const VERSION: u8 = 1;
    const MAX: usize = 1 << 20;
}

#[test]
fn a_tree_that_was_stored_and_read_back_is_the_same() {
    let mut random = Random(23);
    for _ in 0..200 {
        let mut made = Made::random(&mut random);
        for _ in 0..20 {
            made.step(&mut random);
        }
        let bytes = sublet_protocol::codec::encode(&made.tree).unwrap();
        let read: Tree = sublet_protocol::codec::decode(&bytes).unwrap();
        assert_eq!(read, made.tree);
        let again = sublet_protocol::codec::encode(&read).unwrap();
        assert_eq!(again, bytes, "and so are its bytes");
        for n in 0..TENANTS {
            let when = (at(made.clock).now, HALF_LIFE);
            let stands = |tree: &Tree| standing(tree, name(n), when);
            assert_eq!(stands(&read), stands(&made.tree));
        }
    }
}
