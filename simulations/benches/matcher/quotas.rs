//! Quotas of a tree of three levels, per model: what is available through the tree, and charges that
//! go up as far as they borrow. The formulas are those of `docs/matching.md`.

use super::{MODELS, MODELS_COUNT, at};

const GROUP: u32 = 32;
/// No limit on borrowing: more than there can ever be.
const UNLIMITED: u64 = u64::MAX / 4;

#[derive(Debug, Clone, Copy, Default)]
struct Node {
    subtree: u64,
    /// What the others can never borrow.
    local: u64,
    usage: u64,
    borrow_limit: u64,
    parent: u32,
}

/// The root is node 0, then the groups, then the tenants; for each model in a tree of its own.
#[derive(Clone)]
pub(crate) struct Quotas {
    /// By node and model.
    nodes: Vec<Node>,
    /// What each tenant holds of each model, in thousandths of its quota.
    shares: Vec<[u64; MODELS_COUNT]>,
    first_tenant: u32,
}

const ROOT: u32 = 0;

fn place(node: u32, model: u32) -> usize {
    at(node) * MODELS_COUNT + at(model)
}

impl Quotas {
    /// Each tenant has an equal part of four times the GPUs, so that quotas are computed and bind
    /// nobody; it keeps half of it and lends the rest.
    pub(crate) fn new(tenants: u32, gpus: u32) -> Quotas {
        let groups = tenants.div_ceil(GROUP);
        let nominal = 4 * u64::from(gpus) * 1_000 / u64::from(MODELS) / u64::from(tenants);
        let local = nominal / 2;
        let unlimited = Node { borrow_limit: UNLIMITED, parent: ROOT, ..Node::default() };
        let mut nodes = vec![unlimited; place(1 + groups + tenants, 0)];
        for (tenant, model) in (0..tenants).flat_map(|t| (0..MODELS).map(move |m| (t, m))) {
            let group = 1 + tenant / GROUP;
            let node = &mut nodes[place(1 + groups + tenant, model)];
            (node.parent, node.subtree, node.local) = (group, nominal, local);
            for above in [group, ROOT] {
                nodes[place(above, model)].subtree += nominal - local;
            }
        }
        let shares = vec![[0; MODELS_COUNT]; at(tenants)];
        Quotas { nodes, shares, first_tenant: 1 + groups }
    }

    /// What a tenant may still hold of a model.
    ///
    /// From below: of what is above a node, `x`, its tenant may have `min(x + own, most)`.
    pub(crate) fn available(&self, tenant: u32, model: u32) -> u64 {
        let (mut own, mut most) = (0, u64::MAX);
        let mut node = self.first_tenant + tenant;
        loop {
            let Node { parent, subtree, local, usage, borrow_limit } =
                self.nodes[place(node, model)];
            if node == ROOT {
                return most.min(own + subtree.saturating_sub(usage));
            }
            own += local.saturating_sub(usage);
            let lent = subtree - local + borrow_limit;
            most = most.min(own + lent.saturating_sub(usage.saturating_sub(local)));
            node = parent;
        }
    }

    #[inline]
    pub(crate) fn charge(&mut self, tenant: u32, model: u32, amount: u64) {
        let (mut node, mut amount) = (self.first_tenant + tenant, amount);
        loop {
            let here = &mut self.nodes[place(node, model)];
            let own = here.local.saturating_sub(here.usage);
            here.usage += amount;
            if node == ROOT || amount <= own {
                break;
            }
            amount -= own;
            node = here.parent;
        }
        self.note_share(tenant, model);
    }

    #[inline]
    pub(crate) fn release(&mut self, tenant: u32, model: u32, amount: u64) {
        let (mut node, mut amount) = (self.first_tenant + tenant, amount);
        loop {
            let here = &mut self.nodes[place(node, model)];
            let borrowed = here.usage.saturating_sub(here.local);
            here.usage -= amount;
            if node == ROOT || borrowed == 0 {
                break;
            }
            amount = amount.min(borrowed);
            node = here.parent;
        }
        self.note_share(tenant, model);
    }

    fn note_share(&mut self, tenant: u32, model: u32) {
        let node = &self.nodes[place(self.first_tenant + tenant, model)];
        self.shares[at(tenant)][at(model)] = node.usage * 1_000 / node.subtree.max(1);
    }

    /// The dominant share: the most, over the models, of what is held in thousandths of the quota.
    #[inline]
    pub(crate) fn share(&self, tenant: u32) -> u64 {
        self.shares[at(tenant)].iter().copied().max().unwrap_or(0)
    }
}
