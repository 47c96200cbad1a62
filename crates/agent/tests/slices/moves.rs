//! A live range is moved to slices and back: no pod loses its address, and whereabouts alone can go on.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use berth_api::berth::SliceClaim;
use berth_parts::Parts;
use berth_testkit::Cluster;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::machine::{Machine, Site, until};

fn bare(address: &str) -> String {
    address.split('/').next().unwrap().to_owned()
}

/// The real plugin of whereabouts v0.9.4, with the flat file that it insists on.
struct Whereabouts {
    binary: PathBuf,
    dir: tempfile::TempDir,
}

impl Whereabouts {
    async fn new(site: &Site) -> Whereabouts {
        let rules = json!([
            { "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"] },
        ]);
        let cluster = Cluster::shared().await;
        let name = format!("whereabouts-{}", site.namespace);
        let account = cluster
            .service_account(&site.namespace, &name, rules)
            .await
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let flat =
            json!({ "kubernetes": { "kubeconfig": account.kubeconfig() }, "log_level": "error" });
        std::fs::write(dir.path().join("whereabouts.conf"), flat.to_string()).unwrap();
        let binary = Parts::find().unwrap().whereabouts();
        Whereabouts { binary, dir }
    }

    fn run(&self, verb: &str, pod: &str, ipam: &Value) -> Value {
        let mut ipam = ipam.clone();
        ipam["type"] = json!("whereabouts");
        ipam["configuration_path"] = json!(self.dir.path().join("whereabouts.conf"));
        let conf = json!({ "cniVersion": "0.3.1", "name": "net", "type": "macvlan", "ipam": ipam });
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}");
        let mut child = Command::new(&self.binary)
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("{pod}-container"))
            .env("CNI_IFNAME", "net1")
            .env("CNI_NETNS", "/var/run/netns/none")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_ARGS", args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(conf.to_string().as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn add(&self, pod: &str, ipam: &Value) -> String {
        bare(
            self.run("ADD", pod, ipam)["ips"][0]["address"]
                .as_str()
                .unwrap(),
        )
    }
}

struct Given(BTreeMap<String, String>);

impl Given {
    async fn add(&mut self, machine: &Machine, pod: &str, ipam: &Value) -> String {
        let address = bare(&machine.add(pod, ipam).await);
        self.note(&address, pod);
        address
    }

    fn note(&mut self, address: &str, pod: &str) {
        let twice = self.0.insert(address.to_owned(), format!("ns/{pod}"));
        assert_eq!(twice, None, "{address} is given to {pod}");
    }

    async fn del(&mut self, machine: &Machine, pod: &str, ipam: &Value) {
        machine.del(pod, ipam).await;
        self.0.retain(|_, holder| *holder != format!("ns/{pod}"));
    }

    async fn published(&self, site: &Site) {
        until("published", async || {
            let now = site.published().await;
            (now == self.0)
                .then_some(())
                .ok_or(format!("{now:?} instead of {:?}", self.0))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_and_back_without_a_pod_that_notices() {
    let site = Site::shared().await;
    let whereabouts = Whereabouts::new(&site).await;
    let a = Machine::start(&site, "node-a").await;
    let b = Machine::start(&site, "node-b").await;
    let plain = json!({ "range": "10.9.0.0/24", "enable_overlapping_ranges": false });
    let mut sliced = plain.clone();
    sliced["fast_ipam"] = json!(true);
    let mut given = Given(BTreeMap::new());
    for n in 0..4 {
        given.add(&a, &format!("p{n}"), &plain).await;
        given.add(&b, &format!("q{n}"), &plain).await;
    }
    let old = whereabouts.add("w", &plain);
    given.note(&old, "w");

    // There: what the plain pool holds is nobody's to give.
    for n in 0..30 {
        given.add(&a, &format!("sa{n}"), &sliced).await;
        given.add(&b, &format!("sb{n}"), &sliced).await;
    }
    given.del(&a, "p0", &sliced).await;
    given.del(&b, "q1", &sliced).await;
    given.published(&site).await;
    let in_plain = site.entries("10.9.0.0-24").await.unwrap();
    assert_eq!(in_plain.len(), 7, "{in_plain:?}");
    let claims = async || {
        let list = site
            .api::<SliceClaim>()
            .list(&ListParams::default())
            .await
            .unwrap();
        list.items.len()
    };
    assert!(claims().await >= 4);

    // Back: all that is held is in the plain pool, nothing else is left.
    given.add(&a, "back-a", &plain).await;
    assert_eq!(claims().await, 0);
    given.published(&site).await;
    let in_plain = site.entries("10.9.0.0-24").await.unwrap();
    assert_eq!(in_plain.len(), given.0.len());
    given.add(&b, "back-b", &plain).await;
    given.del(&b, "sb3", &plain).await;

    // Whereabouts alone goes on.
    let fresh = whereabouts.add("w2", &plain);
    given.note(&fresh, "w2");
    whereabouts.run("DEL", "sa5", &plain);
    given.0.retain(|_, pod| pod != "ns/sa5");
    given.published(&site).await;
}
