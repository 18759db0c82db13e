//! Who may hold how much: the rules' own tree, of a cell, groups of 32 tenants, and the tenants.

use sublet_core::quota::{Among, Moment, Spot, Standing, Tree, standing_at};
use sublet_protocol::ids::TenantId;
use sublet_protocol::quotas::{Basis, Quota};
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use super::{MODELS, MODELS_COUNT, at, model_name};

const GROUP: u32 = 32;
const HALF_LIFE: Seconds = Seconds::new(7 * 24 * 3_600);
/// Each grant counts as if it had run for so long already.
const ENTRY_PENALTY: Seconds = Seconds::new(60);

/// How what tenants hold relates to what is theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "one of the two programs that share this module uses all of it")]
pub(crate) enum Lending {
    /// Each tenant has as much as there is, and lends nothing: nobody borrows.
    None,
    /// Each tenant has its part of four times the GPUs, and eight at least, and keeps half of it for
    /// itself: few hold more than they have, but many use what is lent.
    Rare,
    /// The cell has four times the GPUs and the tenants nothing: whatever is held is borrowed.
    Everything,
}

impl Lending {
    fn quotas(self, tenants: u32, gpus: u32) -> [Quota; 2] {
        let all = 4 * u64::from(gpus) * 1_000 / u64::from(MODELS);
        let none = Quota::of(GpuMilli::ZERO);
        match self {
            Lending::None => {
                let (nominal, lend_limit) = (GpuMilli::new(all), Some(GpuMilli::ZERO));
                let (borrow_limit, basis) = (None, Basis::Allowance);
                [none, Quota { nominal, borrow_limit, lend_limit, basis }]
            }
            Lending::Rare => {
                let nominal = (all / u64::from(tenants)).max(8_000);
                let lend_limit = Some(GpuMilli::new(nominal / 2));
                let nominal = GpuMilli::new(nominal);
                let (borrow_limit, basis) = (None, Basis::Allowance);
                [none, Quota { nominal, borrow_limit, lend_limit, basis }]
            }
            Lending::Everything => [Quota::of(GpuMilli::new(all)), none],
        }
    }
}

/// The tree, and where each tenant's amounts are.
#[derive(Clone)]
pub(crate) struct Quotas {
    tree: Tree,
    spots: Vec<[Spot; MODELS_COUNT]>,
    moment: Moment,
}

fn name(kind: &str, number: u32) -> TenantId {
    TenantId::new(&format!("{kind}-{number}")).expect("a name")
}

impl Quotas {
    pub(crate) fn new(tenants: u32, gpus: u32, lending: Lending) -> Quotas {
        let now = Timestamp::new(1_700_000_000_000);
        let moment = Moment { now, half_life: HALF_LIFE, entry_penalty: ENTRY_PENALTY, tokens: 1 };
        let mut tree = Tree::default();
        let cell = name("cell", 0);
        tree.insert(cell, None);
        for group in 0..tenants.div_ceil(GROUP) {
            tree.insert(name("group", group), Some(cell));
        }
        let [of_cell, of_tenant] = lending.quotas(tenants, gpus);
        for model in (0..MODELS).map(model_name) {
            tree.set_quota(cell, model, of_cell, &moment);
        }
        for tenant in 0..tenants {
            let id = name("tenant", tenant);
            tree.insert(id, Some(name("group", tenant / GROUP)));
            for model in (0..MODELS).map(model_name) {
                tree.set_quota(id, model, of_tenant, &moment);
            }
        }
        let spot = |tenant, model| {
            tree.spot(name("tenant", tenant), model_name(model)).expect("it was just added")
        };
        let spots = (0..tenants).map(|tenant| [0, 1, 2, 3].map(|model| spot(tenant, model)));
        let spots = spots.collect();
        Quotas { tree, spots, moment }
    }

    /// Time has come to `now`.
    #[inline]
    pub(crate) const fn advance(&mut self, now: Timestamp) {
        self.moment.now = now;
    }

    /// Whether the tenant may get one GPU more.
    #[inline]
    pub(crate) fn has_room(&self, tenant: u32, model: u32) -> bool {
        self.tree.has_room(self.spots[at(tenant)][at(model)], GpuMilli::DEVICE)
    }

    /// It gets one.
    #[inline]
    pub(crate) fn take(&mut self, tenant: u32, model: u32) {
        self.moment.tokens += 1;
        let spot = self.spots[at(tenant)][at(model)];
        self.tree.take_at(spot, GpuMilli::DEVICE, &self.moment);
    }

    /// It gives one back.
    #[inline]
    pub(crate) fn give_back(&mut self, tenant: u32, model: u32) {
        let spot = self.spots[at(tenant)][at(model)];
        self.tree.give_back_at(spot, GpuMilli::DEVICE, &self.moment);
    }

    #[inline]
    pub(crate) fn standing(&self, tenant: u32) -> Standing {
        let Moment { now, half_life, .. } = self.moment;
        standing_at(&self.tree, self.spots[at(tenant)][0], Among::OneTop, (now, half_life))
    }
}
