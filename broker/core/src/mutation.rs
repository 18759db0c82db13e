//! Rules that can be left out, so that the simulator can show that each is needed.
//!
//! The questions stand where the rules do. Without the feature `mutations`, which only the simulator
//! switches on, a state has no field to hold an answer and every question is answered "no" when the
//! program is compiled.

use crate::state::State;

/// What a state may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A grant takes the last token again (LF1).
    SameToken,
    /// An agent's earlier start may speak (LF3).
    AnyBoot,
    /// The quota is not judged again when a plan is committed (LG1).
    NoQuota,
    /// A gang is active once one member has confirmed (LG3).
    OneConfirms,
    /// A refusal ends a lease that was active (LG4).
    LateRefusal,
    /// A gang has ended once one member has stopped (LE1).
    OneStops,
    /// Use is added up instead of merged (LB1).
    UseAddsUp,
    /// The time between commits is charged, not what was measured (LB2).
    UnmeasuredCharge,
    /// Idempotency keys are not looked up (LK1).
    NoKeys,
    /// A bug that was: victims are counted, their tiers are not looked at.
    FirstVictims,
    /// A bug that was: a leader that is behind refuses a start it has not heard of.
    RashRefusal,
}

#[cfg(feature = "mutations")]
impl State {
    /// Leaves a rule out from now on.
    pub const fn leave_out(&mut self, mutation: Mutation) {
        self.mutation = Some(mutation);
    }

    pub(crate) fn leaves_out(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

#[cfg(not(feature = "mutations"))]
impl State {
    #[allow(clippy::unused_self, reason = "with the feature the answer is in the state")]
    pub(crate) const fn leaves_out(&self, _mutation: Mutation) -> bool {
        false
    }
}
