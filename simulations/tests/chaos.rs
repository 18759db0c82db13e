//! Chaos as part of every test run: short, but with every kind of fault. The long runs are the
//! program's own.
#![allow(clippy::unwrap_used, reason = "tests")]

use sublet_simulations::chaos::{Fault, Options, Outcome, Rule, Scenario, run};

const STEPS: u64 = 5_000;

fn options() -> Options {
    Options { steps: STEPS, ..Options::default() }
}

#[test]
fn no_promise_is_broken_in_a_storm() {
    let mut whole = Outcome::default();
    for seed in 0..8 {
        let outcome = run(seed, &options());
        assert_eq!(outcome.violation, None, "sublet-sim chaos --seed {seed} --steps {STEPS}");
        whole.add(&outcome);
    }
    assert!(whole.grants > 100 && whole.terms > 8, "something happened: {whole:?}");
    assert!(whole.ends.len() > 5, "leases ended in different ways: {:?}", whole.ends);
}

#[test]
fn with_no_faults_but_the_networks_there_is_one_term_and_leases_are_served() {
    let quiet = Options { scenario: Scenario::Quiet, ..options() };
    let outcome = run(3, &quiet);
    assert_eq!(outcome.violation, None);
    assert_eq!(outcome.terms, 1);
    assert!(outcome.grants > 20 && outcome.ends.contains_key("expired"), "{:?}", outcome.ends);
}

#[test]
fn one_seed_is_one_trace() {
    let traced = Options { is_traced: true, steps: 2_000, ..Options::default() };
    let hash = |seed| run(seed, &traced).trace.unwrap();
    assert_eq!(hash(7), hash(7));
    assert_ne!(hash(7), hash(8));
}

#[test]
fn ledgers_on_breaking_disks_recover_and_those_that_are_not_synced_are_missed() {
    let mut whole = Outcome::default();
    let storm = Options { steps: 20_000, ..Options::default() };
    (0..4).for_each(|seed| whole.add(&run(seed, &storm)));
    assert_eq!(whole.violation, None);
    for fault in [Fault::PowerLoss, Fault::UnsyncedLost, Fault::DiskFull] {
        assert!(whole.faults.of(fault) > 0, "{fault}");
    }
    let unsynced = Options { rule: Some(Rule::LedgerSync), ..storm };
    let missed = (0..8).find_map(|seed| run(seed, &unsynced).violation);
    assert_eq!(missed.map(|(violation, _)| violation.invariant), Some(8));
}

#[cfg(feature = "mutations")]
#[test]
fn a_rule_that_is_left_out_is_missed() {
    let quick = [
        Rule::Lf1Tokens,
        Rule::Lg1Hold,
        Rule::Lr3Resync,
        Rule::Le2Kill,
        Rule::La6Hoard,
        Rule::La6Start,
        Rule::La6Early,
        Rule::Lb2Measured,
        Rule::Lk1Keys,
    ];
    for rule in quick {
        let mutated = Options { rule: Some(rule), ..options() };
        let is_missed = (0..8).any(|seed| run(seed, &mutated).violation.is_some());
        assert!(is_missed, "{rule:?}");
    }
}

#[cfg(feature = "mutations")]
#[test]
fn a_twin_is_not_missed_and_its_pair_is() {
    use sublet_simulations::chaos::Expected;

    let mut twins = 0;
    for rule in Rule::ALL {
        let Expected::Survives { pair } = rule.expected() else { continue };
        twins += 1;
        assert_eq!(pair.expected(), Expected::Caught, "{rule:?} has a pair that must be missed");
        let alone = Options { rule: Some(rule), ..options() };
        let found = (0..8).find_map(|seed| run(seed, &alone).violation);
        assert_eq!(found, None, "{rule:?}");
        let both = Options { rule: Some(pair), steps: 100_000, ..Options::default() };
        assert!((0..64).any(|seed| run(seed, &both).violation.is_some()), "{pair:?}");
    }
    assert_eq!(twins, 2);
}

/// The seeds of the table of bugs in `docs/simulation.md`: `--seed N --steps M --without RULE`.
#[cfg(feature = "mutations")]
fn told_bugs(text: &str) -> Vec<(u64, u64, Rule)> {
    let told = |row: &str| {
        let words: Vec<&str> = row.split(|c: char| c.is_whitespace() || c == '`').collect();
        let after = |flag| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
        let number = |flag| after(flag).and_then(|word| word.parse().ok());
        Some((number("--seed")?, number("--steps")?, Rule::named(after("--without")?)?))
    };
    text.lines().filter(|line| line.starts_with("| ")).filter_map(told).collect()
}

#[cfg(feature = "mutations")]
#[test]
fn the_table_of_bugs_names_seeds_that_show_them() {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let page = std::path::Path::new(&folder).join("../docs/simulation.md");
    let told = told_bugs(&std::fs::read_to_string(page).unwrap());
    assert!(told.len() > 4, "{told:?}");
    for (seed, steps, rule) in told {
        let without = Options { rule: Some(rule), steps, ..Options::default() };
        let shown = run(seed, &without).violation;
        assert!(shown.is_some(), "--seed {seed} --steps {steps} --without {rule:?}");
    }
}
