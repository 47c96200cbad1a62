//! Who uses the addresses of a slice, by quorum reads.
//!
//! Two sources: the slice's IPPool, whose entries count while their pod runs on the slice's node; and the pods that are
//! bound to that node and request the network, because an agent may have allocated an address that it has not published
//! yet. A pod never moves to another node, so one of the same name elsewhere is another pod. What can't be read or
//! judged counts as used (I4, I5).

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names;
use berth_collector::observed::NodeState;
use berth_collector::observed::{Phase, PodRef, PodState};
use berth_collector::quorum_reader::BoundPod;
use berth_collector::{QuorumReader, ReadError};
use berth_core::slice::assigned::LiveClaim;
use berth_core::slice::{Holding, NodeName};
use berth_core::{Pool, Prefix};
use berth_ledger::{Ledger, LedgerError, PoolKey, Snapshot, Version};
use berth_whereabouts::KubeLedger;
use futures::{StreamExt, TryStreamExt};

/// Concurrent reads of pools.
const AT_ONCE: usize = 16;

/// Why nothing could be read. The caller's only decision is to retry later.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    #[error(transparent)]
    ReadError(#[from] ReadError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What uses slices, and the pools that were read for it.
#[derive(Debug, Default)]
pub struct Use {
    pub live: BTreeMap<Prefix, Vec<LiveClaim>>,
    /// Slices that count as used because their pool can't be read, and why.
    pub unread: BTreeMap<Prefix, String>,
    /// Existing pools, at the version that they were judged at.
    pub pools: Vec<(PoolKey, Version)>,
}

impl Use {
    /// The pools of some of the slices.
    pub fn of(&self, slices: &BTreeSet<Prefix>) -> Vec<(PoolKey, Version)> {
        let pools = self.pools.iter();
        let of = pools.filter(|(key, _)| key.network.is_some_and(|slice| slices.contains(&slice)));
        of.cloned().collect()
    }
}

type Loaded = (Holding, PoolKey, Result<Snapshot, String>);

/// How a pod that requests a network relates to its node's slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Uses,
    /// It uses the slice once its interfaces exist.
    MayWait,
}

#[derive(Debug)]
pub struct UsageReader {
    pub reader: QuorumReader,
    pub ledger: KubeLedger,
}

impl UsageReader {
    /// Which of the nodes are gone: deleted or out of service.
    pub async fn gone(&self, nodes: BTreeSet<&NodeName>) -> Result<BTreeSet<NodeName>, ReadError> {
        let nodes: Vec<NodeName> = nodes.into_iter().cloned().collect();
        let reads = nodes.into_iter().map(|node| self.is_gone(node));
        let seen: Vec<Option<NodeName>> = futures::stream::iter(reads)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(seen.into_iter().flatten().collect())
    }

    async fn is_gone(&self, node: NodeName) -> Result<Option<NodeName>, ReadError> {
        let there = NodeState::Present {
            out_of_service: false,
        };
        let state = self.reader.node(node.as_str()).await?;
        Ok((state != there).then_some(node))
    }

    /// A slice's pool. An unreadable pool says nothing about other slices: that is the inner error.
    async fn load(&self, holding: Holding, key: PoolKey) -> Result<Loaded, LedgerError> {
        let snapshot = match self.ledger.load(&key).await {
            Err(error @ LedgerError::Unreadable { .. }) => Err(error.to_string()),
            loaded => Ok(loaded?),
        };
        Ok((holding, key, snapshot))
    }

    /// Pods that may run on the nodes.
    async fn bound(&self, nodes: BTreeSet<String>) -> Result<Vec<BoundPod>, ReadError> {
        let mut pods = self.reader.bound_pods(&nodes).await?;
        pods.retain(|pod| pod.phase == Phase::Open);
        Ok(pods)
    }

