//! The library while it is open: finds the devices by UUID and reads each.

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, GpmSample, Nvml};
use sublet_protocol::ids::{DeviceId, GpuModel};
use sublet_protocol::units::MiB;

use super::device::{self, Notes};
use super::{Config, Known, Round, device_id, model, raw, topology};
use crate::probe::{Error, Health, Instance, Layout, Sample, Vitals};

/// More GPUs than any machine has: a driver that says more is not believed.
const GPUS_MAX: u32 = 256;
/// More instances than any GPU has.
const INSTANCES_MAX: u32 = 64;
/// The model of a GPU whose name cannot be read.
const NAMELESS: &str = "unknown";

/// What is kept from round to round while the library stays open.
pub(super) struct Open<'nvml> {
    nvml: &'nvml Nvml,
    driver: Option<String>,
    /// One event set for each GPU: one that cannot be registered must not take the others' with it.
    events: Known<Option<EventSet<'nvml>>>,
    samples: Known<GpmSample<'nvml>>,
    models: Known<GpuModel>,
    links: Vec<topology::Link>,
    linked: Vec<DeviceId>,
}

/// Why the library must be opened anew.
pub(super) struct Stale(pub(super) Error);

impl<'nvml> Open<'nvml> {
    pub(super) fn new(nvml: &'nvml Nvml) -> Self {
        Self {
            nvml,
            driver: nvml.sys_driver_version().ok(),
            events: Known::new(),
            samples: Known::new(),
            models: Known::new(),
            links: Vec::new(),
            linked: Vec::new(),
        }
    }

    /// Reads every device.
    pub(super) fn round(&mut self, config: &Config) -> Result<Round, Stale> {
        let count = self.nvml.device_count().map_err(|error| Stale(open_error(&error)))?;
        let mut round = Round { driver: self.driver.clone(), ..Round::default() };
        let mut gpus = Vec::new();
        for index in 0..count.min(GPUS_MAX) {
            let found = self.nvml.device_by_index(index);
            let named = found.and_then(|gpu| Ok((gpu.uuid()?, gpu)));
            match named {
                Ok((uuid, gpu)) => match device_id(&uuid) {
                    Some(id) => gpus.push((id, gpu)),
                    None => round.silent += 1,
                },
                Err(NvmlError::Uninitialized) => return Err(Stale(Error::NoDriver)),
                Err(_) => round.silent += 1,
            }
        }
        for (id, gpu) in &gpus {
            let before = round.samples.len();
            if !self.read_gpu(*id, gpu, config, &mut round.samples) {
                round.samples.truncate(before);
                round.silent += 1;
            }
        }
        let ids: Vec<DeviceId> = gpus.iter().map(|(id, _)| *id).collect();
        if self.linked != ids {
            self.links = topology::links(&gpus);
            self.linked = ids;
        }
        round.links.clone_from(&self.links);
        Ok(round)
    }

    /// Adds a sample of a GPU, and one of each of its instances. False if the GPU is lost.
    fn read_gpu(
        &mut self,
        id: DeviceId,
        gpu: &Device<'nvml>,
        config: &Config,
        to: &mut Vec<Sample>,
    ) -> bool {
        let mut notes = Notes::default();
        let model = self.model(&mut notes, id, gpu);
        let layout = device::layout(&mut notes, gpu);
        let memory = device::memory(&mut notes, gpu);
        let utilisation = match layout {
            Layout::Whole => device::utilisation(&mut notes, gpu),
            // What the parts do is not what the whole does.
            Layout::Divided | Layout::Instance(_) | Layout::Unknown => None,
        };
        let processes = device::processes(&mut notes, gpu, false);
        let mut vitals = device::vitals(&mut notes, self.nvml, gpu);
        vitals.memory_free = memory.as_ref().map(|memory| memory.free.get());
        if let Some(events) = self.events_of(id, gpu) {
            vitals.hears_xids = true;
            vitals.xids = device::xids(&mut notes, events);
        }
        let instances = match layout {
            Layout::Divided => self.instances(&mut notes, id, gpu, model, config),
            Layout::Whole | Layout::Instance(_) | Layout::Unknown => Vec::new(),
        };
        if notes.is_lost {
            self.events.remove(&id);
            return false;
        }
        vitals.unread = notes.unread;
        to.push(Sample {
            device: id,
            model,
            layout,
            memory_total: memory.as_ref().map(|memory| memory.total),
            memory_used: memory.as_ref().map(|memory| memory.used),
            memory_driver: memory.as_ref().map(|memory| memory.driver),
            utilisation,
            processes,
            owner_queue: config.owner_queue,
            health: Health::Unknown,
            vitals,
        });
        to.extend(instances);
        true
    }

