//! The bytes of everything that is stored or sent, frozen.
//!
//! `tests/golden/*.txt` hold one line per sample: its name and its bytes in hex. A line is never
//! edited: what was written once must be read for ever. A new sample (a new variant at the end of a
//! list, or a new version) is added by running with `SUBLET_GOLDEN=add`, which only appends.
#![allow(clippy::unwrap_used, reason = "tests may stop on a surprise")]
#![allow(unreachable_pub, missing_docs, reason = "a test has no public items")]

mod samples;

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::path::PathBuf;

use sublet_protocol::codec::{self, Format};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().collect();
    let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
    pairs.map(|pair| u8::from_str_radix(&pair, 16).unwrap()).collect()
}

fn check<T: Format + PartialEq + Debug>(file: &str, samples: &[(String, T)]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    let mut text = std::fs::read_to_string(&path).unwrap_or_default();
    let known: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, hex)| (name.to_owned(), hex.to_owned()))
        .collect();
    let names: Vec<&String> = samples.iter().map(|(name, _)| name).collect();
    for name in known.keys() {
        assert!(names.contains(&name), "{file}: {name} is frozen and has no sample any more");
    }
    let may_add = std::env::var_os("SUBLET_GOLDEN").is_some_and(|value| value == "add");
    for (name, value) in samples {
        let bytes = codec::encode(value).unwrap();
        assert_eq!(&codec::decode::<T>(&bytes).unwrap(), value, "{name} survives its bytes");
        let json = serde_json::to_string(value).unwrap();
        let back: T = serde_json::from_str(&json).unwrap();
        assert_eq!(&back, value, "{name} survives its JSON form");
        match known.get(name) {
            Some(frozen) => {
                assert_eq!(&hex(&bytes), frozen, "{file}: the bytes of {name} have changed");
                assert_eq!(&codec::decode::<T>(&unhex(frozen)).unwrap(), value);
            }
            None if may_add => writeln!(text, "{name} {}", hex(&bytes)).unwrap(),
            None => panic!("{file}: {name} is new: run once with SUBLET_GOLDEN=add"),
        }
    }
    if may_add {
        std::fs::write(&path, text).unwrap();
    }
}

#[test]
fn the_bytes_of_records_never_change() {
    check("record-v1.txt", &samples::records());
}

#[test]
fn the_bytes_of_commands_never_change() {
    check("command-v1.txt", &samples::commands());
}

#[test]
fn the_bytes_of_outcomes_never_change() {
    check("outcome-v1.txt", &samples::outcomes());
}

#[test]
fn the_bytes_of_messages_never_change() {
    check("up-v1.txt", &samples::up());
    check("down-v1.txt", &samples::down());
    check("reply-v1.txt", &samples::replies());
}

#[test]
fn a_version_that_is_not_known_is_refused_and_so_are_bytes_left_over() {
    let (_, record) = samples::records().remove(0);
    let mut bytes = codec::encode(&record).unwrap();
    bytes.push(0);
    let error = codec::decode_record(&bytes).unwrap_err().to_string();
    assert_eq!(error, "1 bytes left over after a record");
    bytes.pop();
    bytes[0] = 2;
    let error = codec::decode_record(&bytes).unwrap_err().to_string();
    assert_eq!(error, "version 2 of record is not known (this program knows 1)");
    assert!(matches!(codec::decode_record(&[]), Err(codec::Error::Empty)));
}

#[test]
fn every_truncation_of_a_record_is_refused() {
    for (name, record) in samples::records() {
        let bytes = codec::encode(&record).unwrap();
        for length in 0..bytes.len() {
            assert!(codec::decode_record(&bytes[..length]).is_err(), "{name} cut to {length}");
        }
    }
}

#[test]
fn a_claimed_length_that_the_bytes_do_not_have_is_refused_without_allocating_it() {
    // A tenant id of 2⁶⁰ bytes: version, index, term, time, cause, actor tag, then the length.
    let mut bytes = vec![1, 0, 0, 0];
    bytes.extend([0; 16]);
    bytes.extend([0, 253]);
    bytes.extend((1_u64 << 60).to_le_bytes());
    assert!(matches!(codec::decode_record(&bytes), Err(codec::Error::Malformed { .. })));
}
