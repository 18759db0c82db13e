//! `sublet-sim chaos --mutations`: every rule is taken out once; something must notice.

use sublet_simulations::chaos::Options;

use super::Failure;
#[cfg(feature = "mutations")]
use super::{chaos::run_all, print};

/// Seeds that are tried together for one rule.
#[cfg(feature = "mutations")]
const AT_ONCE: u64 = 8;

/// Takes out each rule until a seed notices, or none of `seeds` does.
#[cfg(feature = "mutations")]
pub(super) fn run(options: &Options, seeds: u64, is_json: bool) -> Result<(), Failure> {
    use sublet_simulations::chaos::Rule;

    let mut survivors = Vec::new();
    for rule in Rule::ALL {
        let mutated = Options { rule: Some(rule), ..*options };
        let caught = (0..seeds).step_by(8).find_map(|first| {
            let tried: Vec<u64> = (first..seeds.min(first + AT_ONCE)).collect();
            let outcomes = run_all(&tried, &mutated);
            outcomes.into_iter().find_map(|(seed, one)| one.violation.map(|found| (seed, found)))
        });
        let line = match &caught {
            Some((seed, (violation, step))) if is_json => format!(
                "{{\"rule\":\"{rule:?}\",\"invariant\":{},\"seed\":{seed},\"step\":{step}}}\n",
                violation.invariant
            ),
            Some((seed, (violation, step))) => format!(
                "{:<14} INV-{:<3} seed {seed:<4} step {step:<8} {}\n",
                format!("{rule:?}"),
                violation.invariant,
                violation.what
            ),
            None if is_json => format!("{{\"rule\":\"{rule:?}\",\"invariant\":null}}\n"),
            None => format!("{:<14} survives {seeds} seeds\n", format!("{rule:?}")),
        };
        print(&line)?;
        if caught.is_none() {
            survivors.push(format!("{rule:?}"));
        }
    }
    match survivors.is_empty() {
        true => Ok(()),
        false => {
            let what =
                format!("nothing noticed that these were taken out: {}", survivors.join(", "));
            Err(Failure::Work(anyhow::anyhow!(what)))
        }
    }
}

/// Without the feature there is nothing to take out.
#[cfg(not(feature = "mutations"))]
pub(super) fn run(_options: &Options, _seeds: u64, _is_json: bool) -> Result<(), Failure> {
    let what = "this build holds no rule that can be taken out: build sublet-simulations with \
                `--features mutations`";
    Err(Failure::Input(anyhow::anyhow!(what)))
}
