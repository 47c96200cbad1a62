//! Writes to claims, on their way to the API server and after it.
//!
//! A write that was sent arrives later, or after its sender has crashed and gone on: that is where protocols break. A
//! guard (resourceVersion) is modelled by its effect: every write that arrives dooms the others that were planned on what
//! it changed.

use berth_core::Prefix;
use berth_core::slice::elastic::{Claimed, Offer};
use berth_core::slice::{Epoch, NodeName};

use crate::machine::name;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// A name that is free: the claim. `back`: by a donor that takes a part back.
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
    /// Nothing to spare.
    Decline {
        parent: Prefix,
        to: usize,
    },
    Withdraw {
        parent: Prefix,
        child: Prefix,
    },
    /// The holder's word that it is there: changes the object, so that older writes die.
    Stamp {
        range: Prefix,
        uid: u8,
    },
    /// The same, so that the rows of a part that is not offered may go.
    Touch {
        range: Prefix,
        part: Prefix,
    },
    /// The whole claim becomes another's.
    PassOn {
        range: Prefix,
        to: usize,
    },
    /// The controller's: its node seems to be gone. Nobody gives from it before its node has taken it up again.
    Recall {
        range: Prefix,
    },
    /// The controller's: its node is gone, parts of it are not.
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
    /// What it was planned on is no longer so.
    pub doomed: bool,
    /// Whoever sent it waits for the answer; not after a crash.
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
            | Write::PassOn { range, .. }
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

/// What a write other than CREATE and DELETE makes of its claim.
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
        Write::PassOn { to, .. } => {
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
