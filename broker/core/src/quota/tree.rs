//! The tree: who belongs to whom, quotas and terms, and the sums that follow from them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::{Quota, TenantTerms};
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::amounts::{Flow, Place, Sums, local, narrow, nominal, wide};
use super::charges::Charges;
use super::spending::Spending;

/// Most levels of the tree: a walk to the root is never longer.
pub const LEVELS_MAX: usize = 8;

const KNOWN: &str = "INV-12: a tenant of the tree exists";
const WITHIN: &str = "INV-2: sums of the tree stay within what can be written";

/// A tenant or group: its place, its terms and its sums.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Node {
    pub(super) parent: Option<TenantId>,
    pub(super) terms: TenantTerms,
    pub(super) quotas: BTreeMap<GpuModel, Quota>,
    pub(super) sums: BTreeMap<GpuModel, Sums>,
    pub(super) spending: Spending,
}

impl Node {
    /// The group it belongs to.
    #[must_use]
    pub const fn parent(&self) -> Option<TenantId> {
        self.parent
    }

    /// Its weight and budgets.
    #[must_use]
    pub const fn terms(&self) -> &TenantTerms {
        &self.terms
    }

    /// Its quotas, as they were set; models that are not listed have a quota of zero.
    #[must_use]
    pub const fn quotas(&self) -> &BTreeMap<GpuModel, Quota> {
        &self.quotas
    }

    /// Its quota for one model, as it was set.
    #[must_use]
    pub fn quota(&self, model: GpuModel) -> Quota {
        self.quotas.get(&model).copied().unwrap_or_default()
    }

    pub(super) const fn place(&self) -> Place {
        match self.parent {
            Some(_) => Place::Child,
            None => Place::Root,
        }
    }

    pub(super) fn sums(&self, model: GpuModel) -> Sums {
        self.sums.get(&model).copied().unwrap_or_default()
    }
}

/// When something changes, and by which rules of the moment it is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Timestamp,
    pub(crate) half_life: Seconds,
    pub(crate) entry_penalty: Seconds,
    /// The token counter; for a grant, the token that it takes.
    pub(crate) tokens: u64,
}

/// Why the sums change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A grant, which was judged.
    Grant,
    /// Anything else, which is not.
    Fact,
}

/// All tenants of a cell with their groups. A tenant that others belong to is a group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tree {
    pub(super) nodes: BTreeMap<TenantId, Node>,
}

/// By how much the amounts of a node change.
#[derive(Debug, Clone, Copy, Default)]
struct Change {
    subtree: i128,
    ceiling: i128,
    usage: i128,
}

impl Change {
    fn between(before: Flow, after: Flow) -> Change {
        Change {
            subtree: wide(after.lent) - wide(before.lent),
            ceiling: wide(after.lent_ceiling) - wide(before.lent_ceiling),
            usage: wide(after.overflow) - wide(before.overflow),
        }
    }

    const fn is_none(&self) -> bool {
        self.subtree == 0 && self.ceiling == 0 && self.usage == 0
    }

    fn apply(&self, sums: &mut Sums) {
        let add = |amount: &mut GpuMilli, by: i128| {
            let sum = u64::try_from(wide(*amount) + by).expect(WITHIN);
            *amount = GpuMilli::new(sum);
        };
        add(&mut sums.subtree, self.subtree);
        add(&mut sums.ceiling, self.ceiling);
        add(&mut sums.usage, self.usage);
    }
}

