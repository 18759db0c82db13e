//! What cannot be right: the answer says what and where, and nothing changes.

use serde_json::{Value, json};

use super::support::{Call, World};

fn post(path: &str, body: &Value) -> Call {
    Call::new("POST", path).key("k").json(body)
}

#[track_caller]
fn check(name: &str, answer: &super::support::Answer, (status, code, place): (u16, &str, &str)) {
    let body = answer.json();
    let context = format!("{name}: {body}");
    assert_eq!(answer.status.as_u16(), status, "{context}");
    assert_eq!(answer.code(), code, "{context}");
    assert_eq!(answer.header("content-type"), "application/problem+json", "{context}");
    assert_eq!(body["status"], status, "{context}");
    assert_eq!(body["request_id"], answer.header("x-request-id"), "{context}");
    assert!(body["detail"].as_str().is_some_and(|text| text.len() > 8), "{context}");
    if !place.is_empty() {
        let error = &body["errors"][0];
        let named = error["pointer"].as_str().or(error["parameter"].as_str());
        assert_eq!(named, Some(place), "{context}");
    }
}

#[tokio::test]
async fn a_bad_request_names_the_field_and_its_range_and_changes_nothing() {
    let world = World::new().await;
    let before = world.records();
    let good = json!({"duration": 60});
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let money = |amount: Value, currency: &str| json!({"amount": amount, "currency": currency});
    let workload = |sha256: &str, size: Value| json!({"sha256": sha256, "size": size});
    let digest = "0".repeat(64);
    let many: Vec<String> = (0..17).map(|number| format!("m{number}")).collect();
    let rows: Vec<(&str, Value, &str, &str)> = vec![
        ("no duration", json!({}), "BODY_INVALID", "duration"),
        ("an unknown field", with("tenant", json!("acme")), "BODY_INVALID", "unknown field"),
        ("no GPUs", with("count", json!(0)), "BODY_INVALID", "1 to 1024"),
        ("minus one GPU", with("count", json!(-1)), "BODY_INVALID", "1 to 1024"),
        ("a billion GPUs", with("count", json!(1_000_000_000)), "BODY_INVALID", "1 to 1024"),
        ("more than can be written", with("count", json!(1e300)), "BODY_INVALID", "1 to 1024"),
        ("half a GPU in count", with("count", json!(0.5)), "BODY_INVALID", "1 to 1024"),
        ("a count as text", with("count", json!("1")), "BODY_INVALID", "1 to 1024"),
        ("a null count", with("count", json!(null)), "BODY_INVALID", "1 to 1024"),
        ("a share of nothing", with("gpu", json!(0)), "BODY_INVALID", "1 to 1000"),
        ("a share above one", with("gpu", json!(1_001)), "BODY_INVALID", "1 to 1000"),
        ("too much memory", with("memory", json!(1_048_577)), "BODY_INVALID", "0 to 1048576"),
        ("negative memory", with("memory", json!(-1)), "BODY_INVALID", "0 to 1048576"),
        ("memory with a unit", with("memory", json!("80GiB")), "BODY_INVALID", "0 to 1048576"),
        ("memory as text", with("memory", json!("16384")), "BODY_INVALID", "0 to 1048576"),
        ("a part of a MiB", with("memory", json!(76_293.95)), "BODY_INVALID", "0 to 1048576"),
        ("a time with a unit", with("duration", json!("1h")), "BODY_INVALID", "1 to 2592000"),
        ("half a second", with("duration", json!(0.5)), "BODY_INVALID", "1 to 2592000"),
        ("a share with a unit", with("gpu", json!("500m")), "BODY_INVALID", "1 to 1000"),
        ("too much CPU", with("cpu", json!(u64::MAX)), "BODY_INVALID", "0 to 4096000"),
        ("no time", with("duration", json!(0)), "BODY_INVALID", "1 to 2592000"),
        ("too long", with("duration", json!(2_592_001)), "BODY_INVALID", "1 to 2592000"),
        ("a bad priority", with("priority", json!(256)), "BODY_INVALID", "0 to 255"),
        ("an unknown class", with("class", json!("urgent")), "BODY_INVALID", "training"),
        ("a class as an object", with("class", json!({"batch": null})), "BODY_INVALID", "string"),
        ("a recall as a list", with("on_recall", json!(["close"])), "BODY_INVALID", "string"),
        ("an unknown placement", with("placement", json!("rack")), "BODY_INVALID", "island"),
        ("a bad project", with("project", json!("My Project")), "BODY_INVALID", "a-z, 0-9 and -"),
        ("a price as a number", with("max_price", json!(1)), "BODY_INVALID", ""),
        ("too many models", with("models", json!(many)), "SPEC_INVALID", "at most 16"),
    ];
    for (name, body, code, text) in rows {
        let answer = world.call(post("/v1/requests", &body).tenant("initech")).await;
        check(name, &answer, (422, code, ""));
        assert!(answer.text().contains(text), "{name}: {}", answer.text());
    }
    let places: Vec<(&str, Value, &str, &str)> = vec![
        ("/count", with("count", json!(0)), "BODY_INVALID", ""),
        ("/tenant", with("tenant", json!("acme")), "BODY_INVALID", ""),
        ("/models/1", with("models", json!(["a100", "A100"])), "BODY_INVALID", ""),
        ("/regions/0", with("regions", json!(["a.b"])), "BODY_INVALID", ""),
        ("/max_price/amount", with("max_price", money(json!(1), "EUR")), "BODY_INVALID", ""),
        ("/max_price/amount", with("max_price", money(json!("1,5"), "EUR")), "BODY_INVALID", ""),
        ("/max_price/amount", with("max_price", money(json!("-1"), "EUR")), "AMOUNT_INVALID", ""),
        (
            "/max_price/currency",
            with("max_price", money(json!("1"), "USD")),
            "CURRENCY_INVALID",
            "",
        ),
        ("/max_price/currency", with("max_price", money(json!("1"), "eur")), "BODY_INVALID", ""),
        ("/workload/sha256", with("workload", workload("ff", json!(1))), "BODY_INVALID", ""),
        ("/workload/size", with("workload", workload(&digest, json!(0))), "BODY_INVALID", ""),
        ("/workload/size", with("workload", workload(&digest, json!(32_769))), "BODY_INVALID", ""),
    ];
    for (place, body, code, _) in places {
        for route in ["/v1/requests", "/v1/plan"] {
            let answer = world.call(post(route, &body).tenant("initech")).await;
            check(route, &answer, (422, code, place));
        }
    }
    assert_eq!(world.records(), before, "something was changed");
}

