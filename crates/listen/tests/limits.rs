//! Clients that stall, flood and hold connections open, against a real listener on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use berth_listen::{Limits, Peer, Server, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

struct Site {
    address: SocketAddr,
    bodies: Arc<AtomicUsize>,
    hold: Arc<Notify>,
    /// One for each request to `/held` that is being served.
    entered: Arc<Semaphore>,
    end: CancellationToken,
}

/// Limits that a test need not wait for.
fn quick() -> Limits {
    Limits {
        head: Duration::from_millis(300),
        body: Duration::from_millis(300),
        write: Duration::from_millis(300),
        ..Limits::default()
    }
}

async fn site(limits: Limits) -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (bodies, hold) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let entered = Arc::new(Semaphore::new(0));
    let (counted, held, enters) = (bodies.clone(), hold.clone(), entered.clone());
    let guarded = |headers: HeaderMap, request: axum::extract::Request| async move {
        if !headers.contains_key("authorization") {
            return StatusCode::UNAUTHORIZED;
        }
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
        counted.fetch_add(1, Ordering::Relaxed);
        body.map_or(StatusCode::BAD_REQUEST, |_| StatusCode::OK)
    };
    let routes = Router::new()
        .route("/", get(|| async { "ok" }))
        .route(
            "/size",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .route("/guarded", post(guarded))
        .route(
            "/held",
            get(move || async move {
                enters.add_permits(1);
                held.notified().await;
            }),
        )
        .route("/large", get(|| async { vec![b'x'; 64 << 20] }))
        .layer(DefaultBodyLimit::max(1 << 20));
    let server = Server {
        name: "test",
        transport: Transport::Tcp(listener),
        routes,
        limits,
    };
    let end = CancellationToken::new();
    tokio::spawn(server.run(end.clone()));
    Site {
        address,
        bodies,
        hold,
        entered,
        end,
    }
}

impl Site {
    async fn open(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection from another address of this machine.
    async fn open_from(&self, last: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        let source = SocketAddr::new(Ipv4Addr::new(127, 0, 0, last).into(), 0);
        socket.bind(source).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn say(&self, text: &str) -> TcpStream {
        let mut stream = self.open().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }
}

/// Everything until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset ends it as well as a close.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
}

async fn is_ok(mut stream: TcpStream) -> bool {
    let asked = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(asked.as_bytes()).await.is_ok()
        && rest(stream).await.starts_with("HTTP/1.1 200")
}

#[tokio::test]
async fn a_head_that_does_not_end_is_cut_off() {
    let site = site(quick()).await;
    let slow = site.say("GET / HTTP/1.1\r\nhost: x\r\nx: ").await;
    assert_eq!(rest(slow).await, "", "closed without an answer");
    let silent = site.open().await;
    assert_eq!(rest(silent).await, "");
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}", "y".repeat(20_000));
    let answer = rest(site.say(&long).await).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    let many: String = (0..200).map(|n| format!("h{n}: 1\r\n")).collect();
    let answer = rest(site.say(&format!("GET / HTTP/1.1\r\n{many}\r\n")).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    site.end.cancel();
}

#[tokio::test]
async fn a_body_that_does_not_end_is_answered_408() {
    let site = site(quick()).await;
    let half = site
        .say("POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf")
        .await;
    let answer = rest(half).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    site.end.cancel();
}

#[tokio::test]
async fn a_body_beyond_the_routes_limit_is_refused() {
    let site = site(quick()).await;
    let mut large = site
        .say("POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n")
        .await;
    let _ = large.write_all(&vec![b'x'; 2 << 20]).await;
    let answer = rest(large).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 413"),
        "{answer}"
    );
    site.end.cancel();
}

#[tokio::test]
async fn who_is_refused_by_the_head_sends_no_body() {
    let site = site(quick()).await;
    let half = site
        .say("POST /guarded HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nhalf")
        .await;
    let answer = rest(half).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert_eq!(site.bodies.load(Ordering::Relaxed), 0);
    site.end.cancel();
}

#[tokio::test]
async fn bodies_together_are_limited() {
    let limits = Limits {
        body_bytes: 256 * 1024,
        body: Duration::from_secs(30),
        ..quick()
    };
    let site = site(limits).await;
    let mut half = site
        .say("POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n")
        .await;
    half.write_all(&vec![b'x'; 200 * 1024]).await.unwrap();
    // The second finds no room as long as the first has it, and finds some as soon as that has ended.
    let whole = format!(
        "POST /size HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 150000\r\n\r\n{}",
        "x".repeat(150_000)
    );
    loop {
        let answer = rest(site.say(&whole).await).await;
        if answer.starts_with("HTTP/1.1 503") {
            break;
        }
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 200"),
            "{answer}"
        );
    }
    drop(half);
    loop {
        let answer = rest(site.say(&whole).await).await;
        if answer.starts_with("HTTP/1.1 200") && answer.ends_with("150000") {
            break;
        }
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 503"),
            "{answer}"
        );
    }
    site.end.cancel();
}

#[tokio::test]
async fn held_connections_lock_out_neither_others_nor_their_own_peer() {
    let limits = Limits {
        head: Duration::from_secs(600),
        connections: 20,
        per_peer: 10,
        ..Limits::default()
    };
    let site = site(limits).await;
    let mut held = Vec::new();
    for n in 0..200 {
        let mut stream = site.open_from(2 + n % 3).await;
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nx: ").await;
        held.push(stream);
    }
    assert!(is_ok(site.open_from(9).await).await, "another peer");
    assert!(is_ok(site.open_from(2).await).await, "the same peer");
    site.end.cancel();
}

#[tokio::test]
async fn a_request_that_is_being_served_is_not_closed_for_another() {
    let limits = Limits {
        per_peer: 1,
        ..Limits::default()
    };
    let site = site(limits).await;
    let held = site
        .say("GET /held HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    let _served = site.entered.acquire().await.unwrap();
    assert!(!is_ok(site.open().await).await, "there is no place for it");
    site.hold.notify_one();
    let answer = rest(held).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    site.end.cancel();
}

#[tokio::test]
async fn an_answer_that_the_client_does_not_read_is_dropped() {
    let limits = Limits {
        per_peer: 1,
        ..quick()
    };
    let site = site(limits).await;
    let _stuck = site.say("GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let started = std::time::Instant::now();
    while !is_ok(site.open().await).await {
        assert!(started.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    site.end.cancel();
}

#[tokio::test]
async fn the_end_waits_for_what_is_served_and_for_nothing_else() {
    let site = site(Limits::default()).await;
    let silent = site.open().await;
    let held = site.say("GET /held HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let _served = site.entered.acquire().await.unwrap();
    site.end.cancel();
    assert_eq!(rest(silent).await, "");
    site.hold.notify_one();
    let answer = rest(held).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_peer_is_identified() {
    assert_eq!(Peer::Local.to_string(), "a local process");
}
