//! Cases as files: events, one JSON object a line, and `expected.json` with the facts that must come of
//! them. Our own are in `fixtures/cases`; the public ones are driven, too, where they are there.

use std::fs;
use std::path::Path;

use serde_json::Value;
use sublet_protocol::units::Timestamp;

use crate::support::{fixtures, shared_case};

/// A case as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Where it comes from, for messages.
    pub(crate) from: String,
    pub(crate) events: Vec<Value>,
    pub(crate) facts: Value,
}

/// Our own case of this name and, if it is there, the public one.
pub(crate) fn cases(name: &str, file: &str) -> Vec<Case> {
    let own = fixtures("cases").join(name);
    let folders = [Some(own), shared_case(name)];
    folders.into_iter().flatten().map(|folder| read(&folder, file)).collect()
}

fn read(folder: &Path, file: &str) -> Case {
    let events = fs::read_to_string(folder.join(file)).unwrap();
    let expected = fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let events = events.lines().filter(|line| !line.is_empty());
    Case {
        from: folder.display().to_string(),
        events: events.map(|line| serde_json::from_str(line).unwrap()).collect(),
        facts: expected["facts"].clone(),
    }
}

/// A field that must be a text.
#[track_caller]
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} of {value}"))
}

/// A field that must be a whole number.
#[track_caller]
pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} of {value}"))
}

/// A field in seconds, in milliseconds: exact to one.
#[track_caller]
pub(crate) fn millis(value: &Value, field: &str) -> u64 {
    let seconds = value[field].to_string();
    let (whole, part) = seconds.split_once('.').unwrap_or((&seconds, "0"));
    let part = format!("{part:0<3}");
    whole.parse::<u64>().unwrap() * 1_000 + part[..3].parse::<u64>().unwrap()
}

/// A field that must be an instant.
#[track_caller]
pub(crate) fn instant(value: &Value, field: &str) -> Timestamp {
    at(text(value, field))
}

/// An instant as RFC 3339 writes it.
#[track_caller]
pub(crate) fn at(text: &str) -> Timestamp {
    let instant: jiff::Timestamp = text.parse().unwrap_or_else(|_| panic!("{text:?}"));
    Timestamp::new(u64::try_from(instant.as_millisecond()).unwrap())
}
