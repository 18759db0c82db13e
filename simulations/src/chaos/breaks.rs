//! Breaking things, at random moments, and mending them again.

use sublet_protocol::agent::{Up, UpEnvelope};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::codec;
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::ids::{Boot, HostHash};
use sublet_protocol::units::Millis;

use super::fault::Fault;
use super::queue::Event;
use super::rule::Rule;
use super::world::World;

/// A process stands still for less than this.
const STALL_MAX: u64 = 500;
/// One hour.
const JUMP: i64 = 3_600_000;

impl World {
    pub(super) fn schedule_fault(&mut self) {
        let pause = self.profile.fault_every / 4 + self.random.below(self.profile.fault_every);
        self.queue.push(self.now + pause, Event::Fault);
    }

    pub(super) fn on_fault(&mut self) {
        if self.is_calm {
            return;
        }
        self.schedule_fault();
        let agent = self.pick(self.agents.len());
        let replica = self.pick(self.replicas.len());
        match self.random.below(20) {
            0 | 1 => self.crash_agent(agent),
            2 => self.reboot(agent),
            3 => self.suspend(agent),
            4 => self.stall(agent),
            5..=9 => self.cut(agent),
            10 => self.crash_replica(replica),
            11 | 12 => self.isolate(replica),
            13 => self.split(),
            14 => self.change_leader(),
            15 => self.jump(replica),
            16 => self.forge(agent),
            17 => self.second_host(agent),
            18 => self.crash_soon_started(agent),
            19 if self.random.chance(1, 2) => self.start_second(agent),
            19 => self.go_dark(),
            _more => self.change_leader(),
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).unwrap_or(0);
        usize::try_from(self.random.below(count)).unwrap_or(0)
    }

    /// The power goes: agent, guards and guests die at once; the clock begins again.
    fn reboot(&mut self, agent: usize) {
        if self.agents[agent].is_frozen(self.now) {
            return;
        }
        self.faults.count(Fault::NodeReboot);
        self.kill_all_guests(agent);
        let was_up = self.agents[agent].is_up();
        self.crash_agent(agent);
        let one = &mut self.agents[agent];
        one.clock = super::clock::MonoClock::new(self.now, 1_000, one.rate);
        if !was_up {
            self.queue.push(self.now + 1, Event::AgentStart { agent });
        }
    }

    /// The node stands still with all that is on it; its clock goes on (LR5).
    fn suspend(&mut self, agent: usize) {
        if self.agents[agent].is_frozen(self.now) {
            return;
        }
        self.faults.count(Fault::Suspend);
        let span = 20_000 + self.random.below(1_200_000);
        let until = self.now + span;
        self.agents[agent].frozen_until = until;
        self.agents[agent].frozen_at = until;
        self.agents[agent].is_look_due = true;
        let node = (self.agents[agent].cluster, self.agents[agent].node);
        self.checker.freeze(node, true);
        self.queue.push(until, Event::AgentResume { agent });
        if self.is_without(Rule::Lr5Boottime) {
            // What it will show then: as if the time had not passed.
            self.agents[agent].clock.lose(until, span);
        }
    }

    /// The first thing that runs again is each guard's look at its deadline.
    pub(super) fn resume(&mut self, agent: usize) {
        let now = self.now;
        self.agents[agent].frozen_at = now;
        let local = self.agents[agent].clock.at(now);
        let overdue = self.overdue(agent, local);
        for guest in overdue {
            self.faults.count(Fault::GuardAtDeadline);
            self.guest_dies(guest, sublet_agent::driver::Exit::Signal(9));
        }
        let node = (self.agents[agent].cluster, self.agents[agent].node);
        self.checker.freeze(node, false);
        self.checker.all_guests_have_leases();
        self.plan_agent_wake(agent);
    }

    fn stall(&mut self, agent: usize) {
        self.faults.count(Fault::Stall);
        let until = self.now + self.random.below(STALL_MAX);
        self.agents[agent].stalled_until = until;
        self.agents[agent].is_look_due = true;
    }

    fn cut(&mut self, agent: usize) {
        let (is_up_cut, is_down_cut) = match self.random.below(4) {
            0 => (true, false),
            1 => (false, true),
            _both => (true, true),
        };
        self.faults.count(match (is_up_cut, is_down_cut) {
            (true, false) => Fault::CutUp,
            (false, _) => Fault::CutDown,
            (true, true) => Fault::CutOff,
        });
        let wires = &mut self.agents[agent].wires;
        (wires.is_up_cut, wires.is_down_cut) = (is_up_cut, is_down_cut);
        let at = self.now + 5_000 + self.random.below(600_000);
        self.queue.push(at, Event::Mended { agent });
    }

    /// The brokers are cut off from all agents at once, long enough for W.
    fn go_dark(&mut self) {
        self.faults.count(Fault::AllCut);
        let span = self.profile.silence() + self.random.below(600_000);
        self.dark_until = self.now + span;
    }

    /// Nothing reaches the brokers any more from just after a confirmation: the activation that is
    /// on its way is all the agent will hear of it (LG3).
    pub(super) fn perhaps_pull_the_cable(&mut self, agent: usize) {
        if self.is_calm || !self.profile.has_crashes || !self.random.chance(1, 40) {
            return;
        }
        self.faults.count(Fault::CutUp);
        let at = self.now + 3_000;
        self.queue.push(at, Event::Pulled { agent });
    }

