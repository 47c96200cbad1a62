//! A network definition is untrusted input: what its author can write harms nobody but the pods of that network. With the
//! built command, on a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod stored;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use berth_api::whereabouts::{IPPool, NodeSlicePool};
use berth_cni::wire::Answer;
use berth_testkit::{
    Account, Agent, Cluster, PodCall, Process, answered_addresses, fed, guarded, isolated,
};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const NODE: &str = "node-1";
const PATIENCE: Duration = Duration::from_secs(60);

/// A namespace with pools, and who may write them.
struct Site {
    _turn: MutexGuard<'static, ()>,
    cluster: &'static Cluster,
    account: Account,
    namespace: String,
    dir: tempfile::TempDir,
}

impl Site {
    /// One at a time: definitions are everybody's, and each controller tells of all.
    async fn new() -> Site {
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let cluster = Cluster::shared().await;
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
        cluster.apply_object(node).await.unwrap();
        let left = [
            "delete",
            "network-attachment-definitions",
            "--all",
            "--all-namespaces",
        ];
        assert!(cluster.kubectl(&left).unwrap().status.success());
        let namespace = cluster.namespace("definitions").await.unwrap();
        let agents = cluster.agents(&namespace).await;
        Site {
            _turn: turn,
            cluster,
            account: agents.unwrap().on(NODE).await.unwrap(),
            namespace,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn agent(&self, more: &[&str]) -> Agent {
        Agent::start(BERTH, self.dir.path(), "berth", |command| {
            command.args(["--node", NODE, "--kubeconfig"]);
            command.arg(self.account.kubeconfig()).args(more);
        })
        .unwrap()
    }

    /// `berth controller`, which leads.
    fn controller(&self) -> Process {
        let mut command = isolated(guarded(BERTH));
        command
            .env("PATH", "/usr/bin:/bin")
            .args(["controller", "--no-election", "--kubeconfig"])
            .arg(self.cluster.kubeconfig())
            .args(["--namespace", &self.namespace]);
        Process::start("controller", command, self.dir.path()).unwrap()
    }

    async fn define(&self, name: &str, ipam: Value) {
        self.define_text(name, &conf(ipam).to_string()).await;
    }

    async fn define_text(&self, name: &str, config: &str) {
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "config": config },
        });
        self.cluster.apply_object(object).await.unwrap();
    }

    async fn pools(&self) -> Vec<String> {
        let client = self.cluster.client().await.unwrap();
        let pools: Api<IPPool> = Api::namespaced(client, &self.namespace);
        let pools = pools.list(&ListParams::default()).await.unwrap();
        let names = pools.into_iter().map(|pool| pool.metadata.name.unwrap());
        names.collect()
    }

    async fn slice_pool(&self, name: &str) -> bool {
        let client = self.cluster.client().await.unwrap();
        let pools: Api<NodeSlicePool> = Api::namespaced(client, &self.namespace);
        pools.get_opt(name).await.unwrap().is_some()
    }

    /// Reason and message of the events on a definition.
    async fn events(&self, definition: &str) -> Vec<(String, String)> {
        let client = self.cluster.client().await.unwrap();
        let events: Api<Event> = Api::namespaced(client, &self.namespace);
        let about = format!("involvedObject.name={definition}");
        let events = events.list(&ListParams::default().fields(&about)).await;
        let told = events.unwrap().into_iter();
        told.map(|event| {
            (
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default(),
            )
        })
        .collect()
    }

    async fn until_told(&self, definition: &str, reason: &str, word: &str) {
        let begun = Instant::now();
        loop {
            let told = self.events(definition).await;
            if told
                .iter()
                .any(|(kind, text)| kind == reason && text.contains(word))
            {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{definition}: {reason} {word}: {told:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A kubeconfig whose user runs a program, and what that program would leave.
    fn exec_kubeconfig(&self, dir: &Path) -> (PathBuf, PathBuf) {
        let proof = dir.join("root-was-here");
        let kubeconfig = dir.join("exec.kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
                "command": "/bin/touch", "args": [proof],
            } } }],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        (kubeconfig, proof)
    }
}

