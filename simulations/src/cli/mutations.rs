//! `sublet-sim chaos --mutations`: every rule is taken out once; something must notice.

use sublet_simulations::chaos::Options;

use super::Failure;
#[cfg(feature = "mutations")]
use super::{chaos::run_all, print};

#[cfg(not(feature = "mutations"))]
const NOT_HERE: &str = "this build holds no rule that can be taken out: build sublet-simulations \
                        with `--features mutations`";
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

/// The rule of this name.
#[cfg(feature = "mutations")]
pub(super) fn rule(name: &str) -> Result<sublet_simulations::chaos::Rule, Failure> {
    use sublet_simulations::chaos::Rule;

    Rule::named(name).ok_or_else(|| {
        let known: Vec<String> = Rule::ALL.iter().map(|rule| format!("{rule:?}")).collect();
        Failure::Input(anyhow::anyhow!("no rule {name}; there are {}", known.join(", ")))
    })
}

/// Without the feature there is none.
#[cfg(not(feature = "mutations"))]
pub(super) fn rule(_name: &str) -> Result<sublet_simulations::chaos::Rule, Failure> {
    Err(Failure::Input(anyhow::anyhow!(NOT_HERE)))
}

/// Without the feature there is nothing to take out.
#[cfg(not(feature = "mutations"))]
pub(super) fn run(_options: &Options, _seeds: u64, _is_json: bool) -> Result<(), Failure> {
    Err(Failure::Input(anyhow::anyhow!(NOT_HERE)))
}
