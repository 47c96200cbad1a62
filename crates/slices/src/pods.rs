//! The pods of this node, as the API server has them, and the addresses that they say they have.

use std::collections::BTreeSet;

use berth_core::{Address, Handle, Owner, Record};
use berth_ledger::LedgerError;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde::Deserialize;

use crate::world::World;

const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// What one quorum read of a node's pods has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodePods {
    /// Those that may run, as `namespace/name`.
    names: BTreeSet<String>,
    pub addresses: Vec<(Address, Record)>,
}

impl NodePods {
    fn read(pods: &[Pod]) -> Self {
        let open = pods.iter().filter(|pod| !has_ended(pod));
        Self {
            names: open.clone().filter_map(name).collect(),
            addresses: open.flat_map(addresses).collect(),
        }
    }

    /// Whether a record is of a pod that does not run here any more. Of what is no pod nothing is known.
    pub fn lacks(&self, record: &Record) -> bool {
        record.owner.subject.contains('/') && !self.names.contains(&record.owner.subject)
    }
}

impl World {
    /// The pods of this node, on a quorum read.
    pub async fn node_pods(&self) -> Result<NodePods, LedgerError> {
        let pods: Api<Pod> = Api::all(self.connection.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let unseen = |why: String| LedgerError::Unavailable {
            target: format!("pods of node {}", self.node),
            why,
            retry_after: None,
        };
        let listed = tokio::time::timeout(self.connection.timeout, pods.list(&params));
        match listed.await {
            Ok(Ok(pods)) => Ok(NodePods::read(&pods.items)),
            Ok(Err(error)) => Err(unseen(error.to_string())),
            Err(_) => Err(unseen("no answer".to_owned())),
        }
    }

    /// The same as they were when this process began: one list, whatever the number of its networks.
    pub async fn first_pods(&self) -> Result<&NodePods, LedgerError> {
        let list = async || self.node_pods().await;
        self.first_pods.get_or_try_init(list).await
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
}

fn name(pod: &Pod) -> Option<String> {
    let meta = &pod.metadata;
    Some(format!(
        "{}/{}",
        meta.namespace.as_ref()?,
        meta.name.as_ref()?
    ))
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Vec<String>,
}

fn addresses(pod: &Pod) -> Vec<(Address, Record)> {
    let annotations = pod.metadata.annotations.as_ref();
    let status = annotations.and_then(|all| all.get(STATUS));
    let (Some(name), Some(status)) = (name(pod), status) else {
        return Vec::new();
    };
    let attachments: Vec<Attachment> = serde_json::from_str(status).unwrap_or_default();
    let mut found = Vec::new();
    for attachment in attachments {
        let owner = Owner::new(&name, attachment.interface);
        for ip in attachment.ips {
            let address = ip.split('/').next().and_then(|ip| ip.parse().ok());
            if let Some(address) = address {
                // Its container is not known: the pod's next ADD, or its end, settles that.
                let record = Record::new(owner.clone(), Handle::default());
                found.push((address, record));
            }
        }
    }
    found
}

#[cfg(test)]
impl NodePods {
    pub fn of(names: &[&str]) -> Self {
        Self {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            addresses: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_pod(phase: &str) -> Pod {
        let status = r#"[{"name":"cbr0","ips":["10.244.0.9"],"default":true},
            {"name":"blue","interface":"net1","ips":["10.0.0.5","fd00::5"]}]"#;
        serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p", "annotations": { STATUS: status } },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn a_pods_own_word_about_its_addresses() {
        let found = NodePods::read(&[mk_pod("Running"), Pod::default()]);
        let addresses: Vec<String> = found
            .addresses
            .iter()
            .map(|(address, _)| address.to_string())
            .collect();
        assert_eq!(addresses, ["10.244.0.9", "10.0.0.5", "fd00::5"]);
        assert_eq!(found.addresses[1].1.owner, Owner::new("ns/p", "net1"));
        assert!(!found.lacks(&found.addresses[1].1));
        let ended = NodePods::read(&[mk_pod("Succeeded")]);
        assert!(ended.addresses.is_empty());
        assert!(ended.lacks(&found.addresses[1].1));
        let no_pod = Record::new(Owner::new("c1", "eth0"), Handle::new("c1"));
        assert!(!ended.lacks(&no_pod));
    }
}
