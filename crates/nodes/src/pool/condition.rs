//! The condition `Available` of a NodeIPPool, in the proposal's words.
//!
//! Each message begins with the proposal's sentence, letter for letter, its placeholders filled in; details follow it.

use std::fmt;

use berth_core::{Address, Block};

/// The health of a pool: the first of these that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The spec can't be used; nothing is allocated.
    Invalid { why: String },
    /// A rebuild is under way.
    Reconciling,
    /// The status could not be read whole, and is being rebuilt from the enactments.
    Unsynchronized { why: String },
    /// Another pool has some of the addresses; nothing new is allocated.
    Overlapping { other: String, block: Block },
    /// An allocated address is seen where it should not be.
    Collision(Collision),
    /// A claim found no free address.
    Exhausted { claim: String },
    /// Nothing is wrong; `notes` go into the message.
    UpToDate { notes: Vec<String> },
}

/// One address in two places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collision {
    pub address: Address,
    pub node: String,
    pub interface: String,
    /// The other node, or the MAC address of what is no node.
    pub other: String,
}

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

impl Health {
    pub fn condition(&self) -> Condition {
        let (status, reason) = match self {
            Health::Invalid { .. } => ("False", "InvalidIPPool"),
            Health::Reconciling => ("Unknown", "ReconcilingPool"),
            Health::Unsynchronized { .. } => ("False", "UnsyncronizedIPPool"),
            Health::Overlapping { .. } => ("False", "OverlappingIPPool"),
            Health::Collision(_) => ("False", "IPCollision"),
            Health::Exhausted { .. } => ("False", "ExhaustedIPPool"),
            Health::UpToDate { .. } => ("True", "ReconciledPool"),
        };
        Condition {
            status,
            reason,
            message: self.to_string(),
        }
    }

    /// Whether addresses may be allocated to new owners. An address that an enactment names is taken back in any case but an
    /// unusable spec.
    pub fn allocates(&self) -> bool {
        Self::reason_allocates(self.condition().reason)
    }

    /// A reason as this program writes it; a label takes no other.
    pub fn known_reason(reason: &str) -> &'static str {
        const REASONS: [&str; 7] = [
            "InvalidIPPool",
            "ReconcilingPool",
            "UnsyncronizedIPPool",
            "OverlappingIPPool",
            "IPCollision",
            "ExhaustedIPPool",
            "ReconciledPool",
        ];
        let known = REASONS.into_iter().find(|known| *known == reason);
        known.unwrap_or("Unknown")
    }

    /// The same, by the reason of the condition in the object.
    pub fn reason_allocates(reason: &str) -> bool {
        matches!(reason, "ReconciledPool" | "ExhaustedIPPool" | "IPCollision")
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Invalid { why } => write!(f, "The pool can't be used. {why}"),
            Health::Reconciling => f.write_str("The pool is being updated"),
            Health::Unsynchronized { why } => write!(
                f,
                "Failed re constructing the IP pool, it may be not in sync with nodes. {why}"
            ),
            Health::Overlapping { other, block } => write!(
                f,
                "The NodeIPPool {other} is overlapping with this one. Both have {block}; nothing new is allocated from either"
            ),
            Health::Collision(Collision {
                address,
                node,
                interface,
                other,
            }) => write!(
                f,
                "The IP address {address} at node {node} and interface {interface} is is colliding with node {other}"
            ),
            Health::Exhausted { claim } => write!(
                f,
                "The IP pool has being depleted, manual intervention needed to modify NodeIPPool. There is no free address for {claim}"
            ),
            Health::UpToDate { notes } => {
                f.write_str("The pool is up to date")?;
                notes.iter().try_for_each(|note| write!(f, ". {note}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proposal's table, letter for letter.
    #[test]
    fn the_proposals_sentences_open_each_message() {
        let block = Block::parse("t", "10.0.0.1-10.0.0.9").unwrap();
        let collision = Collision {
            address: "10.10.10.8".parse().unwrap(),
            node: "node01".to_owned(),
            interface: "eth1".to_owned(),
            other: "node02".to_owned(),
        };
        let table = [
            (
                Health::Reconciling,
                "Unknown",
                "ReconcilingPool",
                "The pool is being updated",
            ),
            (
                Health::Exhausted {
                    claim: "node01".to_owned(),
                },
                "False",
                "ExhaustedIPPool",
                "The IP pool has being depleted, manual intervention needed to modify NodeIPPool.",
            ),
            (
                Health::Unsynchronized {
                    why: "x".to_owned(),
                },
                "False",
                "UnsyncronizedIPPool",
                "Failed re constructing the IP pool, it may be not in sync with nodes.",
            ),
            (
                Health::Overlapping {
                    other: "traffic-2".to_owned(),
                    block,
                },
                "False",
                "OverlappingIPPool",
                "The NodeIPPool traffic-2 is overlapping with this one.",
            ),
            (
                Health::Collision(collision),
                "False",
                "IPCollision",
                "The IP address 10.10.10.8 at node node01 and interface eth1 is is colliding with node node02",
            ),
            (
                Health::UpToDate { notes: Vec::new() },
                "True",
                "ReconciledPool",
                "The pool is up to date",
            ),
        ];
        for (health, status, reason, sentence) in table {
            let condition = health.condition();
            assert_eq!((condition.status, condition.reason), (status, reason));
            assert!(
                condition.message.starts_with(sentence),
                "{}",
                condition.message
            );
        }
        let fresh = Health::UpToDate { notes: Vec::new() }.condition();
        assert_eq!(fresh.message, "The pool is up to date");
    }
}
