//! How guests end: LE2, LE3, LA1, LA2, LA4, LB1, LB3.

use sublet_protocol::agent::{Stream, Up};
use sublet_protocol::commands::{GuestOutcome, ReclaimCause};
use sublet_protocol::ids::{DeviceId, LeaseId};
use sublet_protocol::offers::RescindReason;
use sublet_protocol::units::Millis;

use super::held::{Held, Stage, kill_after};
use super::mutation::Mutation;
use super::{Condition, Effect, Observation, Session, USAGE_MAX};
use crate::driver::{Exit, GuestKey, Report, StopSignal};
use crate::durable::UsageEntry;

impl Session {
    /// LE2 for a member that is held; LE3 for one that is not.
    pub(super) fn on_stop(
        &mut self,
        now: Millis,
        lease: LeaseId,
        key: GuestKey,
        grace: Millis,
        out: &mut Vec<Effect>,
    ) {
        if self.held_as(key).is_some() {
            self.end(now, key, grace, out);
            return;
        }
        if self.tell_stopped_again(key, out) {
            return;
        }
        if !self.leaves_out(Mutation::NoRaise) && self.durable.raise(key.slice, key.token) {
            self.persist(out);
        }
        out.push(Effect::Send(stopped(&UsageEntry {
            lease,
            slice: key.slice,
            token: key.token,
            used: Millis::ZERO,
            outcome: Some(GuestOutcome::NeverStarted),
        })));
    }

    /// The broker's books are closed: the use need not be kept (LB3), and a guest that is still
    /// there has no lease.
    pub(super) fn on_ended(&mut self, now: Millis, key: GuestKey, out: &mut Vec<Effect>) {
        if let Some(held) = self.held_as(key) {
            let grace = held.grace();
            self.end(now, key, grace, out);
            return;
        }
        self.forget_usage(key, out);
        if let Some(offer) = self.offers.get_mut(&key.slice) {
            offer.close_if_refused();
        }
        self.offer_if_idle(now, key.slice, out);
    }

    /// Takes what was seen of a device. The owner always wins (LA1), foreign use and faults, too
    /// (LA4).
    pub(super) fn observe(&mut self, now: Millis, seen: Observation, out: &mut Vec<Effect>) {
        let (device, reason, cause) = match seen {
            Observation::Idle(device) => {
                self.condition.insert(device, Condition::Idle);
                self.offer_device(now, device, out);
                return;
            }
            Observation::NotIdle(device) => (device, RescindReason::NotIdle, None),
            Observation::OwnerArrived(device) => {
                (device, RescindReason::Owner, Some(ReclaimCause::OwnerArrived))
            }
            Observation::ForeignUse(device) => {
                (device, RescindReason::ForeignUse, Some(ReclaimCause::ForeignUse))
            }
            Observation::DeviceLost(device) => {
                (device, RescindReason::DeviceFault, Some(ReclaimCause::DeviceFault))
            }
        };
        self.condition.insert(device, Condition::Not(reason));
        let is_ignored = match cause {
            Some(ReclaimCause::OwnerArrived) => self.leaves_out(Mutation::OwnerIgnored),
            Some(_) => self.leaves_out(Mutation::ForeignIgnored),
            None => false,
        };
        // The guest first: its grace runs.
        if let Some(cause) = cause.filter(|_| !is_ignored) {
            self.take_back(now, device, cause, out);
        }
        self.rescind_device(device, reason, out);
    }

    /// No permission is asked; it is reported after. A guest that has members on other devices of
    /// this node goes whole.
    fn take_back(
        &mut self,
        now: Millis,
        device: DeviceId,
        cause: ReclaimCause,
        out: &mut Vec<Effect>,
    ) {
        let on_device = self.held.values().filter(|held| held.terms.slice.device == device);
        let taken: Vec<GuestKey> = on_device.map(Held::key).collect();
        let is_taken = |held: &&Held| taken.iter().any(|key| key.token == held.terms.token);
        let affected: Vec<(GuestKey, Millis, bool)> = self
            .held
            .values()
            .filter(is_taken)
            .map(|held| (held.key(), held.grace(), held.is_ending()))
            .collect();
        for (key, grace, is_ending) in affected {
            let GuestKey { slice, token } = key;
            let report = Effect::Send(Up::Reclaim { slice, token, cause });
            let is_told = !is_ending && taken.contains(&key);
            if is_told && !self.has_guest(key) {
                // Nothing runs, so nothing waits: said before the end, or the broker would take the
                // end for a failed start.
                out.push(report);
                self.end(now, key, grace, out);
            } else {
                self.end(now, key, grace, out);
                out.extend(is_told.then_some(report));
            }
        }
    }

