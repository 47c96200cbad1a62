//! Which store a command uses: pools of a cluster, or of one file.
//!
//! The first of these that is set: `--database` or `--kubeconfig`; `BERTH_KUBECONFIG` or `BERTH_DATABASE`;
//! `KUBECONFIG`; the service account of the pod that this runs in; the file of `berth up`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use berth_collector::QuorumReader;
use berth_kube::{Connect, Connection, DEFAULT_NAMESPACE};
use berth_ledger::{LedgerError, PoolKey, SharedRecordLedger, Snapshot, SqliteLedger};
use berth_pods::by_hand;
use berth_whereabouts::KubeLedger;
use clap::Args;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::exit::Negative;
use crate::output;

#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// The SQLite file of pools without a cluster [env: BERTH_DATABASE] [default: that of `berth up`].
    #[arg(long, global = true, value_name = "FILE")]
    database: Option<PathBuf>,
    /// The cluster that has the IPPools [env: BERTH_KUBECONFIG, KUBECONFIG; in a pod: its service account]. Flags win
    /// over variables, BERTH_DATABASE over KUBECONFIG, and all of them over the file of `berth up`.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the IPPools [default: that of the context, else kube-system; every namespace with pools, if
    /// that one has none].
    #[arg(long, global = true)]
    namespace: Option<String>,
}

/// What selects the store.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    File(PathBuf),
    Kubeconfig(PathBuf),
    /// Several files, as kubectl merges them.
    Kubeconfigs(PathBuf),
    InCluster,
    Up,
}

/// The stores of a command: one, except for a cluster with pools in several namespaces.
#[derive(Debug)]
pub struct Stores(pub Vec<Store>);

/// The pools of one namespace, or of one file.
#[derive(Debug)]
pub struct Store {
    pub ledger: SharedRecordLedger,
    pub cluster: Option<Cluster>,
    /// The file's directory, where the store is a file.
    pub directory: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Cluster {
    ledger: Arc<KubeLedger>,
    pub connection: Connection,
}

/// A pool as it was read.
#[derive(Debug)]
pub struct PoolView {
    pub key: PoolKey,
    /// The node that publishes it, where it is a view of that node's slice.
    pub publisher: Option<String>,
    pub snapshot: Result<Snapshot, LedgerError>,
}

impl Cluster {
    pub fn reader(&self) -> QuorumReader {
        QuorumReader::new(&self.connection)
    }
}

impl Store {
    fn of_cluster(connection: Connection) -> Store {
        let ledger = Arc::new(KubeLedger::new(connection.clone()));
        Store {
            ledger: Arc::clone(&ledger) as SharedRecordLedger,
            cluster: Some(Cluster { ledger, connection }),
            directory: None,
        }
    }

    /// The namespace; empty for a file.
    pub fn namespace(&self) -> &str {
        let cluster = self.cluster.as_ref();
        cluster.map_or("", |cluster| cluster.connection.namespace.as_str())
    }

    /// Passes every pool to `visit`, including unreadable ones.
    pub async fn visit(&self, mut visit: impl FnMut(PoolView)) -> Result<(), LedgerError> {
        if let Some(cluster) = &self.cluster {
            let view = |seen: berth_ledger::Visited| PoolView {
                key: seen.key,
                publisher: seen.publisher,
                snapshot: seen.snapshot,
            };
            return cluster.ledger.visit_each(|seen| visit(view(seen))).await;
        }
        for key in self.ledger.pools().await? {
            if !by_hand::is_bookkeeping(&key) {
                let snapshot = self.ledger.load(&key).await;
                visit(PoolView {
                    key,
                    publisher: None,
                    snapshot,
                });
            }
        }
        Ok(())
    }

    /// The same store for the engine's own requests.
    pub fn engine(&self) -> berth_pods::Store {
        let ledger = SharedRecordLedger::clone(&self.ledger);
        match &self.cluster {
            Some(cluster) => by_hand::cluster_store(ledger, &cluster.connection),
            None => by_hand::standalone_store(ledger),
        }
    }
}

impl Stores {
    /// The only store: for commands that must not guess.
    pub fn only(self) -> anyhow::Result<Store> {
        let names: Vec<String> = self
            .0
            .iter()
            .map(|one| one.namespace().to_owned())
            .collect();
        let mut stores = self.0.into_iter();
        match (stores.next(), stores.next()) {
            (Some(store), None) => Ok(store),
            _ => bail!(Negative::Refused(format!(
                "there are pools in several namespaces ({}): name one with --namespace",
                names.join(", ")
            ))),
        }
    }
}

impl StoreArgs {
    /// The store, which must exist.
    pub async fn open(&self) -> anyhow::Result<Stores> {
        self.open_or(false).await
    }

