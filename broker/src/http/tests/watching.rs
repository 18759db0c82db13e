//! Streams: nothing is missed, nothing is repeated, nothing foreign is shown.

use serde_json::json;

use super::support::{Call, World, events};

#[tokio::test]
async fn a_watch_goes_on_behind_the_last_event_without_gap_or_repeat() {
    let world = World::new().await;
    let start = world.records();
    let mut first = world.open(Call::get("/v1/watch?from=0").operator()).await;
    assert_eq!(first.kind, "text/event-stream");
    let text = first.read_until(|text| events(text).len() as u64 >= start).await;
    let mut seen: Vec<u64> = events(text).into_iter().map(|(id, _)| id).collect();
    drop(first);

    for number in 0..5 {
        let body = json!({"duration": 60, "memory": 1_000_000});
        world.ask("initech", &format!("k{number}"), &body).await;
    }
    let last = seen.last().unwrap().to_string();
    let mut second =
        world.open(Call::get("/v1/watch").operator().header("last-event-id", &last)).await;
    let end = world.records();
    let missing = end as usize - seen.len();
    let text = second.read_until(|text| events(text).len() >= missing).await;
    seen.extend(events(text).into_iter().map(|(id, _)| id));
    assert_eq!(seen, (0..end).collect::<Vec<_>>());

    // Live: what happens while it is open arrives.
    world.ask("initech", "live", &json!({"duration": 60, "memory": 1_000_000})).await;
    let text = second.read_until(|text| events(text).len() >= missing + 2).await;
    assert_eq!(events(text).last().unwrap(), &(end + 1, "key_used".to_owned()));
    world.stop();
    second.rest().await;
}

#[tokio::test]
async fn a_tenant_watches_its_own_business_and_nobody_elses() {
    let world = World::new().await;
    let lease = world.lease().await;
    world.confirm(lease).await;
    world.finish(lease, 0).await;
    let open = |tenant| world.open(Call::get("/v1/watch?from=0").tenant(tenant));
    let mut own = open("initech").await;
    let text = own.read_until(|text| text.contains("event: request_closed")).await;
    let kinds: Vec<String> = events(text).into_iter().map(|(_, kind)| kind).collect();
    for kind in
        ["request_submitted", "lease_granted", "member_confirmed", "lease_activated", "lease_ended"]
    {
        assert!(kinds.iter().any(|seen| seen == kind), "{kind} is missing: {kinds:?}");
    }
    assert!(!kinds.iter().any(|kind| kind == "capacity_offered"), "{kinds:?}");
    let mut other = open("umbrella").await;
    world.ask("umbrella", "k", &json!({"duration": 60, "memory": 1_000_000})).await;
    let text = other.read_until(|text| text.contains("event: key_used")).await;
    assert!(!text.contains("initech") && !text.contains(&lease.to_string()), "{text}");
}

#[tokio::test]
async fn a_caller_that_is_ahead_of_the_journal_is_told_to_read_again() {
    let world = World::new().await;
    let call = Call::get("/v1/watch").operator().header("last-event-id", "1000000");
    let mut stream = world.open(call).await;
    let text = stream.read_until(|text| text.contains("\n\n")).await;
    assert!(text.contains("event: resync"), "{text}");
    let lease = world.lease().await;
    world.confirm(lease).await;
    world.finish(lease, 0).await;
    let call = Call::get(&format!("/v1/leases/{lease}/events")).tenant("initech");
    let mut ended = world.open(call.header("last-event-id", "1000000")).await;
    let text = ended.rest().await;
    assert!(text.contains("event: resync"), "{text}");
}

#[tokio::test]
async fn the_events_of_a_lease_end_with_it_and_can_be_resumed() {
    let world = World::new().await;
    let lease = world.lease().await;
    let call = || Call::get(&format!("/v1/leases/{lease}/events")).tenant("initech");
    let mut live = world.open(call()).await;
    live.read_until(|text| text.contains("event: lease_granted")).await;
    world.confirm(lease).await;
    live.read_until(|text| text.contains("event: lease_activated")).await;
    world.finish(lease, 0).await;
    let all = events(live.rest().await);
    assert_eq!(all.last().unwrap().1, "lease_ended");
    let mut later = world.open(call()).await;
    assert_eq!(events(later.rest().await), all);
    let middle = all[1].0.to_string();
    let mut rest = world.open(call().header("last-event-id", &middle)).await;
    assert_eq!(events(rest.rest().await), all[2..]);
    let last = all.last().unwrap().0.to_string();
    let mut nothing = world.open(call().header("last-event-id", &last)).await;
    assert_eq!(events(nothing.rest().await), []);
}

#[tokio::test]
async fn logs_carry_what_the_guest_printed_and_then_its_end() {
    let world = World::new().await;
    let lease = world.lease().await;
    world.confirm(lease).await;
    let path = format!("/v1/leases/{lease}/logs");
    let empty = world.call(Call::get(&path).tenant("initech")).await.expect(200);
    assert_eq!(empty.text(), "");
    let mut follow = world.open(Call::get(&format!("{path}?follow=true")).tenant("initech")).await;
    assert_eq!(follow.kind, "application/x-ndjson");
    world.print(lease, b"hi\n").await;
    let line = r#"{"kind":"output","stream":"stdout","offset":0,"missed":0,"base64":"aGkK"}"#;
    assert_eq!(follow.read_until(|text| text.ends_with('\n')).await, format!("{line}\n"));
    world.finish(lease, 0).await;
    let end = r#"{"kind":"end","exit_code":0,"reason":"completed"}"#;
    assert_eq!(follow.rest().await, format!("{line}\n{end}\n"));
    let part = world.call(Call::get(&format!("{path}?from=1&follow=true")).tenant("initech")).await;
    assert!(
        part.text().contains(r#""offset":1"#) && part.text().contains("aQo="),
        "{}",
        part.text()
    );
}

#[tokio::test]
async fn one_tenant_cannot_take_all_streams() {
    let world = World::new().await;
    let watch = || Call::get("/v1/watch?from=0").tenant("initech");
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(world.open(watch()).await);
    }
    let refused = world.call(watch()).await.expect(429);
    assert_eq!(
        (refused.code().as_str(), refused.header("retry-after")),
        ("STREAMS_EXHAUSTED", "1")
    );
    drop(world.open(Call::get("/v1/watch?from=0").tenant("umbrella")).await);
    open.pop();
    drop(world.open(watch()).await);
}
