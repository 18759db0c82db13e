//! Looking back at the state over HTTP.

use serde_json::{Value, json};

use super::support::{Call, World};
use crate::lookback;

async fn past(world: &World, at: &str) -> Value {
    let call = Call::get(&format!("/v1/ledger/past?at={at}")).operator();
    world.call(call).await.expect(200).json()
}

/// How many records there are, and the fingerprint of the state behind them.
fn now(world: &World) -> (u64, String) {
    world.cell.read_stale(|state| {
        let print = lookback::fingerprint(state).unwrap();
        (state.next_index(), print.iter().map(|byte| format!("{byte:02x}")).collect())
    })
}

#[tokio::test]
async fn the_state_behind_any_record_is_bit_by_bit_as_it_was() {
    let world = World::new().await;
    let mut seen = vec![now(&world)];
    let lease = world.lease().await;
    seen.push(now(&world));
    world.confirm(lease).await;
    seen.push(now(&world));
    world.finish(lease, 0).await;
    seen.push(now(&world));
    for (records, print) in &seen {
        let told = past(&world, &records.to_string()).await;
        assert_eq!((&told["records"], &told["sha256"]), (&json!(records), &json!(print)));
        // The same by time: all records of that instant are in it.
        let at = told["time"].as_str().unwrap().to_owned();
        let by_time = past(&world, &at).await;
        assert!(
            by_time["records"].as_u64().unwrap() >= *records && by_time["time"] == told["time"]
        );
    }
    let (first, last) = (seen[0].0, seen[3].0);
    let path = format!("/v1/ledger/diff?from={first}&until={}", seen[2].0);
    let diff = world.call(Call::get(&path).operator()).await.expect(200).json();
    let leases = diff["changes"].as_array().unwrap().iter().find(|of| of["kind"] == "leases");
    assert_eq!(leases.unwrap()["ids"], json!([format!("+{lease}")]), "{diff}");
    let path = format!("/v1/ledger/diff?from={last}&until={last}");
    let none = world.call(Call::get(&path).operator()).await.expect(200).json();
    assert_eq!(none["changes"], json!([]));
}

#[tokio::test]
async fn a_point_that_the_ledger_does_not_have_is_refused() {
    let world = World::new().await;
    let wrong = [
        "past?at=0",
        "past?at=99999999",
        "past?at=soon",
        "past",
        "past?at=1970-01-01T00:00:00Z",
        "diff?from=5&until=4",
        "diff?from=5",
    ];
    for query in wrong {
        let call = Call::get(&format!("/v1/ledger/{query}")).operator();
        let refused = world.call(call).await.expect(400);
        assert_eq!(refused.code(), "QUERY_INVALID", "{query}");
    }
}
