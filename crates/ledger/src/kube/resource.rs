//! Kinds of objects: their paths on the API server, and those that this crate keeps its truth in.

use std::borrow::Cow;

use berth_api::claim;

/// One kind, as the API server serves it. A constant of the code that knows the kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub place: Place,
}

/// Where the objects of a kind are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the connection's namespace: that of the pools.
    Namespaced,
    /// In the namespace of the claims on them.
    Claims,
    /// In no namespace.
    Cluster,
}

/// Which part of an object a write changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it; not its status, where the kind has a subresource for that.
    #[default]
    Object,
    /// Its status, through the subresource: everything else of what is written is ignored by the API server.
    Status,
}

impl Part {
    /// What a path and a role add to the resource's name.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Object => "",
            Self::Status => "/status",
        }
    }
}

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

/// Where turns are kept; no truth.
pub(super) const LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
    place: Place::Namespaced,
};

impl Resource {
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// As a role names it.
    pub fn name(&self) -> String {
        match self.group {
            "" => self.plural.into(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The namespace of its objects, where the connection has that one; none for a kind that has no namespace.
    pub fn namespace<'a>(&self, connection: &'a str) -> Option<Cow<'a, str>> {
        match self.place {
            Place::Namespaced => Some(connection.into()),
            Place::Claims => Some(claim::namespace(connection).into()),
            Place::Cluster => None,
        }
    }

    /// The collection's path, where the connection has that namespace.
    pub fn path(&self, connection: &str) -> String {
        let (root, plural) = (self.root(), self.plural);
        match self.namespace(connection) {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{plural}"),
        }
    }

    /// The path of the objects of all namespaces.
    pub fn path_everywhere(&self) -> String {
        format!("{}/{}", self.root(), self.plural)
    }

    fn root(&self) -> String {
        match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
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
    fn paths_are_those_of_the_api_server() {
        let kind = |group, place| Resource {
            group,
            version: "v1",
            plural: "things",
            kind: "Thing",
            place,
        };
        let core = kind("", Place::Namespaced);
        assert_eq!(core.path("nets"), "/api/v1/namespaces/nets/things");
        assert_eq!(core.path_everywhere(), "/api/v1/things");
        assert_eq!(
            (core.api_version(), core.name()),
            ("v1".into(), "things".into())
        );
        let cluster = kind("a.io", Place::Cluster);
        assert_eq!(cluster.path("nets"), "/apis/a.io/v1/things");
        assert_eq!(cluster.api_version(), "a.io/v1");
        let claims = kind("a.io", Place::Claims).path("nets");
        assert_eq!(claims, "/apis/a.io/v1/namespaces/berth-nets/things");
    }

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
