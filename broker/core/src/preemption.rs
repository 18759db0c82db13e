//! Who must give way to whom: the rules that the judge and the matcher share.
//!
//! A lease may be ended for a request of a tier that is high enough above its own, once it has run
//! as long as it is spared, and unless its request was preempted too often. What else it may be ended
//! for is in `reclaim`. Among those that may be ended the order is total: who borrows beyond its
//! share, then the lowest tier, then the least work lost, then the newest. The owner of a GPU is bound
//! by none of this (LA1).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sublet_protocol::ids::{ClusterId, LeaseId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use crate::state::{Lease, LeaseStage, State};

/// Whether leases of `tier` give way to requests of the tier `to`, once they have run long enough.
pub(crate) fn gives_way_to(state: &State, tier: Tier, to: Tier) -> bool {
    let gap = to.rank().checked_sub(tier.rank());
    gap.is_some_and(|gap| gap >= state.policy.preemption.tier_gap.max(1))
}

/// From when on the lease may be preempted; never while it is prepared or ending, nor if its request
/// was preempted as often as may be.
pub(crate) fn spared_until(state: &State, lease: &Lease) -> Option<Timestamp> {
    let since = match lease.stage {
        LeaseStage::Active { since, .. } => since,
        LeaseStage::Granted { .. } | LeaseStage::Ending { .. } => return None,
    };
    let count = preemptions(state, lease);
    let may_again = count < state.policy.preemption.per_request;
    may_again.then(|| since.after(spared(state, lease.terms.tier(), count)))
}

/// How long a lease of this tier is spared once it is active, if its request was preempted `count`
/// times before.
pub(crate) fn spared(state: &State, tier: Tier, count: u32) -> Seconds {
    state.policy.preemption.spared(state.policy.min_run.of(tier), count)
}

fn preemptions(state: &State, lease: &Lease) -> u32 {
    state.requests.get(&lease.terms.request).map_or(0, |request| request.preemptions)
}

/// The earliest instant by which its owner may recall the lease by plan: after the notice that was
/// offered, and not before the minimum run time.
pub(crate) fn recall_earliest(state: &State, lease: &Lease, now: Timestamp) -> Timestamp {
    let since = lease.active_since().unwrap_or(now);
    let min_run = state.policy.min_run.of(lease.terms.tier());
    now.after(lease.terms.recall_notice).max(since.after(min_run))
}

/// Whether all of these leases may be preempted now, by the hour's budgets of their clusters and of the
/// cell.
pub(crate) fn are_within_budgets(
    state: &State,
    leases: impl Iterator<Item = LeaseId>,
    now: Timestamp,
) -> bool {
    let mut counts: BTreeMap<ClusterId, u32> = BTreeMap::new();
    for lease in leases.filter_map(|id| state.leases.get(&id)) {
        let count = counts.entry(lease.terms.cluster).or_default();
        *count = count.saturating_add(1);
    }
    let all = counts.values().fold(0_u32, |sum, count| sum.saturating_add(*count));
    counts.into_iter().all(|(cluster, here)| {
        let (of_cluster, of_cell) = budgets_left(state, cluster, now);
        here <= of_cluster && all <= of_cell
    })
}

/// How many more leases may be preempted now, in the cluster and in the cell: what is left of the
/// hour's budgets.
pub(crate) fn budgets_left(state: &State, cluster: ClusterId, now: Timestamp) -> (u32, u32) {
    let policy = &state.policy.preemption;
    let spent = state.clusters.get(&cluster).map_or(0, |cluster| cluster.preempted.count(now));
    let of_cluster = policy.per_cluster_hour.saturating_sub(spent);
    (of_cluster, budget_left(state, now))
}

/// How many more leases may be preempted now in the whole cell.
pub(crate) fn budget_left(state: &State, now: Timestamp) -> u32 {
    state.policy.preemption.per_cell_hour.saturating_sub(state.preempted.count(now))
}

/// Work that would be lost: thousandths of a GPU times milliseconds since the last checkpoint.
type Loss = u64;

/// What would be lost with the lease; nothing if its program never reported a checkpoint.
fn reported_loss(lease: &Lease, now: Timestamp) -> Option<Loss> {
    let (since, saved) = (lease.active_since()?, lease.checkpoint_at?);
    let span = now.since(since.max(saved)).get();
    Some(lease.terms.gpu_total().get().saturating_mul(span))
}

/// Where a victim stands: the least goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// How dear its kind is: who borrows beyond its share first, then the lowest tier.
    pub(crate) kind: (bool, Tier),
    /// What would be lost with it, or what is taken for that.
    pub(crate) loss: Loss,
    pub(crate) newest: Reverse<Timestamp>,
    pub(crate) lease: LeaseId,
}

/// For each tier the median loss of its running leases that reported a checkpoint.
#[derive(Debug, Clone, Default)]
pub(crate) struct Medians(BTreeMap<Tier, Loss>);

impl Medians {
    /// Of these leases, which are all that ever reported a checkpoint and more or less of the others.
    pub(crate) fn of<'l>(leases: impl Iterator<Item = &'l Lease>, now: Timestamp) -> Medians {
        let mut losses: BTreeMap<Tier, Vec<Loss>> = BTreeMap::new();
        for lease in leases.filter(|lease| lease.is_running()) {
            if let Some(loss) = reported_loss(lease, now) {
                losses.entry(lease.terms.tier()).or_default().push(loss);
            }
        }
        let medians = losses.into_iter().map(|(tier, mut losses)| {
            let middle = (losses.len() - 1) / 2;
            let (_, median, _) = losses.select_nth_unstable(middle);
            (tier, *median)
        });
        Medians(medians.collect())
    }
}

/// The order of victims at an instant.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    state: &'a State,
    now: Timestamp,
    medians: Medians,
}

impl<'a> Order<'a> {
    /// By a look at all leases.
    #[cfg(test)]
    pub(crate) fn of(state: &'a State, now: Timestamp) -> Order<'a> {
        Order::by(state, now, Medians::of(state.leases.values(), now))
    }

    pub(crate) const fn by(state: &'a State, now: Timestamp, medians: Medians) -> Order<'a> {
        Order { state, now, medians }
    }

    /// Where a running lease stands. Who never reported a checkpoint counts as the median of its
    /// tier's running leases that did, so that silence is no protection.
    pub(crate) fn place(&self, lease: &Lease) -> Place {
        let (terms, tier) = (&lease.terms, lease.terms.tier());
        let median = || self.medians.0.get(&tier).copied().unwrap_or(0);
        Place {
            kind: (!self.borrows(lease), tier),
            loss: reported_loss(lease, self.now).unwrap_or_else(median),
            newest: Reverse(lease.granted_at),
            lease: terms.lease,
        }
    }

    /// Whether the tenant holds more of the lease's model than is its own.
    fn borrows(&self, lease: &Lease) -> bool {
        let (tenant, model) = (lease.terms.tenant, lease.terms.model);
        self.state.tree.beyond_own(tenant, model) > GpuMilli::ZERO
    }
}
