//! Answers that a real API server can't be made to give on demand, from a socket that gives them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_core::{Change, Handle, Owner, Record};
use berth_kube::Connect;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use berth_ledger::Rejection;

/// What the socket does with each request.
#[derive(Clone)]
enum Reply {
    /// Status line, further headers, body.
    Answer(&'static str, &'static str, String),
    /// Closes the connection when the request is in.
    HangUp,
    /// Promises a body and closes in the middle of it.
    Half,
    Silence,
}

struct Socket {
    ledger: KubeLedger,
    requests: Arc<AtomicUsize>,
}

async fn mk_socket(reply: Reply) -> Socket {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (reply, counter) = (reply.clone(), Arc::clone(&counter));
            tokio::spawn(async move { serve(stream, reply, &counter).await });
        }
    });
    Socket {
        ledger: mk_ledger(&url),
        requests,
    }
}

fn mk_ledger(url: &str) -> KubeLedger {
    let connect = Connect {
        namespace: Some("nets".into()),
        timeout: Duration::from_millis(500),
        ..Connect::default()
    };
    let config = kube::Config::new(url.parse().unwrap());
    KubeLedger::new(connect.open_with(config, None).unwrap())
}

async fn serve(mut stream: TcpStream, reply: Reply, counter: &AtomicUsize) {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !is_whole(&seen) {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(n) => seen.extend_from_slice(&buffer[..n]),
        }
    }
    counter.fetch_add(1, Ordering::SeqCst);
    let text = match reply {
        Reply::HangUp => return,
        Reply::Silence => return std::future::pending().await,
        Reply::Half => "HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{\"metadata\":".to_owned(),
        Reply::Answer(status, headers, body) => format!(
            "HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
    };
    let _ = stream.write_all(text.as_bytes()).await;
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0usize);
    body.len() >= length
}

fn mk_status(code: u16, reason: &str, message: &str, details: Value) -> String {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details,
    })
    .to_string()
}

fn mk_pool() -> PoolKey {
    PoolKey::of_network("10.0.0.0-24", "10.0.0.0/24".parse().unwrap())
}

fn mk_base() -> Version {
    let read = json!({ "metadata": { "resourceVersion": "7", "generation": 3 } });
    Version::from(&Base::At(base::Stamp::read(&read).unwrap()))
}

fn mk_claim() -> Change {
    Change::Allocate {
        address: "10.0.0.5".parse().unwrap(),
        record: Record::new(Owner::new("ns/p", "net1"), Handle::new("c1")),
    }
}

async fn read(reply: Reply) -> LedgerError {
    let socket = mk_socket(reply).await;
    socket.ledger.load(&mk_pool()).await.unwrap_err()
}

async fn write(reply: Reply) -> LedgerError {
    let socket = mk_socket(reply).await;
    let commit = socket
        .ledger
        .commit(&mk_pool(), &mk_base(), &[mk_claim()], None)
        .await;
    let requests = socket.requests.load(Ordering::SeqCst);
    assert!(
        requests <= 2,
        "{requests}: the client must not retry by itself"
    );
    commit.unwrap_err()
}

