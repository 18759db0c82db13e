//! What is printed: the machine, its load, and figures with their spread.

use std::time::Duration;

/// What a load gave.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    /// Operations that were acknowledged, per second.
    pub(crate) rate: f64,
    /// The middle of the times from asking to acknowledgement.
    pub(crate) p50: Duration,
    /// 99 of 100 took no longer.
    pub(crate) p99: Duration,
}

impl Measured {
    /// From the time of each operation and how long they took together.
    pub(crate) fn of(mut times: Vec<Duration>, together: Duration) -> anyhow::Result<Self> {
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied();
        let (Some(p50), Some(p99)) = (at(50), at(99)) else {
            anyhow::bail!("nothing was acknowledged");
        };
        Ok(Self { rate: times.len() as f64 / together.as_secs_f64(), p50, p99 })
    }
}

/// The middle one; of an even number, the upper of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One line for all rounds of one side; gives the median rate.
pub(crate) fn rounds(name: &str, rounds: &[Measured]) -> f64 {
    let rate = median(rounds.iter().map(|round| round.rate));
    let least = rounds.iter().map(|round| round.rate).fold(f64::INFINITY, f64::min);
    let most = rounds.iter().map(|round| round.rate).fold(0.0, f64::max);
    let micros = |pick: fn(&Measured) -> Duration| {
        median(rounds.iter().map(|round| pick(round).as_secs_f64() * 1e6))
    };
    let (p50, p99) = (micros(|round| round.p50), micros(|round| round.p99));
    println!(
        "  {name:28} {rate:9.0}/s  ({least:.0} to {most:.0}, {} rounds)  p50 {p50:.0} us  p99 {p99:.0} us",
        rounds.len()
    );
    rate
}

/// The ratio of two medians, beside what is aimed at.
pub(crate) fn ratio(ours: f64, theirs: f64, target: f64) {
    let reached = if ours / theirs >= target { "reached" } else { "NOT reached" };
    println!("  ratio {:.2}, target at least {target}: {reached}", ours / theirs);
}

/// Says what the figures were measured on.
pub(crate) fn machine() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    println!("{cores} cores, {}", model.trim_start_matches([' ', '\t', ':']));
    load("at the start");
}

/// Says how busy the machine is.
pub(crate) fn load(when: &str) {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load {when}: {}", load.trim());
}
