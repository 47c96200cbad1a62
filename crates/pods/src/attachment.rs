//! The owner and the handle of a call: a pod's interface owns an address, its container id is the handle.
//!
//! A pod that is created again under its name and asks for the same interface is the same owner: it takes over what
//! is still recorded (I3). A late DEL of the former container releases nothing that the new one took over (I6).

use berth_cni::call::Target;
use berth_cni::{CniError, Code};
use berth_core::{Handle, Owner, Record};

/// Attributes of a record, in stores that keep them.
pub mod attribute {
    /// The CNI network's name: what CNI GC is limited to.
    pub const NETWORK: &str = "network";
    /// The node that the container runs on. A cluster's ledger keeps it where it can.
    pub const NODE: &str = berth_whereabouts::NODE;
    pub const POD_UID: &str = "pod-uid";
    /// The path of the container's network namespace: while it is there, the sandbox may run.
    pub const NETNS: &str = "netns";
    /// The boot of the node that the container was started under.
    pub const BOOT: &str = "boot";
}

/// The host that containers run on: a node, in one of its boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostContext {
    pub node: String,
    pub boot: String,
}

/// One interface of one container of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub owner: Owner,
    pub handle: Handle,
    /// The pod's UID, where the runtime passed it.
    pub pod_uid: String,
    /// Where the interface is to be.
    pub netns: String,
}

impl Attachment {
    /// Names the owner of an ADD or CHECK.
    ///
    /// In a cluster that is the pod, and a call that does not name it is refused. Without one a container may
    /// stand for itself (`cnitool`, `podman`).
    pub fn of(target: &Target, in_cluster: bool) -> Result<Attachment, CniError> {
        let args = &target.args;
        if args.pod_name.is_empty() && in_cluster {
            return Err(CniError::new(
                Code::Environment,
                "CNI_ARGS: K8S_POD_NAME is missing: an address is allocated to a pod by its name",
            ));
        }
        let subject = if args.pod_name.is_empty() {
            target.container_id.to_string()
        } else {
            format!("{}/{}", args.pod_namespace, args.pod_name)
        };
        Ok(Attachment {
            owner: Owner::new(subject, target.ifname.as_str()),
            handle: Handle::new(target.container_id.as_str()),
            pod_uid: args.pod_uid.clone(),
            netns: target.netns.clone(),
        })
    }

    /// The record of an address that this attachment holds.
    pub fn record(&self, network: &str, host: &HostContext) -> Record {
        let mut record =
            Record::new(self.owner.clone(), self.handle.clone()).with(attribute::NETWORK, network);
        let facts = [
            (attribute::NODE, &host.node),
            (attribute::BOOT, &host.boot),
            (attribute::POD_UID, &self.pod_uid),
            (attribute::NETNS, &self.netns),
        ];
        for (key, value) in facts {
            if !value.is_empty() {
                record = record.with(key, value);
            }
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use berth_cni::{Args, ContainerId, IfName};

    use super::*;

    fn target(args: &str) -> Target {
        Target {
            container_id: ContainerId::new("c1").unwrap(),
            ifname: IfName::new("net1").unwrap(),
            netns: String::new(),
            args: Args::parse(args).unwrap(),
        }
    }

    #[test]
    fn a_pod_is_the_owner_and_its_container_the_handle() {
        let pod = target("K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop;K8S_POD_UID=u1");
        let attachment = Attachment::of(&pod, true).unwrap();
        assert_eq!(attachment.owner, Owner::new("shop/web-0", "net1"));
        assert_eq!(attachment.handle, Handle::new("c1"));
        let host = HostContext {
            node: "node-1".to_owned(),
            boot: "b1".to_owned(),
        };
        let record = attachment.record("blue", &host);
        assert_eq!(record.attribute(attribute::NETWORK), Some("blue"));
        assert_eq!(record.attribute(attribute::NODE), Some("node-1"));
        assert_eq!(record.attribute(attribute::POD_UID), Some("u1"));
        assert_eq!(record.attribute(attribute::BOOT), Some("b1"));
    }

    #[test]
    fn without_a_pod_the_container_stands_for_itself_but_not_in_a_cluster() {
        let attachment = Attachment::of(&target(""), false).unwrap();
        assert_eq!(attachment.owner, Owner::new("c1", "net1"));
        let refused = Attachment::of(&target(""), true).unwrap_err();
        assert_eq!(refused.code, Code::Environment);
        assert!(refused.msg.contains("K8S_POD_NAME"));
    }
}
