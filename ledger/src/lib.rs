//! The lease ledger: journal, proofs, accounts, verifier.
//!
//! * [`journal`]: the records in order, appended by the broker's state machine, sealed into
//!   archive segments, read by index, lease, request, tenant and time.
//! * [`merkle`]: the RFC 6962 tree over them; proofs and their checks.
//! * [`accounts`]: the double-entry books folded from their lines.
//! * [`chains`]: each tenant's charges in a row, so that a statement can be proven complete.
//! * [`charges`]: every hold and charge computed again from records alone.
//! * [`statement`]: what a borrower owes or a lender is owed for a period, to the cent
//!   ([`periods`], [`rounding`]).
//! * [`nodes`]: what a node cost, who used it and what was idle.
//! * [`export`]: charges as CSV, Parquet and FOCUS, and a judge of FOCUS files.
//! * [`verify`]: reads every byte again and names the first record that is wrong.
//! * [`audit`]: the same for a folder on a machine that runs no broker.
//! * [`disk`]: what its files lie on: the machine's disk, or a simulated one that breaks.
//!
//! It knows no rule of lending but how a charge is computed (the rules are `sublet-core`'s), has no
//! clock, no network and no async, and reads and writes only below the directory it is given:
//!
//! ```text
//! DIR/lock                    held while the journal is open
//! DIR/archive/NNNNNNNNNN.seg  sealed segments: the truth about sealed records
//! DIR/archive/NNNNNNNNNN.ckpt what the cell's key signed about each
//! DIR/archive/ledger.pub      the public half of that key
//! DIR/sled/                   the unsealed tail and the index; can be made anew
//! DIR/sled.damaged/           the last store that had to be made anew
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests"))]

pub mod accounts;
mod archive;
pub mod audit;
pub mod chains;
pub mod charges;
pub mod checkpoint;
pub mod disk;
pub mod error;
pub mod export;
mod index;
pub mod journal;
pub mod merkle;
pub mod nodes;
pub mod note;
mod page;
pub mod periods;
pub mod proof;
pub mod rounding;
mod segment;
pub mod statement;
mod store;
mod subtrees;
pub mod verify;
pub mod witness;

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests and the measurement")]
mod support;

pub use self::error::Error;
pub use self::journal::Journal;
pub use self::segment::Seal;
