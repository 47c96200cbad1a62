//! A kind of objects that a front keeps its pools in.

use std::sync::Arc;

use berth_desk::{CommonDesk, DeskMetrics, DeskSettings, Desks};
use berth_gather::{Owners, PoolKind, Route};
use berth_ledger::SharedLedger;
use berth_ledger::kube::Connection;

use crate::clusters::Cluster;

/// What the engine has to know of a kind: as data, so that a list of kinds is one line each.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The objects, and the right that a node must have to write them.
    pub pool: PoolKind,
    /// Whose records the pools keep.
    pub owners: Owners,
    /// Reads and writes the pools of a cluster.
    pub ledger: fn(&Connection) -> SharedLedger,
}

impl Kind {
    /// The desks of a node: each asks the leader's desk first, where the node knows one.
    pub fn desks(&self, cluster: &Cluster, metrics: DeskMetrics) -> Desks {
        let leader = cluster.leader.as_ref();
        let settings = DeskSettings {
            common: leader.map(|leader| Arc::new(leader.of_kind(self.pool)) as Arc<dyn CommonDesk>),
            apart: true,
            ..DeskSettings::default()
        };
        Desks::new((self.ledger)(&cluster.connection), settings, metrics)
    }

    /// The leader's desks for this kind, for pools that are there.
    pub fn route(
        &self,
        connection: &Connection,
        settings: &DeskSettings,
        metrics: &DeskMetrics,
    ) -> Route {
        let ledger = (self.ledger)(connection);
        let read = SharedLedger::clone(&ledger);
        Route {
            kind: self.pool,
            owners: self.owners,
            desks: Desks::new(ledger, settings.clone(), metrics.clone()),
            admits: Arc::new(move |pool| {
                let read = SharedLedger::clone(&read);
                Box::pin(async move { read.load(&pool).await.is_ok() })
            }),
        }
    }
}
