//! From a grant to a running guest: LF2, LF3, LG2, LG3.

use sha2::{Digest, Sha256};
use sublet_protocol::agent::{GrantTerms, Up, Workload};
use sublet_protocol::commands::{GuestOutcome, NackReason};
use sublet_protocol::ids::{LeaseId, Token};
use sublet_protocol::offers::RescindReason;
use sublet_protocol::requests::WorkloadRef;
use sublet_protocol::units::Millis;

use super::held::{Awaited, Held, Lives, Rest, Stage, UsageClock};
use super::mutation::Mutation;
use super::{Condition, EARLY_WORKLOADS_MAX, Effect, Refused, Session};
use crate::driver::{Guest, GuestKey};
use crate::durable::UsageEntry;

impl Session {
    /// LG2: checks, fsync, confirm. A grant that comes again is answered as before.
    pub(super) fn on_grant(&mut self, now: Millis, terms: &GrantTerms, out: &mut Vec<Effect>) {
        if terms.boot != self.durable.boot && !self.leaves_out(Mutation::AnyBoot) {
            nack(terms, NackReason::OtherBoot, out);
            return;
        }
        let key = GuestKey { slice: terms.slice, token: terms.token };
        if self.held_as(key).is_some() {
            self.confirm_again(now, key, out);
            return;
        }
        if self.tell_stopped_again(key, out) {
            return;
        }
        if let Some(refused) = self.refused.get(&terms.slice)
            && refused.token == terms.token
        {
            nack(terms, refused.reason, out);
            return;
        }
        match self.check(terms) {
            Ok(()) => self.accept(now, terms, out),
            Err(reason) => self.refuse(terms, reason, out),
        }
    }

    fn check(&self, terms: &GrantTerms) -> Result<(), NackReason> {
        let (slice, token) = (terms.slice, terms.token);
        // A gang has one token for all its members, also for those on one device.
        let on_device = self.held.values().filter(|held| held.terms.slice.device == slice.device);
        let has_sibling = on_device.clone().any(|held| held.terms.token == token);
        let newest = self.durable.newest_on_device(slice.device);
        let is_newer = token > newest || (token == newest && has_sibling);
        let is_stale = token <= self.durable.newest_on_slice(&slice) || !is_newer;
        if is_stale && !self.leaves_out(Mutation::AnyToken) {
            return Err(NackReason::StaleToken);
        }
        match self.condition.get(&slice.device) {
            Some(Condition::Idle) => {}
            Some(_) if self.leaves_out(Mutation::OwnerUnseen) => {}
            Some(Condition::Not(RescindReason::DeviceFault)) => {
                return Err(NackReason::DeviceFault);
            }
            Some(Condition::Not(RescindReason::ForeignUse)) => return Err(NackReason::NotEmpty),
            Some(Condition::Not(_)) | None => return Err(NackReason::OwnerBusy),
        }
        let mut on_device = on_device;
        if on_device.any(|held| held.terms.slice.part.overlaps(slice.part)) {
            return Err(NackReason::NotEmpty);
        }
        match self.offers.contains_key(&slice) {
            true => Ok(()),
            false => Err(NackReason::DeviceFault),
        }
    }

    fn accept(&mut self, now: Millis, terms: &GrantTerms, out: &mut Vec<Effect>) {
        let (slice, token, lease) = (terms.slice, terms.token, terms.lease);
        if self.held.is_empty() {
            // Nothing was renewed until now: the first renewal is due one interval from here.
            self.renewed_at = now;
        }
        self.durable.raise(slice, token);
        let used = Millis::ZERO;
        self.durable.record(UsageEntry { lease, slice, token, used, outcome: None });
        self.persist(out);
        if let Some(offer) = self.offers.get_mut(&slice) {
            offer.close();
        }
        let needs_workload = terms.workload.is_some() && terms.is_first;
        let workload = if needs_workload { Awaited::Missing } else { Awaited::Nothing };
        let stage = Stage::Confirmed { nonce: now };
        let clock = UsageClock::default();
        let rest = Rest::default();
        self.held.insert(slice, Held { terms: terms.clone(), workload, stage, clock, rest });
        out.push(Effect::Send(Up::Confirm { lease, slice, token, nonce: now }));
        self.take_early_workload(now, lease, token, out);
        if self.leaves_out(Mutation::StartsUnasked) {
            let live_until = now.saturating_add(terms.ttl.as_millis());
            let ends_at = now.saturating_add(terms.duration.as_millis());
            self.start(now, GuestKey { slice, token }, Lives { live_until, ends_at }, out);
        }
    }

    /// The token is raised, so that the same grant stays refused whatever happens meanwhile.
    fn refuse(&mut self, terms: &GrantTerms, reason: NackReason, out: &mut Vec<Effect>) {
        if reason != NackReason::StaleToken {
            self.durable.raise(terms.slice, terms.token);
            self.persist(out);
            let refused = Refused { lease: terms.lease, token: terms.token, reason };
            self.refused.insert(terms.slice, refused);
        }
        nack(terms, reason, out);
    }

    /// Asks for the activation with a fresh nonce, unless it has come.
    pub(super) fn confirm_again(&mut self, now: Millis, key: GuestKey, out: &mut Vec<Effect>) {
        let Some(held) = self.held_as(key) else { return };
        // Any other stage shows that the confirmation has arrived.
        if let Stage::Confirmed { nonce } = &mut held.stage {
            *nonce = now;
            let lease = held.terms.lease;
            out.push(Effect::Send(Up::Confirm {
                lease,
                slice: key.slice,
                token: key.token,
                nonce: now,
            }));
        }
    }

