//! INV-2 against planted faults: each sum that is kept is compared with one that is made anew.

use sublet_protocol::money::MicroCredits;
use sublet_protocol::requests::Class;

use super::super::amounts::Sums;
use super::super::check;
use super::*;
use crate::state::State;
use crate::testing::{World, operator, spec, tenant};

/// `pool` with `owner`, whose quota rests on its hardware.
fn state() -> State {
    let mut world = World::with_nodes(1);
    let pool = tenant("pool");
    let create = sublet_protocol::commands::Command::CreateTenant { tenant: pool, parent: None };
    world.must(operator(), create);
    let quota = Quota { basis: Basis::Hardware, ..quota(8_000, None, Some(5_000)) };
    let set = sublet_protocol::commands::Command::SetQuota {
        tenant: tenant("owner"),
        model: model(),
        quota,
    };
    world.must(operator(), set);
    let to = sublet_protocol::commands::Command::MoveTenant {
        tenant: tenant("owner"),
        parent: Some(pool),
    };
    world.must(operator(), to);
    world.state
}

type Plant = (&'static str, &'static str, fn(&mut Sums));

#[test]
fn a_sum_that_is_one_off_is_named_with_whose_it_is() {
    assert_eq!(check::sums(&state()), Vec::<String>::new());
    let plants: [Plant; 5] = [
        ("owner", "hardware", |sums| sums.hardware = milli(8_001)),
        ("owner", "subtree", |sums| sums.subtree = milli(8_001)),
        ("owner", "ceiling", |sums| sums.ceiling = milli(8_001)),
        ("owner", "usage", |sums| sums.usage = milli(1)),
        ("pool", "subtree", |sums| sums.subtree = milli(4_999)),
    ];
    for (whose, what, plant) in plants {
        let mut state = state();
        let spot = state.tree.spot(tenant(whose), model()).unwrap();
        plant(&mut state.tree.rows.row_mut(spot).sums);
        let found = check::sums(&state);
        let named = format!("the {what} of {whose} ");
        assert!(found.iter().any(|text| text.starts_with(&named)), "{named}: {found:?}");
    }
}

#[test]
fn a_budget_that_grants_exceed_is_named_if_it_was_not_cut() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Experiment, 2));
    world.grant(request, &[0, 1]);
    let mut state = world.state;
    let acme = state.tree.number(tenant("acme"));
    let of = |units: i64| Some(MicroCredits::new(units * MicroCredits::PER_UNIT));
    state.tree.rows.member_mut(acme).terms.budget.money = of(4);
    assert_eq!(check::spending(&state), Vec::<String>::new(), "two GPUs for an hour at two");
    state.tree.rows.member_mut(acme).terms.budget.money = of(3);
    assert_eq!(check::spending(&state).len(), 1, "it was never cut");
}

#[test]
fn spending_that_is_one_off_or_below_nothing_is_named() {
    use super::super::spending::Spend;
    let faults: [fn(&mut super::super::spending::Spending); 3] = [
        |spending| spending.held = Spend { time: 1, money: 0 },
        |spending| spending.used = Spend { time: -1, money: 0 },
        |spending| spending.used = Spend { time: 0, money: -1 },
    ];
    assert_eq!(check::spending(&state()), Vec::<String>::new());
    for (number, fault) in faults.into_iter().enumerate() {
        let mut state = state();
        let now = state.now();
        let mut spending = state.tree.node(tenant("pool")).unwrap().spending(now);
        fault(&mut spending);
        let pool = state.tree.number(tenant("pool"));
        state.tree.rows.member_mut(pool).spending = spending;
        let found = check::spending(&state);
        assert!(found.len() == 1 && found[0].starts_with("pool has"), "{number}: {found:?}");
    }
}
