//! A pool's numbers and problems.

use std::net::IpAddr;
use std::time::Instant;

use berth_core::{Address, Handle, Pool, Record};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::health::Fault;
use super::stage::Stage;
use super::{PoolError, Store, VmPool};

/// The numbers of a pool. `total` is the sum of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub pool: String,
    pub total: usize,
    pub available: usize,
    pub in_use: usize,
    pub quarantined: usize,
    /// Free VMs that are passed over because they did not answer.
    pub silent: Vec<IpAddr>,
    /// Free VMs that are passed over because they show a host key that is not allowed.
    #[serde(default)]
    pub untrusted: Vec<IpAddr>,
    /// Free VMs that are passed over because they refuse the login.
    #[serde(default)]
    pub locked: Vec<IpAddr>,
    /// Free VMs that are passed over because they still have user data: another pod may be using them.
    #[serde(default)]
    pub occupied: Vec<IpAddr>,
    /// Quarantined VMs whose last cleanup failed; it is tried again.
    pub uncleaned: Vec<IpAddr>,
    /// VMs with two allocations: another program broke the state.
    pub doubled: Vec<IpAddr>,
    /// This node's VMs from before a start in an unknown boot: it is unknown whether their pods live, so they were
    /// not deallocated.
    #[serde(default)]
    pub not_taken_back: Vec<IpAddr>,
    /// Entries of the state that are no allocation.
    pub unparsed: Vec<String>,
}

impl VmPool {
    pub async fn status(&self) -> Result<Status, PoolError> {
        let pool = self.load().await?;
        let status = self.count(&pool);
        let meters = &self.inner.meters;
        meters.counted(&status);
        match &self.inner.store {
            Store::ConfigMap(ledger) => {
                let key = &self.inner.key;
                meters.conflicts(ledger.conflicts(key));
                meters.foreign(ledger.foreign(key), ledger.unparsed(key));
            }
            Store::Local(_) => meters.conflicts(self.inner.desk.metrics().conflicts.get()),
        }
        Ok(status)
    }

    /// Periodic work: restores what another program erased, and releases VMs whose check was cut off.
    pub(crate) async fn maintain(&self) -> Result<(), PoolError> {
        let pool = self.load().await?;
        if let Store::ConfigMap(ledger) = &self.inner.store
            && ledger.is_owing(&self.inner.key)
        {
            ledger.repair(&self.inner.key).await?;
        }
        let now = Timestamp::now();
        for (address, record) in pool.records() {
            if let Stage::Checking(check) = Stage::read(record)
                && check.is_over(now)
            {
                self.undo_check(address, record).await?;
            }
        }
        self.forget_taken_back(&pool);
        Ok(())
    }

    fn count(&self, pool: &Pool) -> Status {
        let membership = self.inner.members.now();
        let held = pool.records().chain(pool.duplicate_holders());
        let quarantine = |record: &Record| Stage::read(record).quarantine();
        let (quarantined, in_use): (Vec<_>, Vec<_>) =
            held.partition(|(_, record)| quarantine(record).is_some());
        let free: Vec<Address> = match pool.listing() {
            Some(listing) => listing.to_vec(),
            None => membership
                .listed
                .iter()
                .copied()
                .filter(|a| !pool.is_held(*a))
                .collect(),
        };
        let failed = |record: &Record| quarantine(record)?.error;
        let uncleaned = quarantined
            .iter()
            .filter(|(_, record)| failed(record).is_some());
        let faults = self.inner.health.passed_over(Instant::now());
        let with = |fault: Fault| {
            let with = faults.iter().filter(|(_, found)| **found == fault);
            let ips = with.map(|(ip, _)| *ip);
            ips.filter(|ip| free.contains(&Address::from(*ip)))
                .collect()
        };
        Status {
            pool: self.name().into(),
            total: free.len() + in_use.len() + quarantined.len(),
            available: free.len(),
            in_use: in_use.len(),
            quarantined: quarantined.len(),
            silent: with(Fault::Silent),
            untrusted: with(Fault::HostKey),
            locked: with(Fault::Login),
            occupied: with(Fault::UserData),
            uncleaned: uncleaned.map(|(address, _)| (*address).into()).collect(),
            doubled: pool
                .duplicate_holders()
                .map(|(address, _)| address.into())
                .collect(),
            not_taken_back: self.not_taken_back(pool),
            unparsed: pool
                .unparsed()
                .iter()
                .map(|s| format!("{}: {}", s.key, s.why))
                .collect(),
        }
    }

    fn not_taken_back(&self, pool: &Pool) -> Vec<IpAddr> {
        let ids = self.inner.unknown_boot();
        let held = ids
            .iter()
            .filter_map(|id| pool.held_under(&Handle::new(id)).next());
        let held = held.filter(|(_, record)| Stage::read(record) == Stage::InUse);
        held.map(|(address, _)| address.into()).collect()
    }
}
