//! The real plugin of whereabouts, on a node of its own.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use berth_parts::Parts;
use berth_testkit::Cluster;
use serde_json::{Value, json};

use crate::machine::Site;

/// The real plugin of whereabouts v0.9.4, with the flat file that it insists on.
pub struct Whereabouts {
    binary: PathBuf,
    dir: tempfile::TempDir,
    node: String,
}

impl Whereabouts {
    pub async fn new(site: &Site, node: &str) -> Whereabouts {
        let rules = json!([
            { "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"] },
        ]);
        let cluster = Cluster::shared().await;
        let name = format!("whereabouts-{}-{node}", site.namespace);
        let account = cluster
            .service_account(&site.namespace, &name, rules)
            .await
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let flat =
            json!({ "kubernetes": { "kubeconfig": account.kubeconfig() }, "log_level": "error" });
        std::fs::write(dir.path().join("whereabouts.conf"), flat.to_string()).unwrap();
        let binary = Parts::find().unwrap().whereabouts();
        Whereabouts {
            binary,
            dir,
            node: node.to_owned(),
        }
    }

    pub fn run(&self, verb: &str, pod: &str, ipam: &Value) -> Value {
        let mut ipam = ipam.clone();
        ipam["type"] = json!("whereabouts");
        ipam["configuration_path"] = json!(self.dir.path().join("whereabouts.conf"));
        let conf = json!({ "cniVersion": "0.3.1", "name": "net", "type": "macvlan", "ipam": ipam });
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}");
        let mut child = Command::new(&self.binary)
            .env_clear()
            .env("NODENAME", &self.node)
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

    pub fn add(&self, pod: &str, ipam: &Value) -> String {
        let result = self.run("ADD", pod, ipam);
        let address = result["ips"][0]["address"].as_str().unwrap();
        address.split('/').next().unwrap().to_owned()
    }
}
