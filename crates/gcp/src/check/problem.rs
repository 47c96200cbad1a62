//! What a check finds: each with how bad it is and what to do about it.

use std::net::Ipv4Addr;

use serde::Serialize;
use thiserror::Error;

use super::MAX_ALIASES;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Traffic is lost, or an address may be allocated twice.
    Error,
    /// Something is left over, or a limit is near.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    #[error("{address} of pod {pod} is not an alias of {node}: the pod can't be reached")]
    AliasMissing {
        address: Ipv4Addr,
        pod: String,
        node: String,
    },
    #[error("{address} is an alias of {node}, but pod {pod} has it on {allocated}")]
    AliasElsewhere {
        address: Ipv4Addr,
        pod: String,
        node: String,
        allocated: String,
    },
    #[error("{address} is an alias of {node} and no pod has it")]
    AliasLeft { address: Ipv4Addr, node: String },
    #[error("{address} is allocated to pod {pod}, which does not exist")]
    PodGone { address: Ipv4Addr, pod: String },
    #[error("{address} is allocated to pod {pod} on node {node}, which does not exist")]
    NodeGone {
        address: Ipv4Addr,
        pod: String,
        node: String,
    },
    #[error("pod {pod} has {address}, which is not allocated: another pod may get it")]
    NotAllocated { address: Ipv4Addr, pod: String },
    #[error("pod {pod} has {address}, which is allocated to {holder}")]
    AllocatedToAnother {
        address: Ipv4Addr,
        pod: String,
        holder: String,
    },
    #[error("{address} has a local route on this host, which swallows the pod's packets")]
    LocalRoute { address: Ipv4Addr },
    #[error("the first alias of {node} is {cidr}, an address of a pod")]
    FirstAlias { node: String, cidr: String },
    #[error("{node} has {count} of {MAX_ALIASES} alias ranges")]
    NicNearlyFull { node: String, count: usize },
    #[error("the VM of {node} can't be read: {why}")]
    NodeUnreadable { node: String, why: String },
    #[error("the subnet can't be read: {0}")]
    SubnetUnreadable(String),
    #[error("the subnet has no secondary range {0}")]
    RangeGone(String),
    #[error("the IPPool has {pool}, its range {range} has {found}")]
    OtherCidr {
        pool: String,
        range: String,
        found: String,
    },
    #[error("{available} of {capacity} addresses are left")]
    PoolNearlyFull { available: u64, capacity: u64 },
    #[error("the object has {0} bytes; the API server takes about 1.5 million")]
    ObjectNearlyFull(usize),
    /// What the object itself says.
    #[error("{0}")]
    Entry(String),
    /// The same, where nothing is allocated because of it.
    #[error("{0}")]
    AllocationStopped(String),
}

impl Problem {
    pub fn severity(&self) -> Severity {
        match self {
            Problem::AliasMissing { .. }
            | Problem::AliasElsewhere { .. }
            | Problem::NotAllocated { .. }
            | Problem::AllocatedToAnother { .. }
            | Problem::LocalRoute { .. }
            | Problem::FirstAlias { .. }
            | Problem::NodeUnreadable { .. }
            | Problem::SubnetUnreadable(_)
            | Problem::RangeGone(_)
            | Problem::OtherCidr { .. }
            | Problem::AllocationStopped(_) => Severity::Error,
            Problem::NicNearlyFull { count, .. } if *count >= MAX_ALIASES => Severity::Error,
            // The withheld gateway is counted: one left is none.
            Problem::PoolNearlyFull { available, .. } if *available <= 1 => Severity::Error,
            Problem::AliasLeft { .. }
            | Problem::PodGone { .. }
            | Problem::NodeGone { .. }
            | Problem::NicNearlyFull { .. }
            | Problem::PoolNearlyFull { .. }
            | Problem::ObjectNearlyFull(_)
            | Problem::Entry(_) => Severity::Warning,
        }
    }

    /// For programs: stable, unlike the message.
    pub const fn code(&self) -> &'static str {
        match self {
            Problem::AliasMissing { .. } => "alias-missing",
            Problem::AliasElsewhere { .. } => "alias-elsewhere",
            Problem::AliasLeft { .. } => "alias-left",
            Problem::PodGone { .. } => "pod-gone",
            Problem::NodeGone { .. } => "node-gone",
            Problem::NotAllocated { .. } => "not-allocated",
            Problem::AllocatedToAnother { .. } => "allocated-to-another",
            Problem::LocalRoute { .. } => "local-route",
            Problem::FirstAlias { .. } => "first-alias",
            Problem::NicNearlyFull { .. } => "nic-nearly-full",
            Problem::NodeUnreadable { .. } => "node-unreadable",
            Problem::SubnetUnreadable(_) => "subnet-unreadable",
            Problem::RangeGone(_) => "range-gone",
            Problem::OtherCidr { .. } => "other-cidr",
            Problem::PoolNearlyFull { .. } => "pool-nearly-full",
            Problem::ObjectNearlyFull(_) => "object-nearly-full",
            Problem::Entry(_) => "entry",
            Problem::AllocationStopped(_) => "allocation-stopped",
        }
    }

    pub const fn remedy(&self) -> &'static str {
        match self {
            Problem::AliasMissing { .. } | Problem::AliasElsewhere { .. } => {
                "see the agent's log on that node; it attaches what its pods hold"
            }
            Problem::AliasLeft { .. } => {
                "the node's agent detaches it; without an agent, remove the alias by hand"
            }
            Problem::PodGone { .. } | Problem::NodeGone { .. } => {
                "the collector releases it after its grace period and a read of the instance"
            }
            Problem::NotAllocated { .. } | Problem::AllocatedToAnother { .. } => {
                "delete the pod: its next one gets an address of its own"
            }
            Problem::LocalRoute { .. } => {
                "set ip_forwarding=false in [NetworkInterfaces] of /etc/default/instance_configs.cfg and restart the guest agent"
            }
            Problem::FirstAlias { .. } => {
                "do not register this node again: its podCIDR would become that address; replace the node"
            }
            Problem::NicNearlyFull { .. } => {
                "run fewer of these pods on the node: the limit can't be raised"
            }
            Problem::NodeUnreadable { .. } => {
                "grant compute.instances.get, or delete a Node whose VM is gone"
            }
            Problem::SubnetUnreadable(_) => "grant compute.subnetworks.get",
            Problem::RangeGone(_) | Problem::OtherCidr { .. } => {
                "delete the pool's pods, then run berth gcp provision"
            }
            Problem::PoolNearlyFull { .. } => {
                "provision a larger range under another name, and a pool of it"
            }
            Problem::ObjectNearlyFull(_) => "a page is made when it is full",
            Problem::Entry(_) => "the entry is kept as it is",
            Problem::AllocationStopped(_) => "correct what it names; docs/gcp.md, pages",
        }
    }

    /// The address that this is about.
    pub const fn address(&self) -> Option<Ipv4Addr> {
        match self {
            Problem::AliasMissing { address, .. }
            | Problem::AliasElsewhere { address, .. }
            | Problem::AliasLeft { address, .. }
            | Problem::PodGone { address, .. }
            | Problem::NodeGone { address, .. }
            | Problem::NotAllocated { address, .. }
            | Problem::AllocatedToAnother { address, .. }
            | Problem::LocalRoute { address } => Some(*address),
            _ => None,
        }
    }
}
