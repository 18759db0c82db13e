//! Families: requests that ask for the same but for how long and how urgently, and the lots whose
//! slices could serve them.

use std::collections::BTreeMap;

use sublet_protocol::ids::TenantId;
use sublet_protocol::requests::RequestSpec;

use super::lots::Kind;
use super::shelves::Shelves;
use super::{ClassNo, FamilyNo, LotNo, NONE};
use crate::fit;
use crate::matching::problem::Shape;
use crate::state::State;

/// Families without a request that are remembered, besides as many as there are with one.
const EMPTY_MAX: usize = 1_024;

#[derive(Debug, Clone)]
struct Family {
    /// One of the specs, which stands for all.
    spec: RequestSpec,
    lots: Vec<LotNo>,
    classes: Vec<ClassNo>,
}

/// The families of a cell's waiting requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Families {
    entries: Vec<Family>,
    by_shape: BTreeMap<Shape, FamilyNo>,
    /// By lot: the families that its slices could serve.
    by_lot: Vec<Vec<FamilyNo>>,
    empty: usize,
}

impl Families {
    /// The family of a spec, a new one if need be.
    pub(super) fn of(
        &mut self,
        state: &State,
        shelves: &Shelves,
        (tenant, spec): (TenantId, &RequestSpec),
    ) -> FamilyNo {
        let shape = Shape::of(state, tenant, spec);
        if let Some(known) = self.by_shape.get(&shape) {
            return *known;
        }
        let no = FamilyNo(u32::try_from(self.entries.len()).unwrap_or(NONE));
        let could = |lot: &LotNo| {
            shelves.kind(*lot).is_some_and(|kind| fit::could_serve(state, spec, kind))
        };
        let lots: Vec<LotNo> = shelves.known_lots().filter(could).collect();
        for lot in &lots {
            self.of_lot(*lot).push(no);
        }
        self.entries.push(Family { spec: spec.clone(), lots, classes: Vec::new() });
        self.by_shape.insert(shape, no);
        self.empty += 1;
        no
    }

    /// Whether so many families hold no request that it is time to build them anew.
    pub(super) fn are_stale(&self) -> bool {
        self.empty > self.entries.len() / 2 + EMPTY_MAX
    }

    fn of_lot(&mut self, lot: LotNo) -> &mut Vec<FamilyNo> {
        if lot.at() >= self.by_lot.len() {
            self.by_lot.resize_with(lot.at() + 1, Vec::new);
        }
        &mut self.by_lot[lot.at()]
    }

    /// A lot has a new meaning: finds the families that it could serve.
    pub(super) fn add_lot(&mut self, state: &State, lot: LotNo, kind: &Kind) {
        for no in std::mem::take(self.of_lot(lot)) {
            self.entries[no.at()].lots.retain(|known| *known != lot);
        }
        let mut served = Vec::new();
        for (family, no) in self.entries.iter_mut().zip(0..) {
            if fit::could_serve(state, &family.spec, kind) {
                family.lots.push(lot);
                served.push(FamilyNo(no));
            }
        }
        *self.of_lot(lot) = served;
    }

    pub(super) fn add_class(&mut self, family: FamilyNo, class: ClassNo) {
        let classes = &mut self.entries[family.at()].classes;
        self.empty -= usize::from(classes.is_empty());
        classes.push(class);
    }

    pub(super) fn remove_class(&mut self, family: FamilyNo, class: ClassNo) {
        let classes = &mut self.entries[family.at()].classes;
        classes.retain(|known| *known != class);
        self.empty += usize::from(classes.is_empty());
    }

    /// The lots that could serve a family.
    pub(super) fn lots(&self, family: FamilyNo) -> &[LotNo] {
        &self.entries[family.at()].lots
    }

    /// The spec that stands for a family.
    pub(super) fn spec(&self, family: FamilyNo) -> &RequestSpec {
        &self.entries[family.at()].spec
    }

    /// The classes that a lot could serve.
    pub(super) fn classes_of_lot(&self, lot: LotNo) -> impl Iterator<Item = ClassNo> + '_ {
        let families = self.by_lot.get(lot.at()).into_iter().flatten();
        families.flat_map(|no| self.entries[no.at()].classes.iter().copied())
    }
}
