//! Case D12, unit confusion: what people write for amounts, and what it must be taken for.

use std::path::PathBuf;

use serde_json::Value;
use sublet_protocol::units::{GpuMilli, MiB};

use super::{MemoryRange, parse_gpus, parse_memory, parse_memory_range};

/// Text and MiB; none is refused.
const MEMORY: [(&str, Option<u64>); 18] = [
    ("80GiB", Some(81_920)),
    ("80GB", Some(76_294)),
    ("80G", Some(76_294)),
    ("80Gi", Some(81_920)),
    ("81559MiB", Some(81_559)),
    ("81559 MiB", Some(81_559)),
    ("81920M", Some(78_125)),
    ("24gb", None),
    ("24Gb", None),
    ("16384", None),
    ("1.5GiB", Some(1_536)),
    ("0.5GiB", Some(512)),
    ("1000m", None),
    ("40,960MiB", None),
    ("1e3MiB", None),
    ("8GiB..80GiB", None),
    // As a least amount zero is any.
    ("0GiB", Some(0)),
    ("-4GiB", None),
];

/// Text, count and thousandths of each; none is refused.
const GPUS: [(&str, Option<(u32, u64)>); 8] = [
    ("1", Some((1, 1_000))),
    ("gpu:1", Some((1, 1_000))),
    ("1000m", Some((1, 1_000))),
    ("0.5", Some((1, 500))),
    ("gpu:h100:2", Some((2, 1_000))),
    ("h100:2", Some((2, 1_000))),
    ("1x", None),
    ("\u{ff12}", None),
];

#[test]
fn case_d12_amounts_are_taken_for_what_was_written_or_refused() {
    for (text, mib) in MEMORY {
        let read = parse_memory(text);
        assert_eq!(read.as_ref().ok().map(|memory| memory.mib.get()), mib, "{text}: {read:?}");
        if let Ok(memory) = read {
            assert_eq!(memory.text, text, "the text is kept, to be shown again");
        }
    }
    for (text, gpus) in GPUS {
        let read = parse_gpus(text);
        let is = read.as_ref().ok().map(|gpus| (gpus.count, gpus.each.get()));
        assert_eq!(is, gpus, "{text}: {read:?}");
    }
    let range = MemoryRange { least: MiB::new(8_192), most: Some(MiB::new(81_920)) };
    assert_eq!(parse_memory_range("8GiB..80GiB"), Ok(range));
    let [binary, decimal] = ["80GiB", "80GB"].map(|text| parse_memory(text).unwrap().mib);
    let [h100, a100] = [81_559, 81_920].map(MiB::new);
    assert!(binary > h100 && binary <= a100, "80 GiB are not to be had of an H100");
    assert!(decimal <= h100, "80 GB are");
    assert_eq!(binary.checked_sub(h100), Some(MiB::new(361)));
}

/// The facts of the case as they are kept beside the project, where they are.
#[test]
fn case_d12_agrees_with_the_case_as_it_is_kept() {
    let shared = std::env::var_os("SUBLET_SHARED").map(PathBuf::from);
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let path = shared.unwrap_or(beside).join("cases/D12/expected.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("left out: {} is not there", path.display());
        return;
    };
    let case: Value = serde_json::from_str(&text).unwrap();
    let quantities = case["facts"]["quantities"].as_array().unwrap();
    assert_eq!(quantities.len(), MEMORY.len());
    for quantity in quantities {
        let text = quantity["text"].as_str().unwrap();
        let read = parse_memory(text).ok().map(|memory| memory.mib);
        match quantity["mib"].as_f64() {
            // An exponent may be refused; it must not be taken for one.
            Some(mib) => assert!(
                read.is_none_or(|read| read == MiB::new(mib.ceil() as u64))
                    && read != Some(MiB::new(1)),
                "{text}"
            ),
            // Zero may be taken for any.
            None => assert!(read.is_none_or(|read| read == MiB::ZERO), "{text}"),
        }
    }
    for (text, meant) in case["facts"]["gpus"].as_object().unwrap() {
        let read = parse_gpus(text);
        match meant.as_u64() {
            Some(count) => {
                let read = read.unwrap();
                assert_eq!((u64::from(read.count), read.each), (count, GpuMilli::DEVICE), "{text}");
            }
            None if text == "0.5" => assert_eq!(read.unwrap().each, GpuMilli::new(500)),
            None => assert!(read.is_err(), "{text}"),
        }
    }
}
