//! The load: jobs that tenants submit by themselves, at their moments of the story.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use sublet_broker::Cell;
use sublet_protocol::commands::{Actor, Command, Outcome as Done};
use sublet_protocol::ids::{GpuModel, Project, RequestId, Subject, TenantId};
use sublet_protocol::requests::{Capability, OnRecall, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds, Timestamp};
use sublet_simulations::generator::{Generator, Job, Profile};

use super::agents::NEEDED;
use super::setup::key;
use super::site::{Site, named, tenants};

/// The project of all requests of the load; a guest of such a lease ends by itself.
pub(super) const PROJECT: &str = "simulated";
/// A tenant with this many open requests submits nothing more until some are served.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenMax(u32);

impl OpenMax {
    /// For a demonstration: a person who tries something should not stand behind hundreds.
    pub(super) const DEMO: OpenMax = OpenMax(48);
    /// For a trace: what its users did, but for what one machine can hold.
    pub(super) const TRACE: OpenMax = OpenMax(4_000);
}

/// What the smallest slice of the made-up world has, so that no job asks for more than any has.
const CPU_MAX: CpuMilli = CpuMilli::new(16_000);
const HOST_MEMORY_MAX: MiB = MiB::new(96 * 1_024);
/// Device memory that jobs ask for, each as often as the others.
const MEMORIES: [MiB; 4] =
    [MiB::new(8 * 1_024), MiB::new(16 * 1_024), MiB::new(24 * 1_024), MiB::new(40 * 1_024)];

/// Jobs in the order they are submitted.
pub(super) type Jobs = Box<dyn Iterator<Item = Job> + Send>;

/// What is submitted.
pub(super) struct Load {
    /// The jobs.
    pub(super) jobs: Jobs,
    /// What holds them back.
    pub(super) open_max: OpenMax,
    /// What ids and details are drawn from.
    pub(super) seed: u64,
}

/// What became of the load's jobs.
#[derive(Debug, Default)]
pub(super) struct Counts {
    submitted: AtomicU64,
    held_back: AtomicU64,
    refused: AtomicU64,
}

/// [`Counts`] at one moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Counted {
    /// Sent and taken.
    pub(super) submitted: u64,
    /// Not sent, for their tenant had enough open.
    pub(super) held_back: u64,
    /// Sent and refused by the rules.
    pub(super) refused: u64,
}

impl Counts {
    /// The counts now.
    pub(super) fn now(&self) -> Counted {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counted {
            submitted: read(&self.submitted),
            held_back: read(&self.held_back),
            refused: read(&self.refused),
        }
    }
}

/// The generator's jobs for a demonstration on these clusters.
pub(super) fn generated(seed: u64, sites: &[Site]) -> Load {
    let gpus = sites.iter().map(Site::gpus).sum();
    let jobs = Box::new(Generator::new(seed, Profile::demo(&tenants(), gpus)));
    Load { jobs, open_max: OpenMax::DEMO, seed }
}

/// Submits every job that is not past when this begins. `begin` is the start of the story.
pub(super) async fn run(cell: Cell, load: Load, begin: Timestamp, counts: Arc<Counts>) {
    let Load { jobs, open_max, seed } = load;
    let past = cell.now().since(begin).as_seconds_floor();
    for (number, job) in (0_u64..).zip(jobs).skip_while(|(_, job)| job.submit < past) {
        cell.clock().sleep_until(begin.after(job.submit)).await;
        let open = cell.read_stale(|state| {
            state.tenants().get(&job.tenant).map_or(0, sublet_core::Tenant::open_requests)
        });
        if open >= open_max.0 {
            counts.held_back.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let name = named(&format!("job {number} of seed {seed}"));
        let request = RequestId::new(name);
        let spec = spec(&job, name, &models(&cell));
        let command = Command::SubmitRequest { request, tenant: job.tenant, spec };
        match cell.propose(actor(job.tenant), None, command).await {
            Ok(Done::Done { .. } | Done::Repeated { .. }) => {
                counts.submitted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Done::Refused { rejection }) => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%rejection, "a job of the load was refused");
            }
            Err(sublet_broker::Error::Stopped) => return,
            Err(error) => tracing::warn!(%error, "a job of the load was not submitted"),
        }
    }
}

fn actor(tenant: TenantId) -> Actor {
    let subject: Subject = "load".parse().expect("a subject of allowed characters");
    Actor::Tenant { tenant, subject, key: key() }
}

fn models(cell: &Cell) -> Vec<GpuModel> {
    cell.read_stale(|state| {
        let mut models: Vec<GpuModel> = state.prices().keys().map(|(_, model, _)| *model).collect();
        models.dedup();
        models
    })
}

/// The request of a job. What the trace does not say is drawn from the job's name.
fn spec(job: &Job, name: u128, models: &[GpuModel]) -> RequestSpec {
    let draw = |sides: usize, shift: u32| {
        let bits = u64::try_from(name >> shift & u128::from(u32::MAX)).unwrap_or(0);
        usize::try_from(bits % u64::try_from(sides.max(1)).unwrap_or(1)).unwrap_or(0)
    };
    // One job in four wants one model and no other.
    let wanted = models.get(draw(models.len() * 4, 0)).copied();
    let declared = job.duration.get().saturating_mul(NEEDED.1).div_ceil(NEEDED.0);
    let duration = Seconds::new(declared).min(sublet_protocol::requests::DURATION_MAX);
    RequestSpec {
        project: Project::new(PROJECT).expect("a project of allowed characters"),
        class: job.class,
        priority: 0,
        models: wanted.into_iter().collect(),
        count: job.gpus,
        gpu: GpuMilli::DEVICE,
        memory: MEMORIES[draw(MEMORIES.len(), 32)],
        cpu: job.cpu.min(CPU_MAX),
        host_memory: job.host_memory.min(HOST_MEMORY_MAX),
        placement: Placement::Cluster,
        duration,
        max_price: None,
        regions: Vec::new(),
        on_recall: OnRecall::Requeue,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    }
}