    pub(super) fn pull(&mut self, agent: usize) {
        if self.is_calm {
            return;
        }
        self.agents[agent].wires.is_up_cut = true;
        let at = self.now + 400_000 + self.random.below(400_000);
        self.queue.push(at, Event::Mended { agent });
    }

    pub(super) fn mend(&mut self, agent: usize) {
        let wires = &mut self.agents[agent].wires;
        (wires.is_up_cut, wires.is_down_cut) = (false, false);
        wires.cut_brokers = [false; 3];
        // What its link does after a reconnection: it tells everything.
        if self.agents[agent].is_up() {
            self.plan_agent_wake(agent);
        }
    }

    fn isolate(&mut self, replica: usize) {
        if self.replicas[replica].is_isolated {
            return;
        }
        self.faults.count(Fault::BrokerIsolated);
        self.replicas[replica].is_isolated = true;
        let most = if self.random.chance(1, 4) { 900_000 } else { 120_000 };
        let at = self.now + 3_000 + self.random.below(most);
        self.queue.push(at, Event::ReplicaJoins { replica });
        self.call_election();
    }

    /// The leader is cut off from the other brokers, with some agents on its side.
    fn split(&mut self) {
        let Some(leader) = self.raft.leader.filter(|one| !self.replicas[*one].is_isolated) else {
            return;
        };
        self.faults.count(Fault::Split);
        self.isolate(leader);
        let until = self.now + 60_000 + self.random.below(900_000);
        for agent in 0..self.agents.len() {
            if self.random.chance(1, 3) {
                let cut = &mut self.agents[agent].wires.cut_brokers;
                *cut = [true; 3];
                cut[leader] = false;
                self.queue.push(until, Event::Mended { agent });
            }
        }
    }

    pub(super) fn join(&mut self, replica: usize) {
        self.replicas[replica].is_isolated = false;
        self.queue.push(self.now + 50, Event::Apply { replica });
        if self.is_deposed(replica) {
            self.learns_soon(replica);
        }
        self.call_election();
    }

    fn change_leader(&mut self) {
        if let Some(leader) = self.raft.leader {
            self.faults.count(Fault::LeaderChange);
            self.replicas[leader].must_go = true;
            self.call_election();
        }
    }

    fn jump(&mut self, replica: usize) {
        self.faults.count(Fault::WallJump);
        let by = if self.random.chance(1, 2) { JUMP } else { -JUMP };
        self.replicas[replica].clock.jump(by);
    }

    /// The liar speaks of what is not its own; everybody else's leases must not change (INV-11).
    fn forge(&mut self, agent: usize) {
        if !self.agents[agent].is_liar {
            return;
        }
        let whose = self.random.chance(1, 2);
        let Some((lease, slice, token)) =
            self.checker.lease_to_forge(self.agents[agent].cluster, whose)
        else {
            return;
        };
        if whose {
            // It refuses what runs on its own node: too late (LG4).
            self.faults.count(Fault::ForgedMessage);
            let reason = sublet_protocol::commands::NackReason::StartFailed;
            let Some(its) = self.agent_at(slice.cluster, slice.node) else { return };
            let (boot, host) = (self.agents[its].boot, self.agents[its].host);
            return self.say_as(its, boot, host, Up::Nack { lease, slice, token, reason });
        }
        self.faults.count(Fault::ForgedMessage);
        let outcome = GuestOutcome::Stopped;
        let used = Millis::ZERO;
        let body = match self.random.below(3) {
            0 => Up::Stopped { lease, slice, token, used, outcome },
            1 => Up::Confirm { lease, slice, token, nonce: Millis::ZERO },
            _more => Up::Reclaim {
                slice,
                token,
                cause: sublet_protocol::commands::ReclaimCause::OwnerArrived,
            },
        };
        self.say_as(agent, self.agents[agent].boot, self.agents[agent].host, body);
    }

    /// Another machine says it is this node (case D11).
    fn second_host(&mut self, agent: usize) {
        if self.agents[agent].is_liar || !self.profile.has_second_hosts {
            return;
        }
        self.faults.count(Fault::TwoHosts);
        let boot = self.agents[agent].boot;
        self.say_as(agent, boot, HostHash([0xee; 16]), Up::Hello);
        let slice: Option<SliceId> = self.agents[agent].config.slices.first().map(|s| s.slice);
        if let Some(slice) = slice {
            let reason = sublet_protocol::offers::RescindReason::NotIdle;
            let body = Up::Rescind { slice, generation: u64::MAX / 2, reason };
            self.say_as(agent, boot, HostHash([0xee; 16]), body);
        }
    }

    fn say_as(&mut self, agent: usize, boot: u64, host: HostHash, body: Up) {
        let one = &self.agents[agent];
        let envelope = UpEnvelope {
            cluster: one.cluster,
            node: one.node,
            host,
            boot: Boot::new(boot),
            sequence: u64::MAX,
            body,
        };
        if let Ok(bytes) = codec::encode(&envelope) {
            self.send_up(agent, &bytes.into());
        }
    }

    /// An agent that has just started starts again at once.
    fn crash_soon_started(&mut self, agent: usize) {
        self.crash_agent(agent);
        self.queue.push(self.now + 30 + self.random.below(300), Event::AgentStart { agent });
    }
}
