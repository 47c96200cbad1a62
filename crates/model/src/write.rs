//! Writes to claims, on their way to the API server and after it.
//!
//! A write may arrive late, or after its sender has crashed and continued: that is where protocols break. A guard
//! (resourceVersion) is modelled by its effect: every write that arrives dooms those that were planned on an older
//! version.

use berth_core::Prefix;
use berth_core::slice::elastic::{Claimed, Offer};
use berth_core::slice::{Epoch, NodeName};

use crate::machine::name;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// Creates a claim whose name is free. `back`: by a donor that takes a part back.
    Create {
        range: Prefix,
        uid: u8,
        back: bool,
    },
    /// `frees`: by a donor that takes a part back.
    Delete {
        range: Prefix,
        frees: bool,
    },
    Want {
        parent: Prefix,
    },
    Offer {
        parent: Prefix,
        child: Prefix,
        to: usize,
    },
    /// The node has nothing to spare.
    Decline {
        parent: Prefix,
        to: usize,
    },
    Withdraw {
        parent: Prefix,
        child: Prefix,
    },
    /// The holder writes the object, so that older writes to it fail.
    Stamp {
        range: Prefix,
        uid: u8,
    },
    /// The same, so that the rows of a part that is not offered may be removed.
    Touch {
        range: Prefix,
        part: Prefix,
    },
    /// The whole claim becomes another node's.
    Transfer {
        range: Prefix,
        to: usize,
    },
    /// By the controller: its node seems to be gone. It is not allocated from before its node has written it again.
    Recall {
        range: Prefix,
    },
    /// By the controller: its node is gone, but other nodes have parts of it.
    Orphan {
        range: Prefix,
    },
    Inherit {
        range: Prefix,
        uid: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sent {
    pub write: Write,
    /// None: the controller.
    pub from: Option<usize>,
    /// Planned on a version that is no longer current.
    pub doomed: bool,
    /// Its sender waits for the answer; not after a crash.
    pub awaited: bool,
}

impl Write {
    /// The object that it writes.
    pub fn target(&self) -> Prefix {
        match self {
            Write::Create { range, .. }
            | Write::Delete { range, .. }
            | Write::Stamp { range, .. }
            | Write::Touch { range, .. }
            | Write::Transfer { range, .. }
            | Write::Recall { range }
            | Write::Orphan { range }
            | Write::Inherit { range, .. } => *range,
            Write::Want { parent }
            | Write::Offer { parent, .. }
            | Write::Decline { parent, .. }
            | Write::Withdraw { parent, .. } => *parent,
        }
    }

    /// All but the CREATE name the version that they were planned on.
    pub fn is_guarded(&self) -> bool {
        !matches!(self, Write::Create { .. })
    }
}

/// The claim after a write other than CREATE and DELETE.
pub fn change(claim: &mut Claimed, write: Write, from: Option<usize>) {
    match write {
        Write::Want { .. } => claim.wants.extend(from.map(name)),
        Write::Offer { child, to, .. } => {
            claim.wants.retain(|node| *node != name(to));
            claim.offers.push(Offer {
                range: child,
                node: name(to),
            });
            claim.offers.sort_unstable();
        }
        Write::Decline { to, .. } => claim.wants.retain(|node| *node != name(to)),
        Write::Withdraw { child, .. } => claim.offers.retain(|offer| offer.range != child),
        Write::Stamp { uid, .. } => {
            claim.node_uid = uid.to_string();
            claim.recalled = false;
        }
        Write::Recall { .. } => claim.recalled = true,
        Write::Transfer { to, .. } => {
            claim.node = name(to);
            claim.node_uid = String::new();
            claim.epoch = Epoch(claim.epoch.0 + 1);
            claim.offers.clear();
            claim.wants.clear();
            claim.recalled = false;
        }
        Write::Orphan { .. } => {
            claim.node = NodeName::new("");
            claim.epoch = Epoch(claim.epoch.0 + 1);
            claim.wants.clear();
            claim.recalled = false;
        }
        Write::Inherit { uid, .. } => {
            claim.node = from.map(name).unwrap_or(NodeName::new(""));
            claim.node_uid = uid.to_string();
            claim.epoch = Epoch(claim.epoch.0 + 1);
            claim.wants.clear();
        }
        Write::Create { .. } | Write::Delete { .. } | Write::Touch { .. } => {}
    }
}
