//! One sample of each thing that is stored or sent. The lists are complete: a variant without a
//! sample fails the count at the end of each.

mod messages;
mod stored;

pub use messages::{down, replies, up};
pub use stored::{commands, outcomes, records};

use sublet_protocol::calendar::{Calendar, Day, OffPeak, TimeOfDay, Zone};
use sublet_protocol::capacity::{
    Capacity, ComputeCapability, DriverVersion, Hardware, Isolation, Origin, Part, PciDevice,
    SliceId,
};
use sublet_protocol::deferral::{Deferral, Window};
use sublet_protocol::ids::{
    Boot, ClusterId, DeviceId, GpuModel, HostHash, LeaseId, NodeId, Project, Region, RequestId,
    TenantId, Token,
};
use sublet_protocol::leases::{LeaseTerms, Member};
use sublet_protocol::money::{MicroCredits, Price};
use sublet_protocol::offers::{Division, HostRoom, IdleFor, MigMode, OfferTerms, SharedBy};
use sublet_protocol::requests::{
    Capability, Class, OnRecall, Placement, Prediction, PredictionLayer, RequestSpec, WorkloadRef,
};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Permille, Seconds, Timestamp};

pub fn tenant() -> TenantId {
    TenantId::new("acme").unwrap()
}

pub fn owner() -> TenantId {
    TenantId::new("owner-2").unwrap()
}

pub fn cluster() -> ClusterId {
    ClusterId::new("c1").unwrap()
}

pub fn node() -> NodeId {
    NodeId::new("n-07").unwrap()
}

pub fn model() -> GpuModel {
    GpuModel::new("a100-80gb").unwrap()
}

pub fn lease() -> LeaseId {
    LeaseId::new(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10)
}

pub fn request() -> RequestId {
    RequestId::new(0xfedc_ba98_7654_3210_0123_4567_89ab_cdef)
}

pub fn token() -> Token {
    Token { epoch: 1, counter: 300 }
}

pub fn boot() -> Boot {
    Boot::new(7)
}

pub fn host() -> HostHash {
    HostHash(*b"0123456789abcdef")
}

pub fn slice(part: Part) -> SliceId {
    let device = DeviceId::new(0x0a1b_2c3d_0000_1111_2222_3333_4444_5555);
    SliceId { cluster: cluster(), node: node(), device, part }
}

pub fn whole() -> SliceId {
    slice(Part::Whole)
}

pub fn capacity() -> Capacity {
    Capacity {
        model: model(),
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(81_000),
        cpu: CpuMilli::new(16_000),
        host_memory: MiB::new(131_072),
        isolation: Isolation::Exclusive,
        island: 3,
        hardware: Hardware {
            pci: Some(PciDevice::new(0x2330)),
            driver: Some(DriverVersion { major: 550, minor: 54 }),
            compute: Some(ComputeCapability { major: 9, minor: 0 }),
            memory_total: Some(MiB::new(81_559)),
        },
    }
}

pub fn offer() -> OfferTerms {
    OfferTerms {
        slice: whole(),
        generation: 5,
        boot: boot(),
        capacity: capacity(),
        idle_for: IdleFor { p10: Seconds::new(600), p50: Seconds::new(3_600), p90: Seconds::MAX },
        recall_notice: Seconds::new(120),
        ttl: Seconds::new(900),
        division: Division { mig: MigMode::On, shared: Some(SharedBy::Mps) },
        host: HostRoom::Slice,
    }
}

pub fn spec() -> RequestSpec {
    RequestSpec {
        project: Project::new("vision").unwrap(),
        class: Class::Training,
        priority: 9,
        models: vec![model(), GpuModel::new("h200").unwrap()],
        count: 8,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(40_960),
        cpu: CpuMilli::new(4_000),
        host_memory: MiB::new(65_536),
        placement: Placement::Island,
        duration: Seconds::new(86_400),
        max_price: Some(MicroCredits::new(2_500_000)),
        regions: vec![Region::new("eu-north").unwrap()],
        on_recall: OnRecall::Requeue,
        workload: Some(WorkloadRef { sha256: [0xab; 32], size: 512 }),
        prediction: Some(Prediction {
            layer: PredictionLayer::Declared,
            version: 1,
            confidence: Permille::new(850),
            duration_q10: Seconds::new(60),
            duration_q50: Seconds::new(600),
            duration_q90: Seconds::new(6_000),
            memory_bound: MiB::new(30_000),
        }),
        capability: Capability {
            driver: Some(DriverVersion { major: 535, minor: 104 }),
            compute: Some(ComputeCapability { major: 8, minor: 0 }),
        },
        deferral: Some(Box::new(Deferral {
            not_before: Some(Timestamp::new(1_700_000_100_000)),
            deadline: Some(Timestamp::new(1_700_000_900_000)),
            windows: vec![Window {
                from: Timestamp::new(1_700_000_200_000),
                until: Timestamp::new(1_700_000_300_000),
            }],
            start_by: Timestamp::new(1_700_000_400_000),
        })),
    }
}

pub fn calendar() -> Calendar {
    Calendar {
        zone: Zone::new("Europe/Berlin").unwrap(),
        off_peak: vec![OffPeak {
            days: [Day::Fri, Day::Mon].into(),
            from: TimeOfDay::new(1_320).unwrap(),
            until: TimeOfDay::new(360).unwrap(),
        }],
    }
}

pub fn terms() -> LeaseTerms {
    LeaseTerms {
        lease: lease(),
        request: request(),
        attempt: 2,
        tenant: tenant(),
        owner: owner(),
        project: Project::new("vision").unwrap(),
        cluster: cluster(),
        class: Class::Training,
        token: token(),
        model: model(),
        gpu: GpuMilli::DEVICE,
        members: vec![Member {
            slice: whole(),
            generation: 5,
            boot: boot(),
            capacity: capacity(),
            origin: Origin::Offered,
        }],
        price: Price { per_gpu_hour: MicroCredits::new(2_000_000), version: 4 },
        duration: Seconds::new(86_400),
        hold: MicroCredits::new(48_000_000),
        grace: Seconds::new(120),
        workload: None,
        recall_notice: Seconds::new(120),
    }
}