    fn model(&mut self, notes: &mut Notes, id: DeviceId, gpu: &Device<'nvml>) -> GpuModel {
        if let Some(known) = self.models.get(&id) {
            return *known;
        }
        let name = notes.of("name", gpu.name());
        match name.as_deref().and_then(model) {
            Some(found) => *self.models.entry(id).or_insert(found),
            None => GpuModel::new(NAMELESS).expect("a word of small letters is a model's name"),
        }
    }

    /// Where the Xids of a GPU are heard; `None` if they cannot be.
    fn events_of(&mut self, id: DeviceId, gpu: &Device<'nvml>) -> Option<&EventSet<'nvml>> {
        let nvml = self.nvml;
        let made = self.events.entry(id).or_insert_with(|| {
            let set = nvml.create_event_set().ok()?;
            gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()
        });
        made.as_ref()
    }

    fn instances(
        &mut self,
        notes: &mut Notes,
        id: DeviceId,
        gpu: &Device<'nvml>,
        model: GpuModel,
        config: &Config,
    ) -> Vec<Sample> {
        let most = match gpu.mig_device_count() {
            Err(NvmlError::NotSupported) => 0,
            got => notes.of("number of MIG instances", got).unwrap_or(0),
        };
        let mut samples = Vec::new();
        for index in 0..most.min(INSTANCES_MAX) {
            // Indices are not in one row: one that is not there says nothing of the next.
            let found = gpu.mig_device_by_index(index);
            let Some(instance) = notes.of("MIG instance", found) else { continue };
            samples.extend(self.instance(notes, (id, gpu), &instance, model, config));
        }
        samples
    }

    fn instance(
        &mut self,
        notes: &mut Notes,
        (gpu_id, gpu): (DeviceId, &Device<'nvml>),
        instance: &Device<'nvml>,
        model: GpuModel,
        config: &Config,
    ) -> Option<Sample> {
        let mut own = Notes::default();
        let uuid = notes.of("UUID of a MIG instance", instance.uuid())?;
        let id = device_id(&uuid)?;
        let number = notes.of("GPU instance", raw::gpu_instance(self.nvml, instance))?;
        let memory = device::memory(&mut own, instance);
        let processes = device::processes(&mut own, instance, true);
        let utilisation = self.activity(id, gpu, number);
        let placement = raw::placement(self.nvml, gpu, number).ok();
        let vitals = Vitals {
            memory_free: memory.as_ref().map(|memory| memory.free.get()),
            unread: own.unread,
            ..Vitals::default()
        };
        let place = Instance { gpu: gpu_id, gpu_instance: number, placement };
        let part = |of: fn(&device::Memory) -> MiB| memory.as_ref().map(of);
        Some(Sample {
            device: id,
            model,
            layout: Layout::Instance(place),
            memory_total: part(|memory| memory.total),
            memory_used: part(|memory| memory.used),
            memory_driver: part(|memory| memory.driver),
            utilisation,
            processes,
            owner_queue: config.owner_queue,
            health: Health::Unknown,
            vitals,
        })
    }

    /// What an instance did since the last round; unknown in the first, and where it is not measured.
    fn activity(
        &mut self,
        id: DeviceId,
        gpu: &Device<'nvml>,
        number: u32,
    ) -> Option<crate::probe::Percent> {
        let Ok(after) = gpu.gpm_mig_sample(number) else {
            self.samples.remove(&id);
            return None;
        };
        let before = self.samples.remove(&id);
        let seen = before.and_then(|before| device::activity(self.nvml, &before, &after));
        self.samples.insert(id, after);
        seen
    }
}

/// Why the library cannot be opened, or does not answer at all.
pub(super) fn open_error(error: &NvmlError) -> Error {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Error::NoLibrary,
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => Error::NoLibrary,
        NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch | NvmlError::Uninitialized => {
            Error::NoDriver
        }
        NvmlError::NoPermission => Error::NoPermission,
        NvmlError::GpuLost => Error::DriverSilent { code: 15 },
        NvmlError::ResetRequired => Error::DriverSilent { code: 16 },
        NvmlError::UnexpectedVariant(code) => Error::DriverSilent { code: *code },
        _ => Error::DriverSilent { code: 999 },
    }
}
