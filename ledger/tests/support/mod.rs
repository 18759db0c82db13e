//! Records for tests and measurements: leases as they go, one after the other.

pub(crate) mod history;

use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Origin, Part, SliceId};
use sublet_protocol::commands::{Actor, GuestOutcome};
use sublet_protocol::events::{Event, Settlement};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, LeaseId, NodeId, Project, RequestId,
    TenantId, Token,
};
use sublet_protocol::leases::{EndReason, LeaseTerms, Member};
use sublet_protocol::money::{Account, Line, MicroCredits, Price};
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::records::Record;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

/// What each lease sets aside, and what it costs, in micro-units.
pub(crate) const HOLD: i64 = 2_000_000;
pub(crate) const COST: i64 = 1_500_001;
pub(crate) const FEE: i64 = 75_000;

pub(crate) fn cell() -> CellId {
    CellId::new("berlin").unwrap()
}

pub(crate) fn borrower(life: u64) -> TenantId {
    TenantId::new(&format!("lab-{}", life % 7)).unwrap()
}

pub(crate) fn owner() -> TenantId {
    TenantId::new("owner").unwrap()
}

pub(crate) fn request(life: u64) -> RequestId {
    RequestId::new((u128::from(life) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

pub(crate) fn lease(life: u64) -> LeaseId {
    LeaseId::derive(request(life), 1)
}

/// The records `range` of the test history.
pub(crate) fn records(range: std::ops::Range<u64>) -> Vec<Record> {
    range.map(record).collect()
}

/// Record `index` of the test history; ten make a lease, and eight leases go on at a time.
pub(crate) fn record(index: u64) -> Record {
    let (block, place) = (index / 80, index % 80);
    let (life, step) = (block * 8 + place % 8, place / 8);
    Record {
        index,
        term: 1,
        time: Timestamp::new(1_700_000_000_000 + index * 40),
        cause: CommandId::new(u128::from(index) * 0x1234_5678_9abc_def1),
        actor: actor(life, step),
        event: event(life, step),
    }
}

fn actor(life: u64, step: u64) -> Actor {
    match step {
        0 | 3 | 4 | 5 | 7 => Actor::Agent { cluster: cluster(), node: node(life) },
        _ => Actor::Leader,
    }
}

fn cluster() -> ClusterId {
    ClusterId::new("hpc-west").unwrap()
}

fn node(life: u64) -> NodeId {
    NodeId::new(&format!("gpu{:03}", life % 200)).unwrap()
}

fn slice(life: u64) -> SliceId {
    let device = DeviceId::new(u128::from(life % 1_600) << 64 | 0xabcd);
    SliceId { cluster: cluster(), node: node(life), device, part: Part::Whole }
}

fn model() -> GpuModel {
    GpuModel::new("a100-80gb").unwrap()
}

fn capacity() -> Capacity {
    Capacity {
        model: model(),
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(81_920),
        cpu: CpuMilli::new(16_000),
        host_memory: MiB::new(131_072),
        isolation: Isolation::Exclusive,
        island: 3,
        hardware: Hardware::UNKNOWN,
    }
}

fn event(life: u64, step: u64) -> Event {
    let (lease, slice, request, tenant) = (lease(life), slice(life), request(life), borrower(life));
    let now = Timestamp::new(1_700_000_000_000 + life * 400);
    match step {
        0 => Event::CapacityOffered { offer: offer(life), expires_at: now.after(Seconds::new(60)) },
        1 => Event::RequestSubmitted { request, tenant, spec: spec() },
        2 => granted(life),
        3 => Event::MemberConfirmed { lease, slice },
        4 => Event::LeaseActivated { lease, ends_at: now.after(Seconds::new(7_200)) },
        5 => Event::UsageRecorded { lease, used: Millis::new(3_000_000) },
        6 => Event::LeaseEnding { lease, cause: EndReason::Released, deadline: now },
        7 => Event::MemberStopped {
            lease,
            slice,
            used: Millis::new(5_400_000),
            outcome: GuestOutcome::Exited { code: 0 },
        },
        8 => ended(life),
        _ => Event::RequestClosed { request, tenant, reason: EndReason::Released },
    }
}

fn offer(life: u64) -> OfferTerms {
    OfferTerms {
        slice: slice(life),
        generation: life,
        boot: Boot::new(1),
        capacity: capacity(),
        idle_for: IdleFor {
            p10: Seconds::new(600),
            p50: Seconds::new(3_600),
            p90: Seconds::new(9_000),
        },
        recall_notice: Seconds::new(60),
        ttl: Seconds::new(60),
        division: Division::NONE,
        host: HostRoom::Slice,
    }
}

fn spec() -> RequestSpec {
    RequestSpec {
        project: Project::new("vision").unwrap(),
        class: Class::Batch,
        priority: 0,
        models: vec![model()],
        count: 1,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(20_480),
        cpu: CpuMilli::new(8_000),
        host_memory: MiB::new(65_536),
        placement: Placement::Cluster,
        duration: Seconds::new(7_200),
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Requeue,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    }
}

fn granted(life: u64) -> Event {
    let hold = MicroCredits::new(HOLD);
    let tenant = borrower(life);
    let terms = LeaseTerms {
        lease: lease(life),
        request: request(life),
        attempt: 1,
        tenant,
        owner: owner(),
        project: Project::new("vision").unwrap(),
        cluster: cluster(),
        class: Class::Batch,
        token: Token { epoch: 0, counter: life },
        model: model(),
        gpu: GpuMilli::DEVICE,
        members: vec![Member {
            slice: slice(life),
            generation: life,
            boot: Boot::new(1),
            capacity: capacity(),
            origin: Origin::Offered,
        }],
        price: Price { per_gpu_hour: MicroCredits::new(1_000_000), version: 1 },
        duration: Seconds::new(7_200),
        hold,
        grace: Seconds::new(60),
        workload: None,
        recall_notice: Seconds::new(60),
    };
    let lines = vec![
        Line::debit(Account::Expense(tenant), hold),
        Line::credit(Account::Hold(tenant), hold),
    ];
    Event::LeaseGranted { terms, lines }
}

fn ended(life: u64) -> Event {
    let tenant = borrower(life);
    let (cost, fee) = (MicroCredits::new(COST), MicroCredits::new(FEE));
    let lines = vec![
        Line::debit(Account::Hold(tenant), MicroCredits::new(HOLD)),
        Line::credit(Account::Expense(tenant), MicroCredits::new(HOLD - COST)),
        Line::credit(Account::Revenue(owner()), MicroCredits::new(COST - FEE)),
        Line::credit(Account::Fee, fee),
    ];
    Event::LeaseEnded {
        lease: lease(life),
        request: request(life),
        tenant,
        owner: owner(),
        reason: EndReason::Released,
        settlement: Settlement { billed: Millis::new(5_400_000), cost, fee },
        lines,
    }
}
