//! The kinds of objects that this crate reads and writes.

use berth_kube::{Place, Resource};
use berth_ledger::object::write_queue::LEASES;

/// whereabouts' IPPools.
pub const POOLS: Resource = Resource {
    group: "whereabouts.cni.cncf.io",
    version: "v1alpha1",
    plural: "ippools",
    kind: "IPPool",
    place: Place::Namespaced,
};

pub(super) const RESERVATIONS: Resource = Resource {
    group: "whereabouts.cni.cncf.io",
    version: "v1alpha1",
    plural: "overlappingrangeipreservations",
    kind: "OverlappingRangeIPReservation",
    place: Place::Namespaced,
};

/// Claims of slices (berth_api::claim).
pub(super) const SLICES: Resource = Resource {
    place: Place::Claims,
    ..LEASES
};

pub(super) const SLICE_CALLS: Resource = Resource {
    group: "berth.dev",
    version: "v1alpha1",
    plural: "slicecalls",
    kind: "SliceCall",
    place: Place::Namespaced,
};

pub(super) const SLICE_POOLS: Resource = Resource {
    group: "whereabouts.cni.cncf.io",
    version: "v1alpha1",
    plural: "nodeslicepools",
    kind: "NodeSlicePool",
    place: Place::Namespaced,
};

#[cfg(test)]
mod tests {
    use berth_api::berth::SliceCall;
    use berth_api::claim::SliceClaim;
    use berth_api::whereabouts::{IPPool, NodeSlicePool, OverlappingRangeIPReservation};
    use kube::Resource as _;

    use super::*;

    #[test]
    fn the_kinds_are_those_of_the_definitions() {
        let same = |ours: &Resource, api_version: String, kind: String, plural: String| {
            assert_eq!(ours.api_version(), api_version);
            assert_eq!((ours.kind, ours.plural), (kind.as_str(), plural.as_str()));
        };
        same(
            &POOLS,
            IPPool::api_version(&()).into(),
            IPPool::kind(&()).into(),
            IPPool::plural(&()).into(),
        );
        same(
            &RESERVATIONS,
            OverlappingRangeIPReservation::api_version(&()).into(),
            OverlappingRangeIPReservation::kind(&()).into(),
            OverlappingRangeIPReservation::plural(&()).into(),
        );
        same(
            &SLICE_POOLS,
            NodeSlicePool::api_version(&()).into(),
            NodeSlicePool::kind(&()).into(),
            NodeSlicePool::plural(&()).into(),
        );
        same(
            &SLICE_CALLS,
            SliceCall::api_version(&()).into(),
            SliceCall::kind(&()).into(),
            SliceCall::plural(&()).into(),
        );
        same(
            &SLICES,
            SliceClaim::api_version(&()).into(),
            SliceClaim::kind(&()).into(),
            SliceClaim::plural(&()).into(),
        );
    }
}
