//! A lease from the first question to its end.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::support::{Call, World};

async fn get(world: &World, path: &str) -> Value {
    world.call(Call::get(path).tenant("initech")).await.expect(200).json()
}

#[tokio::test]
async fn a_lease_is_shown_at_every_stage_with_its_money_and_its_reason() {
    let world = World::new().await;
    let workload = br#"{"argv":["echo","hi"]}"#;
    let sha256 = hex::encode(Sha256::digest(workload));
    let size = workload.len();
    let body = json!({"duration": 3_600, "workload": {"sha256": sha256, "size": size}});
    let request = world.ask("initech", "k", &body).await;
    let lease = world.granted(request).await;
    let path = format!("/v1/leases/{lease}");

    let view = get(&world, &path).await;
    assert_eq!(view["state"], "granted");
    assert_eq!(view["request"], request.to_string());
    assert_eq!(view["hold"], json!({"amount": "2.000000", "currency": "EUR"}));
    assert_eq!(view["slices"].as_array().unwrap().len(), 1);
    assert_eq!(view["workload"], json!({"sha256": sha256, "size": size}));
    let shown = get(&world, &format!("/v1/requests/{request}")).await;
    assert_eq!((&shown["state"], &shown["lease"]), (&json!("granted"), &json!(lease.to_string())));

    let put = |bytes: &[u8]| {
        let call = Call::new("PUT", &format!("{path}/workload")).tenant("initech").key("w");
        call.bytes("application/octet-stream", bytes)
    };
    assert_eq!(world.call(put(b"{}")).await.expect(422).code(), "WORKLOAD_SIZE");
    let other = vec![b'x'; size];
    assert_eq!(world.call(put(&other)).await.expect(422).code(), "WORKLOAD_HASH");
    world.call(put(workload)).await.expect(204);

    world.confirm(lease).await;
    let view = get(&world, &path).await;
    assert_eq!(view["state"], "active");
    assert!(view["ends_at"].as_str().unwrap().ends_with('Z'));

    world.finish(lease, 3).await;
    let view = get(&world, &path).await;
    assert_eq!(view["state"], "ended");
    assert_eq!(view["exit_code"], 3);
    assert_eq!(view["end_reason"], "guest_failed");
    assert_eq!(view["state_reason"]["code"], "guest_failed");
    assert_eq!(view["slices"][0]["stopped"], true);
    let why = get(&world, &format!("/v1/why/{lease}")).await;
    assert_eq!(why["text"], "its guest finished with an error");
    let ended = get(&world, "/v1/leases?state=ended").await;
    assert_eq!(ended["items"], json!([view]));
    assert_eq!(get(&world, "/v1/leases").await["items"], json!([]));
    let closed = get(&world, &format!("/v1/requests/{request}")).await;
    assert_eq!((&closed["state"], &closed["lease"]), (&json!("closed"), &json!(lease.to_string())));

    let gone = Call::new("DELETE", &path).tenant("initech").key("d");
    assert_eq!(world.call(gone).await.expect(409).code(), "LEASE_ENDED");
    assert_eq!(world.call(put(workload)).await.expect(409).code(), "LEASE_ENDED");
    let accounts = get(&world, "/v1/ledger/accounts").await;
    let names: Vec<_> =
        accounts["items"].as_array().unwrap().iter().map(|a| &a["account"]).collect();
    assert_eq!(names, [&json!("initech:expense"), &json!("initech:hold")]);
}

#[tokio::test]
async fn its_tenant_gives_a_lease_back_and_an_operator_revokes_one() {
    let world = World::new().await;
    let lease = world.lease().await;
    world.confirm(lease).await;
    let end = Call::new("DELETE", &format!("/v1/leases/{lease}")).tenant("initech").key("e");
    let view = world.call(end.clone()).await.expect(200);
    assert_eq!(view.json()["state"], "ending");
    assert_eq!(view.json()["end_reason"], "released");
    // Ending already: another key changes nothing.
    let again = Call::new("DELETE", &format!("/v1/leases/{lease}")).tenant("initech").key("e2");
    assert_eq!(world.call(again).await.expect(200).json()["state"], "ending");
    world.finish(lease, 0).await;
    assert_eq!(world.call(end).await.expect(200).bytes, view.bytes, "the first answer, again");

    let request = world.ask("umbrella", "k", &json!({"duration": 60})).await;
    let lease = world.granted(request).await;
    let revoke = Call::new("DELETE", &format!("/v1/leases/{lease}")).operator().key("r");
    let view = world.call(revoke).await.expect(200).json();
    assert_eq!(view["end_reason"], "revoked");
}

