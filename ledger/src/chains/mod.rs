//! Chains: what proves that a statement has all of a tenant's charges.
//!
//! The tree over the records proves that a record is there, not that no other one is. So the ledger
//! folds two chains for each tenant, one of what it pays and one of what it earns: each [`Link`] names
//! the one before it by its hash, counts on, and carries the running balance. The heads of all chains
//! are the leaves of a small tree whose root stands in every signed checkpoint
//! ([`Checkpoint::charges`](crate::checkpoint::Checkpoint::charges)). Everything follows from the
//! records alone, so `verify` computes it again.
//!
//! ```text
//! link    = one line of JSON: count, leaf, amount, balance, charge
//! head    = SHA-256("sublet-charge@v1\n" ‖ head before it ‖ link); before the first: SHA-256 of nothing
//! account = "TENANT CLOSED\nborrower COUNT BALANCE HEAD\nlender COUNT BALANCE HEAD\n"
//! charges = RFC 6962 root over the accounts, in the order of the tenants' names
//! ```
//!
//! [`StatementProof`] has the links of a period, the account behind them and the way to the
//! checkpoint: whoever has the key checks with it that a statement has each line and no other. It
//! shows nothing of other tenants but hashes. What it does not show is that the records, or the root
//! that the key signed, are true: `verify` and `replay` do.

mod account;
mod fold;
mod kept;
mod link;
mod proof;

pub use self::account::{Account, Head};
pub use self::fold::{Chains, Links};
pub(crate) use self::kept::Keeping;
pub use self::link::Link;
pub use self::proof::{ProofBuilder, STATEMENT_PROOF, StatementFault, StatementProof};
