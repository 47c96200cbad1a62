//! A fifth front, of this test alone: it allocates through the agent and the leader's desk, is collected, and is shown by
//! `berth pools`, and nothing but its own file and the lists below knows of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod shelf;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_agent::AgentConfig;
use berth_controller::{Controller, ControllerConfig, DeskArgs, Tasks};
use berth_front::Node;
use berth_kube::Connect;
use berth_leader::{AUDIENCE, LeaderSettings};
use berth_testkit::{Cluster, InProcess, PodCall, answered_addresses, isolated};
use clap::{Args, Command as Flags, FromArgMatches};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject};
use serde_json::{Value, json};
use shelf::{KIND, SHELVES, ShelfFront, collect_task};

const PATIENCE: Duration = Duration::from_secs(60);

async fn until<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn definition() -> Value {
    let kept = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": SHELVES.name() },
        "spec": {
            "group": SHELVES.group, "scope": "Cluster",
            "names": { "plural": SHELVES.plural, "singular": "shelf", "kind": SHELVES.kind },
            "versions": [{
                "name": SHELVES.version, "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": kept, "status": kept },
                } },
            }],
        },
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

/// `berth` with this test's kind: this very test program, which runs the command instead of a test.
fn berth(arguments: &[&str]) -> String {
    let output = isolated(Command::new(std::env::current_exe().unwrap()))
        .args(["--exact", "berth_with_one_more_kind", "--nocapture"])
        .env("BERTH_TEST_ARGUMENTS", arguments.join("\n"))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Not a test by itself: what [`berth`] starts.
#[test]
fn berth_with_one_more_kind() {
    if let Ok(arguments) = std::env::var("BERTH_TEST_ARGUMENTS") {
        let program = std::iter::once("berth").chain(arguments.split('\n'));
        berth_cli::main(program.map(Into::into), &[KIND]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_is_its_own_file_and_a_registration() {
    let cluster = Cluster::start().await.unwrap();
    for crd in berth_api::crds().unwrap().into_iter().map(|crd| json!(crd)) {
        cluster.apply_object(crd).await.unwrap();
    }
    cluster.apply_object(definition()).await.unwrap();
    let shelf = json!({
        "apiVersion": format!("{}/{}", SHELVES.group, SHELVES.version), "kind": SHELVES.kind,
        "metadata": { "name": "top" }, "spec": { "range": "10.6.0.0/29" },
    });
    until("the kind is served", async || {
        cluster.apply_object(shelf.clone()).await.ok()
    })
    .await;
    let namespace = cluster.namespace("shelves").await.unwrap();
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1" } });
    cluster.apply_object(node).await.unwrap();
    let all = [
        "get", "list", "watch", "create", "update", "patch", "delete",
    ];
    let rules = json!([
        rule(SHELVES.group, &["shelves", "shelves/status"], &all),
        rule("coordination.k8s.io", &["leases"], &all),
        rule("", &["nodes", "pods"], &["get", "list", "watch"]),
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule(
            "authorization.k8s.io",
            &["subjectaccessreviews"],
            &["create"]
        ),
    ]);
    let account = cluster
        .service_account(&namespace, "berth", rules)
        .await
        .unwrap();
    let connect = Connect {
        kubeconfig: Some(account.kubeconfig().to_owned()),
        namespace: Some(namespace.clone()),
        ..Connect::default()
    };
    let dir = tempfile::tempdir().unwrap();

    // The controller, with the leader's desk for the new kind and its collector.
    let flags = DeskArgs::augment_args(Flags::new("berth"));
    let flags = flags.get_matches_from(["berth", "--desk-listen", "127.0.0.1:0"]);
    let flags = DeskArgs::from_arg_matches(&flags).unwrap();
    let desk = flags.bind().await.unwrap().unwrap();
    let config = ControllerConfig {
        cluster: connect.clone(),
        identity: "leader".into(),
        notice: desk.endpoint().annotations().into_iter().collect(),
        lease: Some(Duration::from_secs(5)),
        listen: None,
    };
    let controller = InProcess::start(|told| async move {
        let controller = Controller::open(config).await.unwrap();
        let (connection, leadership) = (controller.connection(), controller.leadership());
        let routes = |settings: &_, metrics: &_| vec![KIND.route(&connection, settings, metrics)];
        let tasks: Tasks = vec![
            Arc::new(desk.task(&connection, leadership.clone(), |_| false, routes)),
            Arc::new(collect_task(connection, move || leadership.is_leading())),
        ];
        controller.run(tasks, told).await.unwrap();
    });
    until("somebody leads", async || {
        let lease = cluster.kubectl(&["get", "lease", "berth-controller", "-n", &namespace]);
        lease.ok().filter(|output| output.status.success())
    })
    .await;

    // The agent, with one more front.
    let token = cluster
        .pod_token(&account, "node-1", AUDIENCE)
        .await
        .unwrap();
    std::fs::write(dir.path().join("token"), token).unwrap();
    let socket = dir.path().join("berth.sock");
    let config = AgentConfig {
        socket: socket.clone(),
        listen: None,
        node: Node {
            name: "node-1".into(),
            database: dir.path().join("berth.db"),
            cluster: Some(connect.clone()),
            leader_desk: Some(LeaderSettings::new("node-1", dir.path().join("token"))),
            ..Node::default()
        },
        fronts: vec![Box::new(ShelfFront)],
    };
    let agent = InProcess::start(|told| async {
        berth_agent::serve(config, told).await.unwrap();
    });
    until("the agent listens", async || socket.exists().then_some(())).await;
    let client = cluster.client().await.unwrap();
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), &namespace);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": namespace },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "c", "image": "none" }] },
    });
    cluster.apply_object(pod).await.unwrap();
    let ask = async |verb: &'static str| {
        let call = PodCall::new("shelf-ipam", verb, "a").in_namespace(&namespace, "a");
        let (socket, ipam) = (
            socket.clone(),
            json!({ "shelf": "top", "range": "10.6.0.0/29" }),
        );
        let asked = tokio::task::spawn_blocking(move || call.ask(&socket, &ipam));
        answered_addresses(&asked.await.unwrap().unwrap())
    };
    let first = ask("ADD").await.unwrap();
    assert_eq!(
        ask("ADD").await.unwrap(),
        first,
        "the same request, the same answer (I3)"
    );

    // Who wrote it: the leader's desk, which the agent asked.
    let resource = kube::api::ApiResource {
        group: SHELVES.group.into(),
        version: SHELVES.version.into(),
        api_version: format!("{}/{}", SHELVES.group, SHELVES.version),
        kind: SHELVES.kind.into(),
        plural: SHELVES.plural.into(),
    };
    let shelves: kube::Api<DynamicObject> = kube::Api::all_with(client, &resource);
    let entries = async || {
        let object = shelves.get("top").await.unwrap();
        object.data["status"]["entries"]
            .as_object()
            .cloned()
            .unwrap_or_default()
    };
    assert_eq!(entries().await.len(), 1);
    let (_, figures) = get(&socket, "/metrics").await;
    let answered = figures
        .lines()
        .find(|line| line.starts_with("berth_desk_common_total{"));
    assert!(
        answered.is_some_and(|line| !line.trim_end().ends_with(" 0")),
        "{figures}"
    );

    let kubeconfig = cluster.kubeconfig();
    let shown = berth(&["pools", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let row = shown
        .lines()
        .find(|line| line.contains("shelves.front.berth.dev/top"));
    let row = row.unwrap_or_else(|| panic!("{shown}"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..5], ["10.6.0.0/29", "8", "1", "0"], "{row}");

    // The machine is gone, and with it the pod: no DEL comes.
    let now = DeleteParams::default().grace_period(0);
    pods.delete("a", &now).await.unwrap();
    let deleted = cluster.kubectl(&["delete", "node", "node-1"]).unwrap();
    assert!(deleted.status.success(), "{deleted:?}");
    until("it is collected", async || {
        entries().await.is_empty().then_some(())
    })
    .await;
    agent.stop().await;
    controller.stop().await;
}

async fn get(socket: &std::path::Path, path: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let (socket, path) = (socket.to_owned(), path.to_owned());
    let asked = move || {
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    };
    tokio::task::spawn_blocking(asked).await.unwrap()
}
