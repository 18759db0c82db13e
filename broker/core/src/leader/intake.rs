//! Agents' messages: what they ask becomes a command, what they report becomes soft state.

use sublet_protocol::agent::{Alive, Down, Held, Reply, Up, UpEnvelope};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{Command, Outcome};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Timestamp};

use super::{Effect, Intake, Leader, node_of, refused};
use crate::mutation::Mutation;
use crate::state::{LeaseStage, State};

impl Leader {
    /// A message of an agent, decoded and checked against the address it came from.
    pub fn on_up(&mut self, state: &State, now: Timestamp, message: &UpEnvelope) -> Intake {
        let UpEnvelope { cluster, node, host, boot, ref body, .. } = *message;
        if matches!(body, Up::Hello) {
            return Intake::Propose(Command::RegisterNode { cluster, node, boot, host });
        }
        // Before it says hello, a new start settles what its earlier ones ran (LB3).
        let is_end = matches!(body, Up::Stopped { .. });
        match state.nodes().get(&(cluster, node)) {
            // Not known yet: this leader may be behind, or deposed and not know it. A refusal is for
            // good, and an agent forgets what was refused.
            Some(known) if known.boot() < boot && state.leaves_out(Mutation::RashRefusal) => {
                return refused(Rejection::BootOld);
            }
            None if is_end => {}
            Some(known) if is_end && known.boot() < boot && known.host() == host => {}
            None => return Intake::Answer(Reply::Later, Vec::new()),
            Some(known) if known.boot() < boot && !state.leaves_out(Mutation::AnyBoot) => {
                return Intake::Answer(Reply::Later, Vec::new());
            }
            Some(known) if known.boot() > boot && !state.leaves_out(Mutation::AnyBoot) => {
                return refused(Rejection::BootOld);
            }
            Some(known) if known.host() != host => return refused(Rejection::HostConflict),
            Some(_) => {}
        }
        if state.nodes().get(&(cluster, node)).is_some_and(|known| known.boot() == boot) {
            self.hear((cluster, node), now);
        }
        match *body {
            Up::Hello | Up::Renew { .. } | Up::Inventory { .. } => Intake::Barrier,
            Up::Output { .. } => Intake::Output,
            Up::Clock(_) => Intake::Clock,
            Up::Offer(offer) if offer.boot != boot => refused(Rejection::OfferInvalid),
            Up::Offer(offer) => Intake::Propose(Command::OfferCapacity { offer }),
            Up::Rescind { slice, generation, reason } => {
                Intake::Propose(Command::RescindOffer { slice, generation, boot, reason })
            }
            Up::Confirm { lease, slice, token, nonce: _ } => {
                Intake::Propose(Command::ConfirmMember { lease, slice, token, boot })
            }
            Up::Nack { lease, slice, token, reason } => {
                Intake::Propose(Command::RefuseMember { lease, slice, token, boot, reason })
            }
            Up::Stopped { lease, slice, token, used, outcome } => {
                let stopped = Command::ReportStopped { lease, slice, token, boot, used, outcome };
                Intake::Propose(stopped)
            }
            Up::Reclaim { slice, token, cause } => {
                Intake::Propose(Command::ReclaimSlice { slice, token, boot, cause })
            }
        }
    }

    /// The answer to a message whose command was committed, or refused by the rules.
    pub fn after_commit(
        &mut self,
        state: &State,
        now: Timestamp,
        message: &UpEnvelope,
        outcome: &Outcome,
    ) -> (Reply, Vec<Effect>) {
        match (&message.body, outcome) {
            (Up::Confirm { lease, slice, nonce, .. }, Outcome::Done { .. }) => {
                (Reply::Done, self.confirmed(state, now, (*lease, *slice, *nonce)))
            }
            // What was committed is that two machines claim one id: this one is not registered.
            (Up::Hello, Outcome::Done { .. }) if !is_registered(state, message) => {
                (Reply::Refused(Rejection::HostConflict), Vec::new())
            }
            (_, Outcome::Done { .. } | Outcome::Repeated { .. }) => (Reply::Done, Vec::new()),
            (body, Outcome::Refused { rejection }) => refused_message(body, *rejection),
        }
    }

    /// A confirmation was committed after it was heard, so the lease had not ended when its agent
    /// sent it: if not before, the agent may start now, counting from its nonce (LR4). A nonce that was
    /// only heard says nothing: who hears it may be deposed, and the lease be ending.
    ///
    /// Confirmed before is as good as the first time, with the new nonce.
    fn confirmed(
        &mut self,
        state: &State,
        now: Timestamp,
        (lease, slice, nonce): (LeaseId, SliceId, Millis),
    ) -> Vec<Effect> {
        // Only for what is granted: an agent cannot make this map grow.
        if state.leased().get(&slice) == Some(&lease) {
            self.nonces.insert((lease, slice), nonce);
        }
        self.activated(state, lease, now)
    }

