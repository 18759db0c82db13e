//! How the amounts of one tenant or group change, and what its group sees of that.

use sublet_protocol::quotas::Quota;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::amounts::{Flow, Place, Sums, narrow, wide};
use super::rows::Row;

pub(super) const WITHIN: &str = "INV-2: sums of the tree stay within what can be written";

/// When something changes, and by which rules of the moment it is counted.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Ledger time.
    pub now: Timestamp,
    /// After so long half of the past is forgotten.
    pub half_life: Seconds,
    /// As if it had been used for so long, whatever is granted counts at once.
    pub entry_penalty: Seconds,
    /// The token counter; for a grant, the token that it takes.
    pub tokens: u64,
}

/// By how much the amounts of a node change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Change {
    pub(super) subtree: i128,
    pub(super) ceiling: i128,
    pub(super) usage: i128,
}

impl Change {
    pub(super) fn between(before: Flow, after: Flow) -> Change {
        Change {
            subtree: wide(after.lent) - wide(before.lent),
            ceiling: wide(after.lent_ceiling) - wide(before.lent_ceiling),
            usage: wide(after.overflow) - wide(before.overflow),
        }
    }

    pub(super) const fn is_none(&self) -> bool {
        self.subtree == 0 && self.ceiling == 0 && self.usage == 0
    }

    pub(super) fn apply(&self, sums: &mut Sums) {
        let add = |amount: &mut GpuMilli, by: i128| {
            let sum = u64::try_from(wide(*amount) + by).expect(WITHIN);
            *amount = GpuMilli::new(sum);
        };
        add(&mut sums.subtree, self.subtree);
        add(&mut sums.ceiling, self.ceiling);
        add(&mut sums.usage, self.usage);
    }
}

impl Row {
    /// What of its group's it may still use, beside what is its own and can be lent.
    pub(super) fn may_borrow(&self, usage: GpuMilli) -> GpuMilli {
        let Some(limit) = self.quota.borrow_limit else { return GpuMilli::MAX };
        let kept = self.sums.local(&self.quota);
        let most = self.sums.subtree.saturating_sub(kept).saturating_add(limit);
        most.saturating_sub(usage.saturating_sub(kept))
    }

    pub(super) fn excess(&self, place: Place) -> Option<GpuMilli> {
        let headroom = self.sums.headroom(&self.quota, place)?;
        (headroom < 0).then(|| narrow(-headroom))
    }

    /// Changes quota or amounts, not by a grant; what its group sees of it.
    pub(super) fn edit(
        &mut self,
        place: Place,
        at: &Moment,
        edit: impl FnOnce(&mut Quota, &mut Sums),
    ) -> Change {
        let (known, before) = (self.quota, self.sums);
        edit(&mut self.quota, &mut self.sums);
        self.is_counted = true;
        self.is_set |= self.quota != known;
        let (quota, sums) = (&self.quota, &mut self.sums);
        let (was, is) = (before.counted(place), sums.counted(place));
        if was != is {
            sums.past.advance(at.now, at.half_life, was);
        }
        let (left, had) = (sums.headroom(quota, place), before.headroom(&known, place));
        let is_less = left.unwrap_or(i128::MAX) < had.unwrap_or(i128::MAX);
        if is_less && left.is_some_and(|left| left < 0) {
            sums.binds_after = at.tokens;
        }
        Change::between(before.flow(&known), sums.flow(quota))
    }

    pub(super) fn mark_over(&mut self, place: Place, tokens: u64) {
        if self.excess(place).is_some() {
            self.sums.binds_after = tokens;
        }
    }

    /// A grant of so much; what of it is beyond what is kept, and taken from the group.
    #[inline]
    pub(super) fn grow(&mut self, more: GpuMilli, place: Place, at: &Moment) -> GpuMilli {
        let kept = self.sums.local(&self.quota);
        let sums = &mut self.sums;
        let (was, over) = (sums.counted(place), sums.usage.saturating_sub(kept));
        sums.usage = sums.usage.checked_add(more).expect(WITHIN);
        let is = sums.counted(place);
        if was != is {
            sums.past.advance(at.now, at.half_life, was);
            sums.past.add(is.saturating_sub(was), at.entry_penalty, at.half_life);
        }
        sums.raised = at.tokens;
        self.is_counted = true;
        sums.usage.saturating_sub(kept).saturating_sub(over)
    }

    /// So much is given back; what of it goes back to the group.
    #[inline]
    pub(super) fn shrink(&mut self, less: GpuMilli, place: Place, at: &Moment) -> GpuMilli {
        let kept = self.sums.local(&self.quota);
        let sums = &mut self.sums;
        let (was, over) = (sums.counted(place), sums.usage.saturating_sub(kept));
        sums.usage = sums.usage.checked_sub(less).expect(WITHIN);
        if was != sums.counted(place) {
            sums.past.advance(at.now, at.half_life, was);
        }
        self.is_counted = true;
        over.saturating_sub(sums.usage.saturating_sub(kept))
    }
}
