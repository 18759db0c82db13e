//! Where a tree keeps its tenants and their amounts: in arrays, found by ordinals.
//!
//! Tenants and GPU models get an ordinal when they are first heard of, in that order, and keep it.
//! Two trees that hold the same are equal whatever their ordinals, and nothing that is decided may
//! come to depend on one. A name is looked up once, where somebody asks; from there up to the root
//! everything is a place in an array.

use std::collections::BTreeMap;

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::{Quota, TenantTerms};
use sublet_protocol::units::GpuMilli;

use super::amounts::{Place, Sums};
use super::spending::Spending;
use super::tree::Tree;

/// No ordinal.
pub(super) const NONE: u32 = u32::MAX;

/// A tenant and a GPU model, by their ordinals in one tree and its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    pub(super) member: u32,
    /// [`NONE`] if the tree has never heard of the model.
    pub(super) model: u32,
}

/// An ordinal as a place in an array.
pub(super) fn at(ordinal: u32) -> usize {
    usize::try_from(ordinal).unwrap_or(usize::MAX)
}

/// The ordinal of a place in an array. Arrays of a tree have far fewer entries than there are
/// ordinals: each takes a name that somebody has set.
pub(super) fn ordinal(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(NONE)
}

/// A tenant or group.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) id: TenantId,
    /// The ordinal of its group.
    pub(super) parent: u32,
    pub(super) terms: TenantTerms,
    pub(super) spending: Spending,
    /// The largest `used` of its rows.
    pub(super) used: u64,
    /// How many of its rows are `is_moving`.
    pub(super) moving: u32,
}

impl Member {
    pub(super) fn new(id: TenantId, parent: u32) -> Member {
        let (terms, spending) = (TenantTerms::default(), Spending::default());
        Member { id, parent, terms, spending, used: 0, moving: 0 }
    }

    pub(super) const fn place(&self) -> Place {
        match self.parent {
            NONE => Place::Root,
            _group => Place::Child,
        }
    }
}

/// What a member has of one model.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) quota: Quota,
    pub(super) sums: Sums,
    /// Whether a quota was ever set.
    pub(super) is_set: bool,
    /// Whether there were ever amounts.
    pub(super) is_counted: bool,
    /// What of its own is used, as a standing counts it; kept up with the sums.
    pub(super) used: u64,
    /// Whether a standing counts more than that, which moves with time and with what others bring.
    pub(super) is_moving: bool,
}

impl Row {
    /// Of a model that the member has nothing of.
    pub(super) const NOTHING: Row = Row {
        quota: Quota::of(GpuMilli::ZERO),
        sums: Sums::NOTHING,
        is_set: false,
        is_counted: false,
        used: 0,
        is_moving: false,
    };
}

/// The arrays.
#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    numbers: BTreeMap<TenantId, u32>,
    members: Vec<Member>,
    model_numbers: BTreeMap<GpuModel, u32>,
    models: Vec<GpuModel>,
    /// How many models the table has room for.
    width: usize,
    /// By member and model: the place of the row, or [`NONE`].
    table: Vec<u32>,
    rows: Vec<Row>,
}

/// Models that the smallest table has room for.
const WIDTH_MIN: usize = 4;

impl Rows {
    pub(super) fn number(&self, id: TenantId) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    pub(super) fn spot(&self, id: TenantId, model: GpuModel) -> Option<Spot> {
        let model = self.model_numbers.get(&model).copied().unwrap_or(NONE);
        self.number(id).map(|member| Spot { member, model })
    }

    pub(super) const fn models(&self) -> &BTreeMap<GpuModel, u32> {
        &self.model_numbers
    }

