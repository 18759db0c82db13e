//! Who calls: tokens (JWT, EdDSA) become a [`Caller`], or one and the same refusal.
//!
//! It decides who someone is and in which roles, never what they may do: each route names the roles
//! it is for. Nothing is allowed by default. Token times are wall time, not ledger time.

mod caller;
mod keys;
mod verifier;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use caller::RateOwner;
pub use caller::{Caller, Role, Roles, Scope};
pub use keys::{KeyError, KeySet};
pub use verifier::{LEEWAY, LIFETIME_MAX, TOKEN_MAX, Unauthenticated, Verifier};
