//! The state that a pool's object was read at, as a [`Version`] carries it to the next commit.
//!
//! A commit guards each address by itself and needs no resourceVersion. What it does need to know
//! without reading again: whether the object exists (else it is created), whether the API server
//! still keeps managedFields (else they need not be ended), which addresses cooled down
//! (no other may have been added since, I10), and whether an entry is where a test for its address
//! would not find it. All of it follows from the state alone, so equal versions are equal states.

use berth_core::Change;
use berth_core::slice::range_mode::Exclusion;
use serde_json::Value;

use berth_ledger::Version;
use berth_ledger::object::Cooldowns;

/// The annotation that keeps resting addresses: foreign programs leave annotations alone.
pub(super) const RESTING: &str = "berth.dev/resting";

/// The annotation of a pool whose range is given from node slices: nothing is claimed in the pool itself.
pub(super) const SLICED: &str = "berth.dev/sliced";

/// The annotation of a pool of whose range a controller assigns slices: nothing is claimed in it that no reservation guards.
pub(super) const ASSIGNED: &str = "berth.dev/assigned";

/// The annotation of a pool of whose range assigned slices gave without reservations: nothing is claimed in it.
pub(super) const UNRESERVED: &str = "berth.dev/unreserved";

/// The annotation that closes a pool so.
pub(super) const fn annotation(bar: Exclusion) -> &'static str {
    match bar {
        Exclusion::Assigned => ASSIGNED,
        Exclusion::Unreserved => UNRESERVED,
    }
}

/// The attribute of a record that names the node its container runs on. An entry keeps it as the field of that name, a
/// reservation as the annotation [`NODE_ANNOTATION`]. Either may be absent: whereabouts writes neither, its own
/// definition of IPPools prunes the field, and a large pool is written without it.
pub const NODE: &str = berth_core::NODE;

/// The annotation of a reservation that names the node. A definition of the kind can't prune it.
pub const NODE_ANNOTATION: &str = "berth.dev/node";

/// The attribute of a record that is claimed without a reservation. No object keeps it.
pub const UNCHECKED: &str = "unchecked";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// Not a version of this ledger: read first.
    Unknown,
    Absent,
    At(Stamp),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub resource_version: String,
    /// Counts the changes of the spec: tells whether others wrote between two of ours.
    pub generation: i64,
    /// managedFields are there: a third of the object's size and half the cost of a write.
    pub tracked: bool,
    pub notes: Notes,
    /// Some entry has a key that means an address without being its plain offset (`007`).
    pub odd: bool,
    /// The range is given from node slices.
    pub sliced: bool,
    /// Slices of the range are assigned.
    pub assigned: bool,
    /// They gave without reservations.
    pub unreserved: bool,
}

/// The annotations that must not be there when the changes are made.
pub(super) fn barriers(changes: &[Change]) -> impl Iterator<Item = &'static str> {
    let claimed = changes.iter().filter_map(|change| match change {
        Change::Allocate { record, .. } => Some(record),
        _ => None,
    });
    let any = claimed.clone().next().is_some();
    let unchecked = claimed
        .clone()
        .any(|one| one.attribute(UNCHECKED).is_some());
    let bars = Exclusion::before(!unchecked)
        .iter()
        .copied()
        .map(annotation);
    std::iter::once(SLICED).chain(bars).filter(move |_| any)
}

/// What the object's annotations say about resting addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notes {
    /// There are no annotations at all.
    Bare,
    /// There are some, and none of ours.
    Without,
    Resting(String),
}

impl Notes {
    pub fn read(metadata: &Value) -> Result<Self, String> {
        Ok(match metadata.get("annotations") {
            None | Some(Value::Null) => Self::Bare,
            Some(annotations) => match annotations.get(RESTING) {
                None => Self::Without,
                Some(Value::String(text)) => Self::Resting(text.clone()),
                Some(_) => return Err(format!("the annotation {RESTING} is no text")),
            },
        })
    }

