//! The built command on a real API server: `berth cni` by itself, and beside `berth agent`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_testkit::Cluster;
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");

struct Machine {
    dir: tempfile::TempDir,
    kubeconfig: PathBuf,
}

/// `berth agent`, killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn machine() -> Machine {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let namespace = cluster.namespace("engine").await.unwrap();
    let rules = json!([{
        "apiGroups": ["whereabouts.cni.cncf.io"],
        "resources": ["ippools", "overlappingrangeipreservations"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    }]);
    let account = cluster
        .service_account(&namespace, &namespace, rules)
        .await
        .unwrap();
    Machine {
        dir: tempfile::tempdir().unwrap(),
        kubeconfig: account.kubeconfig().to_owned(),
    }
}

impl Machine {
    fn command(&self, verb: &str, pod: &str) -> Command {
        let mut command = Command::new(BERTH);
        command
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("{pod}-container"))
            .env("CNI_NETNS", "/var/run/netns/none")
            .env("CNI_IFNAME", "net1")
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}"),
            )
            .env("CNI_PATH", "/opt/cni/bin")
            .env("BERTH_DATABASE", self.dir.path().join("berth.db"));
        command
    }

    /// One call in a process of its own; the network names the cluster.
    fn cni(&self, verb: &str, pod: &str) -> (bool, Value) {
        let conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": {
            "type": "whereabouts", "range": "10.0.0.0/16", "kubernetes": {"kubeconfig": self.kubeconfig}}});
        let mut child = self
            .command(verb, pod)
            .args(["cni", "--plugin", "whereabouts"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(conf.to_string().as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let body = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.success(), body)
    }

    fn address(&self, pod: &str) -> String {
        let (success, body) = self.cni("ADD", pod);
        assert!(success, "{body}");
        body["ips"][0]["address"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_finds_the_cluster_by_the_networks_kubeconfig() {
    let machine = machine().await;
    assert_eq!(machine.address("a"), "10.0.0.1/16");
    assert_eq!(machine.address("a"), "10.0.0.1/16");
    assert_eq!(machine.address("b"), "10.0.0.2/16");
    assert_eq!(machine.cni("CHECK", "b"), (true, Value::Null));
    assert_eq!(machine.cni("DEL", "a"), (true, Value::Null));
    assert_eq!(machine.address("c"), "10.0.0.1/16");
    // The cluster keeps everything: this machine's own store was never made.
    assert!(!machine.dir.path().join("berth.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_know_nothing_of_each_other_give_no_address_twice() {
    let machine = machine().await;
    let given: Vec<String> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4)
            .map(|lane| {
                let machine = &machine;
                scope.spawn(move || {
                    (lane..16)
                        .step_by(4)
                        .map(|n| machine.address(&format!("p{n}")))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap())
            .collect()
    });
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 16, "{given:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_ready_when_its_cluster_answers() {
    let machine = machine().await;
    let listen = {
        // A port that was free a moment ago.
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        probe.local_addr().unwrap()
    };
    let child = machine
        .command("", "")
        .args([
            "agent",
            "--node",
            "node-1",
            "--listen",
            &listen.to_string(),
            "--kubeconfig",
        ])
        .arg(&machine.kubeconfig)
        .arg("--socket")
        .arg(machine.dir.path().join("berth.sock"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _agent = Agent(child);
    let get = |path: &str| -> Option<String> {
        use std::io::Read;
        let mut stream = std::net::TcpStream::connect(listen).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    };
    let began = Instant::now();
    while !get("/readyz").is_some_and(|text| text.starts_with("HTTP/1.1 200")) {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            get("/readyz")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(get("/healthz").unwrap().starts_with("HTTP/1.1 200"));
    assert!(
        get("/metrics")
            .unwrap()
            .contains("berth_agent_cni_calls_under_way 0")
    );
    // Nothing that changes anything is open to the network.
    assert!(get("/v1/cni").unwrap().starts_with("HTTP/1.1 404"));
}
