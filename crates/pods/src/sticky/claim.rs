//! An IPAMClaim, and which one a pod's interface refers to.

use berth_core::Address;
use berth_kube::{Place, Resource};
use serde::Deserialize;
use serde_json::Value;

/// A claim as it was read. Only its status is ever written, and by patches (I7).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Claim {
    pub(super) metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    pub(super) status: Status,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Spec {
    #[serde(default)]
    network: String,
    #[serde(default)]
    interface: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub resource_version: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    #[serde(default)]
    pub ips: Vec<String>,
    #[serde(default)]
    pub owner_pod: Option<OwnerPod>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) struct OwnerPod {
    #[serde(default)]
    pub name: String,
}

impl Claim {
    /// The addresses that the status records, with or without a prefix length.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        let address = |text: &String| {
            let bare = text.split('/').next().unwrap_or_default();
            Address::parse_lenient(bare)
        };
        self.status.ips.iter().filter_map(address)
    }

    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    pub fn namespace(&self) -> &str {
        &self.metadata.namespace
    }

    /// The network that it is of.
    pub fn network(&self) -> &str {
        &self.spec.network
    }

    /// The interface that its pods have in it.
    pub fn interface(&self) -> &str {
        &self.spec.interface
    }

    /// Whether it keeps an address that a pod has in a network of these names. Other networks may allocate the same address:
    /// theirs is not this claim's. `spec.network` is the name in the network's configuration (KubeVirt writes that one); people
    /// write the definition's too, which not every caller knows, so a claim that names the pod as its own keeps as well.
    pub fn keeps(&self, names: &[&str], pod: &str, address: Address) -> bool {
        let of_network = self.network().is_empty() || names.contains(&self.network());
        let mut addresses = self.addresses();
        (of_network || self.owner_pod() == Some(pod)) && addresses.any(|own| own == address)
    }

    /// The holder of its addresses: the pod that used them last, or the claim itself before there was one.
    pub fn holder(&self) -> String {
        let pod = self.owner_pod().unwrap_or(&self.metadata.name);
        format!("{}/{pod}", self.metadata.namespace)
    }

    /// The pod that used the addresses last.
    pub(super) fn owner_pod(&self) -> Option<&str> {
        let owner = self.status.owner_pod.as_ref()?;
        (!owner.name.is_empty()).then_some(owner.name.as_str())
    }
}

pub(super) const IPAM_CLAIMS: Resource = Resource {
    group: "k8s.cni.cncf.io",
    version: "v1alpha1",
    plural: "ipamclaims",
    kind: "IPAMClaim",
    place: Place::Namespaced,
};

/// The claim that the pod's annotation names for an interface. Multus calls the interface of the n-th element `netN`,
/// unless the element says otherwise.
pub(super) fn reference(annotation: &str, ifname: &str) -> Option<String> {
    let elements: Vec<Value> = serde_json::from_str(annotation).ok()?;
    let mine = |(place, element): (usize, &Value)| {
        let named = element["interface"]
            .as_str()
            .filter(|name| !name.is_empty())
            .map_or_else(|| format!("net{}", place + 1), str::to_owned);
        (named == ifname).then(|| {
            element["ipam-claim-reference"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
    };
    let found = elements.iter().enumerate().find_map(mine)?;
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_finds_the_claim_of_its_element() {
        let annotation = r#"[{"name":"blue"},
            {"name":"blue","ipam-claim-reference":"vm.second"},
            {"name":"red","interface":"ext","ipam-claim-reference":"vm.ext"}]"#;
        assert_eq!(reference(annotation, "net1"), None);
        assert_eq!(reference(annotation, "net2").as_deref(), Some("vm.second"));
        assert_eq!(reference(annotation, "ext").as_deref(), Some("vm.ext"));
        assert_eq!(reference(annotation, "net3"), None);
        // The short form has no room for a reference.
        assert_eq!(reference("blue, red@ext", "net1"), None);
    }

    #[test]
    fn a_claim_keeps_what_is_of_its_network_or_of_its_pod() {
        let claim: Claim = serde_json::from_str(
            r#"{"metadata":{"name":"vm"},"spec":{"network":"blue"},
                "status":{"ips":["10.0.0.5/24"],"ownerPod":{"name":"launcher"}}}"#,
        )
        .unwrap();
        for (names, pod, address, kept) in [
            (["blue-definition", "blue"], "launcher", "10.0.0.5", true),
            // Its next pod, before the claim says so.
            (["blue-definition", "blue"], "next", "10.0.0.5", true),
            (["blue-definition", "blue"], "launcher", "10.0.0.6", false),
            (["red-definition", "red"], "stranger", "10.0.0.5", false),
            (["red-definition", "red"], "launcher", "10.0.0.5", true),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(
                claim.keeps(&names, pod, address),
                kept,
                "{names:?} {pod} {address}"
            );
        }
    }

    #[test]
    fn a_claims_addresses_are_read_with_or_without_a_length() {
        let claim: Claim = serde_json::from_str(
            r#"{"metadata":{"name":"vm"},"status":{"ips":["10.0.0.5/24","fd00::5"],"ownerPod":{"name":"p"}}}"#,
        )
        .unwrap();
        let read: Vec<String> = claim.addresses().map(|a| a.to_string()).collect();
        assert_eq!(read, ["10.0.0.5", "fd00::5"]);
        assert_eq!(claim.owner_pod(), Some("p"));
    }
}
