//! A cell behind the API: an owner, two borrowers, one node with GPUs on offer.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use futures::StreamExt;
use serde_json::{Value, json};
use sublet_protocol::agent::{ClockReading, Held, Stream as Channel, Up, UpEnvelope};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::codec;
use sublet_protocol::commands::{Actor, Command, GuestOutcome, Outcome};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, DeviceId, GpuModel, HostHash, KeyId, LeaseId, NodeId, Region,
    RequestId, TenantId, Token,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::Tier;
use sublet_protocol::transport::{Address, AgentLink, in_process};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};
use tokio::sync::watch;
use tower::Service;

use crate::auth::testing;
use crate::cell::Cell;
use crate::config::{Checks, Config, LedgerKey};
use crate::http::app::App;
use crate::http::routes;
use crate::raft::FatalHook;

/// GPUs that the node has.
const GPUS: u128 = 4;

/// A cell with its router, without a socket.
pub(super) struct World {
    pub(super) cell: Cell,
    router: Router,
    stop: watch::Sender<bool>,
    /// The agent's end of the link.
    agent: Box<dyn AgentLink>,
}

/// What a call is answered.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) bytes: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null if it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.bytes.clone()).unwrap()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(super) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Status and body, the call's own id taken out.
    pub(super) fn faceless(&self) -> (StatusCode, String) {
        let mut body = self.json();
        if let Some(problem) = body.as_object_mut() {
            problem.remove("request_id");
        }
        (self.status, body.to_string())
    }

    #[track_caller]
    pub(super) fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        self
    }
}

