//! With a controller: claims and moves of all nodes meet in the leader's desk, and go on when it is killed at any phase; addresses of a
//! node that is gone are released by the leader.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use berth_testkit::{Account, Agent, Process, guarded, isolated};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::site::{BERTH, Host, Site, until};

const AUDIENCE: &str = "desk.berth.dev";
const CONTROLLER_RIGHTS: [&str; 2] = [
    include_str!("../../../../deploy/controller/rbac.yaml"),
    include_str!("../../../../deploy/gcp/controller/rbac.yaml"),
];

impl Site {
    /// The account that deploy/gcp/controller makes, as a kustomization with this namespace would.
    async fn controllers_account(&self) -> Account {
        let renamed =
            |name: &Value| json!(format!("{}-{}", name.as_str().unwrap(), self.namespace));
        for text in CONTROLLER_RIGHTS {
            for mut document in serde_saphyr::from_multiple::<Value>(text).unwrap() {
                let kind = document["kind"].as_str().unwrap().to_owned();
                match kind.starts_with("ClusterRole") {
                    true => document["metadata"]["name"] = renamed(&document["metadata"]["name"]),
                    false => document["metadata"]["namespace"] = json!(self.namespace),
                }
                if kind.ends_with("Binding") {
                    document["subjects"][0]["namespace"] = json!(self.namespace);
                    if document["roleRef"]["kind"] == "ClusterRole" {
                        document["roleRef"]["name"] = renamed(&document["roleRef"]["name"]);
                    }
                }
                self.cluster.apply_object(document).await.unwrap();
            }
        }
        let account = self.cluster.account(&self.namespace, "berth-controller");
        let account = account.await.unwrap();
        let reviews: Api<SelfSubjectAccessReview> = Api::all(account.client().await.unwrap());
        let question = json!({ "metadata": {}, "spec": { "resourceAttributes": {
            "group": "ipam.gcp-cni.cast.ai", "resource": "ippools", "verb": "update",
        }}});
        let question = serde_json::from_value(question).unwrap();
        until("the rights are in force", async || {
            let answer = reviews.create(&PostParams::default(), &question).await;
            answer.unwrap().status.unwrap().allowed
        })
        .await;
        account
    }

    /// `berth controller`, when it leads.
    pub(crate) async fn controller(&self, name: &str) -> Process {
        let metadata = self.metadata_of_any_vm().await;
        let account = self.controllers_account().await;
        let mut command = isolated(guarded(BERTH));
        command
            .args(["controller", "--gcp", "--identity", name])
            .args(["--namespace", &self.namespace])
            .args(["--desk-listen", "127.0.0.1:0", "--lease-duration", "1"])
            .env("BERTH_KUBECONFIG", account.kubeconfig())
            .env("BERTH_COMPUTE_ENDPOINT", self.cloud.endpoint())
            .env("GCE_METADATA_HOST", metadata)
            .env("BERTH_GCP_SWEEP", "1")
            .env("BERTH_GCP_NODE_GRACE", "1");
        let process = Process::start(name, command, self.dir.path()).unwrap();
        let client = self.cluster.client().await.unwrap();
        let leases: Api<Lease> = Api::namespaced(client, &self.namespace);
        until("the controller leads", async || {
            let lease = leases.get_opt("berth-controller").await.unwrap();
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            holder.is_some_and(|holder| holder == name)
        })
        .await;
        process
    }

    /// An agent that asks the leader's desk.
    pub(crate) async fn asking_agent(&self, host: &Host) -> Agent {
        let token = self
            .cluster
            .pod_token(&host.account, &host.name, AUDIENCE)
            .await
            .unwrap();
        let file = self.dir.path().join(format!("{}.token", host.name));
        std::fs::write(&file, token).unwrap();
        let environment = self.environment(host);
        Agent::start(BERTH, self.dir.path(), &host.name, |command| {
            command.envs(environment);
            command.env("BERTH_DESK_TOKEN_FILE", file);
        })
        .unwrap()
    }
}

