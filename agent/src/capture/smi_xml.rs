//! `nvidia-smi -q -x`: the formats of all drivers, by the names of their elements.
//!
//! Elements that a driver lacks are not known; text where children are expected (`N/A`, `None`) is
//! the same. The processes of a device are known to be none only if the list itself could be read.

use roxmltree::{Document, Node, ParsingOptions};

use super::cell::{self, Unknown};
use super::device::{Device, Finding, Process, Processes, Slice};
use super::pci;
use super::problem::Problems;
use crate::xid::{self, Action, HealthAfter};

/// Most elements of a report; a node of 16 GPUs with all slices and counters has some 20,000.
const ELEMENTS_MAX: u32 = 2_000_000;
/// Deepest nesting of elements; reports have eight.
const DEPTH_MAX: usize = 64;
/// Longest tag that is looked through for its end; those of reports have some 60 bytes.
const TAG_BYTES_MAX: usize = 4_096;

/// The devices of a report. One that cannot be parsed yields none and an error: half a report is
/// no reading.
pub(super) fn read(text: &str, problems: &mut Problems) -> Vec<Device> {
    const ADVICE: &str = "the report was cut off or edited: run `nvidia-smi -q -x` again";
    if is_too_deep(text) {
        problems.fail(None, "elements are nested too deeply for a report", ADVICE);
        return Vec::new();
    }
    let options =
        ParsingOptions { allow_dtd: true, nodes_limit: ELEMENTS_MAX, ..ParsingOptions::default() };
    let document = match Document::parse_with_options(text, options) {
        Ok(document) => document,
        Err(error) => {
            let line = u64::from(error.pos().row);
            problems.fail(Some(line), format!("not well-formed XML: {error}"), ADVICE);
            return Vec::new();
        }
    };
    let root = document.root_element();
    let driver = words(root, "driver_version").ok().map(str::to_owned);
    let gpus = root.children().filter(|node| node.has_tag_name("gpu"));
    let devices: Vec<Device> =
        gpus.enumerate().map(|(n, gpu)| device(gpu, n, driver.clone())).collect();
    let attached = words(root, "attached_gpus").ok().and_then(|text| cell::whole(text).ok());
    if attached.is_some_and(|n| usize::try_from(n) != Ok(devices.len())) {
        problems.warn(
            None,
            Some("attached_gpus"),
            format!("the driver counts {attached:?} GPUs, the report lists {}", devices.len()),
        );
    }
    devices
}

