//! The built programs on a machine that is not only theirs: whereabouts is installed on it, its disk fails, or its pod's
//! credentials are renewed.
//!
//! Each runs in a mount namespace of its own, in which the test's directories lie over the machine's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use berth_api::whereabouts::NodeSlicePool;
use berth_cni::wire::Answer;
use berth_testkit::{
    Agent, Cluster, PodCall, Process, answered_addresses, fed, guarded, isolated, no_machine_files,
};
use kube::Api;
use serde_json::{Value, json};
use tempfile::TempDir;

const BERTH: &str = env!("CARGO_BIN_EXE_berth");

/// Where the kubelet puts the credentials of a pod's service account.
const ACCOUNT: &str = "run/secrets/kubernetes.io/serviceaccount";

const PATIENCE: Duration = Duration::from_secs(120);

struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        Machine(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Whole, as the kubelet replaces a pod's files.
        let new = self.at("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// A program that is `berth`, run by this shell text as `"$@"`.
    fn wrapped(&self, name: &str, shell: &str) -> PathBuf {
        let path = self.at(name);
        let text = format!("#!/bin/sh\nset -- {BERTH} \"$@\"\n{shell}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// The same with directories of this machine over those of the real one.
    fn mounted(&self, name: &str, over: &[(&str, &str)]) -> PathBuf {
        let mount = |(ours, theirs): &(&str, &str)| {
            let ours = self.at(ours);
            fs::create_dir_all(&ours).unwrap();
            format!("/bin/mount --bind {} {theirs} && ", ours.display())
        };
        let mounts: String = over.iter().map(mount).collect();
        let shell =
            format!("exec /usr/bin/unshare --mount /bin/sh -c '{mounts} exec \"$@\"' sh \"$@\"");
        self.wrapped(name, &shell)
    }
}

fn ipam() -> Value {
    json!({ "range": "10.0.0.0/16" })
}

fn add(socket: &Path, pod: &str) -> Result<Vec<String>, (u64, String)> {
    answered_addresses(
        &PodCall::new("berth", "ADD", pod)
            .ask(socket, &ipam())
            .unwrap(),
    )
}

/// The ADD of a short process, which reads the node's files itself.
fn add_once(berth: &Path, machine: &Machine, files: bool) -> Result<Vec<String>, (u64, String)> {
    let call = PodCall::new("berth", "ADD", "once");
    let mut command = call.command(berth);
    if !files {
        for (name, _) in no_machine_files() {
            command.env_remove(name);
        }
    }
    command
        .args(["cni", "--plugin", "berth", "--database"])
        .arg(machine.at("once.db"));
    let output = fed(&mut command, call.network(&ipam()).to_string()).unwrap();
    answered_addresses(&Answer {
        exit: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        delegate: None,
    })
}

#[test]
fn berth_15_25_an_installed_whereabouts_has_no_influence_on_tests() {
    let machine = Machine::new();
    // Whoever reads one of these fails: a flat file that is none, and the result of an attachment that never was.
    let installed = "etc/cni/net.d/whereabouts.d";
    machine.write(&format!("{installed}/whereabouts.conf"), "no JSON");
    machine.write(&format!("{installed}/nodename"), "poisoned");
    machine.write("lib/cni/results/net-poisoned-net1", "no JSON");
    let over = [("etc", "/etc"), ("lib", "/var/lib")];
    let berth = machine.mounted("berth", &over);

    let (_, why) = add_once(&berth, &machine, false).unwrap_err();
    assert!(why.contains("whereabouts.conf"), "it is read there: {why}");
    assert_eq!(add_once(&berth, &machine, true).unwrap(), ["10.0.0.1/16"]);
    let agent = Agent::start(&berth, machine.0.path(), "agent", |command| {
        command.env("RUST_LOG", "debug");
    })
    .unwrap();
    assert_eq!(add(&agent.socket, "p1").unwrap(), ["10.0.0.1/16"]);
    let log = agent.process.tail();
    assert!(!log.contains("poisoned"), "{log}");
}

fn retries(socket: &Path) -> f64 {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let counters = ["berth_desk_commits_total", "berth_desk_retries_total"];
    let counted = text
        .lines()
        .filter(|line| counters.iter().any(|name| line.starts_with(name)));
    let values = counted.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum()
}

/// A disk that fails was written 11,000 times a second, and the ADD said that there was no answer in time.
#[test]
fn berth_15_22_an_add_names_a_disk_that_fails_and_the_agent_does_not_try_on() {
    let machine = Machine::new();
    let limited = "trap '' XFSZ; ulimit -f 1024; exec \"$@\"";
    let berth = machine.wrapped("berth", limited);
    let agent = Agent::start(&berth, machine.0.path(), "agent", |_| {}).unwrap();
    let mut pods = 0..5_000;
    let why = pods
        .by_ref()
        .find_map(|pod| add(&agent.socket, &format!("p{pod}")).err());
    let (_, why) = why.expect("the disk never failed");
    assert!(
        why.contains("agent.db") && why.contains("write failed"),
        "{why}"
    );
    let before = retries(&agent.socket);
    let calls = 5;
    for pod in pods.take(calls) {
        let (_, why) = add(&agent.socket, &format!("p{pod}")).unwrap_err();
        assert!(why.contains("write failed"), "{why}");
    }
    let tries = retries(&agent.socket) - before;
    // An ADD may write its entry, its reservation and its note; none of it over and over.
    assert!(
        tries <= 4.0 * calls as f64,
        "{tries} tries for {calls} calls"
    );
}

/// The client's own reading of these files is a minute late.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_a_renewed_token_and_authority_of_the_pod_are_used_by_the_next_request() {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let namespace = cluster.namespace("renewed").await.unwrap();
    let account = cluster.agent(&namespace, "n1").await.unwrap();
    let authority = fs::read_to_string(cluster.dir().join("pki/ca.crt")).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
    let machine = Machine::new();
    let file = |name: &str, text: &str| machine.write(&format!("{ACCOUNT}/{name}"), text);
    file("token", account.token());
    file("ca.crt", &authority);
    file("namespace", &namespace);
    let berth = machine.mounted("berth", &[("run", "/run")]);
    let agent = Agent::start(&berth, machine.0.path(), "agent", |command| {
        command
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", cluster.port().to_string())
            .args(["--node", "n1"]);
    })
    .unwrap();
    let socket = agent.socket.clone();
    let add = async |pod: &str| {
        let (socket, pod) = (socket.clone(), pod.to_owned());
        let added = tokio::task::spawn_blocking(move || add(&socket, &pod));
        added.await.unwrap()
    };
    assert_eq!(add("p1").await.unwrap(), ["10.0.0.1/16"]);
    file("token", "not a token");
    let (_, why) = add("p2").await.unwrap_err();
    assert!(why.contains("401") || why.contains("nauthorized"), "{why}");
    file("token", account.token());
    assert_eq!(add("p2").await.unwrap(), ["10.0.0.2/16"]);
    file("ca.crt", &other.cert.pem());
    let (_, why) = add("p3").await.unwrap_err();
    assert!(why.to_lowercase().contains("certificate"), "{why}");
    file("ca.crt", &authority);
    assert_eq!(add("p3").await.unwrap(), ["10.0.0.3/16"]);
}

/// The files of a pod's service account, replaced under a running controller.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_token_and_authority_of_the_pod_are_used_by_a_running_controller() {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let namespace = cluster.namespace("renewed-leader").await.unwrap();
    let any = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    let account = cluster.service_account(&namespace, "berth-controller", any);
    let account = account.await.unwrap();
    let authority = fs::read_to_string(cluster.dir().join("pki/ca.crt")).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
    let machine = Machine::new();
    let file = |name: &str, text: &str| machine.write(&format!("{ACCOUNT}/{name}"), text);
    file("token", account.token());
    file("ca.crt", &authority);
    file("namespace", &namespace);
    let berth = machine.mounted("berth", &[("run", "/run")]);
    let mut command = isolated(guarded(&berth));
    command
        .env("PATH", "/usr/bin:/bin")
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", cluster.port().to_string())
        .args(["controller", "--lease-duration", "3"]);
    let controller = Process::start("controller", command, machine.0.path()).unwrap();
    // It works: a network that is defined now gets its pool of slices.
    let works = async |name: &str, range: &str| {
        let config = json!({ "cniVersion": "1.0.0", "name": name, "type": "macvlan", "ipam": {
            "type": "whereabouts", "range": range, "node_slice_size": "/24",
        } });
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "config": config.to_string() },
        });
        cluster.apply_object(definition).await.unwrap();
        let client = cluster.client().await.unwrap();
        let pools: Api<NodeSlicePool> = Api::namespaced(client, &namespace);
        until(&controller, async || {
            pools.get_opt(name).await.unwrap().is_some()
        })
        .await;
    };
    // It does not: its log says so.
    let refused = async |why: &str| {
        let log = || fs::read_to_string(controller.log()).unwrap().to_lowercase();
        until(&controller, async || log().contains(why)).await;
    };
    works("one", "10.61.0.0/20").await;
    file("token", "not a token");
    refused("unauthorized").await;
    file("token", account.token());
    works("two", "10.62.0.0/20").await;
    file("ca.crt", &other.cert.pem());
    refused("certificate").await;
    file("ca.crt", &authority);
    works("three", "10.63.0.0/20").await;
}

async fn until(process: &Process, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "{}", process.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
