//! The sums of the tree computed anew, from leases, offers and quotas: what INV-2 compares with.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::Origin;
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::Basis;
use sublet_protocol::units::GpuMilli;

use super::month::Month;
use super::rows::Row;
use super::spending::Spend;
use crate::state::State;

type Amounts = BTreeMap<(TenantId, GpuModel), u64>;

/// What the leases hold, and what the clusters of each owner have on offer or on lease.
fn facts(state: &State) -> (Amounts, Amounts) {
    let (mut held, mut hardware) = (Amounts::new(), Amounts::new());
    let add = |amounts: &mut Amounts, of: (TenantId, GpuModel), amount: GpuMilli| {
        *amounts.entry(of).or_default() += amount.get();
    };
    for lease in state.leases.values() {
        let terms = &lease.terms;
        add(&mut held, (terms.tenant, terms.model), terms.gpu_total());
        // What is carved out of a GPU is part of the offer of the whole.
        for member in terms.members.iter().filter(|member| member.origin == Origin::Offered) {
            add(&mut hardware, (terms.owner, terms.model), member.capacity.gpu);
        }
    }
    for (slice, offer) in &state.offers {
        let Some(cluster) = state.clusters.get(&slice.cluster) else { continue };
        let capacity = offer.terms.capacity;
        add(&mut hardware, (cluster.owner, capacity.model), capacity.gpu);
    }
    (held, hardware)
}

/// A node's amounts as the definitions give them.
#[derive(Default)]
struct Fresh {
    subtree: u64,
    ceiling: u64,
    usage: u64,
}

struct Anew<'a> {
    state: &'a State,
    held: Amounts,
    hardware: Amounts,
    children: BTreeMap<TenantId, Vec<TenantId>>,
    found: Vec<String>,
}

impl Anew<'_> {
    /// Computes `id` from what is below it, and compares.
    fn compute(&mut self, id: TenantId, model: GpuModel) -> Fresh {
        let tree = &self.state.tree;
        let row = |id: TenantId| tree.spot(id, model).map(|spot| tree.rows.row(spot));
        let Some(Row { quota, sums: known, .. }) = row(id) else { return Fresh::default() };
        let hardware = self.hardware.get(&(id, model)).copied().unwrap_or(0);
        let nominal = match quota.basis {
            Basis::Allowance => quota.nominal.get(),
            Basis::Hardware => quota.nominal.get().min(hardware),
        };
        let mut fresh = Fresh {
            subtree: nominal,
            ceiling: quota.nominal.get(),
            usage: self.held.get(&(id, model)).copied().unwrap_or(0),
        };
        for child in self.children.get(&id).cloned().unwrap_or_default() {
            let below = self.compute(child, model);
            let limit = row(child).and_then(|row| row.quota.lend_limit);
            let local = |whole: u64| limit.map_or(0, |limit| whole.saturating_sub(limit.get()));
            fresh.subtree += below.subtree - local(below.subtree);
            fresh.ceiling += below.ceiling - local(below.ceiling);
            fresh.usage += below.usage.saturating_sub(local(below.subtree));
        }
        let amounts = [
            ("hardware", known.hardware, hardware),
            ("subtree", known.subtree, fresh.subtree),
            ("ceiling", known.ceiling, fresh.ceiling),
            ("usage", known.usage, fresh.usage),
        ];
        for (name, known, anew) in amounts.into_iter().filter(|(_, known, a)| known.get() != *a) {
            self.found.push(format!("the {name} of {id} for {model} is {anew}, not {known}"));
        }
        if let Some(excess) = self.state.tree.excess(id, model)
            && known.raised > known.binds_after
        {
            self.found.push(format!("{id} was granted {excess} of {model} more than it may have"));
        }
        fresh
    }
}

/// What is wrong with the sums of the tree; and who has more than it may have by a grant.
pub(crate) fn sums(state: &State) -> Vec<String> {
    let (held, hardware) = facts(state);
    let mut children: BTreeMap<TenantId, Vec<TenantId>> = BTreeMap::new();
    for (id, node) in state.tree.nodes() {
        if let Some(parent) = node.parent() {
            children.entry(parent).or_default().push(id);
        }
    }
    let models = state.tree.nodes().flat_map(|(_, node)| node.sums().map(|(model, _)| model));
    let models: BTreeSet<GpuModel> = models.collect();
    let mut anew = Anew { state, held, hardware, children, found: Vec::new() };
    let roots = state.tree.nodes().filter(|(_, node)| node.parent().is_none());
    let roots: Vec<TenantId> = roots.map(|(id, _)| id).collect();
    for model in models {
        for root in &roots {
            anew.compute(*root, model);
        }
    }
    anew.found
}

/// Whose held spending is not that of its leases, or whose budget is exceeded by a grant: with a
/// budget that was not cut since, what is used and held is at most the budget.
pub(crate) fn spending(state: &State) -> Vec<String> {
    let month = Month::of(state.now);
    let mut sums: BTreeMap<TenantId, Spend> = BTreeMap::new();
    for lease in state.leases.values() {
        if Month::of(lease.granted_at) == month {
            for (id, _) in state.tree.path(lease.terms.tenant) {
                sums.entry(id).or_default().add(lease.worst());
            }
        }
    }
    let wrong = state.tree.nodes().filter_map(|(id, node)| {
        let known = node.spending(state.now);
        let held = sums.get(&id).copied().unwrap_or_default();
        let is_wrong = known.held != held
            || known.used.time < 0
            || known.used.money < 0
            || (known.raised > known.binds_after && !state.tree.is_within_budget(id, state.now));
        is_wrong.then(|| format!("{id} has {known:?} this month, and {held:?} is held"))
    });
    wrong.collect()
}