#[tokio::test]
async fn a_bad_tenant_cluster_quota_or_price_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let usual = world.cell.read_stale(|state| serde_json::to_value(state.policy()).unwrap());
    let policy = |field: &str, value: Value| {
        let mut to = usual.clone();
        to[field] = value;
        json!({"from": usual, "to": to})
    };
    let before = world.records();
    let price = |amount: &str| {
        json!({"owner": "acme", "model": "a100", "tier": "standard",
        "per_gpu_hour": {"amount": amount, "currency": "EUR"}})
    };
    let broker = |id: u64, peer: &str| json!({"id": id, "peer": peer});
    let cluster = |owner: &str, devices: i64| {
        let id = "south";
        json!({"id": id, "owner": owner, "region": "eu", "devices_max": devices})
    };
    let rows: Vec<(&str, &str, Value, u16, &str, &str)> = vec![
        ("POST", "/v1/tenants", json!({"id": "Acme"}), 422, "BODY_INVALID", "/id"),
        ("POST", "/v1/tenants", json!({"id": ""}), 422, "BODY_INVALID", "/id"),
        ("POST", "/v1/tenants", json!({"id": "x".repeat(33)}), 422, "BODY_INVALID", "/id"),
        ("POST", "/v1/tenants", json!({"id": "acme"}), 409, "TENANT_EXISTS", ""),
        (
            "POST",
            "/v1/tenants",
            json!({"id": "z", "parent": "no"}),
            422,
            "TENANT_MISSING",
            "/parent",
        ),
        ("POST", "/v1/tenants", json!({"id": "z", "admin": true}), 422, "BODY_INVALID", "/admin"),
        ("POST", "/v1/cell/brokers", broker(0, "h:1"), 422, "BODY_INVALID", "/id"),
        ("POST", "/v1/cell/brokers", broker(2, "h"), 422, "BODY_INVALID", "/peer"),
        ("POST", "/v1/cell/brokers", broker(2, "h:0"), 422, "BODY_INVALID", "/peer"),
        // A cell whose broker has no port for others.
        ("POST", "/v1/cell/brokers", broker(2, "h:1"), 409, "NO_PEERS", ""),
        ("POST", "/v1/clusters", cluster("no", 1), 422, "TENANT_MISSING", "/owner"),
        ("POST", "/v1/clusters", cluster("acme", 0), 422, "BODY_INVALID", "/devices_max"),
        ("POST", "/v1/clusters", cluster("acme", 1_000_001), 422, "BODY_INVALID", "/devices_max"),
        (
            "PUT",
            "/v1/tenants/acme/quotas/a100",
            json!({"nominal": -1}),
            422,
            "BODY_INVALID",
            "/nominal",
        ),
        (
            "PUT",
            "/v1/tenants/acme/quotas/a100",
            json!({"nominal": 1_000_000_000_001_i64}),
            422,
            "BODY_INVALID",
            "/nominal",
        ),
        (
            "PUT",
            "/v1/tenants/acme/quotas/a100",
            json!({"nominal": 1, "borrow_limit": -1}),
            422,
            "BODY_INVALID",
            "/borrow_limit",
        ),
        (
            "PUT",
            "/v1/tenants/acme/quotas/a100",
            json!({"nominal": 1, "lend_limit": 1_000_000_000_001_i64}),
            422,
            "BODY_INVALID",
            "/lend_limit",
        ),
        (
            "PUT",
            "/v1/tenants/acme/quotas/a100",
            json!({"nominal": 1, "basis": "hope"}),
            422,
            "BODY_INVALID",
            "/basis",
        ),
        ("PUT", "/v1/tenants/acme/terms", json!({"weight": -1}), 422, "BODY_INVALID", "/weight"),
        (
            "PUT",
            "/v1/tenants/acme/terms",
            json!({"reclaim": "sometimes"}),
            422,
            "BODY_INVALID",
            "/reclaim",
        ),
        ("PUT", "/v1/policy", policy("half_life", json!(0)), 422, "POLICY_INVALID", "/to"),
        ("PUT", "/v1/policy", policy("half_life", json!(-1)), 422, "BODY_INVALID", "/to/half_life"),
        ("PUT", "/v1/policy", policy("half_live", json!(1)), 422, "BODY_INVALID", "/to/half_live"),
        (
            "PUT",
            "/v1/policy",
            policy("renew", json!(18_446_744_073_709_551_615_u64)),
            422,
            "POLICY_INVALID",
            "/to",
        ),
        (
            "PUT",
            "/v1/policy",
            policy("currency", json!("USD")),
            422,
            "POLICY_INVALID",
            "/to/currency",
        ),
        (
            "PUT",
            "/v1/tenants/acme/terms",
            json!({"weight": 1_000_001}),
            422,
            "BODY_INVALID",
            "/weight",
        ),
        (
            "PUT",
            "/v1/tenants/acme/terms",
            json!({"budget": {"gpu_seconds": 10_000_000_000_001_i64}}),
            422,
            "BODY_INVALID",
            "/budget/gpu_seconds",
        ),
        (
            "PUT",
            "/v1/tenants/acme/terms",
            json!({"budget": {"money": {"amount": "-0.000001", "currency": "EUR"}}}),
            422,
            "AMOUNT_INVALID",
            "/budget/money/amount",
        ),
        (
            "PUT",
            "/v1/tenants/acme/terms",
            json!({"budget": {"money": {"amount": "1", "currency": "USD"}}}),
            422,
            "CURRENCY_INVALID",
            "/budget/money/currency",
        ),
        ("PUT", "/v1/tenants/no/terms", json!({}), 404, "NOT_FOUND", ""),
        ("PUT", "/v1/tenants/acme/parent", json!({}), 422, "BODY_INVALID", ""),
        (
            "PUT",
            "/v1/tenants/acme/parent",
            json!({"parent": "no"}),
            422,
            "TENANT_MISSING",
            "/parent",
        ),
        ("PUT", "/v1/tenants/acme/parent", json!({"parent": "acme"}), 409, "TENANT_CYCLE", ""),
        ("PUT", "/v1/tenants/no/parent", json!({"parent": null}), 404, "NOT_FOUND", ""),
        ("PUT", "/v1/tenants/no/quotas/a100", json!({"nominal": 1}), 404, "NOT_FOUND", ""),
        ("PUT", "/v1/tenants/acme/quotas/A100", json!({"nominal": 1}), 400, "ID_INVALID", "model"),
        ("PUT", "/v1/prices", price("-1"), 422, "AMOUNT_INVALID", "/per_gpu_hour/amount"),
        (
            "PUT",
            "/v1/prices",
            price("1000000.000001"),
            422,
            "PRICE_INVALID",
            "/per_gpu_hour/amount",
        ),
        ("PUT", "/v1/prices", price("1e6"), 422, "BODY_INVALID", "/per_gpu_hour/amount"),
        ("PUT", "/v1/prices", price("9223372036855"), 422, "BODY_INVALID", "/per_gpu_hour/amount"),
    ];
    for (method, path, body, status, code, place) in rows {
        let call = Call::new(method, path).operator().key("k").json(&body);
        check(&format!("{method} {path} {body}"), &world.call(call).await, (status, code, place));
    }
    let of_another = Call::new("PUT", "/v1/prices").tenant("initech").key("k").json(&price("1"));
    check("another's price", &world.call(of_another).await, (403, "FORBIDDEN", ""));
    assert_eq!(world.records(), before, "something was changed");
}

