//! The partner in the comparison: the same cycle by looking at everything.

use sublet_core::quota::Standing;
use sublet_protocol::ids::RequestId;

use crate::matcher::quotas::Quotas;
use crate::matcher::{Arrival, MODELS, NODE_GPUS, Numbers, Size, at};

#[derive(Clone, Copy)]
struct Waiting {
    tier: u8,
    tenant: u32,
    model: u32,
    submitted_at: u64,
    request: RequestId,
}

/// Waiting requests and free GPUs in arrays.
pub(crate) struct Scan {
    waiting: Vec<Waiting>,
    /// Whether a GPU is free.
    free: Vec<bool>,
    /// By model: GPU and tenant of the leases, and which of them ends next.
    leases: [Vec<(u32, u32)>; 4],
    oldest: [usize; 4],
    quotas: Quotas,
    numbers: Numbers,
    tenants: u32,
}

impl Scan {
    pub(crate) fn new(size: Size) -> Scan {
        let mut numbers = Numbers(0x5eed_0123_4567_89ab);
        let mut quotas = Quotas::new(size.tenants, size.gpus, size.lending);
        let (mut free, mut leases) = (Vec::new(), <[Vec<(u32, u32)>; 4]>::default());
        for gpu in 0..size.gpus {
            let is_free = numbers.below(20) == 0;
            if !is_free {
                let tenant = numbers.below(size.tenants);
                let model = gpu / NODE_GPUS % MODELS;
                quotas.take(tenant, model);
                leases[at(model)].push((gpu, tenant));
            }
            free.push(is_free);
        }
        let (waiting, oldest) = (Vec::new(), [0; 4]);
        let tenants = size.tenants;
        let mut scan = Scan { waiting, free, leases, oldest, quotas, numbers, tenants };
        for number in 0..size.waiting {
            let request = RequestId::new(u128::from(number));
            scan.arrive(request, u64::from(number));
        }
        scan
    }

    fn arrive(&mut self, request: RequestId, submitted_at: u64) {
        let tenant = self.numbers.below(self.tenants);
        let tier = u8::try_from(self.numbers.below(3)).expect("a tier");
        // As in the cell: one model per tenant and tier.
        let model = (tenant * 3 + u32::from(tier)) % MODELS;
        self.waiting.push(Waiting { tier, tenant, model, submitted_at, request });
    }

    /// A request arrives; the first that can be served is; the oldest lease ends.
    pub(crate) fn cycle(&mut self, arrival: &Arrival) -> Option<RequestId> {
        self.arrive(arrival.request, arrival.at.get());
        self.quotas.advance(arrival.at);
        let standings: Vec<Standing> =
            (0..self.tenants).map(|tenant| self.quotas.standing(tenant)).collect();
        let first = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| {
            let standing = &standings[at(waiting.tenant)];
            (waiting.tier, standing, waiting.tenant, waiting.submitted_at)
        });
        let (place, waiting) = first.map(|(place, waiting)| (place, *waiting))?;
        let mut tightest: Option<(usize, usize)> = None;
        for (node, gpus) in self.free.chunks(at(NODE_GPUS)).enumerate() {
            if node % at(MODELS) != at(waiting.model) {
                continue;
            }
            let count = gpus.iter().filter(|free| **free).count();
            if count > 0 && tightest.is_none_or(|(known, _)| count < known) {
                tightest = Some((count, node));
            }
        }
        let (_, node) = tightest?;
        let first = node * at(NODE_GPUS);
        let gpu = (first..first + at(NODE_GPUS)).find(|gpu| self.free[*gpu])?;
        if !self.quotas.has_room(waiting.tenant, waiting.model) {
            return None;
        }
        self.free[gpu] = false;
        self.quotas.take(waiting.tenant, waiting.model);
        self.waiting.swap_remove(place);
        let model = at(waiting.model);
        self.leases[model].push((u32::try_from(gpu).expect("a u32"), waiting.tenant));
        let (gpu, tenant) = self.leases[model][self.oldest[model]];
        self.oldest[model] += 1;
        self.free[at(gpu)] = true;
        self.quotas.give_back(tenant, waiting.model);
        Some(waiting.request)
    }
}