fn conf(ipam: Value) -> Value {
    let mut ipam = ipam;
    ipam["type"] = json!("berth");
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam })
}

fn call(verb: &str, pod: &str) -> PodCall {
    PodCall::new("berth", verb, pod)
}

fn ask(agent: &Agent, verb: &str, pod: &str, ipam: &Value) -> Result<Vec<String>, (u64, String)> {
    answered_addresses(&call(verb, pod).ask(&agent.socket, ipam).unwrap())
}

/// `berth cni`, with nothing in its environment but what a runtime and the administrator put there.
fn cni(
    dir: &Path,
    verb: &str,
    pod: &str,
    ipam: &Value,
    more: &[(&str, &Path)],
) -> Result<Vec<String>, (u64, String)> {
    let call = call(verb, pod);
    let mut command = call.command(BERTH);
    command
        .args(["cni", "--plugin", "berth"])
        .env("BERTH_DATABASE", dir.join("berth.db"))
        .env("NODENAME", NODE)
        .envs(more.iter().copied());
    let output = fed(&mut command, call.network(ipam).to_string()).unwrap();
    let answer = Answer {
        exit: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        delegate: None,
    };
    answered_addresses(&answer)
}

/// The plugin's own engine, as root, ran the program that a definition's kubeconfig named.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_a_program_that_a_kubeconfig_names_is_never_run() {
    let site = Site::new().await;
    let dir = site.dir.path();
    let (exec, proof) = site.exec_kubeconfig(dir);
    let ipam = json!({ "range": "10.0.0.0/24", "kubernetes": { "kubeconfig": exec } });
    // A machine in no cluster: only what lies below the administrator's directories is read, and no program is run.
    let (code, words) = cni(dir, "ADD", "a", &ipam, &[]).unwrap_err();
    assert_eq!(code, 7, "{words}");
    assert!(words.contains("BERTH_DEFINITION_PATHS"), "{words}");
    let below = [("BERTH_DEFINITION_PATHS", dir)];
    let (_, words) = cni(dir, "ADD", "a", &ipam, &below).unwrap_err();
    assert!(words.contains("exec"), "{words}");
    // The administrator names the cluster.
    let told = [("BERTH_KUBECONFIG", site.account.kubeconfig())];
    assert_eq!(cni(dir, "ADD", "a", &ipam, &told).unwrap(), ["10.0.0.1/24"]);
    // So does an agent; and where one was, its marker keeps the definition from naming another.
    let agent = site.agent(&[]);
    assert_eq!(ask(&agent, "ADD", "b", &ipam).unwrap(), ["10.0.0.2/24"]);
    drop(agent);
    let (code, words) = cni(dir, "ADD", "c", &ipam, &below).unwrap_err();
    assert_eq!(code, 11, "{words}");
    assert!(!proof.exists(), "the program was run");
    assert_eq!(site.pools().await, ["10.0.0.0-24"]);
}

/// A `nodename` under `configuration_path` let a node claim slices as another one.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_no_definition_names_the_node() {
    let site = Site::new().await;
    let dir = site.dir.path();
    let other = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-b" } });
    site.cluster.apply_object(other).await.unwrap();
    let theirs = dir.join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("nodename"), "node-b\n").unwrap();
    fs::write(theirs.join("whereabouts.conf"), "{}").unwrap();
    let ipam = json!({ "range": "10.0.0.0/24", "fast_ipam": true, "configuration_path": theirs });
    let told = [
        ("BERTH_KUBECONFIG", site.account.kubeconfig()),
        ("BERTH_DEFINITION_PATHS", dir),
    ];
    let given = cni(dir, "ADD", "a", &ipam, &told).unwrap();
    assert_eq!(given.len(), 1, "{given:?}");
    let held: Api<berth_api::claim::SliceClaim> = Api::namespaced(
        site.cluster.client().await.unwrap(),
        &berth_api::claim::namespace(&site.namespace),
    );
    let held = held.list(&ListParams::default()).await.unwrap();
    let nodes: Vec<String> = held.into_iter().map(|claim| claim.spec.node).collect();
    assert_eq!(nodes, [NODE]);
}