    /// The store; a missing file is created.
    pub async fn open_or_create(&self) -> anyhow::Result<Stores> {
        self.open_or(true).await
    }

    /// The file of the node's agent.
    pub fn node_database(&self) -> PathBuf {
        self.node_database_or(None)
    }

    /// The same, if an installation recorded it.
    pub fn node_database_or(&self, installed: Option<PathBuf>) -> PathBuf {
        let named = self.database.clone().or_else(|| variable("BERTH_DATABASE"));
        let path = named.or(installed);
        path.unwrap_or_else(|| PathBuf::from("/var/lib/berth/berth.db"))
    }

    fn choice(&self, variable: impl Fn(&str) -> Option<PathBuf>) -> anyhow::Result<Choice> {
        match (&self.database, &self.kubeconfig) {
            (Some(_), Some(_)) => bail!(Negative::Usage(
                "--database and --kubeconfig name two stores: give one of them".into()
            )),
            (Some(file), None) => return Ok(Choice::File(file.clone())),
            (None, Some(kubeconfig)) => return Ok(Choice::Kubeconfig(kubeconfig.clone())),
            (None, None) => {}
        }
        if let Some(kubeconfig) = variable("BERTH_KUBECONFIG") {
            return Ok(Choice::Kubeconfig(kubeconfig));
        }
        if let Some(file) = variable("BERTH_DATABASE") {
            return Ok(Choice::File(file));
        }
        if let Some(kubeconfig) = variable("KUBECONFIG") {
            let several = std::env::split_paths(&kubeconfig).count() > 1;
            return Ok(match several {
                true => Choice::Kubeconfigs(kubeconfig),
                false => Choice::Kubeconfig(kubeconfig),
            });
        }
        Ok(match variable("KUBERNETES_SERVICE_HOST") {
            Some(_) => Choice::InCluster,
            None => Choice::Up,
        })
    }

    async fn open_or(&self, create: bool) -> anyhow::Result<Stores> {
        let connection = match self.choice(variable)? {
            Choice::File(path) => return self.open_file(&path, create),
            Choice::Up => return self.open_file(&state_directory()?.join("berth.db"), create),
            cluster => self.connect(cluster).await?,
        };
        // The first allocation creates the first pool of a namespace.
        match create && self.namespace.is_some() {
            true => Ok(Stores(vec![Store::of_cluster(connection)])),
            false => self.with_pools(connection).await,
        }
    }

    /// The cluster; `None` if the store is a file.
    pub async fn cluster(&self) -> anyhow::Result<Option<Connection>> {
        match self.choice(variable)? {
            Choice::File(_) | Choice::Up => Ok(None),
            cluster => self.connect(cluster).await.map(Some),
        }
    }

    /// The cluster, for commands that need one.
    pub async fn required_cluster(&self) -> anyhow::Result<Connection> {
        let cluster = self.cluster().await?;
        cluster.ok_or_else(|| {
            let remedy = "this command works on a cluster: name its kubeconfig with --kubeconfig or KUBECONFIG";
            anyhow!(Negative::Usage(remedy.into()))
        })
    }

    async fn connect(&self, cluster: Choice) -> anyhow::Result<Connection> {
        let connect = |kubeconfig: Option<PathBuf>| Connect {
            kubeconfig,
            namespace: self.namespace.clone(),
            ..Connect::default()
        };
        Ok(match cluster {
            Choice::Kubeconfig(path) => connect(Some(path)).open_as_person().await?,
            Choice::Kubeconfigs(list) => merged(&connect(None), &list).await?,
            Choice::InCluster | Choice::File(_) | Choice::Up => connect(None).open().await?,
        })
    }

    fn open_file(&self, path: &Path, create: bool) -> anyhow::Result<Stores> {
        if self.namespace.is_some() {
            bail!(Negative::Usage(
                "--namespace is of a cluster: name its kubeconfig with --kubeconfig or KUBECONFIG"
                    .into()
            ));
        }
        if !create && !path.exists() {
            bail!(Negative::NotFound(format!(
                "there is no ledger at {}: run `berth up` first, name a file with --database, or a cluster with --kubeconfig",
                path.display()
            )));
        }
        Ok(Stores(vec![Store {
            ledger: Arc::new(SqliteLedger::open(path)?),
            cluster: None,
            directory: path.parent().map(Path::to_owned),
        }]))
    }

