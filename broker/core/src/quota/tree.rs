//! The tree: who belongs to whom, quotas and terms, and the sums that follow from them.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::Quota;
use sublet_protocol::units::GpuMilli;

use super::amounts::{Flow, Place, Sums, local, nominal, wide};
use super::change::{Change, Moment, WITHIN};
use super::charges::Charges;
use super::node::Node;
use super::rows::{NONE, Row, Rows, Spot};

/// Most levels of the tree: a walk to the root is never longer.
pub const LEVELS_MAX: usize = 8;

const KNOWN: &str = "INV-12: a tenant of the tree exists";

/// All tenants of a cell with their groups. A tenant that others belong to is a group.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    pub(super) rows: Rows,
}

impl Tree {
    /// The tenant and its groups, from below.
    pub(crate) fn path(&self, id: TenantId) -> impl Iterator<Item = (TenantId, Node<'_>)> {
        let above = self.rows.above(self.rows.number(id).unwrap_or(NONE));
        above.map(|no| (self.rows.member(no).id, Node { rows: &self.rows, no }))
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
        let below = self.nodes().filter_map(|(id, _)| {
            let steps = self.path(id).position(|(on_path, _)| on_path == top)?;
            Some(steps + 1)
        });
        below.max().unwrap_or(0)
    }

    /// Models that the tenant or a group it is in has amounts of.
    pub(crate) fn models(&self, id: TenantId) -> BTreeSet<GpuModel> {
        self.path(id).flat_map(|(_, node)| node.sums().map(|(model, _)| model)).collect()
    }

    /// Adds a tenant that holds nothing yet, in a group that is there.
    pub fn insert(&mut self, id: TenantId, parent: Option<TenantId>) {
        let parent = parent.map_or(NONE, |parent| self.number(parent));
        self.rows.insert(id, parent);
    }

    pub(super) fn number(&self, id: TenantId) -> u32 {
        self.rows.number(id).expect(KNOWN)
    }

    /// As [`Tree::spot`], of a tenant that exists; the model has an ordinal from now on.
    fn known_spot(&mut self, id: TenantId, model: GpuModel) -> Spot {
        Spot { member: self.number(id), model: self.rows.model(model) }
    }

    /// Sets a quota.
    pub fn set_quota(&mut self, id: TenantId, model: GpuModel, quota: Quota, at: &Moment) {
        let spot = self.known_spot(id, model);
        self.edit(spot, at, |known, _| *known = quota);
    }

    /// The tenant's own clusters have this much more, or less, on offer or on lease.
    pub(crate) fn change_hardware(
        &mut self,
        id: TenantId,
        model: GpuModel,
        (more, less): (GpuMilli, GpuMilli),
        at: &Moment,
    ) {
        let spot = self.known_spot(id, model);
        self.edit(spot, at, |_, sums| {
            let grown = sums.hardware.checked_add(more).and_then(|sum| sum.checked_sub(less));
            sums.hardware = grown.expect(WITHIN);
        });
    }

    /// The tenant holds this much more, by a grant.
    pub(crate) fn take(&mut self, id: TenantId, model: GpuModel, amount: GpuMilli, at: &Moment) {
        let spot = self.known_spot(id, model);
        self.take_at(spot, amount, at);
    }

    /// The tenant holds this much less.
    pub(crate) fn give_back(
        &mut self,
        id: TenantId,
        model: GpuModel,
        amount: GpuMilli,
        at: &Moment,
    ) {
        let spot = self.known_spot(id, model);
        self.give_back_at(spot, amount, at);
    }

    /// A tenant holds this much more of a model, by a grant, and its groups what it borrows for that.
    pub fn take_at(&mut self, spot: Spot, amount: GpuMilli, at: &Moment) {
        let (mut spot, mut amount) = (spot, amount);
        loop {
            let parent;
            (amount, parent) = self
                .rows
                .change(spot, |row, member| (row.grow(amount, member.place(), at), member.parent));
            if amount == GpuMilli::ZERO || parent == NONE {
                return;
            }
            spot.member = parent;
        }
    }

    /// A tenant holds this much less of a model, and its groups what it had borrowed of that.
    pub fn give_back_at(&mut self, spot: Spot, amount: GpuMilli, at: &Moment) {
        let (mut spot, mut amount) = (spot, amount);
        loop {
            let parent;
            (amount, parent) = self.rows.change(spot, |row, member| {
                (row.shrink(amount, member.place(), at), member.parent)
            });
            if amount == GpuMilli::ZERO || parent == NONE {
                return;
            }
            spot.member = parent;
        }
    }

