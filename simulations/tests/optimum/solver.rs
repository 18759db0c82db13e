//! The optimum of an instance, with its proof: branch and bound.
//!
//! The bound lets requests be split over pools and served in part. What can then be served is a
//! transversal matroid over slices asked for, so the best weight is that of serving the tiers from
//! the top, each as far as possible: `Σ (wₜ − wₜ₋₁) · flow(tiers ≥ t)` (Edmonds 1971, the greedy
//! algorithm on matroids). A flow is as large as its smallest cut, and with eight pools every cut
//! can be looked at: `min over A of Σ slices in A + Σ asked by whom A does not contain`. No way of
//! serving whole requests is better than the best of serving parts of them, so a branch whose bound
//! is not above what is known holds nothing better, and what is left at the end is the optimum.

use super::instance::{Ask, Instance, weight};
use sublet_protocol::requests::Tier;

/// Branches that a proof may take.
const BRANCHES_MAX: u64 = 5_000;

struct Search<'a> {
    asks: &'a [Ask],
    best: u32,
    branches: u64,
}

/// The best weight that can be served; nothing if the proof takes too long.
pub(crate) fn optimum(instance: &Instance) -> Option<u32> {
    let mut asks = instance.asks.clone();
    // The dear and large ones first: they leave the least choice.
    asks.sort_by_key(|ask| std::cmp::Reverse((weight(ask.tier), ask.count)));
    let mut search = Search { asks: &asks, best: 0, branches: 0 };
    let mut pools = instance.pools.clone();
    search.branch(0, 0, &mut pools).then_some(search.best)
}

impl Search<'_> {
    /// Tries everything from the `next` request on; whether it came to an end.
    fn branch(&mut self, next: usize, served: u32, pools: &mut Vec<u32>) -> bool {
        self.best = self.best.max(served);
        self.branches += 1;
        if self.branches > BRANCHES_MAX {
            return false;
        }
        let Some(ask) = self.asks.get(next).copied() else { return true };
        if served + bound(&self.asks[next..], pools) <= self.best {
            return true;
        }
        let fits = |pool: &usize| ask.pools & (1 << pool) != 0 && pools[*pool] >= ask.count;
        let mut places: Vec<usize> = (0..pools.len()).filter(fits).collect();
        places.sort_by_key(|pool| pools[*pool]);
        for pool in places {
            pools[pool] -= ask.count;
            let is_done = self.branch(next + 1, served + ask.weight(), pools);
            pools[pool] += ask.count;
            if !is_done {
                return false;
            }
        }
        self.branch(next + 1, served, pools)
    }
}

/// The weight that could be served if requests could be split.
pub(crate) fn bound(asks: &[Ask], pools: &[u32]) -> u32 {
    let from = |lowest: Tier| asks.iter().filter(move |ask| ask.tier >= lowest);
    let step = |lowest: Tier, below: u32| (weight(lowest) - below) * flow(from(lowest), pools);
    step(Tier::Reserved, weight(Tier::Standard))
        + step(Tier::Standard, weight(Tier::Opportunistic))
        + step(Tier::Opportunistic, 0)
}

/// How many slices can be given to these requests, in parts: the smallest cut.
fn flow<'a>(asks: impl Iterator<Item = &'a Ask>, pools: &[u32]) -> u32 {
    // By the pools it fits in, what is asked; a pool that is too small for a request is none.
    let mut asked = [0; 256];
    for ask in asks {
        let fits = |pool: &usize| ask.pools & (1 << pool) != 0 && pools[*pool] >= ask.count;
        let open: usize = (0..pools.len()).filter(fits).map(|pool| 1 << pool).sum();
        asked[open] += ask.count;
    }
    // What is asked by those whose pools all lie in a set: sums over subsets, one pool at a time.
    let mut within = asked;
    for pool in 0..pools.len() {
        for set in 0..1 << pools.len() {
            if set & (1 << pool) != 0 {
                within[set] += within[set ^ (1 << pool)];
            }
        }
    }
    let all: u32 = asked.iter().skip(1).sum();
    let cut = |set: usize| -> u32 {
        let cut_off: u32 =
            (0..pools.len()).filter(|pool| set & (1 << pool) != 0).map(|pool| pools[pool]).sum();
        // Without the set's slices only those are served who fit elsewhere.
        cut_off + all - (within[set] - asked[0])
    };
    (0..1 << pools.len()).map(cut).min().unwrap_or(0)
}