#[tokio::test]
async fn a_body_that_is_no_good_json_is_refused_before_it_is_read() {
    let world = World::new().await;
    let before = world.records();
    let call = |kind: &str, body: &[u8]| {
        Call::new("POST", "/v1/requests").tenant("initech").key("k").bytes(kind, body)
    };
    let json = "application/json";
    let deep = format!("{{\"duration\":60,\"models\":{}{}}}", "[".repeat(100_000), "]".repeat(100));
    let deep = &deep.as_bytes()[..60_000];
    let wide = format!("{{{}}}", vec!["\"a\":1"; 10_000].join(","));
    let rows: Vec<(&str, Call, u16, &str)> = vec![
        ("empty", call(json, b""), 400, "BODY_MALFORMED"),
        ("not JSON", call(json, b"duration=60"), 400, "BODY_MALFORMED"),
        ("half of it", call(json, b"{\"duration\":"), 400, "BODY_MALFORMED"),
        ("more than one", call(json, b"{\"duration\":60} {}"), 400, "BODY_MALFORMED"),
        ("not UTF-8", call(json, b"{\"duration\":60,\"project\":\"\xff\"}"), 400, "BODY_MALFORMED"),
        ("NaN", call(json, b"{\"duration\":NaN}"), 400, "BODY_MALFORMED"),
        ("a field twice", call(json, b"{\"duration\":60,\"duration\":61}"), 422, "BODY_INVALID"),
        ("a list", call(json, b"[]"), 422, "BODY_INVALID"),
        ("too deep", call(json, deep), 400, "BODY_TOO_DEEP"),
        ("17 deep", call(json, "[".repeat(17).as_bytes()), 400, "BODY_TOO_DEEP"),
        ("wide", call(json, wide.as_bytes()), 422, "BODY_INVALID"),
        ("1 MiB", call(json, &[b' '; 1_048_576]), 413, "BODY_TOO_LARGE"),
        ("64 KiB and a byte", call(json, &[b' '; 65_537]), 413, "BODY_TOO_LARGE"),
        ("text", call("text/plain", b"{\"duration\":60}"), 415, "MEDIA_TYPE_UNSUPPORTED"),
        (
            "a form",
            call("application/x-www-form-urlencoded", b"a=b"),
            415,
            "MEDIA_TYPE_UNSUPPORTED",
        ),
        (
            "compressed",
            call(json, b"\x1f\x8b").header("content-encoding", "gzip"),
            415,
            "MEDIA_TYPE_UNSUPPORTED",
        ),
    ];
    for (name, call, status, code) in rows {
        check(name, &world.call(call).await, (status, code, ""));
    }
    assert_eq!(world.records(), before, "something was changed");
    let fits = [b"{\"duration\":60}".as_slice(), &[b' '; 60_000]].concat();
    world.call(call("application/json; charset=utf-8", &fits)).await.expect(201);
}

