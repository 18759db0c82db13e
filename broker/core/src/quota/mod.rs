//! Quotas: a tree of tenants, for each GPU model how much each may hold, borrow and lend; how much
//! each takes of what is shared; and what each may spend in a month.
//!
//! Every sum is kept as it changes, so that what is asked or changed costs a walk to the root and
//! never a look at all tenants. Nothing here judges: [`decide`](crate::decide) asks, and
//! [`evolve`](crate::evolve()) records. The formulas and a worked example are in `docs/matching.md`.

mod tree;

mod amounts;
mod change;
mod charges;
pub(crate) mod check;
mod decay;
mod figures;
mod lent;
mod month;
mod node;
mod rows;
mod share;
mod spending;
mod stored;

#[cfg(test)]
mod tests;

pub use change::Moment;
pub(crate) use charges::{Charges, Obstacle, Want};
pub use figures::Figures;
pub(crate) use lent::Meeting;
pub use month::Month;
pub use node::Node;
pub use rows::Spot;
pub(crate) use share::standing_with;
pub use share::{Among, Standing, share, standing, standing_at};
pub use spending::{Spend, Spending};
pub use tree::{LEVELS_MAX, Tree};
