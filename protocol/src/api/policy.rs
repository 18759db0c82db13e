//! The policy of the cell.

use serde::{Deserialize, Serialize};

use crate::policy::Policy;

/// A policy to be set, all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicySet {
    /// The policy as it was read: if it is another by now, nothing is set.
    pub from: Policy,
    /// What it is to be.
    pub to: Policy,
}
