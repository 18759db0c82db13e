//! The words of Sublet that cross a process boundary or are stored.
//!
//! Ids, units, what can be leased, commands, events, records, refusals, agent messages, API bodies
//! and the codec that turns them into bytes. It holds no rule (those live in `sublet-core`) and, with
//! feature `transport` off, no I/O. Nothing belongs here that neither crosses a process boundary
//! nor is stored. Every package may import it.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests may stop on a surprise")
)]

pub mod ids;
pub mod units;

pub mod calendar;
pub mod capacity;
pub mod money;
pub mod names;
pub mod policy;
pub mod preemption;
pub mod quotas;

pub mod deferral;
pub mod offers;
pub mod requests;
pub mod rollbacks;

pub mod commands;
pub mod events;
pub mod leases;
pub mod records;
pub mod refusals;

pub mod agent;
#[cfg(feature = "api")]
pub mod api;

pub mod codec;
#[cfg(feature = "transport")]
pub mod transport;
