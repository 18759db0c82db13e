//! What captures say about one device, before anything is judged.

use serde::Serialize;

use super::cell::Unknown;
use crate::xid::{Action, HealthAfter};

/// A program that holds a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its number, in the process namespace of whoever looked.
    pub pid: u64,
    /// Its name; `None` if the driver could not find the process (it is gone, or in another
    /// namespace).
    pub name: Option<String>,
    /// Device memory it holds.
    pub memory_mib: Option<u64>,
    /// The MIG GPU instance that it is on.
    pub gpu_instance: Option<u64>,
}

/// The list of programs on a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Processes {
    /// No capture was asked for it.
    #[default]
    NotAsked,
    /// It was read; it may be empty.
    Known(Vec<Process>),
    /// It was asked for and could not be read.
    Unknown(Unknown),
}

/// A MIG slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slice {
    /// Its place in the list under its device.
    pub position: Option<u64>,
    /// As the driver prints it: that is what `CUDA_VISIBLE_DEVICES` takes.
    pub uuid: Option<String>,
    /// The profile's name, a label only: memory is read from the device.
    pub profile: Option<String>,
    /// GPU instance.
    pub gpu_instance: Option<u64>,
    /// Compute instance.
    pub compute_instance: Option<u64>,
    /// Multiprocessors.
    pub multiprocessors: Option<u64>,
    /// All its memory.
    pub memory_total: Option<u64>,
    /// Memory in use.
    pub memory_used: Option<u64>,
    /// Memory that is free.
    pub memory_free: Option<u64>,
    /// Share of time in which its engines worked, in thousandths.
    pub engine_active: Option<u64>,
}

/// Something that a capture says about the health of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable word.
    pub code: &'static str,
    /// In words.
    pub text: String,
    /// What it asks for.
    pub action: Action,
    /// What is left of the device.
    pub health: HealthAfter,
}

/// A field that is not known although it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Gap {
    /// Which field.
    pub field: &'static str,
    /// Why.
    pub reason: Unknown,
}

/// What captures say about one device. `None` is not known, never zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// The node, where the capture names it.
    pub node: Option<String>,
    /// The driver's number for it; a label, never an identity.
    pub index: Option<u64>,
    /// Its UUID: what it is known by.
    pub uuid: Option<String>,
    /// Its PCI address, as [`super::pci`] writes it.
    pub pci: Option<String>,
    /// Its model.
    pub model: Option<String>,
    /// The driver's version.
    pub driver: Option<String>,
    /// All its memory, MiB.
    pub memory_total: Option<u64>,
    /// What the driver keeps for itself, MiB.
    pub memory_reserved: Option<u64>,
    /// In use, MiB.
    pub memory_used: Option<u64>,
    /// Free, MiB, as the driver says; never computed.
    pub memory_free: Option<u64>,
    /// Share of the last period in which a kernel ran, percent.
    pub utilisation: Option<u8>,
    /// Share of time in which its engines worked, in thousandths.
    pub engine_active: Option<u64>,
    /// Power drawn, milliwatts.
    pub power: Option<u64>,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// The last Xid that the driver remembers.
    pub last_xid: Option<u32>,
    /// Whether it is divided by MIG.
    pub mig: Option<bool>,
    /// Its slices.
    pub slices: Vec<Slice>,
    /// The programs on it.
    pub processes: Processes,
    /// Which pod of Kubernetes holds it, as `namespace/name`.
    pub owner: Option<String>,
    /// Whether any capture could have told that it is sick.
    pub health_was_read: bool,
    /// What speaks against its health.
    pub findings: Vec<Finding>,
    /// What is worth knowing and changes nothing.
    pub notes: Vec<String>,
    /// What was asked for and is not known.
    pub gaps: Vec<Gap>,
}

