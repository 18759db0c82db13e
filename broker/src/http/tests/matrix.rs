//! Every route for every role.

use std::collections::BTreeSet;

use serde_json::Value;

use super::support::{Call, World};
use crate::auth::testing;
use crate::auth::tests::bad_tokens;
use crate::http::openapi;

/// A caller, its roles and the tenant of its token.
const CALLERS: [(&str, &[&str], Option<&str>); 5] = [
    ("tenant", &["tenant"], Some("initech")),
    ("auditor", &["auditor"], Some("initech")),
    ("cell auditor", &["auditor"], None),
    ("operator", &["operator"], None),
    ("agent", &["agent"], None),
];

const READERS: &[&str] = &["tenant", "auditor", "cell auditor", "operator"];

/// Each route of the document and who may call it.
const ROUTES: [(&str, &str, &[&str]); 53] = [
    ("get", "/v1/tenants", READERS),
    ("post", "/v1/tenants", &["operator"]),
    ("get", "/v1/tenants/{tenant}", READERS),
    ("put", "/v1/tenants/{tenant}/quotas/{model}", &["operator"]),
    ("put", "/v1/tenants/{tenant}/terms", &["operator"]),
    ("put", "/v1/tenants/{tenant}/parent", &["operator"]),
    ("put", "/v1/tenants/{tenant}/calendar", &["operator"]),
    ("put", "/v1/tenants/{tenant}/name", &["operator"]),
    ("delete", "/v1/tenants/{tenant}/name", &["operator"]),
    ("get", "/v1/quotas", READERS),
    ("get", "/v1/clusters", READERS),
    ("post", "/v1/clusters", &["operator"]),
    ("get", "/v1/clusters/{cluster}/nodes", READERS),
    ("delete", "/v1/clusters/{cluster}/nodes/{node}", &["operator"]),
    ("get", "/v1/policy", READERS),
    ("put", "/v1/policy", &["operator"]),
    ("get", "/v1/prices", READERS),
    ("put", "/v1/prices", &["tenant", "operator"]),
    ("get", "/v1/offers", READERS),
    ("get", "/v1/requests", READERS),
    ("post", "/v1/requests", &["tenant"]),
    ("get", "/v1/requests/{request}", READERS),
    ("delete", "/v1/requests/{request}", &["tenant", "operator"]),
    ("get", "/v1/leases", READERS),
    ("get", "/v1/leases/{lease}", READERS),
    ("delete", "/v1/leases/{lease}", &["tenant", "operator"]),
    ("post", "/v1/leases/{lease}/checkpoints", &["tenant"]),
    ("post", "/v1/leases/{lease}/recall", &["tenant", "operator"]),
    ("put", "/v1/leases/{lease}/workload", &["tenant"]),
    ("get", "/v1/leases/{lease}/logs", &["tenant"]),
    ("get", "/v1/leases/{lease}/events", READERS),
    ("post", "/v1/plan", &["tenant"]),
    ("get", "/v1/why/{id}", READERS),
    ("get", "/v1/ledger/state", READERS),
    ("get", "/v1/ledger/records", READERS),
    ("get", "/v1/ledger/checkpoint", READERS),
    ("get", "/v1/ledger/proofs/{index}", READERS),
    ("get", "/v1/ledger/extension", READERS),
    ("get", "/v1/ledger/statements", READERS),
    ("get", "/v1/ledger/reconciliation", &["auditor", "cell auditor", "operator"]),
    ("get", "/v1/ledger/periods", READERS),
    ("post", "/v1/ledger/periods", &["operator"]),
    ("post", "/v1/rollbacks/plan", &["operator"]),
    ("post", "/v1/rollbacks", &["operator"]),
    ("get", "/v1/rollbacks", &["auditor", "cell auditor", "operator"]),
    ("get", "/v1/rollbacks/{rollback}", &["auditor", "cell auditor", "operator"]),
    ("post", "/v1/rollbacks/{rollback}/approval", &["operator"]),
    ("delete", "/v1/rollbacks/{rollback}", &["operator"]),
    ("get", "/v1/status", READERS),
    ("get", "/v1/cell", &["auditor", "cell auditor", "operator"]),
    ("post", "/v1/cell/brokers", &["operator"]),
    ("put", "/v1/cell/level", &["operator"]),
    ("delete", "/v1/cell/brokers/{broker}", &["operator"]),
];

/// Routes that are slow or never end: only their refusals are tried by every caller.
const HEAVY: [(&str, &str, &[&str]); 6] = [
    ("get", "/v1/ledger/past", &["operator"]),
    ("get", "/v1/ledger/diff", &["operator"]),
    ("get", "/v1/ledger/verify", &["auditor", "cell auditor", "operator"]),
    ("get", "/v1/ledger/accounts", READERS),
    ("get", "/v1/watch", READERS),
    ("get", "/v1/ledger/backup", &["operator"]),
];

const PUBLIC: [(&str, &str); 4] =
    [("get", "/"), ("get", "/metrics"), ("get", "/livez"), ("get", "/readyz")];

fn concrete(path: &str) -> String {
    path.replace("{tenant}", "acme")
        .replace("{cluster}", "c1")
        .replace("{model}", "a100")
        .replace("{request}", "r-00000000000000000000000001")
        .replace("{lease}", "l-00000000000000000000000001")
        .replace("{rollback}", "b-00000000000000000000000001")
        .replace("{broker}", "9")
        .replace("{index}", "3")
        .replace("{id}", "l-00000000000000000000000001")
}

