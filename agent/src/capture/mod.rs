//! Captures: what `nvidia-smi` and the kernel log say, as text from any machine.
//!
//! Pure: text in, devices and faults out. What cannot be read is a [`problem::Problem`] with its
//! file and line. Whether a device would be offered is judged in [`report`].

pub mod cell;
pub mod device;
pub mod kernel_log;
pub mod pci;
pub mod problem;
pub mod report;
mod smi_list;
mod smi_xml;

use device::{Device, Finding};
use kernel_log::Fault;
use problem::{Problem, Problems};

use crate::xid::HealthAfter;

/// Largest file that is read: 64 MiB.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `nvidia-smi -q -x`.
    SmiXml,
    /// `nvidia-smi -L`, or what it prints when it fails.
    SmiList,
    /// A kernel log.
    KernelLog,
}

impl Kind {
    /// Recognises a file by what is in it. `None` if it is none of ours.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let start = text.trim_start_matches('\u{feff}').trim_start();
        let is_listing = |line: &str| {
            line.starts_with("GPU ") && line.contains("(UUID: ")
                || smi_list::lost_line(line).is_some()
                || smi_list::failure(line).is_some()
        };
        if start.starts_with("<?xml") || start.starts_with("<nvidia_smi_log") {
            Some(Self::SmiXml)
        } else if text.contains("NVRM: Xid (") {
            Some(Self::KernelLog)
        } else if text.lines().any(is_listing) {
            Some(Self::SmiList)
        } else {
            None
        }
    }
}

/// All that several captures say together.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The devices, in the order in which they were met.
    pub devices: Vec<Device>,
    /// The Xid lines.
    pub faults: Vec<Fault>,
    /// What could not be read.
    pub problems: Vec<Problem>,
}

impl Inventory {
    /// Reads one capture into the inventory; `kind` is what it is if the caller knows.
    pub fn add(&mut self, file: &str, text: &str, kind: Option<Kind>) {
        let mut problems = Problems::default();
        match kind.or_else(|| Kind::of(text)) {
            None => problems.fail(
                None,
                "not a capture that is known",
                "give `nvidia-smi -q -x`, `nvidia-smi -L` or a kernel log with Xid lines, or name \
                 it with --kind",
            ),
            Some(Kind::SmiXml) => {
                let devices = smi_xml::read(text, &mut problems);
                self.take(devices, &mut problems);
            }
            Some(Kind::SmiList) => {
                let devices = smi_list::read(text, &mut problems);
                self.take(devices, &mut problems);
            }
            Some(Kind::KernelLog) => {
                let (faults, left_out) = kernel_log::read(text);
                if left_out > 0 {
                    problems.warn(None, None, format!("{left_out} more Xid lines"));
                }
                self.faults.extend(faults);
            }
        }
        self.problems.extend(problems.of_file(file));
    }

    /// Joins devices of one UUID or, where one has none, of one PCI address. Never by index.
    fn take(&mut self, devices: Vec<Device>, problems: &mut Problems) {
        for device in devices {
            let same = self.devices.iter_mut().find(|known| match (&known.uuid, &device.uuid) {
                (Some(ours), Some(theirs)) => ours == theirs,
                _ => known.pci.is_some() && known.pci == device.pci,
            });
            match same {
                Some(known) => {
                    for field in known.merge(device) {
                        let text = "differs from an earlier capture, which counts";
                        problems.warn(None, Some(field), text);
                    }
                }
                None => self.devices.push(device),
            }
        }
    }

    /// Lets each device know the faults at its address. Call it once, after the last capture.
    pub fn apply_faults(&mut self) {
        for fault in &self.faults {
            let at = self.devices.iter_mut().find(|d| d.pci.is_some() && d.pci == fault.pci);
            let Some(device) = at else { continue };
            device.last_xid = Some(fault.xid);
            device.health_was_read = true;
            if fault.gpu_health_after != HealthAfter::Healthy {
                device.find(Finding {
                    code: "xid",
                    text: format!("Xid {}: {}", fault.xid, fault.meaning),
                    action: fault.action,
                    health: fault.gpu_health_after,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
