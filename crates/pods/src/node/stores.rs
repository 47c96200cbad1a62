//! Which store a network's pools are in.
//!
//! An agent with a configured cluster keeps every network's pools there. One without follows the node's flat file or, where
//! nothing says that the node is in a cluster, the network: the cluster of its kubeconfig
//! ([`crate::config::NodeFiles`] says which files a network may name). Where neither names one, the node's own SQLite file
//! is used, unless something says that this node's pools are in a cluster ([`ClusterMarker`], `berth install`): then the call is refused.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use berth_cni::{CniError, Code};
use berth_desk::DeskMetrics;
use berth_front::{Cluster, Clusters};
use berth_kube::{Connect, Connection};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, SharedRecordLedger};
use berth_node::{BootMarker, LazyFile, Since, boot};
use berth_slices::sliced::is_sliced;
use berth_slices::slices::Setup;
use berth_slices::{PlainPools, SliceMetrics, SliceSettings, Slices};
use berth_whereabouts::KubeLedger;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OnceCell;
use tokio_util::sync::DropGuard;

use super::cluster_marker::{self, ClusterMarker};
use super::collectors::Collectors;
use crate::garbage::reboot;
use crate::journal::Journal;
use crate::sticky::Sticky;
use crate::{PodError, PodNetwork, Store, Stores};
use berth_networks::range_policy::Policies;

/// The stores of one node.
#[derive(Debug)]
pub(crate) struct NodeStores {
    file: Arc<LazyFile>,
    cluster: Option<Connect>,
    /// The file in which `berth install` records that the node belongs to a cluster.
    installed: Option<PathBuf>,
    mark: ClusterMarker,
    /// The boot in which the node's file was last searched for what a reboot left. It spares a process that serves one
    /// call that search, and proves nothing: addresses are released by the boots of their records alone (I4).
    boot: BootMarker,
    lifetime: Lifetime,
    metrics: DeskMetrics,
    /// The clusters of this process.
    clusters: Arc<Clusters>,
    standalone: OnceCell<Arc<Store>>,
    /// One for all clusters: two would meet in their pools, and wait for each other.
    journal: OnceLock<Arc<Journal>>,
    configured: OnceCell<Connected>,
    /// Clusters that networks name, by kubeconfig. One store each for as long as this process lives: its client follows the
    /// kubeconfig, and a second store would have the node's slices a second time.
    /// Each is opened by itself: one that hangs delays no other network.
    named: Mutex<HashMap<PathBuf, Arc<OnceCell<Connected>>>>,
}

/// A cluster's store and the collector of its garbage, which ends with it.
#[derive(Debug)]
struct Connected {
    store: Arc<Store>,
    connection: Connection,
    _collector: Option<DropGuard>,
}

/// How long readiness waits for the API server: well within the timeout of a readiness probe.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// What an agent can serve.
#[derive(Debug)]
pub(crate) enum Served {
    Whole,
    /// The API server is away; so many ranges are still served from this node's slices.
    Slices {
        ranges: usize,
        why: LedgerError,
    },
}

/// How long the process lives.
#[derive(Debug)]
pub(crate) enum Lifetime {
    /// A daemon: copies of pools are kept up to date, the node's journal is kept, garbage is collected.
    Daemon(Box<Collectors>),
    /// One call: only the journal is kept.
    Call {
        node: String,
        result_caches: Vec<PathBuf>,
        runtime: Option<PathBuf>,
    },
}

impl NodeStores {
    pub(crate) fn new(
        file: Arc<LazyFile>,
        cluster: Option<Connect>,
        lifetime: Lifetime,
        metrics: DeskMetrics,
    ) -> NodeStores {
        NodeStores {
            mark: ClusterMarker::beside(file.path()),
            boot: BootMarker::beside(file.path()),
            file,
            cluster,
            installed: None,
            lifetime,
            metrics,
            clusters: Arc::default(),
            standalone: OnceCell::new(),
            journal: OnceLock::new(),
            configured: OnceCell::new(),
            named: Mutex::default(),
        }
    }

