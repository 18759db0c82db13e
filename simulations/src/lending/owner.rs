//! An owner at home: its queue, its GPUs, and what of them it offers.

use sublet_protocol::commands::Command;
use sublet_protocol::ids::RequestId;
use sublet_protocol::offers::RescindReason;
use sublet_protocol::requests::{DURATION_MAX, RequestSpec};
use sublet_protocol::units::Seconds;

use super::home::Gpu;
use super::run::{Due, Place, Run};
use crate::replay::Job;
use crate::replay::cell::{BOOT, Error, agent_of, user_of};
use crate::replay::run::spec;

impl Run<'_> {
    /// Starts what fits at home, in the order of submission; the head blocks.
    pub(super) fn serve_home(&mut self, owner: usize) -> Result<(), Error> {
        while let Some(job) = self.queues[owner].first().copied() {
            let Some(berth) = self.homes[owner].berth(self.workload.jobs[job].gpus) else {
                return Ok(());
            };
            self.queues[owner].remove(&job);
            self.withdraw(job)?;
            let seen_at = self.options.friction.next_look(self.clock);
            for place in &berth.places {
                match self.homes[owner].gpu(*place) {
                    Gpu::Lent(lease) => self.homes[owner].set(*place, Gpu::Clearing(lease)),
                    Gpu::Offered => {
                        self.rescind(owner, *place)?;
                        self.occupy(owner, *place);
                    }
                    Gpu::Idle => self.occupy(owner, *place),
                    Gpu::Own | Gpu::Clearing(_) => {}
                }
            }
            for lease in &berth.guests {
                self.blocked.entry(*lease).or_default().push(job);
                self.push(seen_at, Due::Seen(*lease));
            }
            let (since, places, guests) = (self.clock, berth.places, berth.guests);
            self.jobs[job].place = Place::Clearing { since, places, guests };
            self.perhaps_start_home(job)?;
        }
        Ok(())
    }

    pub(super) fn occupy(&mut self, owner: usize, place: usize) {
        let idle = self.clock.saturating_sub(self.homes[owner].idle_since(place));
        self.forecasts[owner].learn(idle);
        self.homes[owner].set(place, Gpu::Own);
        self.own_now += 1;
    }

    /// The job is no longer looking for a place elsewhere.
    pub(super) fn withdraw(&mut self, job: usize) -> Result<(), Error> {
        if let Some(request) = self.jobs[job].request.take() {
            let tenant = self.workload.pools[self.workload.jobs[job].owner].tenant;
            self.cell.done(user_of(tenant), Command::CancelRequest { request })?;
        }
        Ok(())
    }

    /// Starts an owner's job once no guest is in its way.
    pub(super) fn perhaps_start_home(&mut self, job: usize) -> Result<(), Error> {
        let Place::Clearing { since, places, guests } = &self.jobs[job].place else {
            return Ok(());
        };
        if guests.iter().any(|lease| self.guests.contains_key(lease)) {
            return Ok(());
        }
        let (since, places, had_guests) = (*since, places.clone(), !guests.is_empty());
        if had_guests {
            self.lent.owner_delays.push(self.clock.saturating_sub(since));
        }
        self.lent.home_starts += 1;
        let ends = self.clock.saturating_add(self.jobs[job].remaining);
        self.jobs[job].place = Place::Home { places };
        self.push(ends, Due::OwnEnds(job));
        Ok(())
    }

    pub(super) fn own_ends(&mut self, job: usize) -> Result<(), Error> {
        let owner = self.workload.jobs[job].owner;
        let done = Place::Done(self.clock);
        let Place::Home { places } = std::mem::replace(&mut self.jobs[job].place, done) else {
            return Ok(());
        };
        let ran = self.jobs[job].remaining.get() * u64::from(self.workload.jobs[job].gpus);
        self.lent.own += ran;
        self.jobs[job].remaining = Seconds::ZERO;
        for place in places {
            self.homes[owner].vacate(place, self.clock);
            self.own_now -= 1;
            self.look_when_idle(owner, place);
        }
        self.serve_home(owner)
    }

    /// Looks again when the GPU may have been idle long enough.
    pub(super) fn look_when_idle(&mut self, owner: usize, place: usize) {
        let friction = self.options.friction;
        let since = self.homes[owner].idle_since(place);
        let at = friction.next_look(since).saturating_add(friction.idle_after);
        self.push(friction.next_look(at), Due::Idle(owner, place));
    }

    pub(super) fn perhaps_offer(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let age = self.clock.saturating_sub(self.homes[owner].idle_since(place));
        let is_idle = self.homes[owner].gpu(place) == Gpu::Idle;
        if !is_idle || age < self.options.friction.idle_after {
            return Ok(());
        }
        self.offer(owner, place)
    }

    pub(super) fn offer(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let age = self.clock.saturating_sub(self.homes[owner].idle_since(place));
        let idle_for = self.forecasts[owner].after(age);
        let generation = &mut self.generations[owner][place];
        *generation += 1;
        self.promised[owner][place] = self.clock.saturating_add(idle_for.p10);
        self.cell.offer(self.slices[owner][place], *generation, idle_for)?;
        self.homes[owner].set(place, Gpu::Offered);
        self.offered_now += 1;
        Ok(())
    }

    pub(super) fn rescind(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let slice = self.slices[owner][place];
        let generation = self.generations[owner][place];
        let reason = RescindReason::Owner;
        let rescind = Command::RescindOffer { slice, generation, boot: BOOT, reason };
        self.cell.done(agent_of(slice), rescind)?;
        self.offered_now -= 1;
        Ok(())
    }

    /// Asks for a place elsewhere for a job that waits at home.
    pub(super) fn ask_elsewhere(&mut self, job: usize) -> Result<(), Error> {
        let progress = &self.jobs[job];
        if progress.place != Place::Waiting || progress.request.is_some() {
            return Ok(());
        }
        let needed = progress.remaining.saturating_add(self.options.friction.overhead());
        if needed > DURATION_MAX {
            // Longer than the longest lease: it stays at home.
            return Ok(());
        }
        let asked = Job { duration: needed, ..self.workload.jobs[job] };
        let spec = RequestSpec { class: self.options.class, ..spec(&asked) };
        let number = u128::try_from(self.requests.len()).unwrap_or(u128::MAX);
        let request = RequestId::new(number);
        let tenant = self.workload.pools[asked.owner].tenant;
        self.cell.done(user_of(tenant), Command::SubmitRequest { request, tenant, spec })?;
        self.requests.push(job);
        self.jobs[job].request = Some(request);
        Ok(())
    }
}
