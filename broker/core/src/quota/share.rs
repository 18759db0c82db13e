//! Weighted dominant share: how much of what is shared a tenant takes, for its weight.

use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::Weight;
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::amounts::{Place, Sums};
use super::charges::Charges;
use super::decay::PAST_PLACES;
use super::tree::{LEVELS_MAX, Node, Tree};

/// `share(n)` of the design, without the past: thousandths of what can be lent to it that it
/// borrows, of the model where that is most, by its weight. `u64::MAX` for a weight of zero that
/// borrows; zero for a tenant without a group, which borrows from nobody.
#[must_use]
pub fn share(tree: &Tree, id: TenantId) -> u64 {
    let Some(node) = tree.node(id) else { return 0 };
    let Some(parent) = node.parent else { return 0 };
    let models = node.sums.iter().map(|(model, sums)| {
        let borrowed = u128::from(sums.borrowed().get());
        weighed(borrowed, (tree.lendable(parent, *model), node.terms.weight), 1_000)
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
pub struct Standing([u64; LEVELS_MAX]);

impl Standing {
    /// Behind everybody.
    pub const LAST: Standing = Standing([u64::MAX; LEVELS_MAX]);
}

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
    (now, half_life): (Timestamp, Seconds),
) -> Standing {
    let path: Vec<(TenantId, &Node)> = tree.path(tenant).take(LEVELS_MAX).collect();
    if path.is_empty() {
        return Standing::LAST;
    }
    let mut levels = [0; LEVELS_MAX];
    for (level, (id, node)) in levels.iter_mut().zip(path.iter().rev()) {
        let own = node.sums.keys().copied();
        let models = own.chain(charges.models(*id).filter(|m| !node.sums.contains_key(m)));
        let shares = models.map(|model| {
            let sums = charges.on(*id, model, node);
            entry(tree, node, (model, &sums), (now, half_life))
        });
        *level = shares.max().unwrap_or(0);
    }
    Standing(levels)
}

/// Where the tenant stands now.
#[must_use]
pub fn standing(tree: &Tree, tenant: TenantId, at: (Timestamp, Seconds)) -> Standing {
    standing_with(tree, &Charges::NONE, tenant, at)
}

/// One number for one model at one level.
fn entry(
    tree: &Tree,
    node: &Node,
    (model, sums): (GpuModel, &Sums),
    (now, half_life): (Timestamp, Seconds),
) -> u64 {
    let (whole, is_shared) = match node.parent {
        None => (sums.subtree, true),
        // What it may still take of its own comes before all that is borrowed.
        Some(parent) => (tree.lendable(parent, model), sums.usage >= sums.subtree),
    };
    let share = if is_shared {
        // The past is that of what is in the tree; what a plan gives has none yet.
        let counted = sums.counted(node.place());
        let known = node.sums(model).counted(node.place());
        let past = sums.past.now(now, half_life, known);
        let both = (u128::from(counted.get().min(1 << 44)) << PAST_PLACES) + past;
        // Whoever has no weight stands behind those who have, also before its first grant.
        match node.terms.weight.get() {
            0 => SHARE_MAX,
            _some => weighed_fine(both, (whole, node.terms.weight)).min(SHARE_MAX),
        }
    } else {
        0
    };
    let used = match node.place() {
        Place::Root => 0,
        Place::Child => of_own(sums),
    };
    (share << OWN_PLACES) + used
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

/// Thousandths of its own that it uses, at most all.
fn of_own(sums: &Sums) -> u64 {
    let used = u128::from(sums.usage.get().min(sums.subtree.get())) * 1_000;
    let share = used.checked_div(u128::from(sums.subtree.get())).unwrap_or(0);
    u64::try_from(share).unwrap_or(1_000)
}
