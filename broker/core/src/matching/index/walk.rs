//! A plan by the index: the walk sees the classes that are awake, and the nodes that may serve them.

use std::collections::BTreeSet;

use sublet_protocol::commands::PlanGroup;
use sublet_protocol::ids::{RequestId, TenantId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Timestamp};

use super::{ClassNo, Index, NodeNo};
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
    let mut problem = Problem::bare(view, limits);
    if let Some(typical) = &limits.typical {
        problem.expect(typical.clone());
    }
    let (pressing, is_broken) = problem.reservations.pressing();
    if is_broken {
        // What was kept for it is kept no longer.
        index.wake_all();
    }
    for request in pressing {
        if let Some(class) = index.queue.find(request) {
            index.queue.wake(class);
        }
    }
    let mut walk = ByIndex {
        index,
        limits,
        now: view.now,
        brought: BTreeSet::new(),
        moved: Vec::new(),
        restless: Vec::new(),
        slept: Vec::new(),
        has_shifted: false,
    };
    let groups = solve::solve(&mut problem, &mut walk, limits.preemption);
    let ByIndex { index, moved, restless, slept, has_shifted, .. } = walk;
    for class in restless.into_iter().chain(slept.into_iter().filter(|_| has_shifted)) {
        index.queue.wake(class);
    }
    for class in moved {
        index.queue.rewind(class);
    }
    index.proposed.extend(groups.iter().map(PlanGroup::request));
    groups
}

/// The index as a source of requests.
struct ByIndex<'i> {
    index: &'i mut Index,
    limits: &'i Limits,
    now: Timestamp,
    /// Nodes whose slots are in the problem.
    brought: BTreeSet<NodeNo>,
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
        let busy = self.index.queue.busy(tier);
        let mut tenants: Vec<TenantId> = busy.map(|no| self.index.tenant_name(no)).collect();
        tenants.sort_unstable();
        tenants
    }

    fn next(&mut self, tier: Tier, tenant: TenantId) -> Option<RequestId> {
        let tenant = self.index.tenant_number(tenant)?;
        self.index.queue.first(tenant, tier).map(|(_, request)| request)
    }

    fn bring(&mut self, problem: &mut Problem<'_>, id: RequestId) {
        let Some(class) = self.index.queue.find(id) else { return };
        let fresh: Vec<NodeNo> =
            self.index.nodes_for(class).filter(|node| self.brought.insert(*node)).collect();
        let names = fresh.into_iter().map(|node| self.index.shelves.name(node));
        problem.add_nodes(names.filter(|node| !self.limits.closed.contains(node)));
    }

    fn shifted(&mut self) {
        self.has_shifted = true;
    }

    fn tried(&mut self, state: &State, id: RequestId, trial: &Trial<'_>) {
        let Some(class) = self.index.queue.find(id) else { return };
        if trial.is_served {
            self.index.queue.advance(class);
            self.moved.push(class);
            return;
        }
        if trial.fate == Fate::Holds {
            // The next one of its kind may hold a reservation, too.
            self.index.queue.advance(class);
            self.moved.push(class);
            return;
        }
        self.index.queue.sleep(class);
        // Which of what was lent can be taken back together may change with the time alone.
        let is_sure = trial.is_lasting && trial.fate != Fate::Unsure && !trial.spent.is_over_lent;
        if !is_sure || self.index.queue.is_lone(class) {
            self.restless.push(class);
            return;
        }
        self.slept.push(class);
        if is_short_of_quota(self.index, state, trial, class) {
            self.index.short_of_quota.insert(class);
        }
        if trial.fate == Fate::Barren {
            self.index.barren.insert(class);
        }
        let key = *self.index.queue.key(class);
        let tenant = self.index.tenant_name(key.tenant);
        let may_take_back = state.tree.may_take_back(tenant);
        if key.tier > Tier::Opportunistic || may_take_back {
            self.index.watchers.insert(class);
        }
        if may_take_back {
            self.index.lenders.entry(state.tree.top(tenant)).or_default().insert(class);
        }
        if trial.spent.is_over_budget {
            self.index.short_of_budget = Some(self.now);
        }
    }
}

/// Whether more quota or budget could open something for the class.
fn is_short_of_quota(index: &Index, state: &State, trial: &Trial<'_>, class: ClassNo) -> bool {
    let family = index.queue.key(class).family;
    let (spec, tenant) = (index.families.spec(family), index.queue.key(class).tenant);
    let tenant = index.tenant_name(tenant);
    if state.tree.has_budget(tenant) {
        return true;
    }
    let count = u64::from(spec.count);
    let mut kinds = index.families.lots(family).iter().filter_map(|lot| index.shelves.kind(*lot));
    kinds.any(|kind| {
        let model = kind.capacity.model;
        let total = kind.capacity.gpu.checked_mul(count).unwrap_or(GpuMilli::MAX);
        let total = total.saturating_add(trial.reservations.reserved(tenant, model));
        total > trial.spent.room(state, tenant, model)
    })
}
