//! A plan by the index: the walk sees the classes that are awake, and the nodes that may serve them.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::commands::PlanGroup;
use sublet_protocol::ids::{RequestId, TenantId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Timestamp};

use super::known::{Known, Sleepers};
use super::queue::{ClassKey, Queue};
use super::{ClassNo, Index, LotNo, NodeNo};
use crate::matching::Limits;
use crate::matching::problem::Problem;
use crate::matching::reserve::Fate;
use crate::matching::solve::{self, Source, Trial};
use crate::state::{State, StateView};

/// See [`plan_with`](crate::matching::plan_with).
pub(crate) fn plan_with(index: &mut Index, view: StateView<'_>, limits: &Limits) -> Vec<PlanGroup> {
    if !index.is_of(view.state) {
        *index = index.rebuilt(view.state);
    }
    index.begin(view.state, view.now, limits);
    let Index { queue, known, sleepers, .. } = index;
    let mut problem = Problem::bare(view, limits, Some(known));
    if let Some(typical) = &limits.typical {
        problem.expect(typical.clone());
    }
    let (pressing, is_broken) = problem.reservations.pressing();
    if is_broken {
        // What was kept for it is kept no longer.
        sleepers.wake_all(queue);
    }
    for request in pressing {
        if let Some(class) = queue.find(request) {
            queue.wake(class);
        }
    }
    // They see slices that their likes do not.
    let mut special: BTreeMap<ClassNo, BTreeSet<RequestId>> = BTreeMap::new();
    for request in problem.reservations.concerned() {
        if let Some(class) = queue.find(request) {
            special.entry(class).or_default().insert(request);
        }
    }
    let mut walk = ByIndex {
        queue,
        known,
        sleepers,
        limits,
        now: view.now,
        brought: BTreeSet::new(),
        windows: BTreeMap::new(),
        special,
        moved: Vec::new(),
        restless: Vec::new(),
        slept: Vec::new(),
        has_shifted: false,
    };
    let groups = solve::solve(&mut problem, &mut walk, limits.preemption);
    let ByIndex { queue, moved, restless, slept, has_shifted, .. } = walk;
    for class in restless.into_iter().chain(slept.into_iter().filter(|_| has_shifted)) {
        queue.wake(class);
    }
    for class in moved {
        queue.rewind(class);
    }
    index.proposed.extend(groups.iter().map(PlanGroup::request));
    groups
}

/// The index as a source of requests.
struct ByIndex<'i> {
    queue: &'i mut Queue,
    known: &'i Known,
    sleepers: &'i mut Sleepers,
    limits: &'i Limits,
    now: Timestamp,
    /// Nodes whose slots are in the problem.
    brought: BTreeSet<NodeNo>,
    /// By lot: the shortest window from which on all of its nodes are.
    windows: BTreeMap<LotNo, u8>,
    /// By class: requests with a reservation, kept or broken, that were not tried yet.
    special: BTreeMap<ClassNo, BTreeSet<RequestId>>,
    /// Classes whose cursor is not at their first request.
    moved: Vec<ClassNo>,
    /// Classes that sleep for the rest of this plan only.
    restless: Vec<ClassNo>,
    /// Classes that this plan has put to sleep for longer.
    slept: Vec<ClassNo>,
    /// Whether grants were moved aside. What slept before this plan found no room when all that this
    /// plan gives away was free; only what it tried itself may have missed some.
    has_shifted: bool,
}

impl Source for ByIndex<'_> {
    fn tenants(&mut self, tier: Tier) -> Vec<TenantId> {
        let busy = self.queue.busy(tier);
        let mut tenants: Vec<TenantId> = busy.map(|no| self.known.tenant_name(no)).collect();
        tenants.sort_unstable();
        tenants
    }

    fn next(&mut self, tier: Tier, tenant: TenantId) -> Option<RequestId> {
        let tenant = self.known.tenant_number(tenant)?;
        self.queue.first(tenant, tier).map(|(_, request)| request)
    }

    fn bring(&mut self, problem: &mut Problem<'_>, id: RequestId) {
        let Some(class) = self.queue.find(id) else { return };
        let (lots, window) = self.known.lots_for(self.queue.key(class));
        let mut fresh: Vec<NodeNo> = Vec::new();
        for lot in lots {
            let known = self.windows.entry(*lot).or_insert(u8::MAX);
            if window < *known {
                *known = window;
                let nodes = self.known.shelves.nodes(*lot, window);
                fresh.extend(nodes.filter(|node| self.brought.insert(*node)));
            }
        }
        let names = fresh.into_iter().map(|node| self.known.shelves.name(node));
        problem.add_nodes(names.filter(|node| !self.limits.closed.contains(node)));
    }

    fn shifted(&mut self) {
        self.has_shifted = true;
    }

    fn tried(&mut self, state: &State, id: RequestId, trial: &Trial<'_>) {
        let Some(class) = self.queue.find(id) else { return };
        if let Some(left) = self.special.get_mut(&class) {
            left.remove(&id);
        }
        let has_special = self.special.get(&class).is_some_and(|left| !left.is_empty());
        if trial.is_served || trial.fate == Fate::Holds || has_special {
            // The next one of its kind may hold a reservation, too.
            self.queue.advance(class);
            self.moved.push(class);
            return;
        }
        self.queue.sleep(class);
        // Which of what was lent can be taken back together may change with the time alone.
        let is_sure = trial.is_lasting && trial.fate != Fate::Unsure && !trial.spent.is_over_lent;
        if !is_sure || self.queue.is_lone(class) {
            self.restless.push(class);
            return;
        }
        self.slept.push(class);
        let key = *self.queue.key(class);
        // Without slices of a kind on offer it cannot be told whether quota is what it lacks.
        let is_unknown = self.known.families.lots(key.family).is_empty();
        if is_unknown || is_short_of_quota(self.known, state, trial, &key) {
            self.sleepers.short_of_quota.insert(class);
        }
        match trial.fate {
            Fate::Barren => {
                self.sleepers.barren.insert(class);
            }
            Fate::Refused => {
                self.sleepers.refused.insert(class);
            }
            Fate::Holds | Fate::Unsure => {}
        }
        let tenant = self.known.tenant_name(key.tenant);
        let may_take_back = state.tree.may_take_back(tenant);
        if key.tier > Tier::Opportunistic || may_take_back {
            self.sleepers.watchers.insert(class);
        }
        if may_take_back {
            self.sleepers.lenders.entry(state.tree.top(tenant)).or_default().insert(class);
        }
        if trial.spent.is_over_budget {
            self.sleepers.short_of_budget = Some(self.now);
        }
    }
}

/// Whether more quota or budget could open something for the class.
fn is_short_of_quota(known: &Known, state: &State, trial: &Trial<'_>, key: &ClassKey) -> bool {
    let ClassKey { tenant, family, .. } = *key;
    let (spec, tenant) = (known.families.spec(family), known.tenant_name(tenant));
    if state.tree.has_budget(tenant) {
        return true;
    }
    let count = u64::from(spec.count);
    let mut kinds = known.families.lots(family).iter().filter_map(|lot| known.shelves.kind(*lot));
    kinds.any(|kind| {
        let model = kind.capacity.model;
        let total = kind.capacity.gpu.checked_mul(count).unwrap_or(GpuMilli::MAX);
        let total = total.saturating_add(trial.reservations.reserved(tenant, model));
        total > trial.spent.room(state, tenant, model)
    })
}
