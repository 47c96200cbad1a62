//! What Berth keeps beside whereabouts' own fields of a NodeSlicePool, and where agents read what the
//! controller has found out.
//!
//! whereabouts' definition of the kind has no room for epochs or conditions, and its API server would
//! prune them. Annotations are left alone by everyone, are shown by kubectl, and whereabouts reads the
//! object as before.

use std::collections::BTreeMap;

use berth_core::Prefix;
use serde::{Deserialize, Serialize};

/// On a NodeSlicePool: a JSON map from slice to epoch, `{"10.0.64.0/26":2}`. A slice that is not in it is
/// at epoch 0. The epoch grows each time that the slice is taken from a node that is gone (I8): a node
/// that knows an older one of its own slice has lost what it had there.
pub const EPOCHS: &str = "berth.dev/epochs";

/// On a NodeSlicePool: a JSON list of slices that are on their way back, `["10.0.64.0/26"]`. Each has its next epoch
/// already, and its node, if it is there after all, gives nothing from it (I8).
pub const RECALLED: &str = "berth.dev/recalled";

/// On a NodeSlicePool: `"true"` while no other network of the cluster has an address in its range, over all
/// NetworkAttachmentDefinitions. Absent as soon as that is not known.
pub const DISJOINT: &str = "berth.dev/disjoint";

/// On a NodeSlicePool: a JSON list of conditions, only those that something is wrong with.
pub const CONDITIONS: &str = "berth.dev/conditions";

/// On a NodeSlicePool: the definitions that share it, `namespace/name`, separated by commas.
pub const NETWORKS: &str = "berth.dev/networks";

/// On a NodeSlicePool: `"true"` if a controller made it, and so may delete it.
pub const MANAGED: &str = "berth.dev/managed";

/// On the further objects of a NodeSlicePool that one object can't hold: `<page>/<slices of a page>`.
pub const SLICE_PAGE: &str = "berth.dev/slice-page";

/// On all objects of such a NodeSlicePool, as label (shortened) and as annotation: its name.
pub const SLICE_POOL: &str = "berth.dev/slice-pool";

/// Slices of one object. Part of what is stored: slice n of a range is on page n / SLICES_OF_A_PAGE. A range of
/// no more is one object that lists all of them, as whereabouts does; of a larger one only the assigned
/// slices are listed. 8,192 rows write in under a second and stay under etcd's limit with names of up to 140
/// characters on average.
pub const SLICES_OF_A_PAGE: u128 = 8_192;

/// A page's object.
pub fn slice_page(pool: &str, page: u128) -> String {
    match page {
        0 => pool.to_owned(),
        n => format!("{pool}--p{n}"),
    }
}

/// The ConfigMap, in the namespace of the pools, with what the controller knows of networks that have no
/// NodeSlicePool. One object for all of them: each agent watches it, and it changes when networks do.
pub const NETWORKS_MAP: &str = "berth-networks";

/// The ConfigMap's key: a [`DisjointRanges`].
pub const DISJOINT_KEY: &str = "disjoint.json";

/// Ranges of `fast_ipam` networks that no other network has an address in, by the name of the plain pool of
/// the range ([`crate::names::pool`] without a node). What is not in it is not proved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DisjointRanges(pub BTreeMap<String, Prefix>);

/// The Lease of the controllers, in the namespace of the pools.
pub const CONTROLLER_LEASE: &str = "berth-controller";