    /// Shares these clusters' connections.
    #[must_use]
    pub(crate) fn with_clusters(mut self, clusters: Arc<Clusters>) -> NodeStores {
        self.clusters = clusters;
        self
    }

    /// On a node that was installed for a cluster, as that file says.
    #[must_use]
    pub(crate) fn with_installed(mut self, installed: Option<PathBuf>) -> NodeStores {
        self.installed = installed;
        self
    }

    /// Opens what an agent needs whatever is asked of it, so that it fails at its start if it must.
    pub(crate) async fn open(&self) -> Result<(), LedgerError> {
        self.sweep().await?;
        if let Some(connect) = &self.cluster {
            self.configured(connect, false).await?;
            self.mark.leave()?;
        }
        Ok(())
    }

    /// Publishes what a call has left to be published. A daemon's slices do that by themselves.
    pub(crate) async fn finish(&self) {
        if matches!(self.lifetime, Lifetime::Daemon(_)) {
            return;
        }
        let configured = self
            .configured
            .get()
            .map(|connected| Arc::clone(&connected.store));
        let named: Vec<Arc<Store>> = {
            let named = self.lock_named();
            let opened = named.values().filter_map(|cell| cell.get());
            opened
                .map(|connected| Arc::clone(&connected.store))
                .collect()
        };
        for store in configured.iter().chain(&named) {
            if let Some(slices) = store.slices()
                && let Err(error) = slices.flush().await
            {
                tracing::warn!(%error, "slices were not published; the next call or the agent does it");
            }
        }
    }

    /// What can be served now: reads the store that matters. An error if nothing can.
    pub(crate) async fn ready(&self) -> Result<Served, LedgerError> {
        let probe = ClaimKey::new(ClaimKind::Reservation, "berth-ready");
        let Some(connect) = &self.cluster else {
            self.local().await?.get(&probe).await?;
            return Ok(Served::Whole);
        };
        let store = self.configured(connect, false).await?;
        let ledger = store.ledger();
        let asked = tokio::time::timeout(READY_LIMIT, ledger.get(&probe));
        let why = match asked.await {
            Ok(Ok(_)) => return Ok(Served::Whole),
            Ok(Err(error)) => error,
            Err(_) => LedgerError::Unavailable {
                target: "the API server".to_owned(),
                why: format!("no answer within {} s", READY_LIMIT.as_secs()),
                retry_after: None,
            },
        };
        match store.slices().map_or(0, Slices::serving) {
            0 => Err(why),
            ranges => Ok(Served::Slices { ranges, why }),
        }
    }

    /// The node that this process is of.
    pub(crate) fn node(&self) -> &str {
        match &self.lifetime {
            Lifetime::Daemon(collectors) => &collectors.node,
            Lifetime::Call { node, .. } => node,
        }
    }

    /// The store with this node's slices, and how its cluster is reached: the configured cluster, else the
    /// only one that networks name.
    pub(crate) async fn sliced(&self) -> Option<(Arc<Store>, Connection)> {
        let parts = |one: &Connected| (Arc::clone(&one.store), one.connection.clone());
        if let Some(configured) = self.configured.get() {
            return Some(parts(configured));
        }
        let named = self.lock_named();
        let mut all = named.values().filter_map(|cell| cell.get());
        all.next().filter(|_| all.next().is_none()).map(parts)
    }

