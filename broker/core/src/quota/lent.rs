//! What members of a group have lent to each other: whose it is, and whether more than that is taken
//! back.
//!
//! Two tenants *meet* in the lowest group that both are below, on different sides: each side is a
//! member of that group. What a group's own leases hold is on no side: it neither takes back nor is
//! taken back.

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::Reclaim;
use sublet_protocol::units::GpuMilli;

use super::charges::Charges;
use super::rows::Spot;
use super::share::Among;
use super::tree::Tree;

/// Where two tenants meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// The lowest group that both are below.
    pub(crate) group: TenantId,
    /// The member of it that the first is, or is below.
    pub(crate) side: TenantId,
}

impl Tree {
    /// What members of a group may take back of each other; nothing of who is not there.
    #[must_use]
    pub fn reclaim(&self, group: TenantId) -> Reclaim {
        self.node(group).map_or(Reclaim::Never, |node| node.terms().reclaim)
    }

    /// Whether some group that the tenant is in lets its members take something back.
    pub(crate) fn may_take_back(&self, tenant: TenantId) -> bool {
        let groups = self.path(tenant).skip(1);
        groups.into_iter().any(|(_, node)| node.terms().reclaim != Reclaim::Never)
    }

    /// The topmost group of the tenant, or the tenant.
    pub(crate) fn top(&self, tenant: TenantId) -> TenantId {
        self.path(tenant).last().map_or(tenant, |(id, _)| id)
    }

    /// Among whom these tenants are.
    pub(crate) fn among(&self, tenants: &[TenantId]) -> Among {
        let mut tops = tenants.iter().map(|tenant| self.top(*tenant));
        match tops.next().is_some_and(|first| tops.all(|top| top == first)) {
            true => Among::OneTop,
            false => Among::All,
        }
    }

    /// Where the first tenant meets the second; nowhere if no group joins them, or one is below the
    /// other, or they are the same.
    pub(crate) fn meeting(&self, first: TenantId, second: TenantId) -> Option<Meeting> {
        let mut side = first;
        for (group, _) in self.path(first).skip(1) {
            let Some(other) = self.side_below(group, second) else {
                side = group;
                continue;
            };
            return (other != side).then_some(Meeting { group, side });
        }
        None
    }

    /// The member of `group` that the tenant is, or is below.
    fn side_below(&self, group: TenantId, tenant: TenantId) -> Option<TenantId> {
        let mut path = self.path(tenant);
        path.find(|(_, node)| node.parent() == Some(group)).map(|(id, _)| id)
    }

    /// Whether the tenant, and each group between it and `group`, holds at least what it brings of a
    /// model: what these charges have given back was borrowed.
    pub(crate) fn keeps_own(
        &self,
        charges: &Charges,
        (tenant, group): (TenantId, TenantId),
        model: GpuModel,
    ) -> bool {
        let Some(spot) = self.spot(tenant, model) else { return true };
        let group = self.rows.number(group);
        let mut below = self.rows.above(spot.member).take_while(|no| Some(*no) != group);
        below.all(|member| {
            let spot = Spot { member, ..spot };
            let row = self.rows.row(spot);
            charges.usage(spot, row) >= row.sums.subtree
        })
    }

    /// Whether a member of a group needs to borrow nothing to hold `more` of a model.
    pub(crate) fn has_own(
        &self,
        charges: &Charges,
        side: TenantId,
        (model, more): (GpuModel, GpuMilli),
    ) -> bool {
        self.spot(side, model).is_some_and(|spot| {
            let row = self.rows.row(spot);
            charges.usage(spot, row).saturating_add(more) <= row.sums.subtree
        })
    }
}
