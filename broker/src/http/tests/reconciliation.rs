//! Whether ledger, broker and agents agree, as finance and operators ask.

use serde_json::{Value, json};
use sublet_core::State;
use sublet_ledger::accounts::Accounts;
use sublet_protocol::units::Seconds;

use super::support::{Call, World};
use crate::reconciliation::{BookGap, gaps};

async fn reconciled(world: &World) -> Value {
    let call = Call::get("/v1/ledger/reconciliation").operator();
    world.call(call).await.expect(200).json()
}

#[tokio::test]
async fn a_leased_gpu_that_idles_is_told_in_two_cycles_with_owner_age_and_money() {
    let world = World::new().await;
    let lease = world.lease().await;
    world.confirm(lease).await;
    let found = reconciled(&world).await;
    assert_eq!((&found["nodes_reported"], &found["leases"]), (&json!(0), &json!(1)));
    assert_eq!(found["nodes_unknown"], json!(["north/n1"]), "not known, and not sound");

    world.report(1, Some(world.held(lease, Seconds::new(20)))).await;
    assert_eq!(reconciled(&world).await["leaks"], json!([]));
    world.report(2, Some(world.held(lease, Seconds::new(50)))).await;
    let found = reconciled(&world).await;
    assert_eq!((&found["nodes_reported"], &found["nodes_unknown"]), (&json!(1), &json!([])));
    assert_eq!((&found["books_differ"], &found["books"]), (&json!(0), &json!([])));
    let leak = &found["leaks"][0];
    assert_eq!((&leak["kind"], &leak["lease"]), (&json!("not_used"), &json!(lease.to_string())));
    assert_eq!((&leak["tenant"], &leak["owner"]), (&json!("initech"), &json!("acme")));
    let age = leak["age_seconds"].as_u64().unwrap();
    assert!((50..55).contains(&age), "{leak}");
    let cost: f64 = leak["cost"]["amount"].as_str().unwrap().parse().unwrap();
    assert!(cost > 0.0, "{leak}");

    // It works again; then the agent has lost it.
    world.report(3, Some(world.held(lease, Seconds::ZERO))).await;
    assert_eq!(reconciled(&world).await["leaks"], json!([]));
    world.report(4, None).await;
    world.report(5, None).await;
    let found = reconciled(&world).await;
    assert_eq!(found["leaks"][0]["kind"], "not_held");

    // The lease has ended, but the guest is still there: nobody is charged for that.
    let held = world.held(lease, Seconds::ZERO);
    world.finish(lease, 0).await;
    assert_eq!(reconciled(&world).await["leaks"], json!([]));
    world.report(6, Some(held)).await;
    world.report(7, Some(held)).await;
    let leak = &reconciled(&world).await["leaks"][0];
    assert_eq!((&leak["kind"], &leak["owner"]), (&json!("not_leased"), &json!("acme")));
    assert_eq!((&leak["tenant"], &leak["cost"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn a_hold_that_one_of_the_two_does_not_know_is_found_with_both_sums() {
    let world = World::new().await;
    let lease = world.lease().await;
    let hold = |gap: &BookGap| (gap.lease, gap.ledger.is_some(), gap.broker.is_some());
    let machine = &world.cell.parts().machine;
    let without = |state: &State, books: &Accounts| {
        let books_only = gaps(&State::default(), books);
        let state_only = gaps(state, &Accounts::new());
        (gaps(state, books), books_only, state_only)
    };
    let (both, books_only, state_only) = machine.read_booked(without);
    assert_eq!(both, []);
    assert_eq!(books_only.iter().map(hold).collect::<Vec<_>>(), [(lease, true, false)]);
    assert_eq!(state_only.iter().map(hold).collect::<Vec<_>>(), [(lease, false, true)]);
    assert_eq!(books_only[0].ledger, state_only[0].broker);
}
