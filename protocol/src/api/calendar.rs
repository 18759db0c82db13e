//! Off-peak hours, and requests that wait for them.

use serde::{Deserialize, Deserializer, Serialize};

use super::Time;
use crate::calendar::Calendar;
use crate::ids::TenantId;

/// Off-peak hours to be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CalendarSet {
    /// The hours; null takes those of its group. It must be said.
    #[serde(deserialize_with = "said")]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub calendar: Option<Calendar>,
}

/// A field that may be null but not left out.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Calendar>, D::Error> {
    Option::deserialize(from)
}

/// Off-peak hours as they were set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CalendarView {
    /// Whose.
    pub tenant: TenantId,
    /// The hours; null if those of its group count.
    pub calendar: Option<Calendar>,
}

/// When a request is to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeferCreate {
    /// Not before this.
    #[serde(default)]
    pub not_before: Option<Time>,
    /// In the off-peak hours of its tenant, if a start in them, or in time for its deadline (within seven
    /// days without one), can be promised; else as soon as it can. Default false.
    #[serde(default)]
    pub off_peak: bool,
    /// When it should be over. A request that could not be is refused; one that could, waits for better
    /// hours only while it is promised a start in time. It is not ended by this.
    #[serde(default)]
    pub deadline: Option<Time>,
}
