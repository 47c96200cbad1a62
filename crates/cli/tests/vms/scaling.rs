//! Water marks: an event and one call of the hook per cooldown, over all agents; a dead hook changes nothing.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_testkit::Cluster;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::manager::Manager;
use crate::{allocate, until};

/// A hook that keeps what it was sent: the head and the body of each call.
async fn hook() -> (String, Arc<Mutex<Vec<(String, Value)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/scale?from=berth", listener.local_addr().unwrap());
    let calls: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let kept = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
                let (head, body) = loop {
                    let n = stream.read(&mut buffer).await.unwrap_or(0);
                    text.extend_from_slice(&buffer[..n]);
                    let all = String::from_utf8_lossy(&text).into_owned();
                    let whole = all.split_once("\r\n\r\n").and_then(|(head, body)| {
                        Some((head.to_owned(), serde_json::from_str(body).ok()?))
                    });
                    match whole {
                        Some(whole) => break whole,
                        None if n == 0 => return,
                        None => {}
                    }
                };
                kept.lock().unwrap().push((head, body));
                let answer = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (url, calls)
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn reasons(cluster: &Cluster, namespace: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(cluster.client().await.unwrap(), namespace);
    let all = events.list(&Default::default()).await.unwrap();
    let of_pool = all
        .items
        .into_iter()
        .filter(|event| event.involved_object.kind.as_deref() == Some("ConfigMap"));
    of_pool.filter_map(|event| event.reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn water_marks_raise_an_event_and_call_the_hook_once_per_cooldown() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("scale").await.unwrap();
    let (url, calls) = hook().await;
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "a-token-for-the-hook\n").unwrap();
    let no_certificates = dir.path().join("no-certificates.pem");
    std::fs::write(&no_certificates, "").unwrap();
    let env = |node: &'static str| {
        vec![
            ("VM_POOL_IPS", "10.0.0.1-10.0.0.10"),
            ("POOL_NAMESPACE", namespace.as_str()),
            ("NODE_NAME", node),
            ("VM_READINESS", "off"),
            ("VM_CLEANUP", "false"),
            ("VM_LOW_WATER", "30%"),
            ("VM_HIGH_WATER", "9"),
            ("VM_SCALE_HOOK", url.as_str()),
            ("VM_SCALE_HOOK_TOKEN_FILE", token.to_str().unwrap()),
            // As in the released image, which has no certificates.
            ("SSL_CERT_FILE", no_certificates.to_str().unwrap()),
            // Longer than the test: what is called twice is called too often.
            ("VM_SCALE_COOLDOWN", "1h"),
        ]
    };
    let kubeconfig = cluster.kubeconfig();
    let first = Manager::start_with(&kubeconfig, &env("node-1"), &["--vms-only"]).await;
    let second = Manager::start_with(&kubeconfig, &env("node-2"), &["--vms-only"]).await;
    // Ten of ten are free: above the high mark, until one is allocated.
    eventually("the hook is called", async || {
        !calls.lock().unwrap().is_empty()
    })
    .await;
    let (head, body) = calls.lock().unwrap()[0].clone();
    assert!(
        head.starts_with("POST /scale?from=berth HTTP/1.1"),
        "{head}"
    );
    let head = head.to_lowercase();
    assert!(
        head.contains("authorization: bearer a-token-for-the-hook"),
        "{head}"
    );
    assert!(head.contains("user-agent: berth/"), "{head}");
    assert_eq!(
        (&body["signal"], &body["pool"]),
        (&"high".into(), &"default".into())
    );
    assert_eq!(
        (&body["available"], &body["highWater"]),
        (&10.into(), &9.0.into())
    );
    eventually("the event is there", async || {
        reasons(cluster, &namespace).await == ["PoolHigh"]
    })
    .await;

    // Within the cooldown nothing more is called, whatever happens; the pools go on.
    for n in 0..8 {
        allocate(&first, "default", &format!("pod-{n}")).await;
    }
    until(&second, "default", [2, 8, 0]).await;
    let counted = |manager: &Manager| manager.log().matches("high-water mark").count();
    assert_eq!(
        counted(&first) + counted(&second),
        1,
        "{}{}",
        first.log(),
        second.log()
    );

    // After the cooldown, here shortened by hand, the next one is, by one of the two.
    let name = "byom-ip-pool-state";
    let annotation = "vms.berth.dev/scale-reported-at=2026-01-01T00:00:00Z";
    let edit = [
        "-n",
        &namespace,
        "annotate",
        "--overwrite",
        "configmap",
        name,
        annotation,
    ];
    crate::kubectl(cluster, &edit);
    eventually("the hook is called again", async || {
        calls.lock().unwrap().len() > 1
    })
    .await;
    let (_, body) = calls.lock().unwrap()[1].clone();
    assert_eq!(
        (&body["signal"], &body["available"]),
        (&"low".into(), &2.into())
    );
    assert_eq!(
        (&body["lowWater"], &body["inUse"]),
        (&3.0.into(), &8.into())
    );
    eventually("the second event is there", async || {
        reasons(cluster, &namespace)
            .await
            .contains(&"PoolLow".to_owned())
    })
    .await;
    assert_eq!(calls.lock().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_scale_hook_changes_nothing() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("scale").await.unwrap();
    // It accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let env = [
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.10"),
        ("POOL_NAMESPACE", namespace.as_str()),
        ("NODE_NAME", "node-1"),
        ("VM_READINESS", "off"),
        ("VM_CLEANUP", "false"),
        ("VM_LOW_WATER", "100%"),
        ("VM_SCALE_HOOK", &url),
        ("VM_SCALE_HOOK_TIMEOUT", "300ms"),
        ("VM_SCALE_COOLDOWN", "1s"),
    ];
    let manager = Manager::start_with(&cluster.kubeconfig(), &env, &["--vms-only"]).await;
    allocate(&manager, "default", "a").await;
    eventually("the failure is logged", async || {
        manager.log().contains("the scale hook failed")
    })
    .await;
    assert!(
        manager.log().contains("no answer within 300ms"),
        "{}",
        manager.log()
    );
    allocate(&manager, "default", "b").await;
    until(&manager, "default", [8, 2, 0]).await;
    assert!(
        reasons(cluster, &namespace)
            .await
            .contains(&"PoolLow".to_owned())
    );
}

