//! The real plugin of whereabouts, on its own node.

use berth_testkit::{Attachment, Cluster};
use serde_json::Value;

use crate::test_node::Site;

pub struct Whereabouts(berth_testkit::Whereabouts);

impl Whereabouts {
    pub async fn new(site: &Site, node: &str) -> Whereabouts {
        let rules = berth_testkit::Whereabouts::rules();
        let name = format!("whereabouts-{}-{node}", site.namespace);
        let cluster = Cluster::shared().await;
        let account = cluster.service_account(&site.namespace, &name, rules);
        let kubeconfig = account.await.unwrap().kubeconfig().to_owned();
        Whereabouts(berth_testkit::Whereabouts::new(&kubeconfig, node).unwrap())
    }

    pub fn run(&self, verb: &str, pod: &str, ipam: &Value) -> Value {
        let who = Attachment {
            pod,
            container: &format!("{pod}-container"),
            ifname: "net1",
        };
        let output = self.0.call(verb, who, ipam).unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    pub fn add(&self, pod: &str, ipam: &Value) -> String {
        let result = self.run("ADD", pod, ipam);
        let address = result["ips"][0]["address"].as_str().unwrap();
        address.split('/').next().unwrap().to_owned()
    }
}
