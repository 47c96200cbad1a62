//! Addresses of pods that are gone, found and freed.
//!
//! DEL frees an address when the runtime says so. This is for the times when it never does: the node crashed,
//! the pod was deleted by force, the agent or the API server was away, somebody wrote an entry by hand.
//!
//! Promises: an address is freed only on proof that its holder is gone (I4), seen twice with a grace period
//! between, the last time by a quorum read just before; the release names the holder that was judged (I6), so a
//! pod that took the entry over in between keeps it. Pools and reservations are repaired together.
//!
//! | file | part |
//! |---|---|
//! | [`facts`] | what is known of pods, nodes, entries and reservations |
//! | [`judge`] | whether one holder is gone |
//! | [`plan`] | what a look leads to |
//! | `pairing` | which reservation belongs to which entry |
//! | [`witness`], `watch`, `terms` | what the API server says of pods, nodes and networks |
//! | `sandbox` | whether a container's sandbox is still on this node |
//! | `local` | looks at this node's pods, on events |
//! | `sweep`, [`turn`] | looks at all pools, one agent at a time |
//! | `survey`, `reserved` | what a sweep reads, and how little of it is held |
//! | [`duplicates`], [`index`] | addresses that several owners have |
//! | `unheld` | what claims record and no pool holds |
//! | [`reboot`] | what a machine by itself does at its start |
//! | `hands`, `events` | the last look, the deed, the news of it |

mod clock;
pub mod duplicates;
mod events;
pub mod facts;
mod hands;
pub mod index;
pub mod judge;
mod local;
mod metrics;
pub(crate) mod pairing;
pub mod plan;
pub mod reboot;
mod reserved;
pub(crate) mod sandbox;
mod survey;
mod sweep;
mod task;
pub mod terms;
pub mod turn;
mod unheld;
mod watch;
pub mod witness;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_desk::{DeskMetrics, DeskSettings, Desks};
use berth_ledger::SharedLedger;
use berth_ledger::kube::Connection;

pub use metrics::GarbageMetrics;
pub use plan::Patience;
pub use task::CollectTask;

use crate::config::flat;
use crate::journal::Journal;
use crate::policy::Policies;
use crate::sticky::Sticky;
use clock::Clock;
use events::Recorder;
use hands::Hands;
use local::Local;
use sweep::Sweep;
use turn::{Leads, Turn};
use watch::NodePods;
use witness::Witness;

/// How a collector works.
#[derive(Clone, Debug)]
pub struct GarbageSettings {
    pub patience: Patience,
    /// About how often all pools of the cluster are looked at, by whichever agent.
    pub interval: Duration,
    /// Where the flat file is looked for.
    pub flat_places: Vec<PathBuf>,
}

impl Default for GarbageSettings {
    fn default() -> Self {
        GarbageSettings {
            patience: Patience::default(),
            interval: Duration::from_secs(300),
            flat_places: flat::PLACES.iter().map(PathBuf::from).collect(),
        }
    }
}

/// The collector of one node, for one cluster.
#[derive(Debug)]
pub struct Collector {
    connection: Connection,
    ledger: SharedLedger,
    node: String,
    boot: String,
    journal: Option<Arc<Journal>>,
    leads: Option<Leads>,
    settings: GarbageSettings,
    metrics: GarbageMetrics,
}

impl Collector {
    /// A collector of the node `node`, which is in the boot `boot`, for the pools of `ledger`.
    pub fn new(
        connection: Connection,
        ledger: SharedLedger,
        node: impl Into<String>,
        boot: impl Into<String>,
        settings: GarbageSettings,
        metrics: GarbageMetrics,
    ) -> Collector {
        Collector {
            connection,
            ledger,
            node: node.into(),
            boot: boot.into(),
            journal: None,
            leads: None,
            settings,
            metrics,
        }
    }

    /// With what this node noted of its pods: they are then collected on events, and by their UIDs.
    #[must_use]
    pub fn with_journal(mut self, journal: Arc<Journal>) -> Collector {
        self.journal = Some(journal);
        self
    }

    /// Sweeps whenever this process leads, instead of taking turns with the agents: for a controller, which may free what
    /// lost nodes left where agents may not.
    #[must_use]
    pub fn led(mut self, leads: impl Fn() -> bool + Send + Sync + 'static) -> Collector {
        self.leads = Some(Leads::new(leads));
        self
    }

    /// Collects until `shutdown` completes. Nothing is left half done that the next collector would not find.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let policies = Arc::new(Policies::new(&self.connection));
        let Connection {
            client,
            namespace,
            timeout,
        } = self.connection;
        let GarbageSettings {
            patience,
            interval,
            flat_places,
        } = self.settings;
        let witness = Witness::new(client.clone(), timeout);
        let sticky = Sticky::new(client.clone(), timeout);
        let settings = DeskSettings::default();
        let hands = Arc::new(Hands {
            witness: witness.clone(),
            desks: Desks::new(
                SharedLedger::clone(&self.ledger),
                settings,
                DeskMetrics::default(),
            )
            .with_idle(patience.grace),
            ledger: SharedLedger::clone(&self.ledger),
            recorder: Recorder::new(client.clone(), &self.node, timeout),
            sticky: sticky.clone(),
            metrics: self.metrics.clone(),
            node: self.node.clone(),
            boot: self.boot.clone(),
        });
        let clock = Clock::start();
        let turn = Turn::new(client.clone(), &namespace, &self.node, interval, timeout);
        let sweep = Sweep {
            ledger: self.ledger,
            witness,
            sticky,
            hands: Arc::clone(&hands),
            turn: match self.leads {
                Some(leads) => turn.led(leads),
                None => turn,
            },
            patience,
            interval,
            flat_places: flat_places.clone(),
            policies: Arc::clone(&policies),
            metrics: self.metrics,
            clock,
            node: self.node.clone(),
            journal: self.journal.clone(),
        };
        let pods = Arc::new(NodePods::default());
        let (node, boot) = (self.node, self.boot);
        let local = async {
            let Some(journal) = self.journal else {
                return std::future::pending().await;
            };
            let local = Local {
                journal,
                pods: Arc::clone(&pods),
                hands: Arc::clone(&hands),
                patience,
                interval,
                node: node.clone(),
                boot,
                flat_places,
                policies,
                clock,
            };
            tokio::join!(pods.follow(client, &node), local.run());
        };
        tokio::select! {
            () = shutdown => {}
            () = sweep.run() => {}
            () = local => {}
            () = hands.close_desks(patience.grace) => {}
        }
    }
}
