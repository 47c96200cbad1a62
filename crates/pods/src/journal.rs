//! What this node was given, by network: kept on the node, beside the cluster's pools.
//!
//! A pool in the cluster says which pod holds an address and not through which network or on which node. CNI GC may
//! free only what is of its network and of this node: that is proven by this journal and by nothing else (I4).
//! It proves, it does not hold: an entry that is missing (written by whereabouts, or without an agent) is left
//! to the sweep over the cluster's pods; one that is stale leads to a record that has another holder by now, which
//! is not freed (I6). So its own failures are logged and change no answer.

use std::sync::Arc;
use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{
    Address, Answer, Claim, Handle, Prefix, Record, Refusal, Release, Request, Space, Want,
};
use berth_desk::{DeskError, DeskMetrics, DeskSettings, Desks};
use berth_ledger::{LedgerError, PoolKey, SharedLedger};
use berth_slices::sliced::{is_of_plain, is_sliced, plain_name};

use crate::attachment::attribute;

/// The node's own notes about its attachments.
#[derive(Debug)]
pub struct Journal {
    desks: Desks,
}

/// An address that this node was given, and the pool that it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub pool: PoolKey,
    pub address: Address,
    pub record: Record,
}

impl Journal {
    /// A journal in the node's own ledger.
    pub fn new(ledger: SharedLedger) -> Journal {
        Journal {
            desks: Desks::new(ledger, DeskSettings::default(), DeskMetrics::default()),
        }
    }

    /// Notes what a call was given, all in one commit; false if that failed.
    pub(crate) async fn note(
        &self,
        network: &str,
        record: &Record,
        given: &[(PoolKey, Address)],
    ) -> bool {
        let wants = given
            .iter()
            .map(|(_, address)| Want::exactly(Arc::new(Space::only(*address)), *address));
        let mut record = record.clone();
        for (pool, address) in given {
            record = record.with(place(*address), written(pool));
        }
        let claim = Claim {
            record,
            wants: wants.collect(),
        };
        // The pool has just given these addresses: whoever the journal still has at one of them is history.
        for _ in 0..=given.len() {
            match self.ask(network, Request::Claim(claim.clone())).await {
                Ok(Answer::Refused(Refusal::Held { address, .. })) => {
                    self.forget_at(network, address).await;
                }
                Ok(_) => return true,
                Err(error) => {
                    tracing::warn!(network, %error, "the node's journal misses an ADD; GC leaves it to the sweep");
                    return false;
                }
            }
        }
        tracing::warn!(network, owner = %claim.record.owner, "the node's journal misses an ADD; GC leaves it to the sweep");
        false
    }

    async fn forget_at(&self, network: &str, address: Address) {
        let now = self.desks.ledger().load(&pool(network)).await;
        if let Some(stale) = now.ok().and_then(|now| now.pool.get(address).cloned()) {
            self.forget_one(network, address, &stale).await;
        }
    }

    /// Drops the notes about an interface of a container.
    pub(crate) async fn forget(&self, network: &str, handle: &Handle, ifname: &str) {
        let selector = Selector::Handle {
            handle: handle.clone(),
            part: Some(ifname.to_owned()),
        };
        let release = Release {
            selector,
            rest: Duration::ZERO,
        };
        if let Err(error) = self.ask(network, Request::Release(release)).await {
            tracing::warn!(network, %error, "the node's journal keeps a stale entry");
        }
    }

    /// Drops the note about one address, if that holder's.
    pub(crate) async fn forget_one(&self, network: &str, address: Address, holder: &Record) {
        let selector = Selector::Address {
            address,
            holder: holder.clone(),
        };
        let release = Release {
            selector,
            rest: Duration::ZERO,
        };
        if let Err(error) = self.ask(network, Request::Release(release)).await {
            tracing::warn!(network, %error, "the node's journal keeps a stale entry");
        }
    }

    /// Everything that is noted, with the network that it is of.
    pub async fn all(&self) -> Result<Vec<(String, Entry)>, LedgerError> {
        let mut all = Vec::new();
        for pool in self.desks.ledger().pools().await? {
            let Some(network) = pool.name.strip_prefix(POOLS) else {
                continue;
            };
            let entries = self.entries(network).await?;
            all.extend(entries.into_iter().map(|entry| (network.to_owned(), entry)));
        }
        Ok(all)
    }

