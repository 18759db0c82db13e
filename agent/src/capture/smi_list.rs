//! `nvidia-smi -L`, and the sentences that `nvidia-smi` prints when a GPU or its driver is gone.

use super::cell;
use super::device::{Device, Finding, Slice, lost};
use super::pci;
use super::problem::Problems;
use crate::xid::{Action, HealthAfter};

const LOST_HANDLE: &str = "Unable to determine the device handle for ";

/// The devices of a listing. A slice belongs to the GPU line above it, whatever its name looks
/// like; a lost GPU keeps its number, and those below it keep theirs.
pub(super) fn read(text: &str, problems: &mut Problems) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for (number, line) in (1_u64..).zip(text.lines()) {
        let line = line.trim_end();
        if let Some(device) = gpu_line(line).or_else(|| lost_line(line)) {
            devices.push(device);
        } else if let Some(slice) = slice_line(line) {
            match devices.last_mut() {
                Some(device) => {
                    device.mig = Some(true);
                    device.slices.push(slice);
                }
                None => problems.warn(Some(number), None, "a MIG device without a GPU above it"),
            }
        } else if let Some((text, advice)) = failure(line) {
            problems.warn_with(Some(number), None, text, advice);
        } else if !line.trim().is_empty() && !line.starts_with(['$', '#']) {
            problems.warn(Some(number), None, "not a line of `nvidia-smi -L`");
        }
    }
    devices
}

/// `GPU 0: NVIDIA H200 (UUID: GPU-…)`.
fn gpu_line(line: &str) -> Option<Device> {
    let (index, rest) = line.strip_prefix("GPU ")?.split_once(": ")?;
    let (model, uuid) = rest.split_once(" (UUID: ")?;
    Some(Device {
        index: Some(index.trim().parse().ok()?),
        model: Some(model.trim().to_owned()),
        uuid: Some(uuid.trim_end_matches(')').to_owned()),
        ..Device::default()
    })
}

/// `  MIG 2c.3g.71gb  Device  1: (UUID: MIG-…)`, the UUID in its old or its new form.
fn slice_line(line: &str) -> Option<Slice> {
    let (head, uuid) = line.trim_start().strip_prefix("MIG ")?.split_once(": (UUID: ")?;
    let (profile, position) = head.split_once("Device")?;
    let uuid = uuid.trim_end_matches(')');
    let old: Vec<&str> =
        uuid.strip_prefix("MIG-GPU-").map_or(Vec::new(), |u| u.split('/').collect());
    let (gpu_instance, compute_instance) = match old.as_slice() {
        [_, gpu, compute] => (gpu.parse().ok(), compute.parse().ok()),
        _ => (None, None),
    };
    Some(Slice {
        position: Some(position.trim().parse().ok()?),
        uuid: Some(uuid.to_owned()),
        profile: Some(profile.trim().to_owned()),
        gpu_instance,
        compute_instance,
        ..Slice::default()
    })
}

/// A line about a GPU that cannot be opened: its number and its address as far as they are told.
pub(super) fn lost_line(line: &str) -> Option<Device> {
    let at = line.find(LOST_HANDLE)?;
    let rest = line.get(at.checked_add(LOST_HANDLE.len())?..)?;
    let (place, why) = rest.rsplit_once(": ")?;
    let place = place.trim().trim_start_matches("GPU");
    let (index, address) = match place.split_once(": ") {
        Some((index, address)) => (index.trim().parse().ok(), address),
        None => (None, place),
    };
    let mut device = Device { index, pci: pci::normal(address.trim()), ..Device::default() };
    device.health_was_read = true;
    match cell::text(why.trim()) {
        Err(cell::Unknown::Lost) => device.find(lost("the driver says that the GPU is lost")),
        Ok(_) | Err(_) => device.find(Finding {
            code: "gpu_lost_suspected",
            text: format!("the device cannot be opened: {}", why.trim()),
            action: Action::RestartNode,
            health: HealthAfter::Unhealthy,
        }),
    }
    Some(device)
}

/// What a sentence of `nvidia-smi` means that names no device, and what to do.
pub(super) fn failure(line: &str) -> Option<(&'static str, &'static str)> {
    let known: [(&str, &str, &str); 4] = [
        (
            "No devices were found",
            "no_devices: the driver finds no GPU",
            "if this node had GPUs a minute ago, they fell off the bus: look for Xid 79",
        ),
        (
            "couldn't communicate with the NVIDIA driver",
            "driver_not_loaded: the driver does not run",
            "load the driver (`modprobe nvidia`) and look at the kernel log",
        ),
        (
            "couldn't find libnvidia-ml.so",
            "library_missing: the driver's library is not there",
            "install the driver's user-space part, or mount it into the container",
        ),
        (
            "Insufficient Permissions",
            "permission: the reader may not see this",
            "run as root or with CAP_SYS_ADMIN; MIG needs access to /dev/nvidia-caps",
        ),
    ];
    let found = known.iter().find(|(words, _, _)| line.contains(words));
    found.map(|(_, text, advice)| (*text, *advice))
}
