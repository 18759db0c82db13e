//! Bad input: refused with what and where, and nothing is changed by it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::support::{Dev, Home, text};

/// The server and what is needed to talk to it without the command line.
struct Api {
    home: Home,
    dev: Dev,
    agent: ureq::Agent,
}

/// An answer: status, content type and body.
struct Answer {
    status: u16,
    kind: String,
    body: Value,
}

impl Api {
    /// Lease time passes as real time does: so nothing is journalled by itself for minutes.
    fn start() -> Api {
        let home = Home::new();
        let dev = Dev::start(&home, &["--speed", "1"]);
        dev.all_on_offer(&home);
        // A server that refuses a call without reading its body hangs up: each call has a connection
        // of its own.
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let config = config.max_idle_connections(0).build();
        Api { home, dev, agent: config.into() }
    }

    fn post(&self, path: &str, token: &str, key: Option<&str>, body: &str) -> Answer {
        let mut request = self.agent.post(format!("{}{path}", self.dev.server));
        request = request.header("authorization", format!("Bearer {token}"));
        request = request.header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        answer(request.send(body).unwrap())
    }

    /// Sends the head of a call with a body of this many bytes and a first part of it, then reads: a
    /// server that has heard enough answers and hangs up, and a caller that goes on writing would
    /// not hear it.
    fn post_large(&self, path: &str, token: &str, bytes: usize) -> Answer {
        let mut stream = TcpStream::connect(self.dev.server.trim_start_matches("http://")).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: sublet\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\nidempotency-key: k-large\r\n\
             content-length: {bytes}\r\nconnection: close\r\n\r\n{{\"project\":\"xxxx"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let kind = head.lines().find_map(|line| line.strip_prefix("content-type: "));
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            kind: kind.unwrap_or_default().to_owned(),
            body: serde_json::from_str(body).unwrap(),
        }
    }

    fn get(&self, path: &str, token: &str) -> Answer {
        let request = self.agent.get(format!("{}{path}", self.dev.server));
        answer(request.header("authorization", format!("Bearer {token}")).call().unwrap())
    }

    fn token(&self) -> String {
        self.home.ok(&["token", "--role", "tenant"]).trim().to_owned()
    }

    fn records(&self) -> u64 {
        self.home.json(&["ledger", "state"])["size"].as_u64().unwrap()
    }
}

fn answer(mut response: ureq::http::Response<ureq::Body>) -> Answer {
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let text = response.body_mut().read_to_string().unwrap();
    Answer {
        status: response.status().as_u16(),
        kind: kind.unwrap_or_default(),
        body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
    }
}

/// A token with the server's own key but these claims.
fn sign(home: &Home, change: impl FnOnce(&mut Value)) -> String {
    let profile: toml::Value =
        toml::from_str(&std::fs::read_to_string(home.profile()).unwrap()).unwrap();
    let field = |name: &str| profile[name].as_str().unwrap().to_owned();
    let key = EncodingKey::from_ed_pem(&std::fs::read(PathBuf::from(field("key"))).unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut claims = json!({
        "iss": field("issuer"), "aud": field("audience"), "sub": "tester", "iat": now, "nbf": now,
        "exp": now + 300, "roles": ["tenant"], "tenant": "initech",
    });
    change(&mut claims);
    let header = Header { kid: Some(field("key_id")), ..Header::new(Algorithm::EdDSA) };
    jsonwebtoken::encode(&header, &claims, &key.unwrap()).unwrap()
}

#[test]
fn a_bad_call_is_answered_with_a_problem_and_changes_nothing() {
    let api = Api::start();
    let (good, before) = (api.token(), api.records());
    let expired = sign(&api.home, |claims| {
        for name in ["exp", "nbf", "iat"] {
            claims[name] = json!(claims[name].as_u64().unwrap() - 3_600);
        }
    });
    let auditor = sign(&api.home, |claims| claims["roles"] = json!(["auditor"]));
    let body = r#"{"duration":60}"#;
    let (requests, key) = ("/v1/requests", Some("k-1"));
    let unknown = "/v1/leases/l-00000000000000000000000000/workload";
    let rows: [(&str, u16, Answer); 14] = [
        ("unknown field", 422, api.post(requests, &good, key, r#"{"duration":60,"gpuz":1}"#)),
        ("zero", 422, api.post(requests, &good, key, r#"{"duration":60,"count":0}"#)),
        ("negative", 422, api.post(requests, &good, key, r#"{"duration":60,"memory":-1}"#)),
        ("huge", 422, api.post(requests, &good, key, r#"{"duration":60,"count":1000000000}"#)),
        ("not JSON", 400, api.post(requests, &good, key, "{")),
        ("bad id", 422, api.post(requests, &good, key, r#"{"duration":60,"models":["A_100"]}"#)),
        ("expired token", 401, api.post(requests, &expired, key, body)),
        ("no token", 401, api.post(requests, "", key, body)),
        ("wrong role", 403, api.post(requests, &auditor, key, body)),
        ("a tenant sets up", 403, api.post("/v1/tenants", &good, key, r#"{"id":"hooli"}"#)),
        ("missing key", 400, api.post(requests, &good, None, body)),
        ("1 MiB body", 413, api.post_large(requests, &good, 1 << 20)),
        ("wrong method", 405, api.post(unknown, &good, key, "{}")),
        ("unknown lease", 404, api.get("/v1/leases/l-00000000000000000000000000", &good)),
    ];
    for (what, status, answer) in rows {
        let Answer { status: found, kind, body } = answer;
        assert_eq!(found, status, "{what}: {body}");
        assert!(kind.starts_with("application/problem+json"), "{what}: {kind}: {body}");
        assert!(!text(&body, "/code").is_empty() && !text(&body, "/detail").is_empty(), "{body}");
    }
    assert_eq!(api.records(), before, "bad calls were journalled");
}

#[test]
fn a_bad_command_line_says_what_and_where_and_changes_nothing() {
    let api = Api::start();
    let before = api.records();
    let home = &api.home;
    let lease = "l-00000000000000000000000000";
    let plan = |flags: &[&'static str]| [&["lease", "plan"], flags].concat();
    let create = |flags: &[&'static str]| [&["lease", "create", "--yes"], flags].concat();
    let quota = |amounts: &[&'static str]| {
        [&["quota", "set", "--tenant", "acme", "--model", "a100"], amounts].concat()
    };
    let terms = |flags: &[&'static str]| [&["tenant", "set", "acme"], flags].concat();
    let rows: [(Vec<&str>, i32, &str); 38] = [
        (create(&["--gpus", "0"]), 2, "--gpus"),
        (create(&["--gpus", "-1"]), 2, "--gpus"),
        (create(&["--gpus", "1000000000"]), 2, "count: invalid value"),
        (create(&["--gpus", "1.5"]), 2, "whole number"),
        (create(&["--memory", "20"]), 2, "GiB"),
        (create(&["--memory", "9999TiB"]), 2, "1048576"),
        (create(&["--memory", "-1GiB"]), 2, "no amount of memory"),
        (create(&["--duration", "-1h"]), 2, "before zero"),
        (create(&["--duration", "0s"]), 2, "1 to 2592000"),
        (create(&["--duration", "90"]), 2, "90s"),
        (create(&["--max-price", "-1"]), 2, "below zero"),
        (create(&["--model", "A_100"]), 2, "GPU model"),
        (plan(&["--gpus", "1000"]), 5, "QUOTA_TOO_SMALL"),
        (quota(&["-1"]), 2, "invalid value"),
        (quota(&["1.0005"]), 2, "finer than a thousandth"),
        (quota(&["1000000001"]), 2, "too many for a quota"),
        (quota(&["18446744073709551616"]), 2, "more than can be written"),
        (quota(&["1", "--borrow", "-1"]), 2, "invalid value"),
        (quota(&["1", "--lend", "1000000001"]), 2, "too many for a quota"),
        (terms(&["--weight", "-1"]), 2, "0 to 1000"),
        (terms(&["--weight", "1000.001"]), 2, "0 to 1000"),
        (terms(&["--budget", "-0.01"]), 2, "below zero"),
        (terms(&["--gpu-hours", "-1"]), 2, "invalid value"),
        (terms(&["--reclaim", "sometimes"]), 2, "lower_priority"),
        (vec!["tenant", "move", "acme", "--parent", "acme"], 5, "TENANT_CYCLE"),
        (vec!["policy", "set", "half_life=0s"], 5, "half_life must be at least 1"),
        (vec!["lease", "run", "--", ""], 2, "the command to run is empty"),
        (vec!["lease", "run", "echo", "hi"], 2, "behind `--`"),
        (vec!["events", "--follow", "--limit", "0"], 2, "from 1"),
        (vec!["lease", "list", "--limit", "-1"], 2, "from 1"),
        (vec!["dev", "--rho", "0.5"], 2, "--trace"),
        (vec!["lease", "show", lease], 3, "there is no lease"),
        (vec!["why", lease], 3, "there is no lease"),
        (vec!["lease", "show", "zzzz"], 3, "zzzz"),
        (vec!["lease", "end", "r-1"], 3, "r-1"),
        (vec!["tenant", "create", "No Spaces"], 2, "a-z, 0-9 and -"),
        (vec!["--token", "nonsense", "offers"], 4, "expired"),
        (vec!["cluster", "create", "x", "--owner", "nobody", "--region", "r"], 5, "tenant"),
    ];
    for (arguments, code, part) in rows {
        let done = home.sublet(&arguments);
        assert_eq!(done.code, code, "{done:#?}");
        assert!(done.err.contains(part), "{part:?} is missing: {done:#?}");
    }
    let tenant = home.ok(&["token", "--role", "tenant"]);
    let denied = home.sublet(&["--token", tenant.trim(), "tenant", "create", "hooli"]);
    assert_eq!(denied.code, 4, "{denied:#?}");
    assert_eq!(api.records(), before, "bad command lines were journalled");
}
