//! The built command with `--nodes`: two controllers and agents of three nodes under the roles of deploy/, on an API server with the definitions and the
//! admission policy of kubernetes-nmstate v0.86.0. Claims meet in the leader's desk; leader and agents are killed, and no address is allocated
//! twice or lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod denials;
mod kills;
mod series;
mod site;

use std::time::{Duration, Instant};

use berth_testkit::{Agent, Cluster, Options, guarded, isolated};

use site::{BERTH, OBJECTS, PATIENCE, Site, message, metric};

#[tokio::test(flavor = "multi_thread")]
async fn hosts_keep_their_addresses_through_kills_of_leader_and_agents() {
    let site = Site::new().await;
    let mut controllers = vec![site.controller("one"), site.controller("two")];
    for node in ["node01", "node02", "node03"] {
        site.node(node).await;
    }
    let mut agents = Vec::new();
    for node in ["node01", "node02", "node03"] {
        agents.push(site.agent(node, &[]).await);
    }
    let leader = site.until_led();
    site.cluster.apply(OBJECTS).await.unwrap();
    let all = "3/3 nodes successfully configured";
    site.until("nncp", "static-ip", |policy| message(policy) == all);
    // Every claim was answered by the leader's desk.
    for agent in &agents {
        assert_eq!(metric(agent, "berth_desk_common_total"), 1.0);
        assert_eq!(metric(agent, "berth_desk_alone_total"), 0.0);
        let applied = "berth_nodes_applies_total{outcome=\"success\"}";
        assert_eq!(metric(agent, applied), 1.0);
    }
    let pool = site.until("nip", "traffic-1", |pool| {
        pool["status"]["used"] == 3 && message(pool) == "The pool is up to date"
    });
    let before = site.allocations(&pool);
    assert_eq!(before.len(), 3);
    site.refuses_what_is_of_another_node().await;
    // The leader is killed; a node joins all the same.
    let leader = usize::from(leader.starts_with("two"));
    controllers.remove(leader).kill().unwrap();
    site.node("node04").await;
    let fourth = site.agent("node04", &[]).await;
    let joined = "4/4 nodes successfully configured";
    site.until("nncp", "static-ip", |policy| message(policy) == joined);
    // An agent is killed and starts again: its address is the same, and is applied.
    let mut killed = agents.remove(0);
    killed.process.kill().unwrap();
    drop(killed);
    let _again = site.agent("node01", &[]).await;
    let pool = site.until("nip", "traffic-1", |pool| pool["status"]["used"] == 4);
    let after = site.allocations(&pool);
    assert_eq!(after[..3], before[..]);
    // The fourth node goes, not gracefully. The garbage collector deletes what it owned, and the other leader frees its address.
    drop(fourth);
    site.kubectl(&["delete", "node", "node04"]);
    let pool = site.until("nip", "traffic-1", |pool| pool["status"]["used"] == 3);
    assert_eq!(site.allocations(&pool), before);
    site.until("nncp", "static-ip", |policy| message(policy) == all);
    let shown = site.kubectl(&["get", "nip,nncp,nnce"]);
    assert!(
        shown.contains("traffic-1") && shown.contains("node02.static-ip"),
        "{shown}"
    );
}

/// Beside kubernetes-nmstate, but without what keeps it away from pool policies: the agent does not start, and says what to apply.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_could_meet_kubernetes_nmstate_does_not_start() {
    let site = Site::new().await;
    let text = include_str!("../../../../deploy/nodes/beside-nmstate/rbac.yaml");
    site.cluster.apply(text).await.unwrap();
    let account = site.agents.on("node01").await.unwrap();
    let begun = Instant::now();
    loop {
        let output = isolated(guarded(BERTH))
            .env("BERTH_KUBECONFIG", account.kubeconfig())
            .env("BERTH_DATABASE", site.dir.path().join("a.db"))
            .env("BERTH_SOCKET", site.dir.path().join("a.sock"))
            .args([
                "agent",
                "--node",
                "node01",
                "--nodes",
                "--nodes-apply=policy",
            ])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if told.contains("deploy/nodes/beside-nmstate") {
            break;
        }
        // The authorizer learns of a role a moment later.
        assert!(begun.elapsed() < PATIENCE, "{told}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A release of Kubernetes that does not serve MutatingAdmissionPolicy v1: nothing could keep kubernetes-nmstate away from pool policies. The
/// agent does not start, and says why and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn without_mutating_admission_policies_an_agent_does_not_render_policies() {
    let options = Options {
        // As 1.35 was: the kind was served as a beta, if at all.
        apiserver_args: vec!["--emulated-version=1.35".to_owned()],
        ..Options::default()
    };
    let cluster = Cluster::start_with(options).await.unwrap();
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let output = isolated(guarded(BERTH))
        .env("BERTH_KUBECONFIG", cluster.kubeconfig())
        .env("BERTH_DATABASE", dir.path().join("a.db"))
        .env("BERTH_SOCKET", dir.path().join("a.sock"))
        .args(["agent", "--node", "node01", "--nodes"])
        .arg("--nodes-apply=policy")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "--nodes-apply=policy",
        "does not serve MutatingAdmissionPolicy admissionregistration.k8s.io/v1",
        "--nodes-apply=host",
    ] {
        assert!(stderr.contains(part), "`{part}` is not in: {stderr}");
    }
    // The other modes need no such policy.
    let started = Agent::start(BERTH, dir.path(), "off", |command| {
        command
            .args(["--node", "node01", "--nodes", "--nodes-apply=off"])
            .env("BERTH_KUBECONFIG", cluster.kubeconfig());
    });
    started.unwrap();
}
