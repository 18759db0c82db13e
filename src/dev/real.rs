//! The NVIDIA GPUs of this machine in place of made-up ones.

use std::collections::BTreeMap;

use sublet_agent::probe::nvml::{Config, NvmlProbe};
use sublet_agent::probe::{Layout, OwnerQueue, Probe, Sample};
use sublet_protocol::ids::GpuModel;
use sublet_protocol::units::{MiB, Millis};

use super::Nvml;
use super::site::{RealGpu, Site};
use crate::failure::{Exit, Failure, Outcome};

/// Memory that an idle GPU may still hold beyond the driver's share: it is not promised to a guest.
const SLACK: MiB = MiB::new(256);

/// A probe of this machine. Nobody queues here: whoever runs this says so by running it.
pub(super) fn probe(nvml: &Nvml) -> NvmlProbe {
    NvmlProbe::new(Config {
        library: nvml.library.clone(),
        owner_queue: Some(OwnerQueue::Nothing),
        ..Config::default()
    })
}

/// The whole GPUs of this machine, a cluster for each model.
pub(super) fn sites(nvml: &Nvml) -> Outcome<Vec<Site>> {
    let samples = probe(nvml).sample(Millis::ZERO).map_err(|error| {
        Failure::new(Exit::Failed, "the GPUs of this machine cannot be read").because(error)
    })?;
    let mut models: BTreeMap<GpuModel, Vec<RealGpu>> = BTreeMap::new();
    for (model, gpu) in samples.iter().filter_map(whole) {
        models.entry(model).or_default().push(gpu);
    }
    if models.is_empty() {
        let none = "there is no whole GPU here whose memory can be read";
        return Err(Failure::new(Exit::Failed, none));
    }
    let numbered = models.into_iter().zip(1..);
    Ok(numbered.map(|((model, gpus), number)| Site::of_this_machine(number, model, gpus)).collect())
}

fn whole(sample: &Sample) -> Option<(GpuModel, RealGpu)> {
    let total = sample.memory_total.filter(|_| sample.layout == Layout::Whole)?;
    let driver = sample.memory_driver?.saturating_add(SLACK);
    Some((sample.model, RealGpu { id: sample.device, lendable: total.saturating_sub(driver) }))
}
