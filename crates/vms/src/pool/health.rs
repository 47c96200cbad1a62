//! VMs that failed their readiness check, why, and for how long they are passed over.
//!
//! Guarantees that a dead VM costs one timeout per period and not one per pod: each failure in a row doubles the
//! period, up to a bound, and one success resets it. Not kept over a restart.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::vm::VmError;
use parking_lot::{Mutex, MutexGuard};

/// Failures in a row double the time up to this factor.
const MOST: u32 = 16;

/// Why a free VM is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Silent,
    /// It shows a host key that is not on the list: another machine may be answering for it.
    HostKey,
    Login,
    /// Another pod may be using it.
    UserData,
}

impl Fault {
    pub(super) const fn of(error: &VmError) -> Self {
        match error {
            VmError::UnknownHostKey { .. } | VmError::AllowList { .. } | VmError::NoAllowList => {
                Self::HostKey
            }
            VmError::LoginRefused { .. } | VmError::PrivateKey { .. } => Self::Login,
            VmError::HasUserData { .. } => Self::UserData,
            _ => Self::Silent,
        }
    }

    /// Of several VMs.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Silent => "do not answer",
            Self::HostKey => "show a host key that is not allowed",
            Self::Login => "refuse the login",
            Self::UserData => "still have user data of another pod",
        }
    }
}

/// VMs with their faults.
pub(crate) type Faults = BTreeMap<IpAddr, Fault>;

#[derive(Debug)]
pub(super) struct Health {
    dead_for: Duration,
    silent: Mutex<BTreeMap<IpAddr, Silence>>,
}

#[derive(Debug, Clone, Copy)]
struct Silence {
    fault: Fault,
    failures: u32,
    until: Instant,
}

impl Health {
    pub(super) fn new(dead_for: Duration) -> Self {
        Self {
            dead_for,
            silent: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Silence>> {
        self.silent.lock()
    }

    pub(super) fn failed(&self, ip: IpAddr, fault: Fault, now: Instant) {
        let mut silent = self.lock();
        let failures = silent.get(&ip).map_or(1, |s| s.failures.saturating_add(1));
        let factor = 1u32.checked_shl(failures - 1).map_or(MOST, |f| f.min(MOST));
        let until = now + self.dead_for * factor;
        let silence = Silence {
            fault,
            failures,
            until,
        };
        silent.insert(ip, silence);
    }

    pub(super) fn answered(&self, ip: IpAddr) {
        self.lock().remove(&ip);
    }

    /// Those to be passed over now.
    pub(super) fn passed_over(&self, now: Instant) -> Faults {
        let silent = self.lock();
        let still = silent.iter().filter(|(_, silence)| silence.until > now);
        still.map(|(ip, silence)| (*ip, silence.fault)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_grows_with_each_failure_and_ends_with_an_answer() {
        let health = Health::new(Duration::from_secs(10));
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let over = |secs| health.passed_over(at(secs)).contains_key(&ip);
        health.failed(ip, Fault::Silent, at(0));
        assert!(over(9) && !over(10));
        health.failed(ip, Fault::Silent, at(10));
        assert!(over(29) && !over(30));
        for _ in 0..100 {
            health.failed(ip, Fault::Silent, at(30));
        }
        assert!(over(189) && !over(190), "never for ever");
        health.answered(ip);
        assert!(!over(30));
        health.failed(ip, Fault::Silent, at(40));
        assert!(over(49) && !over(50), "it starts small again");
    }
}
