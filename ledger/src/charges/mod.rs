//! Charges: what each lease cost, and whether that is what its records say it must cost.
//!
//! [`Recount`] reads the records in order and computes every hold and every charge again from nothing
//! but records: the price that was posted when the lease was granted, the time that its agents
//! measured, the policy when it ended. It shares no code with the rules that made the charges but
//! the one formula `time × share × price` and its rounding
//! ([`cost_half_even`](sublet_protocol::money::cost_half_even)).
//! [`Charge`] is one lease's charge; statements and exports are made of them.

mod charge;
mod line;
mod recount;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::charge::divide_half_even;
pub use self::charge::{Billed, Charge, Part};
pub use self::line::ChargeLine;
pub use self::recount::{ChargeError, Recount};
