//! One tenant or group of a tree, as others see it.

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::{Quota, TenantTerms};

use super::amounts::{Place, Sums};
use super::rows::{NONE, Row, Rows, Spot};
use super::tree::Tree;

/// A tenant or group of a tree: its place, its terms and its sums.
#[derive(Debug, Clone, Copy)]
pub struct Node<'t> {
    pub(super) rows: &'t Rows,
    pub(super) no: u32,
}

impl<'t> Node<'t> {
    /// The group it belongs to.
    #[must_use]
    pub fn parent(self) -> Option<TenantId> {
        let parent = self.rows.member(self.no).parent;
        (parent != NONE).then(|| self.rows.member(parent).id)
    }

    /// Its weight and budgets.
    #[must_use]
    pub fn terms(self) -> &'t TenantTerms {
        &self.rows.member(self.no).terms
    }

    /// Its quotas, as they were set, in the order of the models; those that are not listed are zero.
    pub fn quotas(self) -> impl Iterator<Item = (GpuModel, Quota)> + 't {
        let rows = self.rows.by_name(self.no).filter(|(_, row)| row.is_set);
        rows.map(|(model, row)| (model, row.quota))
    }

    /// Its quota for one model, if one was set.
    #[must_use]
    pub fn quota(self, model: GpuModel) -> Option<Quota> {
        let row = self.row(model);
        row.is_set.then_some(row.quota)
    }

    pub(super) fn place(self) -> Place {
        self.rows.member(self.no).place()
    }

    pub(super) fn row(self, model: GpuModel) -> &'t Row {
        let model = self.rows.models().get(&model).copied().unwrap_or(NONE);
        self.rows.row(Spot { member: self.no, model })
    }

    /// Its amounts, in the order of the models.
    pub(super) fn amounts(self) -> impl Iterator<Item = (GpuModel, Sums)> + 't {
        self.sums().map(|(model, row)| (model, row.sums))
    }

    /// The rows that hold them.
    pub(super) fn sums(self) -> impl Iterator<Item = (GpuModel, &'t Row)> + 't {
        self.rows.by_name(self.no).filter(|(_, row)| row.is_counted)
    }
}

impl Tree {
    /// One tenant or group.
    #[must_use]
    pub fn node(&self, id: TenantId) -> Option<Node<'_>> {
        self.rows.number(id).map(|no| Node { rows: &self.rows, no })
    }

    /// All of them, in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = (TenantId, Node<'_>)> + '_ {
        self.rows.ids().map(|(id, no)| (id, Node { rows: &self.rows, no }))
    }
}
