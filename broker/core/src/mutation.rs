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
    /// Nothing is set aside for what a lease may cost (LG1).
    NoHold,
    /// A plan's grant takes the offer that stands, whichever was meant (LG1).
    AnyGeneration,
    /// A plan's grant takes an offer whose time is over (LG1).
    ExpiredOffer,
    /// The planner counts on offers whose time is over.
    ExpiredPlanned,
    /// Offers are taken from the list a minute after their time only.
    LapsesLate,
    /// What is leased may be offered (LG1).
    OfferOfLeased,
    /// A request that has a lease may be granted another (LG1).
    GrantedAgain,
    /// A gang is active once one member has confirmed (LG3).
    OneConfirms,
    /// A refusal ends a lease that was active (LG4).
    LateRefusal,
    /// A gang has ended once one member has stopped (LE1).
    OneStops,
    /// Leases of an agent's earlier start live on when a newer one registers (LE1).
    NoVacancy,
    /// A new leader recalls and expires at once (LR3).
    NoWarmUp,
    /// A new leader grants slices of agents that have not answered it (LR3).
    UnheardGranted,
    /// Silence of all agents at once is taken for theirs.
    AllSilent,
    /// Use is added up instead of merged (LB1).
    UseAddsUp,
    /// The time between commits is charged, not what was measured (LB2).
    UnmeasuredCharge,
    /// Idempotency keys are not looked up (LK1).
    NoKeys,
    /// A bug that was: victims are counted, their tiers are not looked at.
    FirstVictims,
    /// A bug that was: what lapsed is not asked for again.
    OffersLapse,
    /// A leader keeps what it knew of leases that have ended.
    KeepsEnded,
    /// A bug that was: a leader that is behind refuses a start it has not heard of.
    RashRefusal,
}

#[cfg(feature = "mutations")]
impl State {
    /// Leaves these rules out from now on.
    pub const fn leave_out(&mut self, mutations: &'static [Mutation]) {
        self.mutations = mutations;
    }

    pub(crate) fn leaves_out(&self, mutation: Mutation) -> bool {
        self.mutations.contains(&mutation)
    }
}

#[cfg(not(feature = "mutations"))]
impl State {
    #[allow(clippy::unused_self, reason = "with the feature the answer is in the state")]
    pub(crate) const fn leaves_out(&self, _mutation: Mutation) -> bool {
        false
    }
}
