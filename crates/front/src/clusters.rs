//! The clusters that a process works with: one client and one connection to the leader's desk each, whichever front asks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_desk::Desks;
use berth_kube::{Connect, Connection};
use berth_leader::{Leader, LeaderSettings};
use berth_ledger::LedgerError;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// A cluster, as the fronts of a process share it.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub connection: Connection,
    /// The leader's desk, where this node may ask it.
    pub leader: Option<Arc<Leader>>,
    /// One ledger and one registry of desks for each kind of pool, by the kind's name.
    desks: Arc<Mutex<HashMap<String, Desks>>>,
}

impl Cluster {
    pub fn new(connection: Connection, leader: Option<Arc<Leader>>) -> Cluster {
        Cluster {
            connection,
            leader,
            desks: Arc::default(),
        }
    }

    /// The desks of a kind, made once.
    pub(crate) fn desks(&self, kind: String, make: impl FnOnce() -> Desks) -> Desks {
        let mut desks = self.desks.lock();
        desks.entry(kind).or_insert_with(make).clone()
    }
}

type Key = (Option<PathBuf>, Option<String>, Duration);

/// Opens each cluster once.
#[derive(Debug, Default)]
pub struct Clusters {
    leader_desk: Option<LeaderSettings>,
    /// Each is opened by itself: one that hangs delays no other.
    open: Mutex<HashMap<Key, Arc<OnceCell<Cluster>>>>,
}

impl Clusters {
    /// Clusters whose leaders are asked that way, if they are.
    pub fn new(leader_desk: Option<LeaderSettings>) -> Clusters {
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
            let mut open = self.open.lock();
            Arc::clone(open.entry(key).or_default())
        };
        let cluster = cell
            .get_or_try_init(|| async {
                let connection = connect.open().await?;
                let leader = self.leader_desk.clone().map(|settings| {
                    let client = connection.client.clone();
                    Arc::new(Leader::new(client, &connection.namespace, settings))
                });
                Ok::<_, LedgerError>(Cluster::new(connection, leader))
            })
            .await?;
        Ok(cluster.clone())
    }
}

#[cfg(test)]
mod tests {
    use berth_desk::{DeskMetrics, DeskSettings};
    use berth_ledger::{MemoryLedger, PoolKey};

    use super::*;

    const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: c,
        clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}],
        users: [{name: u, user: {token: t}}],
        contexts: [{name: c, context: {cluster: k, user: u}}]}";

    /// Two desks of one process for one pool would commit against each other.
    #[tokio::test]
    async fn fronts_share_a_cluster_and_the_desks_of_a_kind() {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
        let connect = Connect {
            kubeconfig: Some(kubeconfig),
            ..Connect::default()
        };
        let clusters = Clusters::default();
        let (one, two) = (
            clusters.open(&connect).await.unwrap(),
            clusters.open(&connect).await.unwrap(),
        );
        let make = || {
            let ledger = Arc::new(MemoryLedger::new());
            Desks::new(ledger, DeskSettings::default(), DeskMetrics::default())
        };
        let pool = PoolKey::named("pool");
        one.desks("a".to_owned(), make).of(&pool);
        assert!(two.desks("a".to_owned(), make).opened(&pool).is_some());
        assert!(two.desks("b".to_owned(), make).opened(&pool).is_none());
    }
}
