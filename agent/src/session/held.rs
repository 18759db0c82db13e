//! A member that the agent holds: its stage, its deadlines, how long its guest ran.

use sublet_protocol::agent::{GrantTerms, Workload};
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::units::Millis;

use super::GuestUse;
use crate::driver::GuestKey;

/// One granted member.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) terms: GrantTerms,
    pub(super) workload: Awaited,
    pub(super) stage: Stage,
    pub(super) clock: UsageClock,
    pub(super) rest: Rest,
}

/// The workload of a member.
#[derive(Debug)]
pub(super) enum Awaited {
    /// None belongs to it.
    Nothing,
    /// It has not come.
    Missing,
    /// It has, and is what the grant says.
    Here(Workload),
}

/// Where a member stands. It leaves `held` when its slice is clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Confirmed with this nonce last; may start when it is activated.
    Confirmed { nonce: Millis },
    /// Activated, but its workload has not come.
    Waiting { until: Millis, lives: Lives },
    /// The driver has it.
    Starting { lives: Lives },
    /// The guest runs.
    Running { lives: Lives },
    /// Told to end; dead at the latest at `kill_at`.
    Stopping { kill_at: Millis, is_killed: bool },
    /// The guest has ended; what it left behind is being removed.
    Gone { outcome: GuestOutcome },
}

/// The two deadlines of an active lease, never mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lives {
    /// Send time of the last answered renewal + TTL (LR1).
    pub(super) live_until: Millis,
    /// The bought end.
    pub(super) ends_at: Millis,
}

/// How long the guest ran, on the agent's clock (LB1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct UsageClock {
    pub(super) started: Option<Millis>,
    pub(super) stopped: Option<Millis>,
}

impl UsageClock {
    pub(super) fn used(&self, now: Millis) -> Millis {
        let started = self.started.map(|at| self.stopped.unwrap_or(now).saturating_sub(at));
        started.unwrap_or(Millis::ZERO)
    }
}

/// Since when the guest has demonstrably used nothing, and when that was seen last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rest(Option<(Millis, Millis)>);

impl Rest {
    /// Takes what was seen at `now`, of the time since the last look.
    pub(super) fn see(&mut self, now: Millis, seen: GuestUse) {
        self.0 = match (seen, self.0) {
            (GuestUse::Some | GuestUse::Unknown, _) => None,
            (GuestUse::Nothing, Some((since, _))) => Some((since, now)),
            (GuestUse::Nothing, None) => Some((now, now)),
        };
    }

    /// How long it has lasted, as far as was seen.
    pub(super) fn length(self) -> Millis {
        self.0.map_or(Millis::ZERO, |(since, last)| last.saturating_sub(since))
    }
}

/// Part of the grace after which a guest is killed: 80 % (LE2).
pub(super) fn kill_after(grace: Millis) -> Millis {
    Millis::new(grace.get() / 5 * 4 + grace.get() % 5 * 4 / 5)
}

impl Held {
    pub(super) const fn key(&self) -> GuestKey {
        GuestKey { slice: self.terms.slice, token: self.terms.token }
    }

    pub(super) const fn grace(&self) -> Millis {
        self.terms.grace.as_millis()
    }

    /// The first moment at which a guest of a lease that lives until `live_until` must be told to
    /// end (LA2), and from which none may start (LG3).
    pub(super) const fn last_start(&self, live_until: Millis) -> Millis {
        live_until.saturating_sub(self.grace())
    }

    pub(super) const fn live_until(&self, nonce: Millis) -> Millis {
        nonce.saturating_add(self.terms.ttl.as_millis())
    }

    /// When a guest must be told to end, by itself or at the bought end.
    pub(super) fn stop_at(&self, lives: Lives) -> Millis {
        self.last_start(lives.live_until).min(lives.ends_at)
    }

    /// When a guest must be dead though nobody tells it anything: 80 % of the grace after it should
    /// have been told (LA5).
    pub(super) fn deadline(&self, lives: Lives) -> Millis {
        self.stop_at(lives).saturating_add(kill_after(self.grace()))
    }

    /// For how long the guest has used nothing; zero unless it runs.
    pub(super) fn unused(&self) -> Millis {
        match self.stage {
            Stage::Running { .. } => self.rest.length(),
            Stage::Confirmed { .. }
            | Stage::Waiting { .. }
            | Stage::Starting { .. }
            | Stage::Stopping { .. }
            | Stage::Gone { .. } => Millis::ZERO,
        }
    }

    /// Whether a guest is there that was not told to end.
    pub(super) const fn has_guest(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. } | Stage::Running { .. })
    }

    /// When something must be done without being asked.
    pub(super) fn due(&self) -> Option<Millis> {
        match self.stage {
            Stage::Confirmed { nonce } => Some(self.last_start(self.live_until(nonce))),
            Stage::Waiting { until, lives } => Some(until.min(self.stop_at(lives))),
            Stage::Starting { lives } | Stage::Running { lives } => Some(self.stop_at(lives)),
            Stage::Stopping { kill_at, is_killed: false } => Some(kill_at),
            Stage::Stopping { is_killed: true, .. } | Stage::Gone { .. } => None,
        }
    }
}