#[tokio::test]
async fn a_bad_path_query_key_or_method_is_refused() {
    let world = World::new().await;
    let before = world.records();
    let get = |path: &str| Call::get(path).operator();
    let post = |key: Option<&str>| {
        let call = Call::new("POST", "/v1/tenants").operator().json(&json!({"id": "z"}));
        key.map_or(call.clone(), |key| call.key(key))
    };
    let long = "k".repeat(256);
    let rows: Vec<(&str, Call, u16, &str, &str)> = vec![
        ("a short id", get("/v1/leases/l-1"), 400, "ID_INVALID", "lease"),
        (
            "another kind of id",
            get("/v1/leases/r-00000000000000000000000001"),
            400,
            "ID_INVALID",
            "lease",
        ),
        ("a point", get("/v1/tenants/a.b"), 400, "ID_INVALID", "tenant"),
        ("a star", get("/v1/tenants/*"), 400, "ID_INVALID", "tenant"),
        ("an arrow", get("/v1/tenants/%3E"), 400, "ID_INVALID", "tenant"),
        ("a space", get("/v1/tenants/a%20b"), 400, "ID_INVALID", "tenant"),
        ("a line end", get("/v1/tenants/a%0d%0ab"), 400, "ID_INVALID", "tenant"),
        ("NUL", get("/v1/tenants/a%00"), 400, "ID_INVALID", "tenant"),
        ("not ASCII", get("/v1/tenants/%C3%A4"), 400, "ID_INVALID", "tenant"),
        ("not UTF-8", get("/v1/tenants/%FF"), 400, "ID_INVALID", ""),
        ("a way up", get("/v1/tenants/..%2F..%2Fetc"), 400, "ID_INVALID", "tenant"),
        ("no kind of id", get("/v1/why/x"), 400, "ID_INVALID", "id"),
        ("no limit", get("/v1/leases?limit=0"), 400, "QUERY_INVALID", "limit"),
        ("too high a limit", get("/v1/leases?limit=501"), 400, "QUERY_INVALID", "limit"),
        ("a limit in words", get("/v1/leases?limit=ten"), 400, "QUERY_INVALID", "limit"),
        ("a signed limit", get("/v1/leases?limit=%2B5"), 400, "QUERY_INVALID", "limit"),
        ("a bad cursor", get("/v1/leases?cursor=x"), 400, "ID_INVALID", "cursor"),
        ("a bad state", get("/v1/leases?state=gone"), 400, "QUERY_INVALID", "state"),
        ("an unknown parameter", get("/v1/leases?tenant=acme"), 400, "QUERY_INVALID", "tenant"),
        ("a parameter twice", get("/v1/leases?limit=1&limit=2"), 400, "QUERY_INVALID", "limit"),
        ("negative memory", get("/v1/offers?memory=-1"), 400, "QUERY_INVALID", "memory"),
        ("a bad price cursor", get("/v1/prices?cursor=x"), 400, "CURSOR_INVALID", "cursor"),
        ("a bad offer cursor", get("/v1/offers?cursor=x"), 400, "CURSOR_INVALID", "cursor"),
        (
            "half an offer cursor",
            get("/v1/offers?cursor=c/h100/1000"),
            400,
            "CURSOR_INVALID",
            "cursor",
        ),
        ("a bad quota cursor", get("/v1/quotas?cursor=x"), 400, "CURSOR_INVALID", "cursor"),
        (
            "a quota cursor without a model",
            get("/v1/quotas?cursor=x/"),
            400,
            "CURSOR_INVALID",
            "cursor",
        ),
        ("no key", post(None), 400, "KEY_MISSING", "Idempotency-Key"),
        ("an empty key", post(Some("")), 400, "KEY_INVALID", "Idempotency-Key"),
        ("a long key", post(Some(&long)), 400, "KEY_INVALID", "Idempotency-Key"),
        ("two keys", post(Some("a")).key("b"), 400, "KEY_INVALID", "Idempotency-Key"),
        ("a tab in the key", post(Some("a\tb")), 400, "KEY_INVALID", "Idempotency-Key"),
        ("no route", get("/v1/nothing"), 404, "ROUTE_MISSING", ""),
        ("no route above", get("/v2/leases"), 404, "ROUTE_MISSING", ""),
        ("no debug route", get("/debug/pprof"), 404, "ROUTE_MISSING", ""),
        (
            "another method",
            Call::new("PATCH", "/v1/leases").operator(),
            405,
            "METHOD_NOT_ALLOWED",
            "",
        ),
        (
            "a bad event id",
            get("/v1/watch").header("last-event-id", "x"),
            400,
            "EVENT_ID_INVALID",
            "Last-Event-ID",
        ),
    ];
    for (name, call, status, code, place) in rows {
        check(name, &world.call(call).await, (status, code, place));
    }
    let allow = world.call(Call::new("PATCH", "/v1/leases").operator()).await;
    assert!(allow.header("allow").contains("GET"), "Allow: {:?}", allow.header("allow"));
    assert_eq!(world.records(), before, "something was changed");
}

