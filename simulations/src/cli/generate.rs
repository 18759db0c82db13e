//! `sublet-sim generate`: writes a made-up trace in the Philly format.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sublet_protocol::units::Seconds;
use sublet_simulations::generator::{Generator, Profile};
use sublet_simulations::replay::Window;
use sublet_simulations::traces::philly;

use super::{Failure, print};

/// Make up a trace that looks like Philly, for those who do not have it.
///
/// Writes philly_jobs.csv and philly_vc_nodes.csv. The same seed gives the same files.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Which one of all made-up traces.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many days, from 2017-10-01 on.
    #[arg(long, default_value_t = 38, value_parser = clap::value_parser!(u16).range(1..=366))]
    days: u16,
    /// The folder to write to; it is made if it is absent, and files in it are not overwritten.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes the two files and says how to replay them.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let out = arguments.out.as_path();
    let profile = starting_on_first_day(Profile::philly());
    let tenants: Vec<String> =
        profile.tenants.iter().map(|tenant| tenant.tenant.to_string()).collect();
    fs::create_dir_all(out)
        .with_context(|| format!("cannot make the folder {}", out.display()))
        .map_err(Failure::Input)?;
    let nodes: String = tenants.iter().map(|tenant| format!("{tenant},1\n")).collect();
    write_new(&out.join("philly_vc_nodes.csv"), &format!("vc,node num\n{nodes}"))?;
    let (text, count) = jobs(Generator::new(arguments.seed, profile), arguments.days);
    write_new(&out.join("philly_jobs.csv"), &text)?;
    print(&format!(
        "wrote {count} jobs of {} tenants to {}\nreplay them: sublet-sim replay --trace philly --data {} \
         --days {} --policy sublet --rho 0.85\n",
        tenants.len(),
        out.display(),
        out.display(),
        arguments.days
    ))
}

/// The weekday of the window's first day, so that weekends fall on weekends.
fn starting_on_first_day(mut profile: Profile) -> Profile {
    let weekday = Window::PHILLY.first.weekday().to_monday_zero_offset();
    profile.first_weekday = weekday.unsigned_abs();
    profile
}

/// The rows in the trace's local time, and how many. The generator's days have 24 hours: its clock is not
/// set back in November, so local times are counted from the first midnight by the wall clock.
fn jobs(generator: Generator, days: u16) -> (String, u64) {
    let end = Seconds::new(u64::from(days) * 86_400);
    let midnight = Window::PHILLY.first.at(0, 0, 0, 0);
    let mut text = String::from("timestamp,duration,num_gpus,gpu_time,cluster\n");
    let mut count = 0;
    for job in generator.take_while(|job| job.submit < end) {
        let after = i64::try_from(job.submit.get()).expect("within 366 days");
        let time = midnight + jiff::SignedDuration::from_secs(after);
        let (duration, gpu_time) = (job.duration.get(), job.duration.get() * u64::from(job.gpus));
        let time = time.strftime(philly::TIME_FORMAT);
        text.push_str(&format!("{time},{duration}.0,{},{gpu_time}.0,{}\n", job.gpus, job.tenant));
        count += 1;
    }
    (text, count)
}

/// Writes a file that must not exist.
fn write_new(file: &Path, text: &str) -> Result<(), Failure> {
    let mut created = fs::File::create_new(file)
        .with_context(|| format!("cannot create {} (files are not overwritten)", file.display()))
        .map_err(Failure::Input)?;
    created
        .write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
        .map_err(Failure::Work)
}
