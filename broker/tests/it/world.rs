//! A small cell to test with: an owner, a borrower, one cluster, posted prices.

use std::path::Path;

use sublet_broker::clock::ClockKind;
use sublet_broker::raft::FatalHook;
use sublet_broker::{Cell, Checks, Config};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, DeviceId, GpuModel, KeyId, NodeId, Project, Region, RequestId,
    TenantId,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{
    Capability, Class, OnRecall, Placement, RequestSpec, Tier, WorkloadRef,
};
use sublet_protocol::transport::Address;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds};

pub(crate) const HOUR: Seconds = Seconds::new(3_600);
pub(crate) const PRICE: MicroCredits = MicroCredits::new(2_000_000);

pub(crate) fn cell_id() -> CellId {
    CellId::new("berlin").unwrap()
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

pub(crate) fn model() -> GpuModel {
    GpuModel::new("a100").unwrap()
}

pub(crate) fn cluster() -> ClusterId {
    ClusterId::new("c1").unwrap()
}

pub(crate) fn address(number: u64) -> Address {
    Address { cluster: cluster(), node: NodeId::new(&format!("n{number}")).unwrap() }
}

/// GPU `device` of a node.
pub(crate) fn gpu(of: Address, device: u64) -> SliceId {
    let node = of.node.to_string().bytes().fold(0_u128, |hash, byte| hash * 131 + u128::from(byte));
    let device = DeviceId::new((node << 64) + u128::from(device) + 1);
    SliceId { cluster: of.cluster, node: of.node, device, part: Part::Whole }
}

pub(crate) fn operator() -> Actor {
    Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() }
}

pub(crate) fn user(name: &str) -> Actor {
    let (subject, key) = ("someone".parse().unwrap(), KeyId::new("k").unwrap());
    Actor::Tenant { tenant: tenant(name), subject, key }
}

pub(crate) fn offer(slice: SliceId, generation: u64, boot: Boot) -> OfferTerms {
    OfferTerms {
        slice,
        generation,
        boot,
        capacity: Capacity {
            model: model(),
            gpu: GpuMilli::DEVICE,
            memory: MiB::new(80_000),
            cpu: CpuMilli::new(16_000),
            host_memory: MiB::new(128_000),
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        },
        idle_for: IdleFor { p10: HOUR, p50: Seconds::new(7_200), p90: Seconds::new(36_000) },
        recall_notice: Seconds::new(120),
        ttl: Seconds::new(900),
        division: Division::NONE,
        host: HostRoom::Slice,
    }
}

pub(crate) fn spec(workload: Option<WorkloadRef>) -> RequestSpec {
    RequestSpec {
        project: Project::new("p").unwrap(),
        class: Class::Batch,
        priority: 0,
        models: vec![],
        count: 1,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(20_000),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: Placement::Cluster,
        duration: HOUR,
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Requeue,
        workload,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    }
}

pub(crate) fn submit(number: u128, workload: Option<WorkloadRef>) -> Command {
    let (request, tenant) = (RequestId::new(number), tenant("acme"));
    Command::SubmitRequest { request, tenant, spec: spec(workload) }
}

pub(crate) fn key(number: u128) -> IdempotencyKey {
    IdempotencyKey { key: number.to_be_bytes(), body: number.to_le_bytes() }
}

/// Checks after every command, seals and snapshots often, panics instead of aborting.
pub(crate) fn config(data_dir: Option<&Path>, clock: ClockKind) -> Config {
    let mut config = Config::new(cell_id());
    config.policy = Policy { seal_records: 16, ..Policy::default() };
    config.data_dir = data_dir.map(Path::to_owned);
    config.checks = Checks::Always;
    config.clock = clock;
    config.snapshot_records = 32;
    config.on_fatal = FatalHook::new(|reason| println!("fatal: {reason}"));
    config
}

/// Proposes something that must be done.
pub(crate) async fn must(cell: &Cell, actor: Actor, command: Command) -> u64 {
    match cell.propose(actor, None, command.clone()).await.unwrap() {
        Outcome::Done { first, .. } => first,
        other => panic!("{command:?}: {other:?}"),
    }
}

/// Adds owner, borrower, cluster and prices, as far as they are not there.
pub(crate) async fn set_up(cell: &Cell) {
    let add = async |cell: &Cell, actor, command: Command| match cell
        .propose(actor, None, command.clone())
        .await
        .unwrap()
    {
        Outcome::Done { .. }
        | Outcome::Refused { rejection: Rejection::TenantExists | Rejection::ClusterExists } => {}
        other => panic!("{command:?}: {other:?}"),
    };
    for name in ["owner", "acme"] {
        let id = tenant(name);
        add(cell, operator(), Command::CreateTenant { tenant: id, parent: None }).await;
        let nominal = GpuMilli::new(64_000);
        add(
            cell,
            operator(),
            Command::SetQuota { tenant: id, model: model(), quota: Quota::of(nominal) },
        )
        .await;
    }
    let (owner, region) = (tenant("owner"), Region::new("eu").unwrap());
    let create = Command::CreateCluster { cluster: cluster(), owner, region, devices_max: 64 };
    add(cell, operator(), create).await;
    for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
        let set = Command::SetPrice { owner, model: model(), tier, per_gpu_hour: PRICE };
        add(cell, operator(), set).await;
    }
}
