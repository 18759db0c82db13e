//! What is offered, and for how long it is true. A partitioned agent's offers wait with the message
//! queue, where a newer word on a slice replaces an older one (LA6).

use sublet_protocol::agent::Up;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::DeviceId;
use sublet_protocol::offers::{Division, HostRoom, OfferTerms, RescindReason};
use sublet_protocol::units::Millis;

use super::{Condition, Effect, Session};

/// The offers of one slice, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Offer {
    /// Of the last one; 0 before the first.
    generation: u64,
    stage: OfferStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum OfferStage {
    /// Not offered.
    #[default]
    Closed,
    /// Offered; to be repeated at this moment.
    Open { again_at: Millis },
    /// The broker refused it; to be tried again at this moment.
    Refused { again_at: Millis },
}

impl Offer {
    pub(super) const fn due(&self) -> Option<Millis> {
        match self.stage {
            OfferStage::Closed => None,
            OfferStage::Open { again_at } | OfferStage::Refused { again_at } => Some(again_at),
        }
    }

    pub(super) const fn close(&mut self) {
        self.stage = OfferStage::Closed;
    }

    /// What the broker refused because a lease had not ended can be offered once it has.
    pub(super) const fn close_if_refused(&mut self) {
        if let OfferStage::Refused { .. } = self.stage {
            self.close();
        }
    }

    pub(super) const fn open_generation(&self) -> Option<u64> {
        match self.stage {
            OfferStage::Open { .. } => Some(self.generation),
            OfferStage::Closed | OfferStage::Refused { .. } => None,
        }
    }
}

impl Session {
    pub(super) fn offer_device(&mut self, now: Millis, device: DeviceId, out: &mut Vec<Effect>) {
        let here = self.config.slices.iter().map(|one| one.slice);
        let here: Vec<SliceId> = here.filter(|slice| slice.device == device).collect();
        for slice in here {
            self.offer_if_idle(now, slice, out);
        }
    }

    /// Offers a slice that is idle, empty and not offered.
    pub(super) fn offer_if_idle(&mut self, now: Millis, slice: SliceId, out: &mut Vec<Effect>) {
        let is_closed = self.offers.get(&slice).is_some_and(|o| o.stage == OfferStage::Closed);
        if is_closed && self.may_offer(slice) {
            self.offer(now, slice, out);
        }
    }

    /// Repeats offers before their time is over, and those that were refused.
    pub(super) fn offer_what_is_due(&mut self, now: Millis, out: &mut Vec<Effect>) {
        let due = |(slice, offer): (&SliceId, &Offer)| {
            offer.due().is_some_and(|due| due <= now).then_some(*slice)
        };
        let due: Vec<SliceId> = self.offers.iter().filter_map(due).collect();
        for slice in due {
            if self.may_offer(slice) {
                self.offer(now, slice, out);
            } else if let Some(offer) = self.offers.get_mut(&slice) {
                offer.close();
            }
        }
    }

    pub(super) fn rescind_device(
        &mut self,
        device: DeviceId,
        reason: RescindReason,
        out: &mut Vec<Effect>,
    ) {
        for (slice, offer) in self.offers.iter_mut().filter(|(slice, _)| slice.device == device) {
            if let OfferStage::Open { .. } = offer.stage {
                let generation = offer.generation;
                out.push(Effect::Send(Up::Rescind { slice: *slice, generation, reason }));
            }
            offer.close();
        }
    }

    pub(super) fn on_offer_refused(&mut self, now: Millis, terms: &OfferTerms) {
        let again_at = now.saturating_add(self.config.inventory_every);
        if let Some(offer) = self.offers.get_mut(&terms.slice)
            && offer.open_generation() == Some(terms.generation)
        {
            offer.stage = OfferStage::Refused { again_at };
        }
    }

    /// The broker ended an offer, by its time or because it had not heard this agent.
    pub(super) fn on_offer_lapsed(
        &mut self,
        now: Millis,
        slice: SliceId,
        generation: u64,
        out: &mut Vec<Effect>,
    ) {
        if let Some(offer) = self.offers.get_mut(&slice)
            && offer.open_generation() == Some(generation)
        {
            offer.close();
            self.offer_if_idle(now, slice, out);
        }
    }

    fn may_offer(&self, slice: SliceId) -> bool {
        let is_idle = self.condition.get(&slice.device) == Some(&Condition::Idle);
        let overlaps =
            |held: &SliceId| held.device == slice.device && held.part.overlaps(slice.part);
        is_idle && !self.held.keys().any(overlaps)
    }

    fn offer(&mut self, now: Millis, slice: SliceId, out: &mut Vec<Effect>) {
        let Some(lendable) = self.config.slices.iter().find(|one| one.slice == slice) else {
            return;
        };
        let ttl = self.config.offer_ttl;
        let Some(offer) = self.offers.get_mut(&slice) else { return };
        offer.generation += 1;
        let again_at = now.saturating_add(Millis::new(ttl.as_millis().get() / 2));
        offer.stage = OfferStage::Open { again_at };
        out.push(Effect::Send(Up::Offer(OfferTerms {
            slice,
            generation: offer.generation,
            boot: self.durable.boot,
            capacity: lendable.capacity,
            idle_for: self.config.idle_for,
            recall_notice: self.config.recall_notice,
            ttl,
            division: Division::NONE,
            host: HostRoom::Slice,
        })));
    }
}