    /// The pools of this node's slices.
    pub(crate) async fn slice_pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        let mut pools = self.local().await?.pools().await?;
        pools.retain(is_sliced);
        Ok(pools)
    }

    async fn local(&self) -> Result<SharedRecordLedger, LedgerError> {
        Ok(self.file.get().await?.ledger())
    }

    /// Whether addresses may be allocated from this node's own file (I1).
    fn is_by_itself(&self) -> Result<(), CniError> {
        match &self.installed {
            Some(installed) => Err(cluster_marker::elsewhere(installed)),
            None => self.mark.refuse(),
        }
    }

    /// Slices are a node's own: two machines that go by no name would share theirs. A daemon has them whatever it is asked.
    fn needs_name(&self, sliced: bool) -> Result<(), CniError> {
        let nameless = match &self.lifetime {
            Lifetime::Daemon(collectors) => collectors.node.is_empty(),
            Lifetime::Call { node, .. } => sliced && node.is_empty(),
        };
        match nameless {
            false => Ok(()),
            true => Err(CniError::new(
                Code::Environment,
                "this node's name is unknown, and its slices go by it: set NODENAME, or write the name that the node has \
                 in its cluster to the file nodename beside the flat file",
            )),
        }
    }

    /// Frees what a reboot has left, before anything is served: a container of this boot may need it.
    async fn sweep(&self) -> Result<(), LedgerError> {
        let freed = reboot::sweep(&self.local().await?, self.boot.current()).await?;
        if !freed.is_empty() {
            tracing::info!(?freed, "a reboot left these addresses");
        }
        if let Err(error) = self.boot.record() {
            tracing::warn!(%error, "entries from before a reboot remain; the next call searches for them again");
        }
        Ok(())
    }

    /// Whether the file was searched in this boot; a boot without a name leaves nothing.
    fn is_swept(&self) -> bool {
        self.boot.current().is_empty() || self.boot.since() == Since::SameBoot
    }

    async fn standalone(&self) -> Result<Arc<Store>, LedgerError> {
        let open = async || {
            let ledger = self.local().await?;
            // An agent has done it at its start.
            if matches!(self.lifetime, Lifetime::Call { .. })
                && !self.is_swept()
                && let Err(error) = self.sweep().await
            {
                // A leftover in one pool is no reason to refuse an address of another.
                tracing::warn!(%error, "entries from before a reboot remain; the next call searches for them again");
            }
            Ok(Arc::new(Store::standalone(ledger, self.metrics.clone())))
        };
        self.standalone.get_or_try_init(open).await.cloned()
    }

    async fn configured(&self, connect: &Connect, sliced: bool) -> Result<Arc<Store>, LedgerError> {
        let open = async || self.connect(connect, sliced).await;
        let connected = self.configured.get_or_try_init(open).await?;
        Ok(Arc::clone(&connected.store))
    }

    async fn named(&self, kubeconfig: &Path, sliced: bool) -> Result<Arc<Store>, LedgerError> {
        let cell = {
            let mut named = self.lock_named();
            Arc::clone(named.entry(kubeconfig.to_owned()).or_default())
        };
        let connect = Connect {
            kubeconfig: Some(kubeconfig.to_owned()),
            ..Connect::default()
        };
        let open = async || self.connect(&connect, sliced).await;
        let connected = cell.get_or_try_init(open).await?;
        Ok(Arc::clone(&connected.store))
    }

    fn lock_named(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<OnceCell<Connected>>>> {
        self.named.lock()
    }

    /// Whether something but a network says that this node's pools are in a cluster.
    pub(crate) fn is_cluster_known(&self) -> bool {
        self.cluster.is_some() || self.is_by_itself().is_err()
    }

    /// The node's journal, which every process of the node writes: the agent collects what a call without it allocated.
    async fn journal(&self) -> Result<Arc<Journal>, LedgerError> {
        let file = self.file.get().await?;
        let open = || Arc::new(Journal::new(file));
        Ok(Arc::clone(self.journal.get_or_init(open)))
    }

    /// A cluster's store. A process that serves one call has the node's slices only if the call is about them.
    async fn connect(&self, connect: &Connect, sliced: bool) -> Result<Connected, LedgerError> {
        let Cluster {
            connection, leader, ..
        } = self.clusters.open(connect).await?;
        let kept = connection.clone();
        let metrics = self.metrics.clone();
        let sticky = Sticky::new(&connection);
        Ok(match &self.lifetime {
            Lifetime::Call { .. } if !sliced => {
                let policies = policies_once(&connection).await;
                let ledger = Arc::new(KubeLedger::new(connection));
                let plain = PlainPools::of(Arc::clone(&ledger), &kept);
                let mut store = Store::cluster_once(ledger, metrics)
                    .with_policies(policies)
                    .with_sticky(sticky)
                    .with_plain_pools(plain);
                // Where no agent ever made the file, a call makes none either: its entries name no node, and are judged by
                // their pods alone.
                if self.file.exists() {
                    match self.journal().await {
                        Ok(journal) => store = store.with_journal(journal),
                        // The pool alone decides what is allocated.
                        Err(error) => {
                            tracing::warn!(%error, "this call is not in the node's journal");
                        }
                    }
                }
                Connected {
                    store: Arc::new(store),
                    connection: kept,
                    _collector: None,
                }
            }
            Lifetime::Call {
                node,
                result_caches,
                runtime,
            } => {
                let policies = policies_once(&connection).await;
                // Until this process ends: what it knows of its slices stays true.
                let file = self.file.own().await?;
                let slices = Slices::new(Setup {
                    connection,
                    local: file.ledger(),
                    database: file.path().to_owned(),
                    file: file.identity().to_string(),
                    node: node.clone(),
                    boot: boot::current(),
                    settings: SliceSettings {
                        result_caches: result_caches.clone(),
                        runtime: runtime.clone(),
                        ..SliceSettings::default()
                    },
                    metrics: SliceMetrics::default(),
                    daemon: None,
                });
                // What is held is known before anything is freed: a DEL has to be published too.
                slices.open().await?;
                let store = Store::cluster_once(slices.ledger(), metrics)
                    .with_policies(policies)
                    .with_journal(Arc::new(Journal::new(file)))
                    .with_sticky(sticky)
                    .with_plain_pools(slices.plain_pools())
                    .with_slices(slices);
                Connected {
                    store: Arc::new(store),
                    connection: kept,
                    _collector: None,
                }
            }
            Lifetime::Daemon(collectors) => {
                let journal = self.journal().await?;
                let (slices, guard) = collectors.slices(&connection, self.file.get().await?);
                slices.open().await?;
                let policies = collectors.policies(&connection, &guard);
                let store = match leader {
                    Some(leader) => Store::gathered(slices.ledger(), metrics, leader),
                    None => Store::cluster(slices.ledger(), metrics),
                };
                let store = store
                    .with_policies(policies)
                    .with_journal(Arc::clone(&journal))
                    .with_sticky(sticky)
                    .with_plain_pools(slices.plain_pools())
                    .with_slices(slices.clone());
                let collector = collectors.start(connection, slices.ledger(), journal, guard);
                Connected {
                    store: Arc::new(store),
                    connection: kept,
                    _collector: Some(collector),
                }
            }
        })
    }
}

