//! docs/vms.md: its commands run, its settings are taken, its Go code is the client's example.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use berth_testkit::{Cluster, isolated};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::manager::Manager;
use crate::test_vm::{Lab, OnReboot};
use crate::{allocate, kubectl};

const HOME: &str = "confidential-containers-system";
const STATE: &str = "byom-ip-pool-state";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/vms.md")).unwrap()
}

/// The code blocks of one language in the section of this heading.
fn blocks(heading: &str, language: &str) -> Vec<String> {
    let page = page();
    let level = heading.split(' ').next().unwrap();
    let (_, section) = page
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("no {heading}"));
    // To the next heading of the same level or above.
    let is_end =
        |line: &str| line.starts_with('#') && line.split(' ').next().unwrap().len() <= level.len();
    let mut found = Vec::new();
    let mut open: Option<(String, bool)> = None;
    for line in section.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(of)) => open = Some((String::new(), of == language)),
            (Some((text, wanted)), Some(_)) => {
                if *wanted {
                    found.push(std::mem::take(text));
                }
                open = None;
            }
            (Some((text, _)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) if is_end(line) => break,
            (None, None) => {}
        }
    }
    assert!(!found.is_empty(), "{heading} has no {language}");
    found
}

#[test]
fn the_go_code_of_the_documentation_is_the_clients_example() {
    let example = std::fs::read_to_string(root().join("clients/go/example_test.go")).unwrap();
    for block in blocks("## From an adaptor", "go") {
        assert!(example.contains(&block), "not in example_test.go:\n{block}");
    }
}

/// The logs of pods on a node without a kubelet: what the API server asks a kubelet for, answered from a file.
async fn logs_of(cluster: &Cluster, log: PathBuf) {
    let issued = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
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
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, log) = (acceptor.clone(), log.clone());
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.unwrap();
                let (mut asked, mut buffer) = (String::new(), [0; 4096]);
                while !asked.contains("\r\n\r\n") {
                    let n = stream.read(&mut buffer).await.unwrap();
                    asked.push_str(&String::from_utf8_lossy(&buffer[..n]));
                }
                assert!(
                    asked.starts_with(&format!("GET /containerLogs/{HOME}/berth-vms-x/vms")),
                    "{asked}"
                );
                let text = std::fs::read(&log).unwrap();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    text.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&text).await.unwrap();
                let _ = stream.shutdown().await;
            });
        }
    });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "worker" } });
    let status = json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
    }});
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "berth-vms-x", "namespace": HOME, "labels": { "app.kubernetes.io/component": "vms" } },
        "spec": { "nodeName": "worker", "automountServiceAccountToken": false,
            "containers": [{ "name": "vms", "image": "berth" }] } });
    cluster.apply(&node.to_string()).await.unwrap();
    let patch = [
        "patch",
        "node",
        "worker",
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    kubectl(cluster, &[&patch[..], &[&status.to_string()]].concat());
    cluster.apply(&pod.to_string()).await.unwrap();
}

/// kubectl, berth and curl as an operator has them, in a shell.
fn run(cluster: &Cluster, bin: &Path, socket: &Path, line: &str) -> String {
    let path = std::env::var("PATH").unwrap();
    let output = isolated(Command::new("bash"))
        .args(["-o", "pipefail", "-c", line])
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("KUBECONFIG", cluster.kubeconfig())
        // kubectl caches there.
        .env("HOME", bin)
        .env("BERTH_SOCKET", socket)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !told.trim().is_empty(),
        "$ {line}\n{told}{complained}"
    );
    told
}

