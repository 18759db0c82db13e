//! Weighted dominant share: how much of what is shared a tenant takes, for its weight.

use sublet_protocol::ids::TenantId;
use sublet_protocol::quotas::Weight;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::amounts::{Place, Sums};
use super::charges::Charges;
use super::decay::PAST_PLACES;
use super::rows::{NONE, Spot};
use super::tree::{LEVELS_MAX, Tree};

/// `share(n)` of the design, without the past: thousandths of what can be lent to it that it
/// borrows, of the model where that is most, by its weight. `u64::MAX` for a weight of zero that
/// borrows; zero for a tenant without a group, which borrows from nobody.
#[must_use]
pub fn share(tree: &Tree, id: TenantId) -> u64 {
    let Some(no) = tree.rows.number(id) else { return 0 };
    let member = tree.rows.member(no);
    if member.parent == NONE {
        return 0;
    }
    let models = tree.rows.of(no).map(|(spot, row)| {
        let borrowed = u128::from(row.sums.borrowed().get());
        let lendable = tree.lendable_at(Spot { member: member.parent, ..spot });
        weighed(borrowed, (lendable, member.terms.weight), 1_000)
    });
    models.max().unwrap_or(0)
}

/// `scale × amount / whole / weight`, rounded down; the most if nothing divides it.
fn weighed(amount: u128, (whole, weight): (GpuMilli, Weight), scale: u128) -> u64 {
    if amount == 0 {
        return 0;
    }
    let entitled = u128::from(whole.get()) * u128::from(weight.get());
    let of_one = u128::from(Weight::ONE.get());
    let share = (amount * scale * of_one).checked_div(entitled);
    share.and_then(|share| u64::try_from(share).ok()).unwrap_or(u64::MAX)
}

/// Who is served before whom: the lowest first.
///
/// From the tenant's topmost group down to itself, one number a level: two tenants are told apart by
/// the shares of the first groups in which they differ. Each number is the weighted share with the
/// decayed past of the model where it is most; among those that borrow nothing, what they use of
/// their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// Follows from the levels, and is ordered as they are: it decides most comparisons.
    short: u64,
    /// Whether something of the levels is missing in it. Of two that are alike but for that, the one
    /// with more stands behind.
    is_cut: bool,
    levels: [u64; LEVELS_MAX],
}

impl Standing {
    /// Behind everybody.
    pub const LAST: Standing =
        Standing { short: u64::MAX, is_cut: true, levels: [u64::MAX; LEVELS_MAX] };

    /// With these levels, of which so many may be other than zero.
    #[inline]
    pub(super) fn of(levels: [u64; LEVELS_MAX], count: usize) -> Standing {
        // The upper levels, one after the other, each in as many bits as its first bit tells: that
        // keeps the order, and so does to cut it off.
        let (mut short, mut left) = (0, u64::BITS);
        for level in &levels[..count.min(LEVELS_SHORT)] {
            if *level >= 1 << OWN_PLACES {
                short |= (SHARED | level >> 1) >> (u64::BITS - left);
                return Standing { short, is_cut: true, levels };
            }
            left -= OWN_PLACES + 1;
            short |= level << left;
        }
        let is_cut = levels[LEVELS_SHORT..].iter().any(|level| *level > 0);
        Standing { short, is_cut, levels }
    }

    /// Where it stands in two numbers, those that stand alike by a number of theirs: one who comes
    /// before another has the lower ones, or the same. The two lowest bits of the first may be dropped.
    #[must_use]
    #[inline]
    pub fn short(&self, number: u32) -> (u64, u32) {
        (self.short, if self.is_cut { u32::MAX } else { number })
    }
}

/// So many levels fit into the short form of a standing, if no level is shared.
const LEVELS_SHORT: usize = 5;
/// Begins a level on which more counts than what is used of its own.
const SHARED: u64 = 1 << 63;

/// What a standing is counted in: a millionth of a thousandth.
const SCALE: u128 = 1_000_000_000;
/// Shares above this count as this; above it a place for what is used of one's own.
const SHARE_MAX: u64 = (1 << 53) - 1;
const OWN_PLACES: u32 = 10;

/// Whose standings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// All tenants.
    All,
    /// Tenants of one topmost group. Its own level tells none of them apart and is left out, so that
    /// what one of them is given does not change where the others stand.
    OneTop,
}

/// Where the tenant stands `now`, with what `charges` has given away already.
#[must_use]
pub(crate) fn standing_with(
    tree: &Tree,
    charges: &Charges,
    (tenant, among): (TenantId, Among),
    at: (Timestamp, Seconds),
) -> Standing {
    match tree.rows.number(tenant) {
        Some(no) => standing_of(tree, charges, (no, among), at),
        None => Standing::LAST,
    }
}

/// Where the tenant stands now.
#[must_use]
pub fn standing(tree: &Tree, tenant: TenantId, at: (Timestamp, Seconds)) -> Standing {
    standing_with(tree, Charges::EMPTY, (tenant, Among::All), at)
}

