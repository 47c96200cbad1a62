//! The clusters that a process works with: one client and one connection to the leader's desk each, whichever front asks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_gather::{GatherSettings, Leader};
use berth_ledger::LedgerError;
use berth_ledger::kube::{Connect, Connection};
use tokio::sync::OnceCell;

/// A cluster, as the fronts of a process share it.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub connection: Connection,
    /// The leader's desk, where this node may ask it.
    pub leader: Option<Arc<Leader>>,
}

type Key = (Option<PathBuf>, Option<String>, Duration);

/// Opens each cluster once.
#[derive(Debug, Default)]
pub struct Clusters {
    leader_desk: Option<GatherSettings>,
    /// Each is opened by itself: one that hangs delays no other.
    open: Mutex<HashMap<Key, Arc<OnceCell<Cluster>>>>,
}

impl Clusters {
    /// Clusters whose leaders are asked that way, if they are.
    pub fn new(leader_desk: Option<GatherSettings>) -> Clusters {
        Clusters {
            leader_desk,
            open: Mutex::default(),
        }
    }

    /// The cluster. Reads credentials and does not talk to the server yet; what fails is tried again by the next call.
    pub async fn open(&self, connect: &Connect) -> Result<Cluster, LedgerError> {
        let key = (
            connect.kubeconfig.clone(),
            connect.namespace.clone(),
            connect.timeout,
        );
        let cell = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(open.entry(key).or_default())
        };
        let cluster = cell
            .get_or_try_init(|| async {
                let connection = connect.open().await?;
                let leader = self.leader_desk.clone().map(|settings| {
                    let client = connection.client.clone();
                    Arc::new(Leader::new(client, &connection.namespace, settings))
                });
                Ok::<_, LedgerError>(Cluster { connection, leader })
            })
            .await?;
        Ok(cluster.clone())
    }
}
