//! `sublet dev`: the flags; what it does is in [`crate::dev`].

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use sublet_protocol::units::{Permille, Seconds};

use super::global::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Format;
use crate::units::parse_seconds;

/// Run everything on this machine with simulated GPUs: broker, clusters, tenants, load.
///
/// While it runs, other commands on this machine find it by themselves: it writes the profile
/// `dev`. If several run at once, the newest that runs is found.
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// Where the API listens; port 0 takes a free one.
    #[arg(long, value_parser = address, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Where state is kept over restarts. Default: a temporary folder, removed at the end.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How many seconds of lease time pass in one second.
    #[arg(long, value_parser = speed, default_value = "60", value_name = "N")]
    #[arg(allow_negative_numbers = true)]
    speed: NonZeroU32,
    /// What the load is drawn from; the same seed gives the same jobs and owners.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// End by itself this much real time after everything has started, as 60s.
    #[arg(long = "for", value_parser = parse_seconds, value_name = "SPAN")]
    duration: Option<Seconds>,
    /// End with one line of JSON that sums up what happened.
    #[arg(long)]
    json: bool,
    /// Drive the load from this public trace instead of the generator.
    #[arg(long, value_parser = ["philly"], requires = "data", conflicts_with = "no_load", value_name = "NAME")]
    trace: Option<String>,
    /// The folder with the trace's files.
    #[arg(long, requires = "trace", value_name = "DIR")]
    data: Option<PathBuf>,
    /// With a trace: how much of the clusters' GPU time its jobs ask for, as 0.85 [default: 0.85].
    #[arg(long, value_parser = load, requires = "trace", value_name = "LOAD")]
    #[arg(allow_negative_numbers = true)]
    rho: Option<Permille>,
    /// Only broker, clusters and tenants: nobody asks for GPUs and no owner comes.
    #[arg(long)]
    no_load: bool,
    /// Lend this machine's NVIDIA GPUs instead of simulated ones. Nobody asks for them by
    /// themselves, and one second is one second.
    #[arg(long, conflicts_with_all = ["trace", "speed"])]
    nvml: bool,
    /// The same with this library of the driver instead of the one that the system finds.
    #[arg(long, conflicts_with_all = ["trace", "speed"], value_name = "FILE")]
    nvml_lib: Option<PathBuf>,
}

/// The fastest: renewals would be further apart than most leases are long.
const SPEED_MAX: u32 = 20_000;

/// What a trace's jobs ask for unless it is said, in thousandths of the clusters' GPU time.
const RHO_DEFAULT: Permille = Permille::new(850);

fn address(text: &str) -> Result<SocketAddr, String> {
    let error = || format!("{text:?} is no address: write it as 127.0.0.1:8080");
    text.parse().map_err(|_| error())
}

fn speed(text: &str) -> Result<NonZeroU32, String> {
    let speed = text.parse().ok().filter(|speed: &NonZeroU32| speed.get() <= SPEED_MAX);
    speed.ok_or_else(|| format!("{text:?} is no speed: write a whole number from 1 to {SPEED_MAX}"))
}

/// Reads a load as thousandths.
fn load(text: &str) -> Result<Permille, String> {
    let error = || format!("{text:?} is no load: write a number above 0 and up to 1, as 0.85");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return Err(error());
    }
    let thousandths: u16 = format!("{fraction:0<3}").parse().map_err(|_| error())?;
    let whole: u16 = whole.parse().map_err(|_| error())?;
    let load = whole.checked_mul(1_000).and_then(|whole| whole.checked_add(thousandths));
    load.filter(|load| (1..=1_000).contains(load)).map(Permille::new).ok_or_else(error)
}

impl Dev {
    /// Runs until it is told to stop.
    pub(super) fn run(self, context: &Context) -> Outcome<Exit> {
        let trace = match (self.trace, self.data) {
            (Some(_), Some(data)) => {
                Some(crate::dev::Trace { data, rho: self.rho.unwrap_or(RHO_DEFAULT) })
            }
            (None, None) => None,
            // clap requires both or none.
            _ => return Err(Failure::usage("--trace and --data go together")),
        };
        let is_real = self.nvml || self.nvml_lib.is_some();
        let nvml = is_real.then_some(crate::dev::Nvml { library: self.nvml_lib });
        crate::dev::run(&crate::dev::Settings {
            listen: self.listen,
            data_dir: self.data_dir,
            speed: if is_real { NonZeroU32::MIN } else { self.speed },
            seed: self.seed,
            duration: self.duration,
            is_json: self.json || context.printer.format == Format::Json,
            trace,
            has_load: !self.no_load && !is_real,
            nvml,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_read_in_thousandths() {
        assert_eq!(load("0.85"), Ok(Permille::new(850)));
        assert_eq!(load("1"), Ok(Permille::new(1_000)));
        for bad in ["0", "-1", "1.001", "85%", "", ".5", "0.8555", "99999"] {
            assert!(load(bad).is_err(), "{bad}");
        }
    }
}