/// A kubeconfig with `tokenFile` sent that file's token to the server of its choice.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_no_token_of_the_node_reaches_a_server_that_a_definition_names() {
    let site = Site::new().await;
    let dir = site.dir.path();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let token = dir.join("token");
    fs::write(&token, "the-node-s-own").unwrap();
    let kubeconfig = dir.join("theirs.kubeconfig");
    let address = server.local_addr().unwrap();
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": { "tokenFile": token } }],
    });
    fs::write(&kubeconfig, text.to_string()).unwrap();
    let ipam = json!({ "range": "10.0.0.0/24", "kubernetes": { "kubeconfig": kubeconfig } });
    // In no cluster, and not below the administrator's directories.
    let fresh = tempfile::tempdir().unwrap();
    let (code, words) = cni(fresh.path(), "ADD", "a", &ipam, &[]).unwrap_err();
    assert_eq!(code, 7, "{words}");
    cni(fresh.path(), "DEL", "a", &ipam, &[]).unwrap();
    // On a node of a cluster, wherever the file is.
    let told = [
        ("BERTH_KUBECONFIG", site.account.kubeconfig()),
        ("BERTH_DEFINITION_PATHS", dir),
    ];
    assert_eq!(cni(dir, "ADD", "a", &ipam, &told).unwrap(), ["10.0.0.1/24"]);
    let agent = site.agent(&["--definition-paths", dir.to_str().unwrap()]);
    assert_eq!(ask(&agent, "ADD", "b", &ipam).unwrap(), ["10.0.0.2/24"]);
    ask(&agent, "DEL", "b", &ipam).unwrap();
    let reached = server.accept().map(|(_, from)| from);
    let nobody = std::io::ErrorKind::WouldBlock;
    assert_eq!(reached.unwrap_err().kind(), nobody, "somebody connected");
}

