//! What a plan has given away before it is committed, laid over the tree.

use std::collections::BTreeMap;

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::money::Price;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::WaitReason;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::amounts::{Place, Sums, wide};
use super::month::Month;
use super::spending::{Spend, left};
use super::tree::{Node, Tree};

/// What a grant would take of quotas and budgets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    pub(crate) tenant: TenantId,
    pub(crate) model: GpuModel,
    /// Of all members together.
    pub(crate) gpu: GpuMilli,
    pub(crate) price: Price,
    /// How long at most: the worst case is paid for.
    pub(crate) duration: Seconds,
}

/// What stands in the way of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Quotas, of the tenant or of a group it is in, leave too little.
    Quota,
    /// There would be room, but the tenant or a group it is in may not borrow that much.
    BorrowLimit,
    /// The budget of the month does not cover the worst case.
    Budget,
}

impl Obstacle {
    /// How near to a grant what it stops has come.
    pub(crate) const fn rank(self) -> u8 {
        match self {
            Obstacle::Quota => 0,
            Obstacle::BorrowLimit => 1,
            Obstacle::Budget => 2,
        }
    }

    pub(crate) const fn rejection(self) -> Rejection {
        match self {
            Obstacle::Quota => Rejection::QuotaExceeded,
            Obstacle::BorrowLimit => Rejection::BorrowLimitReached,
            Obstacle::Budget => Rejection::BudgetExceeded,
        }
    }

    pub(crate) const fn reason(self) -> WaitReason {
        match self {
            Obstacle::Quota => WaitReason::Quota,
            Obstacle::BorrowLimit => WaitReason::BorrowLimit,
            Obstacle::Budget => WaitReason::Budget,
        }
    }
}

/// What is given away and not in the tree yet: by whom and of which model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Charges {
    usage: BTreeMap<TenantId, BTreeMap<GpuModel, GpuMilli>>,
    /// What will be given back: by leases that are to end.
    returned: BTreeMap<TenantId, BTreeMap<GpuModel, GpuMilli>>,
    spent: BTreeMap<TenantId, Spend>,
}

impl Charges {
    /// Nothing.
    pub(crate) const NONE: Charges =
        Charges { usage: BTreeMap::new(), returned: BTreeMap::new(), spent: BTreeMap::new() };

    /// The sums of a node with what was given away.
    pub(super) fn on(&self, id: TenantId, model: GpuModel, node: &Node) -> Sums {
        let mut sums = node.sums(model);
        let of = |all: &BTreeMap<TenantId, BTreeMap<GpuModel, GpuMilli>>| {
            all.get(&id).and_then(|models| models.get(&model)).copied().unwrap_or_default()
        };
        sums.usage = sums.usage.saturating_add(of(&self.usage)).saturating_sub(of(&self.returned));
        sums
    }

    /// Models of which something was given to the node.
    pub(super) fn models(&self, id: TenantId) -> impl Iterator<Item = GpuModel> + '_ {
        self.usage.get(&id).into_iter().flat_map(|models| models.keys().copied())
    }

    /// Gives it away: to the tenant, and beyond what each keeps for itself to its groups.
    pub(crate) fn give(&mut self, tree: &Tree, want: &Want) {
        self.keep(tree, want);
        let Some(worst) = Spend::of(want.price, want.gpu, want.duration.as_millis()) else {
            return;
        };
        for (id, _) in tree.path(want.tenant) {
            self.spent.entry(id).or_default().add(worst);
        }
    }

    /// Gives only what quotas hold of it, no budget.
    pub(crate) fn keep(&mut self, tree: &Tree, want: &Want) {
        self.hold(tree, (want.tenant, want.model), want.gpu);
    }

    /// Counts so much more as held by a tenant. Of as much that was given back it is the inverse.
    pub(crate) fn hold(
        &mut self,
        tree: &Tree,
        (tenant, model): (TenantId, GpuModel),
        amount: GpuMilli,
    ) {
        let mut amount = amount;
        for (id, node) in tree.path(tenant) {
            let sums = self.on(id, model, node);
            let kept = sums.local(&node.quota(model)).saturating_sub(sums.usage);
            let given = self.usage.entry(id).or_default().entry(model).or_default();
            *given = given.saturating_add(amount);
            amount = amount.saturating_sub(kept);
            if amount == GpuMilli::ZERO {
                break;
            }
        }
    }

    /// Counts what a tenant holds as given back: as if it had ended.
    pub(crate) fn give_back(
        &mut self,
        tree: &Tree,
        (tenant, model): (TenantId, GpuModel),
        amount: GpuMilli,
    ) {
        let mut amount = amount;
        for (id, node) in tree.path(tenant) {
            if amount == GpuMilli::ZERO {
                break;
            }
            let (sums, kept) = (self.on(id, model, node), node.sums(model));
            let kept = kept.local(&node.quota(model));
            let beyond = sums.usage.saturating_sub(kept);
            let returned = self.returned.entry(id).or_default().entry(model).or_default();
            *returned = returned.saturating_add(amount);
            amount = amount.min(beyond);
        }
    }

    /// How much is missing of quotas for `amount` more, added up over the tenant and its groups: zero
    /// exactly if it is no more than [`Tree::room`].
    ///
    /// What ends helps exactly if it makes this less: at each level that is short, what its end gives
    /// back there or below is missing no longer.
    pub(crate) fn lack(
        &self,
        tree: &Tree,
        (tenant, model): (TenantId, GpuModel),
        amount: GpuMilli,
    ) -> u128 {
        let (mut amount, mut sum) = (wide(amount), 0_u128);
        for (id, node) in tree.path(tenant) {
            let (quota, sums) = (node.quota(model), self.on(id, model, node));
            let place = node.place();
            if place == Place::Child {
                amount -= wide(sums.local(&quota).saturating_sub(sums.usage));
            }
            if amount <= 0 {
                break;
            }
            if let Some(left) = sums.headroom(&quota, place) {
                sum = sum.saturating_add(u128::try_from(amount - left).unwrap_or(0));
            }
        }
        sum
    }

    pub(super) fn spent(&self, id: TenantId) -> Spend {
        self.spent.get(&id).copied().unwrap_or_default()
    }

    /// What stands in the way of a grant, if anything: quotas first, then limits on borrowing, then
    /// budgets, of the tenant and of every group it is in.
    pub(crate) fn obstacle(&self, tree: &Tree, want: &Want, now: Timestamp) -> Option<Obstacle> {
        if want.gpu > tree.room(want.tenant, want.model, self) {
            let unlimited = tree.room_without_borrow_limits(want.tenant, want.model, self);
            return Some(match want.gpu > unlimited {
                true => Obstacle::Quota,
                false => Obstacle::BorrowLimit,
            });
        }
        let worst = Spend::of(want.price, want.gpu, want.duration.as_millis());
        let month = Month::of(now);
        let is_covered = worst.is_none_or(|worst| {
            tree.path(want.tenant)
                .all(|(id, node)| left(node, month).covers(self.spent(id).plus(worst)))
        });
        (!is_covered).then_some(Obstacle::Budget)
    }
}