/// A call to be made.
#[derive(Debug, Clone)]
pub(super) struct Call {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Call {
    pub(super) fn new(method: &str, path: &str) -> Call {
        let method = method.to_ascii_uppercase().parse().unwrap();
        Call { method, path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    pub(super) fn get(path: &str) -> Call {
        Call::new("GET", path)
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Call {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn bearer(self, token: &str) -> Call {
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// As a user of this tenant.
    pub(super) fn tenant(self, tenant: &str) -> Call {
        self.bearer(&testing::token(&["tenant"], Some(tenant)))
    }

    pub(super) fn operator(self) -> Call {
        self.bearer(&testing::token(&["operator"], None))
    }

    pub(super) fn key(self, key: &str) -> Call {
        self.header("idempotency-key", key)
    }

    pub(super) fn json(self, body: &Value) -> Call {
        self.bytes("application/json", body.to_string().as_bytes())
    }

    pub(super) fn bytes(mut self, kind: &str, body: &[u8]) -> Call {
        self.body = body.to_vec();
        self.header("content-type", kind)
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::builder().method(self.method.clone()).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(Body::from(self.body.clone())).unwrap()
    }
}

fn actor_operator() -> Actor {
    Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() }
}

pub(super) fn agent() -> Actor {
    Actor::Agent { cluster: cluster(), node: NodeId::new("n1").unwrap() }
}

pub(super) fn cluster() -> ClusterId {
    ClusterId::new("north").unwrap()
}

pub(super) fn slice(device: u128) -> SliceId {
    let (cluster, node) = (cluster(), NodeId::new("n1").unwrap());
    SliceId { cluster, node, device: DeviceId::new(device), part: Part::Whole }
}

impl World {
    /// Opens a cell in a temporary folder. Its GPUs are on offer, two for each memory size.
    pub(super) async fn new() -> World {
        let mut config = Config::new(CellId::new("lab").unwrap());
        config.checks = Checks::Always;
        config.on_fatal = FatalHook::new(|reason| tracing::error!(%reason, "fatal"));
        let keys = tempfile::tempdir().unwrap();
        let (file, origin) = (keys.path().join("key"), "lab.sublet/ledger".to_owned());
        config.ledger_key = LedgerKey::Made { file, origin };
        let cell = Cell::open(config).await.unwrap();
        let (hub, link) = in_process::link();
        cell.attach(link).await.unwrap();
        let agent = hub.connect(Address { cluster: cluster(), node: NodeId::new("n1").unwrap() });
        let (stop, stopping) = watch::channel(false);
        let app = App::new(cell.clone(), testing::verifier(), None, stopping);
        let world = World { cell, router: routes::router(app), stop, agent };
        world.set_up().await;
        world
    }

    async fn set_up(&self) {
        let model = GpuModel::new("a100").unwrap();
        let (acme, initech) = (TenantId::new("acme").unwrap(), TenantId::new("initech").unwrap());
        let umbrella = TenantId::new("umbrella").unwrap();
        for tenant in [acme, initech, umbrella] {
            self.must(actor_operator(), Command::CreateTenant { tenant, parent: None }).await;
            let nominal = GpuMilli::new(8_000);
            self.must(
                actor_operator(),
                Command::SetQuota { tenant, model, quota: Quota::of(nominal) },
            )
            .await;
        }
        let region = Region::new("eu").unwrap();
        let create =
            Command::CreateCluster { cluster: cluster(), owner: acme, region, devices_max: 100 };
        self.must(actor_operator(), create).await;
        let per_gpu_hour = MicroCredits::new(2_000_000);
        let price = Command::SetPrice { owner: acme, model, tier: Tier::Standard, per_gpu_hour };
        self.must(actor_operator(), price).await;
        let node = NodeId::new("n1").unwrap();
        let host = HostHash([1; 16]);
        let register = Command::RegisterNode { cluster: cluster(), node, boot: Boot::new(1), host };
        self.must(agent(), register).await;
        for device in 1..=GPUS {
            self.offer(device).await;
        }
    }

    async fn offer(&self, device: u128) {
        let hour = |hours: u64| Seconds::new(3_600 * hours);
        let offer = OfferTerms {
            slice: slice(device),
            generation: 1,
            boot: Boot::new(1),
            capacity: Capacity {
                model: GpuModel::new("a100").unwrap(),
                gpu: GpuMilli::DEVICE,
                memory: MiB::new(if device <= 2 { 40_000 } else { 80_000 }),
                cpu: CpuMilli::new(16_000),
                host_memory: MiB::new(128_000),
                isolation: Isolation::Exclusive,
                island: 0,
                hardware: Hardware::UNKNOWN,
            },
            idle_for: IdleFor { p10: hour(1), p50: hour(2), p90: hour(10) },
            recall_notice: Seconds::new(120),
            ttl: Seconds::new(900),
            division: Division::NONE,
            host: HostRoom::Slice,
        };
        self.must(agent(), Command::OfferCapacity { offer }).await;
    }

    pub(super) async fn must(&self, actor: Actor, command: Command) {
        match self.cell.propose(actor, None, command.clone()).await.unwrap() {
            Outcome::Done { .. } => {}
            other => panic!("{command:?}: {other:?}"),
        }
    }

    pub(super) fn records(&self) -> u64 {
        self.cell.head().unwrap().size
    }

    pub(super) async fn call(&self, call: Call) -> Answer {
        let response = self.router.clone().call(call.request()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: parts.status, headers: parts.headers, bytes }
    }

    /// Opens a stream and reads it piece by piece.
    pub(super) async fn open(&self, call: Call) -> Stream {
        let response = self.router.clone().call(call.request()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        Stream { kind, body: response.into_body().into_data_stream(), read: String::new() }
    }

    /// Ends all streams.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Has the tenant ask for `count` GPUs; the id of the request.
    pub(super) async fn ask(&self, tenant: &str, key: &str, body: &Value) -> RequestId {
        let call = Call::new("POST", "/v1/requests").tenant(tenant).key(key).json(body);
        let answer = self.call(call).await.expect(201);
        answer.json()["id"].as_str().unwrap().parse().unwrap()
    }

    /// Waits until the request is granted; the id of its lease.
    pub(super) async fn granted(&self, request: RequestId) -> LeaseId {
        for _ in 0..500 {
            let lease =
                self.cell.read_stale(|state| match state.requests().get(&request)?.stage() {
                    sublet_core::RequestStage::Granted { lease } => Some(*lease),
                    _other => None,
                });
            if let Some(lease) = lease {
                return lease;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{request} was not granted");
    }

    /// A lease of one GPU for initech, with this much to run.
    pub(super) async fn lease(&self) -> LeaseId {
        let request = self.ask("initech", "a lease", &json!({"duration": 3_600})).await;
        self.granted(request).await
    }

    fn member(&self, lease: LeaseId) -> (SliceId, Token) {
        self.cell.read_stale(|state| {
            let terms = state.leases()[&lease].terms();
            (terms.members[0].slice, terms.token)
        })
    }

    /// The agent has prepared the lease's one member.
    pub(super) async fn confirm(&self, lease: LeaseId) {
        let (slice, token) = self.member(lease);
        let boot = Boot::new(1);
        self.must(agent(), Command::ConfirmMember { lease, slice, token, boot }).await;
    }

    /// The guest prints on its standard output.
    pub(super) async fn print(&self, lease: LeaseId, bytes: &[u8]) {
        let (_, token) = self.member(lease);
        let (stream, bytes) = (Channel::Stdout, bytes.to_vec());
        let message = UpEnvelope {
            cluster: cluster(),
            node: NodeId::new("n1").unwrap(),
            host: HostHash([1; 16]),
            boot: Boot::new(1),
            sequence: 1,
            body: Up::Output { lease, token, stream, offset: 0, bytes },
        };
        self.agent.request(codec::encode(&message).unwrap()).await.unwrap();
    }

    /// The agent tells its clocks, of which the wall clock is ahead by `ahead` milliseconds.
    pub(super) async fn tell_clocks(&self, sequence: u64, ahead: i64) {
        let ours = self.cell.clock().reading();
        let wall = ours.wall.get().checked_add_signed(ahead).unwrap();
        let reading = ClockReading { wall: Timestamp::new(wall), ..ours };
        let message = UpEnvelope {
            cluster: cluster(),
            node: NodeId::new("n1").unwrap(),
            host: HostHash([1; 16]),
            boot: Boot::new(1),
            sequence,
            body: Up::Clock(reading),
        };
        self.agent.request(codec::encode(&message).unwrap()).await.unwrap();
    }

    /// The agent reports that it holds this, one cycle of ledger time after the last report.
    pub(super) async fn report(&self, sequence: u64, held: Option<Held>) {
        self.cell.clock().not_before(self.cell.now().after(Seconds::new(30)));
        let body = Up::Inventory { offered: vec![], held: held.into_iter().collect() };
        let message = UpEnvelope {
            cluster: cluster(),
            node: NodeId::new("n1").unwrap(),
            host: HostHash([1; 16]),
            boot: Boot::new(1),
            sequence,
            body,
        };
        self.agent.request(codec::encode(&message).unwrap()).await.unwrap();
    }

    /// What the agent holds of the lease, its guest unused for as long as this.
    pub(super) fn held(&self, lease: LeaseId, unused: Seconds) -> Held {
        let ((slice, token), used) = (self.member(lease), Millis::new(1));
        Held { lease, slice, token, used, unused: unused.as_millis() }
    }

    /// The guest has finished.
    pub(super) async fn finish(&self, lease: LeaseId, code: i32) {
        let (slice, token) = self.member(lease);
        let (boot, used) = (Boot::new(1), Millis::new(1_500));
        let outcome = GuestOutcome::Exited { code };
        let stopped = Command::ReportStopped { lease, slice, token, boot, used, outcome };
        self.must(agent(), stopped).await;
    }
}

/// A stream being read.
pub(super) struct Stream {
    pub(super) kind: String,
    body: BodyDataStream,
    read: String,
}

impl Stream {
    /// Reads on until `is_enough`, or the end. Fails after ten seconds.
    pub(super) async fn read_until(&mut self, is_enough: impl Fn(&str) -> bool) -> &str {
        let read = async {
            while !is_enough(&self.read) {
                let Some(piece) = self.body.next().await else { break };
                self.read.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(10), read).await;
        assert!(in_time.is_ok(), "the stream was silent: {:?}", self.read);
        &self.read
    }

    /// Reads to the end.
    pub(super) async fn rest(&mut self) -> &str {
        self.read_until(|_| false).await
    }
}

/// The `(id, event)` of every complete event in the text of a stream.
pub(super) fn events(text: &str) -> Vec<(u64, String)> {
    let complete = text.rsplit_once("\n\n").map_or("", |(complete, _)| complete);
    let field = |block: &str, name: &str| {
        let mut lines = block.lines();
        lines.find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let blocks = complete.split("\n\n");
    blocks
        .filter_map(|block| Some((field(block, "id:")?.parse().ok()?, field(block, "event:")?)))
        .collect()
}
