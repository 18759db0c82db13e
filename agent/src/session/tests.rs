//! One bench, small worlds: a node of two devices, grants as the broker would send them.

mod ending;
mod granting;
mod lending;
mod walk;

use sublet_protocol::agent::{Alive, Down, GrantTerms, Held as HeldWord, Reply, Up};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Origin, Part, SliceId};
use sublet_protocol::commands::{GuestOutcome, NackReason, ReclaimCause};
use sublet_protocol::ids::{Boot, ClusterId, DeviceId, GpuModel, LeaseId, NodeId, TenantId, Token};
use sublet_protocol::leases::EndReason;
use sublet_protocol::offers::{IdleFor, RescindReason};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::WorkloadRef;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds};

use super::*;
use crate::driver::{Exit, StartFailure};

const TTL: u64 = 300_000;
const GRACE: u64 = 30_000;
const RENEW: u64 = 30_000;
const DURATION: u64 = 3_600_000;
const BOOT: Boot = Boot::new(4);

fn slice(device: u128) -> SliceId {
    SliceId {
        cluster: ClusterId::new("c").unwrap(),
        node: NodeId::new("n").unwrap(),
        device: DeviceId::new(device),
        part: Part::Whole,
    }
}

fn token(counter: u64) -> Token {
    Token { epoch: 0, counter }
}

fn key(device: u128, counter: u64) -> GuestKey {
    GuestKey { slice: slice(device), token: token(counter) }
}

fn lease(counter: u64) -> LeaseId {
    LeaseId::new(u128::from(counter))
}

fn capacity() -> Capacity {
    Capacity {
        model: GpuModel::new("a100-80gb").unwrap(),
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(80_000),
        cpu: CpuMilli::new(8_000),
        host_memory: MiB::new(64_000),
        isolation: Isolation::Exclusive,
        island: 0,
        hardware: Hardware::UNKNOWN,
    }
}

fn config() -> Config {
    let (capacity, hour) = (capacity(), Seconds::new(3_600));
    Config {
        slices: [1, 2].map(|device| Lendable { slice: slice(device), capacity }).into(),
        offer_ttl: Seconds::new(900),
        idle_for: IdleFor { p10: hour, p50: hour, p90: hour },
        recall_notice: Seconds::new(30),
        inventory_every: Millis::new(30_000),
        workload_wait: Millis::new(60_000),
    }
}

fn grant(device: u128, counter: u64) -> GrantTerms {
    GrantTerms {
        lease: lease(counter),
        slice: slice(device),
        token: token(counter),
        boot: BOOT,
        tenant: TenantId::new("t").unwrap(),
        ttl: Seconds::new(TTL / 1_000),
        renew: Seconds::new(RENEW / 1_000),
        grace: Seconds::new(GRACE / 1_000),
        duration: Seconds::new(DURATION / 1_000),
        workload: None,
        is_first: true,
        capacity: capacity(),
        origin: Origin::Offered,
    }
}

/// A session with its clock. Every step returns the effects it caused.
struct Bench {
    session: Session,
    now: u64,
}

impl Bench {
    /// Boot 4, at 1,000,000 ms, both devices idle.
    fn idle() -> Self {
        let mut bench = Self::starting(DurableState { boot: BOOT, ..DurableState::default() }).0;
        bench.see(Observation::Idle(DeviceId::new(1)));
        bench.see(Observation::Idle(DeviceId::new(2)));
        bench
    }

    fn starting(durable: DurableState) -> (Self, Vec<Effect>) {
        let now = 1_000_000;
        let (session, effects) = Session::new(config(), durable, Millis::new(now));
        (Self { session, now }, effects)
    }

    /// Device 1 has a running guest of token `counter`.
    fn running(counter: u64) -> Self {
        let mut bench = Self::idle();
        bench.run(1, counter);
        bench
    }

    fn run(&mut self, device: u128, counter: u64) {
        self.hear(Down::Grant(grant(device, counter)));
        let effects = self.activate(device, counter);
        assert!(effects.iter().any(|e| matches!(e, Effect::Start(_))), "{effects:?}");
        self.report(Report::Started(key(device, counter)));
    }