    /// Changes quota or hardware of one tenant, and then the sums of its groups.
    fn edit(&mut self, spot: Spot, at: &Moment, edit: impl FnOnce(&mut Quota, &mut Sums)) {
        let edit = |quota: &mut Quota, sums: &mut Sums| {
            let before = (nominal(quota, sums.hardware), quota.nominal);
            edit(quota, sums);
            let after = (nominal(quota, sums.hardware), quota.nominal);
            let own = Change {
                subtree: wide(after.0) - wide(before.0),
                ceiling: wide(after.1) - wide(before.1),
                usage: 0,
            };
            own.apply(sums);
        };
        let up = self.rows.change(spot, |row, member| row.edit(member.place(), at, edit));
        self.propagate(self.rows.member(spot.member).parent, spot.model, up, at);
    }

    /// Tells the groups from `next` upwards what changed below them.
    fn propagate(&mut self, next: u32, model: u32, change: Change, at: &Moment) {
        let (mut next, mut change) = (next, change);
        while next != NONE && !change.is_none() {
            let spot = Spot { member: next, model };
            change = self.rows.change(spot, |row, member| {
                row.edit(member.place(), at, |_, sums| change.apply(sums))
            });
            next = self.rows.member(next).parent;
        }
    }

    /// Puts the tenant, with all below it, into another group. The caller has checked that it is not
    /// above that group.
    pub(crate) fn set_parent(&mut self, id: TenantId, parent: Option<TenantId>, at: &Moment) {
        let (no, to) = (self.number(id), parent.map_or(NONE, |parent| self.number(parent)));
        let (from, place) = (self.rows.member(no).parent, self.rows.member(no).place());
        let counted = self.rows.of(no).filter(|(_, row)| row.is_counted);
        let flows: Vec<(Spot, Flow)> =
            counted.map(|(spot, row)| (spot, row.sums.flow(&row.quota))).collect();
        for (spot, flow) in &flows {
            // The past is written down before what counts is another thing.
            let sums = &mut self.rows.row_mut(*spot).sums;
            sums.past.advance(at.now, at.half_life, sums.counted(place));
            let gone = Change::between(*flow, Flow::default());
            self.propagate(from, spot.model, gone, at);
        }
        self.move_spending(no, to, at);
        self.rows.member_mut(no).parent = to;
        self.rows.renew_all(no);
        for (spot, flow) in &flows {
            // Its new place may be judged by other limits than its last.
            self.rows.row_mut(*spot).mark_over(place_below(to), at.tokens);
            let come = Change::between(Flow::default(), *flow);
            self.propagate(to, spot.model, come, at);
        }
    }

    /// What may be granted to the tenant now, with what `charges` has given away already.
    ///
    /// This is [`Tree::available`], except that what a tenant keeps for itself can be granted to it
    /// even when its group is over-admitted: nothing of the group is used by that.
    pub(crate) fn room(&self, id: TenantId, model: GpuModel, charges: &Charges) -> GpuMilli {
        self.room_by(id, model, charges, BorrowLimits::Kept)
    }

    /// The same if nobody's borrowing were limited.
    pub(crate) fn room_without_borrow_limits(
        &self,
        id: TenantId,
        model: GpuModel,
        charges: &Charges,
    ) -> GpuMilli {
        self.room_by(id, model, charges, BorrowLimits::LeftOut)
    }

    fn room_by(
        &self,
        id: TenantId,
        model: GpuModel,
        charges: &Charges,
        limits: BorrowLimits,
    ) -> GpuMilli {
        let Some(mut spot) = self.spot(id, model) else { return GpuMilli::ZERO };
        // With `room(n) = kept(n) + min(limit(n), room(parent))`, of what its topmost group has left,
        // `x`, the tenant may have `min(x + own, most)`.
        let (mut own, mut most) = (GpuMilli::ZERO, GpuMilli::MAX);
        loop {
            let row = self.rows.row(spot);
            let usage = charges.usage(spot, row);
            let parent = self.rows.member(spot.member).parent;
            if parent == NONE {
                return own.saturating_add(row.sums.subtree.saturating_sub(usage)).min(most);
            }
            own = own.saturating_add(row.sums.local(&row.quota).saturating_sub(usage));
            if limits == BorrowLimits::Kept {
                most = most.min(own.saturating_add(row.may_borrow(usage)));
            }
            spot.member = parent;
        }
    }

