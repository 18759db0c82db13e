//! One device: each reading by itself, so that one that fails takes no other with it.

use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, ProcessInfo};
use nvml_wrapper::{Device, EventSet, GpmSample, Nvml, enums::gpm::GpmMetricId};
use sublet_protocol::units::MiB;

use super::raw;
use crate::probe::{Cause, Ecc, Layout, Percent, ProcessId, Unread, Vitals};

/// Most Xid events taken of one device in one round; more are taken in the next.
const XIDS_MAX: usize = 64;
/// Beyond these a number is the driver's sign for "unknown", or nonsense.
const CELSIUS_MAX: u32 = 250;
const MILLIWATTS_MAX: u32 = 10_000_000;
const MILLIJOULES_MAX: u64 = 1 << 62;
/// Measured shares of time overshoot a little.
const ACTIVITY_MAX: f64 = 105.0;

/// Takes note of what could not be read.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) unread: Vec<Unread>,
    /// The device is lost, or must be reset before it says anything.
    pub(super) is_lost: bool,
}

impl Notes {
    /// A reading, or nothing, with a note why unless the device does not support it.
    pub(super) fn of<T>(&mut self, reading: &'static str, got: Result<T, NvmlError>) -> Option<T> {
        let error = match got {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.is_lost |= matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired);
        if let Some(cause) = cause(&error) {
            self.unread.push(Unread { reading, cause });
        }
        None
    }
}

/// Why a reading failed; `None` if it is not supported, by the device, the driver or its library.
fn cause(error: &NvmlError) -> Option<Cause> {
    match error {
        NvmlError::NotSupported
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::NoData
        | NvmlError::NotFound
        | NvmlError::VgpuEccNotSupported => None,
        NvmlError::NoPermission => Some(Cause::Permission),
        // The rest is the driver's trouble: lost, reset needed, interrupts, unknown.
        _ => Some(Cause::Device),
    }
}

/// Memory as total, used with the driver's share, that share, and free.
pub(super) struct Memory {
    pub(super) total: MiB,
    pub(super) used: MiB,
    pub(super) driver: MiB,
    pub(super) free: MiB,
}

const fn mib(bytes: u64) -> MiB {
    MiB::new(bytes >> 20)
}

/// The memory of a device. What is used and what is reserved are apart in this call.
pub(super) fn memory(notes: &mut Notes, device: &Device<'_>) -> Option<Memory> {
    let MemoryInfo { total, used, reserved, free, .. } =
        notes.of("memory", device.memory_info())?;
    let taken = used.checked_add(reserved)?;
    (total > 0 && taken <= total && free <= total).then(|| Memory {
        total: mib(total),
        used: mib(taken),
        driver: mib(reserved),
        free: mib(free),
    })
}

/// Whether a GPU is whole. One in MIG mode, or about to be, is not, nor one that serves guests.
pub(super) fn layout(notes: &mut Notes, device: &Device<'_>) -> Layout {
    use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode as Mode;
    let mig = match device.mig_mode() {
        Ok(mode) if mode.current != 0 || mode.pending != 0 => Layout::Divided,
        Ok(_) | Err(NvmlError::NotSupported) => Layout::Whole,
        error => {
            let _ = notes.of("MIG mode", error);
            Layout::Unknown
        }
    };
    match device.virtualization_mode() {
        Ok(Mode::HostVgpu | Mode::HostVsga) => Layout::Divided,
        Ok(Mode::Bare | Mode::PassThrough | Mode::Vgpu) | Err(NvmlError::NotSupported) => mig,
        // A driver too old to tell is too old to serve virtual GPUs.
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => mig,
        Err(error) => {
            let _ = notes.of::<()>("virtualisation mode", Err(error));
            if mig == Layout::Divided { mig } else { Layout::Unknown }
        }
    }
}

/// The share of time with a kernel at work. In MIG mode the driver has none for the whole.
pub(super) fn utilisation(notes: &mut Notes, device: &Device<'_>) -> Option<Percent> {
    let rates = notes.of("utilisation", device.utilization_rates())?;
    let percent = u8::try_from(rates.gpu).ok().filter(|percent| *percent <= 100);
    percent.map(Percent::saturating)
}

