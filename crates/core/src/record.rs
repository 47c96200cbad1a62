//! Who holds an address and how it is given back.
//!
//! Two identities, because users need both: a pod that is made again under its name gets its
//! address again (owner), and the late goodbye of the old one must not free what the new one holds
//! (handle). The engine compares them and never looks inside; what a front wants to remember
//! beyond them goes into the attributes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Identity for giving (I3). A subject (pod, VM allocation, node) holds one address per part
/// (interface, capture) and pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    pub subject: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
}

impl Owner {
    pub fn new(subject: impl Into<String>, part: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            part: part.into(),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.subject)?;
        if self.part.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.part)
        }
    }
}

/// Identity for freeing (I6): a container id, an allocation id.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(String);

impl Handle {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Milliseconds since 1970, UTC. The core has no clock: time comes in with the request.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    pub fn plus(self, duration: std::time::Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

/// What is kept of one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub owner: Owner,
    pub handle: Handle,
    /// The front's own facts (node, pod UID, time of allocation). Opaque to the engine, kept by it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl Record {
    pub fn new(owner: Owner, handle: Handle) -> Self {
        Self {
            owner,
            handle,
            attributes: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(key.into(), value.into());
        self
    }

    /// Whether both name the same holder. Attributes do not count: some stores can't keep them.
    pub fn same_holder(&self, other: &Self) -> bool {
        self.owner == other.owner && self.handle == other.handle
    }

    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }
}
