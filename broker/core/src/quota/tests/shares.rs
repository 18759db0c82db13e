//! Weighted dominant share, and who stands before whom.

use sublet_protocol::quotas::{TenantTerms, Weight};

use super::super::{share, standing};
use super::*;

const HALF_LIFE: Seconds = Seconds::new(1_000);

fn weight(thousandths: u32) -> TenantTerms {
    TenantTerms { weight: Weight::new(thousandths), ..TenantTerms::default() }
}

/// A group with 100 GPUs of its own and four tenants that bring nothing.
fn pool() -> Tree {
    let mut tree = Tree::default();
    tree.insert(name(0), None);
    tree.set_quota(name(0), model(), quota(100_000, None, None), &at(0));
    for n in 1..5 {
        tree.insert(name(n), Some(name(0)));
    }
    tree
}

fn order(tree: &Tree, tenants: [usize; 2], seconds: u64) -> std::cmp::Ordering {
    let [a, b] = tenants.map(|n| standing(tree, name(n), (at(seconds).now, HALF_LIFE)));
    a.cmp(&b)
}

#[test]
fn a_share_is_what_is_borrowed_of_what_can_be_lent_by_weight() {
    let mut tree = pool();
    assert_eq!(share(&tree, name(1)), 0);
    tree.take(name(1), model(), milli(25_000), &at(0));
    assert_eq!(share(&tree, name(1)), 250);
    tree.set_terms(name(1), weight(2_000), &at(0));
    assert_eq!(share(&tree, name(1)), 125);
    tree.set_terms(name(1), weight(0), &at(0));
    assert_eq!(share(&tree, name(1)), u64::MAX, "a weight of zero that borrows");
    tree.give_back(name(1), model(), milli(25_000), &at(0));
    assert_eq!(share(&tree, name(1)), 0, "a weight of zero that borrows nothing");
    assert_eq!(share(&tree, name(0)), 0, "without a group nothing is borrowed");
}

#[test]
fn the_share_of_the_model_where_it_is_most_counts() {
    let mut tree = pool();
    let rare = GpuModel::new("h200").unwrap();
    tree.set_quota(name(0), rare, quota(10_000, None, None), &at(0));
    tree.take(name(1), model(), milli(20_000), &at(0));
    tree.take(name(1), rare, milli(4_000), &at(0));
    assert_eq!(share(&tree, name(1)), 400);
}

#[test]
fn whoever_borrows_less_for_its_weight_stands_first() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let mut tree = pool();
    assert_eq!(order(&tree, [1, 2], 0), Equal);
    tree.take(name(1), model(), milli(2_000), &at(0));
    assert_eq!(order(&tree, [1, 2], 0), Greater);
    tree.take(name(2), model(), milli(3_000), &at(0));
    assert_eq!(order(&tree, [1, 2], 0), Less);
    tree.set_terms(name(2), weight(3_000), &at(0));
    assert_eq!(order(&tree, [1, 2], 0), Greater, "three times the weight, half more held");
}

#[test]
fn what_is_ones_own_comes_before_what_is_borrowed_and_the_past_does_not_touch_it() {
    use std::cmp::Ordering::Less;
    let mut tree = pool();
    tree.set_quota(name(1), model(), quota(4_000, None, None), &at(0));
    tree.take(name(1), model(), milli(20_000), &at(0));
    tree.give_back(name(1), model(), milli(17_000), &at(5_000));
    tree.take(name(2), model(), milli(1_000), &at(5_000));
    assert_eq!(order(&tree, [1, 2], 5_000), Less, "it uses 3 of its own 4; the other borrows");
}

#[test]
fn of_two_that_borrow_nothing_the_one_that_uses_less_of_its_own_stands_first() {
    use std::cmp::Ordering::{Equal, Less};
    let mut tree = pool();
    tree.set_quota(name(1), model(), quota(4_000, None, None), &at(0));
    tree.set_quota(name(2), model(), quota(8_000, None, None), &at(0));
    tree.take(name(1), model(), milli(1_000), &at(0));
    tree.take(name(2), model(), milli(4_000), &at(0));
    assert_eq!(order(&tree, [1, 2], 0), Less, "a quarter and a half");
    tree.take(name(1), model(), milli(1_000), &at(0));
    assert_eq!(order(&tree, [1, 2], 0), Equal);
}

#[test]
fn whoever_borrows_beyond_all_measure_stands_last() {
    use std::cmp::Ordering::Greater;
    let mut tree = pool();
    tree.set_quota(name(0), model(), quota(1, None, None), &at(0));
    tree.take(name(1), model(), milli(20_000_000), &at(0));
    tree.take(name(2), model(), milli(1_000), &at(0));
    assert_eq!(order(&tree, [1, 2], 0), Greater, "twenty million times what there is");
}

#[test]
fn who_borrowed_lately_stands_behind_who_did_not_until_it_is_forgotten() {
    use std::cmp::Ordering::Greater;
    let mut tree = pool();
    tree.take(name(1), model(), milli(40_000), &at(0));
    tree.give_back(name(1), model(), milli(40_000), &at(1_000));
    // One half-life of 40 GPUs left a past of 20, of which one more half-life leaves 10.
    tree.take(name(2), model(), milli(9_900), &at(2_000));
    assert_eq!(order(&tree, [1, 2], 2_000), Greater);
    // A little later it is less than what the other holds.
    assert_eq!(order(&tree, [2, 1], 2_050), Greater);
}

#[test]
fn what_did_not_count_in_a_group_does_not_count_after_a_move_out_of_it() {
    use std::cmp::Ordering::Equal;
    let mut tree = pool();
    tree.set_quota(name(1), model(), quota(8_000, None, None), &at(0));
    tree.take(name(1), model(), milli(8_000), &at(0));
    // For one half-life it held its own, which counts against nobody in a group.
    tree.set_parent(name(1), None, &at(1_000));
    tree.insert(name(5), None);
    tree.set_quota(name(5), model(), quota(8_000, None, None), &at(1_000));
    tree.take(name(5), model(), milli(8_000), &at(1_000));
    assert_eq!(order(&tree, [1, 5], 1_000), Equal);
}

#[test]
fn tenants_of_two_groups_are_told_apart_by_their_groups_first() {
    use std::cmp::Ordering::{Greater, Less};
    let mut tree = pool();
    for n in 5..8 {
        tree.insert(name(n), Some(name(if n < 7 { 1 } else { 2 })));
    }
    tree.take(name(5), model(), milli(10_000), &at(0));
    tree.take(name(7), model(), milli(6_000), &at(0));
    assert_eq!(order(&tree, [6, 7], 0), Greater, "its group holds 10, the other's 6");
    assert_eq!(order(&tree, [6, 5], 0), Less, "within a group it holds less");
    assert_eq!(order(&tree, [3, 6], 0), Less, "a tenant beside the groups stands as one");
}

#[test]
fn one_gpu_of_a_hundred_thousand_moves_its_tenant_back() {
    let mut tree = pool();
    tree.set_quota(name(0), model(), quota(100_000_000, None, None), &at(0));
    tree.take(name(1), model(), milli(1_000), &at(0));
    assert_eq!(order(&tree, [1, 2], 0), std::cmp::Ordering::Greater);
}