/// Where the tenant of a spot stands now.
#[must_use]
#[inline]
pub fn standing_at(tree: &Tree, spot: Spot, among: Among, at: (Timestamp, Seconds)) -> Standing {
    standing_of(tree, Charges::EMPTY, (spot.member, among), at)
}

fn standing_of(
    tree: &Tree,
    charges: &Charges,
    (no, among): (u32, Among),
    at: (Timestamp, Seconds),
) -> Standing {
    let (mut path, mut count, mut next) = ([NONE; LEVELS_MAX], 0, no);
    for place in &mut path {
        (*place, count) = (next, count + 1);
        next = tree.rows.member(next).parent;
        if next == NONE {
            break;
        }
    }
    let mut levels = [0; LEVELS_MAX];
    for (level, no) in levels.iter_mut().zip(path[..count].iter().rev()) {
        let member = tree.rows.member(*no);
        let is_told = among == Among::All || member.parent != NONE;
        *level = match member.moving == 0 && charges.has_none_of(*no) {
            true => member.used,
            false if is_told => moving(tree, charges, *no, at),
            false => 0,
        };
    }
    Standing::of(levels, count)
}

/// One number for one level, of which more counts than what is used of its own.
#[inline(never)]
fn moving(tree: &Tree, charges: &Charges, no: u32, at: (Timestamp, Seconds)) -> u64 {
    let own = tree.rows.of(no).filter(|(_, row)| row.is_counted).map(|(spot, _)| spot);
    let given = charges.given(no).filter(|spot| !tree.rows.row(*spot).is_counted);
    own.chain(given).map(|spot| entry(tree, charges, spot, at)).max().unwrap_or(0)
}

/// One number for one model at one level.
fn entry(
    tree: &Tree,
    charges: &Charges,
    spot: Spot,
    (now, half_life): (Timestamp, Seconds),
) -> u64 {
    let (member, row) = (tree.rows.member(spot.member), tree.rows.row(spot));
    let (place, known) = (member.place(), row.sums.counted(member.place()));
    let mut sums = row.sums;
    sums.usage = charges.usage(spot, row);
    let used = sums.of_own(place);
    if !sums.is_shared(place) {
        return used;
    }
    // Whoever has no weight stands behind those who have, also before its first grant.
    if member.terms.weight.get() == 0 {
        return (SHARE_MAX << OWN_PLACES) + used;
    }
    let whole = match place {
        Place::Root => sums.subtree,
        Place::Child => tree.lendable_at(Spot { member: member.parent, ..spot }),
    };
    // The past is that of what is in the tree; what a plan gives has none yet.
    let counted = sums.counted(place);
    let past = sums.past.now(now, half_life, known);
    let both = (u128::from(counted.get().min(1 << 44)) << PAST_PLACES) + past;
    let share = weighed_fine(both, (whole, member.terms.weight)).min(SHARE_MAX);
    (share << OWN_PLACES) + used
}

impl Sums {
    /// Whether it takes of what is shared, or would with the next that it takes: what it may still
    /// take of its own comes before all that is borrowed.
    fn is_shared(&self, place: Place) -> bool {
        match place {
            Place::Root => true,
            Place::Child => self.usage >= self.subtree,
        }
    }

    /// What a standing counts of it that changes with it only: what it uses of its own, and whether
    /// there is more to count.
    #[inline]
    pub(super) fn standing(&self, place: Place, weight: Weight) -> (u64, bool) {
        let counts = self.counted(place) > GpuMilli::ZERO || !self.past.is_none();
        (self.of_own(place), self.is_shared(place) && (counts || weight.get() == 0))
    }

    /// Thousandths of its own that it uses, at most all.
    fn of_own(&self, place: Place) -> u64 {
        let (used, whole) = (self.usage.get().min(self.subtree.get()), self.subtree.get());
        match place {
            Place::Root => 0,
            Place::Child => match used.checked_mul(1_000) {
                Some(used) => used.checked_div(whole).unwrap_or(0),
                None => {
                    let used = u128::from(used) * 1_000 / u128::from(whole);
                    u64::try_from(used).unwrap_or(1_000)
                }
            },
        }
    }
}

fn weighed_fine(amount: u128, entitled: (GpuMilli, Weight)) -> u64 {
    // The binary places are dropped after the division, so that one GPU of many still counts.
    let share = weighed_wide(amount, entitled);
    share.map_or(u64::MAX, |share| u64::try_from(share >> PAST_PLACES).unwrap_or(u64::MAX))
}

/// As [`weighed`], for an amount with binary places.
fn weighed_wide(amount: u128, (whole, weight): (GpuMilli, Weight)) -> Option<u128> {
    if amount == 0 {
        return Some(0);
    }
    let entitled = u128::from(whole.get()) * u128::from(weight.get());
    (amount * SCALE * u128::from(Weight::ONE.get())).checked_div(entitled)
}
