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
    levels: [u64; LEVELS_MAX],
}

impl Standing {
    /// Behind everybody.
    pub const LAST: Standing = Standing { short: u64::MAX, levels: [u64::MAX; LEVELS_MAX] };

    /// With these levels, of which so many may be other than zero.
    #[inline]
    pub(super) fn of(levels: [u64; LEVELS_MAX], count: usize) -> Standing {
        let (mut short, mut place) = (0, 0);
        for level in &levels[..count] {
            // One after the other, each in as many bits as its first bit tells: that keeps the order,
            // and so does to cut it off after 64.
            if *level >= 1 << OWN_PLACES {
                short |= (SHARED | level >> 1) >> place;
                break;
            }
            short |= level << (u64::BITS - OWN_PLACES - 1) >> place;
            place += OWN_PLACES + 1;
            if place >= u64::BITS {
                break;
            }
        }
        Standing { short, levels }
    }

    /// A number that is never lower than that of one who stands before it.
    #[must_use]
    #[inline]
    pub const fn short(&self) -> u64 {
        self.short
    }
}

/// Begins a level on which more counts than what is used of its own.
const SHARED: u64 = 1 << 63;

/// What a standing is counted in: a millionth of a thousandth.
const SCALE: u128 = 1_000_000_000;
/// Shares above this count as this; above it a place for what is used of one's own.
const SHARE_MAX: u64 = (1 << 53) - 1;
const OWN_PLACES: u32 = 10;

/// Where the tenant stands `now`, with what `charges` has given away already.
#[must_use]
pub(crate) fn standing_with(
    tree: &Tree,
    charges: &Charges,
    tenant: TenantId,
    at: (Timestamp, Seconds),
) -> Standing {
    match tree.rows.number(tenant) {
        Some(no) => standing_of(tree, charges, no, at),
        None => Standing::LAST,
    }
}

/// Where the tenant stands now.
#[must_use]
pub fn standing(tree: &Tree, tenant: TenantId, at: (Timestamp, Seconds)) -> Standing {
    standing_with(tree, &Charges::NONE, tenant, at)
}

/// Where the tenant of a spot stands now.
#[must_use]
#[inline]
pub fn standing_at(tree: &Tree, spot: Spot, at: (Timestamp, Seconds)) -> Standing {
    standing_of(tree, &Charges::NONE, spot.member, at)
}

fn standing_of(tree: &Tree, charges: &Charges, no: u32, at: (Timestamp, Seconds)) -> Standing {
    // From the bottom of the tree up, then the other way round.
    let (mut levels, mut count, mut next) = ([0; LEVELS_MAX], 0, no);
    for level in &mut levels {
        let member = tree.rows.member(next);
        *level = match member.moving == 0 && charges.has_none_of(next) {
            true => member.used,
            false => moving(tree, charges, next, at),
        };
        (count, next) = (count + 1, member.parent);
        if next == NONE {
            break;
        }
    }
    levels[..count].reverse();
    Standing::of(levels, count)
}

/// One number for one level, of which more counts than what is used of its own.
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
