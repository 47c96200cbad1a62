//! A kind of objects that a front keeps its pools in.

use std::sync::Arc;
use std::time::Duration;

use berth_desk::{DeskMetrics, DeskSettings, Desks, LeaderDesk};
use berth_kube::Connection;
use berth_leader::{MoveOf, Owners, PoolKind, Route};
use berth_ledger::SharedLedger;

use crate::clusters::Cluster;

/// What the engine has to know of a kind: as data, so that a list of kinds is one line each.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The objects, and the right that a node must have to write them.
    pub pool: PoolKind,
    /// Whose records the pools keep.
    pub owners: Owners,
    /// The least time between two writes of one pool by the leader's desk.
    pub linger: Duration,
    /// The move that a record is in; None where records of the kind do not move between nodes.
    pub move_of: Option<MoveOf>,
    /// Reads and writes the pools of a cluster.
    pub ledger: fn(&Connection) -> SharedLedger,
}

impl Kind {
    /// The desks of a node: each asks the leader's desk first, where the node knows one. All fronts of a process that ask
    /// for a kind share them.
    pub fn desks(&self, cluster: &Cluster, metrics: DeskMetrics) -> Desks {
        cluster.desks(self.pool.name(), || {
            let leader = cluster.leader.as_ref();
            let leader = leader.map(|leader| leader.of_kind(self.pool));
            let settings = DeskSettings {
                leader: leader.map(|leader| Arc::new(leader) as Arc<dyn LeaderDesk>),
                hold_back: true,
                ..DeskSettings::default()
            };
            Desks::new((self.ledger)(&cluster.connection), settings, metrics)
        })
    }

    /// The leader's desks for this kind, for pools that are there.
    pub fn route(
        &self,
        connection: &Connection,
        settings: &DeskSettings,
        metrics: &DeskMetrics,
    ) -> Route {
        let settings = DeskSettings {
            linger: self.linger,
            ..settings.clone()
        };
        let ledger = (self.ledger)(connection);
        let read = SharedLedger::clone(&ledger);
        Route {
            kind: self.pool,
            owners: self.owners,
            move_of: self.move_of,
            desks: Desks::new(ledger, settings, metrics.clone()),
            admits: Arc::new(move |pool| {
                let read = SharedLedger::clone(&read);
                Box::pin(async move { read.load(&pool).await.is_ok() })
            }),
        }
    }
}
