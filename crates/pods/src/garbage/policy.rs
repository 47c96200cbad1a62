//! What the collector needs to know about pods' addresses: what keeps one, how long it cools down, what ends with it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_collector::observed::{Held, PodRef, Sandbox};
use berth_collector::policy::Released;
use berth_collector::{Executor, Policy, QuorumReader, ReadError, SweepError};
use berth_core::{Address, Record};
use berth_kube::Connection;
use berth_ledger::{ClaimKey, ClaimKind, SharedRecordLedger};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::events::Recorder;
use super::metrics::PodMetrics;
use super::plan::Reservation;
use super::pool_policies::{PoolPolicies, read_pool_policies};
use super::repair::Repair;
use super::reservation_index::expected_name;
use super::sandbox;
use super::survey::PodSurvey;
use crate::journal::Journal;
use crate::reserve::end;
use crate::sticky::Sticky;
use berth_networks::range_policy::Policies;

/// The policy of the pods front, for one cluster.
#[derive(Debug)]
pub struct PodPolicy {
    pub(super) ledger: SharedRecordLedger,
    pub(super) reader: QuorumReader,
    pub(super) sticky: Sticky,
    pub(super) recorder: Recorder,
    pub(super) metrics: PodMetrics,
    pub(super) journal: Option<Arc<Journal>>,
    range_policies: Policies,
    flat_places: Vec<PathBuf>,
    /// The boot that this node is in.
    boot: String,
    /// Addresses with several holders whose pods have an Event about it.
    reported: Mutex<HashSet<Address>>,
}

impl PodPolicy {
    pub(super) fn new(
        connection: &Connection,
        ledger: SharedRecordLedger,
        (node, boot): (&str, &str),
        journal: Option<Arc<Journal>>,
        flat_places: Vec<PathBuf>,
        metrics: PodMetrics,
    ) -> PodPolicy {
        let (client, timeout) = (&connection.client, connection.timeout);
        PodPolicy {
            ledger,
            reader: QuorumReader::new(connection),
            sticky: Sticky::new(connection),
            recorder: Recorder::new(client.clone(), node, timeout),
            metrics,
            journal,
            range_policies: Policies::new(connection),
            flat_places,
            boot: boot.to_owned(),
            reported: Mutex::default(),
        }
    }

    /// Replaces the addresses that are known to have several holders; returns the old ones.
    pub(super) fn set_reported(&self, now: HashSet<Address>) -> HashSet<Address> {
        let mut reported = self.reported.lock();
        std::mem::replace(&mut *reported, now)
    }

    pub(super) fn reported(&self) -> HashSet<Address> {
        let reported = self.reported.lock();
        reported.clone()
    }
}

#[async_trait]
impl Policy for PodPolicy {
    type PoolPolicies = PoolPolicies;
    type Ends = Vec<Reservation>;
    type Repair = Repair;
    type Survey = PodSurvey;

    fn sandbox(&self, record: &Record) -> Sandbox {
        sandbox::of(record, &self.boot)
    }

    async fn survey(&self) -> Result<PodSurvey, SweepError> {
        PodSurvey::begin(self).await
    }

    async fn pool_policies(&self) -> Result<PoolPolicies, ReadError> {
        read_pool_policies(&self.reader, Some(&self.range_policies), &self.flat_places).await
    }

    /// A StatefulSet or an IPAMClaim may keep it.
    async fn keeps(&self, policies: &PoolPolicies, held: &Held) -> Result<bool, ReadError> {
        let Some(of_pool) = policies.of(&held.pool.name) else {
            return Ok(false);
        };
        let Some(pod) = PodRef::parse(&held.record.owner.subject) else {
            return Ok(false);
        };
        let names = of_pool.called();
        let retention = of_pool.retention;
        let kept = self.sticky.keeps(retention, &names, &pod, held.address);
        kept.await
    }

    fn cooldown(&self, policies: &PoolPolicies, held: &Held) -> Duration {
        let of_pool = policies.of(&held.pool.name);
        of_pool.map_or(Duration::ZERO, |of_pool| of_pool.cooldown)
    }

    /// Where no reservations were read, the entry's own is known by its name.
    fn ends(&self, held: &Held) -> Vec<Reservation> {
        let own = expected_name(held).map(|name| Reservation {
            key: ClaimKey::new(ClaimKind::Reservation, name),
            record: held.record.clone(),
        });
        own.into_iter().collect()
    }

    /// The reservations end after their entry: a pod of the same name that allocated the address again in between has
    /// written its own container into the reservation, which therefore stays.
    async fn released(&self, _: &Executor<Self>, released: Released<'_, Self>) {
        let held = released.held;
        let of_pool = released.policies.of(&held.pool.name);
        let network = held
            .note
            .network
            .as_deref()
            .or(of_pool.map(|of_pool| of_pool.network.as_str()))
            .unwrap_or(&held.pool.name);
        for reservation in released.ends {
            let place = (&held.pool, held.address);
            let judged = Record::new(reservation.record.owner.clone(), held.record.handle.clone());
            if let Err(error) = end(&*self.ledger, &reservation.key, place, &judged).await {
                // The address is free in its pool: the next sweep finds a reservation without an entry.
                tracing::warn!(reservation = %reservation.key, %error, "a reservation stays until the next sweep");
            }
        }
        if let Some(pod) = PodRef::parse(&held.record.owner.subject) {
            self.recorder
                .collected(&pod, released.pod_uid, held.address, network)
                .await;
        }
    }

    /// Reports on the pod that the address stays allocated for now.
    async fn failed(&self, held: &Held) {
        if let Some(pod) = PodRef::parse(&held.record.owner.subject) {
            self.recorder
                .failed(&pod, held.note.pod_uid.as_deref())
                .await;
        }
    }

    fn register(&self, registry: &mut Registry, prefix: &str) {
        self.metrics.register(registry, prefix);
    }

    /// The process that sweeps reports disputes.
    fn stand_by(&self) {
        self.metrics.disputes.set(0);
    }
}