/// The third trouble: a person's edit leaves half of the state.
fn cut_the_state_short(cluster: &Cluster) {
    let get = ["-n", HOME, "get", "configmap", STATE, "-o", "json"];
    let map: Value = serde_json::from_str(&kubectl(cluster, &get)).unwrap();
    let text = map["data"]["allocation-state"].as_str().unwrap();
    let cut = text.trim_end().strip_suffix('}').unwrap();
    let patch = json!({ "data": { "allocation-state": cut } }).to_string();
    let patch = ["-n", HOME, "patch", "configmap", STATE, "-p", &patch];
    kubectl(cluster, &patch);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_and_settings_of_the_documentation_work() {
    let cluster = Cluster::start().await.unwrap();
    kubectl(&cluster, &["create", "namespace", HOME]);
    let lab = Lab::new();
    // They take their reboot files and do nothing.
    let _vms = [
        lab.start(61, OnReboot::Ignore).await,
        lab.start(62, OnReboot::Ignore).await,
    ];
    // Every settings block of the page in one file, and what the test must set itself.
    let mut settings = String::new();
    for heading in ["### Backoff", "### Scaling by demand", "## Tuning"] {
        settings.extend(blocks(heading, "yaml"));
    }
    let settings = settings
        .replace("vm-cleanup-limit: 5m", "vm-cleanup-limit: 300ms")
        .replace("vm-cleanup-wait: 5s", "vm-cleanup-wait: 100ms");
    let file = lab.dir.path().join("settings.yaml");
    std::fs::write(&file, settings).unwrap();
    let list = format!("{},{}", lab.ip(61), lab.ip(62));
    let (port, key, allowed) = (lab.port.to_string(), lab.private_key(), lab.allow_list());
    let env = [
        ("VM_POOL_IPS", list.as_str()),
        ("VM_SETTINGS", file.to_str().unwrap()),
        ("NODE_NAME", "worker"),
        ("POOL_NAMESPACE", HOME),
        ("SSH_PORT", &port),
        ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
        ("SSH_HOST_KEY_ALLOWLIST_DIR", allowed.to_str().unwrap()),
        ("VM_CLEANUP_RETRY", "1h"),
    ];
    let manager = Manager::start_with(&cluster.kubeconfig(), &env, &["--vms-only"]).await;
    logs_of(&cluster, manager.log_file()).await;

    // Three of the four troubles, brought about; the state is broken just before its repair is asked for.
    let id = "nginx-8b317899";
    allocate(&manager, "default", id).await;
    // Another writer: the next allocation or deallocation meets a conflict.
    kubectl(
        &cluster,
        &[
            "-n",
            HOME,
            "annotate",
            "configmap",
            STATE,
            "example.com/touched=yes",
        ],
    );
    allocate(&manager, "default", "other").await;
    let (told, ok) = manager.cli(&["allocate", "one-too-many"]);
    assert!(!ok && told.contains("no available IPs in pool"), "{told}");
    let (told, ok) = manager.cli(&["deallocate", id]);
    assert!(ok, "{told}");
    for text in [
        "conflict resolved",
        "NOT releasing IP due to failed cleanup",
        "low-water mark",
    ] {
        for _ in 0..600 {
            if manager.log().contains(text) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(manager.log().contains(text), "{text}: {}", manager.log());
    }

    let bin = lab.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), bin.join("berth")).unwrap();
    std::os::unix::fs::symlink(cluster.kubectl_file(), bin.join("kubectl")).unwrap();
    let commands: Vec<String> = blocks("## Troubleshooting", "console")
        .iter()
        .flat_map(|block| block.lines())
        .map(|line| {
            line.strip_prefix("$ ")
                .unwrap_or_else(|| panic!("{line}: commands only"))
                .to_owned()
        })
        .collect();
    assert!(commands.len() >= 10, "{commands:?}");
    let socket = manager.socket.clone();
    let told = tokio::task::spawn_blocking(move || {
        let ran = commands.iter().map(|line| {
            if line == "berth vm recover" {
                cut_the_state_short(&cluster);
            }
            let told = run(&cluster, &bin, &socket, line);
            if line == "berth vm recover" {
                assert!(
                    told.contains("SET ASIDE") && told.contains("yes, "),
                    "{told}"
                );
            }
            told
        });
        ran.collect::<Vec<_>>().join("")
    })
    .await
    .unwrap();
    for text in [
        "allocatedIPs",
        "berth_vm_conflicts_total",
        "PoolLow",
        "not clean after",
        "released",
    ] {
        assert!(told.contains(text), "no {text} in\n{told}");
    }
}
