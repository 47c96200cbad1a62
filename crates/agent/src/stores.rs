//! Which store a network's pools are in.
//!
//! An agent that was told its cluster keeps every network's pools there. One that was not follows the network: the
//! cluster of its kubeconfig, or, where it names none, the node's own SQLite file, unless something says that this node's
//! pools are in a cluster ([`Mark`], `berth install`): then the call is refused.

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use berth_cni::{CniError, Code};
use berth_desk::DeskMetrics;
use berth_gather::{GatherSettings, Leader};
use berth_ledger::kube::Connect;
use berth_ledger::{ClaimKey, ClaimKind, KubeLedger, LedgerError, SharedLedger, SqliteLedger};
use berth_pods::boot;
use berth_pods::garbage::reboot;
use berth_pods::journal::Journal;
use berth_pods::sticky::Sticky;
use berth_pods::{PodError, PodNetwork, Store, Stores};
use berth_slices::slices::Setup;
use berth_slices::{PlainPools, SliceMetrics, SliceSettings, Slices};
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::DropGuard;

use crate::boot::Boot;
use crate::collectors::Collectors;
use crate::mark::{self, Mark};

/// The stores of one node.
#[derive(Debug)]
pub(crate) struct NodeStores {
    database: PathBuf,
    cluster: Option<Connect>,
    /// What `berth install` left of its having been told a cluster.
    installed: Option<PathBuf>,
    mark: Mark,
    boot: Boot,
    lifetime: Lifetime,
    metrics: DeskMetrics,
    /// How the leader's desk is asked, if it is.
    gather: Option<GatherSettings>,
    local: OnceCell<SharedLedger>,
    standalone: OnceCell<Arc<Store>>,
    /// One for all clusters: two would meet in their pools, and wait for each other.
    journal: OnceLock<Arc<Journal>>,
    told: OnceCell<Connected>,
    /// Clusters that networks name, by kubeconfig. One store each for as long as this process lives: its client follows the
    /// kubeconfig, and a second store would have the node's slices a second time.
    named: Mutex<HashMap<PathBuf, Connected>>,
}

/// A cluster's store and the collector of its garbage, which ends with it.
#[derive(Debug)]
struct Connected {
    store: Arc<Store>,
    _collector: Option<DropGuard>,
}

/// How long readiness waits for the API server: well within the patience of whoever probes.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// What an agent can serve.
#[derive(Debug)]
pub(crate) enum Readiness {
    Whole,
    /// The API server is away, and so many ranges are given from this node's slices all the same.
    Degraded {
        ranges: usize,
        why: LedgerError,
    },
}

/// How long the process lives.
#[derive(Debug)]
pub(crate) enum Lifetime {
    /// A daemon: copies of pools are kept up to date, the node's journal is kept, garbage is collected.
    Daemon(Box<Collectors>),
    /// One call: neither would pay.
    Call { node: String },
}

impl NodeStores {
    pub(crate) fn new(
        database: PathBuf,
        cluster: Option<Connect>,
        lifetime: Lifetime,
        metrics: DeskMetrics,
    ) -> NodeStores {
        NodeStores {
            mark: Mark::beside(&database),
            boot: Boot::beside(&database),
            database,
            cluster,
            installed: None,
            lifetime,
            metrics,
            gather: None,
            local: OnceCell::new(),
            standalone: OnceCell::new(),
            journal: OnceLock::new(),
            told: OnceCell::new(),
            named: Mutex::default(),
        }
    }

