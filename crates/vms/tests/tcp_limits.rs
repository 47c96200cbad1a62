//! The VM API on TCP and clients without the token: what they get, and what they cost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_ledger::MemoryLedger;
use berth_vms::settings::TcpListen;
use berth_vms::{Fleet, Store};
use script::{ScriptedVms, settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

const TOKEN: &str = "right-0123456789";
const LIMIT: Duration = Duration::from_secs(60);

struct Site {
    address: SocketAddr,
    _dir: tempfile::TempDir,
    _end: DropGuard,
}

impl Site {
    async fn new() -> Site {
        let settings = settings(&[("VM_POOL_IPS", "192.168.1.10,192.168.1.11")]);
        let store = Store::Local(Arc::new(MemoryLedger::new()));
        let (meters, desk) = Default::default();
        let vms: Arc<ScriptedVms> = Arc::default();
        let fleet = Fleet::new(&settings, store, vms, meters, desk);
        fleet.resize(&settings.pools).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let token_file = dir.path().join("token");
        std::fs::write(&token_file, TOKEN).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let listen = TcpListen {
            address,
            token_file,
        };
        let end = CancellationToken::new();
        berth_vms::http::serve_tcp(fleet, &listen, end.clone())
            .await
            .unwrap();
        Site {
            address,
            _dir: dir,
            _end: end.drop_guard(),
        }
    }

    /// All that comes back until the server closes the connection.
    async fn say(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        // A reset ends it as well as a close.
        let _ = tokio::time::timeout(LIMIT, read).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn status(&self, token: &str) -> String {
        let head = format!(
            "GET /v1/vms/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        let answer = self.say(&head).await;
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }
}

#[tokio::test]
async fn guessing_tokens_is_slowed_down_and_locks_no_client_out() {
    let site = Site::new().await;
    let mut refused = Vec::new();
    for n in 0..30 {
        refused.push(site.status(&format!("wrong-{n:010}")).await);
    }
    assert_eq!(refused[0], "401");
    assert!(
        refused
            .iter()
            .all(|status| ["401", "429"].contains(&status.as_str()))
    );
    assert!(refused.contains(&"429".to_owned()), "{refused:?}");
    assert_eq!(site.status(TOKEN).await, "200", "at the same address");
}

#[tokio::test]
async fn the_body_of_a_refused_request_is_not_waited_for() {
    let site = Site::new().await;
    let answer = site
        .say("POST /v1/vms/allocations HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\nhalf")
        .await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // Not the error for a body that was waited for.
    assert!(!answer.contains("408"), "{answer}");
}

#[tokio::test]
async fn a_body_that_does_not_end_is_cut_off() {
    let site = Site::new().await;
    let started = Instant::now();
    let half = format!(
        "POST /v1/vms/allocations HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{\"allocationID\""
    );
    let answer = site.say(&half).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(started.elapsed() < LIMIT);
    assert_eq!(site.status(TOKEN).await, "200");
}

#[tokio::test]
async fn a_head_that_does_not_end_is_cut_off() {
    let site = Site::new().await;
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}", "y".repeat(20_000));
    let answer = site.say(&long).await;
    let cut = answer.is_empty() || answer.starts_with("HTTP/1.1 431");
    assert!(cut, "{answer}");
}