/// `/dev/zero` killed agents and controllers, `/dev/ptmx` froze their workers, and so did a long definition.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_a_bad_definition_costs_its_own_pods_alone() {
    let site = Site::new().await;
    let long = format!(
        r#"{{"cniVersion":"1.1.0","name":"net","ipam":{{"type":"berth","range":"10.1.0.0/24","x":[{}1]}}}}"#,
        "1,".repeat(700_000)
    );
    for (name, path) in [("zero", "/dev/zero"), ("ptmx", "/dev/ptmx")] {
        let ipam = json!({ "range": "10.2.0.0/24", "network_name": name, "configuration_path": path,
            "kubernetes": { "kubeconfig": path } });
        site.define(name, ipam).await;
    }
    site.define_text("long", &long).await;
    // Within 128 KiB: a name that would be copied into each of many plugins, and one that is part of each pool's name.
    let (name, plugin) = ("n".repeat(60_000), r#"{"ipam":{"type":"berth"}}"#);
    let plugins = "{},".repeat(20_000);
    let copied =
        format!(r#"{{"cniVersion":"1.1.0","name":"{name}","plugins":[{plugins}{plugin}]}}"#);
    let ranges: Vec<Value> = (0..2_600)
        .map(|n| json!({ "range": format!("10.{}.{}.0/24", n / 256, n % 256) }))
        .collect();
    let many = json!({ "cniVersion": "1.1.0", "name": "net",
        "ipam": { "type": "berth", "network_name": name, "ipRanges": ranges } });
    let many = many.to_string();
    for (name, text) in [("copied", &copied), ("many", &many)] {
        assert!(text.len() < 128 * 1024, "{}", text.len());
        site.define_text(name, text).await;
    }
    let good = json!({ "range": "10.3.0.0/24", "node_slice_size": "/26", "network_name": "good" });
    site.define("good", good).await;
    let mut controller = site.controller();
    // Sweeps all the time, and reads the definitions each time.
    let mut agent = site.agent(&["--garbage-interval=1", "--garbage-grace=1"]);
    let begun = Instant::now();
    while !site.slice_pool("good").await {
        assert!(begun.elapsed() < PATIENCE, "{}", controller.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for path in ["/dev/zero", "/dev/ptmx"] {
        for pod in 0..8 {
            let ipam = json!({ "range": "10.4.0.0/24", "configuration_path": path });
            let given = ask(&agent, "ADD", &format!("p{pod}"), &ipam).unwrap();
            assert_eq!(given.len(), 1, "{given:?}");
            // A broken path never fails a DEL.
            ask(&agent, "DEL", &format!("p{pod}"), &ipam).unwrap();
        }
    }
    let mut request = call("ADD", "long").request(&json!({}));
    request.stdin.clone_from(&long);
    for _ in 0..8 {
        let answer = berth_cni::http::call(&agent.socket, &request, PATIENCE).unwrap();
        let (code, words) = answered_addresses(&answer).unwrap_err();
        assert_eq!(code, 6, "{words}");
    }
    // Of what no ADD is served of, there is nothing to release.
    let deep = format!(
        r#"{{"cniVersion":"1.1.0","name":"net","ipam":{{"type":"berth","range":"10.1.0.0/24","x":{}{}}}}}"#,
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    let named = json!({ "cniVersion": "1.1.0", "name": name, "ipam": { "type": "berth" } });
    for text in [long, deep, many, named.to_string()] {
        request.stdin = text;
        for (verb, exit) in [("ADD", 1), ("DEL", 0)] {
            request.environment.command = verb.into();
            let answer = berth_cni::http::call(&agent.socket, &request, PATIENCE).unwrap();
            assert_eq!(answer.exit, exit, "{verb}: {}", answer.stdout);
        }
    }
    for (definition, word) in [("zero", "/dev/zero"), ("ptmx", "kubernetes.kubeconfig")] {
        site.until_told(definition, "ValueIgnored", word).await;
    }
    site.until_told("long", "DefinitionInvalid", "131072").await;
    site.until_told("copied", "DefinitionInvalid", "253").await;
    site.until_told("many", "DefinitionInvalid", "network_name")
        .await;
    for (name, process) in [("controller", &controller), ("agent", &agent.process)] {
        let peak = process.peak_rss().unwrap();
        assert!(peak < 512 * 1024, "{name}: {peak} kB");
    }
    assert!(
        controller.ended().unwrap().is_none(),
        "{}",
        controller.tail()
    );
    assert!(
        agent.process.ended().unwrap().is_none(),
        "{}",
        agent.process.tail()
    );
}

/// What no ADD is served with does not fail a DEL: what the container holds is released.
#[test]
fn berth_16_1_a_del_leaves_out_requested_addresses_that_can_not_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(BERTH, dir.path(), "berth", |_| {}).unwrap();
    let ipam = json!({ "range": "10.0.0.0/28" });
    let with_args = |verb: &str, pod: &str, args: &str| {
        let mut request = call(verb, pod).request(&ipam);
        request.environment.args.push_str(args);
        let answer = berth_cni::http::call(&agent.socket, &request, PATIENCE).unwrap();
        answered_addresses(&answer)
    };
    let many = format!(";IP={}", "10.0.0.57/24,".repeat(385));
    assert!(many.len() > 5_000);
    let asked = [";IP=nonsense", ";GATEWAY=nowhere", &many];
    for (turn, args) in asked.into_iter().enumerate() {
        let pod = format!("p{turn}");
        // The first address, once the pod before has released it.
        assert_eq!(with_args("ADD", &pod, "").unwrap(), ["10.0.0.1/28"]);
        let (code, words) = with_args("ADD", &pod, args).unwrap_err();
        assert!([4, 7].contains(&code), "{code}: {words}");
        with_args("DEL", &pod, args).unwrap();
    }
    assert_eq!(
        with_args("ADD", "last", "").unwrap(),
        ["10.0.0.1/28"],
        "the last one was released, too"
    );
}

/// 14 pairs of ADD and DEL took a /28 from everybody, for ever.
#[test]
fn berth_16_1_a_cooldown_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(BERTH, dir.path(), "berth", |_| {}).unwrap();
    let plain = json!({ "range": "10.0.0.0/28" });
    let mut burning = plain.clone();
    burning["cooldown_seconds"] = json!(i64::MAX);
    for pod in 0..14 {
        let (code, words) = ask(&agent, "ADD", &format!("p{pod}"), &burning).unwrap_err();
        assert_eq!(code, 7, "{words}");
        assert!(words.contains("86400"), "{words}");
        ask(&agent, "DEL", &format!("p{pod}"), &burning).unwrap();
    }
    assert_eq!(ask(&agent, "ADD", "a", &plain).unwrap(), ["10.0.0.1/28"]);
    // What was allocated before is released.
    ask(&agent, "DEL", "a", &burning).unwrap();
    assert_eq!(ask(&agent, "ADD", "b", &plain).unwrap(), ["10.0.0.2/28"]);
}

/// A definition of another namespace cut the victim's range into slices and stopped its network.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_foreign_ranges_are_used_by_those_whom_the_policy_allows() {
    let site = Site::new().await;
    let victim = json!({ "range": "10.5.0.0/24" });
    let attack = json!({ "range": "10.5.0.0/24", "node_slice_size": "/26", "network_name": "attack",
        "enable_overlapping_ranges": false });
    let policy = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "RangePolicy",
        "metadata": { "name": "berth", "namespace": site.namespace },
        "spec": { "rules": [{ "namespaces": ["shop"], "ranges": ["10.5.0.0/16"] }] },
    });
    let mut broken = policy.clone();
    broken["spec"]["rules"][0]["ranges"] = json!(["all of them"]);
    site.cluster.apply_object(broken).await.unwrap_err();
    site.cluster.apply_object(policy).await.unwrap();
    site.define("attack", attack.clone()).await;
    let _controller = site.controller();
    let agent = site.agent(&[]);
    let add = |namespace: &str, pod: &str, ipam: &Value| {
        let call = call("ADD", pod).in_namespace(namespace, pod);
        answered_addresses(&call.ask(&agent.socket, ipam).unwrap())
    };
    assert_eq!(add("shop", "a", &victim).unwrap(), ["10.5.0.1/24"]);
    let (code, words) = add("tenant", "b", &victim).unwrap_err();
    assert_eq!(code, 7, "{words}");
    assert!(
        words.contains("tenant") && words.contains("RangePolicy"),
        "{words}"
    );
    // Slices are for those who may have them.
    let (code, words) = add("shop", "c", &attack).unwrap_err();
    assert_eq!(code, 7, "{words}");
    site.until_told("attack", "RangeNotAllowed", "10.5.0.0/24")
        .await;
    assert!(!site.slice_pool("attack").await);
    assert_eq!(add("shop", "d", &victim).unwrap(), ["10.5.0.2/24"]);
    // A process that serves one call asks as well.
    let told = [("BERTH_KUBECONFIG", site.account.kubeconfig())];
    let fresh = tempfile::tempdir().unwrap();
    let (code, words) = cni(fresh.path(), "ADD", "e", &victim, &told).unwrap_err();
    assert_eq!(code, 7, "{words}");
}