    /// The named namespace; else that of the context, if it has pools; else those that have.
    async fn with_pools(&self, connection: Connection) -> anyhow::Result<Stores> {
        let ledger = KubeLedger::new(connection.clone());
        if ledger.has_pools().await? {
            return Ok(Stores(vec![Store::of_cluster(connection)]));
        }
        let here = connection.namespace.clone();
        // An account that may read only one namespace sees that one.
        let elsewhere = ledger.namespaces().await.unwrap_or_default();
        let names: Vec<&str> = elsewhere.iter().map(String::as_str).collect();
        if let Some(named) = &self.namespace {
            if !names.is_empty() {
                bail!(Negative::NotFound(format!(
                    "namespace {named} has no pools; there are some in {}",
                    names.join(", ")
                )));
            }
            output::note(&format!("namespace {named} has no pools"));
            return Ok(Stores(vec![Store::of_cluster(connection)]));
        }
        if names.is_empty() {
            // The agents' default.
            let namespace = match std::env::var_os("KUBERNETES_SERVICE_HOST") {
                Some(_) => here,
                None => DEFAULT_NAMESPACE.to_owned(),
            };
            output::note(&format!(
                "there are no pools yet; using namespace {namespace}"
            ));
            let connection = Connection {
                namespace,
                ..connection
            };
            return Ok(Stores(vec![Store::of_cluster(connection)]));
        }
        output::note(&format!(
            "namespace {here} has no pools; using {}",
            names.join(", ")
        ));
        let of = |namespace: &String| {
            Store::of_cluster(Connection {
                namespace: namespace.clone(),
                ..connection.clone()
            })
        };
        Ok(Stores(elsewhere.iter().map(of).collect()))
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// The files of KUBECONFIG, merged as kubectl does: a missing file is skipped.
async fn merged(connect: &Connect, list: &Path) -> anyhow::Result<Connection> {
    let mut kubeconfig: Option<Kubeconfig> = None;
    for file in std::env::split_paths(list).filter(|file| file.exists()) {
        let next = Kubeconfig::read_from(&file).context("KUBECONFIG")?;
        kubeconfig = Some(match kubeconfig {
            Some(first) => first.merge(next).context("KUBECONFIG")?,
            None => next,
        });
    }
    let kubeconfig = kubeconfig.with_context(|| {
        let list = list.display();
        format!("KUBECONFIG: none of {list} exists")
    })?;
    let current = kubeconfig.current_context.clone().unwrap_or_default();
    let context = kubeconfig.contexts.iter().find(|one| one.name == current);
    let namespace = context
        .and_then(|one| one.context.as_ref()?.namespace.clone())
        .filter(|namespace| !namespace.is_empty());
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .context("KUBECONFIG")?;
    Ok(connect.open_with(config, namespace)?)
}

/// The directory of this user's own ledger and socket.
pub fn state_directory() -> anyhow::Result<PathBuf> {
    if let Some(state) = std::env::var_os("XDG_STATE_HOME").filter(|value| !value.is_empty()) {
        return Ok(PathBuf::from(state).join("berth"));
    }
    let home = std::env::var_os("HOME").context(
        "HOME is not set: name the ledger with --database, or the directory with --state",
    )?;
    Ok(PathBuf::from(home).join(".local/state/berth"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(flags: [Option<&str>; 2], variables: &[(&str, &str)]) -> anyhow::Result<Choice> {
        let [database, kubeconfig] = flags.map(|flag| flag.map(PathBuf::from));
        let arguments = StoreArgs {
            database,
            kubeconfig,
            namespace: None,
        };
        arguments.choice(|name| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|(_, value)| PathBuf::from(value))
        })
    }

    #[test]
    fn flags_come_before_variables_and_both_before_the_file_of_up() {
        let all = [
            ("BERTH_KUBECONFIG", "bk"),
            ("BERTH_DATABASE", "bd"),
            ("KUBECONFIG", "k"),
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ];
        let file = |name: &str| Choice::File(name.into());
        let cluster = |name: &str| Choice::Kubeconfig(name.into());
        assert_eq!(choice([Some("d"), None], &all).unwrap(), file("d"));
        assert_eq!(choice([None, Some("c")], &all).unwrap(), cluster("c"));
        assert!(choice([Some("d"), Some("c")], &[]).is_err());
        for (from, expected) in [cluster("bk"), file("bd"), cluster("k"), Choice::InCluster]
            .into_iter()
            .enumerate()
        {
            assert_eq!(choice([None, None], &all[from..]).unwrap(), expected);
        }
        assert_eq!(choice([None, None], &[]).unwrap(), Choice::Up);
        let list = [("KUBECONFIG", "a:b")];
        let several = Choice::Kubeconfigs("a:b".into());
        assert_eq!(choice([None, None], &list).unwrap(), several);
    }
}