    /// Whether so much may be granted now: whether it is at most the room that there is. Looks no
    /// further up than the tenant borrows for it.
    pub fn has_room(&self, spot: Spot, amount: GpuMilli) -> bool {
        self.covers(spot, amount, Charges::EMPTY)
    }

    /// The same, with what `charges` has given away already.
    pub(crate) fn covers(&self, spot: Spot, amount: GpuMilli, charges: &Charges) -> bool {
        let (mut spot, mut missing) = (spot, amount);
        loop {
            let row = self.rows.row(spot);
            let usage = charges.usage(spot, row);
            let parent = self.rows.member(spot.member).parent;
            if parent == NONE {
                return missing <= row.sums.subtree.saturating_sub(usage);
            }
            let kept = row.sums.local(&row.quota).saturating_sub(usage);
            if missing <= kept {
                return true;
            }
            missing = missing.saturating_sub(kept);
            if missing > row.may_borrow(usage) {
                return false;
            }
            spot.member = parent;
        }
    }

    /// `available(n)` of the design; negative if more is held than there is.
    #[must_use]
    pub fn available(&self, id: TenantId, model: GpuModel) -> i128 {
        self.spot(id, model).map_or(0, |spot| self.available_at(spot))
    }

    fn available_at(&self, spot: Spot) -> i128 {
        let Row { quota, sums, .. } = self.rows.row(spot);
        let parent = self.rows.member(spot.member).parent;
        if parent == NONE {
            return wide(sums.subtree) - wide(sums.usage);
        }
        let shared = self.available_at(Spot { member: parent, ..spot });
        let shared = sums.headroom(quota, Place::Child).map_or(shared, |left| shared.min(left));
        wide(sums.local(quota).saturating_sub(sums.usage)) + shared
    }

    /// The most the tenant could hold if nobody else held anything.
    pub(crate) fn lendable(&self, id: TenantId, model: GpuModel) -> GpuMilli {
        self.spot(id, model).map_or(GpuMilli::ZERO, |spot| self.lendable_at(spot))
    }

    pub(super) fn lendable_at(&self, spot: Spot) -> GpuMilli {
        self.most(spot, |sums| sums.subtree)
    }

    /// The same if every nominal amount counted as it was set.
    pub(crate) fn ceiling(&self, id: TenantId, model: GpuModel) -> GpuMilli {
        self.spot(id, model).map_or(GpuMilli::ZERO, |spot| self.most(spot, |sums| sums.ceiling))
    }

    fn most(&self, spot: Spot, of: fn(&Sums) -> GpuMilli) -> GpuMilli {
        let Row { quota, sums, .. } = self.rows.row(spot);
        let (parent, whole) = (self.rows.member(spot.member).parent, of(sums));
        if parent == NONE {
            return whole;
        }
        let kept = local(quota, whole);
        let lent = whole.saturating_sub(kept);
        let shared = self.most(Spot { member: parent, ..spot }, of);
        let limited =
            quota.borrow_limit.map_or(shared, |limit| shared.min(lent.saturating_add(limit)));
        kept.saturating_add(limited)
    }

    /// How much the tenant or group holds beyond what is its own: what it borrows of its group, or,
    /// without a group, what it holds over its quota.
    pub(crate) fn beyond_own(&self, id: TenantId, model: GpuModel) -> GpuMilli {
        let Some(node) = self.node(id) else { return GpuMilli::ZERO };
        match node.place() {
            Place::Child => node.row(model).sums.borrowed(),
            Place::Root => self.excess(id, model).unwrap_or_default(),
        }
    }

    /// By how much the tenant or group has more than it may have, if it does.
    pub(crate) fn excess(&self, id: TenantId, model: GpuModel) -> Option<GpuMilli> {
        let node = self.node(id)?;
        node.row(model).excess(node.place())
    }

    /// Everyone who has more than they may have.
    pub(crate) fn over_admitted(&self) -> BTreeMap<(TenantId, GpuModel), GpuMilli> {
        let all = self.nodes().flat_map(|(id, node)| {
            let excess = move |row: &Row| row.excess(node.place());
            node.sums().filter_map(move |(model, row)| Some(((id, model), excess(row)?)))
        });
        all.collect()
    }
}

/// The place of who is in this group, or in none.
const fn place_below(parent: u32) -> Place {
    match parent {
        NONE => Place::Root,
        _group => Place::Child,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BorrowLimits {
    Kept,
    LeftOut,
}
