//! Matching: which waiting request gets which offered slices. Outside the log, on a view.
//!
//! `problem` turns a [`StateView`] into free slots and a queue; `order` says who in it comes first;
//! `solve` walks it and proposes grants; `place` chooses their slots; `shift` moves grants of the plan
//! aside for those that fit nowhere; `preempt` looks for victims where a higher tier finds no room,
//! among the leases that `endable` knows; `reserve` keeps room in the future for those that find
//! none, and `openings` and `supply` know when slices come free; `explain` says why a request waits. All is
//! integers, steps are limited, and equal views give equal plans. The rules judge every proposal
//! again, so a mistake here costs capacity and never correctness.

mod advice;
mod endable;
mod explain;
pub mod index;
mod openings;
mod order;
mod place;
mod position;
mod preempt;
mod problem;
mod reserve;
mod score;
mod shift;
mod solve;
mod supply;

pub use advice::{Change, HOST_USUAL, NODE_USUAL, Shortfall, Unmet, unmet, unmet_at_sight};
pub use explain::{
    Eta, Explanation, NearMiss, WhatIf, WhatIfOutcome, explain, explain_within, what_if,
    what_if_within,
};

use std::collections::BTreeSet;

use sublet_protocol::commands::PlanGroup;
use sublet_protocol::ids::{ClusterId, NodeId};

use crate::partition::Typical;
use crate::state::StateView;

/// What a plan must keep off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Nodes on which nothing new is put: those that a new leader has not heard yet (LR3), and those
    /// whose wall clocks are too far off.
    pub closed: BTreeSet<(ClusterId, NodeId)>,
    /// Whether leases may be ended for others; not while a new leader warms up.
    pub preemption: Preemption,
    /// The load for which placements are scored; none means what waits.
    pub typical: Option<Typical>,
}

/// Whether a plan may end leases for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// It may.
    Allowed,
    /// It may not.
    Suspended,
}

impl Limits {
    /// None.
    pub const NONE: Limits =
        Limits { closed: BTreeSet::new(), preemption: Preemption::Allowed, typical: None };
}

/// What to propose as a plan now; empty if nothing can be granted or freed.
#[must_use]
pub fn plan(view: StateView<'_>) -> Vec<PlanGroup> {
    plan_within(view, &Limits::NONE)
}

/// As [`plan()`], within limits. It looks at every offer and every waiting request: whoever plans
/// often keeps an [`Index`](index::Index) and calls [`plan_with`].
#[must_use]
pub fn plan_within(view: StateView<'_>, limits: &Limits) -> Vec<PlanGroup> {
    if view.state.waiting().is_empty() {
        return Vec::new();
    }
    let mut problem = problem::Problem::within(view, limits);
    if let Some(typical) = &limits.typical {
        problem.expect(typical.clone());
    }
    let mut lines = order::Lines::new(std::mem::take(&mut problem.lines));
    solve::solve(&mut problem, &mut lines, limits.preemption)
}

/// As [`plan_within`], as if only these nodes offered anything.
#[must_use]
pub fn plan_on(
    view: StateView<'_>,
    limits: &Limits,
    nodes: impl IntoIterator<Item = (ClusterId, NodeId)>,
) -> Vec<PlanGroup> {
    let mut problem = problem::Problem::bare(view, limits, None);
    problem.add_nodes(nodes);
    if let Some(typical) = &limits.typical {
        problem.expect(typical.clone());
    }
    let mut lines = order::Lines::new(order::lines(view.state, view.now));
    solve::solve(&mut problem, &mut lines, limits.preemption)
}

/// The same plan as [`plan_within`], from what has changed since the last one.
///
/// The index must have heard of every record of the state; one that has not is built anew. Requests
/// that found no room are not looked at again before something has opened for them.
#[must_use]
pub fn plan_with(index: &mut index::Index, view: StateView<'_>, limits: &Limits) -> Vec<PlanGroup> {
    index::plan_with(index, view, limits)
}

pub use reserve::LATE_MAX;

#[cfg(test)]
pub(crate) use preempt::tests::victims_are_those_of_a_look_at_everything;
#[cfg(test)]
pub(crate) use reserve::starts_are_those_of_a_look_at_everything;
