//! The agent's side of the lease protocol, without I/O: what comes in is a message, a tick, an
//! observation or a driver's report with the time it came; what goes out are effects, to be carried
//! out in their order.
//!
//! The rules are those of the lease protocol (LF fencing, LG grant, LR renewal, LE end, LA
//! autonomy, LB money); each function names the ones it keeps. Times are of the agent's own clock,
//! which goes on in suspend. The session decides when a guest starts and must end; that it really
//! ends is the driver's and the guard's part. It knows the broker's word only from messages, and
//! needs none to stop a guest.

mod ends;
mod grants;
mod held;
pub mod mutation;
mod offers;
mod renewals;

use std::collections::{BTreeMap, VecDeque};

use sublet_protocol::agent::{Down, Reply, Up};
use sublet_protocol::capacity::{Capacity, SliceId};
use sublet_protocol::commands::NackReason;
use sublet_protocol::ids::{DeviceId, LeaseId, Token};
use sublet_protocol::offers::{IdleFor, RescindReason};
use sublet_protocol::units::{Millis, Seconds};

use crate::driver::{Guest, GuestKey, Report, StopSignal};
use crate::durable::DurableState;
use held::Held;
use mutation::Mutation;
use offers::Offer;

/// A slice of this node that may be lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lendable {
    /// Which slice.
    pub slice: SliceId,
    /// How much it holds.
    pub capacity: Capacity,
}

/// What a session needs to know beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The slices of the node that may be lent; no two of one device overlap.
    pub slices: Vec<Lendable>,
    /// How long an offer stands; it is repeated at half of that.
    pub offer_ttl: Seconds,
    /// How long an idle device is said to stay idle.
    pub idle_for: IdleFor,
    /// Notice before a planned recall.
    pub recall_notice: Seconds,
    /// How often everything offered and held is told.
    pub inventory_every: Millis,
    /// How long an activated lease waits for its workload.
    pub workload_wait: Millis,
}

/// What was seen of a device. Only changes need be told, but telling again is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// It is idle, or used by our guest only.
    Idle(DeviceId),
    /// Nothing shows that it is idle: the detector's judgement while it is not lent.
    NotIdle(DeviceId),
    /// The owner's work is there.
    OwnerArrived(DeviceId),
    /// A process is there that neither owner nor guest accounts for.
    ForeignUse(DeviceId),
    /// It is gone or sick, or can no longer be read.
    DeviceLost(DeviceId),
}

/// What a guest was seen to use of its slice since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestUse {
    /// Neither GPU nor, as far as that is known, CPU.
    Nothing,
    /// Something.
    Some,
    /// It is not known, or nobody looked for too long. Never taken for nothing.
    Unknown,
}

/// What the session wants done. Effects are carried out in order, each after the one before is
/// done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Keep this state; it must survive a crash before any later effect is carried out.
    Persist(DurableState),
    /// Send this to the broker.
    Send(Up),
    /// Start this guest.
    Start(Guest),
    /// Pass a signal to a guest.
    Signal(GuestKey, StopSignal),
    /// Move the moment at which a guest must be dead (LA5).
    SetDeadline(GuestKey, Millis),
    /// End a guest at once.
    Kill(GuestKey),
}

/// Why a device may not be lent, or that it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Idle,
    Not(RescindReason),
}

/// A grant that was refused, to be refused again in the same words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refused {
    lease: LeaseId,
    token: Token,
    reason: NackReason,
}

/// Workloads that came before their grant.
const EARLY_WORKLOADS_MAX: usize = 8;
/// Settled use that is kept for a broker that has not closed its books.
const USAGE_MAX: usize = 256;

/// The session of one agent.
#[derive(Debug)]
pub struct Session {
    config: Config,
    durable: DurableState,
    condition: BTreeMap<DeviceId, Condition>,
    offers: BTreeMap<SliceId, Offer>,
    held: BTreeMap<SliceId, Held>,
    refused: BTreeMap<SliceId, Refused>,
    early_workloads: VecDeque<(LeaseId, Token, Vec<u8>)>,
    /// The last renewal that was sent.
    renewed_at: Millis,
    inventory_at: Millis,
    #[cfg(feature = "mutations")]
    mutations: &'static [Mutation],
}

impl Session {
    /// Begins a session: `durable` is this start's state, and the driver has cleared the node
    /// (LA3).
    ///
    /// Use that an earlier start did not settle is told first.
    #[must_use]
    pub fn new(config: Config, durable: DurableState, now: Millis) -> (Self, Vec<Effect>) {
        let offers = config.slices.iter().map(|one| (one.slice, Offer::default())).collect();
        let mut session = Self {
            config,
            durable,
            condition: BTreeMap::new(),
            offers,
            held: BTreeMap::new(),
            refused: BTreeMap::new(),
            early_workloads: VecDeque::new(),
            renewed_at: now,
            inventory_at: now,
            #[cfg(feature = "mutations")]
            mutations: &[],
        };
        // The broker ends at the hello what it still counts as running: its use must be there first.
        let mut out = Vec::new();
        session.settle_earlier_start(&mut out);
        out.push(Effect::Send(Up::Hello));
        session.send_inventory(now, &mut out);
        (session, out)
    }