    fn activate(&mut self, device: u128, counter: u64) -> Vec<Effect> {
        self.hear(activated(device, counter, self.now))
    }

    fn now(&self) -> Millis {
        Millis::new(self.now)
    }

    fn hear(&mut self, message: Down) -> Vec<Effect> {
        self.session.on_message(self.now(), message)
    }

    fn see(&mut self, seen: Observation) -> Vec<Effect> {
        self.session.on_observation(self.now(), seen)
    }

    fn report(&mut self, report: Report) -> Vec<Effect> {
        self.session.on_report(self.now(), report)
    }

    fn refused(&mut self, asked: &Up) -> Vec<Effect> {
        let reply = Reply::Refused(Rejection::LeaseMissing);
        self.session.on_reply(self.now(), asked, &reply)
    }

    /// Lets time pass without a tick.
    fn pass(&mut self, millis: u64) -> &mut Self {
        self.now += millis;
        self
    }

    fn tick(&mut self) -> Vec<Effect> {
        self.session.on_tick(self.now())
    }

    /// Lets time pass, ticking at every due moment; returns all effects with their times.
    fn live(&mut self, millis: u64) -> Vec<(u64, Effect)> {
        let end = self.now + millis;
        let mut all = Vec::new();
        while self.session.next_due().get() <= end {
            self.now = self.session.next_due().get().max(self.now);
            let effects = self.tick();
            all.extend(effects.into_iter().map(|effect| (self.now, effect)));
        }
        self.now = end;
        all
    }

    fn end_guest(&mut self, device: u128, counter: u64, exit: Exit) -> Vec<Effect> {
        let mut all = self.report(Report::Exited(key(device, counter), exit));
        all.extend(self.report(Report::Clean(key(device, counter))));
        all
    }
}

fn activated(device: u128, counter: u64, nonce: u64) -> Down {
    Down::Activated {
        slice: slice(device),
        token: token(counter),
        nonce: Millis::new(nonce),
        left: Millis::new(DURATION),
    }
}

fn renewed(device: u128, counter: u64, nonce: u64, left: u64) -> Down {
    let alive = Alive { slice: slice(device), token: token(counter), left: Millis::new(left) };
    Down::Renewed { nonce: Millis::new(nonce), alive: vec![alive] }
}

fn stop(device: u128, counter: u64, grace: u64) -> Down {
    Down::Stop {
        lease: lease(counter),
        slice: slice(device),
        token: token(counter),
        grace: Millis::new(grace),
        cause: EndReason::Preempted,
    }
}

fn confirm(device: u128, counter: u64, nonce: u64) -> Effect {
    Effect::Send(Up::Confirm {
        lease: lease(counter),
        slice: slice(device),
        token: token(counter),
        nonce: Millis::new(nonce),
    })
}

fn nack(device: u128, counter: u64, reason: NackReason) -> Effect {
    Effect::Send(Up::Nack {
        lease: lease(counter),
        slice: slice(device),
        token: token(counter),
        reason,
    })
}

fn stopped(device: u128, counter: u64, used: u64, outcome: GuestOutcome) -> Effect {
    Effect::Send(Up::Stopped {
        lease: lease(counter),
        slice: slice(device),
        token: token(counter),
        used: Millis::new(used),
        outcome,
    })
}

fn reclaim(device: u128, counter: u64, cause: ReclaimCause) -> Effect {
    Effect::Send(Up::Reclaim { slice: slice(device), token: token(counter), cause })
}

/// The effects that matter to a test: without what is kept on disk, inventories and renewals.
fn told(effects: Vec<Effect>) -> Vec<Effect> {
    let is_quiet = |effect: &Effect| {
        matches!(effect, Effect::Persist(_) | Effect::Send(Up::Inventory { .. } | Up::Renew { .. }))
    };
    effects.into_iter().filter(|effect| !is_quiet(effect)).collect()
}

fn told_at(effects: Vec<(u64, Effect)>) -> Vec<(u64, Effect)> {
    let loud = |(at, effect)| told(vec![effect]).pop().map(|effect| (at, effect));
    effects.into_iter().filter_map(loud).collect()
}
