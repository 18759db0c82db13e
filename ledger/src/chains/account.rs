//! The two chains of a tenant, as one leaf of the tree over all tenants.

use serde::{Deserialize, Serialize};
use sublet_protocol::api::StatementSide;
use sublet_protocol::ids::TenantId;
use sublet_protocol::units::Timestamp;

use crate::merkle::Hash;

/// The end of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Links in the chain.
    pub count: u64,
    /// The sum of their amounts, in micro-units.
    pub balance: i128,
    /// The hash of the last link and all before it.
    pub hash: Hash,
}

impl Head {
    /// That of a chain without links.
    #[must_use]
    pub fn empty() -> Self {
        Self { count: 0, balance: 0, hash: Hash::of_nothing() }
    }
}

/// What stands in the tree for one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Whose.
    pub tenant: TenantId,
    /// Everything before this instant is closed.
    pub closed_until: Timestamp,
    /// What it pays.
    pub borrower: Head,
    /// What it earns.
    pub lender: Head,
}

impl Account {
    /// The chain of a side.
    #[must_use]
    pub const fn side(&self, side: StatementSide) -> &Head {
        match side {
            StatementSide::Borrower => &self.borrower,
            StatementSide::Lender => &self.lender,
        }
    }

    /// Its leaf hash.
    #[must_use]
    pub fn leaf(&self) -> Hash {
        Hash::of_leaf(self.text().as_bytes())
    }

    /// The bytes of its leaf: three lines.
    #[must_use]
    pub fn text(&self) -> String {
        let line = |side: StatementSide| {
            let Head { count, balance, hash } = self.side(side);
            format!("{} {count} {balance} {hash}\n", side.code())
        };
        let (tenant, closed) = (self.tenant, self.closed_until.get());
        let (borrower, lender) = (line(StatementSide::Borrower), line(StatementSide::Lender));
        format!("{tenant} {closed}\n{borrower}{lender}")
    }

    /// Reads what [`Account::text`] wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (tenant, closed) = lines.next()?.split_once(' ')?;
        let mut head = |side: StatementSide| {
            let mut words = lines.next()?.strip_prefix(side.code())?.strip_prefix(' ')?.split(' ');
            let (count, balance) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Head { count, balance, hash: words.next()?.parse().ok()? })
        };
        let (borrower, lender) = (head(StatementSide::Borrower)?, head(StatementSide::Lender)?);
        let closed_until = Timestamp::new(closed.parse().ok()?);
        let account = Self { tenant: tenant.parse().ok()?, closed_until, borrower, lender };
        (account.text() == text).then_some(account)
    }
}
