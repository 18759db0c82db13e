//! The rules as given/when/then, one file per subject, and a walk that tries everything.

mod advice;
mod budgets;
mod deferral;
mod edges;
mod fairness;
mod following;
mod gone;
mod lack;
mod leader;
mod leases;
mod matching;
mod partition;
mod peers;
mod placement;
mod plans;
mod predicted;
mod preemption;
mod promises;
mod quotas;
mod recalls;
mod reclaim;
mod requests;
mod shift;
mod stalled;
mod supply;
mod walk;
