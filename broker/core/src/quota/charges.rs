//! What a plan has given away before it is committed, laid over the tree.

use std::collections::BTreeMap;

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::money::Price;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::WaitReason;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::amounts::{Place, wide};
use super::month::Month;
use super::rows::{Row, Spot};
use super::spending::{Spend, left};
use super::tree::Tree;

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
///
/// It is of one tree: ordinals of another mean something else.
#[derive(Debug, Clone, Default)]
pub(crate) struct Charges {
    usage: BTreeMap<Spot, GpuMilli>,
    /// What will be given back: by leases that are to end.
    returned: BTreeMap<Spot, GpuMilli>,
    /// By tenant or group.
    spent: BTreeMap<u32, Spend>,
}

impl Charges {
    /// Nothing.
    pub(crate) const NONE: Charges =
        Charges { usage: BTreeMap::new(), returned: BTreeMap::new(), spent: BTreeMap::new() };

    /// The same, to look at: it is made once.
    pub(crate) const EMPTY: &Charges = &Charges::NONE;

    /// What is held with what was given away; `row` is that of the spot.
    #[inline]
    pub(super) fn usage(&self, spot: Spot, row: &Row) -> GpuMilli {
        let of = |all: &BTreeMap<Spot, GpuMilli>| all.get(&spot).copied().unwrap_or_default();
        row.sums.usage.saturating_add(of(&self.usage)).saturating_sub(of(&self.returned))
    }

    /// Whether nothing of any model was given to the tenant or group, or given back.
    #[inline]
    pub(super) fn has_none_of(&self, member: u32) -> bool {
        (self.usage.is_empty() && self.returned.is_empty()) || self.holds_none_of(member)
    }

    fn holds_none_of(&self, member: u32) -> bool {
        let all = Spot { member, model: 0 }..=Spot { member, model: u32::MAX };
        let mut both = [&self.usage, &self.returned].into_iter();
        both.all(|amounts| amounts.range(all.clone()).next().is_none())
    }

    /// Where something was given to the tenant or group.
    pub(super) fn given(&self, member: u32) -> impl Iterator<Item = Spot> + '_ {
        let all = Spot { member, model: 0 }..=Spot { member, model: u32::MAX };
        self.usage.range(all).map(|(spot, _)| *spot)
    }

    /// Gives it away: to the tenant, and beyond what each keeps for itself to its groups.
    pub(crate) fn give(&mut self, tree: &Tree, want: &Want) {
        self.keep(tree, want);
        let Some(worst) = Spend::of(want.price, want.gpu, want.duration.as_millis()) else {
            return;
        };
        let Some(spot) = tree.spot(want.tenant, want.model) else { return };
        for no in tree.rows.above(spot.member) {
            self.spent.entry(no).or_default().add(worst);
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
        let Some(spot) = tree.spot(tenant, model) else { return };
        let mut amount = amount;
        for member in tree.rows.above(spot.member) {
            let spot = Spot { member, ..spot };
            let row = tree.rows.row(spot);
            let kept = row.sums.local(&row.quota).saturating_sub(self.usage(spot, row));
            let given = self.usage.entry(spot).or_default();
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
        let Some(spot) = tree.spot(tenant, model) else { return };
        let mut amount = amount;
        for member in tree.rows.above(spot.member) {
            if amount == GpuMilli::ZERO {
                break;
            }
            let spot = Spot { member, ..spot };
            let row = tree.rows.row(spot);
            let beyond = self.usage(spot, row).saturating_sub(row.sums.local(&row.quota));
            let returned = self.returned.entry(spot).or_default();
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
        let Some(spot) = tree.spot(tenant, model) else { return 0 };
        let (mut amount, mut sum) = (wide(amount), 0_u128);
        for member in tree.rows.above(spot.member) {
            let spot = Spot { member, ..spot };
            let row = tree.rows.row(spot);
            let (place, mut sums) = (tree.rows.member(member).place(), row.sums);
            sums.usage = self.usage(spot, row);
            if place == Place::Child {
                amount -= wide(sums.local(&row.quota).saturating_sub(sums.usage));
            }
            if amount <= 0 {
                break;
            }
            if let Some(left) = sums.headroom(&row.quota, place) {
                sum = sum.saturating_add(u128::try_from(amount - left).unwrap_or(0));
            }
        }
        sum
    }

    /// What stands in the way of a grant, if anything: quotas first, then limits on borrowing, then
    /// budgets, of the tenant and of every group it is in.
    pub(crate) fn obstacle(&self, tree: &Tree, want: &Want, now: Timestamp) -> Option<Obstacle> {
        let Some(spot) = tree.spot(want.tenant, want.model) else {
            return (want.gpu > GpuMilli::ZERO).then_some(Obstacle::Quota);
        };
        if !tree.covers(spot, want.gpu, self) {
            let unlimited = tree.room_without_borrow_limits(want.tenant, want.model, self);
            return Some(match want.gpu > unlimited {
                true => Obstacle::Quota,
                false => Obstacle::BorrowLimit,
            });
        }
        let worst = Spend::of(want.price, want.gpu, want.duration.as_millis());
        let month = Month::of(now);
        let spent = |no: u32| self.spent.get(&no).copied().unwrap_or_default();
        let is_covered = worst.is_none_or(|worst| {
            let mut members = tree.rows.above(spot.member);
            members.all(|no| left(tree.rows.member(no), month).covers(spent(no).plus(worst)))
        });
        (!is_covered).then_some(Obstacle::Budget)
    }
}
