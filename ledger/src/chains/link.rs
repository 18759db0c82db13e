//! One link of a tenant's chain.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sublet_protocol::api::StatementSide;
use sublet_protocol::money::{MicroCredits, cost_half_even};

use super::Head;
use crate::charges::ChargeLine;
use crate::merkle::Hash;

const DOMAIN: &[u8] = b"sublet-charge@v1\n";

/// One charge in the chain of its borrower or its lender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its place: 1 for the first.
    pub count: u64,
    /// Leaf hash of the record that settled it.
    pub leaf: Hash,
    /// What the tenant pays or earns for it, in micro-units.
    pub amount: MicroCredits,
    /// The sum of all amounts up to this one, in micro-units.
    pub balance: i128,
    /// The charge.
    pub charge: ChargeLine,
}

impl Link {
    /// The link of `charge` behind `head`; `leaf` is that of the charge's record.
    #[must_use]
    pub fn behind(head: &Head, leaf: Hash, charge: ChargeLine, side: StatementSide) -> Self {
        let amount = charge.amount(side);
        let balance = head.balance.saturating_add(i128::from(amount.get()));
        Self { count: head.count.saturating_add(1), leaf, amount, balance, charge }
    }

    /// Its one spelling: a line of JSON without the line break.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and names have a JSON form")
    }

    /// The head of the chain once this is its last link and `before` was the hash of the head.
    #[must_use]
    pub fn head(&self, before: &Hash) -> Head {
        let mut hasher = Sha256::new_with_prefix(DOMAIN);
        hasher.update(before.as_bytes());
        hasher.update(self.text().as_bytes());
        let hash = Hash::from_bytes(hasher.finalize().into());
        Head { count: self.count, balance: self.balance, hash }
    }

    /// Whether it says what follows from itself and from `head`, the one before it: count, sum, and a
    /// cost of time × share × price.
    #[must_use]
    pub fn is_behind(&self, head: &Head, side: StatementSide) -> bool {
        let settlement = &self.charge.settlement;
        let cost = cost_half_even(self.charge.price, self.charge.gpu, settlement.billed);
        let is_priced = cost == Some(settlement.cost)
            && settlement.fee >= MicroCredits::ZERO
            && settlement.fee <= settlement.cost
            && settlement.billed <= self.charge.measured;
        is_priced && *self == Self::behind(head, self.leaf, self.charge.clone(), side)
    }
}
