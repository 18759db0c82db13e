//! `sublet-sim report`: every policy on one trace, as a page with plots.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use indicatif::ProgressBar;
use sublet_protocol::units::{Permille, Seconds};
use sublet_simulations::html::{Comparison, Curve, page};
use sublet_simulations::lending;
use sublet_simulations::replay::{Options, Policy, Report, Window, Workload, replay};

use super::replay::{TraceArguments, progress_bar};
use super::{Failure, print};

/// Staging times that the charged replays are done with, in seconds.
const STAGING: [u64; 3] = [0, 60, 600];

/// Replay a trace under every policy, without and with what lending costs, and write a page with
/// plots.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    trace: TraceArguments,
    /// The page to write; an existing file is not overwritten.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Writes the page; a broken rule is a failure, and no page is written.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (workload, window, load) = arguments.trace.workload()?;
    let out = arguments.out.as_path();
    let mut file = File::create_new(out)
        .with_context(|| format!("cannot create {} (files are not overwritten)", out.display()))
        .map_err(Failure::Input)?;
    let mut comparison =
        Comparison { workload: &workload, window, load, curves: Vec::new(), charged: Vec::new() };
    for policy in Policy::ALL {
        comparison.curves.push(frictionless(&workload, (policy, window, load))?);
    }
    for staging in STAGING {
        let (curve, report, hours) = charged(&workload, staging, (window, load))?;
        comparison.curves.push(curve);
        comparison.charged.push((report, hours));
    }
    let page = page(&comparison).map_err(|error| Failure::Work(error.into()))?;
    file.write_all(page.as_bytes())
        .with_context(|| format!("cannot write {}", out.display()))
        .map_err(Failure::Work)?;
    print(&format!("wrote {}\n", out.display()))
}

fn bar(workload: &Workload, name: &str) -> ProgressBar {
    progress_bar(workload.jobs.len(), "jobs").with_message(name.to_owned())
}

fn at(jobs: usize) -> u64 {
    u64::try_from(jobs).unwrap_or(u64::MAX)
}

fn frictionless(
    workload: &Workload,
    (policy, window, load): (Policy, Window, Permille),
) -> Result<Curve, Failure> {
    let bar = bar(workload, policy.name());
    let began = Instant::now();
    let replayed =
        replay(workload, policy, Options::default(), &mut |jobs| bar.set_position(at(jobs)));
    bar.finish_and_clear();
    let replayed = replayed.map_err(|error| Failure::Work(error.into()))?;
    let report = Report::new(workload, (policy, window, load), &replayed, began.elapsed());
    if !report.is_sound() {
        return Err(super::replay::broken(report.invariants.violations));
    }
    Ok(Curve::of(&report, &replayed))
}

fn charged(
    workload: &Workload,
    staging: u64,
    (window, load): (Window, Permille),
) -> Result<(Curve, lending::Report, Vec<lending::Hour>), Failure> {
    let bar = bar(workload, &format!("sublet, staging {staging} s"));
    let began = Instant::now();
    let friction =
        lending::Friction { staging: Seconds::new(staging), ..lending::Friction::default() };
    let options = lending::Options { friction, ..lending::Options::default() };
    let lent = lending::replay(workload, options, &mut |jobs| bar.set_position(at(jobs)));
    bar.finish_and_clear();
    let lent = lent.map_err(|error| Failure::Work(error.into()))?;
    let report = lending::Report::new(workload, (options, window, load), &lent, began.elapsed());
    if !report.is_sound() {
        return Err(super::replay::broken(report.invariants.violations));
    }
    Ok((Curve::charged(&report, &lent), report, lent.hours))
}