/// The cluster's policy of ranges as it is now. A cluster that does not answer serves nothing anyway.
async fn policies_once(connection: &Connection) -> Arc<Policies> {
    let policies = Policies::new(connection);
    if let Err(why) = policies.read().await {
        tracing::warn!(why, "the RangePolicy can't be read");
    }
    Arc::new(policies)
}

#[async_trait]
impl Stores for NodeStores {
    async fn of(&self, network: &PodNetwork) -> Result<Arc<Store>, CniError> {
        let sliced = network.is_sliced();
        let store = match (&self.cluster, &network.kubeconfig) {
            (Some(connect), _) => {
                self.needs_name(sliced)?;
                self.configured(connect, sliced).await
            }
            (None, Some(kubeconfig)) => {
                self.needs_name(sliced)?;
                self.named(kubeconfig, sliced).await
            }
            (None, None) => {
                self.is_by_itself()?;
                self.standalone().await
            }
        };
        store.map_err(|error| PodError::from(error).into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use crate::config::{NamedPaths, NodeFiles};
    use berth_cni::{Args, NetConf};
    use serde_json::{Value, json};

    use super::*;

    const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: c,
        clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}],
        users: [{name: u, user: {token: t}}],
        contexts: [{name: c, context: {cluster: k, user: u}}]}";

    fn mk_stores(database: &Path, node: &str) -> NodeStores {
        let call = Lifetime::Call {
            node: node.to_owned(),
            result_caches: Vec::new(),
            runtime: None,
        };
        let file = Arc::new(LazyFile::of_call(database));
        NodeStores::new(file, None, call, DeskMetrics::default())
    }

    fn mk_network(ipam: Value) -> PodNetwork {
        let mut ipam = ipam;
        ipam["type"] = json!("berth");
        ipam["range"] = json!("10.0.0.0/24");
        let conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam});
        let conf = NetConf::parse(&conf.to_string()).unwrap();
        let files = NodeFiles::new(Vec::new(), vec!["/".into()]);
        let found = files.find(&NamedPaths::of(&conf).unwrap()).unwrap();
        PodNetwork::read(&conf, &Args::default(), "berth", found).unwrap()
    }

    #[tokio::test]
    async fn a_node_where_berth_never_ran_has_no_directory_for_the_database() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("lib/berth/berth.db");
        mk_stores(&database, "node-1").open().await.unwrap();
        let made = fs::metadata(database.parent().unwrap()).unwrap();
        assert_eq!(made.permissions().mode() & 0o777, 0o700);
    }

    #[tokio::test]
    async fn a_machine_by_itself_is_served_from_its_own_file_and_a_marked_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("berth.db");
        let network = mk_network(json!({}));
        assert!(mk_stores(&database, "").of(&network).await.is_ok());
        ClusterMarker::beside(&database).leave().unwrap();
        let refused = mk_stores(&database, "").of(&network).await.unwrap_err();
        assert_eq!(refused.code, Code::TryLater);
    }

    /// Two would each have the node's slices, and a lock of its own around them (I1, I8).
    #[tokio::test]
    async fn a_rewritten_kubeconfig_leads_to_the_same_store() {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        fs::write(&kubeconfig, KUBECONFIG).unwrap();
        let stores = mk_stores(&dir.path().join("berth.db"), "node-1");
        let network = mk_network(json!({ "kubernetes": { "kubeconfig": kubeconfig } }));
        let before = stores.of(&network).await.unwrap();
        fs::write(
            &kubeconfig,
            KUBECONFIG.replace("token: t", "token: rotated"),
        )
        .unwrap();
        assert!(Arc::ptr_eq(&before, &stores.of(&network).await.unwrap()));
    }

    /// Its server takes connections and answers none.
    #[tokio::test]
    async fn berth_16_3_a_kubeconfig_that_hangs_delays_no_other_network() {
        let dir = tempfile::tempdir().unwrap();
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = silent.local_addr().unwrap().to_string();
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            json!({ "kubeconfig": dir.path().join(name) })
        };
        let hangs = write("hangs", &KUBECONFIG.replace("127.0.0.1:1", &server));
        let well = write("well", KUBECONFIG);
        let hangs = mk_network(json!({"kubernetes": hangs, "fast_ipam": true}));
        let well = mk_network(json!({ "kubernetes": well }));
        let stores = Arc::new(mk_stores(&dir.path().join("berth.db"), "node-1"));
        let waiting = {
            let stores = Arc::clone(&stores);
            tokio::spawn(async move { stores.of(&hangs).await.map(drop) })
        };
        silent.accept().await.unwrap();
        assert!(!waiting.is_finished());
        stores.of(&well).await.unwrap();
        assert!(!waiting.is_finished());
        waiting.abort();
    }

    #[tokio::test]
    async fn who_has_no_name_has_no_slices() {
        let dir = tempfile::tempdir().unwrap();
        let (database, kubeconfig) = (dir.path().join("berth.db"), dir.path().join("kubeconfig"));
        fs::write(&kubeconfig, KUBECONFIG).unwrap();
        let nameless = mk_stores(&database, "");
        let kubernetes = json!({ "kubeconfig": kubeconfig });
        let sliced = mk_network(json!({"kubernetes": kubernetes, "fast_ipam": true}));
        let refused = nameless.of(&sliced).await.unwrap_err();
        assert!(refused.msg.contains("NODENAME"), "{}", refused.msg);
        let plain = mk_network(json!({ "kubernetes": kubernetes }));
        assert!(nameless.of(&plain).await.is_ok());
    }
}
