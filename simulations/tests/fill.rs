//! `sublet-sim fill` on small lists of our own: the protocol, and Sublet through the real rules.
#![allow(clippy::unwrap_used, reason = "tests may stop on a surprise")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use sublet_simulations::fill::{Options, Policy, Report, Workload, fill};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fill")
}

fn filled(list: &str, seeds: u64) -> Report {
    let workload = Workload::openb(&folder(), list).unwrap();
    let policies = Policy::ALL.to_vec();
    let options = Options { seeds, policies, shows_all: false, threads: NonZeroUsize::MIN };
    fill(&workload, &options, &|| {}).unwrap()
}

#[test]
fn the_planner_chooses_among_distinct_nodes_as_among_all() {
    for list in ["mixed", "whole"] {
        let workload = Workload::openb(&folder(), list).unwrap();
        let runs = |shows_all| {
            let (policies, threads) = (vec![Policy::Sublet], NonZeroUsize::MIN);
            let options = Options { seeds: 4, policies, shows_all, threads };
            fill(&workload, &options, &|| {}).unwrap().sublet_runs
        };
        assert_eq!(runs(true), runs(false), "{list}");
    }
}

fn mean(report: &Report, policy: Policy) -> u64 {
    report.allocated.iter().find(|(other, _)| *other == policy).unwrap().1.mean
}

#[test]
fn arrivals_ask_for_130_percent_of_the_fleet_and_hardly_more() {
    let workload = Workload::openb(&folder(), "mixed").unwrap();
    assert_eq!(workload.fleet.gpu().get(), 14_000);
    for seed in 0..20 {
        let arrivals = workload.arrivals(seed).unwrap();
        let gpu = |pod: &usize| workload.pods[*pod].gpu_total().get();
        let asked: u64 = arrivals.order.iter().map(gpu).sum();
        assert!((18_200..20_200).contains(&asked), "seed {seed} asks for {asked}");
        assert_eq!(arrivals, workload.arrivals(seed).unwrap());
    }
    assert_ne!(workload.arrivals(0).unwrap(), workload.arrivals(1).unwrap());
}

#[test]
fn whole_gpus_without_constraints_fill_the_fleet_under_every_policy() {
    let report = filled("whole", 2);
    for policy in Policy::ALL {
        assert_eq!(mean(&report, policy), 1_000_000, "{policy:?}");
    }
}

#[test]
fn sublet_fills_a_mixed_fleet_through_the_real_rules_no_worse_than_chance() {
    let report = filled("mixed", 4);
    let sublet = mean(&report, Policy::Sublet);
    assert!(sublet >= mean(&report, Policy::Random), "{report}");
    assert!(sublet <= 1_000_000 && sublet > 800_000, "{report}");
    assert_eq!(report, filled("mixed", 4), "a seed always gives the same");
}

#[test]
fn a_list_that_is_not_there_is_named() {
    let error = Workload::openb(&folder(), "absent").unwrap_err().to_string();
    assert!(error.contains("openb_pod_list_absent"), "{error}");
}
