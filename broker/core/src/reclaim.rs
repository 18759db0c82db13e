//! By what right a lease is ended for a request: a gap of tiers, or because it rests on what another
//! member of its group has lent, where the group says that this may be taken back.
//!
//! Whether a lease may go at all, and who goes first, is in `preemption`. Here are the rules that look
//! at tenants. They keep two promises. What is taken back is what was lent: nobody is left with less
//! than its own by it. And where all that is lent may be taken back (`any`), nobody who borrows ends a
//! lease that rests on what is its tenant's own: otherwise the two would end each other's for ever.

use sublet_protocol::ids::{GpuModel, LeaseId, TenantId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::quotas::Reclaim;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Timestamp};

use crate::preemption;
use crate::quota::{Charges, Meeting};
use crate::state::{Lease, LeaseStage, Request, State};

/// Who asks for room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant {
    pub(crate) tenant: TenantId,
    pub(crate) tier: Tier,
    pub(crate) priority: u8,
}

impl Claimant {
    pub(crate) const fn of(request: &Request) -> Claimant {
        let (spec, tenant) = (&request.spec, request.tenant);
        Claimant { tenant, tier: spec.class.tier(), priority: spec.priority }
    }

    /// Whether the gap of tiers alone lets it end the lease.
    pub(crate) fn outranks(&self, state: &State, lease: &Lease) -> bool {
        preemption::gives_way_to(state, lease.terms.tier(), self.tier)
    }

    /// Where it meets the lease's tenant, if members may take something back there, and what.
    fn meets(&self, state: &State, lease: &Lease) -> Option<(Meeting, Reclaim)> {
        let meeting = state.tree.meeting(self.tenant, lease.terms.tenant)?;
        match state.tree.reclaim(meeting.group) {
            Reclaim::Never => None,
            known @ (Reclaim::LowerPriority | Reclaim::Any) => Some((meeting, known)),
        }
    }

    /// Whether the lease's request is below it, by tier and then by priority.
    fn is_above(&self, state: &State, lease: &Lease) -> bool {
        let request = state.requests.get(&lease.terms.request);
        let priority = request.map_or(0, |request| request.spec.priority);
        (lease.terms.tier(), priority) < (self.tier, self.priority)
    }

    /// Whether the lease might be taken back, if it rests on what was lent.
    fn may_take_back(&self, state: &State, lease: &Lease) -> bool {
        match self.meets(state, lease) {
            None | Some((_, Reclaim::Never)) => false,
            Some((_, Reclaim::LowerPriority)) => self.is_above(state, lease),
            Some((_, Reclaim::Any)) => true,
        }
    }
}

/// Whether the lease may be ended for the claimant now, by either right; of what was lent, if
/// [`is_fair`] agrees.
pub(crate) fn may_end(state: &State, lease: LeaseId, claimant: &Claimant, now: Timestamp) -> bool {
    let Some(lease) = state.leases.get(&lease) else { return false };
    preemption::spared_until(state, lease).is_some_and(|until| until <= now)
        && (claimant.outranks(state, lease) || claimant.may_take_back(state, lease))
}

/// Whether a lease that may be ended is bound by what was lent: [`is_fair`] must be asked.
pub(crate) fn is_bound(state: &State, lease: LeaseId, claimant: &Claimant) -> bool {
    let lease = state.leases.get(&lease);
    lease.is_some_and(|lease| claimant.meets(state, lease).is_some())
}

/// Quotas as they will be when the victims are gone, and all else that is ending.
#[derive(Debug, Clone)]
pub(crate) struct After {
    /// With what is kept for others of the claimant's side: whether it will need to borrow.
    pub(crate) claimant: Charges,
    /// Without what is kept for anyone: what a victim's side really holds.
    pub(crate) victims: Charges,
}

impl After {
    /// Counts as given back what leases hold that are ending, but for the preempted: those are
    /// counted already.
    pub(crate) fn end_what_ends(&mut self, state: &State) {
        give_back_ending(state, &mut self.claimant);
        give_back_ending(state, &mut self.victims);
    }

    /// Counts what a lease holds as given back.
    pub(crate) fn end(&mut self, state: &State, lease: LeaseId) {
        if let Some(Lease { terms, .. }) = state.leases.get(&lease) {
            let (whose, gpu) = ((terms.tenant, terms.model), terms.gpu_total());
            self.claimant.give_back(&state.tree, whose, gpu);
            self.victims.give_back(&state.tree, whose, gpu);
        }
    }
}

/// Whether a lease may be ended together with the others that `after` counts as given back, for a
/// grant of `gpu` that it does not count: by rank, or because no more is taken back than was lent.
pub(crate) fn is_fair(
    state: &State,
    claimant: &Claimant,
    victim: LeaseId,
    (after, gpu): (&After, GpuMilli),
) -> bool {
    let Some(lease) = state.leases.get(&victim) else { return false };
    let Some((meeting, reclaim)) = claimant.meets(state, lease) else {
        return claimant.outranks(state, lease);
    };
    let model: GpuModel = lease.terms.model;
    let is_own = || state.tree.has_own(&after.claimant, meeting.side, (model, gpu));
    let is_lent = || {
        let whose = (lease.terms.tenant, meeting.group);
        state.tree.keeps_own(&after.victims, whose, model)
    };
    match (reclaim, claimant.outranks(state, lease)) {
        (Reclaim::Never | Reclaim::LowerPriority, true) => true,
        (Reclaim::Never, false) => false,
        (Reclaim::LowerPriority, false) => claimant.is_above(state, lease) && is_own() && is_lent(),
        (Reclaim::Any, true) => is_own() || is_lent(),
        (Reclaim::Any, false) => is_own() && is_lent(),
    }
}

fn give_back_ending(state: &State, after: &mut Charges) {
    for lease in state.leases.values() {
        match lease.stage {
            LeaseStage::Granted { .. }
            | LeaseStage::Active { .. }
            | LeaseStage::Ending { cause: EndReason::Preempted, .. } => {}
            LeaseStage::Ending { .. } => {
                let terms = &lease.terms;
                after.give_back(&state.tree, (terms.tenant, terms.model), terms.gpu_total());
            }
        }
    }
}