    /// LG3: starts only if there is time left since the nonce; else a fresh nonce is sent.
    pub(super) fn on_activated(
        &mut self,
        now: Millis,
        key: GuestKey,
        nonce: Millis,
        left: Millis,
        out: &mut Vec<Effect>,
    ) {
        let wait = self.config.workload_wait;
        let counts_from_arrival = self.leaves_out(Mutation::ActivationFromArrival);
        let Some(held) = self.held_as(key) else {
            self.disown(key, out);
            return;
        };
        let Stage::Confirmed { nonce: last } = held.stage else { return };
        // A nonce that was not sent (yet) by this start is not an answer to it.
        if nonce > last {
            return;
        }
        let live_until = held.live_until(if counts_from_arrival { now } else { nonce });
        if now >= held.last_start(live_until) {
            self.confirm_again(now, key, out);
            return;
        }
        let left = left.min(held.terms.duration.as_millis());
        let lives = Lives { live_until, ends_at: now.saturating_add(left) };
        if let Awaited::Missing = held.workload {
            held.stage = Stage::Waiting { until: now.saturating_add(wait), lives };
        } else {
            self.start(now, key, lives, out);
        }
    }

    fn start(&mut self, now: Millis, key: GuestKey, lives: Lives, out: &mut Vec<Effect>) {
        let members = self.held.values().filter(|held| held.terms.token == key.token);
        let mut devices: Vec<_> = members.map(|held| held.terms.slice.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let Some(held) = self.held_as(key) else { return };
        held.stage = Stage::Starting { lives };
        let workload = match &held.workload {
            Awaited::Here(workload) => Some(workload.clone()),
            Awaited::Nothing | Awaited::Missing => None,
        };
        out.push(Effect::Start(Guest {
            key,
            lease: held.terms.lease,
            devices,
            deadline: held.deadline(lives),
            left: lives.ends_at.saturating_sub(now),
            workload,
        }));
    }

    pub(super) fn on_workload(
        &mut self,
        now: Millis,
        lease: LeaseId,
        token: Token,
        bytes: Vec<u8>,
        out: &mut Vec<Effect>,
    ) {
        let awaits = |held: &&mut Held| {
            let is_it = held.terms.lease == lease && held.terms.token == token;
            is_it && matches!(held.workload, Awaited::Missing)
        };
        let Some(held) = self.held.values_mut().find(awaits) else {
            self.keep_early(lease, token, bytes);
            return;
        };
        let key = held.key();
        match held.terms.workload.as_ref().and_then(|declared| read(declared, &bytes)) {
            Some(workload) => held.workload = Awaited::Here(workload),
            None => {
                self.refuse_workload(now, key, out);
                return;
            }
        }
        if let Stage::Waiting { lives, .. } = held.stage
            && now < held.stop_at(lives)
        {
            self.start(now, key, lives, out);
        }
    }

    /// Wrong bytes: refused before the activation, else stopped without a start.
    fn refuse_workload(&mut self, now: Millis, key: GuestKey, out: &mut Vec<Effect>) {
        let Some(held) = self.held_as(key) else { return };
        match held.stage {
            Stage::Confirmed { .. } => {
                let terms = held.terms.clone();
                self.held.remove(&key.slice);
                self.durable.usage.retain(|one| one.slice != key.slice || one.token != key.token);
                self.refuse(&terms, NackReason::Workload, out);
                self.offer_if_idle(now, key.slice, out);
            }
            Stage::Waiting { .. }
            | Stage::Starting { .. }
            | Stage::Running { .. }
            | Stage::Stopping { .. }
            | Stage::Gone { .. } => self.finish(now, key, GuestOutcome::NeverStarted, out),
        }
    }

    /// Workloads may overtake their grant.
    fn keep_early(&mut self, lease: LeaseId, token: Token, bytes: Vec<u8>) {
        if token <= self.newest_token() {
            return;
        }
        if self.early_workloads.len() == EARLY_WORKLOADS_MAX {
            self.early_workloads.pop_front();
        }
        self.early_workloads.push_back((lease, token, bytes));
    }

    fn take_early_workload(
        &mut self,
        now: Millis,
        lease: LeaseId,
        token: Token,
        out: &mut Vec<Effect>,
    ) {
        let is_it = |one: &(LeaseId, Token, Vec<u8>)| (one.0, one.1) == (lease, token);
        let Some(place) = self.early_workloads.iter().position(is_it) else { return };
        if let Some((lease, token, bytes)) = self.early_workloads.remove(place) {
            self.on_workload(now, lease, token, bytes, out);
        }
    }

    fn newest_token(&self) -> Token {
        self.durable.device_tokens.values().copied().max().unwrap_or(Token::NONE)
    }

    /// The broker will not have a member that was confirmed.
    pub(super) fn on_confirm_refused(&mut self, now: Millis, key: GuestKey, out: &mut Vec<Effect>) {
        if let Some(Held { stage: Stage::Confirmed { .. }, .. }) = self.held_as(key) {
            self.finish(now, key, GuestOutcome::NeverStarted, out);
        }
    }
}

fn nack(terms: &GrantTerms, reason: NackReason, out: &mut Vec<Effect>) {
    let GrantTerms { lease, slice, token, .. } = *terms;
    out.push(Effect::Send(Up::Nack { lease, slice, token, reason }));
}

/// The workload, if the bytes are the declared ones and are one.
fn read(declared: &WorkloadRef, bytes: &[u8]) -> Option<Workload> {
    let size = u32::try_from(bytes.len()).ok()?;
    let hash: [u8; 32] = Sha256::digest(bytes).into();
    if size != declared.size || hash != declared.sha256 {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}