    /// Of the pods that request networks, those whose interfaces exist or may exist. Nothing shows that of a pod that
    /// waits for an address, and only a Ready node's report can be trusted.
    async fn connected(&self, pods: Vec<BoundPod>) -> Result<Vec<BoundPod>, ReadError> {
        let (mut connected, waiting): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|pod| pod.connected);
        let mut ready: BTreeMap<String, bool> = BTreeMap::new();
        for pod in waiting {
            let known = ready.get(&pod.node).copied();
            let well = match known {
                Some(well) => well,
                None => self.reader.node_is_ready(&pod.node).await?,
            };
            ready.insert(pod.node.clone(), well);
            if !well {
                connected.push(pod);
            }
        }
        Ok(connected)
    }

    /// Who uses the slices. `networks`: the possible network names of their pools. `definitions`: names of definitions;
    /// a pod that requests one of them uses its node's slice.
    pub async fn uses(
        &self,
        holdings: &[Holding],
        networks: &[String],
        definitions: &[String],
    ) -> Result<Use, UsageError> {
        self.uses_of(holdings, networks, definitions, Asking::Uses)
            .await
    }

    /// The same for slices that no definition wants: a pod that still waits for an address gets none of them, and may
    /// be waiting for their deletion.
    pub async fn last_uses(
        &self,
        holdings: &[Holding],
        networks: &[String],
        definitions: &[String],
    ) -> Result<Use, UsageError> {
        self.uses_of(holdings, networks, definitions, Asking::MayWait)
            .await
    }

    async fn uses_of(
        &self,
        holdings: &[Holding],
        networks: &[String],
        definitions: &[String],
        asking: Asking,
    ) -> Result<Use, UsageError> {
        let mut keys = Vec::new();
        for holding in holdings {
            for network in networks {
                let name = names::pool(network, holding.node.as_str(), holding.slice);
                let key = PoolKey::of_network(name, holding.slice);
                keys.push((holding.clone(), key));
            }
        }
        let loads = keys
            .into_iter()
            .map(|(holding, key)| self.load(holding, key));
        let loaded: Vec<Loaded> = futures::stream::iter(loads)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let mut found = Use::default();
        let pods: BTreeSet<PodRef> = loaded
            .iter()
            .filter_map(|(_, _, snapshot)| snapshot.as_ref().ok())
            .flat_map(|snapshot| subjects(&snapshot.pool))
            .collect();
        let states = self.reader.pods(pods).await?;
        for (holding, key, snapshot) in loaded {
            let Snapshot { pool, version } = match snapshot {
                Ok(snapshot) => snapshot,
                Err(why) => {
                    let unknown = LiveClaim {
                        pod: format!("({why})"),
                        address: None,
                    };
                    found.live.entry(holding.slice).or_default().push(unknown);
                    found.unread.insert(holding.slice, why);
                    continue;
                }
            };
            let claims = claims(&holding, &pool, |pod| states.get(pod));
            if !claims.is_empty() {
                found.live.entry(holding.slice).or_default().extend(claims);
            }
            found.pools.push((key, version));
        }
        if definitions.is_empty() {
            return Ok(found);
        }
        let nodes = holdings.iter().map(|holding| holding.node.to_string());
        let mut pods = self.bound(nodes.collect()).await?;
        pods.retain(|pod| definitions.iter().any(|name| pod.networks.contains(name)));
        if asking == Asking::MayWait {
            pods = self.connected(pods).await?;
        }
        for pod in pods {
            let of_node = |holding: &&Holding| holding.node.as_str() == pod.node;
            for holding in holdings.iter().filter(of_node) {
                let claims = found.live.entry(holding.slice).or_default();
                let name = pod.name.to_string();
                if claims.iter().all(|claim| claim.pod != name) {
                    claims.push(LiveClaim {
                        pod: name,
                        address: None,
                    });
                }
            }
        }
        Ok(found)
    }

    /// Deletes unused pools, if they are still at the judged version.
    pub async fn retire(&self, pools: &[(PoolKey, Version)]) -> Result<(), LedgerError> {
        for (key, version) in pools {
            self.ledger.retire(key, version).await?;
        }
        Ok(())
    }
}

fn subjects(pool: &Pool) -> Vec<PodRef> {
    let records = pool.records();
    records
        .filter_map(|(_, record)| PodRef::parse(&record.owner.subject))
        .collect()
}

/// The entries of a slice's pool that are in use.
fn claims<'a>(
    holding: &Holding,
    pool: &Pool,
    state: impl Fn(&PodRef) -> Option<&'a PodState>,
) -> Vec<LiveClaim> {
    let is_live = |subject: &str| {
        let Some(pod) = PodRef::parse(subject) else {
            return true;
        };
        match state(&pod) {
            None => true,
            Some(PodState::Absent) => false,
            Some(PodState::Present(pod)) => {
                pod.phase == Phase::Open && pod.node.as_deref() == Some(holding.node.as_str())
            }
        }
    };
    let records = pool.records().chain(pool.duplicate_holders());
    let entries = records
        .filter(|(_, record)| is_live(&record.owner.subject))
        .map(|(address, record)| LiveClaim {
            pod: record.owner.subject.clone(),
            address: Some(address),
        });
    let unparsed = pool.unparsed().iter().map(|entry| LiveClaim {
        pod: format!("(an entry that can't be read: {})", entry.key),
        address: None,
    });
    entries.chain(unparsed).collect()
}

#[cfg(test)]
mod tests {
    use berth_collector::observed::Pod;
    use berth_core::slice::Epoch;
    use berth_core::{Handle, Owner, Record};

    use super::*;

    fn mk_pod(node: &str, phase: Phase) -> PodState {
        PodState::Present(Pod {
            uids: vec!["u".into()],
            phase,
            node: Some(node.into()),
        })
    }

    #[test]
    fn an_entry_is_live_while_its_pod_may_run_on_the_slices_node() {
        let holding = Holding {
            slice: "10.0.0.0/26".parse().unwrap(),
            node: NodeName::new("n1"),
            epoch: Epoch(0),
        };
        let states = BTreeMap::from([
            (PodRef::new("ns", "runs"), mk_pod("n1", Phase::Open)),
            (PodRef::new("ns", "elsewhere"), mk_pod("n2", Phase::Open)),
            (PodRef::new("ns", "done"), mk_pod("n1", Phase::Succeeded)),
            (PodRef::new("ns", "gone"), PodState::Absent),
        ]);
        let live = |subject: &str| {
            let mut pool = Pool::new();
            let record = Record::new(Owner::new(subject, "net1"), Handle::new("c"));
            pool.restore("10.0.0.1".parse().unwrap(), record);
            !claims(&holding, &pool, |pod| states.get(pod)).is_empty()
        };
        assert!(live("ns/runs"));
        assert!(!live("ns/elsewhere") && !live("ns/done") && !live("ns/gone"));
        assert!(live("ns/unseen") && live("(unreadable)"));
    }
}
