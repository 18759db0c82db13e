//! Clocks of nodes, as their owner and a waiting tenant see them.

use serde_json::{Value, json};

use super::support::{Call, World};

async fn node(world: &World) -> Value {
    let call = Call::get("/v1/clusters/north/nodes").operator();
    let mut nodes = world.call(call).await.expect(200).json()["items"].take();
    assert_eq!(nodes.as_array().unwrap().len(), 1);
    nodes[0].take()
}

/// Slices that a borrower is shown as free, and as closed.
async fn free_and_closed(world: &World) -> (u64, u64) {
    let offers = world.call(Call::get("/v1/offers").tenant("initech")).await.expect(200).json();
    let closed = |offer: &Value| offer["closed"].as_u64().unwrap();
    let closed = offers["items"].as_array().unwrap().iter().map(closed).sum();
    (offers["total"].as_u64().unwrap(), closed)
}

#[tokio::test]
async fn a_clock_that_is_far_off_is_shown_and_nothing_new_is_put_there_until_it_is_right() {
    let world = World::new().await;
    let known = node(&world).await;
    assert_eq!((&known["id"], &known["clock"]), (&json!("n1"), &json!("unknown")));
    assert_eq!((&known["clock_offset_ms"], &known["offers"]), (&Value::Null, &json!(4)));
    world.tell_clocks(1, 7_000).await;
    assert_eq!(node(&world).await["clock"], "off");
    world.tell_clocks(2, -95_000).await;
    let known = node(&world).await;
    assert_eq!(known["clock"], "far");
    let offset = known["clock_offset_ms"].as_i64().unwrap();
    assert!((-97_000..=-94_000).contains(&offset), "{offset}");
    let clusters = world.call(Call::get("/v1/clusters").operator()).await.expect(200).json();
    assert_eq!(clusters["items"][0]["nodes_clock_off"], 1);

    assert_eq!(free_and_closed(&world).await, (0, 4));
    let request = world.ask("initech", "k", &json!({"duration": 60})).await;
    let call = Call::get(&format!("/v1/why/{request}")).tenant("initech");
    let why = world.call(call).await.expect(200).json();
    assert_eq!(why["code"], "breaker");
    let text = why["text"].as_str().unwrap();
    assert!(text.contains("behind, so nothing new is put there"), "{text}");
    assert_eq!(why["near_misses"][0]["offers"], 4);
    assert!(why["near_misses"][0]["detail"].as_str().unwrap().contains("clock"), "{why}");
    let plan = Call::new("POST", "/v1/plan").tenant("initech").json(&json!({"duration": 60}));
    assert_eq!(world.call(plan).await.expect(200).json()["outcome"]["kind"], "wait");

    world.tell_clocks(3, 0).await;
    let (_, closed) = free_and_closed(&world).await;
    assert_eq!(closed, 0);
    world.granted(request).await;
    assert_eq!(node(&world).await["clock"], "right");
}

#[tokio::test]
async fn the_nodes_of_a_cluster_are_for_its_owner() {
    let world = World::new().await;
    let of = |tenant| Call::get("/v1/clusters/north/nodes").tenant(tenant);
    world.call(of("acme")).await.expect(200);
    let foreign = world.call(of("initech")).await.expect(404);
    let absent = world.call(Call::get("/v1/clusters/south/nodes").tenant("initech")).await;
    assert_eq!(foreign.faceless(), absent.faceless());
}