    /// A renewal or an inventory, after the quorum was confirmed: who lives on, and who must go. A
    /// leader that may be deposed says neither (LR4): it would stop guests it has not heard of.
    pub fn after_barrier(
        &mut self,
        state: &State,
        now: Timestamp,
        message: &UpEnvelope,
    ) -> Vec<Effect> {
        let (nonce, held) = match &message.body {
            Up::Renew { nonce, held } => (*nonce, held),
            Up::Inventory { offered, held } => {
                return self.on_inventory(state, now, message, (offered, held));
            }
            _other => return Vec::new(),
        };
        let own = |held: &&Held| node_of(held.slice) == (message.cluster, message.node);
        let alive: Vec<Alive> = held
            .iter()
            .filter(own)
            .filter_map(|held| {
                let left = left(state, now, held)?;
                self.unused.hear(held, now);
                let used = self.usage.entry(held.lease).or_default();
                *used = held.used.max(*used);
                Some(Alive { slice: held.slice, token: held.token, left })
            })
            .collect();
        let to = (message.cluster, message.node);
        let mut effects = vec![Effect::Send { to, message: Down::Renewed { nonce, alive } }];
        effects.extend(self.disown(state, now, message, held));
        effects
    }

    /// A report of everything an agent holds: what it should not hold must go, what it should hold
    /// is said again.
    fn on_inventory(
        &mut self,
        state: &State,
        now: Timestamp,
        message: &UpEnvelope,
        (offered, held): (&[(SliceId, u64)], &[Held]),
    ) -> Vec<Effect> {
        let (cluster, node) = (message.cluster, message.node);
        self.reports.hear(state, now, (cluster, node), held);
        let mut effects = self.disown(state, now, message, held);
        effects.extend(lapsed(state, message, offered));
        let unheld: Vec<_> = state
            .leases_on(cluster, node)
            .filter(|(_, slice)| !held.iter().any(|held| held.slice == *slice))
            .collect();
        for (lease, _) in unheld {
            effects.extend(self.speak(state, lease, now));
        }
        effects
    }

    /// Guests that no live lease stands for must go at once.
    fn disown(
        &mut self,
        state: &State,
        now: Timestamp,
        message: &UpEnvelope,
        held: &[Held],
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for held in held.iter().filter(|h| node_of(h.slice) == (message.cluster, message.node)) {
            let lease = state.leases().get(&held.lease);
            match lease.filter(|lease| lease.terms().token == held.token) {
                Some(lease) if matches!(lease.stage(), LeaseStage::Ending { .. }) => {
                    effects.extend(self.speak(state, held.lease, now));
                }
                Some(_) => {}
                None => {
                    let stop = Down::Stop {
                        lease: held.lease,
                        slice: held.slice,
                        token: held.token,
                        grace: Millis::ZERO,
                        cause: EndReason::Revoked,
                    };
                    effects.push(Effect::Send { to: node_of(held.slice), message: stop });
                }
            }
        }
        effects
    }
}

/// Offers that an agent believes to stand and that do not: they ran out, or the agent was counted as
/// silent. One that the state has not seen is on its way; one that is granted is none of these.
fn lapsed(state: &State, message: &UpEnvelope, offered: &[(SliceId, u64)]) -> Vec<Effect> {
    let to = (message.cluster, message.node);
    let Some(node) = state.nodes.get(&to) else { return Vec::new() };
    if state.leaves_out(Mutation::OffersLapse) {
        return Vec::new();
    }
    let is_lapsed = |slice: &SliceId, generation: u64| {
        node.generations.get(&(slice.device, slice.part)) == Some(&generation)
            && !state.offers.contains_key(slice)
            && !state.leased.contains_key(slice)
    };
    let own = offered.iter().filter(|(slice, _)| node_of(*slice) == to);
    let gone = own.filter(|(slice, generation)| is_lapsed(slice, *generation));
    let message = |slice, generation| Down::OfferAgain { slice, generation };
    gone.map(|(slice, at)| Effect::Send { to, message: message(*slice, *at) }).collect()
}

fn is_registered(state: &State, message: &UpEnvelope) -> bool {
    let known = state.nodes().get(&(message.cluster, message.node));
    known.is_some_and(|node| (node.host(), node.boot()) == (message.host, message.boot))
}

/// Until the bought end, if the lease is active and the claim is right.
fn left(state: &State, now: Timestamp, held: &Held) -> Option<Millis> {
    let lease = state.leases().get(&held.lease)?;
    let is_member = lease.terms().members.iter().any(|member| member.slice == held.slice);
    match lease.stage() {
        LeaseStage::Active { ends_at, .. } if is_member && lease.terms().token == held.token => {
            Some(ends_at.since(now))
        }
        LeaseStage::Active { .. } | LeaseStage::Granted { .. } | LeaseStage::Ending { .. } => None,
    }
}

/// An agent that reports the end of what the broker no longer knows is told to forget it; one that
/// prepares it is told to stop.
fn refused_message(body: &Up, rejection: Rejection) -> (Reply, Vec<Effect>) {
    let is_over = matches!(
        rejection,
        Rejection::LeaseMissing
            | Rejection::TokenMismatch
            | Rejection::MemberMissing
            | Rejection::BootOld
    );
    match body {
        Up::Stopped { slice, token, .. } | Up::Nack { slice, token, .. } if is_over => {
            let message = Down::Ended { slice: *slice, token: *token };
            (Reply::Done, vec![Effect::Send { to: node_of(*slice), message }])
        }
        Up::Confirm { lease, slice, token, .. } if is_over => {
            let (lease, slice, token) = (*lease, *slice, *token);
            let (grace, cause) = (Millis::ZERO, EndReason::Revoked);
            let message = Down::Stop { lease, slice, token, grace, cause };
            (Reply::Refused(rejection), vec![Effect::Send { to: node_of(slice), message }])
        }
        _other => (Reply::Refused(rejection), Vec::new()),
    }
}
