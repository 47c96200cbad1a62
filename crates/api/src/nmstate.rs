//! Objects of group `nmstate.io`: the pool that host interfaces get static addresses from.
//!
//! The kind is that of kubernetes-nmstate's proposal "Host IP pooling with NNCPs", whose field names are in kebab-case.
//! What goes beyond the proposal is additive: a pool written from its text alone is a whole one.

// Columns of one type are no repetition.
#![allow(clippy::duplicated_attributes)]

mod rules;

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cncf::Condition;

/// The annotation that asks for a pool to be rebuilt: on a pool without a value, on a policy or an enactment with the
/// pool's name.
pub const RESET_ANNOTATION: &str = "nmstate.io/reset-ippool";

/// The most further ranges of one pool.
pub const MAX_RANGES: usize = 8;
/// The most exclude entries of one range.
pub const MAX_EXCLUDES: usize = 32;
/// The most reservations of one pool.
pub const MAX_RESERVATIONS: usize = 256;
/// The most offsets that a status lists; above, [`NodeIPPoolStatus::allocated_bitmap`] replaces the list.
pub const MAX_LISTED_OFFSETS: usize = 4096;
/// The most allocations that a status describes.
pub const MAX_DESCRIBED: usize = 1000;

/// Addresses for interfaces of hosts.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "nmstate.io",
    version = "v1",
    kind = "NodeIPPool",
    plural = "nodeippools",
    singular = "nodeippool",
    shortname = "nip",
    status = "NodeIPPoolStatus",
    derive = "PartialEq",
    // What refers to it takes 63 characters.
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name: it has more than 63 characters; give a shorter name"),
    printcolumn(name = "CIDR", type_ = "string", json_path = ".spec.range.cidr"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.total"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.used"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.free"),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Available')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Available')].reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    doc = "Static addresses for interfaces of hosts, allocated by NodeNetworkConfigurationPolicies."
)]
#[serde(rename_all = "kebab-case")]
#[schemars(transform = rules::of_spec)]
pub struct NodeIPPoolSpec {
    /// The pool's first range. It can grow at its end while `ranges` is empty; nothing else of it changes.
    pub range: Range,
    /// Further ranges; offsets run on from one to the next. Ranges are only ever appended; the last one can grow at its
    /// end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub ranges: Vec<Range>,
    /// The gateway that is returned with addresses of its network. It is never allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub gateway: Option<String>,
    /// The DNS servers that are returned with each address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 45)))]
    pub dns: Vec<String>,
    /// Addresses that only the named node gets: node -> address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "rules::reservations")]
    pub reservations: BTreeMap<String, String>,
    /// How long a released address waits before another node gets it, such as `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub reuse_delay: Option<String>,
}

/// Consecutive addresses of one network, less what is excluded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(transform = rules::of_range)]
pub struct Range {
    /// The network, IPv4 or IPv6. Its length is returned as `prefix-length`. Host bits are masked.
    #[schemars(length(max = 49))]
    pub cidr: String,
    /// The first address; offsets count from it. The network's first usable one, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub start: Option<String>,
    /// The last address. The network's last usable one, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub end: Option<String>,
    /// Addresses and CIDRs that are never allocated. They keep their offsets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 49)))]
    pub exclude: Vec<String>,
    /// The gateway of this network, where it is another than the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub gateway: Option<String>,
}

/// The allocations of the pool, and its conditions. Written by Berth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct NodeIPPoolStatus {
    /// The offsets that are allocated. An empty list that is written by hand has the pool rebuilt from the enactments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_offsets: Option<Vec<i64>>,
    /// Replaces a list of more than 4,096 offsets: a bit for each, lowest first, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bitmap: Option<String>,
    /// How the bitmap is to be read: `lsb-first/1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bitmap_format: Option<String>,
    /// The holders of the allocated addresses: the first 1,000 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<Allocation>,
    /// Released addresses that wait for the reuse delay to end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cooling_down: Vec<CoolingDown>,
    /// What was found in this status and could not be read, as it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<SetAside>,
    /// How many addresses can be allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// How many addresses are allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<i64>,
    /// How many addresses are free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<i64>,
    /// The condition `Available`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The holder of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Allocation {
    pub ip: String,
    pub offset: i64,
    pub node: String,
    pub policy: String,
    pub capture: String,
}

/// A released address, and when another node may get it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CoolingDown {
    pub offset: i64,
    /// RFC 3339.
    pub since: String,
    /// RFC 3339.
    pub until: String,
    pub node: String,
    pub policy: String,
    pub capture: String,
}

/// A part of a status that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SetAside {
    /// The field that it was in.
    pub field: String,
    /// Its value as JSON, shortened if it is long.
    pub value: String,
    /// What is wrong with it.
    pub why: String,
}
