//! What would be offered of a device, and why the rest would not: one look, judged.
//!
//! A single look cannot show that a device is idle for long enough; an offer says what it takes
//! for granted. What was asked for and is not known is never offered.

use serde::Serialize;

use super::Inventory;
use super::device::{Device, Finding, Gap, Process, Processes, Slice};
use super::kernel_log::Fault;
use super::problem::Problem;
use crate::xid::{Action, HealthAfter};

/// Highest utilisation of an idle device, percent (the idle rule of the agent).
const UTILISATION_IDLE_MAX: u8 = 3;
/// Memory above the driver's own share that an idle device may show, MiB (the same rule).
const MEMORY_IDLE_MAX: u64 = 256;

/// What a device does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not used by anybody.
    IdleFree,
    /// Memory or a process without use.
    Held,
    /// In use.
    Busy,
    /// The captures cannot tell.
    Unknown,
}

/// How well a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Nothing speaks against it.
    Healthy,
    /// It keeps what runs and takes nothing new.
    Degraded,
    /// What runs there ends.
    Unhealthy,
    /// No capture says.
    Unknown,
}

/// A part of a device that would be offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// `whole_gpu` or `mig_slice`.
    pub kind: &'static str,
    /// The position of the slice under its device.
    pub slice: Option<u64>,
    /// The GPU instance of the slice.
    pub gpu_instance: Option<u64>,
    /// Device memory, MiB: what is free, never the total.
    pub memory_mib: u64,
    /// What the captures do not show and an offer would need.
    pub assumes: Vec<&'static str>,
}

/// Why something is not offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyNot {
    /// A stable word.
    pub code: &'static str,
    /// In words.
    pub text: String,
}

/// A slice as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are those of `Slice`, under the names of the output")]
pub struct SliceLine {
    pub position: Option<u64>,
    pub uuid: Option<String>,
    pub profile: Option<String>,
    pub gpu_instance: Option<u64>,
    pub compute_instance: Option<u64>,
    pub multiprocessors: Option<u64>,
    pub memory_total_mib: Option<u64>,
    pub memory_free_mib: Option<u64>,
    pub state: State,
    pub pids: Option<Vec<u64>>,
}

/// A device as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are those of `Device`, under the names of the output")]
pub struct DeviceLine {
    pub uuid: Option<String>,
    pub index: Option<u64>,
    pub pci: Option<String>,
    pub model: Option<String>,
    pub driver: Option<String>,
    pub memory_total_mib: Option<u64>,
    pub memory_reserved_mib: Option<u64>,
    pub memory_used_mib: Option<u64>,
    pub memory_free_mib: Option<u64>,
    pub utilisation_percent: Option<u8>,
    pub power_milliwatts: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub last_xid: Option<u32>,
    pub mig: Option<bool>,
    pub state: State,
    pub health: Health,
    pub action: Option<Action>,
    pub findings: Vec<Finding>,
    pub notes: Vec<String>,
    pub unknown: Vec<Gap>,
    pub processes: Option<Vec<Process>>,
    pub slices: Vec<SliceLine>,
    pub offers: Vec<Offer>,
    pub why_not: Vec<WhyNot>,
}

/// All that is printed.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The devices.
    pub devices: Vec<DeviceLine>,
    /// The Xid lines.
    pub faults: Vec<Fault>,
    /// What could not be read.
    pub problems: Vec<Problem>,
}

impl From<Inventory> for Report {
    fn from(inventory: Inventory) -> Self {
        let devices = inventory.devices.into_iter().map(line).collect();
        Self { devices, faults: inventory.faults, problems: inventory.problems }
    }
}

fn line(device: Device) -> DeviceLine {
    let state = state(&device);
    let health = health(&device);
    let action = device.findings.iter().map(|finding| finding.action).max();
    let slices: Vec<SliceLine> = device.slices.iter().map(|s| slice_line(&device, s)).collect();
    let mut why_not = why_not(&device, state, health);
    let offers = if why_not.is_empty() { offers(&device, &slices, health) } else { Vec::new() };
    if offers.is_empty() && why_not.is_empty() {
        let text = "no part of it is idle with memory that is known to be free".to_owned();
        why_not.push(WhyNot { code: "nothing_free", text });
    }
    DeviceLine {
        uuid: device.uuid,
        index: device.index,
        pci: device.pci,
        model: device.model,
        driver: device.driver,
        memory_total_mib: device.memory_total,
        memory_reserved_mib: device.memory_reserved,
        memory_used_mib: device.memory_used,
        memory_free_mib: device.memory_free,
        utilisation_percent: device.utilisation,
        power_milliwatts: device.power,
        ecc_uncorrected: device.ecc_uncorrected,
        last_xid: device.last_xid,
        mig: device.mig,
        state,
        health,
        action,
        findings: device.findings,
        notes: device.notes,
        unknown: device.gaps,
        processes: match device.processes {
            Processes::Known(list) => Some(list),
            Processes::NotAsked | Processes::Unknown(_) => None,
        },
        slices,
        offers,
        why_not,
    }
}

