//! Case D24: what counts as the same record. The hash is over one canonical form, never over the text
//! that a record happens to be written in.
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "shared with the unit tests and the measurement")]
mod support;

use sublet_ledger::merkle::Hash;
use sublet_protocol::codec::encode_record;
use sublet_protocol::records::Record;

/// The leaf hash of a record written as JSON; nothing if that is refused.
fn leaf(text: &str) -> Option<Hash> {
    let record: Record = serde_json::from_str(text).ok()?;
    encode_record(&record).ok().map(|bytes| Hash::of_leaf(&bytes))
}

fn written() -> String {
    serde_json::to_string(&support::record(64)).unwrap()
}

#[test]
fn case_d24_the_same_record_in_other_words_has_the_same_hash() {
    let value: serde_json::Value = serde_json::from_str(&written()).unwrap();
    let same = leaf(&written()).unwrap();
    assert_eq!(same, Hash::of_leaf(&encode_record(&support::record(64)).unwrap()));
    assert_eq!(leaf(&serde_json::to_string_pretty(&value).unwrap()), Some(same));
    // Members in the opposite order.
    let members = value.as_object().unwrap().iter().rev();
    let turned: serde_json::Map<_, _> = members.map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_ne!(serde_json::to_string(&turned).unwrap(), written());
    assert_eq!(leaf(&serde_json::to_string(&turned).unwrap()), Some(same));
    assert_eq!(leaf(&written().replace("owner", "\\u006fwner")), Some(same), "escapes");
}

#[test]
fn case_d24_what_differs_has_another_hash_or_is_refused() {
    let (text, same) = (written(), leaf(&written()).unwrap());
    let other = text.replace("\"index\":64", "\"index\":65");
    assert!(leaf(&other).is_some_and(|other| other != same));
    for (what, from, to) in [
        ("a member twice", "{\"index\":64", "{\"index\":64,\"index\":65"),
        ("an unknown member", "{\"index\":64", "{\"note\":1,\"index\":64"),
        ("a member less", "\"index\":64,", ""),
        ("a fraction", "\"index\":64", "\"index\":64.0"),
        ("an exponent", "\"index\":64", "\"index\":64e0"),
        ("a text for a number", "\"index\":64", "\"index\":\"64\""),
        ("a number too large", "\"index\":64", "\"index\":18446744073709551616"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{what}");
        assert_eq!(leaf(&changed), None, "{what}");
    }
}

#[test]
fn case_d24_integers_above_2_to_the_53_are_kept_exactly() {
    let large =
        |index: u64| leaf(&written().replacen("\"index\":64", &format!("\"index\":{index}"), 1));
    assert_ne!(large(9_007_199_254_740_993), large(9_007_199_254_740_992));
    let text = written().replacen("\"index\":64", "\"index\":9007199254740993", 1);
    let record: Record = serde_json::from_str(&text).unwrap();
    assert_eq!(record.index, 9_007_199_254_740_993);
}
