//! What a tenant is shown of its quota.

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::Quota;
use sublet_protocol::units::GpuMilli;

use super::amounts::{Place, nominal};
use super::charges::Charges;
use super::tree::Tree;

/// One tenant's or group's figures for one model, now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// The quota as it was set.
    pub quota: Quota,
    /// What of its nominal amount counts.
    pub counts: GpuMilli,
    /// What it holds, and of those below it what they hold beyond what they keep for themselves.
    pub used: GpuMilli,
    /// What of that is borrowed.
    pub borrowed: GpuMilli,
    /// The most its group could lend if nobody held anything; nothing without a group.
    pub lendable: GpuMilli,
    /// What more may be granted to it now.
    pub left: GpuMilli,
    /// By how much it has more than it may have.
    pub excess: GpuMilli,
}

impl Tree {
    /// The figures of one model; nothing if there is no such tenant.
    #[must_use]
    pub fn figures(&self, id: TenantId, model: GpuModel) -> Option<Figures> {
        let node = self.node(id)?;
        let (quota, sums) = (node.row(model).quota, node.row(model).sums);
        let lendable = node.parent().map_or(GpuMilli::ZERO, |group| self.lendable(group, model));
        Some(Figures {
            quota,
            counts: nominal(&quota, sums.hardware),
            used: sums.usage,
            borrowed: match node.place() {
                Place::Child => sums.borrowed(),
                Place::Root => GpuMilli::ZERO,
            },
            lendable,
            left: self.room(id, model, Charges::EMPTY),
            excess: self.excess(id, model).unwrap_or_default(),
        })
    }
}
