//! The loop that accepts connections, on a real socket.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::World;
use crate::auth::testing;
use crate::http::{Config, HEADER_TIMEOUT, Server, serve};

async fn server(world: &World) -> Server {
    let bind = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config { bind, verifier: testing::verifier(), metrics: None };
    serve(world.cell.clone(), config).await.unwrap()
}

async fn talk(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_call_over_a_socket_is_answered_and_the_server_stops_with_its_streams() {
    let world = World::new().await;
    let server = server(&world).await;
    let address = server.address();
    assert_ne!(address.port(), 0);
    let live = talk(address, "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(live.starts_with("HTTP/1.1 200 OK"), "{live}");
    let token = testing::token(&["operator"], None);
    let watch =
        format!("GET /v1/watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    let watching = tokio::spawn(async move { talk(address, &watch).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = Instant::now();
    server.shutdown().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    let watched = watching.await.unwrap();
    assert!(watched.starts_with("HTTP/1.1 200 OK"), "{watched}");
    assert!(TcpStream::connect(address).await.is_err(), "it still listens");
}

#[tokio::test]
async fn a_caller_that_never_finishes_its_headers_is_let_go() {
    let world = World::new().await;
    let server = server(&world).await;
    let started = Instant::now();
    let answer = talk(server.address(), "GET /livez HTTP/1.1\r\nhost: x\r\n").await;
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(started.elapsed() < HEADER_TIMEOUT + Duration::from_secs(5));
    server.shutdown().await;
}
