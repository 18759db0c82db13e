//! Accounts: the double-entry books, folded from the lines of the records.
//!
//! They know no rule of lending. What they check is bookkeeping: each posting debits and credits
//! the same total, no amount is negative, a lease's hold is never overdrawn.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::money::{Account, Line, MicroCredits};
use sublet_protocol::records::Record;

/// What was debited and credited to one account, in micro-units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Balance {
    /// Sum of the debits. Cannot overflow: 2⁶⁴ lines of at most 2⁶³ each.
    pub debit: i128,
    /// Sum of the credits.
    pub credit: i128,
}

impl Balance {
    /// Debits less credits: positive for an expense, negative for a hold or a revenue. `None`
    /// when it cannot be written; money is never saturated.
    pub fn net_debit(&self) -> Option<MicroCredits> {
        i64::try_from(self.debit.checked_sub(self.credit)?).ok().map(MicroCredits::new)
    }

    fn add(&mut self, line: &Line) {
        self.debit += i128::from(line.debit.get());
        self.credit += i128::from(line.credit.get());
    }
}

/// Why a record cannot be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostingError {
    /// Its debits and credits differ.
    #[error("debits of {debit} and credits of {credit} micro-units differ")]
    Unbalanced {
        /// Sum of the debits in micro-units.
        debit: i128,
        /// Sum of the credits in micro-units.
        credit: i128,
    },
    /// One of its lines has a negative amount, or one on both sides.
    #[error("a line on {account} has a negative amount or two amounts")]
    Line {
        /// The line's account.
        account: Account,
    },
    /// It takes more out of a lease's hold than is in it.
    #[error("the hold of {lease} is overdrawn by {by} micro-units")]
    HoldOverdrawn {
        /// The lease.
        lease: LeaseId,
        /// By how much, in micro-units.
        by: i128,
    },
}

/// Checks one posting by itself.
///
/// # Errors
/// [`PostingError::Line`] or [`PostingError::Unbalanced`].
pub fn check_posting(lines: &[Line]) -> Result<(), PostingError> {
    let mut sum = Balance::default();
    for line in lines {
        let (debit, credit) = (line.debit.get(), line.credit.get());
        if debit < 0 || credit < 0 || (debit > 0 && credit > 0) {
            return Err(PostingError::Line { account: line.account });
        }
        sum.add(line);
    }
    if sum.debit == sum.credit {
        Ok(())
    } else {
        Err(PostingError::Unbalanced { debit: sum.debit, credit: sum.credit })
    }
}

/// The books. A snapshot carries them, so that a start need not fold the whole journal.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Accounts {
    balances: BTreeMap<Account, Balance>,
    holds: BTreeMap<LeaseId, i128>,
}

impl Accounts {
    /// Books without a posting.
    pub const fn new() -> Self {
        Self { balances: BTreeMap::new(), holds: BTreeMap::new() }
    }

    /// Posts the lines of `record`, all or none.
    ///
    /// # Errors
    /// The posting is wrong by itself, or overdraws the hold of its lease.
    pub fn post(&mut self, record: &Record) -> Result<(), PostingError> {
        let lines = record.lines();
        check_posting(lines)?;
        if let Some(lease) = record.event.lease() {
            self.hold(lease, lines)?;
        }
        for line in lines {
            self.balances.entry(line.account).or_default().add(line);
        }
        Ok(())
    }

    fn hold(&mut self, lease: LeaseId, lines: &[Line]) -> Result<(), PostingError> {
        let mut change = Balance::default();
        for line in lines {
            if let Account::Hold(_) = line.account {
                change.add(line);
            }
        }
        let held = self.holds.get(&lease).copied().unwrap_or(0) + change.credit - change.debit;
        if held < 0 {
            return Err(PostingError::HoldOverdrawn { lease, by: -held });
        }
        if held == 0 {
            self.holds.remove(&lease);
        } else {
            self.holds.insert(lease, held);
        }
        Ok(())
    }

    /// The balance of one account; zero if nothing was posted to it.
    pub fn balance(&self, account: Account) -> Balance {
        self.balances.get(&account).copied().unwrap_or_default()
    }

    /// The trial balance: every account that was posted to, in the accounts' order.
    pub fn trial_balance(&self) -> impl Iterator<Item = (Account, Balance)> {
        self.balances.iter().map(|(account, balance)| (*account, *balance))
    }

    /// What is set aside for each lease that has not ended, in micro-units.
    pub fn open_holds(&self) -> impl Iterator<Item = (LeaseId, i128)> {
        self.holds.iter().map(|(lease, held)| (*lease, *held))
    }

    /// Sum of all debits and of all credits.
    pub fn totals(&self) -> Balance {
        self.balances.values().fold(Balance::default(), |sum, balance| Balance {
            debit: sum.debit + balance.debit,
            credit: sum.credit + balance.credit,
        })
    }

    /// True if all debits equal all credits, and the hold accounts hold what the leases hold.
    pub fn is_balanced(&self) -> bool {
        let totals = self.totals();
        let held: i128 = self.holds.values().sum();
        let accounts = self.balances.iter().filter(|(a, _)| matches!(a, Account::Hold(_)));
        let on_hold: i128 = accounts.map(|(_, balance)| balance.credit - balance.debit).sum();
        totals.debit == totals.credit && held == on_hold
    }
}
