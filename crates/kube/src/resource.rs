//! Kinds of objects, and their paths on the API server.

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
}
