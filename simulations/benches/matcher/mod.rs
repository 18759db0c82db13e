//! A cell as the matcher's indexes see it, for measurements: no events, no state, no judge.
//!
//! Four models in four clusters each, nodes of eight GPUs, one in twenty GPUs free. Tenants form a
//! tree of three levels (cell, group, tenant), wait in three tiers, and each asks for single GPUs
//! of one model per tier. All parts are the planner's and the rules' own; what is here puts them
//! together. Everything else is leased; each cycle ends the oldest lease of the model
//! that it grants, so that as much is free after it as before.

pub(crate) mod quotas;

use sublet_core::matching::index::{
    ClassKey, ClassNo, FamilyNo, Key, Kind, LotNo, NodeNo, Queue, Shelves, TenantNo, Tournament,
};
use sublet_core::quota::Standing;
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part};
use sublet_protocol::ids::{ClusterId, DeviceId, GpuModel, NodeId, RequestId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

use quotas::{Lending, Quotas};

pub(crate) const MODELS: u32 = 4;
const MODELS_COUNT: usize = 4;
const CLUSTERS: u32 = 4;
pub(crate) const NODE_GPUS: u32 = 8;
pub(crate) const TIERS: [Tier; 3] = [Tier::Reserved, Tier::Standard, Tier::Opportunistic];
/// One GPU in this many is free when a measurement begins.
const FREE_ONE_IN: u32 = 20;
/// Every slice lasts four to eight hours, every request an hour or two.
const SLICE_WINDOW: u8 = 8;
const WANTED_WINDOW: u8 = 6;

/// How large a cell is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) gpus: u32,
    pub(crate) waiting: u32,
    pub(crate) tenants: u32,
    pub(crate) lending: Lending,
}

/// A request that will be submitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) request: RequestId,
    pub(crate) class: ClassNo,
    pub(crate) at: Timestamp,
}

/// A GPU that is leased.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    pub(crate) tenant: u32,
    pub(crate) node: NodeNo,
    pub(crate) lot: LotNo,
    pub(crate) device: DeviceId,
}

/// What the requests of a family ask for.
#[derive(Debug, Clone)]
struct Family {
    model: u32,
    lots: Vec<LotNo>,
}

/// The indexes of a cell, and the leases that will end, oldest first.
#[derive(Clone)]
pub(crate) struct Cell {
    pub(crate) queue: Queue,
    pub(crate) shelves: Shelves,
    pub(crate) quotas: Quotas,
    order: Tournament<Place>,
    families: Vec<Family>,
    /// By model: the leases, and which of them ends next.
    leases: [Vec<Lease>; MODELS_COUNT],
    oldest: [usize; MODELS_COUNT],
}

/// A sequence of numbers that is the same in every run (xorshift, Marsaglia 2003).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 32) % u64::from(limit)).expect("it is below the limit")
    }
}

pub(crate) fn kind(model: u32, cluster: u32) -> Kind {
    let capacity = Capacity {
        model: model_name(model),
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(80_000),
        cpu: CpuMilli::new(16_000),
        host_memory: MiB::new(128_000),
        isolation: Isolation::Exclusive,
        island: 0,
        hardware: Hardware::default(),
    };
    let cluster = ClusterId::new(&format!("cluster-{model}-{cluster}")).expect("a name");
    Kind { cluster, capacity, part: Part::Whole }
}

/// Free slices only: every GPU of a cell of this size is on offer.
#[allow(dead_code, reason = "one of the two programs that share this module uses it")]
pub(crate) fn shelves(gpus: u32) -> Shelves {
    let mut shelves = Shelves::new(1);
    for gpu in 0..gpus {
        let node_number = gpu / NODE_GPUS;
        let (model, cluster) = (node_number % MODELS, node_number / MODELS % CLUSTERS);
        let lot = shelves.lot(&kind(model, cluster)).0;
        let name = NodeId::new(&format!("node-{node_number}")).expect("a name");
        let node = shelves.node(kind(model, cluster).cluster, name);
        shelves.put((node, lot), (DeviceId::new(u128::from(gpu) + 1), Part::Whole), SLICE_WINDOW);
    }
    shelves
}

/// A tenant's place in the order of service: the highest tier it waits in, then where it stands, then
/// its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    tier: u8,
    standing: Standing,
    tenant: u32,
}

const NOBODY: Place = Place { tier: 3, standing: Standing::LAST, tenant: u32::MAX };

impl Key for Place {
    #[inline]
    fn short(&self) -> (u64, u32) {
        let (upper, lower) = self.standing.short(self.tenant);
        (u64::from(self.tier) << 62 | upper >> 2, lower)
    }
}

/// The place of a tier in the order of service.
const fn tier_rank(tier: Tier) -> u8 {
    match tier {
        Tier::Reserved => 0,
        Tier::Standard => 1,
        Tier::Opportunistic => 2,
    }
}

pub(crate) fn model_name(model: u32) -> GpuModel {
    GpuModel::new(&format!("model-{model}")).expect("a name")
}

pub(crate) fn at(number: u32) -> usize {
    usize::try_from(number).expect("a u32 fits")
}