    /// Asks the leader's desk first, in a daemon.
    #[must_use]
    pub(crate) fn with_gather(mut self, gather: Option<GatherSettings>) -> NodeStores {
        self.gather = gather;
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
            self.told(connect, false).await?;
            self.mark.leave()?;
        }
        Ok(())
    }

    /// Publishes what a call has left to be published.
    pub(crate) async fn finish(&self) {
        let told = self
            .told
            .get()
            .map(|connected| Arc::clone(&connected.store));
        let named = self.named.lock().await;
        let named = named.values().map(|connected| &connected.store);
        for store in told.iter().chain(named) {
            if let Some(slices) = store.slices()
                && let Err(error) = slices.flush().await
            {
                tracing::warn!(%error, "slices were not published; the next call or the agent does it");
            }
        }
    }

    /// What could be given now: a read of the store that matters. Nothing at all is an error.
    pub(crate) async fn ready(&self) -> Result<Readiness, LedgerError> {
        let nobody = ClaimKey::new(ClaimKind::Reservation, "berth-ready");
        let Some(connect) = &self.cluster else {
            self.local().await?.claim(&nobody).await?;
            return Ok(Readiness::Whole);
        };
        let store = self.told(connect, false).await?;
        let ledger = store.ledger();
        let asked = tokio::time::timeout(READY_LIMIT, ledger.claim(&nobody));
        let why = match asked.await {
            Ok(Ok(_)) => return Ok(Readiness::Whole),
            Ok(Err(error)) => error,
            Err(_) => LedgerError::Unavailable {
                target: "the API server".to_owned(),
                why: format!("no answer within {} s", READY_LIMIT.as_secs()),
                retry_after: None,
            },
        };
        match store.slices().map_or(0, Slices::serving) {
            0 => Err(why),
            ranges => Ok(Readiness::Degraded { ranges, why }),
        }
    }

    async fn local(&self) -> Result<&SharedLedger, LedgerError> {
        let open = async || {
            if let Some(dir) = self.database.parent() {
                // On a node where Berth never ran there is none. What can't be made, the ledger complains of.
                let _ = DirBuilder::new().recursive(true).mode(0o700).create(dir);
            }
            SqliteLedger::open(&self.database).map(|ledger| Arc::new(ledger) as SharedLedger)
        };
        self.local.get_or_try_init(open).await
    }

    /// Whether this node's own file may be given from (I1).
    fn is_by_itself(&self) -> Result<(), CniError> {
        match &self.installed {
            Some(installed) => Err(mark::elsewhere(installed)),
            None => self.mark.refuse(),
        }
    }

    /// Slices are a node's own: two machines that go by no name would share theirs. A daemon has them whatever it is asked.
    fn needs_name(&self, sliced: bool) -> Result<(), CniError> {
        let nameless = match &self.lifetime {
            Lifetime::Daemon(collectors) => collectors.node.is_empty(),
            Lifetime::Call { node } => sliced && node.is_empty(),
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
        let freed = reboot::sweep(self.local().await?, self.boot.name()).await?;
        if !freed.is_empty() {
            tracing::info!(?freed, "a reboot left these addresses");
        }
        self.boot.swept();
        Ok(())
    }

    async fn standalone(&self) -> Result<Arc<Store>, LedgerError> {
        let open = async || {
            let ledger = SharedLedger::clone(self.local().await?);
            // An agent has done it at its start.
            if matches!(self.lifetime, Lifetime::Call { .. })
                && !self.boot.is_swept()
                && let Err(error) = self.sweep().await
            {
                // What one pool still holds in vain is no reason to refuse an address of another.
                tracing::warn!(%error, "what a reboot left is looked for again by the next call");
            }
            Ok(Arc::new(Store::standalone(ledger, self.metrics.clone())))
        };
        self.standalone.get_or_try_init(open).await.cloned()
    }

    async fn told(&self, connect: &Connect, sliced: bool) -> Result<Arc<Store>, LedgerError> {
        let open = async || self.connect(connect, sliced).await;
        let connected = self.told.get_or_try_init(open).await?;
        Ok(Arc::clone(&connected.store))
    }

    async fn named(&self, kubeconfig: &Path, sliced: bool) -> Result<Arc<Store>, LedgerError> {
        let mut named = self.named.lock().await;
        if let Some(connected) = named.get(kubeconfig) {
            return Ok(Arc::clone(&connected.store));
        }
        let connect = Connect {
            kubeconfig: Some(kubeconfig.to_owned()),
            ..Connect::default()
        };
        let connected = self.connect(&connect, sliced).await?;
        let store = Arc::clone(&connected.store);
        named.insert(kubeconfig.to_owned(), connected);
        Ok(store)
    }

    /// A cluster's store. A process that serves one call has the node's slices only if the call is about them.
    async fn connect(&self, connect: &Connect, sliced: bool) -> Result<Connected, LedgerError> {
        let connection = connect.open().await?;
        let metrics = self.metrics.clone();
        let sticky = Sticky::new(connection.client.clone(), connection.timeout);
        let plain = PlainPools::new(&connection);
        Ok(match &self.lifetime {
            Lifetime::Call { .. } if !sliced => {
                let ledger: SharedLedger = Arc::new(KubeLedger::new(connection));
                let store = Store::cluster_once(ledger, metrics)
                    .with_sticky(sticky)
                    .with_plain_pools(plain);
                Connected {
                    store: Arc::new(store),
                    _collector: None,
                }
            }
            Lifetime::Call { node } => {
                let slices = Slices::new(Setup {
                    connection,
                    local: SharedLedger::clone(self.local().await?),
                    node: node.clone(),
                    boot: boot::current(),
                    settings: SliceSettings::default(),
                    metrics: SliceMetrics::default(),
                    daemon: None,
                });
                // What is held is known before anything is freed: a DEL has to be published too.
                slices.open().await?;
                let store = Store::cluster_once(slices.ledger(), metrics)
                    .with_sticky(sticky)
                    .with_plain_pools(plain)
                    .with_slices(slices);
                Connected {
                    store: Arc::new(store),
                    _collector: None,
                }
            }
            Lifetime::Daemon(collectors) => {
                let local = self.local().await?;
                let open = || Arc::new(Journal::new(SharedLedger::clone(local)));
                let journal = Arc::clone(self.journal.get_or_init(open));
                let (slices, guard) = collectors.slices(&connection, SharedLedger::clone(local));
                slices.open().await?;
                let store = match &self.gather {
                    Some(settings) => {
                        let leader = Leader::new(
                            connection.client.clone(),
                            &connection.namespace,
                            settings.clone(),
                        );
                        Store::gathered(slices.ledger(), metrics, Arc::new(leader))
                    }
                    None => Store::cluster(slices.ledger(), metrics),
                };
                let store = store
                    .with_journal(Arc::clone(&journal))
                    .with_sticky(sticky)
                    .with_plain_pools(plain)
                    .with_slices(slices.clone());
                let collector = collectors.start(connection, slices.ledger(), journal, guard);
                Connected {
                    store: Arc::new(store),
                    _collector: Some(collector),
                }
            }
        })
    }
}

#[async_trait]
impl Stores for NodeStores {
    async fn of(&self, network: &PodNetwork) -> Result<Arc<Store>, CniError> {
        let sliced = network.is_sliced();
        let store = match (&self.cluster, &network.kubeconfig) {
            (Some(connect), _) => {
                self.needs_name(sliced)?;
                self.told(connect, sliced).await
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
        };
        NodeStores::new(database.to_owned(), None, call, DeskMetrics::default())
    }

    fn mk_network(ipam: Value) -> PodNetwork {
        let mut ipam = ipam;
        ipam["type"] = json!("berth");
        ipam["range"] = json!("10.0.0.0/24");
        let conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam});
        let conf = NetConf::parse(&conf.to_string()).unwrap();
        PodNetwork::read(&conf, &Args::default(), "berth", None).unwrap()
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
        Mark::beside(&database).leave().unwrap();
        let refused = mk_stores(&database, "").of(&network).await.unwrap_err();
        assert_eq!(refused.code, Code::TryLater);
    }

    /// Two would each have the node's slices, and a lock of its own around them (I1, I8).
    #[tokio::test]
    async fn a_kubeconfig_that_is_written_anew_leads_to_the_same_store() {
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
