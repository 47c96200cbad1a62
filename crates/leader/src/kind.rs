//! Kinds of pools that the leader's desk serves.
//!
//! A kind is named as a role names it (`ippools.whereabouts.cni.cncf.io`). It decides which desks serve a batch, which right
//! its sender must have, and whose records it may write.

use berth_core::Record;
use berth_desk::Desks;
use berth_kube::{Part, Resource, Verb};
use berth_ledger::object::{Codec, WriteAs};
use berth_whereabouts::IP_POOLS;

use crate::Admission;

/// A kind of pool, and the right to write it that a caller must have itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolKind {
    pub resource: &'static Resource,
    pub part: Part,
    pub verb: Verb,
}

impl PoolKind {
    /// whereabouts' IPPools: the kind of a batch that names none.
    pub const IP_POOLS: PoolKind = PoolKind {
        resource: &IP_POOLS,
        part: Part::Object,
        verb: Verb::Patch,
    };

    /// The kind of a codec, and the right that its ledger needs.
    pub fn of(codec: &impl Codec) -> PoolKind {
        PoolKind {
            resource: codec.resource(),
            part: codec.part(),
            verb: match codec.write_as() {
                WriteAs::Replace => Verb::Update,
                WriteAs::MergePatch => Verb::Patch,
            },
        }
    }

    pub fn name(&self) -> String {
        self.resource.name()
    }

    /// The resource that a SubjectAccessReview asks for, with its subresource.
    pub(crate) fn right(&self) -> (&'static str, Option<&'static str>) {
        let subresource = match self.part {
            Part::Object => None,
            Part::Status => Some("status"),
        };
        (self.resource.plural, subresource)
    }
}

/// Whose records the pools of a kind keep, and so which of them a node may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owners {
    /// Pods, as `namespace/pod`. A record goes over to the node that its pod is on.
    #[default]
    Pods,
    /// Nodes, as `node` or `node/...`; each record names its node as [`berth_core::NODE`] too. A node writes its own records
    /// alone, and none goes over.
    Nodes,
}

/// A move that a record is in: it stays the source's until the move is over, and both nodes carry it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The nodes.
    pub from: String,
    pub to: String,
    /// The name of the pod that the address moves to, in the owner's namespace.
    pub pod: String,
}

/// The move that a record is in, where records of the kind move.
pub type MoveOf = fn(&Record) -> Option<Moving>;

impl Moving {
    /// The move that either record is in, if the node has a part in it.
    pub(crate) fn of(move_of: Option<MoveOf>, records: [&Record; 2], node: &str) -> Option<Moving> {
        let mut moves = records.into_iter().filter_map(move_of?);
        moves.find(|moving| moving.from == node || moving.to == node)
    }
}

/// Where the batches of one kind go.
#[derive(Clone)]
pub struct Route {
    pub kind: PoolKind,
    pub owners: Owners,
    /// None: records of the kind do not move between nodes.
    pub move_of: Option<MoveOf>,
    /// On a ledger of that kind.
    pub desks: Desks,
    /// Which pools of the kind there may be.
    pub admits: Admission,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route")
            .field("kind", &self.kind)
            .field("owners", &self.owners)
            .finish_non_exhaustive()
    }
}
