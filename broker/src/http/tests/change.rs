//! Changes and their keys.

use serde_json::{Value, json};
use sublet_protocol::commands::Command;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, HostHash, NodeId};

use super::support::{Call, World, agent, cluster};

fn ask(key: &str, duration: u32) -> Call {
    let body = json!({"duration": duration, "memory": 1_000_000});
    Call::new("POST", "/v1/requests").tenant("initech").key(key).json(&body)
}

fn submitted(world: &World) -> usize {
    let records = world.cell.records(0, 1_000).unwrap();
    records.iter().filter(|r| matches!(r.event, Event::RequestSubmitted { .. })).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_twenty_times_at_once_is_one_request_and_one_answer() {
    let world = World::new().await;
    let calls = (0..20).map(|_| world.call(ask("once", 60)));
    let answers = futures::future::join_all(calls).await;
    let first = answers[0].clone().expect(201);
    for answer in &answers {
        assert_eq!((answer.status, &answer.bytes), (first.status, &first.bytes));
    }
    assert_eq!(submitted(&world), 1);
    // Later, too, though the request has changed by then.
    let id = first.json()["id"].as_str().unwrap().to_owned();
    let cancel = Call::new("DELETE", &format!("/v1/requests/{id}")).tenant("initech").key("c");
    world.call(cancel.clone()).await.expect(200);
    assert_eq!(world.call(ask("once", 60)).await.bytes, first.bytes);
    let show = world.call(Call::get(&format!("/v1/requests/{id}")).tenant("initech")).await;
    assert_eq!(show.json()["state"], "cancelled");
    let again = world.call(cancel).await.expect(200);
    assert_eq!(again.json()["state"], "cancelled");
}

#[tokio::test]
async fn the_same_key_with_another_body_is_refused_and_a_default_written_out_is_the_same_body() {
    let world = World::new().await;
    let first = world.call(ask("k", 60)).await.expect(201);
    let other = world.call(ask("k", 61)).await.expect(422);
    assert_eq!(other.code(), "KEY_REUSED");
    let body = json!({"memory": 1_000_000, "count": 1, "duration": 60, "class": "batch"});
    let same = Call::new("POST", "/v1/requests").tenant("initech").key("k").json(&body);
    assert_eq!(world.call(same).await.expect(201).bytes, first.bytes);
    // On another route, too, it is another change.
    let plan = Call::new("PUT", "/v1/prices").tenant("initech").key("k").json(&json!({
        "owner": "initech", "model": "a100", "tier": "standard",
        "per_gpu_hour": {"amount": "1", "currency": "EUR"},
    }));
    assert_eq!(world.call(plan).await.expect(422).code(), "KEY_REUSED");
    // Another tenant's keys are its own.
    let body = json!({"duration": 61, "memory": 1_000_000});
    let umbrella = Call::new("POST", "/v1/requests").tenant("umbrella").key("k").json(&body);
    world.call(umbrella).await.expect(201);
}

#[tokio::test]
async fn a_request_that_can_never_run_is_refused_with_the_rules_code_and_keeps_its_key_free() {
    let world = World::new().await;
    let body = json!({"duration": 60, "count": 9});
    let call = || Call::new("POST", "/v1/requests").tenant("initech").key("k").json(&body);
    let refused = world.call(call()).await.expect(422);
    assert_eq!(refused.code(), "QUOTA_TOO_SMALL");
    let quota = Call::new("PUT", "/v1/tenants/initech/quotas/a100").operator().key("q");
    world.call(quota.json(&json!({"nominal": 9_000}))).await.expect(200);
    world.call(call()).await.expect(201);
    let closed = world.call(Call::get("/v1/requests?state=closed").tenant("initech")).await;
    assert_eq!(closed.json()["items"][0]["state"], "refused");
}

#[tokio::test]
async fn setting_up_is_answered_from_its_records_and_shown_afterwards() {
    let world = World::new().await;
    let create = Call::new("POST", "/v1/tenants").operator().key("t");
    let create = create.json(&json!({"id": "globex", "parent": "acme"}));
    let tenant = world.call(create.clone()).await.expect(201);
    assert_eq!(tenant.json()["parent"], "acme");
    let quota = Call::new("PUT", "/v1/tenants/globex/quotas/h200").operator().key("q");
    let quota = quota.json(&json!({"nominal": 4_000}));
    let set = world.call(quota.clone()).await.expect(200).json();
    // A model that nobody offers may come, or be misspelt.
    let warning = "h200 has no price and is neither on offer nor on lease: if it is not to come \
                   later, the name may be wrong; prices are posted for a100";
    let expected = json!({"tenant": "globex", "model": "h200", "nominal": 4_000,
        "borrow_limit": null, "lend_limit": null, "basis": "allowance", "warning": warning});
    assert_eq!(set, expected);
    // What it is already changes nothing but is remembered, so that it changes nothing later.
    let before = world.records();
    let put = |key: &str, nominal: u64| {
        let call = Call::new("PUT", "/v1/tenants/globex/quotas/h200").operator().key(key);
        call.json(&json!({"nominal": nominal}))
    };
    let again = world.call(put("q2", 4_000)).await.expect(200);
    assert_eq!((again.json(), world.records()), (expected, before + 1));
    world.call(put("q3", 5_000)).await.expect(200);
    for (model, nominal) in [("a100", 1_000), ("h200", 0)] {
        let path = format!("/v1/tenants/acme/quotas/{model}");
        let call = Call::new("PUT", &path).operator().key(model).json(&json!({"nominal": nominal}));
        let known = world.call(call).await.expect(200).json();
        assert!(known.get("warning").is_none(), "{known}");
    }
    world.call(put("q2", 4_000)).await.expect(200);
    // The repeat is answered as it was, before the quota.
    assert_eq!(world.call(create).await.bytes, tenant.bytes);
    let show = world.call(Call::get("/v1/tenants/globex").operator()).await.expect(200).json();
    assert_eq!(show["quotas"][0]["nominal"], 5_000);

    let cluster = Call::new("POST", "/v1/clusters").operator().key("c").json(&json!({
        "id": "south", "owner": "globex", "region": "us", "devices_max": 8,
    }));
    world.call(cluster).await.expect(201);
    let clusters = world.call(Call::get("/v1/clusters").tenant("globex")).await.json();
    assert_eq!(clusters["items"][0]["id"], "south");
    let price = |key: &str, amount: &str| {
        Call::new("PUT", "/v1/prices").tenant("globex").key(key).json(&json!({
            "owner": "globex", "model": "h200", "tier": "standard",
            "per_gpu_hour": {"amount": amount, "currency": "EUR"},
        }))
    };
    world.call(price("p1", "1.5")).await.expect(200);
    let second = world.call(price("p2", "1.25")).await.expect(200).json();
    assert_eq!(second["version"], 2);
    assert_eq!(second["per_gpu_hour"], json!({"amount": "1.250000", "currency": "EUR"}));
    let prices = world.call(Call::get("/v1/prices?owner=globex").operator()).await.json();
    assert_eq!(prices["items"], json!([second]));
}

#[tokio::test]
async fn a_node_that_another_machine_claims_is_removed_by_an_operator() {
    let world = World::new().await;
    let remove = |node: &str, key: &str| {
        Call::new("DELETE", &format!("/v1/clusters/north/nodes/{node}")).operator().key(key)
    };
    let heard = world.call(remove("n1", "a")).await.expect(409);
    assert_eq!(heard.code(), "NODE_HEARD");
    assert!(heard.text().contains("wait until the node is silent"), "{}", heard.text());
    assert_eq!(world.call(remove("n2", "b")).await.expect(404).code(), "NODE_MISSING");
    let (cluster, node) = (cluster(), NodeId::new("n1").unwrap());
    let (boot, host) = (Boot::new(1), HostHash([0xee; 16]));
    world.must(agent(), Command::RegisterNode { cluster, node, boot, host }).await;
    // A refusal has not used up the key.
    let removed = world.call(remove("n1", "a")).await.expect(200);
    let body = removed.json();
    assert_eq!((&body["id"], &body["cluster"]), (&json!("n1"), &json!("north")));
    assert_eq!(world.call(remove("n1", "a")).await.expect(200).bytes, removed.bytes);
    assert_eq!(world.call(remove("n1", "c")).await.expect(404).code(), "NODE_MISSING");
    let nodes = world.call(Call::get("/v1/clusters/north/nodes").operator()).await.json();
    assert_eq!(nodes["items"], json!([]));
}

#[tokio::test]
async fn the_policy_is_read_by_all_and_set_by_operators_if_it_is_still_what_they_read() {
    let world = World::new().await;
    let read = world.call(Call::get("/v1/policy").tenant("initech")).await.expect(200).json();
    assert_eq!(
        (&read["half_life"], &read["preemption"]["per_request"]),
        (&json!(604_800), &json!(2))
    );
    let with = |half_life: u64, per_request: u64| {
        let mut policy = read.clone();
        policy["half_life"] = json!(half_life);
        policy["preemption"]["per_request"] = json!(per_request);
        policy
    };
    let set = |key: &str, from: &Value, to: &Value| {
        let body = json!({"from": from, "to": to});
        Call::new("PUT", "/v1/policy").operator().key(key).json(&body)
    };
    let (first, second) = (with(86_400, 2), with(86_400, 5));
    let answer = world.call(set("a", &read, &first)).await.expect(200);
    assert_eq!(answer.json(), first);
    assert_eq!(world.cell.read_stale(|state| state.policy().half_life.get()), 86_400);
    // Who read it before that would undo it.
    let lost = world.call(set("b", &read, &with(604_800, 5))).await.expect(409);
    assert_eq!(lost.code(), "POLICY_CHANGED");
    world.call(set("c", &first, &second)).await.expect(200);
    let again = world.call(set("a", &read, &first)).await.expect(200);
    assert_eq!(again.bytes, answer.bytes, "the key makes them one");
    assert_eq!(world.call(Call::get("/v1/policy").operator()).await.json(), second);
    let unchanged = world.call(set("d", &second, &second)).await.expect(200);
    assert_eq!(unchanged.json(), second);
}

#[tokio::test]
async fn terms_and_places_are_set_shown_and_answered_again_under_their_key() {
    let world = World::new().await;
    let put =
        |path: &str, key: &str, body: Value| Call::new("PUT", path).operator().key(key).json(&body);
    let budget = json!({"gpu_seconds": 7_200, "money": {"amount": "5.000000", "currency": "EUR"}});
    let terms = json!({"weight": 2_000, "budget": budget, "reclaim": "any"});
    let call = put("/v1/tenants/initech/terms", "t", terms.clone());
    let set = world.call(call.clone()).await.expect(200);
    let expected =
        json!({"tenant": "initech", "weight": 2_000, "budget": budget, "reclaim": "any"});
    assert_eq!(set.json(), expected);
    let before = world.records();
    assert_eq!(world.call(call).await.expect(200).bytes, set.bytes, "the key makes them one");
    assert_eq!(world.records(), before);
    let show = world.call(Call::get("/v1/tenants/initech").operator()).await.expect(200).json();
    assert_eq!((&show["weight"], &show["reclaim"]), (&json!(2_000), &json!("any")));
    let spent = json!({"limit": 7_200, "used": 0, "held": 0, "left": 7_200});
    assert_eq!(show["budget"]["gpu_seconds"], spent);
    assert_eq!(show["budget"]["money"]["left"], json!({"amount": "5.000000", "currency": "EUR"}));

    let quota = |key: &str, body: Value| put("/v1/tenants/acme/quotas/a100", key, body);
    let limits = json!({"nominal": 8_000, "borrow_limit": 2_000, "lend_limit": 0});
    let set = world.call(quota("q", limits)).await.expect(200).json();
    assert_eq!((&set["borrow_limit"], &set["lend_limit"]), (&json!(2_000), &json!(0)));
    let moved = put("/v1/tenants/initech/parent", "m", json!({"parent": "acme"}));
    let moved = world.call(moved).await.expect(200).json();
    assert_eq!(moved, json!({"tenant": "initech", "parent": "acme", "over_admitted": []}));
    let cycle = put("/v1/tenants/acme/parent", "c", json!({"parent": "initech"}));
    assert_eq!(world.call(cycle).await.expect(409).code(), "TENANT_CYCLE");
    let quotas = world.call(Call::get("/v1/quotas?tenant=initech").operator()).await.json();
    let figures = &quotas["items"][0]["figures"];
    // Its group has 8 of its own and 8 of the tenant's.
    assert_eq!((&figures["lendable"], &figures["left"]), (&json!(16_000), &json!(16_000)));
    let out = put("/v1/tenants/initech/parent", "o", json!({"parent": null}));
    assert_eq!(world.call(out).await.expect(200).json()["parent"], json!(null));
}

#[tokio::test]
async fn lists_come_in_pages_that_join_without_gap_or_repeat() {
    let world = World::new().await;
    for number in 0..7 {
        world.call(ask(&format!("k{number}"), 60 + number)).await.expect(201);
    }
    for list in [
        "/v1/requests?",
        "/v1/requests?state=all&",
        "/v1/tenants?",
        "/v1/quotas?",
        "/v1/ledger/records?",
    ] {
        let all = world.call(Call::get(&format!("{list}limit=500")).operator()).await.expect(200);
        let all = all.json()["items"].as_array().unwrap().clone();
        let (mut joined, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("{list}limit=2{cursor}");
            let page = world.call(Call::get(&path).operator()).await.expect(200).json();
            joined.extend(page["items"].as_array().unwrap().clone());
            assert!(page["items"].as_array().unwrap().len() <= 2);
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert!(joined.len() >= 3, "{list}");
        assert_eq!(joined[..all.len()], all, "{list}");
    }
}
