//! Matching: which waiting request gets which offered slices. Outside the log, on a view.
//!
//! `problem` turns a [`StateView`] into free slots and an ordered queue; `solve` walks the queue and
//! proposes grants; `preempt` looks for victims where a higher tier finds no room; `explain` says why
//! a request waits. All is integers, steps are limited, and equal views give equal plans. The rules
//! judge every proposal again, so a mistake here costs capacity and never correctness.

mod explain;
mod preempt;
mod problem;
mod solve;

pub use explain::{Explanation, NearMiss, WhatIf, WhatIfOutcome, explain, what_if};

use sublet_protocol::commands::PlanGroup;

use crate::state::StateView;

/// What to propose as a plan now; empty if nothing can be granted or freed.
#[must_use]
pub fn plan(view: StateView<'_>) -> Vec<PlanGroup> {
    if view.state.waiting().is_empty() {
        return Vec::new();
    }
    solve::solve(&mut problem::Problem::of(view))
}
