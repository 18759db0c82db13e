//! The ledger as an auditor gets it: a folder, on a machine that runs no broker.
//!
//! Nothing below the folder is changed. Its segments are read one at a time, hashed, decoded and
//! posted; the records that are not sealed yet are read from a copy of the store. It knows no rule
//! of lending and has no network.

mod chain;
mod check;
mod folder;
mod locate;
mod prove;
mod tail;
mod trust;

pub use self::check::{Audit, Class, Outcome, Progress, Seen, check};
pub use self::folder::{Folder, FolderError};
pub use self::prove::{ProveError, Prover};
pub use self::tail::Tail;
pub use self::trust::{Signatures, Trust};

#[cfg(test)]
mod tamper_tests;
