//! The amounts of one tenant or group for one model, and what of them its own group sees.

use serde::{Deserialize, Serialize};
use sublet_protocol::quotas::{Basis, Quota};
use sublet_protocol::units::GpuMilli;

use super::decay::Past;

/// What a tenant or group adds up to for one GPU model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Sums {
    /// What its own clusters have on offer or on lease.
    pub(crate) hardware: GpuMilli,
    /// Its nominal amount and what its children bring.
    pub(crate) subtree: GpuMilli,
    /// The same as if every nominal amount counted as it was set.
    pub(crate) ceiling: GpuMilli,
    /// What its own leases hold, and what its children hold beyond what they keep for themselves.
    pub(crate) usage: GpuMilli,
    /// What it took of what is shared, lately.
    pub(crate) past: Past,
    /// The token of the last grant that raised its usage.
    pub(crate) raised: u64,
    /// The token counter when something else than a grant last left it with more than it may have.
    pub(crate) binds_after: u64,
}

impl Sums {
    /// Of who has nothing.
    pub(super) const NOTHING: Sums = Sums {
        hardware: GpuMilli::ZERO,
        subtree: GpuMilli::ZERO,
        ceiling: GpuMilli::ZERO,
        usage: GpuMilli::ZERO,
        past: Past::NONE,
        raised: 0,
        binds_after: 0,
    };
}

/// What a group sees of a child: what the child brings, by what counts and by what was set, and what
/// the child takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flow {
    pub(super) lent: GpuMilli,
    pub(super) lent_ceiling: GpuMilli,
    pub(super) overflow: GpuMilli,
}

/// What counts of a quota's nominal amount, and what was set.
pub(super) fn nominal(quota: &Quota, hardware: GpuMilli) -> GpuMilli {
    match quota.basis {
        Basis::Allowance => quota.nominal,
        Basis::Hardware => quota.nominal.min(hardware),
    }
}

/// What of `whole` the group cannot lend to others: `lend_limit? max(0, whole − lend_limit) : 0`.
pub(super) fn local(quota: &Quota, whole: GpuMilli) -> GpuMilli {
    quota.lend_limit.map_or(GpuMilli::ZERO, |limit| whole.saturating_sub(limit))
}

impl Sums {
    /// What it keeps for itself.
    pub(super) fn local(&self, quota: &Quota) -> GpuMilli {
        local(quota, self.subtree)
    }

    pub(super) fn flow(&self, quota: &Quota) -> Flow {
        let local = self.local(quota);
        Flow {
            lent: self.subtree.saturating_sub(local),
            lent_ceiling: self.ceiling.saturating_sub(local_of_ceiling(quota, self)),
            overflow: self.usage.saturating_sub(local),
        }
    }

    /// What it holds beyond what it and those below it bring.
    pub(super) const fn borrowed(&self) -> GpuMilli {
        self.usage.saturating_sub(self.subtree)
    }

    /// What counts against it when capacity is shared: below a group what it borrows, without one
    /// what it uses.
    pub(super) const fn counted(&self, place: Place) -> GpuMilli {
        match place {
            Place::Root => self.usage,
            Place::Child => self.borrowed(),
        }
    }

    /// How far it is below (or, if negative, over) what it may have; nothing if it has no limit of
    /// its own.
    pub(super) fn headroom(&self, quota: &Quota, place: Place) -> Option<i128> {
        let flow = self.flow(quota);
        match (place, quota.borrow_limit) {
            (Place::Root, _) => Some(wide(self.subtree) - wide(self.usage)),
            (Place::Child, Some(limit)) => {
                Some(wide(flow.lent) + wide(limit) - wide(flow.overflow))
            }
            (Place::Child, None) => None,
        }
    }
}

fn local_of_ceiling(quota: &Quota, sums: &Sums) -> GpuMilli {
    local(quota, sums.ceiling)
}

/// Whether a tenant stands in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has no group: it borrows from nobody.
    Root,
    /// It is in a group.
    Child,
}

/// An amount as a number that may be subtracted from freely.
pub(super) fn wide(amount: GpuMilli) -> i128 {
    i128::from(amount.get())
}

/// A number as an amount, zero if it is negative.
pub(super) fn narrow(amount: i128) -> GpuMilli {
    GpuMilli::new(u64::try_from(amount.max(0)).unwrap_or(u64::MAX))
}
