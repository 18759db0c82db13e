//! The running leases of a cell, as far as ending some of them for others goes: where those stand that
//! have run long enough, whose losses are known, and who was told to go already.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::Timestamp;

use super::leases::{Leases, Standing};
use super::{NONE, PoolNo};
use crate::preemption;
use crate::state::{Lease, LeaseStage, State};

/// Leases of one model, cluster and tier.
pub(crate) type PoolKey = (GpuModel, ClusterId, Tier);

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    leases: Leases,
    numbers: BTreeMap<PoolKey, PoolNo>,
    keys: Vec<PoolKey>,
    /// Those that reported a checkpoint.
    reported: BTreeSet<LeaseId>,
    /// Those that were preempted and have not ended.
    preempted: BTreeSet<LeaseId>,
    /// Those that end for another reason.
    ending: BTreeSet<LeaseId>,
}

impl Running {
    pub(super) fn new(seed: u64, now: Timestamp) -> Running {
        Running {
            leases: Leases::new(seed, now),
            numbers: BTreeMap::new(),
            keys: Vec::new(),
            reported: BTreeSet::new(),
            preempted: BTreeSet::new(),
            ending: BTreeSet::new(),
        }
    }

    /// Brings a lease up to date. Its pool, if it could be ended at once.
    pub(super) fn note(&mut self, state: &State, id: LeaseId) -> Option<PoolKey> {
        let lease = state.leases.get(&id);
        keep(&mut self.preempted, id, lease.is_some_and(is_preempted));
        let is_ending = lease.is_some_and(|lease| !lease.is_running() && !is_preempted(lease));
        keep(&mut self.ending, id, is_ending);
        let running = lease.filter(|lease| lease.is_running());
        let has_reported = running.is_some_and(|lease| lease.checkpoint_at.is_some());
        keep(&mut self.reported, id, has_reported);
        let guarded_until = running.and_then(|lease| preemption::spared_until(state, lease));
        let Some((lease, guarded_until)) = running.zip(guarded_until) else {
            self.leases.remove(id);
            return None;
        };
        let terms = &lease.terms;
        let key = (terms.model, terms.cluster, terms.tier());
        let keys = &mut self.keys;
        let pool = *self.numbers.entry(key).or_insert_with(|| {
            keys.push(key);
            PoolNo(u32::try_from(keys.len() - 1).unwrap_or(NONE))
        });
        let standing = Standing {
            pool,
            // The newest gives way first.
            rank: u64::MAX - lease.granted_at.get(),
            gpu: u32::try_from(terms.gpu_total().get()).unwrap_or(u32::MAX),
            guarded_until,
        };
        self.leases.put(id, standing).then_some(key)
    }

    /// Time has passed: gives the pools in which a lease has run long enough by now.
    pub(super) fn advance(&mut self, now: Timestamp) -> BTreeSet<PoolKey> {
        let (keys, mut gained) = (&self.keys, BTreeSet::new());
        self.leases.advance(now, |pool| {
            gained.insert(keys[pool.at()]);
        });
        gained
    }

    /// The leases that have run long enough, by pool.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (PoolKey, PoolNo)> + '_ {
        let pools = self.numbers.iter().map(|(key, pool)| (*key, *pool));
        pools.filter(|(_, pool)| self.leases.gives_way(*pool))
    }

    /// The leases of a pool that have run long enough.
    pub(crate) fn leases(&self, pool: PoolNo) -> impl Iterator<Item = LeaseId> + '_ {
        self.leases.giving_way(pool).map(|(lease, _)| lease)
    }

    /// Running leases that reported a checkpoint.
    pub(crate) fn reported(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.reported.iter().copied()
    }

    /// Leases that were preempted and have not ended.
    pub(crate) fn preempted(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.preempted.iter().copied()
    }

    /// Leases that are ending for another reason.
    pub(crate) fn ending(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.ending.iter().copied()
    }
}

/// Whether the lease was preempted.
pub(crate) const fn is_preempted(lease: &Lease) -> bool {
    matches!(lease.stage, LeaseStage::Ending { cause: EndReason::Preempted, .. })
}

fn keep(set: &mut BTreeSet<LeaseId>, lease: LeaseId, is_in: bool) {
    if is_in {
        set.insert(lease);
    } else {
        set.remove(&lease);
    }
}
