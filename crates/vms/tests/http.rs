//! The API as its users see it: over a socket, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use berth_ledger::MemoryLedger;
use berth_listen::{Limits, Transport};
use berth_vms::settings::TcpListen;
use berth_vms::{Fleet, Store};
use script::{ScriptedVms, settings};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

struct Server {
    address: String,
    vms: Arc<ScriptedVms>,
    fleet: Fleet,
}

impl Server {
    async fn new(env: &[(&str, &str)]) -> Self {
        let settings = settings(env);
        let vms: Arc<ScriptedVms> = Arc::default();
        let store = Store::Local(Arc::new(MemoryLedger::new()));
        let (meters, desk) = Default::default();
        let fleet = Fleet::new(&settings, store, vms.clone(), meters, desk);
        fleet.resize(&settings.pools).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app = Router::new().nest("/v1/vms", berth_vms::router(fleet.clone()));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            vms,
            fleet,
        }
    }

    async fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        request(&self.address, method, path, "", body).await
    }
}

/// One request on a connection of its own.
async fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let text = format!(
        "{method} /v1/vms{path} HTTP/1.1\r\nhost: berth\r\nconnection: close\r\n\
         content-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

fn free_address() -> SocketAddr {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

const TWO: (&str, &str) = ("VM_POOL_IPS", "192.168.1.10,192.168.1.11");

#[tokio::test]
async fn the_life_of_an_allocation() {
    let server = Server::new(&[TWO]).await;
    let wish =
        json!({"allocationID": "test-allocation-1", "podName": "nginx", "podNamespace": "default"});
    let (status, allocated) = server.call("POST", "/allocations", &wish.to_string()).await;
    assert_eq!(status, 200, "{allocated}");
    assert_eq!(allocated["ip"], "192.168.1.10");
    assert_eq!(allocated["nodeName"], "worker");
    assert_eq!(allocated["pool"], "default");
    let (_, again) = server
        .call("POST", "/allocations?pool=default", &wish.to_string())
        .await;
    assert_eq!(again, allocated);
    let (_, by_id) = server
        .call("GET", "/allocations/test-allocation-1", "")
        .await;
    assert_eq!(by_id, allocated);
    let (_, by_ip) = server.call("GET", "/ips/192.168.1.10", "").await;
    assert_eq!(by_ip, allocated);
    let (_, list) = server.call("GET", "/allocations?node=worker", "").await;
    assert_eq!(list, json!({ "allocations": [allocated] }));
    let (_, none) = server.call("GET", "/allocations?node=other", "").await;
    assert_eq!(none, json!({ "allocations": [] }));
    let (_, state) = server.call("GET", "/status", "").await;
    let pool = &state["pools"][0];
    let counts = [
        &pool["total"],
        &pool["available"],
        &pool["inUse"],
        &pool["quarantined"],
    ];
    assert_eq!(counts, [2, 1, 1, 0]);

    let (status, _) = server
        .call(
            "PUT",
            "/allocations/test-allocation-1/user-data",
            "#cloud-config",
        )
        .await;
    assert_eq!(status, 200);
    assert_eq!(
        server.vms.user_data("192.168.1.10".parse().unwrap()),
        b"#cloud-config"
    );

    let path = "/allocations/test-allocation-1?wait=30";
    let (status, ended) = server.call("DELETE", path, "").await;
    assert_eq!((status, &ended), (200, &json!({"returned": "released"})));
    assert_eq!(server.vms.reboots("192.168.1.10"), 1);
    let (_, ended) = server.call("DELETE", path, "").await;
    assert_eq!(ended, json!({"returned": "nothing"}));
    let (status, recovered) = server.call("POST", "/recover?takeBack=true", "").await;
    assert_eq!(
        (status, &recovered["pools"][0]["takenBack"]),
        (200, &json!(0))
    );
}

#[tokio::test]
async fn failures_say_what_failed_and_whether_to_retry() {
    let server = Server::new(&[("VM_POOL_IPS", "10.0.0.1")]).await;
    let wish = |id: &str| json!({ "allocationID": id }).to_string();
    server.call("POST", "/allocations", &wish("a")).await;
    for (method, path, body, status, code, retry) in [
        ("POST", "/allocations", wish("b"), 409, "exhausted", true),
        (
            "POST",
            "/allocations",
            wish("no spaces"),
            400,
            "invalid",
            false,
        ),
        ("POST", "/allocations", "{}".into(), 400, "invalid", false),
        (
            "POST",
            "/allocations",
            r#"{"allocationID":"c","size":3}"#.into(),
            400,
            "invalid",
            false,
        ),
        (
            "POST",
            "/allocations?pool=gpu",
            wish("b"),
            404,
            "unknown-pool",
            false,
        ),
        (
            "POST",
            "/allocations?pol=gpu",
            wish("b"),
            400,
            "invalid",
            false,
        ),
        (
            "GET",
            "/allocations/b",
            String::new(),
            404,
            "unknown-allocation",
            false,
        ),
        (
            "GET",
            "/ips/10.0.0.9",
            String::new(),
            404,
            "unknown-ip",
            false,
        ),
        ("GET", "/ips/nowhere", String::new(), 400, "invalid", false),
        (
            "DELETE",
            "/allocations/a?force=maybe",
            String::new(),
            400,
            "invalid",
            false,
        ),
    ] {
        let (got, answer) = server.call(method, path, &body).await;
        assert_eq!(
            (got, &answer["code"], &answer["retry"]),
            (status, &json!(code), &json!(retry)),
            "{method} {path} {body}: {answer}"
        );
    }
    let (_, answer) = server.call("POST", "/allocations", &wish("b")).await;
    assert_eq!(answer["error"], "no available IPs in pool");
    server.vms.hold_down("10.0.0.1");
    let (_, ended) = server.call("DELETE", "/allocations/a", "").await;
    assert_eq!(ended, json!({"returned": "quarantined"}));
    let (status, answer) = server.call("POST", "/allocations", &wish("a")).await;
    assert_eq!((status, &answer["code"]), (409, &json!("being-cleaned")));
    let (_, listed) = server.call("GET", "/allocations/a", "").await;
    assert_eq!(listed["quarantine"]["by"], "worker");
}

/// Through the real listener, which refuses some requests itself.
#[tokio::test]
async fn berth_15_11_every_refusal_is_json() {
    let server = Server::new(&[TWO]).await;
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "first-0123456789\n").unwrap();
    let address = free_address();
    let listen = TcpListen {
        address,
        token_file,
    };
    let end = CancellationToken::new();
    berth_vms::http::serve_tcp(server.fleet.clone(), &listen, end.clone())
        .await
        .unwrap();
    let address = address.to_string();
    let call = async |method: &str, path: &str, body: &str| {
        let token = "authorization: Bearer first-0123456789\r\n";
        request(&address, method, path, token, body).await
    };
    let large = json!({ "allocationID": "x".repeat(100_000) }).to_string();
    for (method, path, body, status, code) in [
        ("GET", "/nothing/here", "", 404, "unknown-path"),
        ("GET", "", "", 404, "unknown-path"),
        ("PATCH", "/allocations", "", 405, "unknown-method"),
        ("PUT", "/status", "", 405, "unknown-method"),
        ("POST", "/allocations", large.as_str(), 413, "too-large"),
    ] {
        let (got, answer) = call(method, path, body).await;
        assert_eq!(
            (got, &answer["code"]),
            (status, &json!(code)),
            "{method} {path}: {answer}"
        );
        assert!(
            answer["error"].is_string() && answer["retry"] == false,
            "{answer}"
        );
    }
    let (status, _) = call("POST", "/allocations", r#"{"allocationID":"a"}"#).await;
    assert_eq!(status, 200);
    let huge = "x".repeat(8 * 1024 * 1024 + 1);
    let (status, answer) = call("PUT", "/allocations/a/user-data", &huge).await;
    assert_eq!((status, &answer["code"]), (413, &json!("too-large")));
    end.cancel();
}

/// The listener's own refusals: a body that does not arrive, and bodies that are too large together.
#[tokio::test]
async fn berth_15_11_what_the_listener_refuses_is_json_too() {
    let server = Server::new(&[TWO]).await;
    for (limits, status, code) in [
        (
            Limits {
                body: Duration::from_millis(50),
                ..Limits::default()
            },
            408,
            "body-late",
        ),
        (
            Limits {
                body_bytes: 1024,
                ..Limits::default()
            },
            503,
            "busy",
        ),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let end = CancellationToken::new();
        let listen = berth_listen::Server {
            name: "test",
            transport: Transport::Tcp(listener),
            routes: Router::new().nest("/v1/vms", berth_vms::router(server.fleet.clone())),
            limits,
        };
        tokio::spawn(listen.run(end.clone()));
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let head = "POST /v1/vms/allocations HTTP/1.1\r\nhost: berth\r\ncontent-type: application/json\r\n\
            content-length: 60000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&[b' '; 8192]).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let body: Value = serde_json::from_str(body).expect(&answer);
        assert_eq!(body["code"], code);
        assert!(body["error"].is_string() && body["retry"] == true, "{body}");
        end.cancel();
    }
}

#[tokio::test]
async fn the_document_is_served() {
    let server = Server::new(&[TWO]).await;
    let (status, document) = server.call("GET", "/openapi.json", "").await;
    assert_eq!(status, 200);
    assert_eq!(document["openapi"], "3.0.3");
}

#[tokio::test]
async fn on_tcp_nothing_is_served_without_the_token() {
    let server = Server::new(&[TWO]).await;
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    let address = free_address();
    let listen = TcpListen {
        address,
        token_file: token_file.clone(),
    };
    let end = CancellationToken::new();
    let missing = berth_vms::http::serve_tcp(server.fleet.clone(), &listen, end.clone()).await;
    assert!(missing.unwrap_err().to_string().contains("vm-token-file"));
    std::fs::write(&token_file, "first-0123456789\n").unwrap();
    berth_vms::http::serve_tcp(server.fleet.clone(), &listen, end.clone())
        .await
        .unwrap();

    let address = address.to_string();
    let status = |headers: &'static str| {
        let address = address.clone();
        async move { request(&address, "GET", "/status", headers, "").await.0 }
    };
    assert_eq!(status("").await, 401);
    assert_eq!(
        status("authorization: Bearer first-012345678\r\n").await,
        401
    );
    assert_eq!(
        status("authorization: Basic first-0123456789\r\n").await,
        401
    );
    assert_eq!(
        status("authorization: Bearer first-0123456789\r\n").await,
        200
    );
    // Replaced in its file: the old one is refused from the next request on.
    std::fs::write(&token_file, "second-0123456789\n").unwrap();
    assert_eq!(
        status("authorization: Bearer first-0123456789\r\n").await,
        401
    );
    assert_eq!(
        status("authorization: Bearer second-0123456789\r\n").await,
        200
    );
    std::fs::remove_file(&token_file).unwrap();
    assert_eq!(
        status("authorization: Bearer second-0123456789\r\n").await,
        503
    );
    end.cancel();
}
