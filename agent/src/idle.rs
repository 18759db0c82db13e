//! When a device counts as idle: judged from samples, with hysteresis. No clock, no I/O.
//!
//! Idle is slow to be believed and quick to be doubted: every sample of the last ten minutes must
//! be quiet, and one that is not ends it at once. What is unknown is never quiet. Memory that is
//! held at 0 % use is *held*, not idle: real pods are exactly 0 % busy in 67 % of samples and yet
//! hold 24 GiB.

use sublet_protocol::units::{MiB, Millis};

use crate::probe::{Health, Layout, OwnerQueue, Percent, Sample};

/// What quiet means and how long it must last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleRule {
    /// Highest use of a quiet device.
    pub utilisation_max: Percent,
    /// Memory a quiet device may hold beyond the driver's own share.
    pub memory_slack: MiB,
    /// How long a device must be quiet to be idle.
    pub settle: Millis,
    /// Longest time between two samples; what was not looked at for longer counts as not quiet.
    pub gap_max: Millis,
}

impl Default for IdleRule {
    /// At most 3 % and 256 MiB for ten minutes, looked at every two minutes or oftener.
    fn default() -> Self {
        Self {
            utilisation_max: Percent::saturating(3),
            memory_slack: MiB::new(256),
            settle: Millis::new(600_000),
            gap_max: Millis::new(120_000),
        }
    }
}

/// A reading that was missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// Utilisation.
    Utilisation,
    /// Memory in use, or the driver's own share of it.
    Memory,
    /// The list of processes.
    Processes,
    /// What the owner's scheduler has there.
    OwnerQueue,
    /// Health.
    Health,
    /// Whether it is a whole GPU.
    Layout,
}

/// What one sample says by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nobody uses the device.
    Quiet,
    /// Its memory is taken while nothing runs. Never offered whole.
    Held,
    /// Somebody uses it, or is about to.
    Busy,
    /// It must not be used.
    Sick,
    /// It is a GPU that is divided. Its parts may be lent, never the whole.
    Divided,
    /// A reading is missing, so nothing can be said.
    Unknown(Missing),
}

/// Judges one sample. A reading that shows use settles it, even where another is missing; a device
/// is quiet only if all are there.
#[must_use]
pub fn look(rule: &IdleRule, sample: &Sample) -> Look {
    if matches!(sample.health, Health::Unhealthy | Health::Degraded) {
        return Look::Sick;
    }
    if sample.layout == Layout::Divided {
        return Look::Divided;
    }
    let is_working = sample.utilisation.is_some_and(|u| u > rule.utilisation_max);
    let is_queued = sample.owner_queue == Some(OwnerQueue::Something);
    let has_process = sample.processes.as_ref().is_some_and(|all| !all.is_empty());
    let quiet_memory = sample.memory_driver.map(|own| own.saturating_add(rule.memory_slack));
    let memory_is_taken = match (sample.memory_used, quiet_memory) {
        (Some(used), Some(quiet)) => Some(used > quiet),
        _ => None,
    };
    if is_working {
        return Look::Busy;
    }
    if sample.utilisation.is_some() && memory_is_taken == Some(true) {
        return Look::Held;
    }
    if is_queued || has_process {
        return Look::Busy;
    }
    let missing = [
        (sample.utilisation.is_none(), Missing::Utilisation),
        (memory_is_taken.is_none(), Missing::Memory),
        (sample.processes.is_none(), Missing::Processes),
        (sample.owner_queue.is_none(), Missing::OwnerQueue),
        (sample.health == Health::Unknown, Missing::Health),
        (sample.layout == Layout::Unknown, Missing::Layout),
    ];
    if let Some((_, missing)) = missing.into_iter().find(|(is_missing, _)| *is_missing) {
        return Look::Unknown(missing);
    }
    match memory_is_taken {
        Some(false) => Look::Quiet,
        Some(true) | None => Look::Held,
    }
}

/// What the detector makes of the samples so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Quiet for long enough, since this moment.
    Idle {
        /// The first quiet sample.
        since: Millis,
    },
    /// Quiet, but not yet for long enough.
    Settling {
        /// The first quiet sample.
        since: Millis,
    },
    /// Not quiet: the last look says why.
    NotIdle(Look),
}

/// The detector of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleDetector {
    rule: IdleRule,
    quiet_since: Option<Millis>,
    last: Option<Millis>,
}

impl IdleDetector {
    /// A detector that has seen nothing yet.
    #[must_use]
    pub const fn new(rule: IdleRule) -> Self {
        Self { rule, quiet_since: None, last: None }
    }

    /// Takes the sample of `now`.
    pub fn on_sample(&mut self, now: Millis, sample: &Sample) -> Verdict {
        self.on_look(now, look(&self.rule, sample))
    }

    /// Takes a look of `now` that was judged elsewhere (a device whose only user is our guest is
    /// quiet).
    pub fn on_look(&mut self, now: Millis, look: Look) -> Verdict {
        let gap = self.last.map_or(Millis::ZERO, |last| now.saturating_sub(last));
        self.last = Some(now);
        if look != Look::Quiet {
            self.quiet_since = None;
            return Verdict::NotIdle(look);
        }
        if gap > self.rule.gap_max {
            self.quiet_since = None;
        }
        let since = *self.quiet_since.get_or_insert(now);
        if now.saturating_sub(since) >= self.rule.settle {
            Verdict::Idle { since }
        } else {
            Verdict::Settling { since }
        }
    }

    /// When a device that stays quiet becomes idle; nothing if it is not quiet.
    #[must_use]
    pub fn settles_at(&self) -> Option<Millis> {
        self.quiet_since.map(|since| since.saturating_add(self.rule.settle))
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
