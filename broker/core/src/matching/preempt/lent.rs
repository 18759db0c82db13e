//! What may be taken back of what was lent, while victims are chosen.

use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::GpuMilli;

use super::{Problem, Spent, Victim, give_back};
use crate::quota::Charges;
use crate::reclaim::{self, After, Claimant};
use crate::state::{Request, State};

/// See the module.
pub(super) struct Lent<'a> {
    state: &'a State,
    claimant: Claimant,
    /// Quotas once all that is ending is gone; none if nothing can be taken back.
    after: Option<After>,
}

impl<'a> Lent<'a> {
    /// `after_ends` are quotas once all that was preempted is gone; asked for only if something may be
    /// taken back.
    pub(super) fn of(
        problem: &Problem<'a>,
        request: &Request,
        spent: &Spent,
        after_ends: impl FnOnce() -> Charges,
    ) -> Lent<'a> {
        let state = problem.view.state;
        let after = state.tree.may_take_back(request.tenant).then(|| {
            let mut victims = Charges::NONE;
            let preempted = problem.endable.preempted().into_iter();
            for id in preempted.chain(spent.doomed.iter().copied()) {
                give_back(&mut victims, state, id);
            }
            let mut after = After { claimant: after_ends(), victims };
            for id in problem.endable.ending() {
                after.end(state, id);
            }
            after
        });
        Lent { state, claimant: Claimant::of(request), after }
    }

    /// Whether these may end together for a grant of `gpu`.
    pub(super) fn is_fair(&self, victims: &[Victim], gpu: GpuMilli) -> bool {
        let Some(after) = &self.after else { return true };
        let leases = victims.iter().map(|victim| victim.place.lease);
        let is_bound = |lease: &LeaseId| reclaim::is_bound(self.state, *lease, &self.claimant);
        let bound: Vec<LeaseId> = leases.clone().filter(is_bound).collect();
        if bound.is_empty() {
            return true;
        }
        let mut after = after.clone();
        for lease in leases {
            after.end(self.state, lease);
        }
        let is_fair = |lease| reclaim::is_fair(self.state, &self.claimant, lease, (&after, gpu));
        bound.into_iter().all(is_fair)
    }

    /// Those of `all` that could be fair for a grant of `gpu` together with some of the others: on the
    /// claimant's side all of them are gone, on the side of each only itself.
    pub(super) fn ever_fair(&self, all: &[&Victim], gpu: GpuMilli) -> Vec<bool> {
        let Some(after) = &self.after else { return vec![true; all.len()] };
        let mut best = after.clone();
        for victim in all {
            give_back(&mut best.claimant, self.state, victim.place.lease);
        }
        let is_fair = |victim: &&Victim| {
            let lease = victim.place.lease;
            if !reclaim::is_bound(self.state, lease, &self.claimant) {
                return true;
            }
            give_back(&mut best.victims, self.state, lease);
            let is_fair = reclaim::is_fair(self.state, &self.claimant, lease, (&best, gpu));
            take_again(&mut best.victims, self.state, lease);
            is_fair
        };
        all.iter().map(is_fair).collect()
    }
}

/// Undoes [`give_back`].
fn take_again(charges: &mut Charges, state: &State, lease: LeaseId) {
    if let Some(lease) = state.leases.get(&lease) {
        let terms = &lease.terms;
        charges.hold(&state.tree, (terms.tenant, terms.model), terms.gpu_total());
    }
}
