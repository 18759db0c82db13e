//! A guest's life: granted, started, done or told to go.

use sublet_protocol::commands::{Command, GuestOutcome, ReclaimCause};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::{LeaseTerms, Member};
use sublet_protocol::units::Seconds;

use super::home::Gpu;
use super::run::{Due, Guest, Place, Run};
use crate::replay::cell::{BOOT, Error, agent_of};

impl Run<'_> {
    /// Returns whose job it is.
    pub(super) fn start_guest(&mut self, terms: &LeaseTerms) -> Result<usize, Error> {
        self.cell.confirm(terms)?;
        let number = usize::try_from(terms.request.get()).expect("requests are numbered from 0");
        let job = self.requests[number];
        let owner = self.workload.jobs[job].owner;
        let places: Vec<(usize, usize)> =
            terms.members.iter().map(|Member { slice, .. }| self.places[slice]).collect();
        let mut until = Seconds::new(u64::MAX);
        for (lender, place) in &places {
            self.homes[*lender].set(*place, Gpu::Lent(terms.lease));
            self.offered_now -= 1;
            self.held_now += 1;
            until = until.min(self.promised[*lender][*place]);
        }
        self.lent.leases += 1;
        self.jobs[job].place = Place::Away;
        let runs = self.jobs[job].remaining.saturating_add(self.options.friction.overhead());
        self.push(self.clock.saturating_add(runs), Due::GuestEnds(terms.lease));
        let (terms, began) = (terms.clone(), self.clock);
        let guest = Guest { job, terms, began, places, is_stopping: false, until };
        self.guests.insert(guest.terms.lease, guest);
        self.queues[owner].remove(&job);
        Ok(owner)
    }

    pub(super) fn guest_ends(&mut self, lease: LeaseId) -> Result<(), Error> {
        let Some(guest) = self.guests.remove(&lease) else { return Ok(()) };
        let gpus = u64::from(self.workload.jobs[guest.job].gpus);
        self.lent.useful += self.jobs[guest.job].remaining.get() * gpus;
        self.lent.overhead += self.options.friction.overhead().get() * gpus;
        let ran = self.clock.saturating_sub(guest.began);
        self.cell.stop_all(&guest.terms, ran.as_millis(), GuestOutcome::Exited { code: 0 })?;
        let progress = &mut self.jobs[guest.job];
        (progress.remaining, progress.request) = (Seconds::ZERO, None);
        progress.place = Place::Done(self.clock);
        self.leave(&guest)
    }

    /// The owner is back: the agent tells the guest to stop and then the broker.
    pub(super) fn owner_is_seen(&mut self, lease: LeaseId) -> Result<(), Error> {
        let Some(guest) = self.guests.get(&lease) else { return Ok(()) };
        if guest.is_stopping {
            return Ok(());
        }
        let is_wanted = |(owner, place): &&(usize, usize)| {
            self.homes[*owner].gpu(*place) == Gpu::Clearing(lease)
        };
        let Some((owner, place)) = guest.places.iter().find(is_wanted).copied() else {
            return Ok(());
        };
        let (slice, token) = (self.slices[owner][place], guest.terms.token);
        self.lent.reclaims += 1;
        self.lent.early += u64::from(self.clock < guest.until);
        let cause = ReclaimCause::OwnerArrived;
        let reclaim = Command::ReclaimSlice { slice, token, boot: BOOT, cause };
        self.cell.done(agent_of(slice), reclaim)?;
        self.tell_to_stop(lease);
        Ok(())
    }

    /// A guest that was told to stop is killed at 80 % of its grace (LE2); it is taken to need all of
    /// that.
    pub(super) fn tell_to_stop(&mut self, lease: LeaseId) {
        let Some(guest) = self.guests.get_mut(&lease) else { return };
        guest.is_stopping = true;
        let grace = guest.terms.grace.get().saturating_mul(4).div_ceil(5);
        let gone = self.clock.saturating_add(Seconds::new(grace));
        self.push(gone, Due::Gone(lease));
    }

    pub(super) fn guest_is_gone(&mut self, lease: LeaseId) -> Result<(), Error> {
        let Some(guest) = self.guests.remove(&lease) else { return Ok(()) };
        let gpus = u64::from(self.workload.jobs[guest.job].gpus);
        let ran = self.clock.saturating_sub(guest.began);
        let friction = self.options.friction;
        let (kept, lost) = friction.kept(ran);
        self.lent.useful += kept.get() * gpus;
        self.lent.lost += lost.get() * gpus;
        self.lent.overhead += ran.min(friction.overhead()).get() * gpus;
        self.cell.stop_all(&guest.terms, ran.as_millis(), GuestOutcome::Stopped)?;
        // The request waits again by itself, and so does the job at home.
        let progress = &mut self.jobs[guest.job];
        progress.remaining = progress.remaining.saturating_sub(kept);
        progress.place = Place::Waiting;
        let owner = self.workload.jobs[guest.job].owner;
        self.queues[owner].insert(guest.job);
        self.leave(&guest)?;
        self.serve_home(owner)
    }

    /// A guest has left its GPUs: those that their owner wants are the owner's, the others are offered
    /// again, since nobody but the guest used them.
    pub(super) fn leave(&mut self, guest: &Guest) -> Result<(), Error> {
        for (owner, place) in &guest.places {
            self.held_now -= 1;
            if matches!(self.homes[*owner].gpu(*place), Gpu::Clearing(_)) {
                self.occupy(*owner, *place);
            } else {
                self.offer(*owner, *place)?;
            }
        }
        let ready = self.blocked.remove(&guest.terms.lease).unwrap_or_default();
        ready.into_iter().try_for_each(|job| self.perhaps_start_home(job))
    }
}
