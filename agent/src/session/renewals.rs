//! Keeping leases alive (LR1), and telling everything now and then.

use sublet_protocol::agent::{Alive, Held as HeldWord, Up};
use sublet_protocol::units::Millis;

use super::held::Stage;
use super::mutation::Mutation;
use super::{Effect, Session};
use crate::driver::GuestKey;
use crate::durable::UsageEntry;

impl Session {
    /// When the next renewal is due; nothing while nothing is held.
    pub(super) fn renewal_due(&self) -> Option<Millis> {
        let shortest = self.held.values().map(|held| held.terms.renew.as_millis()).min();
        shortest.map(|every| self.renewed_at.saturating_add(every))
    }

    pub(super) fn renew_if_due(&mut self, now: Millis, out: &mut Vec<Effect>) {
        if self.renewal_due().is_some_and(|due| due <= now) {
            self.send_renewal(now, out);
        }
    }

    /// Asks for more life for everything held. Use is kept durably before it is told (LB1, LB3).
    pub(super) fn send_renewal(&mut self, now: Millis, out: &mut Vec<Effect>) {
        if self.held.is_empty() {
            return;
        }
        self.renewed_at = now;
        let mut has_changed = false;
        for (slice, held) in &self.held {
            let (lease, token, used) = (held.terms.lease, held.terms.token, held.clock.used(now));
            if used > Millis::ZERO {
                let outcome = None;
                self.durable.record(UsageEntry { lease, slice: *slice, token, used, outcome });
                has_changed = true;
            }
        }
        if has_changed {
            self.persist(out);
        }
        out.push(Effect::Send(Up::Renew { nonce: now, held: self.held_words(now) }));
    }

    /// LR1: life is counted from when the renewal was sent. A bought end only ever comes nearer:
    /// the answer that was underway for the shortest time is the most exact.
    pub(super) fn on_renewed(
        &mut self,
        now: Millis,
        nonce: Millis,
        alive: &[Alive],
        out: &mut Vec<Effect>,
    ) {
        if nonce > self.renewed_at {
            return;
        }
        let counts_from = match self.leaves_out(Mutation::RenewalFromArrival) {
            true => now,
            false => nonce,
        };
        for one in alive {
            let key = GuestKey { slice: one.slice, token: one.token };
            let Some(held) = self.held_as(key) else { continue };
            let live_until = held.live_until(counts_from);
            if let Stage::Confirmed { .. } = held.stage {
                // The broker counts it as active, so its activation was lost: asked for again.
                self.confirm_again(now, key, out);
                continue;
            }
            let (Stage::Waiting { lives, .. }
            | Stage::Starting { lives }
            | Stage::Running { lives }) = &mut held.stage
            else {
                continue;
            };
            let before = *lives;
            lives.live_until = lives.live_until.max(live_until);
            lives.ends_at = lives.ends_at.min(now.saturating_add(one.left));
            let after = *lives;
            let has_guest = !matches!(held.stage, Stage::Waiting { .. });
            if has_guest && held.deadline(after) != held.deadline(before) {
                out.push(Effect::SetDeadline(key, held.deadline(after)));
            }
        }
    }

    pub(super) fn send_inventory(&mut self, now: Millis, out: &mut Vec<Effect>) {
        self.inventory_at = now.saturating_add(self.config.inventory_every);
        let open = |(slice, offer): (&_, &super::Offer)| Some((*slice, offer.open_generation()?));
        let offered = self.offers.iter().filter_map(open).collect();
        out.push(Effect::Send(Up::Inventory { offered, held: self.held_words(now) }));
    }

    fn held_words(&self, now: Millis) -> Vec<HeldWord> {
        let word = |held: &super::Held| HeldWord {
            lease: held.terms.lease,
            slice: held.terms.slice,
            token: held.terms.token,
            used: held.clock.used(now),
            unused: held.unused(),
        };
        self.held.values().map(word).collect()
    }
}
