//! Who else wants the devices: owners that come and go, strangers' processes, and the fault that
//! takes a device away. An agent sees each a moment later, and goodbye only after the device has
//! been quiet for a while.

use sublet_agent::session::Observation;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::DeviceId;

use super::fault::Fault;
use super::guests::Guest;
use super::queue::{Deadline, Event};
use super::world::World;

/// An agent sees a change after less than this.
const SEEN_WITHIN: u64 = 3_000;
/// A device must be quiet this long to be idle again.
const SETTLES: u64 = 60_000;

/// Who comes to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    Owner,
    Foreign,
    Lost,
}

/// A physical GPU.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) agent: usize,
    pub(super) id: DeviceId,
    pub(super) slices: Vec<SliceId>,
    pub(super) visitor: Option<(Visit, u64, u64)>,
    free_since: u64,
    visits: u64,
}

impl Device {
    pub(super) fn new(agent: usize, id: DeviceId, slices: Vec<SliceId>) -> Device {
        Device { agent, id, slices, visitor: None, free_since: 0, visits: 0 }
    }
}

impl World {
    pub(super) fn devices_of(&self, agent: usize) -> impl Iterator<Item = usize> + use<> {
        let home = self.home_of(agent);
        let all = self.devices.iter().enumerate().filter(|(_, device)| device.agent == home);
        all.map(|(place, _)| place).collect::<Vec<_>>().into_iter()
    }

    pub(super) fn schedule_visit(&mut self, device: usize) {
        if self.is_calm {
            return;
        }
        let at = self.now + 60_000 + self.random.below(5_400_000);
        let visit = match self.random.below(10) {
            0 => Visit::Lost,
            1 | 2 => Visit::Foreign,
            _most => Visit::Owner,
        };
        self.queue.push(at, Event::Arrives { device, visit });
    }

    pub(super) fn on_arrives(&mut self, device: usize, visit: Visit) {
        if self.is_calm {
            return;
        }
        let now = self.now;
        let one = &mut self.devices[device];
        one.visits += 1;
        one.visitor = Some((visit, now, one.visits));
        let stays = 20_000 + self.random.below(900_000);
        self.queue.push(now + stays, Event::Leaves { device });
        let seen = now + self.random.below(SEEN_WITHIN);
        self.queue.push(seen, Event::Look { device });
        let (agent, id) = (self.devices[device].agent, self.devices[device].id);
        let here = self.guests.all.iter().filter(|(_, guest)| {
            guest.is_alive && guest.agent == agent && guest.key.slice.device == id
        });
        let here: Vec<u64> = here.map(|(id, _)| *id).collect();
        if !here.is_empty() {
            self.faults.count(match visit {
                Visit::Owner => Fault::OwnerArrived,
                Visit::Foreign => Fault::ForeignUse,
                Visit::Lost => Fault::DeviceLost,
            });
        }
        for guest in here {
            self.promise_device(guest);
        }
    }

    /// INV-7: the guest is gone within its grace, seen or not.
    fn promise_device(&mut self, guest: u64) {
        let Some(one) = self.guests.all.get(&guest) else { return };
        if self.agents[one.agent].is_liar {
            return;
        }
        let grace = self.checker.grace_of(one.lease);
        let check = Deadline::GuestGone { guest, invariant: 7 };
        self.queue.push(self.now + grace, Event::Check(check));
    }

    /// Whether somebody has been at a guest's device for longer than its grace. Who has left waits no
    /// more, and who came later was promised a moment of its own.
    pub(super) fn is_owner_waiting(&self, guest: &Guest) -> bool {
        let device = self.devices.iter().find(|device| device.id == guest.key.slice.device);
        let since = device.and_then(|device| device.visitor).map(|(_, since, _)| since);
        since.is_some_and(|since| since + self.checker.grace_of(guest.lease) <= self.now)
    }

    /// A guest starts beside a visitor that its agent has not seen yet, or should have.
    pub(super) fn guest_meets_visitor(&mut self, guest: u64) {
        let Some(one) = self.guests.all.get(&guest) else { return };
        let device = self.devices.iter().find(|device| device.id == one.key.slice.device);
        let Some((_, since, _)) = device.and_then(|device| device.visitor) else { return };
        if self.agents[one.agent].is_liar {
            return;
        }
        let slice = one.key.slice;
        if self.now > since + self.checker.grace_of(one.lease) {
            return self.fail(7, &format!("a guest starts on {slice}, whose owner is there"));
        }
        self.promise_device(guest);
    }

    pub(super) fn on_leaves(&mut self, device: usize) {
        if self.devices[device].visitor.take().is_none() {
            return;
        }
        self.devices[device].free_since = self.now;
        self.queue.push(self.now + SETTLES, Event::Look { device });
        self.schedule_visit(device);
    }

    /// The agent looks at a device and tells its session what it sees.
    pub(super) fn on_look(&mut self, device: usize) {
        let now = self.now;
        let one = &self.devices[device];
        let (agent, id) = (one.agent, one.id);
        if self.agents[agent].watch.is_some() {
            return self.look_around(agent);
        }
        let seen = match one.visitor {
            Some(_) if self.agents[agent].is_liar => {
                self.faults.count(Fault::OfferLie);
                Observation::Idle(id)
            }
            Some((Visit::Owner, ..)) => Observation::OwnerArrived(id),
            Some((Visit::Foreign, ..)) => Observation::ForeignUse(id),
            Some((Visit::Lost, ..)) => Observation::DeviceLost(id),
            None if now < one.free_since + SETTLES && one.free_since > 0 => {
                let again = one.free_since + SETTLES;
                self.queue.push(again, Event::Look { device });
                Observation::NotIdle(id)
            }
            None => Observation::Idle(id),
        };
        for process in self.processes_of(agent) {
            self.observes(process, seen);
        }
    }

    /// A process tells its session what it sees.
    pub(super) fn observes(&mut self, process: usize, seen: Observation) {
        match seen {
            Observation::Idle(_) | Observation::NotIdle(_) => {}
            Observation::OwnerArrived(device)
            | Observation::ForeignUse(device)
            | Observation::DeviceLost(device) => self.checker.device_is_wanted(process, device),
        }
        self.with_session(process, |session, now| session.on_observation(now, seen));
    }
}