    /// A message from the broker.
    #[must_use]
    pub fn on_message(&mut self, now: Millis, message: Down) -> Vec<Effect> {
        let mut out = Vec::new();
        match message {
            Down::Grant(terms) => self.on_grant(now, &terms, &mut out),
            Down::Activated { slice, token, nonce, left } => {
                self.on_activated(now, GuestKey { slice, token }, nonce, left, &mut out);
            }
            Down::Renewed { nonce, alive } => self.on_renewed(now, nonce, &alive, &mut out),
            Down::Stop { lease, slice, token, grace, cause: _ } => {
                self.on_stop(now, lease, GuestKey { slice, token }, grace, &mut out);
            }
            Down::Ended { slice, token } => {
                self.on_ended(now, GuestKey { slice, token }, &mut out);
            }
            Down::Resync => {
                self.send_inventory(now, &mut out);
                self.send_renewal(now, &mut out);
            }
            Down::OfferAgain { slice, generation } => {
                self.on_offer_lapsed(now, slice, generation, &mut out);
            }
            Down::Workload { lease, token, bytes } => {
                self.on_workload(now, lease, token, bytes, &mut out);
            }
        }
        out
    }

    /// The broker's answer to a message of ours.
    #[must_use]
    pub fn on_reply(&mut self, now: Millis, asked: &Up, reply: &Reply) -> Vec<Effect> {
        let mut out = Vec::new();
        match (asked, reply) {
            (Up::Offer(terms), Reply::Refused(_)) => self.on_offer_refused(now, terms),
            (Up::Confirm { slice, token, .. }, Reply::Refused(_)) => {
                self.on_confirm_refused(now, GuestKey { slice: *slice, token: *token }, &mut out);
            }
            (Up::Stopped { slice, token, .. }, Reply::Refused(_))
                if self.leaves_out(Mutation::ForgetsRefused) =>
            {
                self.forget_usage(GuestKey { slice: *slice, token: *token }, &mut out);
            }
            _ => {}
        }
        out
    }

    /// Something was seen of a device.
    #[must_use]
    pub fn on_observation(&mut self, now: Millis, seen: Observation) -> Vec<Effect> {
        let mut out = Vec::new();
        self.observe(now, seen, &mut out);
        out
    }

    /// It was looked at what the guest of a held member uses; told with the next renewal.
    pub fn on_use(&mut self, now: Millis, key: GuestKey, seen: GuestUse) {
        if let Some(held) = self.held_as(key) {
            held.rest.see(now, seen);
        }
    }

    /// Guests that run and were not told to end.
    pub fn running(&self) -> impl Iterator<Item = GuestKey> + '_ {
        let runs = |held: &&Held| matches!(held.stage, held::Stage::Running { .. });
        self.held.values().filter(runs).map(Held::key)
    }

    /// The driver reports.
    #[must_use]
    pub fn on_report(&mut self, now: Millis, report: Report) -> Vec<Effect> {
        let mut out = Vec::new();
        self.report(now, report, &mut out);
        out
    }

    /// Time has passed. Calling it when nothing is due does nothing.
    #[must_use]
    pub fn on_tick(&mut self, now: Millis) -> Vec<Effect> {
        let mut out = Vec::new();
        self.end_what_is_due(now, &mut out);
        self.renew_if_due(now, &mut out);
        if now >= self.inventory_at {
            self.send_inventory(now, &mut out);
        }
        self.offer_what_is_due(now, &mut out);
        out
    }

    /// When [`Session::on_tick`] will have something to do.
    #[must_use]
    pub fn next_due(&self) -> Millis {
        let is_waited_for =
            |held: &&Held| !self.leaves_out(Mutation::NoSelfStop) || !held.has_guest();
        let held = self.held.values().filter(is_waited_for).filter_map(|one| self.due_of(one));
        let offers = self.offers.values().filter_map(Offer::due);
        let soonest = held.chain(offers).chain(self.renewal_due()).min();
        soonest.map_or(self.inventory_at, |due| due.min(self.inventory_at))
    }

    /// Whether a device has a slice that is held, be its guest running or not.
    #[must_use]
    pub fn holds(&self, device: DeviceId) -> bool {
        self.held.keys().any(|slice| slice.device == device)
    }

    fn persist(&self, out: &mut Vec<Effect>) {
        out.push(Effect::Persist(self.durable.clone()));
    }

    fn held_as(&mut self, key: GuestKey) -> Option<&mut Held> {
        self.held.get_mut(&key.slice).filter(|held| held.terms.token == key.token)
    }
}

#[cfg(test)]
mod tests;
