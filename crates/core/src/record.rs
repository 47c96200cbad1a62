//! Who holds an address, and what releases it.
//!
//! There are two identities, because users need both: a pod that is created again under its name gets its address again
//! (owner), and a late DEL of its old container must not release what the new one holds (handle). The engine only
//! compares them; a front's own data goes into the attributes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Prefix of the owner and handle of an allocation by hand. No namespace and no container id contains a colon, so it is
/// never confused with a pod's.
const BY_HAND: &str = "by-hand:";

/// The maximum length of the name and the note of an allocation by hand.
const LONGEST: usize = 253;

/// Identity for allocation (I3). A subject (pod, VM allocation, node) holds one address per part (interface, capture)
/// and pool.
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

    /// The name that a person chose; `None` for a front's allocation.
    pub fn by_hand(&self) -> Option<&str> {
        self.subject.strip_prefix(BY_HAND)
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

/// Identity for release (I6): a container id, an allocation id.
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

/// Milliseconds since 1970, UTC. The core has no clock: time comes with the request.
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

/// The attribute that names a stage of an allocation: a VM that is being checked, or cleaned. A change names the stage
/// that it expects, so that only one of two that end the same stage succeeds. Absent in fronts without stages.
pub const STAGE: &str = "stage";

/// The attribute that names the owner's node, for fronts whose owners run on one.
pub const NODE: &str = "node";

/// What is stored for one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub owner: Owner,
    pub handle: Handle,
    /// The front's own data (node, pod UID, time of allocation). Opaque to the engine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl Record {
    /// The attribute with the note of the person who allocated an address by hand.
    pub const NOTE: &'static str = "note";

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

    /// An allocation by hand: it has no pod and stays until a person releases it.
    pub fn by_hand(
        name: &str,
        part: impl Into<String>,
        note: Option<&str>,
    ) -> Result<Self, ByHandError> {
        let plain = |text: &str| !text.chars().any(char::is_control) && text.len() <= LONGEST;
        if name.is_empty() || name.contains(char::is_whitespace) || !plain(name) {
            return Err(ByHandError::Name(name.escape_debug().to_string()));
        }
        let subject = format!("{BY_HAND}{name}");
        let record = Self::new(Owner::new(&subject, part), Handle::new(&subject));
        match note.map(str::trim) {
            None | Some("") => Ok(record),
            Some(note) if plain(note) => Ok(record.with(Self::NOTE, note)),
            Some(note) => Err(ByHandError::Note(note.escape_debug().to_string())),
        }
    }

    pub fn is_by_hand(&self) -> bool {
        self.owner.by_hand().is_some()
    }

    pub fn note(&self) -> Option<&str> {
        self.attribute(Self::NOTE)
    }

    /// Whether both name the same holder in the same [`STAGE`]. Other attributes are ignored: some stores can't keep
    /// them.
    pub fn same_holder(&self, other: &Self) -> bool {
        self.owner == other.owner
            && self.handle == other.handle
            && self.attribute(STAGE) == other.attribute(STAGE)
    }

    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }
}

/// A name or a note that a store could not return unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ByHandError {
    #[error(
        "owner `{0}`: use a name of 1 to {LONGEST} bytes without spaces, such as default/printer"
    )]
    Name(String),
    #[error("note `{0}`: use one line of at most {LONGEST} bytes")]
    Note(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_by_hand_is_known_by_its_owner() {
        let record = Record::by_hand("default/printer", "net1", Some(" second floor ")).unwrap();
        assert_eq!(record.owner.by_hand(), Some("default/printer"));
        assert_eq!(record.note(), Some("second floor"));
        assert!(record.is_by_hand());
        assert!(
            !Record::new(Owner::new("default/printer", "net1"), Handle::new("c1")).is_by_hand()
        );
        let unnoted = Record::by_hand("printer", "", Some(" ")).unwrap();
        assert_eq!(unnoted.note(), None);
    }

    #[test]
    fn a_name_or_note_that_would_not_survive_a_store_is_refused() {
        for name in ["", "a b", "a\nb", &"x".repeat(254)] {
            assert!(Record::by_hand(name, "", None).is_err(), "{name:?}");
        }
        for note in ["a\nb", &"x".repeat(254)] {
            assert!(Record::by_hand("a", "", Some(note)).is_err(), "{note:?}");
        }
    }
}
