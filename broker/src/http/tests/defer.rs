//! Off-peak hours are set, and requests wait for them.

use serde_json::{Value, json};
use sublet_protocol::api::Time;
use sublet_protocol::units::Seconds;

use super::support::{Call, World};

fn set(tenant: &str, key: &str, calendar: &Value) -> Call {
    let call = Call::new("PUT", &format!("/v1/tenants/{tenant}/calendar")).operator().key(key);
    call.json(&json!({ "calendar": calendar }))
}

fn daily(zone: &str, from: &str, until: &str) -> Value {
    let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    json!({ "zone": zone, "off_peak": [{ "days": days, "from": from, "until": until }] })
}

async fn get(world: &World, path: &str) -> Value {
    world.call(Call::get(path).operator()).await.expect(200).json()
}

#[tokio::test]
async fn off_peak_hours_are_set_shown_and_taken_back_and_what_is_wrong_is_named() {
    let world = World::new().await;
    let nights = daily("Europe/Berlin", "22:00", "06:00");
    let answer = world.call(set("initech", "a", &nights)).await.expect(200).json();
    assert_eq!(answer, json!({ "tenant": "initech", "calendar": nights }));
    assert_eq!(get(&world, "/v1/tenants/initech").await["calendar"], nights);
    world.call(set("initech", "b", &Value::Null)).await.expect(200);
    assert_eq!(get(&world, "/v1/tenants/initech").await["calendar"], Value::Null);

    let before = world.records();
    let rows = [
        (daily("Mars/Olympus", "22:00", "06:00"), "CALENDAR_INVALID", "/calendar/zone"),
        (daily("Europe/Berlin", "06:00", "06:00"), "CALENDAR_INVALID", "/calendar/off_peak"),
        (daily("Europe/Berlin", "6:00", "08:00"), "BODY_INVALID", "/calendar/off_peak/0/from"),
        (daily("Zürich", "06:00", "08:00"), "BODY_INVALID", "/calendar/zone"),
        (
            json!({ "zone": "UTC", "off_peak": [{ "days": ["today"], "from": "06:00", "until": "08:00" }] }),
            "BODY_INVALID",
            "/calendar/off_peak/0/days/0",
        ),
    ];
    for (number, (calendar, code, pointer)) in rows.into_iter().enumerate() {
        let answer = world.call(set("initech", &format!("w{number}"), &calendar)).await;
        assert_eq!(answer.code(), code, "{}", answer.text());
        assert_eq!(answer.expect(422).json()["errors"][0]["pointer"], pointer);
    }
    let unsaid = Call::new("PUT", "/v1/tenants/initech/calendar").operator().key("u");
    world.call(unsaid.json(&json!({}))).await.expect(422);
    world.call(set("nobody", "n", &nights)).await.expect(404);
    assert_eq!(world.records(), before, "something was changed");
}

#[tokio::test]
async fn a_request_waits_for_off_peak_hours_and_says_so() {
    let world = World::new().await;
    let now = world.cell.now();
    let later = |span: u64| Time(now.after(Seconds::new(span)));
    let (begin, deadline) = (later(3_600), later(3 * 3_600));
    let body = json!({
        "duration": 600,
        "defer": { "not_before": begin, "off_peak": true, "deadline": deadline },
    });
    let call =
        |path: &str, key: &str| Call::new("POST", path).tenant("initech").key(key).json(&body);
    let missing = world.call(call("/v1/requests", "m")).await.expect(422);
    assert_eq!(missing.code(), "CALENDAR_MISSING");
    assert_eq!(missing.json()["errors"][0]["pointer"], "/defer/off_peak");

    // All day long: what it waits for is the first instant it allows itself.
    world.call(set("initech", "a", &daily("UTC", "00:00", "24:00"))).await.expect(200);
    let before = world.records();
    let plan = world.call(call("/v1/plan", "p")).await.expect(200).json();
    assert_eq!(plan["outcome"]["why"]["code"], "deferred", "{plan}");
    let values = plan["effective"].as_array().unwrap();
    let shown = values.iter().find(|value| value["field"] == "defer").unwrap();
    assert!(shown["value"].as_str().unwrap().starts_with(&format!("from {begin} to ")), "{shown}");
    assert_eq!(world.records(), before);

    let request = world.ask("initech", "r", &body).await;
    let view = get(&world, &format!("/v1/requests/{request}")).await;
    assert_eq!(view["spec"]["defer"], body["defer"]);
    let why = get(&world, &format!("/v1/why/{request}")).await;
    assert_eq!(why["code"], "deferred");
    assert_eq!(why["earliest_start"], json!(begin));
    assert!(why["text"].as_str().unwrap().contains(&format!("not before {begin}")), "{why}");
    assert_eq!(why["change"], "do not wait for better hours: it would start now");
    assert_eq!((&why["position"], &why["ahead"]), (&json!(null), &json!(null)), "it is in no line");
    assert!(!why["text"].as_str().unwrap().contains("in the queue"), "{why}");

    // What its start and duration do not leave time for is refused at once.
    let soon = json!({ "duration": 600, "defer": { "deadline": later(600) } });
    let call = Call::new("POST", "/v1/requests").tenant("initech").key("s").json(&soon);
    let refused = world.call(call).await.expect(422);
    assert_eq!(refused.code(), "DEFER_INVALID");
    assert_eq!(refused.json()["errors"][0]["pointer"], "/defer/deadline");
}
