//! Which store a command works on.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use berth_ledger::kube::{Connect, KubeLedger};
use berth_ledger::{SharedLedger, SqliteLedger};
use clap::Args;

#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// The SQLite file; by default that of `berth up`.
    #[arg(long, global = true, value_name = "FILE", env = "BERTH_DATABASE")]
    database: Option<PathBuf>,
    /// Work on the IPPool objects of the cluster that this kubeconfig reaches, not on the file.
    #[arg(long, global = true, value_name = "FILE", env = "BERTH_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of those objects [default: the kubeconfig context's, else kube-system].
    #[arg(long, global = true, requires = "kubeconfig")]
    namespace: Option<String>,
}

impl StoreArgs {
    /// The store, which must be there.
    pub async fn open(&self) -> anyhow::Result<SharedLedger> {
        self.open_or(false).await
    }

    /// The store; a file that is not there yet is made.
    pub async fn open_or_create(&self) -> anyhow::Result<SharedLedger> {
        self.open_or(true).await
    }

    /// Where a node's agent keeps its own pools.
    pub fn node_database(&self) -> PathBuf {
        self.database
            .clone()
            .unwrap_or_else(|| PathBuf::from("/var/lib/berth/berth.db"))
    }

    async fn open_or(&self, create: bool) -> anyhow::Result<SharedLedger> {
        if let Some(kubeconfig) = &self.kubeconfig {
            let connect = Connect {
                kubeconfig: Some(kubeconfig.clone()),
                namespace: self.namespace.clone(),
                ..Connect::default()
            };
            return Ok(Arc::new(KubeLedger::new(connect.open().await?)));
        }
        let path = match &self.database {
            Some(path) => path.clone(),
            None => state_directory()?.join("berth.db"),
        };
        if !create && !path.exists() {
            bail!(crate::exit::Negative::NotFound(format!(
                "there is no ledger at {}: run `berth up` first, or name one with --database",
                path.display()
            )));
        }
        Ok(Arc::new(SqliteLedger::open(&path)?))
    }
}

/// Where this user's own agent keeps its ledger and socket.
pub fn state_directory() -> anyhow::Result<PathBuf> {
    if let Some(state) = std::env::var_os("XDG_STATE_HOME").filter(|value| !value.is_empty()) {
        return Ok(PathBuf::from(state).join("berth"));
    }
    let home = std::env::var_os("HOME").context(
        "HOME is not set: name the ledger with --database, or the directory with --state",
    )?;
    Ok(PathBuf::from(home).join(".local/state/berth"))
}