    fn has_guest(&mut self, key: GuestKey) -> bool {
        self.held_as(key).is_some_and(|held| held.has_guest())
    }

    /// Begins the end of a member that is held, or hastens it: the signal at once, death at 80 % of
    /// the grace. One without a guest is over.
    pub(super) fn end(&mut self, now: Millis, key: GuestKey, grace: Millis, out: &mut Vec<Effect>) {
        let (has_no_kill, is_hasty) =
            (self.leaves_out(Mutation::NoKill), self.leaves_out(Mutation::StoppedTooSoon));
        let Some(held) = self.held_as(key) else { return };
        let wanted = now.saturating_add(kill_after(grace));
        match &mut held.stage {
            Stage::Confirmed { .. } | Stage::Waiting { .. } => {
                self.finish(now, key, GuestOutcome::NeverStarted, out);
            }
            Stage::Starting { lives } | Stage::Running { lives } => {
                let lives = *lives;
                let latest = held.deadline(lives);
                let kill_at = if has_no_kill { latest } else { wanted.min(latest) };
                held.stage = Stage::Stopping { kill_at, is_killed: false };
                out.push(Effect::Signal(key, StopSignal::Terminate));
                out.push(Effect::SetDeadline(key, kill_at));
                if is_hasty {
                    out.push(Effect::Send(held.stopped_too_soon(now)));
                }
            }
            Stage::Stopping { kill_at, is_killed: false } if wanted < *kill_at && !has_no_kill => {
                *kill_at = wanted;
                out.push(Effect::SetDeadline(key, wanted));
            }
            Stage::Stopping { .. } | Stage::Gone { .. } => {}
        }
    }

    /// LA2 and the bought end; killing what should be dead; giving up what can no longer start.
    pub(super) fn end_what_is_due(&mut self, now: Millis, out: &mut Vec<Effect>) {
        let is_due = |held: &&Held| self.due_of(held).is_some_and(|due| due <= now);
        let is_left = |held: &&Held| self.leaves_out(Mutation::NoSelfStop) && held.has_guest();
        let due = self.held.values().filter(is_due).filter(|held| !is_left(held));
        let due: Vec<GuestKey> = due.map(Held::key).collect();
        for key in due {
            let Some(held) = self.held_as(key) else { continue };
            if let Stage::Stopping { is_killed, .. } = &mut held.stage {
                *is_killed = true;
                out.push(Effect::Kill(key));
            } else {
                let grace = held.grace();
                self.end(now, key, grace, out);
            }
        }
    }

    /// When something must be done with a member without being asked.
    pub(super) fn due_of(&self, held: &Held) -> Option<Millis> {
        let due = held.due();
        match held.stage {
            Stage::Starting { lives } | Stage::Running { lives }
                if self.leaves_out(Mutation::StopsEarly) =>
            {
                let answered = lives.live_until.saturating_sub(held.terms.ttl.as_millis());
                let hasty =
                    answered.saturating_add(Millis::new(held.terms.renew.as_millis().get() * 2));
                due.map(|due| due.min(hasty))
            }
            Stage::Confirmed { .. }
            | Stage::Waiting { .. }
            | Stage::Starting { .. }
            | Stage::Running { .. }
            | Stage::Stopping { .. }
            | Stage::Gone { .. } => due,
        }
    }

    pub(super) fn report(&mut self, now: Millis, report: Report, out: &mut Vec<Effect>) {
        match report {
            Report::Started(key) => {
                let Some(held) = self.held_as(key) else { return };
                held.clock.started = Some(now);
                if let Stage::Starting { lives } = held.stage {
                    held.stage = Stage::Running { lives };
                }
            }
            Report::NotStarted(key, failure) => {
                let Some(held) = self.held_as(key) else { return };
                let (lease, token) = (held.terms.lease, key.token);
                tracing::info!(%lease, %failure, "guest not started");
                let bytes = format!("sublet: {failure}\n").into_bytes();
                let stream = Stream::Stderr;
                out.push(Effect::Send(Up::Output { lease, token, stream, offset: 0, bytes }));
                self.finish(now, key, GuestOutcome::NeverStarted, out);
            }
            Report::Output { key, stream, offset, bytes } => {
                let Some(held) = self.held_as(key) else { return };
                let (lease, token) = (held.terms.lease, key.token);
                out.push(Effect::Send(Up::Output { lease, token, stream, offset, bytes }));
            }
            Report::Exited(key, exit) => {
                let Some(held) = self.held_as(key) else { return };
                held.clock.stopped.get_or_insert(now);
                held.stage = Stage::Gone { outcome: outcome(held, now, exit) };
            }
            Report::Clean(key) => {
                let Some(held) = self.held_as(key) else { return };
                if let Stage::Gone { outcome } = held.stage {
                    self.finish(now, key, outcome, out);
                }
            }
            Report::NotClean(key) => {
                // The member stays held: not reported as stopped, not offered (LE1).
                let slice = key.slice;
                tracing::error!(%slice, token = %key.token, "slice not clean, kept back");
            }
        }
    }