impl Tree {
    /// One tenant or group.
    #[must_use]
    pub fn node(&self, id: TenantId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// All of them.
    pub(crate) const fn nodes(&self) -> &BTreeMap<TenantId, Node> {
        &self.nodes
    }

    /// The tenant and its groups, from below.
    pub(crate) fn path(&self, id: TenantId) -> impl Iterator<Item = (TenantId, &Node)> {
        let start = self.nodes.get(&id).map(|node| (id, node));
        std::iter::successors(start, |(_, node)| {
            let parent = node.parent?;
            self.nodes.get(&parent).map(|node| (parent, node))
        })
    }

    /// How many groups it is in, itself counted: 1 without a group.
    pub(crate) fn level(&self, id: TenantId) -> usize {
        self.path(id).count()
    }

    /// Whether `id` is `group` or below it.
    pub(crate) fn is_within(&self, id: TenantId, group: TenantId) -> bool {
        self.path(id).any(|(on_path, _)| on_path == group)
    }

    /// Levels from `top` down to the lowest tenant below it, itself counted. Looks at all tenants.
    pub(crate) fn height(&self, top: TenantId) -> usize {
        let below = self.nodes.keys().filter_map(|id| {
            let steps = self.path(*id).position(|(on_path, _)| on_path == top)?;
            Some(steps + 1)
        });
        below.max().unwrap_or(0)
    }

    /// Models that the tenant or a group it is in has amounts of.
    pub(crate) fn models(&self, id: TenantId) -> BTreeSet<GpuModel> {
        self.path(id).flat_map(|(_, node)| node.sums.keys().copied()).collect()
    }

    /// Adds a tenant that holds nothing yet.
    pub(crate) fn insert(&mut self, id: TenantId, parent: Option<TenantId>) {
        self.nodes.insert(id, Node { parent, ..Node::default() });
    }

    pub(super) fn node_mut(&mut self, id: TenantId) -> &mut Node {
        self.nodes.get_mut(&id).expect(KNOWN)
    }

    /// Sets a quota.
    pub(crate) fn set_quota(&mut self, id: TenantId, model: GpuModel, quota: Quota, at: &Moment) {
        self.edit(id, model, (at, Cause::Fact), |known, _| *known = quota);
    }

    /// The tenant's own clusters have this much more, or less, on offer or on lease.
    pub(crate) fn change_hardware(
        &mut self,
        id: TenantId,
        model: GpuModel,
        (more, less): (GpuMilli, GpuMilli),
        at: &Moment,
    ) {
        self.edit(id, model, (at, Cause::Fact), |_, sums| {
            let grown = sums.hardware.checked_add(more).and_then(|sum| sum.checked_sub(less));
            sums.hardware = grown.expect(WITHIN);
        });
    }

    /// The tenant holds this much more, by a grant.
    pub(crate) fn take(&mut self, id: TenantId, model: GpuModel, amount: GpuMilli, at: &Moment) {
        let change = Change { usage: wide(amount), ..Change::default() };
        self.edit(id, model, (at, Cause::Grant), |_, sums| change.apply(sums));
    }

    /// The tenant holds this much less.
    pub(crate) fn give_back(
        &mut self,
        id: TenantId,
        model: GpuModel,
        amount: GpuMilli,
        at: &Moment,
    ) {
        let change = Change { usage: -wide(amount), ..Change::default() };
        self.edit(id, model, (at, Cause::Fact), |_, sums| change.apply(sums));
    }

    /// Changes quota or amounts of one tenant, and then the sums of its groups.
    fn edit(
        &mut self,
        id: TenantId,
        model: GpuModel,
        (at, cause): (&Moment, Cause),
        edit: impl FnOnce(&mut Quota, &mut Sums),
    ) {
        let up = self.node_mut(id).edit(model, (at, cause), |quota, sums| {
            let before = (nominal(quota, sums.hardware), quota.nominal);
            edit(quota, sums);
            let after = (nominal(quota, sums.hardware), quota.nominal);
            let own = Change {
                subtree: wide(after.0) - wide(before.0),
                ceiling: wide(after.1) - wide(before.1),
                usage: 0,
            };
            own.apply(sums);
        });
        let parent = self.node_mut(id).parent;
        self.propagate(parent, model, up, (at, cause));
    }

    /// Tells the groups from `next` upwards what changed below them.
    fn propagate(
        &mut self,
        mut next: Option<TenantId>,
        model: GpuModel,
        mut change: Change,
        (at, cause): (&Moment, Cause),
    ) {
        while let Some(id) = next.filter(|_| !change.is_none()) {
            let node = self.node_mut(id);
            change = node.edit(model, (at, cause), |_, sums| change.apply(sums));
            next = node.parent;
        }
    }

    /// Puts the tenant, with all below it, into another group. The caller has checked that it is not
    /// above that group.
    pub(crate) fn set_parent(&mut self, id: TenantId, parent: Option<TenantId>, at: &Moment) {
        let node = self.node_mut(id);
        let old = node.parent;
        let flows: Vec<(GpuModel, Flow)> = node
            .sums
            .iter()
            .map(|(model, sums)| (*model, sums.flow(&node.quota(*model))))
            .collect();
        for (model, flow) in &flows {
            self.node_mut(id).advance(*model, at);
            let gone = Change::between(*flow, Flow::default());
            self.propagate(old, *model, gone, (at, Cause::Fact));
        }
        self.move_spending(id, parent, at);
        self.node_mut(id).parent = parent;
        for (model, flow) in &flows {
            // Its new place may be judged by other limits than its last.
            self.node_mut(id).mark_over(*model, at.tokens);
            let come = Change::between(Flow::default(), *flow);
            self.propagate(parent, *model, come, (at, Cause::Fact));
        }
    }

    /// What may be granted to the tenant now, with what `charges` has given away already.
    ///
    /// This is [`Tree::available`], except that what a tenant keeps for itself can be granted to it
    /// even when its group is over-admitted: nothing of the group is used by that.
    pub(crate) fn room(&self, id: TenantId, model: GpuModel, charges: &Charges) -> GpuMilli {
        narrow(self.room_by(id, model, charges, BorrowLimits::Kept))
    }

    /// The same if nobody's borrowing were limited.
    pub(crate) fn room_without_borrow_limits(
        &self,
        id: TenantId,
        model: GpuModel,
        charges: &Charges,
    ) -> GpuMilli {
        narrow(self.room_by(id, model, charges, BorrowLimits::LeftOut))
    }

    fn room_by(
        &self,
        id: TenantId,
        model: GpuModel,
        charges: &Charges,
        limits: BorrowLimits,
    ) -> i128 {
        let Some(node) = self.nodes.get(&id) else { return 0 };
        let (quota, sums) = (node.quota(model), charges.on(id, model, node));
        let Some(parent) = node.parent else {
            return (wide(sums.subtree) - wide(sums.usage)).max(0);
        };
        let kept = wide(sums.local(&quota).saturating_sub(sums.usage));
        let shared = self.room_by(parent, model, charges, limits);
        let shared = match limits {
            BorrowLimits::Kept => {
                sums.headroom(&quota, Place::Child).map_or(shared, |left| shared.min(left.max(0)))
            }
            BorrowLimits::LeftOut => shared,
        };
        kept + shared
    }

    /// `available(n)` of the design; negative if more is held than there is.
    #[must_use]
    pub fn available(&self, id: TenantId, model: GpuModel) -> i128 {
        let Some(node) = self.nodes.get(&id) else { return 0 };
        let (quota, sums) = (node.quota(model), node.sums(model));
        let Some(parent) = node.parent else { return wide(sums.subtree) - wide(sums.usage) };
        let shared = self.available(parent, model);
        let shared = sums.headroom(&quota, Place::Child).map_or(shared, |left| shared.min(left));
        wide(sums.local(&quota).saturating_sub(sums.usage)) + shared
    }

    /// The most the tenant could hold if nobody else held anything.
    pub(crate) fn lendable(&self, id: TenantId, model: GpuModel) -> GpuMilli {
        self.most(id, model, |sums| sums.subtree)
    }

    /// The same if every nominal amount counted as it was set.
    pub(crate) fn ceiling(&self, id: TenantId, model: GpuModel) -> GpuMilli {
        self.most(id, model, |sums| sums.ceiling)
    }

    fn most(&self, id: TenantId, model: GpuModel, of: fn(&Sums) -> GpuMilli) -> GpuMilli {
        let Some(node) = self.nodes.get(&id) else { return GpuMilli::ZERO };
        let (quota, whole) = (node.quota(model), of(&node.sums(model)));
        let Some(parent) = node.parent else { return whole };
        let kept = local(&quota, whole);
        let lent = whole.saturating_sub(kept);
        let shared = self.most(parent, model, of);
        let limited =
            quota.borrow_limit.map_or(shared, |limit| shared.min(lent.saturating_add(limit)));
        kept.saturating_add(limited)
    }

    /// How much the tenant or group holds beyond what is its own: what it borrows of its group, or,
    /// without a group, what it holds over its quota.
    pub(crate) fn beyond_own(&self, id: TenantId, model: GpuModel) -> GpuMilli {
        let Some(node) = self.nodes.get(&id) else { return GpuMilli::ZERO };
        match node.parent {
            Some(_) => node.sums(model).borrowed(),
            None => self.excess(id, model).unwrap_or_default(),
        }
    }

    /// By how much the tenant or group has more than it may have, if it does.
    pub(crate) fn excess(&self, id: TenantId, model: GpuModel) -> Option<GpuMilli> {
        let node = self.nodes.get(&id)?;
        let headroom = node.sums(model).headroom(&node.quota(model), node.place())?;
        (headroom < 0).then(|| narrow(-headroom))
    }

    /// Everyone who has more than they may have.
    pub(crate) fn over_admitted(&self) -> BTreeMap<(TenantId, GpuModel), GpuMilli> {
        let all = self.nodes.iter().flat_map(|(id, node)| {
            node.sums.keys().filter_map(|model| Some(((*id, *model), self.excess(*id, *model)?)))
        });
        all.collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BorrowLimits {
    Kept,
    LeftOut,
}

impl Node {
    /// Changes quota or amounts of one model; what its group sees of it.
    fn edit(
        &mut self,
        model: GpuModel,
        (at, cause): (&Moment, Cause),
        edit: impl FnOnce(&mut Quota, &mut Sums),
    ) -> Change {
        let place = self.place();
        let mut quota = self.quota(model);
        let known = quota;
        let sums = self.sums.entry(model).or_default();
        let (before, flow) = (*sums, sums.flow(&quota));
        edit(&mut quota, sums);
        let (was, is) = (before.counted(place), sums.counted(place));
        if was != is {
            sums.past.advance(at.now, at.half_life, was);
        }
        match cause {
            Cause::Grant => {
                sums.raised = at.tokens;
                sums.past.add(is.saturating_sub(was), at.entry_penalty, at.half_life);
            }
            Cause::Fact => {
                let (left, had) = (sums.headroom(&quota, place), before.headroom(&known, place));
                let is_less = left.unwrap_or(i128::MAX) < had.unwrap_or(i128::MAX);
                if is_less && left.is_some_and(|left| left < 0) {
                    sums.binds_after = at.tokens;
                }
            }
        }
        let change = Change::between(flow, sums.flow(&quota));
        if quota != known {
            self.quotas.insert(model, quota);
        }
        change
    }

    /// Writes down the past before what counts is another thing.
    fn advance(&mut self, model: GpuModel, at: &Moment) {
        let place = self.place();
        if let Some(sums) = self.sums.get_mut(&model) {
            let counted = sums.counted(place);
            sums.past.advance(at.now, at.half_life, counted);
        }
    }

    fn mark_over(&mut self, model: GpuModel, tokens: u64) {
        let (place, quota) = (self.place(), self.quota(model));
        if let Some(sums) = self.sums.get_mut(&model)
            && sums.headroom(&quota, place).is_some_and(|left| left < 0)
        {
            sums.binds_after = tokens;
        }
    }
}
