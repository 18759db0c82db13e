//! Statements and closed periods over HTTP.

use serde_json::{Value, json};

use super::support::{Call, World};

const PATH: &str = "/v1/ledger/statements?from=2020-01-01&until=2100-01-01";

async fn of(world: &World, tenant: &str, more: &str) -> Value {
    world.call(Call::get(&format!("{PATH}{more}")).tenant(tenant)).await.expect(200).json()
}

/// A lease that ran and has ended, as its borrower sees it.
async fn ended(world: &World) -> Value {
    let lease = world.lease().await;
    world.confirm(lease).await;
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    world.finish(lease, 0).await;
    let path = format!("/v1/leases/{lease}");
    world.call(Call::get(&path).tenant("initech")).await.expect(200).json()
}

#[tokio::test]
async fn each_side_of_a_lease_has_its_statement_and_nobody_elses() {
    let world = World::new().await;
    let lease = ended(&world).await;
    let borrower = of(&world, "initech", "").await;
    let line = &borrower["lines"][0];
    assert_eq!((&line["lease"], &line["exact"]), (&lease["id"], &lease["cost"]), "{borrower}");
    assert_eq!((&line["project"], &line["begin"]), (&lease["project"], &lease["active_since"]));
    assert_eq!((&borrower["exact"], &borrower["fee"]), (&lease["cost"], &Value::Null));
    assert_ne!(borrower["exact"]["amount"], "0.000000");
    assert_eq!((&borrower["closed"], &borrower["zone"]), (&json!(false), &json!("UTC")));
    // The lender earned the rest, and is told no name of the other's.
    let lender = of(&world, "acme", "&side=lender&zone=Europe/Berlin").await;
    assert_eq!(lender["lines"][0]["lease"], lease["id"]);
    assert_eq!(lender["lines"][0]["project"], Value::Null);
    assert!(!lender.to_string().contains("initech"), "{lender}");
    let micros = |money: &Value| money["amount"].as_str().unwrap().replace('.', "").parse::<i64>();
    let [cost, earned, fee] = [&borrower["exact"], &lender["exact"], &lender["fee"]].map(micros);
    assert_eq!(cost.unwrap(), earned.unwrap() + fee.unwrap());
    for (tenant, side) in [("acme", "borrower"), ("initech", "lender"), ("umbrella", "borrower")] {
        let none = of(&world, tenant, &format!("&side={side}")).await;
        assert_eq!(none["lines"], json!([]), "{tenant} as {side}");
    }
    let all = world.call(Call::get(&format!("{PATH}&tenant=initech")).operator()).await;
    assert_eq!(all.expect(200).json(), borrower, "an operator sees the same");
    let foreign = world.call(Call::get(&format!("{PATH}&tenant=initech")).tenant("umbrella")).await;
    let absent = world.call(Call::get(&format!("{PATH}&tenant=nobody")).tenant("umbrella")).await;
    assert_eq!(foreign.status, 404);
    assert_eq!(foreign.faceless(), absent.faceless());
}

#[tokio::test]
async fn a_period_that_is_none_is_refused_with_what_to_write() {
    let world = World::new().await;
    for (query, parameter, word) in [
        ("", "month", "name a period"),
        ("?month=March", "month", "2026-03"),
        ("?month=2026-03&from=2026-01-01", "month", "name a period"),
        ("?from=2026-03-01", "month", "name a period"),
        ("?from=2026-03-01&until=2026-03-01", "from", "end after it begins"),
        ("?month=2026-03&zone=Mars/Base", "zone", "there is no time zone"),
        ("?month=2026-03&side=owner", "side", "borrower, lender"),
        ("?month=2026-03&x=1", "x", "no such parameter"),
    ] {
        let call = Call::get(&format!("/v1/ledger/statements{query}")).tenant("initech");
        let refused = world.call(call).await.expect(400).json();
        assert_eq!(refused["errors"][0]["parameter"], parameter, "{query}: {refused}");
        assert!(refused["detail"].as_str().unwrap().contains(word), "{query}: {refused}");
    }
    let nobody = world.call(Call::get("/v1/ledger/statements?month=2026-03").operator()).await;
    assert!(nobody.expect(400).text().contains("name a tenant"));
}

#[tokio::test]
async fn what_is_settled_after_a_close_is_a_correction_behind_it() {
    let world = World::new().await;
    let first = ended(&world).await;
    // A lease that runs while the books are closed.
    let request = world.ask("initech", "late", &json!({"duration": 3_600})).await;
    let late = world.granted(request).await;
    world.confirm(late).await;
    let path = format!("/v1/leases/{late}");
    let view = world.call(Call::get(&path).tenant("initech")).await.expect(200).json();
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    let periods = Call::get("/v1/ledger/periods").tenant("initech");
    let never = world.call(periods.clone()).await.expect(200).json();
    assert_eq!(never, json!({"closed_until": null}));
    let now = sublet_protocol::api::Time(world.cell.now()).to_string();
    let close = |key: &str, until: &str| {
        let call = Call::new("POST", "/v1/ledger/periods").operator().key(key);
        call.json(&json!({"until": until}))
    };
    let early = world.call(close("a", "2100-01-01T00:00:00.000Z")).await.expect(409);
    assert_eq!(early.code(), "PERIOD_NOT_OVER");
    let before = of(&world, "initech", "").await;
    let closed = world.call(close("b", &now)).await.expect(200).json();
    assert_eq!(closed["closed_until"], now.as_str());
    assert_eq!(world.call(close("b", &now)).await.expect(200).json(), closed, "once per key");
    assert_eq!(world.call(periods).await.expect(200).json(), closed);
    let back = world.call(close("c", "2026-01-01T00:00:00.000Z")).await.expect(409);
    assert_eq!(back.code(), "PERIOD_CLOSED");
    let over = format!("/v1/ledger/statements?from=2020-01-01&until={now}");
    let over = Call::get(&over).tenant("initech");
    let sealed = world.call(over.clone()).await.expect(200).json();
    assert_eq!((&sealed["closed"], &sealed["lines"]), (&json!(true), &before["lines"]));
    world.finish(late, 0).await;
    let after = world.call(over).await.expect(200).json();
    assert_eq!(after, sealed, "nothing is added to a closed period");
    let next = format!("/v1/ledger/statements?from={now}&until=2100-01-01");
    let next = world.call(Call::get(&next).tenant("initech")).await.expect(200).json();
    let line = &next["lines"][0];
    assert_eq!((&line["correction"], &line["begin"]), (&json!(true), &view["active_since"]));
    let leases: Vec<_> = next["lines"].as_array().unwrap().iter().map(|l| &l["lease"]).collect();
    assert!(leases.iter().all(|lease| **lease != first["id"]), "{next}");
}
