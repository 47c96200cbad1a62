//! What others hold in a slice that becomes this node's: taken into its pool before anything is given from the slice.
//!
//! Three sources, because none has everything: the plain pool (the range was shared before), the slice's published pool
//! (whereabouts gave from it, or this node's ledger was lost), and the addresses that this node's pods say they have
//! (given, and not yet published when the ledger was lost). What two of them say differently is reported; the address
//! is held in any case.

use std::sync::Arc;

use berth_core::{Address, Change, Handle, Owner, Pool, Prefix, Record};
use berth_ledger::{Ledger, LedgerError};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde::Deserialize;

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::sliced::{Mode, Sliced};

/// Where a record came from, if it is not this node's own.
pub(crate) const ORIGIN: &str = "origin";
/// The range's plain pool, where it is still kept.
pub(crate) const PLAIN: &str = "plain";

const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

impl SlicePool {
    /// Takes in everything that may be held in a slice that this node knows nothing of.
    pub async fn adopt(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        let published = of.published(&self.world.node, slice);
        let view = self.world.cluster.load(&published).await?;
        let mut found = entries(&view.pool, slice);
        {
            // What this process has put there and not taken off yet says nothing that its ledger does not.
            let publisher = self.publisher.lock().await;
            found.retain(|(address, record)| !publisher.has_put(slice, *address, record));
        }
        found.extend(self.pod_addresses(slice).await?);
        self.take_in(of, found).await?;
        self.learn(of, slice).await?;
        self.adopt_plain(of, slice).await
    }

    /// Takes in what the plain pool holds in a slice.
    pub async fn adopt_plain(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        let plain = self.world.cluster.load(&of.plain()).await?;
        self.adopt_entries(of, slice, &plain.pool).await
    }

    /// The same of a plain pool that was read after the slice was claimed.
    pub async fn adopt_entries(
        &self,
        of: &Arc<Sliced>,
        slice: Prefix,
        plain: &Pool,
    ) -> Result<(), SliceError> {
        self.note_plain(of, plain);
        let old = entries(plain, slice)
            .into_iter()
            .map(|(address, record)| (address, record.with(ORIGIN, PLAIN)));
        self.take_in(of, old.collect()).await?;
        Ok(())
    }

    /// Only a pool that was marked before, or that no network gives from, stays empty.
    pub fn note_plain(&self, of: &Sliced, plain: &Pool) {
        let closed = self.known_mark().is_some() || of.mode == Mode::Assigned;
        self.set_plain_is_empty(plain.is_empty() && closed);
    }

    /// Holds each address for whoever has it. Those that are held here for another are reported, and given back: what others
    /// have published of them stays (I7).
    pub async fn take_in(
        &self,
        of: &Arc<Sliced>,
        found: Vec<(Address, Record)>,
    ) -> Result<Vec<Address>, SliceError> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let claims = |pool: &Pool| -> Vec<Change> {
            let mut taken = std::collections::BTreeSet::new();
            found
                .iter()
                .filter(|(address, _)| !pool.is_held(*address) && taken.insert(*address))
                .map(|(address, record)| Change::Claim {
                    address: *address,
                    record: record.clone(),
                })
                .collect()
        };
        let taken = self.world.amend(&of.key(), claims).await?;
        if !taken.is_empty() {
            tracing::info!(range = %of.range, count = taken.len(), "addresses that others gave are held here too");
        }
        let now = self.world.local.load(&of.key()).await?;
        let mut disputed = Vec::new();
        for (address, record) in &found {
            let same = |held: &Record| held.owner.subject == record.owner.subject;
            if !now.pool.holders(*address).any(same) {
                let by = now.pool.get(*address).map(|held| held.owner.to_string());
                self.report_conflict(*address, &by.unwrap_or_default(), &record.owner);
                disputed.push(*address);
            }
        }
        Ok(disputed)
    }

    pub fn report_conflict(&self, address: Address, ours: &str, theirs: &Owner) {
        self.world
            .metrics
            .conflicts
            .get_or_create(&self.label())
            .inc();
        tracing::error!(%address, ours, %theirs, "an address of this node's slice has two holders; one of them has to go");
    }

    /// What the pods of this node say they have, on a quorum read.
    async fn pod_addresses(&self, slice: Prefix) -> Result<Vec<(Address, Record)>, LedgerError> {
        let pods: Api<Pod> = Api::all(self.world.connection.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={}", self.world.node));
        let unseen = |why: String| LedgerError::Unavailable {
            target: format!("pods of node {}", self.world.node),
            why,
            retry_after: None,
        };
        let listed = tokio::time::timeout(self.world.connection.timeout, pods.list(&params));
        let pods = match listed.await {
            Ok(Ok(pods)) => pods,
            Ok(Err(error)) => return Err(unseen(error.to_string())),
            Err(_) => return Err(unseen("no answer".to_owned())),
        };
        Ok(pods
            .items
            .iter()
            .flat_map(|pod| addresses(pod, slice))
            .collect())
    }
}

pub(crate) fn entries(pool: &Pool, slice: Prefix) -> Vec<(Address, Record)> {
    pool.records()
        .chain(pool.rivals())
        .filter(|(address, _)| slice.contains(*address))
        .map(|(address, record)| (address, record.clone()))
        .collect()
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Vec<String>,
}

fn addresses(pod: &Pod, slice: Prefix) -> Vec<(Address, Record)> {
    let meta = &pod.metadata;
    let ended = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
    let status = meta.annotations.as_ref().and_then(|all| all.get(STATUS));
    let (Some(namespace), Some(name), Some(status), false) =
        (&meta.namespace, &meta.name, status, ended)
    else {
        return Vec::new();
    };
    let attachments: Vec<Attachment> = serde_json::from_str(status).unwrap_or_default();
    let mut found = Vec::new();
    for attachment in attachments {
        let owner = Owner::new(format!("{namespace}/{name}"), attachment.interface);
        for ip in attachment.ips {
            let address = ip
                .split('/')
                .next()
                .and_then(|ip| ip.parse::<Address>().ok());
            if let Some(address) = address.filter(|address| slice.contains(*address)) {
                // Its container is not known: the pod's next ADD, or its end, settles that.
                let record = Record::new(owner.clone(), Handle::default());
                found.push((address, record));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pods_own_word_about_its_addresses() {
        let pod = |phase: &str| -> Pod {
            let status = r#"[{"name":"cbr0","ips":["10.244.0.9"],"default":true},
                {"name":"blue","interface":"net1","ips":["10.0.0.5","fd00::5"]}]"#;
            serde_json::from_value(json!({
                "metadata": { "namespace": "ns", "name": "p", "annotations": { STATUS: status } },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        let slice = "10.0.0.0/28".parse().unwrap();
        let found = addresses(&pod("Running"), slice);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0.to_string(), "10.0.0.5");
        assert_eq!(found[0].1.owner, Owner::new("ns/p", "net1"));
        assert!(addresses(&pod("Succeeded"), slice).is_empty());
        assert!(addresses(&Pod::default(), slice).is_empty());
    }
}
