//! What agents must be told: a function of the state, said again until they answer.

use sublet_protocol::agent::{Down, GrantTerms};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::units::{Millis, Timestamp};

use super::{Effect, Leader, RESEND, node_of};
use crate::mutation::Mutation;
use crate::state::{Lease, LeaseStage, State};

impl Leader {
    /// Looks at the lease at `at`, and not at another time set before.
    pub(super) fn attend(&mut self, lease: LeaseId, at: Timestamp) {
        self.forget(lease);
        self.attention.insert((at, lease));
        self.attention_at.insert(lease, at);
    }

    fn forget(&mut self, lease: LeaseId) {
        if let Some(at) = self.attention_at.remove(&lease) {
            self.attention.remove(&(at, lease));
        }
    }

    /// Says what the lease's agents have not answered, and looks again after [`RESEND`].
    pub(super) fn speak(&mut self, state: &State, id: LeaseId, now: Timestamp) -> Vec<Effect> {
        let Some(lease) = state.leases().get(&id) else {
            self.forget(id);
            return Vec::new();
        };
        let effects = match lease.stage() {
            LeaseStage::Granted { .. } => grants(state, id, lease),
            LeaseStage::Active { .. } => Vec::new(),
            LeaseStage::Ending { cause, deadline, .. } => {
                // A deposed leader's clock may be behind what it applies.
                stops(id, lease, *cause, deadline.since(now.max(state.now())))
            }
        };
        match effects.is_empty() {
            true => self.forget(id),
            false => self.attend(id, now.after(RESEND)),
        }
        effects
    }

    /// Everything whose time to be said again has come.
    pub(super) fn speak_due(&mut self, state: &State, now: Timestamp) -> Vec<Effect> {
        let due: Vec<LeaseId> =
            self.attention.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        due.into_iter().flat_map(|id| self.speak(state, id, now)).collect()
    }

    /// If all members are prepared, each is told, with the nonce of its own confirmation.
    pub(super) fn activated(&mut self, state: &State, id: LeaseId, now: Timestamp) -> Vec<Effect> {
        let Some(lease) = state.leases().get(&id) else { return Vec::new() };
        let LeaseStage::Active { ends_at, .. } = lease.stage() else { return Vec::new() };
        self.forget(id);
        let (terms, now) = (lease.terms(), now.max(state.now()));
        let members = terms.members.iter().filter_map(|member| {
            // A member whose nonce this leader never saw confirms again and is answered then.
            let nonce = self.nonces.remove(&(id, member.slice))?;
            let (slice, token, left) = (member.slice, terms.token, ends_at.since(now));
            let message = Down::Activated { slice, token, nonce, left };
            Some(Effect::Send { to: node_of(slice), message })
        });
        members.collect()
    }

    /// The books are closed: agents may forget what they kept for them (LB3).
    pub(super) fn ended(&mut self, state: &State, id: LeaseId) -> Vec<Effect> {
        if state.leaves_out(Mutation::KeepsEnded) {
            return Vec::new();
        }
        self.forget(id);
        self.usage.remove(&id);
        self.unused.forget(id);
        let Some(told) = self.told.remove(&id) else { return Vec::new() };
        let members = told.members.into_iter().map(|slice| {
            self.nonces.remove(&(id, slice));
            Effect::Send { to: node_of(slice), message: Down::Ended { slice, token: told.token } }
        });
        members.collect()
    }
}

fn grants(state: &State, id: LeaseId, lease: &Lease) -> Vec<Effect> {
    let LeaseStage::Granted { confirmed, .. } = lease.stage() else { return Vec::new() };
    let (terms, policy) = (lease.terms(), state.policy());
    let open = terms.members.iter().enumerate().filter(|(_, m)| !confirmed.contains(&m.slice));
    let messages = open.map(|(place, member)| {
        let grant = GrantTerms {
            lease: id,
            slice: member.slice,
            token: terms.token,
            boot: member.boot,
            tenant: terms.tenant,
            ttl: policy.lease_ttl,
            renew: policy.renew,
            grace: terms.grace,
            duration: terms.duration,
            workload: terms.workload,
            is_first: place == 0,
            capacity: member.capacity,
            origin: member.origin,
        };
        Effect::Send { to: node_of(member.slice), message: Down::Grant(grant) }
    });
    messages.collect()
}

fn stops(id: LeaseId, lease: &Lease, cause: EndReason, grace: Millis) -> Vec<Effect> {
    let terms = lease.terms();
    let open = terms.members.iter().filter(|member| !lease.stopped().contains(&member.slice));
    let messages = open.map(|member| {
        let (slice, token) = (member.slice, terms.token);
        let message = Down::Stop { lease: id, slice, token, grace, cause };
        Effect::Send { to: node_of(slice), message }
    });
    messages.collect()
}
