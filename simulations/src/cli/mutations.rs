//! `sublet-sim chaos --mutations`: every rule is taken out once; something must notice.

use sublet_simulations::chaos::Options;
#[cfg(feature = "mutations")]
use sublet_simulations::chaos::{Expected, Found, Rule};

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
///
/// Fails when a rule that must be missed is not, or when something is noticed though none is taken out.
#[cfg(feature = "mutations")]
pub(super) fn run(options: &Options, seeds: u64, is_json: bool) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for rule in Rule::ALL {
        let found = caught(options, seeds, rule);
        let is_as_expected = match rule.expected() {
            Expected::Caught => found.is_some(),
            Expected::Holds => found.is_none(),
            // Whether the rare case occurs that only the one of them covers, the seeds decide.
            Expected::Survives { .. } => true,
        };
        let text = match is_json {
            true => json_line(rule, found.as_ref()),
            false => line(rule, found.as_ref(), seeds),
        };
        print(&text)?;
        if !is_as_expected {
            wrong.push(format!("{rule:?}"));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => {
            let what = format!("not as expected when taken out: {}", wrong.join(", "));
            Err(Failure::Work(anyhow::anyhow!(what)))
        }
    }
}

/// What noticed: the seed, the property and the step.
#[cfg(feature = "mutations")]
type Caught = (u64, Found);

#[cfg(feature = "mutations")]
fn caught(options: &Options, seeds: u64, rule: Rule) -> Option<Caught> {
    let mutated = Options { rule: Some(rule), ..*options };
    (0..seeds).step_by(8).find_map(|first| {
        let tried: Vec<u64> = (first..seeds.min(first + AT_ONCE)).collect();
        let outcomes = run_all(&tried, &mutated);
        outcomes.into_iter().find_map(|(seed, one)| one.violation.map(|found| (seed, found)))
    })
}

#[cfg(feature = "mutations")]
fn line(rule: Rule, found: Option<&Caught>, seeds: u64) -> String {
    let name = format!("{rule:?}");
    match (found, rule.expected()) {
        (Some((seed, (violation, step))), expected) => {
            let (invariant, what) = (violation.invariant, &violation.what);
            let twin = match expected {
                Expected::Caught => "",
                Expected::Survives { .. } => "; a twin, seldom noticed alone",
                Expected::Holds => "; but nothing is taken out",
            };
            format!("{name:<14} INV-{invariant:<3} seed {seed:<4} step {step:<8} {what}{twin}\n")
        }
        (None, Expected::Survives { pair }) => {
            format!("{name:<14} twin: survives {seeds} seeds alone, as expected; pair {pair:?}\n")
        }
        (None, Expected::Holds) => format!("{name:<14} holds: {seeds} seeds without a violation\n"),
        (None, Expected::Caught) => format!("{name:<14} survives {seeds} seeds\n"),
    }
}

#[cfg(feature = "mutations")]
fn json_line(rule: Rule, found: Option<&Caught>) -> String {
    let pair = match rule.expected() {
        Expected::Caught | Expected::Holds => "null".to_owned(),
        Expected::Survives { pair } => format!("\"{pair:?}\""),
    };
    let found = found.map_or_else(
        || "\"invariant\":null".to_owned(),
        |(seed, (violation, step))| {
            let invariant = violation.invariant;
            format!("\"invariant\":{invariant},\"seed\":{seed},\"step\":{step}")
        },
    );
    format!("{{\"rule\":\"{rule:?}\",\"twin_of_pair\":{pair},{found}}}\n")
}

/// The rule of this name.
#[cfg(feature = "mutations")]
pub(super) fn rule(name: &str) -> Result<Rule, Failure> {
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
