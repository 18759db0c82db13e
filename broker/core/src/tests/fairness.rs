//! Who gets what is shared: max-min on the weighted dominant share, against all ways to share.

use sublet_protocol::commands::{Command, PlanGroup};
use sublet_protocol::ids::TenantId;
use sublet_protocol::quotas::{TenantTerms, Weight};
use sublet_protocol::requests::{Class, RequestSpec};
use sublet_protocol::units::Seconds;

use super::quotas::{create, pool, quota, set};
use crate::matching;
use crate::state::StateView;
use crate::testing::{World, model, operator, spec, tenant};

const NAMES: [&str; 6] = ["acme", "beta", "gamma", "delta", "epsilon", "zeta"];

/// One of several tenants that share: its weight in thousandths and how many GPUs it wants.
#[derive(Debug, Clone, Copy)]
struct Sharer {
    weight: u32,
    wants: u64,
}

fn next(seed: &mut u64) -> u64 {
    // Marsaglia's xorshift (2003).
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// What each holds after one plan over `gpus` GPUs that all of them borrow.
fn shared_out(gpus: u64, sharers: &[Sharer]) -> Vec<u64> {
    let mut world = pool(1);
    set(&mut world, "owner", quota(gpus * 1_000, None, None));
    for (name, sharer) in NAMES.iter().zip(sharers) {
        if *name != "acme" {
            create(&mut world, name, "pool");
        }
        let weight = Weight::new(sharer.weight);
        let terms = TenantTerms { weight, ..TenantTerms::default() };
        world.must(operator(), Command::SetTerms { tenant: tenant(name), terms });
    }
    let mut number = 0;
    for (name, sharer) in NAMES.iter().zip(sharers) {
        for _ in 0..sharer.wants {
            number += 1;
            world.submit(name, number, spec(Class::Batch, 1));
        }
    }
    world.plan();
    let held = |id: TenantId, world: &World| world.state.tenants()[&id].held(model()).get() / 1_000;
    NAMES.iter().take(sharers.len()).map(|name| held(tenant(name), &world)).collect()
}

/// The shares of a way to share out, as fractions of one denominator, lowest first.
fn shares(held: &[u64], sharers: &[Sharer]) -> Vec<u64> {
    // Weights are 1, 2, 3 or 4 thousand: twelve is a common multiple.
    let share = |(held, sharer): (&u64, &Sharer)| held * 12_000 / u64::from(sharer.weight);
    held.iter().zip(sharers).map(share).collect()
}

/// Every way to give out `left` GPUs, no tenant more than it wants.
fn ways(sharers: &[Sharer], left: u64) -> Vec<Vec<u64>> {
    let Some((first, rest)) = sharers.split_first() else { return vec![vec![]] };
    let mut all = Vec::new();
    for given in 0..=first.wants.min(left) {
        for mut way in ways(rest, left - given) {
            way.insert(0, given);
            all.push(way);
        }
    }
    all
}

/// The max-min best: all is given out that is wanted, and the lowest unsatisfied shares are as high
/// as they can be. Satisfied tenants are no reason to give less to others.
fn best(gpus: u64, sharers: &[Sharer]) -> Vec<u64> {
    let wanted: u64 = sharers.iter().map(|sharer| sharer.wants).sum();
    let all = ways(sharers, gpus).into_iter();
    let whole = all.filter(|way| way.iter().sum::<u64>() == wanted.min(gpus));
    let best = whole.max_by_key(|way| {
        let mut shares = shares(way, sharers);
        shares.sort_unstable();
        shares
    });
    best.unwrap()
}

#[test]
fn a_plan_is_max_min_on_the_weighted_share_within_one_grant() {
    let mut seed = 0x5eed;
    let (mut scarce, mut of_six) = (0, 0);
    for case in 0..150 {
        let count = 2 + next(&mut seed) as usize % 5;
        let gpus = 1 + next(&mut seed) % 8;
        let sharers: Vec<Sharer> = (0..count)
            .map(|_| Sharer {
                weight: 1_000 * (1 + next(&mut seed) as u32 % 4),
                wants: next(&mut seed) % 6,
            })
            .collect();
        scarce += u32::from(sharers.iter().map(|sharer| sharer.wants).sum::<u64>() > gpus);
        of_six += u32::from(count == NAMES.len());
        let (held, best) = (shared_out(gpus, &sharers), best(gpus, &sharers));
        let context = format!("case {case}: {gpus} GPUs, {sharers:?}: {held:?}, best {best:?}");
        assert_eq!(held.iter().sum::<u64>(), best.iter().sum::<u64>(), "{context}");
        for (held, best) in held.iter().zip(&best) {
            assert!(held.abs_diff(*best) <= 1, "{context}");
        }
        // Nobody could give one to another that wants it and still stand no lower than that one.
        for (giver, taker) in (0..count).flat_map(|g| (0..count).map(move |t| (g, t))) {
            let is_pair = giver != taker && held[giver] > 0 && held[taker] < sharers[taker].wants;
            let share = |at: usize, held: u64| held * 12_000 / u64::from(sharers[at].weight);
            let is_unfair = is_pair && share(giver, held[giver] - 1) > share(taker, held[taker]);
            assert!(!is_unfair, "{giver} and {taker}, {context}");
        }
    }
    assert!(scarce > 75 && of_six > 15, "{scarce} with too few GPUs, {of_six} of six tenants");
}

#[test]
fn a_weight_of_zero_borrows_what_nobody_else_wants() {
    let sharers = [Sharer { weight: 0, wants: 8 }, Sharer { weight: 1_000, wants: 5 }];
    assert_eq!(shared_out(8, &sharers), [3, 5]);
    assert_eq!(shared_out(4, &sharers), [0, 4], "not even its first");
}

#[test]
fn twice_the_weight_is_twice_the_share() {
    let sharers = [Sharer { weight: 1_000, wants: 8 }, Sharer { weight: 3_000, wants: 8 }];
    assert_eq!(shared_out(8, &sharers), [2, 6]);
}

/// The example of `docs/matching.md`.
#[test]
fn the_worked_example_of_the_order_holds() {
    let mut world = World::with_nodes(2);
    world.must(operator(), Command::CreateTenant { tenant: tenant("zeta"), parent: None });
    for name in ["acme", "zeta"] {
        set(&mut world, name, quota(10_000, None, None));
    }
    for (name, number, gpus) in [("acme", 1, &[0, 1, 2, 3][..]), ("zeta", 2, &[4, 5])] {
        let count = u32::try_from(gpus.len()).unwrap();
        let request = world.submit(name, number, spec(Class::Batch, count));
        world.activate(request, gpus);
    }
    let first = world.submit("acme", 10, spec(Class::Batch, 1));
    world.later(Seconds::new(300));
    let urgent = world.submit("acme", 11, RequestSpec { priority: 5, ..spec(Class::Batch, 1) });
    world.later(Seconds::new(300));
    let other = world.submit("zeta", 12, spec(Class::Batch, 1));
    let reserved = world.submit(
        "acme",
        13,
        RequestSpec { duration: Seconds::new(600), ..spec(Class::Latency, 1) },
    );
    let plan = matching::plan(StateView { state: &world.state, now: world.now });
    let order: Vec<_> = plan.iter().map(PlanGroup::request).collect();
    assert_eq!(order, [reserved, other, urgent, first]);
}
