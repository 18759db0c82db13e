//! What a fill came to: the share of the fleet's GPU that each policy allocated, over the seeds.

use std::fmt;

use serde::Serialize;

use super::Baseline;

/// Who places the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Any node and GPU with room.
    Random,
    /// The tightest node and GPU.
    BestFit,
    /// Fragmentation gradient descent by itself.
    Fgd,
    /// Sublet's planner and rules.
    Sublet,
}

impl Policy {
    /// All, in the order of the table.
    pub const ALL: [Policy; 4] = [Policy::Random, Policy::BestFit, Policy::Fgd, Policy::Sublet];

    /// The plain model of it; none for Sublet, which is run for real.
    #[must_use]
    pub const fn baseline(self) -> Option<Baseline> {
        match self {
            Policy::Random => Some(Baseline::Random),
            Policy::BestFit => Some(Baseline::BestFit),
            Policy::Fgd => Some(Baseline::Fgd),
            Policy::Sublet => None,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Random => "random",
            Policy::BestFit => "best-fit",
            Policy::Fgd => "fgd",
            Policy::Sublet => "sublet",
        }
    }
}

/// Allocated millionths of the fleet's GPU, over the seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The mean, rounded down.
    pub mean: u64,
    /// The standard deviation of the sample, rounded down.
    pub std: u64,
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

impl Summary {
    /// Of these runs.
    #[must_use]
    pub fn of(runs: &[u64]) -> Summary {
        let count = u64::try_from(runs.len()).unwrap_or(u64::MAX).max(1);
        let mean = runs.iter().sum::<u64>() / count;
        let squares: u64 = runs.iter().map(|run| run.abs_diff(mean).pow(2)).sum();
        let std = (squares / count.saturating_sub(1).max(1)).isqrt();
        let min = runs.iter().copied().min().unwrap_or(0);
        Summary { mean, std, min, max: runs.iter().copied().max().unwrap_or(0) }
    }
}

/// What one workload came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The list of pods.
    pub workload: String,
    /// How many orders of arrival.
    pub seeds: u64,
    /// By policy, in millionths of the fleet's GPU.
    pub allocated: Vec<(Policy, Summary)>,
    /// Each seed's run of Sublet.
    pub sublet_runs: Vec<u64>,
    /// Commands that the rules applied in Sublet's runs.
    pub commands: u128,
}

/// Millionths as per cent with four decimals.
struct Percent(u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:04}", self.0 / 10_000, self.0 % 10_000)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (policy, Summary { mean, std, min, max }) in &self.allocated {
            let columns = [mean, std, min, max].map(|value| Percent(*value).to_string());
            let [mean, std, min, max] = columns;
            let (workload, policy) = (&self.workload, policy.name());
            writeln!(f, "{workload:<12} {policy:<9} {mean:>8} {std:>7} {min:>8} {max:>8}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_the_sample() {
        let summary = Summary::of(&[900_000, 950_000, 1_000_000]);
        assert_eq!(summary.mean, 950_000);
        assert_eq!(summary.std, 50_000);
        assert_eq!((summary.min, summary.max), (900_000, 1_000_000));
        assert_eq!(Summary::of(&[7]).std, 0);
        assert_eq!(Percent(954_321).to_string(), "95.4321");
    }
}
