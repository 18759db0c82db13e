//! Captures made up after real ones, and the public ones where they are there.

use std::path::PathBuf;

use serde_json::Value;

use super::report::Report;
use super::{Inventory, Kind};

fn report(captures: &[&str]) -> Value {
    let mut inventory = Inventory::default();
    for text in captures {
        inventory.add("capture", text, None);
    }
    inventory.apply_faults();
    serde_json::to_value(Report::from(inventory)).unwrap()
}

fn gpu(inner: &str) -> String {
    format!(
        "<?xml version=\"1.0\" ?><!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v11.dtd\">\
         <nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id=\"00000000:2B:00.0\">\
         <uuid>GPU-1</uuid>{inner}</gpu></nvidia_smi_log>"
    )
}

const MEMORY: &str = "<fb_memory_usage><total>16384 MiB</total><used>3 MiB</used>\
    <free>16381 MiB</free></fb_memory_usage>";

#[test]
fn an_idle_gpu_is_offered_with_what_is_free() {
    let idle = "<utilization><gpu_util>0 %</gpu_util></utilization><processes></processes>";
    let found = report(&[&gpu(&format!("{MEMORY}{idle}"))]);
    let device = &found["devices"][0];
    assert_eq!(device["state"], "idle_free");
    assert_eq!(device["offers"][0]["memory_mib"], 16_381);
}

#[test]
fn what_is_not_known_is_null_and_not_offered() {
    for inner in [
        "<utilization><gpu_util>N/A</gpu_util></utilization><processes></processes>",
        "<utilization><gpu_util>0 %</gpu_util></utilization>\
         <processes>Insufficient Permissions</processes>",
    ] {
        let device = &report(&[&gpu(&format!("{MEMORY}{inner}"))])["devices"][0];
        assert_eq!(device["state"], "unknown", "{inner}");
        assert_eq!(device["offers"].as_array().unwrap().len(), 0, "{inner}");
        assert_eq!(device["processes"].is_null(), inner.contains("Permissions"));
    }
}

#[test]
fn a_fault_in_the_log_takes_its_gpu_off_offer_by_its_address() {
    let idle = "<utilization><gpu_util>0 %</gpu_util></utilization><processes></processes>";
    let xml = gpu(&format!("{MEMORY}{idle}"));
    let log = "NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.";
    let device = &report(&[log, &xml])["devices"][0];
    assert_eq!(
        (&device["health"], &device["action"]),
        (&"unhealthy".into(), &"restart_node".into())
    );
    assert_eq!(device["offers"].as_array().unwrap().len(), 0);
}

#[test]
fn half_a_report_and_a_deep_one_are_errors_and_no_reading() {
    let whole = gpu(MEMORY);
    let half = whole.get(..whole.len() / 2).unwrap();
    let deep = format!("<?xml version=\"1.0\" ?>{}", "<a>".repeat(200_000));
    for text in [half, &deep, "{\"jobs\": [", ""] {
        let found = report(&[text]);
        assert_eq!(found["devices"].as_array().unwrap().len(), 0);
        assert_eq!(found["problems"][0]["severity"], "error");
    }
}

#[test]
fn a_lost_gpu_keeps_its_number_and_its_siblings_theirs() {
    let found = report(&["GPU 0: A (UUID: GPU-a)\n\
        Unable to determine the device handle for GPU1: 0000:BA:00.0: GPU is lost.  Reboot it\n\
        GPU 2: A (UUID: GPU-c)\n"]);
    let told: Vec<_> =
        found["devices"].as_array().unwrap().iter().map(|d| (&d["index"], &d["health"])).collect();
    let words = [(0, "unknown"), (1, "unhealthy"), (2, "unknown")];
    for ((index, health), word) in told.into_iter().zip(words) {
        assert_eq!((index, health), (&word.0.into(), &word.1.into()));
    }
}

/// The public captures, where they are there: A01, A06, A08, A12, A13.
#[test]
fn the_public_captures_are_read_as_they_say() {
    let shared = std::env::var_os("SUBLET_SHARED").map(PathBuf::from);
    let shared =
        shared.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let Ok(xml) = std::fs::read_to_string(shared.join("cases/A01/smi.xml")) else {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "left out: no public cases; set SUBLET_SHARED");
        return;
    };
    let case = |name: &str| std::fs::read_to_string(shared.join("cases").join(name)).unwrap();
    let found = report(&[&xml]);
    assert!(found["devices"][0]["utilisation_percent"].is_null());
    let offers: Vec<_> = found["devices"][0]["offers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| &o["gpu_instance"])
        .collect();
    assert_eq!(offers, [3, 5]);
    assert_eq!(found["devices"][1]["offers"][0]["memory_mib"], 80_999);

    let found = report(&[&case("A12/smi.xml")]);
    let told: Vec<_> = found["devices"].as_array().unwrap().iter().map(|d| &d["health"]).collect();
    assert_eq!(told, ["healthy", "degraded", "unhealthy", "healthy", "degraded"]);

    let expected: Value = serde_json::from_str(&case("A13/expected.json")).unwrap();
    let found = report(&[&case("A13/kmsg.log")]);
    for (ours, theirs) in found["faults"]
        .as_array()
        .unwrap()
        .iter()
        .zip(expected["facts"]["lines"].as_array().unwrap())
    {
        for field in ["line", "xid", "pci", "action", "gpu_health_after"] {
            assert_eq!(ours[field], theirs[field], "{theirs}");
        }
    }
    assert_eq!(found["faults"].as_array().unwrap().len(), 15);

    assert_eq!(Kind::of(&case("A06/half-listing.txt")), Some(Kind::SmiList));
    assert_eq!(report(&[&case("A06/half-listing.txt")])["devices"].as_array().unwrap().len(), 4);
    let found = report(&[&case("A08/list-new.txt")]);
    assert_eq!(found["devices"][0]["slices"].as_array().unwrap().len(), 5);
    assert_eq!(found["devices"][1]["slices"].as_array().unwrap().len(), 0);
}
