//! Founds the made-up world in the cell, by the commands an operator would send.
//!
//! What is there already is left alone, so that a restart writes nothing and what an operator has set
//! stays as it was set.

use std::collections::BTreeMap;

use sublet_broker::Cell;
use sublet_protocol::commands::{Actor, Command, Outcome as Done};
use sublet_protocol::ids::{GpuModel, KeyId, Subject, TenantId};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::units::GpuMilli;

use super::pace::Pace;
use super::site::{Site, tenants};
use crate::failure::{Exit, Failure, Outcome};

/// The key id and the subject of what `sublet dev` does itself.
pub(super) const KEY: &str = "dev";

/// The operator who sets things up.
fn operator() -> Actor {
    let subject: Subject = "sublet-dev".parse().expect("a subject of allowed characters");
    Actor::Operator { subject, key: key() }
}

/// The id of the key that signs tokens.
pub(super) fn key() -> KeyId {
    KeyId::new(KEY).expect("a key id of allowed characters")
}

/// Adds what is missing, at this speed; `last` is that of the start before it, if there was one.
pub(super) async fn found(
    cell: &Cell,
    sites: &[Site],
    pace: Pace,
    last: Option<Pace>,
) -> Outcome<()> {
    let missing = cell.read(|state| {
        let policy = pace.kept(last.unwrap_or(pace), state.policy());
        let is_missing = |command: &Command| match command {
            Command::SetPolicy { policy } => state.policy() != policy,
            Command::CreateTenant { tenant, .. } => !state.tenants().contains_key(tenant),
            Command::CreateCluster { cluster, .. } => !state.clusters().contains_key(cluster),
            Command::SetQuota { tenant, model, .. } => {
                let known = state.tree().node(*tenant);
                known.is_none_or(|known| known.quota(*model).is_none())
            }
            Command::SetPrice { owner, model, tier, .. } => {
                !state.prices().contains_key(&(*owner, *model, *tier))
            }
            _ => true,
        };
        commands(sites, policy).into_iter().filter(is_missing).collect::<Vec<_>>()
    });
    let failed =
        |what: String| Failure::new(Exit::Failed, "the cell cannot be set up").because(what);
    for command in missing.await.map_err(|error| failed(error.to_string()))? {
        let name = command.name();
        match cell.propose(operator(), None, command).await {
            Ok(Done::Done { .. } | Done::Repeated { .. }) => {}
            Ok(Done::Refused { rejection }) => return Err(failed(format!("{name}: {rejection}"))),
            Err(error) => return Err(failed(format!("{name}: {error}"))),
        }
    }
    Ok(())
}

fn commands(sites: &[Site], policy: Policy) -> Vec<Command> {
    let mut commands = vec![Command::SetPolicy { policy }];
    let tenants = tenants();
    let create = |tenant: &TenantId| Command::CreateTenant { tenant: *tenant, parent: None };
    commands.extend(tenants.iter().map(create));
    for site in sites {
        commands.push(Command::CreateCluster {
            cluster: site.cluster,
            owner: site.owner,
            region: site.region,
            devices_max: site.gpus(),
        });
        commands.extend(site.prices().map(|(tier, per_gpu_hour)| Command::SetPrice {
            owner: site.owner,
            model: site.model,
            tier,
            per_gpu_hour,
        }));
    }
    for (model, gpus) in models(sites) {
        commands.extend(tenants.iter().map(|tenant| Command::SetQuota {
            tenant: *tenant,
            model,
            quota: Quota::of(quota(gpus)),
        }));
    }
    commands
}

fn models(sites: &[Site]) -> BTreeMap<GpuModel, u32> {
    let mut models = BTreeMap::new();
    for site in sites {
        *models.entry(site.model).or_insert(0) += site.gpus();
    }
    models
}

/// Each tenant may hold three quarters of the GPUs of a model, and always eight: one tenant alone
/// cannot take everything, and no job of one machine is too large.
fn quota(gpus: u32) -> GpuMilli {
    let most = (u64::from(gpus) * 3 / 4).max(8);
    GpuMilli::new(most * GpuMilli::DEVICE.get())
}
