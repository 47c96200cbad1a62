//! The mode of a range: who may allocate from it.
//!
//! It is one annotation of the range's plain pool; every change is a compare-and-set on its token. Every commit to
//! the plain pool tests the token in the same write.

use serde::{Deserialize, Serialize};

/// Names one setting of the mode. Random and not a counter: after the server was restored from a backup a counter
/// would repeat, and a commit that was planned under the older setting would succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u128);

/// Who may allocate from the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeKind {
    /// Everything is allocated in the plain pool; there are no slices.
    Plain,
    /// The controller assigns slices; none is claimed, and the plain pool is closed.
    Assigned,
    /// Nodes claim slices; the plain pool is closed.
    Sliced,
    /// No slice is claimed; the plain pool allocates what no slice covers and what nodes have yielded.
    Tight,
    /// As tight, and nodes return all their slices: the mode becomes plain when none is left.
    Leaving,
}

impl ModeKind {
    /// Whether the plain pool allocates at all.
    pub const fn opens_plain_pool(self) -> bool {
        matches!(self, Self::Plain | Self::Tight | Self::Leaving)
    }

    /// Whether nodes yield what they do not use.
    pub const fn is_yielding(self) -> bool {
        matches!(self, Self::Tight | Self::Leaving)
    }
}

/// A mode and the token of its setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mode {
    pub kind: ModeKind,
    pub token: Token,
}

impl Mode {
    pub const fn new(kind: ModeKind, token: Token) -> Self {
        Self { kind, token }
    }
}
