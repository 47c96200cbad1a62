//! The changes that a plan is made of, and why a plan is refused.

use std::fmt;

use thiserror::Error;

/// The addresses of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    Known(String),
    /// Google chooses one when the internal range is reserved.
    Chosen(u8),
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Block::Known(cidr) => f.write_str(cidr),
            Block::Chosen(length) => write!(f, "the /{length} that Google chooses"),
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    ReserveInternalRange { name: String, prefix_length: u8 },
    AddSecondaryRange { name: String, block: Block },
    CreatePool { name: String, block: Block },
    UpdatePool { name: String, block: Block },
    DeletePool { name: String },
    RemoveSecondaryRange { name: String },
    ReleaseInternalRange { name: String },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::ReserveInternalRange {
                name,
                prefix_length,
            } => write!(f, "reserve internal range {name} (/{prefix_length})"),
            Step::AddSecondaryRange { name, block } => {
                write!(f, "add secondary range {name}: {block}")
            }
            Step::CreatePool { name, block } => write!(f, "create IPPool {name}: {block}"),
            Step::UpdatePool { name, block } => write!(f, "update IPPool {name} to {block}"),
            Step::DeletePool { name } => write!(f, "delete IPPool {name}"),
            Step::RemoveSecondaryRange { name } => write!(f, "remove secondary range {name}"),
            Step::ReleaseInternalRange { name } => write!(f, "release internal range {name}"),
        }
    }
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error(
        "the secondary range '{name}' is {found} already and is not linked to an internal range '{name}' of the same addresses: choose another name with --range-name"
    )]
    RangeTaken { name: String, found: String },
    #[error("the internal range '{name}' is {found}, which is not a /{wanted}: choose another name with --range-name, or --prefix-length {}", prefix_of(.found))]
    OtherLength {
        name: String,
        found: String,
        wanted: u8,
    },
    #[error(
        "the internal range '{name}' belongs to {found}, not to {wanted}: choose another name with --range-name"
    )]
    RangeElsewhere {
        name: String,
        found: String,
        wanted: String,
    },
    #[error(
        "the IPPool {pool} has cidr {found} and {allocations} allocations; it can't be changed to {wanted} while pods hold addresses of it"
    )]
    PoolInUse {
        pool: String,
        found: String,
        wanted: String,
        allocations: usize,
    },
    #[error("the IPPool {pool} has {allocations} allocations: delete their pods first")]
    Allocated { pool: String, allocations: usize },
    #[error(
        "the IPPool {pool} is of the subnet '{found}', not of '{wanted}': choose another name with --pool"
    )]
    OtherSubnet {
        pool: String,
        found: String,
        wanted: String,
    },
    #[error("--cidr {cidr} is not in the subnet's primary range {primary}")]
    NotPrimary { cidr: String, primary: String },
}

fn prefix_of(cidr: &str) -> String {
    cidr.rsplit('/').next().unwrap_or_default().to_owned()
}
