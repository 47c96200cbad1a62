//! Why a request to a VM pool failed. A variant is a decision of the caller.
//!
//! Errors are logged: an ID or a pool's name that no allocation or pool could have is never shown whole.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_desk::DeskError;
use berth_ledger::LedgerError;
use thiserror::Error;

use super::allocation::shown;
use super::health::Fault;
use crate::vm::VmError;

#[derive(Debug, Error)]
pub enum PoolError {
    /// Expected when demand is larger than supply: wait for a VM, or add some.
    #[error("no available IPs in pool{}", by_fault(.faults))]
    Exhausted {
        /// Free VMs that failed their readiness check.
        faults: BTreeMap<IpAddr, Fault>,
    },
    /// No VM was found ready in time.
    #[error("no VM was ready within {limit:?}{}", by_fault(.faults))]
    TooLate {
        limit: Duration,
        faults: BTreeMap<IpAddr, Fault>,
    },
    #[error("{field}: {value:?} is not {right}")]
    Invalid {
        field: &'static str,
        value: String,
        right: &'static str,
    },
    #[error("the {what} is larger than {limit} bytes")]
    TooLarge { what: &'static str, limit: usize },
    /// The state has not been read since the start.
    #[error("the VM pools are not open yet: {why}")]
    Starting { why: String },
    #[error("there is no pool {:?}; there are {}", shown(.name), .known.join(", "))]
    UnknownPool { name: String, known: Vec<String> },
    #[error("there is no allocation {:?}", shown(.0))]
    UnknownAllocation(String),
    #[error("{0} is not allocated")]
    UnknownIp(IpAddr),
    /// The ID's VM is being checked for another request, which takes longer than this request may.
    #[error("the VM {ip} of allocation {:?} is still being checked", shown(.id))]
    BeingChecked { id: String, ip: IpAddr },
    /// The ID was deallocated while its VM was being checked: the request gets no VM.
    #[error("allocation {:?} was deallocated before its VM was ready", shown(.0))]
    Deallocated(String),
    /// The ID's VM is still being cleaned: retry later.
    #[error("allocation {:?} was deallocated and its VM {ip} is being cleaned", shown(.id))]
    BeingCleaned { id: String, ip: IpAddr },
    /// The VM itself failed. The allocation is unchanged.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The state can't be read or written now. Nothing was changed; a retry may succeed.
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
    /// The ledger's error, if that is the reason.
    pub fn ledger(&self) -> Option<&LedgerError> {
        match self {
            Self::Desk(error) => error.ledger(),
            Self::Ledger(error) => Some(error),
            _ => None,
        }
    }
}

/// `: 2 VMs do not answer (10.0.0.1, 10.0.0.2); 1 VMs ...`
fn by_fault(faults: &BTreeMap<IpAddr, Fault>) -> String {
    let mut groups: BTreeMap<Fault, Vec<String>> = BTreeMap::new();
    for (ip, fault) in faults {
        groups.entry(*fault).or_default().push(ip.to_string());
    }
    let texts = groups.iter().map(|(fault, ips)| {
        let few = ips.iter().take(5).map(String::as_str);
        let more = (ips.len() > 5).then_some("...");
        let listed: Vec<&str> = few.chain(more).collect();
        format!("{} VMs {} ({})", ips.len(), fault.text(), listed.join(", "))
    });
    let texts: Vec<String> = texts.collect();
    match texts.is_empty() {
        true => String::new(),
        false => format!(": {}", texts.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_groups_vms_by_fault() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut faults: BTreeMap<IpAddr, Fault> = (1..=7).map(|n| (ip(n), Fault::Silent)).collect();
        faults.insert(ip(9), Fault::HostKey);
        faults.insert(ip(8), Fault::UserData);
        assert_eq!(
            PoolError::Exhausted { faults }.to_string(),
            "no available IPs in pool: 7 VMs do not answer (10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5, ...); \
             1 VMs show a host key that is not allowed (10.0.0.9); 1 VMs still have user data of another pod (10.0.0.8)"
        );
    }
}