#[tokio::test]
async fn a_dry_run_says_what_would_happen_with_origins_and_the_worst_case() {
    let world = World::new().await;
    let before = world.records();
    let plan =
        |body: Value| world.call(Call::new("POST", "/v1/plan").tenant("initech").json(&body));
    let granted = plan(json!({"duration": 3_600, "count": 2, "memory": 50_000})).await.expect(200);
    let granted = granted.json();
    assert_eq!(granted["outcome"]["kind"], "grant");
    assert_eq!(granted["outcome"]["cluster"], "north");
    assert_eq!(granted["hold"], json!({"amount": "4.000000", "currency": "EUR"}));
    let origin = |plan: &Value, field: &str| {
        let values = plan["effective"].as_array().unwrap();
        values.iter().find(|value| value["field"] == field).unwrap()["origin"].clone()
    };
    assert_eq!(origin(&granted, "count"), "declared");
    assert_eq!(origin(&granted, "gpu"), "default");
    assert_eq!(origin(&granted, "grace"), "policy");
    assert_eq!(origin(&granted, "price"), "price");
    assert_eq!(granted["preemption"]["preempted_by"], json!(["reserved"]));

    let waits = plan(json!({"duration": 60, "memory": 90_000})).await.expect(200).json();
    assert_eq!(waits["outcome"]["kind"], "wait");
    assert_eq!(waits["outcome"]["why"]["code"], "memory");
    let refused = plan(json!({"duration": 60, "count": 9})).await.expect(200).json();
    assert_eq!(refused["outcome"]["kind"], "refuse");
    assert_eq!(refused["outcome"]["code"], "QUOTA_TOO_SMALL");
    assert_eq!(world.records(), before, "a dry run changed something");
    let unknown = Call::new("POST", "/v1/plan").tenant("nobody").json(&json!({"duration": 60}));
    assert_eq!(world.call(unknown).await.expect(403).code(), "TENANT_UNKNOWN");
}

#[tokio::test]
async fn a_waiting_request_says_why_it_waits_and_what_nearly_fits() {
    let world = World::new().await;
    let body = json!({"duration": 60, "memory": 90_000});
    let request = world.ask("initech", "k", &body).await;
    let why = get(&world, &format!("/v1/why/{request}")).await;
    assert_eq!(why["id"], request.to_string());
    assert_eq!(why["code"], "memory");
    assert_eq!((&why["position"], &why["ahead"]), (&json!(1), &json!(0)));
    let misses = json!([
        {"reason": "memory", "offers": 4, "cluster": "north", "detail": "10000 MiB short"}
    ]);
    assert_eq!(why["near_misses"], misses);
    assert_eq!(why["change"], "ask for at most 80000 MiB of device memory: it would start now");
    let warning = why["warning"].as_str().unwrap();
    assert!(warning.contains("no GPU on offer or on lease has more than 80000 MiB"), "{warning}");
    assert!(why["earliest_start"].is_null(), "unknown is not zero: {why}");
}

#[tokio::test]
async fn who_waits_behind_a_lease_is_told_an_interval_and_who_pays_too_little_is_told_at_once() {
    let world = World::new().await;
    let first = world.ask("initech", "a", &json!({"duration": 3_600, "count": 4})).await;
    let lease = world.granted(first).await;
    world.confirm(lease).await;
    let second = world.ask("initech", "b", &json!({"duration": 600, "count": 4})).await;
    let why = get(&world, &format!("/v1/why/{second}")).await;
    assert!(why["latest_start"].is_string() && why["earliest_start"].is_string(), "{why}");
    assert!(why["earliest_start"].as_str() <= why["latest_start"].as_str(), "{why}");

    let body = json!({"duration": 60, "max_price": {"amount": "1.999999", "currency": "EUR"}});
    let call = Call::new("POST", "/v1/requests").tenant("initech").key("c").json(&body);
    let cheap = world.call(call).await.expect(201).json();
    let warning = "every posted price is above max_price: the lowest is 2.000000 EUR per GPU-hour";
    assert_eq!((&cheap["state"], &cheap["warning"]), (&json!("waiting"), &json!(warning)));
    let fair = json!({"duration": 60, "max_price": {"amount": "2", "currency": "EUR"}});
    let call = Call::new("POST", "/v1/requests").tenant("initech").key("d").json(&fair);
    assert!(world.call(call).await.expect(201).json()["warning"].is_null());
}

#[tokio::test]
async fn a_model_that_nobody_knows_is_refused_with_those_that_are_known() {
    let world = World::new().await;
    let body = json!({"duration": 60, "models": ["a1000"]});
    let plan = world.call(Call::new("POST", "/v1/plan").tenant("initech").json(&body)).await;
    let plan = plan.expect(200).json();
    assert_eq!(plan["outcome"]["code"], "MODEL_UNKNOWN");
    let call = Call::new("POST", "/v1/requests").tenant("initech").key("k").json(&body);
    let refused = world.call(call).await.expect(422);
    assert_eq!(refused.code(), "MODEL_UNKNOWN");
    let problem = refused.json();
    assert_eq!(problem["errors"][0]["pointer"], "/models");
    assert_eq!(problem["detail"], plan["outcome"]["text"]);
    assert!(problem["detail"].as_str().unwrap().contains("known are a100"), "{problem}");
}