    /// Nothing of the member is left: its use is kept durably, then told (LB3); the slice is
    /// offered again.
    pub(super) fn finish(
        &mut self,
        now: Millis,
        key: GuestKey,
        outcome: GuestOutcome,
        out: &mut Vec<Effect>,
    ) {
        if self.held_as(key).is_none() {
            return;
        }
        let Some(held) = self.held.remove(&key.slice) else { return };
        let entry = UsageEntry {
            lease: held.terms.lease,
            slice: key.slice,
            token: key.token,
            used: held.clock.used(now),
            outcome: Some(outcome),
        };
        self.durable.record(entry);
        self.bound_usage();
        self.persist(out);
        out.push(Effect::Send(stopped(&entry)));
        self.offer_if_idle(now, key.slice, out);
    }

    /// Answers for a member that has ended here, if its use is kept. Says whether it did.
    pub(super) fn tell_stopped_again(&self, key: GuestKey, out: &mut Vec<Effect>) -> bool {
        let entry = self.durable.usage_of(&key.slice, key.token);
        let entry = entry.filter(|entry| entry.outcome.is_some());
        out.extend(entry.map(|entry| Effect::Send(stopped(entry))));
        entry.is_some()
    }

    /// Answers a broker that believes in a member which is not held.
    pub(super) fn disown(&self, key: GuestKey, out: &mut Vec<Effect>) {
        if self.tell_stopped_again(key, out) {
            return;
        }
        let refused = self.refused.get(&key.slice).filter(|refused| refused.token == key.token);
        out.extend(refused.map(|refused| {
            Effect::Send(stopped(&UsageEntry {
                lease: refused.lease,
                slice: key.slice,
                token: key.token,
                used: Millis::ZERO,
                outcome: Some(GuestOutcome::NeverStarted),
            }))
        }));
    }

    pub(super) fn forget_usage(&mut self, key: GuestKey, out: &mut Vec<Effect>) {
        let before = self.durable.usage.len();
        let is_it = |one: &UsageEntry| (one.slice, one.token) == (key.slice, key.token);
        self.durable.usage.retain(|one| one.outcome.is_none() || !is_it(one));
        if self.durable.usage.len() < before {
            self.persist(out);
        }
    }

    /// What an earlier start held was ended by the restart (LA3); what it ran was kept with its
    /// last renewal.
    pub(super) fn settle_earlier_start(&mut self, out: &mut Vec<Effect>) {
        if self.durable.usage.is_empty() {
            return;
        }
        for entry in &mut self.durable.usage {
            entry.outcome.get_or_insert(GuestOutcome::Stopped);
        }
        self.persist(out);
        out.extend(self.durable.usage.iter().map(|entry| Effect::Send(stopped(entry))));
    }

    /// The oldest settled entries go first; entries of members that are held stay.
    fn bound_usage(&mut self) {
        while self.durable.usage.len() > USAGE_MAX {
            let settled = self.durable.usage.iter().position(|one| one.outcome.is_some());
            let Some(oldest) = settled else { return };
            self.durable.usage.remove(oldest);
        }
    }
}

impl Held {
    /// What must not be said while the guest is still there.
    fn stopped_too_soon(&self, now: Millis) -> Up {
        let GuestKey { slice, token } = self.key();
        let (lease, used) = (self.terms.lease, self.clock.used(now));
        Up::Stopped { lease, slice, token, used, outcome: GuestOutcome::Stopped }
    }

    fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Stopping { .. } | Stage::Gone { .. })
    }
}

/// A guest that was told to end, or killed at its deadline, was stopped; any other ended by itself.
fn outcome(held: &Held, now: Millis, exit: Exit) -> GuestOutcome {
    match held.stage {
        Stage::Starting { lives } | Stage::Running { lives } if now < held.deadline(lives) => {
            GuestOutcome::Exited { code: exit.code() }
        }
        Stage::Gone { outcome } => outcome,
        Stage::Confirmed { .. }
        | Stage::Waiting { .. }
        | Stage::Starting { .. }
        | Stage::Running { .. }
        | Stage::Stopping { .. } => GuestOutcome::Stopped,
    }
}

fn stopped(entry: &UsageEntry) -> Up {
    let UsageEntry { lease, slice, token, used, outcome } = *entry;
    let outcome = outcome.unwrap_or(GuestOutcome::Stopped);
    Up::Stopped { lease, slice, token, used, outcome }
}