/// The sum of an agent's counter.
pub fn counted(agent: &Agent, series: &str) -> f64 {
    let mut stream = UnixStream::connect(&agent.socket).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.lines()
        .filter(|line| line.starts_with(series))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_are_committed_by_the_leaders_desk_and_outlive_it() {
    let site = Site::new(300).await;
    let mut controller = site.controller("first").await;
    let (a, b) = (site.host("a").await, site.host("b").await);
    let (source, destination) = (site.asking_agent(&a).await, site.asking_agent(&b).await);
    site.pod("known", &b, json!({})).await;
    site.add(&b, "known");
    // Undisturbed, then with the leader killed after each request of a move.
    for stop in 0..=6 {
        let (pod, clone) = (format!("cart-{stop}"), format!("clone-{stop}"));
        site.pod(&pod, &a, json!({})).await;
        let ip = site.add(&a, &pod);
        site.mark_to_move_out(&pod).await;
        let annotations =
            json!({ "live.cast.ai/ip": ip, "live.cast.ai/original-instance": a.name });
        site.pod(&clone, &b, json!({ "annotations": annotations }))
            .await;
        let before = site.requests();
        let (mut command, network) = site.command(&b, "ADD", &clone);
        let asked = std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap());
        if stop > 0 {
            until("the requests are made", async || {
                site.requests() >= before + stop
            })
            .await;
            controller.kill().unwrap();
        }
        let output = asked.join().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "killed after {stop}: {text}");
        assert_eq!(site.holder(&ip), b.name, "killed after {stop}");
        assert_eq!(site.entry(&ip).await["podName"], json!(clone));
        if stop == 0 {
            for agent in [&source, &destination] {
                assert!(counted(agent, "berth_desk_common_total") > 0.0);
                assert_eq!(counted(agent, "berth_desk_alone_total"), 0.0);
            }
        } else {
            controller = site.controller(&format!("after-{stop}")).await;
        }
        site.del(&a, &pod);
        site.del(&b, &clone);
        site.until_free(&ip).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_releases_addresses_of_a_node_that_is_gone() {
    let site = Site::new(50).await;
    let (a, b) = (site.host("a").await, site.host("b").await);
    let _agent = site.agent(&a);
    let gone = site.agent(&b);
    for (pod, host) in [("stays", &a), ("goes", &b)] {
        site.pod(pod, host, json!({})).await;
    }
    let (stays, goes) = (site.add(&a, "stays"), site.add(&b, "goes"));
    drop(gone);
    let client = site.cluster.client().await.unwrap();
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    let pods: Api<k8s_openapi::api::core::v1::Pod> =
        Api::namespaced(client.clone(), &site.namespace);
    pods.delete("goes", &now).await.unwrap();
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
    nodes.delete(&b.name, &now).await.unwrap();
    let mut controller = site.controller("first").await;
    controller.kill().unwrap();
    let _controller = site.controller("second").await;
    site.until_free(&goes).await;
    assert_eq!(site.holder(&stays), a.name);
    assert_eq!(site.entry(&stays).await["podName"], "stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_add_and_a_del_outlive_the_leader() {
    let site = Site::new(300).await;
    let host = site.host("a").await;
    let _agent = site.asking_agent(&host).await;
    for stop in 1..=3 {
        let mut controller = site.controller(&format!("add-{stop}")).await;
        let pod = format!("web-{stop}");
        site.pod(&pod, &host, json!({})).await;
        let before = site.requests();
        let (mut command, network) = site.command(&host, "ADD", &pod);
        let asked = std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap());
        until("the requests are made", async || {
            site.requests() >= before + stop
        })
        .await;
        controller.kill().unwrap();
        assert!(
            asked.join().unwrap().status.success(),
            "killed after {stop}"
        );
        let address = site.add(&host, &pod);
        assert_eq!(site.holder(&address), host.name);

        let mut controller = site.controller(&format!("del-{stop}")).await;
        let before = site.requests();
        site.del(&host, &pod);
        until("the requests are made", async || {
            site.requests() >= before + stop - 1
        })
        .await;
        controller.kill().unwrap();
        site.until_free(&address).await;
    }
}
