//! Reads that may be behind, on a broker whose cell has lost its quorum.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode};
use serde_json::Value;
use sublet_protocol::commands::{Actor, Command, Outcome};
use sublet_protocol::ids::{CellId, KeyId, LeaseId, RequestId, TenantId};
use tempfile::TempDir;
use tokio::sync::watch;
use tower::Service;

use crate::auth::testing;
use crate::cell::Cell;
use crate::config::{Config, Peers};
use crate::http::app::App;
use crate::http::routes;
use crate::raft::{Begin, Endpoint, FatalHook, Security};

fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn broker(folder: &TempDir, id: u64, listen: SocketAddr) -> Cell {
    let mut config = Config::new(CellId::new("lab").unwrap());
    config.data_dir = Some(folder.path().to_owned());
    config.node_id = id;
    config.begin = if id == 1 { Begin::Found } else { Begin::Wait };
    config.on_fatal = FatalHook::new(|reason| tracing::error!(%reason, "fatal"));
    let endpoint = Endpoint { peer: listen.to_string(), api: String::new() };
    config.peers = Some(Peers { listen, endpoint, security: Security::Plain });
    Cell::open(config).await.unwrap()
}

async fn get(router: &Router, path: &str) -> Response<Body> {
    let token = testing::token(&["tenant", "auditor", "operator"], Some("acme"));
    let call = Request::get(path).header("authorization", format!("Bearer {token}"));
    router.clone().call(call.body(Body::empty()).unwrap()).await.unwrap()
}

async fn json(response: Response<Body>) -> Value {
    serde_json::from_slice(&to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap()
}

fn number(response: &Response<Body>, header: &str) -> Option<u64> {
    Some(response.headers().get(header)?.to_str().unwrap().parse().unwrap())
}

/// The path of a read in the document, with something in the place of each parameter.
fn filled(path: &str) -> String {
    let request = RequestId::new(7).to_string();
    [
        ("{tenant}", "acme"),
        ("{model}", "a100"),
        ("{cluster}", "north"),
        ("{lease}", &LeaseId::new(7).to_string()),
        ("{request}", &request),
        ("{id}", &request),
    ]
    .iter()
    .fold(path.to_owned(), |path, (name, value)| path.replace(name, value))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_a_quorum_answers_every_read_that_may_be_behind_and_says_how_far() {
    let (folders, port) = ([TempDir::new().unwrap(), TempDir::new().unwrap()], free_port());
    let one = broker(&folders[0], 1, free_port()).await;
    let two = broker(&folders[1], 2, port).await;
    let endpoint = Endpoint { peer: port.to_string(), api: String::new() };
    one.add_broker(2, endpoint).await.unwrap();
    let actor = Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() };
    let create = Command::CreateTenant { tenant: TenantId::new("acme").unwrap(), parent: None };
    let made = two.propose(actor, None, create).await.unwrap();
    assert!(matches!(made, Outcome::Done { .. }), "{made:?}");
    let (_stop, stopping) = watch::channel(false);
    let router = routes::router(App::new(two.clone(), testing::verifier(), None, stopping));

    let fresh = get(&router, "/v1/tenants/acme?stale=true").await;
    let (records, age) = (number(&fresh, "sublet-index"), number(&fresh, "sublet-age").unwrap());
    assert_eq!((fresh.status(), records), (StatusCode::OK, Some(two.head().unwrap().size)));
    assert!(age < 10_000, "{age} ms");
    let current = get(&router, "/v1/tenants/acme?stale=false").await;
    assert_eq!((current.status(), number(&current, "sublet-index")), (StatusCode::OK, None));

    one.shutdown().await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let refused = get(&router, "/v1/tenants/acme").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let stale = get(&router, "/v1/tenants/acme?stale=true").await;
    assert!(number(&stale, "sublet-index") >= records, "{stale:?}");
    assert!(number(&stale, "sublet-age").is_none_or(|age| age >= 1_500), "{stale:?}");
    assert_eq!(json(stale).await["id"], "acme");

    let document = serde_json::to_value(routes::openapi()).unwrap();
    let mut reads = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let Some(operation) = operations.get("get").filter(|_| path.starts_with("/v1/")) else {
            continue;
        };
        let parameters = operation["parameters"].as_array().unwrap();
        assert!(parameters.iter().any(|parameter| parameter["name"] == "stale"), "{path}");
        let answer = get(&router, &format!("{}?stale=true", filled(path))).await;
        let status = answer.status();
        assert_ne!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(number(&answer, "sublet-index").is_some(), "{path}");
        if status == StatusCode::BAD_REQUEST {
            let told = json(answer).await.to_string();
            assert!(!told.contains("no such parameter"), "{path}: {told}");
        }
        reads += 1;
    }
    assert!(reads >= 20, "{reads} reads");
    two.shutdown().await;
}