fn is_divided(device: &Device) -> bool {
    device.mig == Some(true) || !device.slices.is_empty()
}

fn health(device: &Device) -> Health {
    match device.findings.iter().map(|finding| finding.health).max() {
        Some(HealthAfter::Unhealthy) => Health::Unhealthy,
        Some(HealthAfter::Degraded) => Health::Degraded,
        Some(HealthAfter::Healthy) | None if device.health_was_read => Health::Healthy,
        Some(HealthAfter::Healthy) | None => Health::Unknown,
    }
}

/// The state of a whole device. `used` may or may not hold the driver's share, by driver: it is
/// compared with the allowance alone, which refuses more, never less.
fn state(device: &Device) -> State {
    let has_process = match &device.processes {
        Processes::Known(list) => !list.is_empty(),
        Processes::NotAsked => false,
        Processes::Unknown(_) => return State::Unknown,
    };
    match (device.utilisation, device.memory_used) {
        (Some(busy), _) if busy > UTILISATION_IDLE_MAX => State::Busy,
        (Some(_), Some(used)) if used > MEMORY_IDLE_MAX || has_process => State::Held,
        (Some(_), Some(_)) => State::IdleFree,
        (None, _) | (_, None) => State::Unknown,
    }
}

fn slice_line(device: &Device, slice: &Slice) -> SliceLine {
    let pids: Option<Vec<u64>> = match &device.processes {
        Processes::Known(list) => {
            let on_it = list.iter().filter(|process| process.gpu_instance == slice.gpu_instance);
            Some(on_it.map(|process| process.pid).collect())
        }
        Processes::NotAsked | Processes::Unknown(_) => None,
    };
    let state = match (&pids, slice.memory_used) {
        (Some(pids), _) if !pids.is_empty() => State::Busy,
        (_, Some(used)) if used > MEMORY_IDLE_MAX => State::Held,
        (Some(_), Some(_)) => State::IdleFree,
        (None, _) | (_, None) => State::Unknown,
    };
    SliceLine {
        position: slice.position,
        uuid: slice.uuid.clone(),
        profile: slice.profile.clone(),
        gpu_instance: slice.gpu_instance,
        compute_instance: slice.compute_instance,
        multiprocessors: slice.multiprocessors,
        memory_total_mib: slice.memory_total,
        memory_free_mib: slice.memory_free,
        state,
        pids,
    }
}

/// Why nothing of the device is offered; empty if parts of it may be.
fn why_not(device: &Device, state: State, health: Health) -> Vec<WhyNot> {
    let mut why = Vec::new();
    if matches!(health, Health::Degraded | Health::Unhealthy) {
        why.extend(
            device
                .findings
                .iter()
                .filter(|f| f.health != HealthAfter::Healthy)
                .map(|f| WhyNot { code: f.code, text: f.text.clone() }),
        );
    }
    if is_divided(device) {
        return why;
    }
    let (code, text) = match state {
        State::IdleFree => return why,
        State::Held => ("held", "memory or a process without use"),
        State::Busy => ("busy", "in use"),
        State::Unknown => ("unknown", "use, memory or processes are not known"),
    };
    why.push(WhyNot { code, text: text.to_owned() });
    why
}

fn offers(device: &Device, slices: &[SliceLine], health: Health) -> Vec<Offer> {
    let mut assumes = vec!["idle for the whole period", "nothing of the owner's queue is there"];
    if health == Health::Unknown {
        assumes.push("healthy");
    }
    if device.processes == Processes::NotAsked {
        assumes.push("no process");
    }
    if !is_divided(device) {
        let whole = device.memory_free.map(|memory_mib| Offer {
            kind: "whole_gpu",
            slice: None,
            gpu_instance: None,
            memory_mib,
            assumes,
        });
        return whole.into_iter().collect();
    }
    let idle = slices.iter().filter(|slice| slice.state == State::IdleFree);
    idle.filter_map(|slice| {
        slice.memory_free_mib.map(|memory_mib| Offer {
            kind: "mig_slice",
            slice: slice.position,
            gpu_instance: slice.gpu_instance,
            memory_mib,
            assumes: assumes.clone(),
        })
    })
    .collect()
}