impl Device {
    /// Takes `value` for a field, or notes why there is none.
    pub fn take<T>(&mut self, field: &'static str, value: Result<T, Unknown>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(reason) => {
                self.gap(field, reason);
                None
            }
        }
    }

    /// Notes that `field` is not known. What the device itself cannot answer makes it sick.
    pub fn gap(&mut self, field: &'static str, reason: Unknown) {
        let gap = Gap { field, reason };
        if !self.gaps.contains(&gap) {
            self.gaps.push(gap);
        }
        match reason {
            Unknown::DeviceError => self.find(Finding {
                code: "device_error",
                text: "the device does not answer questions about itself".to_owned(),
                action: Action::ResetGpu,
                health: HealthAfter::Degraded,
            }),
            Unknown::Lost => self.find(lost("the driver says that the GPU is lost")),
            Unknown::NotReported | Unknown::Permission | Unknown::Unreadable => {}
        }
    }

    /// Adds a finding, once.
    pub fn find(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Takes over what `other` knows of the same device and this one does not. Two values that
    /// differ stay as they were here, and their field is returned.
    pub fn merge(&mut self, other: Self) -> Vec<&'static str> {
        let mut differ = Vec::new();
        let mut conflicts = |field, is_conflict: bool| {
            if is_conflict {
                differ.push(field);
            }
        };
        conflicts("memory_total", fill(&mut self.memory_total, other.memory_total));
        conflicts("memory_reserved", fill(&mut self.memory_reserved, other.memory_reserved));
        conflicts("memory_used", fill(&mut self.memory_used, other.memory_used));
        conflicts("memory_free", fill(&mut self.memory_free, other.memory_free));
        conflicts("utilisation", fill(&mut self.utilisation, other.utilisation));
        conflicts("model", fill(&mut self.model, other.model));
        conflicts("index", fill(&mut self.index, other.index));
        conflicts("pci", fill(&mut self.pci, other.pci));
        conflicts("mig", fill(&mut self.mig, other.mig));
        fill(&mut self.node, other.node);
        fill(&mut self.uuid, other.uuid);
        fill(&mut self.driver, other.driver);
        fill(&mut self.engine_active, other.engine_active);
        fill(&mut self.power, other.power);
        fill(&mut self.ecc_uncorrected, other.ecc_uncorrected);
        fill(&mut self.last_xid, other.last_xid);
        fill(&mut self.owner, other.owner);
        self.health_was_read |= other.health_was_read;
        for slice in other.slices {
            self.merge_slice(slice);
        }
        self.merge_processes(other.processes);
        other.findings.into_iter().for_each(|finding| self.find(finding));
        self.notes.extend(other.notes);
        for gap in other.gaps {
            if !self.gaps.contains(&gap) {
                self.gaps.push(gap);
            }
        }
        differ
    }

    /// Takes over a slice: the same position, or the same GPU instance where no position is told.
    pub fn merge_slice(&mut self, slice: Slice) {
        let same = self.slices.iter_mut().find(|known| match (known.position, slice.position) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => known.gpu_instance.is_some() && known.gpu_instance == slice.gpu_instance,
        });
        let Some(known) = same else {
            self.slices.push(slice);
            return;
        };
        fill(&mut known.uuid, slice.uuid);
        fill(&mut known.profile, slice.profile);
        fill(&mut known.gpu_instance, slice.gpu_instance);
        fill(&mut known.compute_instance, slice.compute_instance);
        fill(&mut known.multiprocessors, slice.multiprocessors);
        fill(&mut known.memory_total, slice.memory_total);
        fill(&mut known.memory_used, slice.memory_used);
        fill(&mut known.memory_free, slice.memory_free);
        fill(&mut known.engine_active, slice.engine_active);
    }

    fn merge_processes(&mut self, other: Processes) {
        let theirs = match other {
            Processes::NotAsked => return,
            Processes::Unknown(why) => {
                if self.processes == Processes::NotAsked {
                    self.processes = Processes::Unknown(why);
                }
                return;
            }
            Processes::Known(theirs) => theirs,
        };
        match &mut self.processes {
            Processes::Known(ours) => {
                for process in theirs {
                    if !ours.iter().any(|known| known.pid == process.pid) {
                        ours.push(process);
                    }
                }
            }
            Processes::NotAsked | Processes::Unknown(_) => {
                self.processes = Processes::Known(theirs);
            }
        }
    }
}

/// The finding of a device that is not on the bus any more.
#[must_use]
pub fn lost(text: &str) -> Finding {
    Finding {
        code: "gpu_lost",
        text: text.to_owned(),
        action: Action::RestartNode,
        health: HealthAfter::Unhealthy,
    }
}

/// Fills what is not known; says whether both were known and differ.
fn fill<T: PartialEq>(ours: &mut Option<T>, theirs: Option<T>) -> bool {
    match (&*ours, theirs) {
        (Some(mine), Some(other)) => *mine != other,
        (None, theirs) => {
            *ours = theirs;
            false
        }
        (Some(_), None) => false,
    }
}