#[tokio::test]
async fn offers_are_counted_together_and_say_what_filters_left_out() {
    let world = World::new().await;
    let all = get(&world, "/v1/offers").await;
    assert_eq!((&all["shown"], &all["total"]), (&json!(4), &json!(4)));
    let groups = all["items"].as_array().unwrap();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0]["free"], 2);
    assert_eq!(groups[0]["prices"][0]["per_gpu_hour"]["amount"], "2.000000");
    let big = get(&world, "/v1/offers?model=a100&memory=50000&count=1").await;
    assert_eq!(big["items"].as_array().unwrap().len(), 1);
    assert_eq!(big["shown"], 2);
    let expected = json!([
        {"filter": "model", "removed": 0}, {"filter": "memory", "removed": 2},
        {"filter": "count", "removed": 0},
    ]);
    assert_eq!(big["filtered"], expected);
    let page = get(&world, "/v1/offers?limit=1").await;
    let next = page["next_cursor"].as_str().unwrap();
    let rest = get(&world, &format!("/v1/offers?limit=1&cursor={next}")).await;
    assert_eq!(rest["items"][0], groups[1]);
    assert_eq!(rest["next_cursor"], Value::Null);
    let lease = world.lease().await;
    world.confirm(lease).await;
    let after = get(&world, "/v1/offers").await;
    let leased: u64 =
        after["items"].as_array().unwrap().iter().map(|g| g["leased"].as_u64().unwrap()).sum();
    assert_eq!((&after["total"], leased), (&json!(3), 1));
}

#[tokio::test]
async fn the_ledger_is_shown_and_verified() {
    let world = World::new().await;
    let state = get(&world, "/v1/ledger/state").await;
    assert_eq!(state["size"], world.records());
    assert_eq!(state["root"].as_str().unwrap().len(), 64);
    let verify = world.call(Call::get("/v1/ledger/verify").operator()).await.expect(200).json();
    assert_eq!(verify["verified"], true);
    assert_eq!(verify["balanced"], true);
    assert_eq!(verify["records"], world.records());
    assert_eq!(verify["root"], get(&world, "/v1/ledger/state").await["root"]);
    let status = get(&world, "/v1/status").await;
    assert_eq!(status["offers"], 4);
    assert_eq!(status["tenants"], 3);
    // The JSON form of a record gives its canonical bytes again.
    let page = world.call(Call::get("/v1/ledger/records?limit=500").operator()).await.json();
    for item in page["items"].as_array().unwrap() {
        let view: sublet_protocol::api::RecordView = serde_json::from_value(item.clone()).unwrap();
        let record = world.cell.record(view.index).unwrap().unwrap();
        assert_eq!(view.to_record(), record);
    }
}

#[tokio::test]
async fn a_checkpoint_is_reported_and_a_recall_is_seen_by_the_borrower_at_once() {
    let world = World::new().await;
    let request = world.ask("initech", "k", &json!({"duration": 3_600})).await;
    let lease = world.granted(request).await;
    let path = format!("/v1/leases/{lease}");
    let save =
        |key: &str| Call::new("POST", &format!("{path}/checkpoints")).tenant("initech").key(key);
    assert_eq!(world.call(save("early")).await.expect(409).code(), "LEASE_INACTIVE");
    world.confirm(lease).await;
    let saved = world.call(save("a")).await.expect(200).json();
    assert!(saved["checkpoint_at"].is_string(), "{saved}");
    assert_eq!(world.call(save("a")).await.expect(200).json(), saved, "the same key, the same");
    assert_eq!(world.call(save("b")).await.expect(429).code(), "CHECKPOINT_TOO_SOON");

    let recall = |tenant: &str, key: &str, body: Value| {
        let call = Call::new("POST", &format!("{path}/recall")).tenant(tenant).key(key);
        call.json(&body)
    };
    let planned = |notice: u64| json!({"kind": "planned", "notice": notice});
    world.call(recall("initech", "r", planned(3_000))).await.expect(404);
    let soon = world.call(recall("acme", "r", planned(60))).await.expect(422);
    assert_eq!(soon.code(), "RECALL_TOO_SOON");
    let answer = world.call(recall("acme", "r", planned(3_000))).await.expect(200).json();
    assert_eq!(answer.as_object().unwrap().len(), 2, "nothing of whose it is: {answer}");
    let view = get(&world, &path).await;
    assert_eq!((&view["state"], &view["recalled_by"]), (&json!("active"), &answer["by"]));
    assert_eq!(view["state_reason"]["code"], "recalled");

    let now = json!({"kind": "emergency"});
    world.call(recall("acme", "e", now)).await.expect(200);
    let view = get(&world, &path).await;
    assert_eq!((&view["state"], &view["end_reason"]), (&json!("ending"), &json!("reclaimed")));
    assert_eq!(view["lost_gpu_seconds"], Value::Null, "it is not over yet");
    world.finish(lease, 0).await;
    let view = get(&world, &path).await;
    let lost = view["lost_gpu_seconds"].as_u64();
    assert!(lost.is_some_and(|lost| lost <= 60), "one GPU since its checkpoint: {view}");
}