/// An https hook whose issuer only `vm-scale-hook-ca-file` names; without it the call fails and says what to set.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_12_the_hook_over_tls_is_trusted_by_its_ca_file() {
    let issued = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (ca, none) = (dir.path().join("ca.pem"), dir.path().join("none.pem"));
    std::fs::write(&ca, issued.cert.pem()).unwrap();
    std::fs::write(&none, "").unwrap();
    let certificate = CertificateDer::from(issued.cert.der().to_vec());
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/scale", listener.local_addr().unwrap());
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut buffer = [0; 4096];
            let n = stream.read(&mut buffer).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&buffer[..n]).into_owned();
            kept.lock().unwrap().push(head);
            let answer = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let ledger = format!("sqlite:{}", dir.path().join("vms.db").display());
    let mut env = vec![
        ("VM_POOL_IPS", "10.0.0.1"),
        ("NODE_NAME", "node-1"),
        ("VM_LEDGER", ledger.as_str()),
        ("VM_READINESS", "off"),
        ("VM_CLEANUP", "false"),
        ("VM_LOW_WATER", "2"),
        ("VM_SCALE_HOOK", &url),
        // As in the released image.
        ("SSL_CERT_FILE", none.to_str().unwrap()),
    ];
    let nowhere = std::path::Path::new("/nonexistent/kubeconfig");
    let mut manager = Manager::start_with(nowhere, &env, &["--vms-only"]).await;
    manager
        .until("the failure is logged", async |manager| {
            manager.log().contains("set vm-scale-hook-ca-file")
        })
        .await;
    manager.kill();
    env.push(("VM_SCALE_HOOK_CA_FILE", ca.to_str().unwrap()));
    let manager = Manager::start_with(nowhere, &env, &["--vms-only"]).await;
    eventually("the hook is called", async || {
        !heads.lock().unwrap().is_empty()
    })
    .await;
    assert!(heads.lock().unwrap()[0].starts_with("POST /scale HTTP/1.1"));
    assert!(!manager.log().contains("the scale hook failed"));
}
