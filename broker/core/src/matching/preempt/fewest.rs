//! The fewest victims of one candidate set: in their order until there is enough, then those that turn
//! out not to be needed are given back, the last first.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::units::GpuMilli;

use super::{Choice, Room, Victim};
use crate::quota::{Charges, Tree};

/// What quotas lack of a grant while victims are chosen for it.
#[derive(Clone)]
pub(super) struct Short<'a> {
    tree: &'a Tree,
    /// Quotas once those are gone that were preempted or are picked.
    charges: Charges,
    whose: (TenantId, GpuModel),
    gpu: GpuMilli,
    lack: u128,
}

impl<'a> Short<'a> {
    /// For a grant of `gpu`; `charges` are quotas once all that was preempted is gone.
    pub(super) fn of(
        tree: &'a Tree,
        charges: &Charges,
        whose: (TenantId, GpuModel),
        gpu: GpuMilli,
    ) -> Short<'a> {
        let lack = charges.lack(tree, whose, gpu);
        Short { tree, charges: charges.clone(), whose, gpu, lack }
    }

    /// Whether nothing is lacking.
    pub(super) const fn is_met(&self) -> bool {
        self.lack == 0
    }

    /// Counts the victim as gone.
    pub(super) fn give_back(&mut self, victim: &Victim) {
        self.charges.give_back(self.tree, (victim.tenant, self.whose.1), victim.gpu);
        self.lack = self.charges.lack(self.tree, self.whose, self.gpu);
    }

    fn hold(&mut self, victim: &Victim) {
        self.charges.hold(self.tree, (victim.tenant, self.whose.1), victim.gpu);
        self.lack = self.charges.lack(self.tree, self.whose, self.gpu);
    }
}

/// What a set of victims is measured by: slices and quota.
struct Sum<'a> {
    slices: usize,
    short: Option<Short<'a>>,
}

impl Sum<'_> {
    fn is_enough(&self, count: usize) -> bool {
        self.slices >= count && self.short.as_ref().is_none_or(Short::is_met)
    }

    fn end(&mut self, victim: &Victim) {
        self.slices += victim.slices.len();
        if let Some(short) = &mut self.short {
            short.give_back(victim);
        }
    }

    fn spare(&mut self, victim: &Victim) {
        self.slices -= victim.slices.len();
        if let Some(short) = &mut self.short {
            short.hold(victim);
        }
    }

    /// Whether there is enough without the victim, with so many more slices.
    fn is_spare(&mut self, victim: &Victim, count: usize, more: usize) -> bool {
        self.spare(victim);
        let is_enough = self.is_enough(count.saturating_sub(more));
        self.end(victim);
        is_enough
    }
}

/// The first victims that suffice together with the free slots, less those that are not needed;
/// nobody if no victim is needed. `short` is what quotas lack, if they do.
///
/// Whom `is_fair` does not let go together with those before it is left out; whether that happened is
/// the second answer.
pub(super) fn fewest<'v>(
    room: Room,
    victims: impl Iterator<Item = &'v Victim>,
    count: usize,
    short: Option<Short<'_>>,
    is_fair: &dyn Fn(&[Victim]) -> bool,
) -> (Option<Choice>, bool) {
    let mut members = room.free;
    members.truncate(count);
    let mut sum = Sum { slices: members.len(), short };
    if sum.is_enough(count) {
        return (None, false);
    }
    let (mut picked, mut is_over_lent): (Vec<Victim>, bool) = (Vec::new(), false);
    for victim in victims {
        let frees = sum.slices < count && !victim.slices.is_empty();
        // What gives back quota that is there already is not ended for that.
        let before = sum.short.as_ref().map(|short| short.lack);
        sum.end(victim);
        let helps = sum.short.as_ref().map(|short| short.lack) < before;
        if !frees && !helps {
            sum.spare(victim);
            continue;
        }
        picked.push(victim.clone());
        if !is_fair(&picked) {
            picked.pop();
            sum.spare(victim);
            is_over_lent = true;
            continue;
        }
        if sum.is_enough(count) {
            break;
        }
    }
    if !sum.is_enough(count) {
        return (None, is_over_lent);
    }
    // Give back in reverse: the last one completed the set, earlier ones may be superfluous.
    for at in (0..picked.len()).rev() {
        if sum.is_spare(&picked[at], count, 0) {
            let spared = picked.remove(at);
            sum.spare(&spared);
        }
    }
    // Nobody is ended while as much is free, or would be by those who go for quota, even if others have
    // reserved it.
    let barred = |victim: &Victim| room.barred.get(&victim.place.lease).copied().unwrap_or(0);
    let reserved = room.reserved + picked.iter().map(barred).sum::<usize>();
    if picked.iter().any(|victim| sum.is_spare(victim, count, reserved - barred(victim))) {
        return (None, is_over_lent);
    }
    // One that was spared may have made the others fair.
    if !is_fair(&picked) {
        return (None, true);
    }
    // A victim goes whole, so all it frees is used before free slots are.
    let mut freed: Vec<SliceId> =
        picked.iter().flat_map(|victim| &victim.slices).copied().collect();
    freed.truncate(count);
    members.truncate(count - freed.len());
    (Some(Choice { victims: picked, freed, members, pick: None }), is_over_lent)
}