/// Ids of a megabyte were stored, and names went into URLs and logs as they came.
#[test]
fn berth_16_1_names_are_bounded_before_anything_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(BERTH, dir.path(), "berth", |_| {}).unwrap();
    let plain = json!({ "range": "10.0.0.0/28" });
    let long = "c".repeat(1_000_000);
    for verb in ["ADD", "CHECK"] {
        let calls = [
            call(verb, "a").of_container(&long),
            call(verb, "a").of_container(&long[..257]),
            call(verb, "a").in_namespace("ns", "Not\nA Name"),
            call(verb, "a").in_namespace("../kube-system", "a"),
            call(verb, "a").in_namespace("ns", &"a".repeat(254)),
        ];
        for refused in calls {
            let (code, words) =
                answered_addresses(&refused.ask(&agent.socket, &plain).unwrap()).unwrap_err();
            assert_eq!(code, 4, "{words}");
            assert!(words.len() < 400, "{}", words.len());
        }
    }
    let del = call("DEL", "a")
        .of_container(&long)
        .in_namespace("ns", "Not A Name");
    answered_addresses(&del.ask(&agent.socket, &plain).unwrap()).unwrap();
    // Nothing can be stored under a name that is none.
    for nothing in [
        call("DEL", "a").of_container("../c"),
        call("DEL", "a").of_interface("a/b"),
    ] {
        answered_addresses(&nothing.ask(&agent.socket, &plain).unwrap()).unwrap();
    }
    for (verb, nothing) in [("ADD", "../c"), ("DEL", "")] {
        let refused = call(verb, "a").of_container(nothing);
        let (code, words) =
            answered_addresses(&refused.ask(&agent.socket, &plain).unwrap()).unwrap_err();
        assert_eq!(code, 4, "{words}");
    }
    assert_eq!(ask(&agent, "ADD", "b", &plain).unwrap(), ["10.0.0.1/28"]);
    // A value with a newline does not become a line of the log.
    let forged = json!({ "range": "10.0.0.0/28", "range_start": "x\nERROR forged\u{1b}[2J" });
    ask(&agent, "ADD", "c", &forged).unwrap();
    let log = fs::read_to_string(agent.process.log()).unwrap();
    assert!(log.contains("x\\nERROR forged"), "{log}");
    assert!(
        !log.lines().any(|line| line.starts_with("ERROR forged")),
        "{log}"
    );
    assert!(!log.contains('\u{1b}'), "{log}");
}

