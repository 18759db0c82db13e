//! What an index knows of a cell besides its queue: what is free, what runs, and who asks for what. A plan
//! reads it and changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::ids::{ClusterId, NodeId, TenantId};
use sublet_protocol::units::Timestamp;

use super::families::Families;
use super::lots::window;
use super::promises::Promises;
use super::queue::{ClassKey, Queue};
use super::running::Running;
use super::shelves::Shelves;
use super::{ClassNo, LotNo, NONE, TenantNo};
use crate::fit;
use crate::matching::openings::Ends;
use crate::matching::supply::Supply;
use crate::state::StateView;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(super) shelves: Shelves,
    pub(super) families: Families,
    pub(crate) running: Running,
    pub(crate) supply: Supply,
    pub(crate) promises: Promises,
    /// Nodes that may be left out because they refused starts; none is missing.
    pub(crate) paused_nodes: BTreeSet<(ClusterId, NodeId)>,
    tenants: Vec<TenantId>,
    tenant_numbers: BTreeMap<TenantId, TenantNo>,
}

impl Known {
    pub(super) fn new(seed: u64, now: Timestamp) -> Known {
        Known {
            shelves: Shelves::new(seed),
            families: Families::default(),
            running: Running::new(seed, now),
            supply: Supply::new(Ends::Bought),
            promises: Promises::default(),
            paused_nodes: BTreeSet::new(),
            tenants: Vec::new(),
            tenant_numbers: BTreeMap::new(),
        }
    }

    /// Reads anew what records have touched since the last time.
    pub(super) fn refresh(&mut self, view: StateView<'_>) {
        let promises = &mut self.promises;
        self.supply.refresh(view, |node| promises.touched(node));
        self.promises.refresh(view.state);
    }

    /// The ordinal of a tenant, a new one if need be.
    pub(super) fn tenant(&mut self, tenant: TenantId) -> TenantNo {
        let tenants = &mut self.tenants;
        *self.tenant_numbers.entry(tenant).or_insert_with(|| {
            tenants.push(tenant);
            TenantNo(u32::try_from(tenants.len() - 1).unwrap_or(NONE))
        })
    }

    /// The name of a tenant's ordinal.
    pub(super) fn tenant_name(&self, tenant: TenantNo) -> TenantId {
        self.tenants[tenant.at()]
    }

    /// The tenant's ordinal, if it ever had a request that waited.
    pub(super) fn tenant_number(&self, tenant: TenantId) -> Option<TenantNo> {
        self.tenant_numbers.get(&tenant).copied()
    }

    /// The lots that may hold a slice for a class, and the shortest window that serves it.
    pub(super) fn lots_for(&self, key: &ClassKey) -> (&[LotNo], u8) {
        let spec = self.families.spec(key.family);
        let wanted = fit::wanted_promise(spec, key.needed).map_or(0, window);
        (self.families.lots(key.family), wanted)
    }
}

/// Why classes sleep, as far as that says what wakes them.
#[derive(Debug, Clone, Default)]
pub(super) struct Sleepers {
    /// No start is known for them.
    pub(super) barren: BTreeSet<ClassNo>,
    /// They may hold no promise: enough of their tier do.
    pub(super) refused: BTreeSet<ClassNo>,
    /// They lack quota or budget.
    pub(super) short_of_quota: BTreeSet<ClassNo>,
    /// They could end other leases, if there were some to end.
    pub(super) watchers: BTreeSet<ClassNo>,
    /// By the topmost group: they could take back what was lent, if more was lent or they held less.
    pub(super) lenders: BTreeMap<TenantId, BTreeSet<ClassNo>>,
    /// Whether the last plan would have ended leases if there were budget for it, and when it was.
    pub(super) short_of_budget: Option<Timestamp>,
}

impl Sleepers {
    /// Everything that sleeps is looked at again.
    pub(super) fn wake_all(&mut self, queue: &mut Queue) {
        self.short_of_quota.clear();
        self.watchers.clear();
        self.lenders.clear();
        self.barren.clear();
        self.refused.clear();
        queue.wake_all();
    }

    /// There is more quota or budget.
    pub(super) fn wake_short_of_quota(&mut self, queue: &mut Queue) {
        for class in std::mem::take(&mut self.short_of_quota) {
            queue.wake(class);
        }
    }

    /// What members of a topmost group hold has changed, of one or of all.
    pub(super) fn wake_lenders_of(&mut self, queue: &mut Queue, top: Option<TenantId>) {
        let woken: Vec<BTreeSet<ClassNo>> = match top {
            Some(top) => self.lenders.remove(&top).into_iter().collect(),
            None => std::mem::take(&mut self.lenders).into_values().collect(),
        };
        for class in woken.into_iter().flatten() {
            queue.wake(class);
        }
    }

    /// A class of a tenant below `top` holds no request any more.
    pub(super) fn forget(&mut self, class: ClassNo, top: TenantId) {
        if let Some(lenders) = self.lenders.get_mut(&top) {
            lenders.remove(&class);
        }
        self.short_of_quota.remove(&class);
        self.watchers.remove(&class);
        self.barren.remove(&class);
        self.refused.remove(&class);
    }

    /// Starts may be known now.
    pub(super) fn wake_barren(&mut self, queue: &mut Queue) {
        for class in std::mem::take(&mut self.barren) {
            queue.wake(class);
        }
    }

    /// Those of the refused that `may` hold a promise now look again.
    pub(super) fn wake_refused(&mut self, queue: &mut Queue, may: impl Fn(&ClassKey) -> bool) {
        self.refused.retain(|class| {
            let is_woken = may(queue.key(*class));
            if is_woken {
                queue.wake(*class);
            }
            !is_woken
        });
    }
}