/// Whether elements are nested deeper than any report, counted without building anything.
fn is_too_deep(text: &str) -> bool {
    let mut depth = 0_usize;
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        if *byte != b'<' {
            continue;
        }
        match bytes.get(at.saturating_add(1)) {
            Some(b'/') => depth = depth.saturating_sub(1),
            Some(b'?' | b'!') | None => {}
            Some(_) => {
                let tag = bytes.iter().skip(at).take(TAG_BYTES_MAX);
                let before_end = tag.take_while(|b| **b != b'>').last();
                if before_end != Some(&b'/') {
                    depth = depth.saturating_add(1);
                }
            }
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}

fn device(gpu: Node<'_, '_>, position: usize, driver: Option<String>) -> Device {
    let mut device = Device { driver, ..Device::default() };
    let minor = words(gpu, "minor_number").ok().and_then(|text| cell::whole(text).ok());
    device.index = u64::try_from(position).ok().or(minor);
    device.uuid = words(gpu, "uuid").ok().map(str::to_owned);
    let bus = gpu.attribute("id").or_else(|| words(gpu, "pci/pci_bus_id").ok());
    device.pci = bus.and_then(pci::normal);
    device.model = words(gpu, "product_name").ok().map(str::to_owned);
    memory(&mut device, gpu);
    let busy = words(gpu, "utilization/gpu_util").and_then(cell::percent);
    device.utilisation = device.take("utilisation_percent", busy);
    for readings in ["gpu_power_readings", "power_readings"] {
        for field in ["power_draw", "instant_power_draw", "average_power_draw"] {
            let drawn = words(gpu, &format!("{readings}/{field}")).and_then(cell::thousandths);
            device.power = device.power.or(drawn.ok());
        }
    }
    device.mig = words(gpu, "mig_mode/current_mig").and_then(cell::switch).ok();
    device.processes = processes(gpu);
    if let Processes::Unknown(why) = device.processes {
        device.gap("processes", why);
    }
    if let Some(list) = child(gpu, "mig_devices") {
        let found = list.children().filter(|node| node.has_tag_name("mig_device"));
        device.slices = found.map(slice).collect();
    }
    health(&mut device, gpu);
    device
}

fn memory(device: &mut Device, gpu: Node<'_, '_>) {
    let field =
        |name: &str| words(gpu, &format!("fb_memory_usage/{name}")).and_then(cell::mebibytes);
    device.memory_total = device.take("memory_total_mib", field("total"));
    device.memory_reserved = field("reserved").ok();
    device.memory_used = device.take("memory_used_mib", field("used"));
    device.memory_free = device.take("memory_free_mib", field("free"));
}

fn slice(node: Node<'_, '_>) -> Slice {
    let number = |path: &str| words(node, path).and_then(cell::whole).ok();
    let memory = |path: &str| words(node, path).and_then(cell::mebibytes).ok();
    Slice {
        position: number("index"),
        uuid: words(node, "uuid").ok().map(str::to_owned),
        profile: None,
        gpu_instance: number("gpu_instance_id"),
        compute_instance: number("compute_instance_id"),
        multiprocessors: number("device_attributes/shared/multiprocessor_count"),
        memory_total: memory("fb_memory_usage/total"),
        memory_used: memory("fb_memory_usage/used"),
        memory_free: memory("fb_memory_usage/free"),
        engine_active: None,
    }
}

fn processes(gpu: Node<'_, '_>) -> Processes {
    let Some(list) = child(gpu, "processes") else { return Processes::NotAsked };
    let found: Vec<_> = list.children().filter(|node| node.has_tag_name("process_info")).collect();
    let said = list.text().map_or("", str::trim);
    if found.is_empty() && !said.is_empty() && !said.eq_ignore_ascii_case("none") {
        return Processes::Unknown(cell::text(said).err().unwrap_or(Unknown::Unreadable));
    }
    let process = |node: Node<'_, '_>| Process {
        pid: words(node, "pid").and_then(cell::whole).unwrap_or(0),
        name: words(node, "process_name").ok().and_then(process_name),
        memory_mib: words(node, "used_memory").and_then(cell::mebibytes).ok(),
        gpu_instance: words(node, "gpu_instance_id").and_then(cell::whole).ok(),
    };
    Processes::Known(found.into_iter().map(process).collect())
}

/// The name of a program; the driver's word for one that it cannot find is none.
pub(super) fn process_name(text: &str) -> Option<String> {
    let bare = text.trim().trim_start_matches('[').trim_end_matches(']');
    let is_no_name = matches!(bare.to_ascii_lowercase().as_str(), "not found" | "" | "-");
    if is_no_name || cell::text(text).is_err() { None } else { Some(text.trim().to_owned()) }
}

/// What the driver says of errors, remapped rows and recovery.
fn health(device: &mut Device, gpu: Node<'_, '_>) {
    let switch = |path: &str| words(gpu, path).and_then(cell::switch).ok();
    let pending = switch("remapped_rows/remapped_row_pending");
    let failed = switch("remapped_rows/remapped_row_failure");
    let retiring = switch("retired_pages/pending_retirement")
        .or_else(|| switch("retired_pages/pending_blacklist"));
    let threshold = switch("ecc_errors/aggregate/sram_threshold_exceeded");
    let reset = switch("gpu_reset_status/reset_required");
    let drain = switch("gpu_reset_status/drain_and_reset_recommended");
    let recovery = words(gpu, "gpu_recovery_action").ok();
    device.health_was_read =
        [pending, failed, retiring, reset, drain].iter().any(Option::is_some) || recovery.is_some();
    let mut sick = |is_so: Option<bool>, code, text: &str, action, health| {
        if is_so == Some(true) {
            device.find(Finding { code, text: text.to_owned(), action, health });
        }
    };
    sick(failed, "remap_failure", "remap failure", Action::Replace, HealthAfter::Unhealthy);
    sick(
        threshold,
        "sram_threshold",
        "too many uncorrectable SRAM errors",
        Action::Replace,
        HealthAfter::Unhealthy,
    );
    sick(pending, "remap_pending", "remap pending", Action::ResetGpu, HealthAfter::Degraded);
    let page = "page retirement pending";
    sick(retiring, "retirement_pending", page, Action::ResetGpu, HealthAfter::Degraded);
    sick(reset, "reset_required", "reset required", Action::ResetGpu, HealthAfter::Degraded);
    let text = "drain and reset recommended";
    sick(drain, "drain_recommended", text, Action::DrainAndReset, HealthAfter::Degraded);
    match recovery.map(|words| (words, xid::recovery_action(words))) {
        Some((_, Some((Action::Ignore, _)))) | None => {}
        Some((words, Some((action, health)))) => {
            let text = format!("the driver asks for: {words}");
            device.find(Finding { code: "recovery_action", text, action, health });
        }
        Some((words, None)) => {
            device.notes.push(format!("the driver's recovery action {words:?} is not known here"));
        }
    }
    let counter =
        |name: &str| words(gpu, &format!("ecc_errors/volatile/{name}")).and_then(cell::whole).ok();
    let uncorrected: Vec<u64> = [
        "sram_uncorrectable",
        "sram_uncorrectable_parity",
        "sram_uncorrectable_secded",
        "dram_uncorrectable",
    ]
    .iter()
    .filter_map(|name| counter(name))
    .collect();
    if !uncorrected.is_empty() {
        device.ecc_uncorrected = Some(uncorrected.iter().sum());
    }
    let remapped = words(gpu, "remapped_rows/remapped_row_unc").and_then(cell::whole);
    if remapped.is_ok_and(|rows| rows > 0) && pending == Some(false) && failed == Some(false) {
        device.notes.push("past remaps, none pending".to_owned());
    }
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|inner| inner.has_tag_name(name))
}

/// The text at `path` below `node`, or why there is no value.
fn words<'a>(node: Node<'a, '_>, path: &str) -> Result<&'a str, Unknown> {
    let mut at = node;
    for name in path.split('/') {
        at = child(at, name).ok_or(Unknown::NotReported)?;
    }
    cell::text(at.text().unwrap_or(""))
}