/// Processes with a context on a device. Unknown unless both kinds can be read; MIG instances have
/// no graphics, so there the driver may say that it is not supported.
pub(super) fn processes(
    notes: &mut Notes,
    device: &Device<'_>,
    is_instance: bool,
) -> Option<Vec<ProcessId>> {
    let compute = notes.of("compute processes", device.running_compute_processes());
    let graphics = match device.running_graphics_processes() {
        Err(NvmlError::NotSupported) if is_instance => Some(Vec::new()),
        got => notes.of("graphics processes", got),
    };
    let (compute, graphics) = (compute?, graphics?);
    // Under MPS the clients are listed apart; where the driver cannot, the server is in the list.
    let clients = device.mps_running_compute_processes().unwrap_or_default();
    let all = compute.into_iter().chain(graphics).chain(clients);
    let mut all: Vec<ProcessId> = all.map(|ProcessInfo { pid, .. }| ProcessId(pid)).collect();
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// Everything for health and the record that a whole GPU tells.
pub(super) fn vitals(notes: &mut Notes, nvml: &Nvml, device: &Device<'_>) -> Vitals {
    let total = |kind| device.total_ecc_errors(kind, EccCounter::Volatile);
    let corrected = notes.of("corrected ECC errors", total(MemoryError::Corrected));
    let uncorrected = notes.of("uncorrected ECC errors", total(MemoryError::Uncorrected));
    let ecc = corrected.zip(uncorrected);
    let temperature = notes.of("temperature", device.temperature(TemperatureSensor::Gpu));
    let slowdown = device.temperature_threshold(TemperatureThreshold::Slowdown);
    let slowdown = notes.of("temperature of slow-down", slowdown);
    let power = notes.of("power", device.power_usage());
    let energy = notes.of("energy", device.total_energy_consumption());
    Vitals {
        memory_free: None,
        power: power.filter(|power| *power <= MILLIWATTS_MAX),
        energy: energy.filter(|energy| *energy <= MILLIJOULES_MAX),
        temperature: temperature.filter(|celsius| *celsius <= CELSIUS_MAX),
        slowdown: slowdown.filter(|celsius| (1..=CELSIUS_MAX).contains(celsius)),
        ecc: ecc.map(|(corrected, uncorrected)| Ecc { corrected, uncorrected }),
        rows: notes.of("remapped rows", raw::rows(nvml, device)),
        retirement_pending: notes.of("retired pages", device.are_pages_pending_retired()),
        hears_xids: false,
        xids: Vec::new(),
        unread: Vec::new(),
    }
}

/// The Xids that have come since the last look, without waiting for any.
pub(super) fn xids(notes: &mut Notes, events: &EventSet<'_>) -> Vec<u32> {
    let mut heard = Vec::new();
    while heard.len() < XIDS_MAX {
        match events.wait(0) {
            Ok(event) => heard.extend(event.event_data.map(|xid| match xid {
                XidError::Value(code) => u32::try_from(code).unwrap_or(u32::MAX),
                XidError::Unknown => 999,
            })),
            Err(NvmlError::Timeout) => break,
            Err(error) => {
                let _ = notes.of::<()>("Xid events", Err(error));
                break;
            }
        }
    }
    heard
}

/// The share of its time that a MIG instance was at work between two samples, rounded up: a little
/// use is use. `None` if the GPU does not measure it (before Hopper).
pub(super) fn activity<'nvml>(
    nvml: &'nvml Nvml,
    before: &GpmSample<'nvml>,
    after: &GpmSample<'nvml>,
) -> Option<Percent> {
    let metrics = gpm_metrics_get(nvml, before, after, &[GpmMetricId::GraphicsUtil]).ok()?;
    let value = metrics.into_iter().next()?.ok()?.value;
    (0.0..=ACTIVITY_MAX).contains(&value).then(|| percent_rounded_up(value))
}

/// `value` is in 0 to [`ACTIVITY_MAX`].
fn percent_rounded_up(value: f64) -> Percent {
    let whole = (0..100_u8).find(|percent| f64::from(*percent) >= value);
    Percent::saturating(whole.unwrap_or(100))
}