/// `rnage` was a success without an address.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_27_a_typo_in_a_key_is_told_by_the_add_and_by_an_event() {
    let site = Site::new().await;
    let typo = json!({ "rnage": "10.0.0.0/24" });
    let agent = site.agent(&[]);
    let (code, words) = ask(&agent, "ADD", "a", &typo).unwrap_err();
    assert_eq!(code, 7, "{words}");
    assert!(
        words.contains("rnage") && words.contains("range"),
        "{words}"
    );
    // A network that gives addresses gives them, whatever else it says.
    let odd = json!({ "range": "10.6.0.0/24", "fast_ipma": true, "range_start": "10.7.0.9" });
    assert_eq!(ask(&agent, "ADD", "a", &odd).unwrap(), ["10.6.0.1/24"]);
    ask(&agent, "DEL", "a", &odd).unwrap();
    site.define("typo", typo).await;
    site.define("odd", odd).await;
    let controller = site.controller();
    site.until_told("typo", "UnknownKey", "rnage").await;
    site.until_told("odd", "UnknownKey", "fast_ipma").await;
    site.until_told("odd", "ValueIgnored", "range_start").await;
    // Another change of the cluster is no reason to tell it again.
    site.define(
        "other",
        json!({ "range": "10.8.0.0/24", "slice_szie": "/28" }),
    )
    .await;
    site.until_told("other", "UnknownKey", "slice_szie").await;
    assert_eq!(site.events("odd").await.len(), 2);
    assert_eq!(site.events("typo").await.len(), 1);
    // Nor is a controller that starts again, or begins to lead: it finds the same, in the same order, and then what is new.
    drop(controller);
    site.define(
        "zeta",
        json!({ "range": "10.9.0.0/24", "slice_szie": "/28" }),
    )
    .await;
    let _next = site.controller();
    site.until_told("zeta", "UnknownKey", "slice_szie").await;
    assert_eq!(site.events("odd").await.len(), 2);
    assert_eq!(site.events("typo").await.len(), 1);
    assert_eq!(site.events("other").await.len(), 1);
    // Other words are told.
    site.define("typo", json!({ "rnaeg": "10.0.0.0/24" })).await;
    site.until_told("typo", "UnknownKey", "rnaeg").await;
    assert_eq!(site.events("typo").await.len(), 2);
}
