//! The kinds that this ledger keeps its truth in.

use std::borrow::Cow;

use berth_api::claim;

/// One kind, as the API server serves it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub place: Place,
}

/// The namespace of a kind's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// That of the pools.
    Pools,
    /// That of the claims on them.
    Claims,
}

pub(super) const POOLS: Resource = Resource {
    group: "whereabouts.cni.cncf.io",
    version: "v1alpha1",
    plural: "ippools",
    kind: "IPPool",
    place: Place::Pools,
};

pub(super) const RESERVATIONS: Resource = Resource {
    group: "whereabouts.cni.cncf.io",
    version: "v1alpha1",
    plural: "overlappingrangeipreservations",
    kind: "OverlappingRangeIPReservation",
    place: Place::Pools,
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
    place: Place::Pools,
};

pub(super) const SLICE_POOLS: Resource = Resource {
    group: "whereabouts.cni.cncf.io",
    version: "v1alpha1",
    plural: "nodeslicepools",
    kind: "NodeSlicePool",
    place: Place::Pools,
};

/// Where turns are kept; no truth.
pub(super) const LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
    place: Place::Pools,
};

impl Resource {
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// As a role names it.
    pub fn name(&self) -> String {
        match self.group {
            "" => self.plural.into(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The namespace of its objects, where pools are in that one.
    pub fn namespace<'a>(&self, pools: &'a str) -> Cow<'a, str> {
        match self.place {
            Place::Pools => pools.into(),
            Place::Claims => claim::namespace(pools).into(),
        }
    }

    /// The collection's path, where pools are in that namespace.
    pub fn path(&self, pools: &str) -> String {
        let namespace = self.namespace(pools);
        format!(
            "/apis/{}/{}/namespaces/{namespace}/{}",
            self.group, self.version, self.plural
        )
    }
}

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
