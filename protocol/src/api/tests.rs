//! The form of the bodies: ranges, money, instants, records.

use proptest::prelude::*;
use serde_json::{from_value, json, to_value};

use super::*;
use crate::money::{Currency, MicroCredits};
use crate::requests::{
    CHOICES_MAX, COUNT_MAX, CPU_MAX, DURATION_MAX, HOST_MEMORY_MAX, MEMORY_MAX, WORKLOAD_MAX,
};
use crate::units::Timestamp;

#[test]
fn a_request_with_only_a_duration_gets_every_default() {
    let read: RequestCreate = from_value(json!({"duration": 60})).unwrap();
    assert_eq!(read, RequestCreate::new(Whole::new(60).unwrap()));
    assert_eq!(from_value::<RequestCreate>(to_value(&read).unwrap()).unwrap(), read);
}

#[test]
fn a_number_outside_its_range_is_refused_with_the_range() {
    let rows = [
        (json!(0), "invalid value: integer `0`, expected a whole number from 1 to 1024"),
        (json!(-1), "invalid value: integer `-1`, expected a whole number from 1 to 1024"),
        (json!(1025), "invalid value: integer `1025`, expected a whole number from 1 to 1024"),
        (json!(1.5), "invalid value: floating point `1.5`, expected a whole number from 1 to 1024"),
        (json!("1"), "invalid type: string \"1\", expected a whole number from 1 to 1024"),
        (json!(null), "invalid type: null, expected a whole number from 1 to 1024"),
    ];
    for (value, text) in rows {
        let error = from_value::<Whole<1, 1_024>>(value).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    let huge = serde_json::from_str::<Whole<1, 1_024>>("1e999").unwrap_err().to_string();
    assert!(huge.contains("number out of range"), "{huge}");
}

/// The largest value that the body accepts for `field`, found by asking it.
fn most(field: &str, largest: u64) -> bool {
    let body = |value: u64| {
        let mut body = json!({"duration": 60});
        body[field] = json!(value);
        from_value::<RequestCreate>(body).is_ok()
    };
    body(largest) && !body(largest + 1)
}

#[test]
fn the_ranges_of_the_body_are_those_of_the_rules() {
    assert!(most("count", COUNT_MAX.into()));
    assert!(most("gpu", 1_000));
    assert!(most("memory", MEMORY_MAX.get()));
    assert!(most("cpu", CPU_MAX.get()));
    assert!(most("host_memory", HOST_MEMORY_MAX.get()));
    assert!(most("duration", DURATION_MAX.get()));
    let workload = |size: u32| json!({"sha256": "0".repeat(64), "size": size});
    assert!(from_value::<WorkloadDeclared>(workload(WORKLOAD_MAX)).is_ok());
    assert!(from_value::<WorkloadDeclared>(workload(WORKLOAD_MAX + 1)).is_err());
    assert_eq!(CHOICES_MAX, 16, "the documentation of models and regions says 16");
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    let error = from_value::<RequestCreate>(json!({"duration": 60, "tenant": "x"})).unwrap_err();
    assert!(error.to_string().starts_with("unknown field `tenant`"), "{error}");
}

#[test]
fn money_is_a_decimal_text_with_its_currency() {
    let money = Money::new(MicroCredits::new(1_250_000), Currency::EUR);
    let value = json!({"amount": "1.250000", "currency": "EUR"});
    assert_eq!(to_value(money).unwrap(), value);
    assert_eq!(from_value::<Money>(value).unwrap(), money);
    for bad in [
        json!({"amount": 1.25, "currency": "EUR"}),
        json!({"amount": "1,25", "currency": "EUR"}),
        json!({"amount": "1.25", "currency": "eur"}),
        json!({"amount": "1.25"}),
    ] {
        assert!(from_value::<Money>(bad.clone()).is_err(), "{bad} was accepted");
    }
}

#[test]
fn a_hash_is_64_lower_case_hex_digits() {
    let text = "00ff".repeat(16);
    let body = json!({"sha256": text, "size": 1});
    let read: WorkloadDeclared = from_value(body.clone()).unwrap();
    assert_eq!(read.sha256[..2], [0, 255]);
    assert_eq!(to_value(&read).unwrap(), body);
    for bad in [
        "",
        "00",
        &"0".repeat(63),
        &"0".repeat(65),
        &"G".repeat(64),
        &"A".repeat(64),
        &"é".repeat(32),
    ] {
        let body = json!({"sha256": bad, "size": 1});
        assert!(from_value::<WorkloadDeclared>(body).is_err(), "{bad:?} was accepted");
    }
}

#[test]
fn an_instant_is_rfc_3339_in_utc_with_milliseconds() {
    let time = Time(Timestamp::new(1_764_492_613_123));
    assert_eq!(time.to_string(), "2025-11-30T08:50:13.123Z");
    assert_eq!(Time(Timestamp::ZERO).to_string(), "1970-01-01T00:00:00.000Z");
    assert!(Time(Timestamp::MAX).to_string().starts_with("9999-12-3"));
    assert_eq!("2025-11-30T09:50:13.123+01:00".parse::<Time>().unwrap(), time);
    for bad in ["", "yesterday", "2025-11-30", "1969-12-31T23:59:59Z"] {
        assert!(bad.parse::<Time>().is_err(), "{bad:?} was accepted");
    }
}

proptest! {
    #[test]
    fn an_instant_survives_its_text(millis in 0_u64..253_402_200_000_000) {
        let time = Time(Timestamp::new(millis));
        prop_assert_eq!(time.to_string().parse::<Time>().unwrap(), time);
    }
}

#[test]
fn a_record_survives_its_json_form() {
    let json = json!({
        "index": 7, "term": 2, "time": "2025-11-30T08:50:13.123Z",
        "cause": "c-00000000000000000000000001",
        "actor": {"operator": {"subject": "ops@example", "key": "k1"}},
        "kind": "quota_set",
        "event": {"quota_set": {"tenant": "acme", "model": "h200", "quota": {
            "nominal": 8000, "borrow_limit": null, "lend_limit": 2000, "basis": "hardware",
        }}},
    });
    let view: RecordView = from_value(json.clone()).unwrap();
    assert_eq!(to_value(RecordView::from(view.to_record())).unwrap(), json);
}

#[test]
fn a_problem_leaves_out_what_it_does_not_say() {
    let problem = Problem {
        kind: "about:blank".to_owned(),
        title: "Not Found".to_owned(),
        status: 404,
        detail: "there is no such lease".to_owned(),
        code: "LEASE_MISSING".to_owned(),
        request_id: "1".to_owned(),
        errors: Vec::new(),
    };
    let value = to_value(&problem).unwrap();
    assert_eq!(value.get("errors"), None);
    assert_eq!(value["type"], "about:blank");
    assert_eq!(from_value::<Problem>(value).unwrap(), problem);
}

#[test]
fn states_are_written_as_their_names() {
    for state in [LeaseState::Granted, LeaseState::Active, LeaseState::Ending, LeaseState::Ended] {
        assert_eq!(to_value(state).unwrap(), state.as_str());
    }
    let states = [
        RequestState::Waiting,
        RequestState::Granted,
        RequestState::Closed,
        RequestState::Cancelled,
        RequestState::Refused,
    ];
    for state in states {
        assert_eq!(to_value(state).unwrap(), state.as_str());
    }
}
