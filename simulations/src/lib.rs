//! Drives the real rules with public traces and made-up loads.
//!
//! [`traces`] reads the public formats, [`generator`] makes jobs and owners' behaviour that look like
//! them, and the replay runs either through the same core as production under several policies.
//! Nothing here is used by a running broker or agent, except that `sublet dev` takes its load from
//! [`generator`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests"))]

pub mod chaos;
pub(crate) mod checker;
pub mod fill;
pub mod generator;
pub mod html;
pub mod lending;
pub mod minutes;
pub mod replay;
pub mod traces;
