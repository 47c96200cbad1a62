//! Whether a node may take over an entry that another node wrote: its pod is on this node now, by the API server's word.
//!
//! ```text
//!   the same pod, bound to this node                                       -> yes: it was made again here
//!   another pod of the namespace, bound to this node, that uses an IPAMClaim
//!   with the address, whose last pod is the holder                         -> yes: its machine migrates
//!   an entry that is in a move from or to this node (kinds whose records move)   -> yes
//!   a move to this node that begins: its pod is on this node, in the holder's namespace -> yes
//!   anything else                                                          -> no
//!   an entry that names no node (whereabouts', a large pool's): its pod is on this node, or gone -> yes
//! ```
//! Read by quorum, never from a cache: a pod that a cache lacks would lose its address.

use std::collections::BTreeMap;

use berth_api::cncf::IPAMClaim;
use berth_api::names::is_path_segment;
use berth_core::{Address, NODE, Record, Request};
use berth_kube::{KubeError, ObjectClient, Place, Rejection, Resource, Selection};
use serde::Deserialize;

use crate::kind::{MoveOf, Moving};

/// Which claim an interface of a pod uses is in here.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

const PODS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "pods",
    kind: "Pod",
    place: Place::Namespaced,
};

const IPAM_CLAIMS: Resource = Resource {
    group: "k8s.cni.cncf.io",
    version: "v1alpha1",
    plural: "ipamclaims",
    kind: "IPAMClaim",
    place: Place::Namespaced,
};

/// What is read of a pod.
#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

#[derive(Clone)]
pub(crate) struct Transfers {
    objects: ObjectClient,
    move_of: Option<MoveOf>,
}

impl Transfers {
    pub fn new(objects: ObjectClient, move_of: Option<MoveOf>) -> Transfers {
        Transfers { objects, move_of }
    }

    /// Whether the request of `node` may take over what `held` has at `address`. No, where that can't be decided.
    pub async fn may(
        &self,
        node: &str,
        request: &Request,
        address: Address,
        held: &Record,
    ) -> bool {
        let holder = &held.owner.subject;
        let asked = async {
            let record = match request {
                _ if held.attribute(NODE).is_none() => {
                    return self.is_nowhere_else(node, holder).await;
                }
                Request::Allocate(claim) => &claim.record,
                Request::Transfer { record, .. } => {
                    if let Some(moving) = Moving::of(self.move_of, [held, record], node) {
                        return self.may_move(node, &moving, held).await;
                    }
                    record
                }
                Request::Release(_) | Request::Exchange { .. } => return Ok(false),
            };
            self.check_pod(node, &record.owner.subject, address, holder)
                .await
        };
        match tokio::time::timeout(self.objects.timeout(), asked).await {
            Ok(Ok(may)) => may,
            Ok(Err(error)) => {
                tracing::warn!(%error, node, %address, "an entry of another node is not transferred: its pod can't be read");
                false
            }
            Err(_) => false,
        }
    }

    /// A move that was recorded names its nodes; one that begins must be that of a pod of the node that asks.
    async fn may_move(
        &self,
        node: &str,
        moving: &Moving,
        held: &Record,
    ) -> Result<bool, KubeError> {
        if Moving::of(self.move_of, [held, held], node).is_some() {
            return Ok(true);
        }
        let Some((namespace, _)) = pod_of(&held.owner.subject) else {
            return Ok(false);
        };
        if moving.to != node || !is_path_segment(&moving.pod) {
            return Ok(false);
        }
        let bound = self.pod(namespace, &moving.pod).await?;
        Ok(bound.and_then(|pod| pod.spec.node_name).as_deref() == Some(node))
    }

    /// Whether nothing says that the pod is on another node: it is on this one, or gone.
    async fn is_nowhere_else(&self, node: &str, subject: &str) -> Result<bool, KubeError> {
        let Some((namespace, name)) = pod_of(subject) else {
            return Ok(false);
        };
        let pod = self.pod(namespace, name).await?;
        let bound = pod.and_then(|pod| pod.spec.node_name);
        Ok(bound.is_none_or(|bound| bound == node))
    }

    async fn check_pod(
        &self,
        node: &str,
        subject: &str,
        address: Address,
        holder: &str,
    ) -> Result<bool, KubeError> {
        let (Some((namespace, name)), Some((theirs, last))) = (pod_of(subject), pod_of(holder))
        else {
            return Ok(false);
        };
        let Some(pod) = self.pod(namespace, name).await? else {
            return Ok(false);
        };
        let bound = pod.spec.node_name;
        if bound.as_deref() != Some(node) || namespace != theirs {
            return Ok(false);
        }
        if name == last {
            return Ok(true);
        }
        let annotations = pod.metadata.annotations;
        let networks = annotations.get(NETWORKS).cloned().unwrap_or_default();
        let objects = self.objects.in_namespace(namespace);
        let mut may = false;
        let look = |claim: IPAMClaim| may |= passes(&claim, &networks, address, last);
        let all = Selection::default();
        let listed = objects.list(&IPAM_CLAIMS, &all, look);
        match listed.await {
            // A cluster without the kind has none.
            Err(KubeError::Rejected {
                rejection: Rejection::Missing(_),
                ..
            }) => Ok(false),
            listed => listed.map(|()| may),
        }
    }

    /// The pod; none only if the API server says that this very pod does not exist.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, KubeError> {
        let objects = self.objects.in_namespace(namespace);
        objects.read(&PODS, name).await
    }
}

/// The namespace and the name of the pod that an owner is; none if no pod can have them, for they become part of a URL.
fn pod_of(subject: &str) -> Option<(&str, &str)> {
    let (namespace, name) = subject.split_once('/')?;
    (is_path_segment(namespace) && is_path_segment(name)).then_some((namespace, name))
}

/// Whether the claim is one that the pod's networks name, has the address, and was last used by the holder.
fn passes(claim: &IPAMClaim, networks: &str, address: Address, last: &str) -> bool {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let Some(status) = &claim.status else {
        return false;
    };
    let records = |text: &String| {
        let text = text.split('/').next().unwrap_or_default();
        text.parse() == Ok(address)
    };
    let owner = status.owner_pod.as_ref().map(|pod| pod.name.as_str());
    !name.is_empty()
        && networks.contains(&format!("\"{name}\""))
        && status.ips.iter().any(records)
        && owner == Some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_pod_can_be_called_becomes_part_of_a_url() {
        assert_eq!(pod_of("ns/p-1.x"), Some(("ns", "p-1.x")));
        for bad in [
            "", "p", "ns/", "/p", "ns/p/q", "ns/../x", "../p", "ns/p?x=1", "ns/p%2Fq", "ns/p q",
        ] {
            assert_eq!(pod_of(bad), None, "{bad:?}");
        }
    }
}