impl Cell {
    /// A cell of this size, with what will arrive in it.
    pub(crate) fn new(size: Size, arrivals: u32) -> (Cell, Vec<Arrival>) {
        let mut numbers = Numbers(0x5eed_0123_4567_89ab);
        let mut shelves = Shelves::new(1);
        let lots: Vec<Vec<LotNo>> = (0..MODELS)
            .map(|model| (0..CLUSTERS).map(|c| shelves.lot(&kind(model, c)).0).collect())
            .collect();
        let mut quotas = Quotas::new(size.tenants, size.gpus, size.lending);
        let mut leases: [Vec<Lease>; MODELS_COUNT] = Default::default();
        for gpu in 0..size.gpus {
            let node_number = gpu / NODE_GPUS;
            let (model, cluster) = (node_number % MODELS, node_number / MODELS % CLUSTERS);
            let lot = lots[at(model)][at(cluster)];
            let name = NodeId::new(&format!("node-{node_number}")).expect("a name");
            let node = shelves.node(kind(model, cluster).cluster, name);
            let device = DeviceId::new(u128::from(gpu) * 0x9e37_79b9_7f4a_7c15_f39c + 1);
            if numbers.below(FREE_ONE_IN) == 0 {
                shelves.put((node, lot), (device, Part::Whole), SLICE_WINDOW);
            } else {
                let tenant = numbers.below(size.tenants);
                quotas.take(tenant, model);
                leases[at(model)].push(Lease { tenant, node, lot, device });
            }
        }
        let mut queue = Queue::new(1);
        let mut classes = Vec::new();
        let mut families = Vec::new();
        for tenant in 0..size.tenants {
            for tier in TIERS {
                let family = FamilyNo(u32::try_from(families.len()).expect("a u32"));
                let model = numbers.below(MODELS);
                families.push(Family { model, lots: lots[at(model)].clone() });
                let (needed, bought) = (Millis::new(5_400_000), Seconds::new(7_200));
                let tenant = TenantNo(tenant);
                let gpu = GpuMilli::DEVICE;
                let key = ClassKey { tenant, family, tier, priority: 0, needed, bought, gpu };
                classes.push(queue.class(key).0);
            }
        }
        let kinds = u32::try_from(classes.len()).expect("a u32");
        let mut arrive = |number: u32| Arrival {
            request: RequestId::new(u128::from(number) << 64 | u128::from(numbers.0)),
            class: classes[at(numbers.below(kinds))],
            at: Timestamp::new(1_700_000_000_000 + u64::from(number)),
        };
        for number in 0..size.waiting {
            let Arrival { request, class, at } = arrive(number);
            queue.arrive(request, class, at);
        }
        let arrivals = (0..arrivals).map(|number| arrive(size.waiting + number)).collect();
        let order = Tournament::of(vec![NOBODY; at(size.tenants)], NOBODY);
        let mut cell = Cell { queue, shelves, quotas, order, families, leases, oldest: [0; 4] };
        for tenant in 0..size.tenants {
            cell.rank(tenant);
        }
        (cell, arrivals)
    }

    /// Puts a tenant where it belongs in the order.
    #[inline]
    fn rank(&mut self, tenant: u32) {
        match self.queue.highest(TenantNo(tenant)) {
            Some(tier) => {
                let (tier, standing) = (tier_rank(tier), self.quotas.standing(tenant));
                self.order.set(tenant, Place { tier, standing, tenant });
            }
            None => self.order.leave(tenant),
        }
    }

    /// A request arrives; the first that can be served is; the oldest lease of its model ends.
    pub(crate) fn cycle(&mut self, arrival: &Arrival) -> Option<RequestId> {
        self.quotas.advance(arrival.at);
        self.queue.arrive(arrival.request, arrival.class, arrival.at);
        let ClassKey { tenant, tier, .. } = *self.queue.key(arrival.class);
        // Whoever waits in this tier or a higher one stands where it stood.
        if self.order.key(tenant.0).is_none_or(|place| place.tier > tier_rank(tier)) {
            self.rank(tenant.0);
        }
        let (request, model) = self.choose()?;
        self.release(model);
        Some(request)
    }

    fn choose(&mut self) -> Option<(RequestId, u32)> {
        while let Some(&Place { tenant, .. }) = self.order.best() {
            let tier = self.queue.highest(TenantNo(tenant))?;
            let (class, request) = self.queue.first(TenantNo(tenant), tier)?;
            let Family { model, lots } = &self.families[at(self.queue.key(class).family.0)];
            let model = *model;
            let best = self.shelves.tightest(lots, 1, WANTED_WINDOW);
            let has_room = self.quotas.has_room(tenant, model);
            let Some((lot, node, _, slot)) = best.filter(|_| has_room) else {
                // Quotas and free slices are such that this does not happen: the measurement fails
                // if a cycle grants nothing.
                self.queue.sleep(class);
                self.rank(tenant);
                continue;
            };
            let device = self.shelves.device(slot);
            self.shelves.take(slot);
            self.quotas.take(tenant, model);
            self.queue.leave(request);
            self.rank(tenant);
            self.leases[at(model)].push(Lease { tenant, node, lot, device });
            return Some((request, model));
        }
        None
    }

    fn release(&mut self, model: u32) {
        let oldest = &mut self.oldest[at(model)];
        let Lease { tenant, node, lot, device } = self.leases[at(model)][*oldest];
        *oldest += 1;
        self.shelves.put((node, lot), (device, Part::Whole), SLICE_WINDOW);
        self.quotas.give_back(tenant, model);
        self.rank(tenant);
    }

    /// Makes room for the leases of so many cycles, so that none of them pays for it.
    pub(crate) fn reserve(&mut self, cycles: usize) {
        self.leases.iter_mut().for_each(|leases| leases.reserve(cycles));
    }
}