    /// What this node has given from slices, or holds there for whoever gave it: their pools need no notes. What the plain pool
    /// has of them is judged there, once for all nodes.
    pub async fn of_slices(&self) -> Result<Vec<(String, Entry)>, LedgerError> {
        let mut all = Vec::new();
        for pool in self.desks.ledger().pools().await? {
            if !is_sliced(&pool) {
                continue;
            }
            let now = self.desks.ledger().load(&pool).await?;
            let plain = plain_name(&pool.name).to_owned();
            let records = now.pool.records();
            let own = records.filter(|(_, record)| !is_of_plain(record));
            all.extend(own.map(|(address, record)| {
                let network = record.attribute(attribute::NETWORK).unwrap_or(&plain);
                let entry = Entry {
                    pool: pool.clone(),
                    address,
                    record: record.clone(),
                };
                (network.to_owned(), entry)
            }));
        }
        Ok(all)
    }

    /// Everything that is noted of a network.
    pub async fn entries(&self, network: &str) -> Result<Vec<Entry>, LedgerError> {
        let now = self.desks.ledger().load(&pool(network)).await?;
        let entry = |(address, record): (Address, &Record)| {
            Some(Entry {
                pool: read(record.attribute(&place(address))?)?,
                address,
                record: record.clone(),
            })
        };
        Ok(now.pool.records().filter_map(entry).collect())
    }

    async fn ask(&self, network: &str, request: Request) -> Result<Answer, DeskError> {
        self.desks.of(&pool(network)).submit(request).await
    }
}

/// What the names of the journal's pools begin with: no range's pool has a slash in its name.
pub(crate) const POOLS: &str = "node/";

fn pool(network: &str) -> PoolKey {
    PoolKey::named(format!("{POOLS}{network}"))
}

/// The attribute that says which pool an address is of.
fn place(address: Address) -> String {
    format!("{}/{address}", attribute::POOL)
}

fn written(pool: &PoolKey) -> String {
    let network = pool.network.map(|network| network.to_string());
    format!("{} {}", pool.name, network.unwrap_or_default())
}

fn read(text: &str) -> Option<PoolKey> {
    let (name, network) = text.split_once(' ')?;
    let network: Option<Prefix> = match network {
        "" => None,
        network => Some(network.parse().ok()?),
    };
    Some(PoolKey {
        name: name.to_owned(),
        network,
    })
}

#[cfg(test)]
mod tests {
    use berth_core::Owner;
    use berth_ledger::MemoryLedger;

    use super::*;

    #[tokio::test]
    async fn notes_read_back_by_network_until_they_are_forgotten() {
        let journal = Journal::new(Arc::new(MemoryLedger::new()));
        let pool = |range: &str| PoolKey::of_network(range, range.parse().unwrap());
        let record = Record::new(Owner::new("ns/p", "net1"), Handle::new("c1"));
        let given = [
            (pool("10.0.0.0/24"), "10.0.0.1".parse().unwrap()),
            (pool("fd00::/64"), "fd00::1".parse().unwrap()),
        ];
        journal.note("blue", &record, &given).await;
        let entries = journal.entries("blue").await.unwrap();
        let found: Vec<(PoolKey, Address)> = entries
            .iter()
            .map(|entry| (entry.pool.clone(), entry.address))
            .collect();
        assert_eq!(found, given);
        assert!(
            entries
                .iter()
                .all(|entry| entry.record.same_holder(&record))
        );
        assert_eq!(journal.entries("green").await.unwrap(), []);
        journal.forget("blue", &Handle::new("c1"), "net2").await;
        assert_eq!(journal.entries("blue").await.unwrap().len(), 2);
        journal.forget("blue", &Handle::new("c1"), "net1").await;
        assert_eq!(journal.entries("blue").await.unwrap(), []);
    }

    /// A DEL that never came must not keep the next holder's ADD out of the journal.
    #[tokio::test]
    async fn the_newest_holder_of_an_address_is_the_one_that_is_noted() {
        let journal = Journal::new(Arc::new(MemoryLedger::new()));
        let pool = PoolKey::of_network("10.0.0.0-24", "10.0.0.0/24".parse().unwrap());
        let given = [
            (pool.clone(), "10.0.0.1".parse().unwrap()),
            (pool, "10.0.0.2".parse().unwrap()),
        ];
        let record = |pod: &str| Record::new(Owner::new(pod, "net1"), Handle::new(pod));
        journal.note("blue", &record("ns/old"), &given[..1]).await;
        journal.note("blue", &record("ns/older"), &given[1..]).await;
        journal.note("blue", &record("ns/new"), &given).await;
        let noted = journal.all().await.unwrap();
        assert_eq!(noted.len(), 2);
        for (network, entry) in noted {
            assert_eq!(network, "blue");
            assert_eq!(entry.record.owner.subject, "ns/new");
        }
    }
}
