//! What tenants are called: shown to those who see the tenant, in no record, and erased at once.

use serde_json::json;

use super::support::{Call, World};

const NAME: &str = "Zürich / 团队 \"Ltd\"";

async fn records(world: &World) -> String {
    world.call(Call::get("/v1/ledger/records?limit=200").operator()).await.expect(200).text()
}

#[tokio::test]
async fn a_name_is_shown_is_in_no_record_and_is_gone_once_it_is_erased() {
    let world = World::new().await;
    let path = "/v1/tenants/initech/name";
    let set = |key: &str, name: &str| {
        Call::new("PUT", path).operator().key(key).json(&json!({"name": name}))
    };
    let answer = world.call(set("k1", NAME)).await.expect(200).json();
    assert_eq!(answer, json!({"tenant": "initech", "name": NAME}));
    let shown = |tenant: &'static str| Call::get("/v1/tenants/initech").tenant(tenant);
    assert_eq!(world.call(shown("initech")).await.expect(200).json()["name"], NAME);
    world.call(shown("acme")).await.expect(404);
    let list = world.call(Call::get("/v1/tenants").operator()).await.expect(200).json();
    let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|t| &t["name"]).collect();
    assert_eq!(names.iter().filter(|name| **name == NAME).count(), 1, "{list}");

    // A record says that there is one, and not which.
    let written = records(&world).await;
    assert!(written.contains("tenant_named") && !written.contains("团队"), "{written}");

    let erase = Call::new("DELETE", path).operator().key("k2");
    assert_eq!(world.call(erase).await.expect(200).json()["name"], json!(null));
    let left = world.call(shown("initech")).await.expect(200).json();
    assert!(left.get("name").is_none(), "{left}");
}

#[tokio::test]
async fn the_key_of_a_name_does_not_give_it_away() {
    let world = World::new().await;
    let set = |tenant: &str, key: &str, name: &str| {
        let path = format!("/v1/tenants/{tenant}/name");
        Call::new("PUT", &path).operator().key(key).json(&json!({"name": name}))
    };
    world.call(set("initech", "k1", "Jane Doe")).await.expect(200);
    world.call(set("initech", "k2", "John Doe")).await.expect(200);
    let written = world.call(Call::get("/v1/ledger/records?limit=200").operator()).await.json();
    let used = written["items"].as_array().unwrap().iter().filter_map(|record| {
        let used = record["event"].get("key_used")?;
        Some(used["body"].clone())
    });
    let used: Vec<_> = used.collect();
    let last = &used[used.len() - 2..];
    assert_eq!(last[0], last[1], "the hash depends on the name");
}

#[tokio::test]
async fn bad_names_and_unknown_tenants_are_refused() {
    let world = World::new().await;
    for name in ["", " ", "a\nb", "a\u{202e}b"] {
        let call = Call::new("PUT", "/v1/tenants/initech/name").operator().key("k");
        let refused = world.call(call.json(&json!({"name": name}))).await.expect(422);
        assert_eq!(refused.code(), "BODY_INVALID", "{name:?}");
    }
    let call = Call::new("PUT", "/v1/tenants/nobody/name").operator().key("k2");
    world.call(call.json(&json!({"name": "x"}))).await.expect(404);
}
