//! Which store a network's pools are in.
//!
//! The node's own SQLite file is opened when the first network without a cluster asks: a process that serves one
//! call on a cluster's pool never touches it.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use berth_cni::{CniError, Code};
use berth_desk::DeskMetrics;
use berth_ledger::{LedgerError, SqliteLedger};
use berth_pods::{PodNetwork, Store, Stores};
use tokio::sync::OnceCell;

/// The stores of one node.
#[derive(Debug)]
pub(crate) struct NodeStores {
    database: PathBuf,
    metrics: DeskMetrics,
    standalone: OnceCell<Arc<Store>>,
}

impl NodeStores {
    pub(crate) fn new(database: PathBuf, metrics: DeskMetrics) -> NodeStores {
        NodeStores {
            database,
            metrics,
            standalone: OnceCell::new(),
        }
    }

    /// The node's own pools.
    pub(crate) async fn standalone(&self) -> Result<&Arc<Store>, LedgerError> {
        self.standalone
            .get_or_try_init(|| async {
                let ledger = SqliteLedger::open(&self.database)?;
                Ok(Arc::new(Store::standalone(
                    Arc::new(ledger),
                    self.metrics.clone(),
                )))
            })
            .await
    }
}

#[async_trait]
impl Stores for NodeStores {
    async fn of(&self, _network: &PodNetwork) -> Result<Arc<Store>, CniError> {
        match self.standalone().await {
            Ok(store) => Ok(Arc::clone(store)),
            Err(error) => Err(CniError::new(Code::Internal, error.to_string())),
        }
    }
}