#[tokio::test]
async fn a_header_that_is_to_be_given_once_is_not_taken_twice() {
    let world = World::new().await;
    let body = json!({"duration": 60});
    let plan = || post("/v1/plan", &body).tenant("initech");
    let rows = [
        (plan().header("content-type", "text/plain"), 415, "Content-Type"),
        (
            plan().header("content-encoding", "identity").header("content-encoding", "gzip"),
            415,
            "Content-Encoding",
        ),
        (Call::get("/v1/watch").operator().header("last-event-id", "+5"), 400, "Last-Event-ID"),
        (
            Call::get("/v1/watch")
                .operator()
                .header("last-event-id", "5")
                .header("last-event-id", "6"),
            400,
            "Last-Event-ID",
        ),
    ];
    for (call, status, place) in rows {
        let code = if status == 415 { "MEDIA_TYPE_UNSUPPORTED" } else { "EVENT_ID_INVALID" };
        check(place, &world.call(call).await, (status, code, place));
    }
}

#[tokio::test]
async fn behind_the_last_possible_cursor_there_is_nothing() {
    let world = World::new().await;
    world.lease().await;
    for path in ["/v1/leases?state=all", "/v1/requests?state=all", "/v1/ledger/records?"] {
        for call in [
            Call::get(&format!("{path}&cursor={}", u64::MAX)).operator(),
            Call::get(&format!("{path}&cursor={}", u64::MAX)).tenant("initech"),
        ] {
            let answer = world.call(call).await.expect(200);
            assert_eq!(answer.json(), json!({"items": [], "next_cursor": null}), "{path}");
        }
    }
}