    /// Tenants with their ordinals, in the order of their names.
    pub(super) fn ids(&self) -> impl Iterator<Item = (TenantId, u32)> + '_ {
        self.numbers.iter().map(|(id, no)| (*id, *no))
    }

    #[inline]
    pub(super) fn member(&self, no: u32) -> &Member {
        &self.members[at(no)]
    }

    #[inline]
    pub(super) fn member_mut(&mut self, no: u32) -> &mut Member {
        &mut self.members[at(no)]
    }

    /// The member's group, itself counted first, then theirs.
    pub(super) fn above(&self, no: u32) -> impl Iterator<Item = u32> + '_ {
        let start = (no != NONE).then_some(no);
        std::iter::successors(start, |no| {
            let parent = self.member(*no).parent;
            (parent != NONE).then_some(parent)
        })
    }

    /// Adds a member, or makes the one of this name anew.
    pub(super) fn insert(&mut self, id: TenantId, parent: u32) {
        if let Some(known) = self.number(id) {
            self.members[at(known)] = Member::new(id, parent);
            for place in &self.table[at(known) * self.width..][..self.width] {
                if let Some(row) = self.rows.get_mut(at(*place)) {
                    *row = Row::NOTHING;
                }
            }
            return;
        }
        self.numbers.insert(id, ordinal(self.members.len()));
        self.members.push(Member::new(id, parent));
        self.table.resize(self.members.len() * self.width, NONE);
    }

    /// The ordinal of a model, a new one if need be.
    pub(super) fn model(&mut self, model: GpuModel) -> u32 {
        if let Some(known) = self.model_numbers.get(&model) {
            return *known;
        }
        let no = ordinal(self.models.len());
        if self.models.len() == self.width {
            let wider = (self.width * 2).max(WIDTH_MIN);
            let mut table = vec![NONE; self.members.len() * wider];
            for (fresh, old) in table.chunks_mut(wider).zip(self.table.chunks(self.width.max(1))) {
                fresh[..old.len()].copy_from_slice(old);
            }
            (self.width, self.table) = (wider, table);
        }
        self.models.push(model);
        self.model_numbers.insert(model, no);
        no
    }

    #[inline]
    fn place(&self, Spot { member, model }: Spot) -> usize {
        // Of a model that is not known this is beyond the end.
        self.table.get(at(member) * self.width + at(model)).map_or(usize::MAX, |row| at(*row))
    }

    #[inline]
    pub(super) fn row(&self, spot: Spot) -> &Row {
        self.rows.get(self.place(spot)).unwrap_or(&Row::NOTHING)
    }

    /// The row of a model that is known, a new one if need be.
    #[inline]
    pub(super) fn row_mut(&mut self, spot: Spot) -> &mut Row {
        let mut place = self.place(spot);
        if place >= self.rows.len() {
            place = self.fresh_row(spot);
        }
        &mut self.rows[place]
    }

    #[cold]
    fn fresh_row(&mut self, Spot { member, model }: Spot) -> usize {
        self.table[at(member) * self.width + at(model)] = ordinal(self.rows.len());
        self.rows.push(Row::NOTHING);
        self.rows.len() - 1
    }

    /// What the member has amounts of, in no order that means anything.
    #[inline]
    pub(super) fn of(&self, member: u32) -> impl Iterator<Item = (Spot, &Row)> + '_ {
        let table = &self.table[at(member) * self.width..][..self.width];
        let spots = (0..).map(move |model| Spot { member, model });
        let rows = table.iter().map(|place| self.rows.get(at(*place)));
        spots.zip(rows).filter_map(|(spot, row)| Some((spot, row?)))
    }

    /// The same in the order of the models' names.
    pub(super) fn by_name(&self, member: u32) -> impl Iterator<Item = (GpuModel, &Row)> + '_ {
        let rows = self
            .model_numbers
            .iter()
            .map(move |(name, model)| (*name, self.row(Spot { member, model: *model })));
        rows.filter(|(_, row)| row.is_set || row.is_counted)
    }

    /// Changes a row of a model that is known, a new one if need be, and keeps up what standings look
    /// at.
    #[inline]
    pub(super) fn change<T>(
        &mut self,
        spot: Spot,
        change: impl FnOnce(&mut Row, &Member) -> T,
    ) -> T {
        let mut place = self.place(spot);
        if place >= self.rows.len() {
            place = self.fresh_row(spot);
        }
        let (member, row) = (&mut self.members[at(spot.member)], &mut self.rows[place]);
        let changed = change(row, member);
        let (used, is_moving) = row.sums.standing(member.place(), member.terms.weight);
        let was_moving = std::mem::replace(&mut row.is_moving, is_moving);
        let before = std::mem::replace(&mut row.used, used);
        member.moving = member.moving + u32::from(is_moving) - u32::from(was_moving);
        if used >= member.used {
            member.used = used;
        } else if before == member.used {
            let most = self.of(spot.member).map(|(_, row)| row.used).max();
            self.member_mut(spot.member).used = most.unwrap_or(0);
        }
        changed
    }

    /// Keeps up what standings look at of a member, after its place or its terms have changed.
    pub(super) fn renew_all(&mut self, member: u32) {
        for model in 0..ordinal(self.models.len()) {
            let spot = Spot { member, model };
            if self.row(spot).is_counted {
                self.change(spot, |_, _| ());
            }
        }
    }
}

impl Tree {
    /// Where a tenant's amounts of a model are kept; nothing if there is no such tenant.
    #[must_use]
    pub fn spot(&self, id: TenantId, model: GpuModel) -> Option<Spot> {
        self.rows.spot(id, model)
    }
}
