//! Undoing a batch of leases over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use sublet_protocol::commands::{Actor, Command};
use sublet_protocol::ids::KeyId;
use sublet_protocol::policy::Policy;
use sublet_protocol::rollbacks::RollbackPolicy;

use super::support::{Call, World};
use crate::auth::testing;

const EVER: &str = "2020-01-01T00:00:00.000Z";

/// A lease that ran and has ended.
async fn ended(world: &World) -> Value {
    let lease = world.lease().await;
    world.confirm(lease).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    world.finish(lease, 0).await;
    let path = format!("/v1/leases/{lease}");
    world.call(Call::get(&path).tenant("initech")).await.expect(200).json()
}

fn colleague(call: Call) -> Call {
    let mut claims = testing::claims(&["operator"], None);
    claims["sub"] = json!("bob@example");
    call.bearer(&testing::sign(&testing::header(), &claims, 1))
}

async fn plan(world: &World, select: &Value) -> Value {
    let call = Call::new("POST", "/v1/rollbacks/plan").operator().json(select);
    world.call(call).await.expect(200).json()
}

fn create(key: &str, select: &Value, digest: &Value) -> Call {
    let body = json!({"select": select, "digest": digest});
    Call::new("POST", "/v1/rollbacks").operator().key(key).json(&body)
}