#[test]
fn the_matrix_names_every_route_of_the_document() {
    let document: Value = serde_json::from_str(&openapi().to_json().unwrap()).unwrap();
    let mut documented = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            documented.insert((method.clone(), path.clone()));
        }
    }
    let named = ROUTES.iter().chain(&HEAVY).map(|(method, path, _)| (*method, *path)).chain(PUBLIC);
    let named: BTreeSet<_> = named.map(|(m, p)| (m.to_owned(), p.to_owned())).collect();
    assert_eq!(documented, named);
}

#[tokio::test]
async fn each_route_is_for_its_roles_and_nobody_else() {
    let world = World::new().await;
    let before = world.records();
    for (method, path, allowed) in ROUTES.iter().chain(&HEAVY) {
        let path = concrete(path);
        let call = Call::new(method, &path);
        world.call(call.clone()).await.expect(401);
        for (name, roles, tenant) in CALLERS {
            let is_allowed = allowed.contains(&name);
            if is_allowed && HEAVY.iter().any(|(_, heavy, _)| *heavy == path) {
                continue;
            }
            let answer = world.call(call.clone().bearer(&testing::token(roles, tenant))).await;
            let status = answer.status.as_u16();
            match is_allowed {
                true => assert!(
                    status < 500 && status != 401 && status != 403 && status != 405,
                    "{method} {path} as {name}: {status}"
                ),
                false => {
                    assert_eq!(status, 403, "{method} {path} as {name}");
                    assert_eq!(answer.code(), "FORBIDDEN");
                }
            }
        }
    }
    for (method, path) in PUBLIC {
        world.call(Call::new(method, path)).await.expect(200);
    }
    assert_eq!(world.records(), before, "something was changed");
}

#[tokio::test]
async fn every_bad_token_gets_the_same_answer_and_a_good_one_another() {
    let world = World::new().await;
    let ask = |token: &str| Call::get("/v1/status").bearer(token);
    world.call(ask(&testing::token(&["tenant"], Some("acme")))).await.expect(200);
    let none = world.call(Call::get("/v1/status")).await.expect(401);
    assert_eq!(none.header("www-authenticate"), "Bearer");
    for (name, token) in bad_tokens() {
        // A header cannot hold a line end; the library would not send it.
        let answer = world.call(ask(&token)).await;
        assert_eq!(answer.faceless(), none.faceless(), "{name}");
    }
    let good = testing::token(&["tenant"], Some("acme"));
    let odd = [
        Call::get("/v1/status").header("authorization", &good),
        Call::get("/v1/status").header("authorization", &format!("Basic {good}")),
        Call::get("/v1/status").bearer(&good).bearer(&good),
        Call::get(&format!("/v1/status?access_token={good}")),
    ];
    for call in odd {
        assert_eq!(world.call(call).await.faceless(), none.faceless());
    }
}

#[tokio::test]
async fn what_is_anothers_looks_exactly_like_what_is_absent() {
    let world = World::new().await;
    let lease = world.lease().await;
    let request = world.cell.read_stale(|state| state.leases()[&lease].terms().request);
    let no_lease = "l-00000000000000000000000001".to_owned();
    let no_request = "r-00000000000000000000000001".to_owned();
    let rows = [
        ("GET", "/v1/leases/", lease.to_string(), no_lease.clone(), ""),
        ("DELETE", "/v1/leases/", lease.to_string(), no_lease.clone(), ""),
        ("GET", "/v1/leases/", lease.to_string(), no_lease.clone(), "/logs"),
        ("GET", "/v1/leases/", lease.to_string(), no_lease.clone(), "/events"),
        ("PUT", "/v1/leases/", lease.to_string(), no_lease.clone(), "/workload"),
        ("POST", "/v1/leases/", lease.to_string(), no_lease.clone(), "/checkpoints"),
        ("POST", "/v1/leases/", lease.to_string(), no_lease.clone(), "/recall"),
        ("GET", "/v1/requests/", request.to_string(), no_request.clone(), ""),
        ("DELETE", "/v1/requests/", request.to_string(), no_request.clone(), ""),
        ("GET", "/v1/why/", lease.to_string(), no_lease, ""),
        ("GET", "/v1/why/", request.to_string(), no_request, ""),
        ("GET", "/v1/tenants/", "initech".to_owned(), "nobody".to_owned(), ""),
    ];
    let before = world.records();
    for (method, start, foreign, absent, end) in rows {
        let call = |id: &str| {
            let call = Call::new(method, &format!("{start}{id}{end}")).tenant("umbrella").key("k");
            match method {
                "PUT" => call.bytes("application/octet-stream", b"x"),
                _any if end == "/recall" => call.json(&serde_json::json!({"kind": "emergency"})),
                _other => call,
            }
        };
        let (foreign, absent) = (world.call(call(&foreign)).await, world.call(call(&absent)).await);
        assert_eq!(foreign.status, 404, "{method} {start}{end}");
        assert_eq!(foreign.faceless(), absent.faceless(), "{method} {start}{end}");
        assert_eq!(foreign.bytes.len(), absent.bytes.len());
    }
    assert_eq!(world.records(), before, "something was changed");
    let lists = ["/v1/leases", "/v1/leases?state=all", "/v1/requests?state=all", "/v1/clusters"];
    for list in lists {
        let seen = world.call(Call::get(list).tenant("umbrella")).await.expect(200);
        assert_eq!(seen.json()["items"], serde_json::json!([]), "{list}");
    }
    let records = world.call(Call::get("/v1/ledger/records").tenant("umbrella")).await.expect(200);
    assert!(!records.text().contains("initech"), "{}", records.text());
    let offers = world.call(Call::get("/v1/offers").tenant("umbrella")).await.expect(200);
    assert!(!offers.text().contains("acme") && !offers.text().contains("initech"));
}
