//! Why a VM pool did not do what it was asked. A variant is a decision of the caller.

use std::net::IpAddr;
use std::sync::Arc;

use berth_desk::DeskError;
use berth_ledger::LedgerError;
use thiserror::Error;

use crate::vm::VmError;

#[derive(Debug, Error)]
pub enum PoolError {
    /// Expected when demand is larger than supply: wait for a VM, or add some.
    #[error("no available IPs in pool{}", unheard(.silent))]
    Exhausted {
        /// Free VMs that do not answer.
        silent: Vec<IpAddr>,
    },
    #[error("{field}: {value:?} is not {right}")]
    Invalid {
        field: &'static str,
        value: String,
        right: &'static str,
    },
    /// The state was not read yet since the start.
    #[error("the VM pools are not open yet: {why}")]
    Starting { why: String },
    #[error("there is no pool {name:?}; there are {}", .known.join(", "))]
    UnknownPool { name: String, known: Vec<String> },
    #[error("there is no allocation {0:?}")]
    UnknownAllocation(String),
    #[error("nobody has {0}")]
    UnknownIp(IpAddr),
    /// The same ID asks again while its VM is still being cleaned: it comes back in a while.
    #[error("allocation {id:?} was given back and its VM {ip} is being cleaned")]
    BeingCleaned { id: String, ip: IpAddr },
    /// The VM itself failed. The allocation is unchanged.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The state can't be read or written now. Nothing was changed; later it may work.
    #[error(transparent)]
    Desk(#[from] DeskError),
    #[error(transparent)]
    Ledger(Arc<LedgerError>),
}

impl From<LedgerError> for PoolError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(Arc::new(error))
    }
}

impl PoolError {
    /// The ledger's error, where that is the reason.
    pub fn ledger(&self) -> Option<&LedgerError> {
        match self {
            Self::Desk(error) => error.ledger(),
            Self::Ledger(error) => Some(error),
            _ => None,
        }
    }
}

fn unheard(ips: &[IpAddr]) -> String {
    let few: Vec<String> = ips.iter().take(5).map(IpAddr::to_string).collect();
    match ips.len() {
        0 => String::new(),
        n if n > few.len() => format!(": {n} VMs do not answer ({}, ...)", few.join(", ")),
        n => format!(": {n} VMs do not answer ({})", few.join(", ")),
    }
}
