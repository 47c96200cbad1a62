//! What Berth stores next to whereabouts' own fields of a NodeSlicePool, and where agents read what the controller has
//! found.
//!
//! whereabouts' definition has no field for epochs or conditions, and its API server would prune them. Annotations are
//! kept by everyone and shown by kubectl, and whereabouts reads the object as before.

use std::collections::BTreeMap;

use berth_core::Prefix;
use serde::{Deserialize, Serialize};

/// On a NodeSlicePool: a JSON map from slice to epoch, `{"10.0.64.0/26":2}`. A slice that is not in it has epoch 0. The
/// epoch grows each time the slice is reclaimed from a lost node (I8): a node that knows an older epoch of its slice
/// has lost it.
pub const EPOCHS: &str = "berth.dev/epochs";

/// On a NodeSlicePool: a JSON list of slices that are being reclaimed, `["10.0.64.0/26"]`. Each already has its next
/// epoch, and its node, if it still exists, allocates nothing from it (I8).
pub const RECALLED: &str = "berth.dev/recalled";

/// On a NodeSlicePool: `"true"` while no other network of the cluster has an address in its range, over all
/// NetworkAttachmentDefinitions. Absent if that is not proved.
pub const DISJOINT: &str = "berth.dev/disjoint";

/// On a NodeSlicePool: a JSON list of conditions; only those that report a problem.
pub const CONDITIONS: &str = "berth.dev/conditions";

/// On a NodeSlicePool: the definitions that share it, `namespace/name`, separated by commas.
pub const NETWORKS: &str = "berth.dev/networks";

/// On a NodeSlicePool: `"true"` if a controller created it and so may delete it.
pub const MANAGED: &str = "berth.dev/managed";

/// On the further objects of a NodeSlicePool that does not fit into one object: `<page>/<slices of a page>`.
pub const SLICE_PAGE: &str = "berth.dev/slice-page";

/// On all objects of such a NodeSlicePool, as label (shortened) and as annotation: its name.
pub const SLICE_POOL: &str = "berth.dev/slice-pool";

/// Slices per object. This is part of the stored format: slice n of a range is on page n / SLICES_OF_A_PAGE. A range
/// with no more is one object that lists all of them, as whereabouts does; of a larger one only the assigned slices are
/// listed. 8,192 rows are written in under a second and stay under etcd's limit with names of up to 140 characters on
/// average.
pub const SLICES_OF_A_PAGE: u128 = 8_192;

/// The object name of a page.
pub fn slice_page(pool: &str, page: u128) -> String {
    match page {
        0 => pool.to_owned(),
        n => format!("{pool}--p{n}"),
    }
}

/// The ConfigMap, in the namespace of the pools, with what the controller knows about networks that have no
/// NodeSlicePool. It is one object: each agent watches it, and it changes only when networks do.
pub const NETWORKS_MAP: &str = "berth-networks";

/// The ConfigMap's key: a [`DisjointRanges`].
pub const DISJOINT_KEY: &str = "disjoint.json";

/// Ranges of `fast_ipam` networks in which no other network has an address, by the name of the plain pool of the range
/// ([`crate::names::pool`] without a node). What is not in it is not proved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DisjointRanges(pub BTreeMap<String, Prefix>);

/// The Lease of the controllers, in the namespace of the pools.
pub const CONTROLLER_LEASE: &str = "berth-controller";
