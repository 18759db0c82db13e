//! The leases that may be ended for others, and what that would free where: found once per plan, by an
//! index or by a look at all leases, and once for all requests that fit the same slices.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, NodeId, TenantId};
use sublet_protocol::requests::{Placement, RequestSpec};
use sublet_protocol::units::GpuMilli;

use super::index::{PoolKey, Running, is_preempted};
use super::problem::Fit;
use crate::fit::{self, Candidate};
use crate::preemption::{self, Medians, Order, Place};
use crate::reclaim::{self, Claimant};
use crate::state::{Lease, Request, State, StateView};

/// Most leases that one plan looks at to see what they would free; a look that has begun is ended.
const LOOKS_MAX: usize = 1_000_000;
/// Most leases that one plan looks at for the quota that they hold: each look is dearer.
const QUOTA_LOOKS_MAX: usize = 200_000;
/// Most leases of which it is remembered what they would free.
const REMEMBERED_MAX: usize = 200_000;

/// Slices that can serve one request together: alike, and as close as asked.
pub(super) type Site = (ClusterId, GpuModel, GpuMilli, Option<NodeId>, Option<u16>);

/// Where a slice stands, as far as the placement cares.
pub(super) fn site(placement: Placement, candidate: &Candidate) -> Site {
    let (slice, capacity) = (&candidate.slice, &candidate.capacity);
    let node = match placement {
        Placement::Cluster => None,
        Placement::Node | Placement::Island => Some(slice.node),
    };
    let island = match placement {
        Placement::Cluster | Placement::Node => None,
        Placement::Island => Some(capacity.island),
    };
    (slice.cluster, capacity.model, capacity.gpu, node, island)
}

/// A lease that may be ended, and what of it the request could use at a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) place: Place,
    /// What ends with it of quotas: whose it is, and how much of its model.
    pub(super) tenant: TenantId,
    pub(super) gpu: GpuMilli,
    pub(super) slices: Vec<SliceId>,
    /// What it would free elsewhere, or where nothing may be put.
    pub(super) elsewhere: Vec<SliceId>,
}

impl Victim {
    /// One that gives back quota and no slice.
    pub(super) fn of_quota(place: Place, lease: &Lease) -> Victim {
        let (tenant, gpu) = (lease.terms.tenant, lease.terms.gpu_total());
        Victim { place, tenant, gpu, slices: Vec::new(), elsewhere: Vec::new() }
    }
}

/// The victims of a site, in the order in which they go.
#[derive(Debug, Default)]
pub(super) struct Victims {
    pub(super) in_order: Vec<Victim>,
    /// How many slices all of them would free here.
    pub(super) slices: usize,
}

/// Nodes on which nothing new may be put.
pub(super) type Closed = BTreeSet<(ClusterId, NodeId)>;

/// What could be freed for a request.
#[derive(Debug, Default)]
pub(super) struct Sites {
    /// Sites in order.
    pub(super) at: BTreeMap<Site, Victims>,
    /// All leases that may be ended, in the order in which they go, wherever they are.
    pub(super) places: Vec<Place>,
    holders: OnceCell<Holders>,
}

/// By model and topmost group: who holds something of it and may be ended, in their order, with the
/// cluster where each is.
type Holders = BTreeMap<(GpuModel, TenantId), Vec<(ClusterId, Victim)>>;

impl Sites {
    pub(super) const fn of(at: BTreeMap<Site, Victims>, places: Vec<Place>) -> Sites {
        Sites { at, places, holders: OnceCell::new() }
    }

    /// Who may be ended and holds something of a model below the topmost group, in their order: whose end
    /// may give back quota there. Nobody is ended for that on `closed` nodes, which are the same in
    /// the whole plan.
    pub(super) fn holders(
        &self,
        state: &State,
        closed: &Closed,
        (model, top): (GpuModel, TenantId),
    ) -> &[(ClusterId, Victim)] {
        let holders = self.holders.get_or_init(|| {
            let mut holders = Holders::new();
            for place in &self.places {
                let Some(lease) = state.leases.get(&place.lease) else { continue };
                let terms = &lease.terms;
                let is_closed = |slice: SliceId| closed.contains(&(slice.cluster, slice.node));
                if terms.members.iter().any(|member| is_closed(member.slice)) {
                    continue;
                }
                let holders = holders.entry((terms.model, state.tree.top(terms.tenant)));
                let victim = Victim::of_quota(*place, lease);
                holders.or_default().push((terms.cluster, victim));
            }
            holders
        });
        holders.get(&(model, top)).map_or(&[], Vec::as_slice)
    }
}