async fn finished(world: &World, id: &Value) -> Value {
    let path = format!("/v1/rollbacks/{}", id.as_str().unwrap());
    for _ in 0..500 {
        let view = world.call(Call::get(&path).operator()).await.expect(200).json();
        if view["state"] == "finished" {
            return view;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{id} does not finish");
}

async fn owed(world: &World) -> Value {
    let path = "/v1/ledger/statements?from=2020-01-01&until=2100-01-01";
    world.call(Call::get(path).tenant("initech")).await.expect(200).json()
}

#[tokio::test]
async fn what_a_dry_run_showed_is_undone_and_that_is_undone_again() {
    let world = World::new().await;
    let lease = ended(&world).await;
    let before = owed(&world).await;
    let select = json!({"from": EVER, "tenant": "initech"});
    let shown = plan(&world, &select).await;
    assert_eq!((&shown["leases"], &shown["live"]), (&json!(1), &json!(0)), "{shown}");
    assert_eq!((&shown["money"], &shown["needs_approval"]), (&lease["cost"], &json!(false)));
    let [lender, borrower] = [&shown["tenants"][0], &shown["tenants"][1]];
    assert_eq!((&lender["tenant"], &borrower["tenant"]), (&json!("acme"), &json!("initech")));
    assert!(borrower["expense"]["amount"].as_str().unwrap().starts_with('-'), "{shown}");
    assert_eq!(owed(&world).await, before, "a dry run changes nothing");

    let other = json!("00".repeat(32));
    let refused = world.call(create("a", &select, &other)).await.expect(409);
    assert_eq!(refused.code(), "ROLLBACK_CHANGED");
    let call = create("b", &select, &shown["digest"]);
    let made = world.call(call.clone()).await.expect(200).json();
    let view = finished(&world, &made["id"]).await;
    assert_eq!((&view["turned"], &view["untouched"]), (&json!(1), &json!(0)), "{view}");
    let again = world.call(call).await.expect(200).json();
    assert_eq!(again["id"], made["id"], "once per key");
    let after = owed(&world).await;
    assert_eq!(after["exact"]["amount"], "0.000000");
    assert_eq!(
        (&after["lines"][0]["turn"], &after["lines"][1]["turn"]),
        (&json!(null), &json!("reversed"))
    );
    let nothing = plan(&world, &select).await;
    assert_eq!((&nothing["leases"], &nothing["untouched"]), (&json!(0), &json!(1)));
    let empty = world.call(create("c", &select, &nothing["digest"])).await.expect(422);
    assert_eq!(empty.code(), "ROLLBACK_EMPTY");

    let back = json!({"rollback": made["id"]});
    // What else is named narrows it.
    for other in [
        json!({"rollback": made["id"], "model": "nope"}),
        json!({"rollback": made["id"], "tenant": "acme"}),
        json!({"rollback": made["id"], "until": EVER}),
        json!({"rollback": made["id"], "from": "2100-01-01T00:00:00.000Z"}),
        json!({"rollback": made["id"], "requested_by": "nobody@example"}),
    ] {
        let none = plan(&world, &other).await;
        assert_eq!((&none["leases"], &none["untouched"]), (&json!(0), &json!(0)), "{other}");
    }
    let shown = plan(&world, &back).await;
    assert_eq!((&shown["leases"], &shown["money"]), (&json!(1), &lease["cost"]), "{shown}");
    let made = world.call(create("d", &back, &shown["digest"])).await.expect(200).json();
    finished(&world, &made["id"]).await;
    assert_eq!(owed(&world).await["exact"], before["exact"]);
    let all = world.call(Call::get("/v1/rollbacks").operator()).await.expect(200).json();
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert!(world.cell.violations().is_empty(), "{:?}", world.cell.violations());
}

#[tokio::test]
async fn a_live_lease_is_told_to_go_and_its_tenant_sees_why() {
    let world = World::new().await;
    let lease = world.lease().await;
    world.confirm(lease).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let select = json!({"from": EVER});
    let shown = plan(&world, &select).await;
    assert_eq!((&shown["live"], &shown["leases"]), (&json!(1), &json!(1)), "{shown}");
    let made = world.call(create("a", &select, &shown["digest"])).await.expect(200).json();
    let view = finished(&world, &made["id"]).await;
    assert_eq!((&view["live"], &view["turned"]), (&json!(1), &json!(0)), "{view}");
    let path = format!("/v1/leases/{lease}");
    let seen = world.call(Call::get(&path).tenant("initech")).await.expect(200).json();
    assert_eq!(seen["state"], "ending", "{seen}");
    world.finish(lease, 0).await;
    let seen = world.call(Call::get(&path).tenant("initech")).await.expect(200).json();
    assert_eq!(
        (&seen["state"], &seen["end_reason"]),
        (&json!("ended"), &json!("rolled_back")),
        "{seen}"
    );
    assert_eq!(seen["cost"]["amount"], "0.000000", "{seen}");
    assert_eq!(owed(&world).await["exact"]["amount"], "0.000000");
    let records = Call::get("/v1/ledger/records").tenant("initech");
    let records = world.call(records).await.expect(200).text();
    assert!(records.contains("lease_rolled_back") && records.contains("charge_turned"));
    assert!(!records.contains("rollback_proposed"), "it names leases of others");
    assert!(world.cell.violations().is_empty(), "{:?}", world.cell.violations());
}

#[tokio::test]
async fn above_the_limit_a_second_operator_must_approve() {
    let world = World::new().await;
    ended(&world).await;
    let rollback = RollbackPolicy { leases_alone: 0, ..RollbackPolicy::default() };
    let policy = Policy { rollback, ..Policy::default() };
    let actor = Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() };
    world.must(actor, Command::SetPolicy { policy }).await;
    let select = json!({"from": EVER});
    let shown = plan(&world, &select).await;
    assert_eq!(shown["needs_approval"], true);
    let made = world.call(create("a", &select, &shown["digest"])).await.expect(200).json();
    assert_eq!((&made["state"], &made["done"]), (&json!("proposed"), &json!(0)), "{made}");
    let path = format!("/v1/rollbacks/{}/approval", made["id"].as_str().unwrap());
    let approve = |digest: &Value| Call::new("POST", &path).json(&json!({"digest": digest}));
    let own = world.call(approve(&shown["digest"]).operator().key("b")).await.expect(403);
    assert_eq!(own.code(), "APPROVER_IS_PROPOSER");
    let other = json!("ab".repeat(32));
    let changed = world.call(colleague(approve(&other).key("c"))).await.expect(409);
    assert_eq!(changed.code(), "ROLLBACK_CHANGED");
    let tenant = world.call(approve(&shown["digest"]).tenant("initech").key("d")).await;
    assert_eq!(tenant.status, 403);
    world.call(colleague(approve(&shown["digest"]).key("e"))).await.expect(200);
    let view = finished(&world, &made["id"]).await;
    assert_eq!((&view["approved_by"], &view["turned"]), (&json!("bob@example"), &json!(1)));

    // The next one is rejected.
    let back = json!({"rollback": made["id"]});
    let shown = plan(&world, &back).await;
    let next = world.call(create("f", &back, &shown["digest"])).await.expect(200).json();
    let path = format!("/v1/rollbacks/{}", next["id"].as_str().unwrap());
    let gone = world.call(Call::new("DELETE", &path).operator().key("g")).await.expect(200).json();
    assert_eq!((&gone["state"], &gone["dropped"]), (&json!("dropped"), &json!("rejected")));
}

#[tokio::test]
async fn a_selection_without_a_begin_and_a_digest_that_is_none_are_refused() {
    let world = World::new().await;
    let call = Call::new("POST", "/v1/rollbacks/plan").operator().json(&json!({"tenant": "acme"}));
    assert_eq!(world.call(call).await.expect(422).code(), "ROLLBACK_UNBOUNDED");
    for digest in [json!(""), json!("zz".repeat(32)), json!("00")] {
        let refused = world.call(create("a", &json!({"from": EVER}), &digest)).await.expect(422);
        assert_eq!(refused.code(), "DIGEST_INVALID", "{digest}");
    }
    let path = "/v1/rollbacks/b-00000000000000000000000001";
    world.call(Call::get(path).operator()).await.expect(404);
}