fn rejection(error: LedgerError) -> (Rejection, String) {
    let text = error.to_string();
    match error {
        LedgerError::Rejected { rejection, .. } => (rejection, text),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_unknown_user_is_told_so() {
    let reply = Reply::Answer(
        "401 Unauthorized",
        "",
        mk_status(401, "Unauthorized", "Unauthorized", json!({})),
    );
    let (rejection, text) = rejection(read(reply).await);
    assert!(matches!(rejection, Rejection::Unauthenticated(_)));
    assert!(
        text.contains("IPPool nets/10.0.0.0-24") && text.contains("renew"),
        "{text}"
    );
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let reply = Reply::Answer(
        "403 Forbidden",
        "",
        mk_status(
            403,
            "Forbidden",
            "User \"u\" cannot patch resource",
            json!({}),
        ),
    );
    let (rejection, text) = rejection(write(reply).await);
    assert!(matches!(rejection, Rejection::Forbidden(_)));
    assert!(
        text.contains("grant `patch` on `ippools.whereabouts.cni.cncf.io` in namespace `nets`"),
        "{text}"
    );
    let quota = Reply::Answer(
        "403 Forbidden",
        "",
        mk_status(403, "Forbidden", "exceeded quota: pools", json!({})),
    );
    let text = write(quota).await.to_string();
    assert!(
        text.contains("exceeded quota") && !text.contains("grant"),
        "{text}"
    );
}

#[tokio::test]
async fn an_absent_object_is_an_empty_pool_and_an_absent_kind_is_an_error() {
    let absent = mk_status(
        404,
        "NotFound",
        "ippools.whereabouts.cni.cncf.io \"10.0.0.0-24\" not found",
        json!({ "name": "10.0.0.0-24", "kind": "ippools" }),
    );
    let socket = mk_socket(Reply::Answer("404 Not Found", "", absent)).await;
    assert!(
        socket
            .ledger
            .load(&mk_pool())
            .await
            .unwrap()
            .pool
            .is_empty()
    );
    let kind = Reply::Answer("404 Not Found", "", "404 page not found\n".into());
    let (rejection, text) = rejection(read(kind).await);
    assert!(matches!(rejection, Rejection::Missing(_)));
    assert!(
        text.contains("deploy/crds/whereabouts.cni.cncf.io_ippools.yaml"),
        "{text}"
    );
}

#[tokio::test]
async fn conflicts_ask_for_another_plan() {
    let reply = Reply::Answer(
        "409 Conflict",
        "",
        mk_status(409, "Conflict", "the object has been modified", json!({})),
    );
    let error = write(reply).await;
    assert!(matches!(error, LedgerError::Conflict { .. }), "{error}");
}

#[tokio::test]
async fn what_is_too_large_is_full_whoever_says_it() {
    for (status, code, message) in [
        ("413 Request Entity Too Large", 413, "limit is 3145728"),
        (
            "500 Internal Server Error",
            500,
            "etcdserver: request is too large",
        ),
        (
            "500 Internal Server Error",
            500,
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2228241 vs. 2097152)",
        ),
    ] {
        let body = mk_status(code, "", message, json!({}));
        let error = write(Reply::Answer(status, "", body)).await;
        assert!(
            matches!(error, LedgerError::Full { .. }),
            "{message}: {error}"
        );
        assert!(error.to_string().contains("node slices"), "{error}");
    }
}

#[tokio::test]
async fn what_the_server_finds_invalid_is_refused_with_its_words() {
    let reply = Reply::Answer(
        "400 Bad Request",
        "",
        mk_status(400, "BadRequest", "unknown field \"x\"", json!({})),
    );
    let (rejection, _) = rejection(write(reply).await);
    assert!(
        matches!(&rejection, Rejection::Invalid { code: 400, message } if message.contains("unknown field")),
        "{rejection}"
    );
}

#[tokio::test]
async fn a_throttled_request_says_when_to_come_back() {
    let plain = Reply::Answer(
        "429 Too Many Requests",
        "retry-after: 7\r\n",
        "Too many requests, please try again later.\n".into(),
    );
    let told = Reply::Answer(
        "429 Too Many Requests",
        "",
        mk_status(
            429,
            "TooManyRequests",
            "slow down",
            json!({ "retryAfterSeconds": 7 }),
        ),
    );
    for reply in [plain, told] {
        for error in [read(reply.clone()).await, write(reply.clone()).await] {
            assert!(
                matches!(&error, LedgerError::Unavailable { retry_after: Some(after), .. }
                    if *after == Duration::from_secs(7)),
                "{error:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_expired_list_can_be_begun_again() {
    let body = mk_status(410, "Expired", "the continue token is too old", json!({}));
    let socket = mk_socket(Reply::Answer("410 Gone", "", body)).await;
    let error = socket.ledger.pools().await.unwrap_err();
    assert!(error.is_passing(), "{error}");
}

#[tokio::test]
async fn a_server_error_leaves_a_write_uncertain() {
    for status in [
        "500 Internal Server Error",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "504 Gateway Timeout",
    ] {
        let reply = Reply::Answer(status, "", "upstream connect error".into());
        let error = write(reply.clone()).await;
        assert!(
            matches!(error, LedgerError::Uncertain { .. }),
            "{status}: {error}"
        );
        assert!(read(reply).await.is_passing());
    }
    // The API server's own 503 comes before it does anything.
    let body = mk_status(503, "ServiceUnavailable", "not ready", json!({}));
    let own = Reply::Answer("503 Service Unavailable", "retry-after: 1\r\n", body);
    assert!(write(own).await.is_passing());
}

#[tokio::test]
async fn an_answer_that_does_not_come_leaves_a_write_uncertain() {
    for reply in [Reply::HangUp, Reply::Half, Reply::Silence] {
        let error = write(reply.clone()).await;
        assert!(matches!(error, LedgerError::Uncertain { .. }), "{error}");
        assert!(error.to_string().contains("outcome is unknown"), "{error}");
        let error = read(reply).await;
        assert!(error.is_passing(), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_can_not_be_reached_got_nothing() {
    let ledger = mk_ledger("http://127.0.0.1:1");
    let error = ledger
        .commit(&mk_pool(), &mk_base(), &[mk_claim()], None)
        .await
        .unwrap_err();
    assert!(error.is_passing(), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn an_answer_that_is_no_json_is_no_success() {
    let reply = Reply::Answer("200 OK", "", "<html>login</html>".into());
    assert!(read(reply.clone()).await.is_passing());
    let error = write(reply).await;
    assert!(matches!(error, LedgerError::Uncertain { .. }), "{error}");
}

#[tokio::test]
async fn a_claim_by_name_that_is_lost_is_uncertain() {
    let socket = mk_socket(Reply::HangUp).await;
    let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.5");
    let record = Record::new(Owner::new("ns/p", "net1"), Handle::new("c1"));
    let error = socket.ledger.create(&key, &record).await.unwrap_err();
    assert!(matches!(error, LedgerError::Uncertain { .. }), "{error}");
}

/// An object of a list that counts how many of its like there are.
struct Counted;

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static MOST_ALIVE: AtomicUsize = AtomicUsize::new(0);

impl<'de> serde::Deserialize<'de> for Counted {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer)?;
        let now = ALIVE.fetch_add(1, Ordering::SeqCst) + 1;
        MOST_ALIVE.fetch_max(now, Ordering::SeqCst);
        Ok(Counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// 50,000 reservations were 299 MiB of JSON trees, 20 pools of 10,000 entries 189 MiB, where an agent may have 128.
#[tokio::test]
async fn berth_15_21_a_list_is_shown_object_by_object() {
    let items: Vec<Value> = (0..100)
        .map(|n| json!({ "metadata": { "name": n } }))
        .collect();
    let page = json!({ "metadata": {}, "items": items }).to_string();
    let socket = mk_socket(Reply::Answer("200 OK", "", page)).await;
    let mut seen = 0;
    let count = |_: Counted| seen += 1;
    let client = &socket.ledger.client;
    client.reduce(&POOLS, "", PAGE, count).await.unwrap();
    assert_eq!(seen, 100);
    assert_eq!(MOST_ALIVE.load(Ordering::SeqCst), 1);
    // The text of a page of the largest pools.
    assert!(PAGE as usize * ETCD_REQUEST_LIMIT <= 8 << 20);
}