    /// The cooldowns that they keep.
    pub fn cooldowns(&self) -> Cooldowns {
        let text = match self {
            Self::Resting(text) => Some(text.as_str()),
            Self::Bare | Self::Without => None,
        };
        Cooldowns::read(text, &format!("annotation {RESTING}"))
    }
}

impl Stamp {
    /// Reads an object's metadata.
    pub fn read(object: &Value) -> Result<Self, String> {
        let metadata = &object["metadata"];
        let resource_version = metadata["resourceVersion"]
            .as_str()
            .ok_or("metadata.resourceVersion is missing")?;
        let notes = Notes::read(metadata)?;
        let tracked = metadata["managedFields"]
            .as_array()
            .is_some_and(|fields| !fields.is_empty());
        Ok(Self {
            resource_version: resource_version.to_owned(),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            tracked,
            notes,
            odd: false,
            sliced: metadata["annotations"].get(SLICED).is_some(),
            assigned: metadata["annotations"].get(ASSIGNED).is_some(),
            unreserved: metadata["annotations"].get(UNRESERVED).is_some(),
        })
    }

    /// Whether the pool does not take such changes: they have to go elsewhere.
    pub fn bars(&self, changes: &[Change]) -> bool {
        barriers(changes).any(|mark| self.carries(mark))
    }

    pub fn carries(&self, mark: &str) -> bool {
        match mark {
            SLICED => self.sliced,
            ASSIGNED => self.assigned,
            UNRESERVED => self.unreserved,
            _ => false,
        }
    }
}

impl Base {
    pub fn is_at(&self, stamp: &Stamp) -> bool {
        matches!(self, Self::At(known) if known.resource_version == stamp.resource_version)
    }
}

impl From<&Base> for Version {
    fn from(base: &Base) -> Self {
        match base {
            Base::Unknown => Self::default(),
            Base::Absent => Self::absent(),
            Base::At(stamp) => Self::with_state(&stamp.resource_version, stamp.clone()),
        }
    }
}

impl From<&Version> for Base {
    fn from(version: &Version) -> Self {
        match version.state::<Stamp>() {
            _ if version.is_absent() => Self::Absent,
            Some(stamp) => Self::At(stamp.clone()),
            None => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_version_gives_back_what_was_known() {
        for notes in [
            Notes::Bare,
            Notes::Without,
            Notes::Resting(r#"{"7":{"owner":{"subject":"a/b"}}}"#.into()),
        ] {
            for (tracked, odd) in [(true, true), (true, false), (false, true), (false, false)] {
                let base = Base::At(Stamp {
                    resource_version: "4711".into(),
                    generation: 12,
                    tracked,
                    notes: notes.clone(),
                    odd,
                    sliced: odd != tracked,
                    assigned: odd,
                    unreserved: tracked,
                });
                assert_eq!(Base::from(&Version::from(&base)), base);
                assert_eq!(Base::from(&Version::from(&base).merged()), base);
            }
        }
        for base in [Base::Absent, Base::Unknown] {
            assert_eq!(Base::from(&Version::from(&base)), base);
        }
        assert_eq!(Base::from(&Version::new("17")), Base::Unknown);
        let other_ledgers = Version::with_state("17", "state of another ledger");
        assert_eq!(Base::from(&other_ledgers), Base::Unknown);
    }

    #[test]
    fn metadata_is_read_as_it_is() {
        let read = |metadata: Value| Stamp::read(&json!({ "metadata": metadata }));
        let bare = read(json!({ "resourceVersion": "7" })).unwrap();
        assert_eq!((bare.tracked, bare.notes), (false, Notes::Bare));
        let tracked = read(json!({
            "resourceVersion": "7",
            "managedFields": [{ "manager": "x" }],
            "annotations": { "a": "b" },
        }))
        .unwrap();
        assert_eq!((tracked.tracked, tracked.notes), (true, Notes::Without));
        let resting = read(json!({ "resourceVersion": "7", "annotations": { RESTING: "{}" } }));
        assert_eq!(resting.unwrap().notes, Notes::Resting("{}".into()));
        assert!(read(json!({})).unwrap_err().contains("resourceVersion"));
    }
}