/// For whom the same leases may be ended for the same slices: of those that may take back what was lent,
/// for requests of one tenant and priority only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Wish {
    fit: Fit,
    lender: Option<(TenantId, u8)>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Endable<'a> {
    view: StateView<'a>,
    /// What an index knows, which has heard of the time of the view.
    running: Option<&'a Running>,
    /// Without one: leases that have run long enough, by pool.
    looked_up: OnceCell<BTreeMap<PoolKey, Vec<LeaseId>>>,
    medians: OnceCell<Medians>,
    remembered: RefCell<(BTreeMap<Wish, Rc<Sites>>, usize)>,
    looks: Cell<usize>,
    quota_looks: Cell<usize>,
}

impl<'a> Endable<'a> {
    /// By an index, or by a look at all leases when someone asks.
    pub(super) fn of(view: StateView<'a>, running: Option<&'a Running>) -> Endable<'a> {
        let (looked_up, medians, looks) = (OnceCell::new(), OnceCell::new(), Cell::new(0));
        let (remembered, quota_looks) = (RefCell::default(), Cell::new(0));
        Endable { view, running, looked_up, medians, remembered, looks, quota_looks }
    }

    fn looked_up(&self) -> &BTreeMap<PoolKey, Vec<LeaseId>> {
        let StateView { state, now } = self.view;
        self.looked_up.get_or_init(|| {
            let mut pools: BTreeMap<PoolKey, Vec<LeaseId>> = BTreeMap::new();
            for (id, lease) in &state.leases {
                if preemption::spared_until(state, lease).is_some_and(|until| until <= now) {
                    let terms = &lease.terms;
                    pools.entry((terms.model, terms.cluster, terms.tier())).or_default().push(*id);
                }
            }
            pools
        })
    }

    /// Whether leases that have run long enough could be ended for the claimant, be they what they may.
    pub(super) fn has_any(&self, claimant: &Claimant) -> bool {
        let state = self.view.state;
        let takes_back = state.tree.may_take_back(claimant.tenant);
        let is_below =
            |(_, _, of): PoolKey| takes_back || preemption::gives_way_to(state, of, claimant.tier);
        match self.running {
            Some(running) => running.pools().any(|(key, _)| is_below(key)),
            None => self.looked_up().keys().any(|key| is_below(*key)),
        }
    }

    /// Leases that have run long enough in the pools that are `wanted`.
    fn leases(&self, wanted: impl Fn(&PoolKey) -> bool) -> Vec<LeaseId> {
        match self.running {
            Some(running) => {
                let pools = running.pools().filter(|(key, _)| wanted(key));
                pools.flat_map(|(_, pool)| running.leases(pool)).collect()
            }
            None => {
                let pools = self.looked_up().iter().filter(|(key, _)| wanted(key));
                pools.flat_map(|(_, leases)| leases).copied().collect()
            }
        }
    }

    /// Leases that were preempted and have not ended.
    pub(super) fn preempted(&self) -> Vec<LeaseId> {
        match self.running {
            Some(running) => running.preempted().collect(),
            None => self.told_to_go().filter(|(_, lease)| is_preempted(lease)).map(id_of).collect(),
        }
    }

    /// Leases that are ending for another reason.
    pub(super) fn ending(&self) -> Vec<LeaseId> {
        match self.running {
            Some(running) => running.ending().collect(),
            None => {
                self.told_to_go().filter(|(_, lease)| !is_preempted(lease)).map(id_of).collect()
            }
        }
    }

    fn told_to_go(&self) -> impl Iterator<Item = (&'a LeaseId, &'a Lease)> {
        self.view.state.leases.iter().filter(|(_, lease)| !lease.is_running())
    }

    /// What could be freed for a request but on `closed` nodes, which are the same in the whole plan;
    /// nothing if this plan has looked at enough leases.
    pub(super) fn sites(&self, closed: &Closed, request: &Request) -> Option<Rc<Sites>> {
        let claimant = Claimant::of(request);
        let takes_back = self.view.state.tree.may_take_back(claimant.tenant);
        let lender = takes_back.then_some((claimant.tenant, claimant.priority));
        let wish = Wish { fit: Fit::of(&request.spec), lender };
        if let Some(known) = self.remembered.borrow().0.get(&wish) {
            return Some(Rc::clone(known));
        }
        if self.looks.get() >= LOOKS_MAX {
            return None;
        }
        let (sites, looks) = self.look(closed, &claimant, &request.spec);
        self.looks.set(self.looks.get().saturating_add(looks));
        let sites = Rc::new(sites);
        let mut remembered = self.remembered.borrow_mut();
        let (known, size) = &mut *remembered;
        if size.saturating_add(looks) > REMEMBERED_MAX {
            known.clear();
            *size = 0;
        }
        *size = size.saturating_add(looks);
        known.insert(wish, Rc::clone(&sites));
        Some(sites)
    }

    /// Whether so many leases more may be looked at for the quota that they hold; a look that has begun is
    /// ended.
    pub(super) fn may_look_for_quota(&self, looks: usize) -> bool {
        let known = self.quota_looks.get();
        self.quota_looks.set(known.saturating_add(looks));
        known < QUOTA_LOOKS_MAX
    }

    /// What could be freed for a request, and how many leases were looked at for that.
    fn look(&self, closed: &Closed, claimant: &Claimant, spec: &RequestSpec) -> (Sites, usize) {
        let (state, now) = (self.view.state, self.view.now);
        let mut at: BTreeMap<Site, Victims> = BTreeMap::new();
        let order = self.order();
        let takes_back = state.tree.may_take_back(claimant.tenant);
        let leases = self.leases(|(model, _, tier)| {
            let is_allowed = spec.models.is_empty() || spec.models.contains(model);
            let is_below = takes_back || preemption::gives_way_to(state, *tier, claimant.tier);
            is_allowed && is_below
        });
        let looks = leases.len();
        let may_end = |id: &&LeaseId| !takes_back || reclaim::may_end(state, **id, claimant, now);
        let leases = leases.iter().filter(may_end).filter_map(|id| state.leases.get(id));
        let mut places: Vec<Place> = leases.map(|lease| order.place(lease)).collect();
        places.sort_unstable();
        for place in &places {
            let Some(lease) = state.leases.get(&place.lease) else { continue };
            let mut freed: BTreeMap<Site, Vec<SliceId>> = BTreeMap::new();
            let candidates = fit::freed_by(state, place.lease, spec, now);
            let is_open = |slice: SliceId| !closed.contains(&(slice.cluster, slice.node));
            for candidate in candidates.iter().filter(|candidate| is_open(candidate.slice)) {
                freed.entry(site(spec.placement, candidate)).or_default().push(candidate.slice);
            }
            for (site, slices) in freed {
                let elsewhere = candidates.iter().map(|candidate| candidate.slice);
                let elsewhere = match slices.len() == candidates.len() {
                    true => Vec::new(),
                    false => elsewhere.filter(|slice| !slices.contains(slice)).collect(),
                };
                let victims = at.entry(site).or_default();
                victims.slices = victims.slices.saturating_add(slices.len());
                let victim = Victim { slices, elsewhere, ..Victim::of_quota(*place, lease) };
                victims.in_order.push(victim);
            }
        }
        (Sites::of(at, places), looks)
    }

    fn order(&self) -> Order<'a> {
        let StateView { state, now } = self.view;
        let medians = self.medians.get_or_init(|| match self.running {
            Some(running) => {
                Medians::of(running.reported().filter_map(|id| state.leases.get(&id)), now)
            }
            None => Medians::of(state.leases.values(), now),
        });
        Order::by(state, now, medians.clone())
    }
}

fn id_of((id, _): (&LeaseId, &Lease)) -> LeaseId {
    *id
}
