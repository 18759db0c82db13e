//! The oracle itself: by hand on small loads, and against the design's table on the whole trace.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

use sublet_protocol::ids::TenantId;
use sublet_protocol::units::{Permille, Seconds, Timestamp};
use sublet_simulations::replay::{Job, Pool, Window, Workload};

mod reference;
mod support;
use reference::Policy::{Borrow, OnePool, StaticFifo, StaticShortestFirst};
use reference::{Policy, run};
use support::{fixtures, shared_data};

fn workload(nodes: &[u32], jobs: &[(usize, u64, u64, u32)]) -> Workload {
    let pool = |(index, nodes): (usize, &u32)| Pool {
        tenant: TenantId::new(&format!("tenant-{index}")).unwrap(),
        nodes: *nodes,
        listed: index,
    };
    let job = |&(owner, submit, duration, gpus): &(usize, u64, u64, u32)| Job {
        owner,
        submit: Seconds::new(submit),
        duration: Seconds::new(duration),
        gpus,
    };
    Workload {
        starts_at: Timestamp::new(1_000_000),
        pools: nodes.iter().enumerate().map(pool).collect(),
        jobs: jobs.iter().map(job).collect(),
    }
}

#[track_caller]
fn check(workload: &Workload, policy: Policy, waits: &[Option<u64>]) {
    assert_eq!(run(workload, policy).waits, waits, "{policy:?}");
}

#[test]
fn a_head_that_does_not_fit_holds_back_everyone_behind_it() {
    let load = workload(&[1], &[(0, 0, 100, 4), (0, 1, 10, 8), (0, 2, 10, 1)]);
    check(&load, StaticFifo, &[Some(0), Some(99), Some(108)]);
    // Shortest first changes the order among those that wait, the head still blocks.
    let load = workload(&[1], &[(0, 0, 100, 8), (0, 1, 50, 8), (0, 2, 10, 8)]);
    check(&load, StaticShortestFirst, &[Some(0), Some(109), Some(98)]);
}

#[test]
fn larger_jobs_take_whole_nodes_and_a_best_fit_of_the_rest() {
    // 12 GPUs = one empty node and 4 of another: with one GPU taken on each of two nodes there is none.
    let load = workload(&[2], &[(0, 0, 100, 5), (0, 0, 50, 5), (0, 1, 10, 12)]);
    check(&load, StaticFifo, &[Some(0), Some(0), Some(99)]);
    let load = workload(&[2], &[(0, 0, 100, 4), (0, 1, 10, 12)]);
    check(&load, StaticFifo, &[Some(0), Some(0)]);
}

#[test]
fn a_job_larger_than_its_pool_is_dropped_except_in_one_pool() {
    let load = workload(&[1, 1], &[(0, 0, 10, 16), (1, 0, 10, 1)]);
    for policy in [StaticFifo, StaticShortestFirst, Borrow] {
        check(&load, policy, &[None, Some(0)]);
    }
    check(&load, OnePool, &[Some(0), Some(10)]);
}

#[test]
fn borrowing_uses_only_pools_whose_tenant_waits_for_nothing() {
    // Tenant 0 fills its pool; its next job borrows from tenant 1. Then tenant 1 waits, and tenant 0's
    // last job may not borrow from it.
    let load = workload(&[1, 1], &[(0, 0, 100, 8), (0, 1, 20, 4), (1, 2, 10, 8), (0, 3, 10, 4)]);
    check(&load, Borrow, &[Some(0), Some(0), Some(19), Some(28)]);
    assert_eq!(run(&load, Borrow).borrowed, 2);
}

#[test]
fn the_workload_sizes_pools_by_their_mean_load() {
    let load = Workload::philly(&fixtures("philly"), Window::PHILLY, Permille::new(700)).unwrap();
    let pools: Vec<_> = load.pools.iter().map(|pool| (pool.tenant.as_str(), pool.nodes)).collect();
    assert_eq!(pools, [("aa11", 1), ("bb22", 1)]);
    assert_eq!(load.jobs.len(), 4, "cc33 has no nodes in philly_vc_nodes");
    assert_eq!(load.jobs[0].submit, Seconds::new(33 * 3_600));
    // 24 h + 25 h of the day the clocks were set back count as what they were.
    let day = jiff::civil::date(2017, 11, 5);
    let load =
        Workload::philly(&fixtures("philly"), Window { first: day, days: 1 }, Permille::new(1));
    let load = load.unwrap();
    assert_eq!(load.jobs.len(), 1);
    assert_eq!(load.jobs[0].submit, Seconds::new(5_400));
    assert_eq!(load.pools[0].nodes, 1); // 600 GPU-s / 86.4 s / 8
}

/// The design's table, seconds.
const TABLE: [(Policy, [u32; 2]); 4] = [
    (StaticFifo, [80_142, 103_777]),
    (StaticShortestFirst, [14_619, 22_042]),
    (OnePool, [157, 6_134]),
    (Borrow, [134, 2_837]),
];

#[test]
fn the_oracle_hits_the_designs_table_on_the_public_trace() {
    let Some(folder) = shared_data("philly-2017") else { return };
    for (column, (load, gpus)) in [(700, 832), (850, 704)].into_iter().enumerate() {
        let workload = Workload::philly(&folder, Window::PHILLY, Permille::new(load)).unwrap();
        assert_eq!(workload.gpus(), gpus);
        assert_eq!((workload.jobs.len(), workload.pools.len()), (51_060, 11));
        for (policy, expected) in TABLE {
            let outcome = run(&workload, policy);
            let waits: Vec<u64> = outcome.waits.iter().copied().flatten().collect();
            assert_eq!(waits.len(), if policy == OnePool { 51_060 } else { 51_042 });
            let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
            let expected = f64::from(expected[column]);
            eprintln!("{policy:?} at {load}: {mean:.1}, the table says {expected}");
            assert!((mean - expected).abs() <= 0.02 * expected, "{policy:?} at {load}: {mean}");
        }
    }
}
