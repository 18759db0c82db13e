//! Open offers as the state keeps them.

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::Capacity;
use sublet_protocol::offers::OfferTerms;
use sublet_protocol::units::Timestamp;

/// Capacity that can be leased now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub(crate) terms: OfferTerms,
    pub(crate) offered_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

impl Offer {
    /// What the agent said.
    #[must_use]
    pub const fn terms(&self) -> &OfferTerms {
        &self.terms
    }

    /// How much it holds.
    #[must_use]
    pub const fn capacity(&self) -> &Capacity {
        &self.terms.capacity
    }

    /// When it was last repeated.
    #[must_use]
    pub const fn offered_at(&self) -> Timestamp {
        self.offered_at
    }

    /// Until when it stands. At this instant it no longer does.
    #[must_use]
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}
