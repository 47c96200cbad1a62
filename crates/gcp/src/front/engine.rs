//! What every call and background task of the front shares, and the NICs that it keeps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use berth_attachment::Reconciler;
use berth_cni::{CniError, Code};
use berth_core::plan::Selector;
use berth_core::{Answer, Handle, NODE, Record, Refusal, Release as ReleaseRequest, Request};
use berth_desk::Desks;
use berth_kube::Connection;
use berth_ledger::{LedgerError, Version};
use berth_node::Attachments;
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::{Mutex as AsyncMutex, Notify, OnceCell};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cluster::Cluster;
use super::config::{Method, later};
use super::events::{PodEvent, PodEvents};
use super::journal::{NicJournal, POOL, State, target_of};
use super::metrics::GcpMetrics;
use super::moves::Known;
use super::pools::{PoolInfo, at};
use super::settings::Settings;
use super::site::Site;
use crate::migrate::batch::Updates;
use crate::migrate::executor::Vm;
use crate::nic::{GATHER, NicPlace, NicReconciler, NicTarget, NodeLock, Release};
use crate::pool::attributes::{INSTANCE, METHOD, STATIC, ZONE};

/// Whose allocations a process looks after.
#[derive(Clone, Debug)]
pub enum Duty {
    /// Those of its own node, whose file records what is attached to its NICs.
    Node(Attachments),
    /// Those of nodes that are gone, and moves that stand still: the leader's.
    Cluster,
}

/// What the front needs of its process.
pub struct Setup {
    pub duty: Duty,
    /// The node's name in its cluster; the leader's own name.
    pub node: String,
    pub connection: Connection,
    /// The desks of the IPPools, which ask the leader's first where there is one.
    pub desks: Desks,
    pub settings: Settings,
    /// None: a process that serves one call.
    pub daemon: Option<Daemon>,
    pub metrics: GcpMetrics,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("node", &self.node)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What ends the background tasks, and counts them.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

/// A NIC of this VM, with its journal.
#[derive(Clone, Debug)]
pub struct Nic {
    pub reconciler: NicReconciler,
    pub journal: Arc<NicJournal>,
}

/// Pools by name and method, and when each was read.
type Infos = HashMap<(String, Method), (Arc<PoolInfo>, Instant)>;

/// See the module.
#[derive(Debug)]
pub struct Engine {
    pub(super) duty: Duty,
    pub(super) node: String,
    pub(super) cluster: Cluster,
    pub(super) events: PodEvents,
    pub(super) metrics: GcpMetrics,
    pub(super) desks: Desks,
    pub(super) settings: Settings,
    pub(super) daemon: Option<Daemon>,
    pub(super) infos: Mutex<Infos>,
    /// One call reads a pool's settings for all that wait.
    pub(super) reading: AsyncMutex<()>,
    /// The versions of pools with pages that were read as Berth wrote them.
    pub(super) sound: Mutex<HashMap<String, Version>>,
    /// Moves that this process carries out.
    pub(super) running: Mutex<BTreeMap<Ipv4Addr, Known>>,
    pub(super) updates: Arc<Updates>,
    /// Addresses that the cloud said another VM has: not chosen again at once.
    pub(super) in_use: Mutex<BTreeMap<Ipv4Addr, Instant>>,
    site: OnceCell<Site>,
    /// Opened one at a time.
    nics: AsyncMutex<BTreeMap<NicPlace, Nic>>,
    pub(super) background: OnceCell<()>,
    /// Warm addresses that a call takes or detaches just now.
    pub(super) taking: Mutex<BTreeSet<Ipv4Addr>>,
    /// A warm address was taken: another is attached.
    pub(super) taken: Notify,
}

impl Engine {
    pub fn new(setup: Setup) -> Arc<Engine> {
        Arc::new(Engine {
            duty: setup.duty,
            cluster: Cluster::new(&setup.connection),
            events: PodEvents::new(&setup.connection, &setup.node),
            metrics: setup.metrics,
            desks: setup.desks,
            node: setup.node,
            settings: setup.settings,
            daemon: setup.daemon,
            infos: Mutex::default(),
            reading: AsyncMutex::default(),
            sound: Mutex::default(),
            running: Mutex::default(),
            updates: Arc::default(),
            in_use: Mutex::default(),
            site: OnceCell::new(),
            nics: AsyncMutex::default(),
            background: OnceCell::new(),
            taking: Mutex::default(),
            taken: Notify::new(),
        })
    }

    /// This VM; read from the cloud once.
    pub(super) async fn site(&self) -> Result<&Site, CniError> {
        self.site
            .get_or_try_init(|| async {
                let cloud = self.metrics.cloud();
                match &self.duty {
                    Duty::Node(_) => Site::find(&self.settings, cloud).await,
                    Duty::Cluster => Site::of_project(&self.settings, cloud).await,
                }
            })
            .await
    }

    /// The same where a pod has asked for it already: costs no call.
    pub(super) fn known_site(&self) -> Option<&Site> {
        self.site.get()
    }

    /// What the node's file says about its NICs.
    pub(super) fn attachments(&self) -> Result<&Attachments, CniError> {
        match &self.duty {
            Duty::Node(attachments) => Ok(attachments),
            Duty::Cluster => Err(CniError::new(
                Code::Internal,
                "the leader attaches nothing to its own VM",
            )),
        }
    }

    pub(super) fn lock(&self) -> NodeLock {
        NodeLock::new(&self.settings.lock)
    }

    /// The NIC of a pool's range. The first call resumes what its journal says.
    pub(super) async fn nic(self: &Arc<Self>, info: &Arc<PoolInfo>) -> Result<Nic, CniError> {
        let site = self.site().await?;
        let place = site.place(info.range.as_deref());
        let mut nics = self.nics.lock().await;
        if let Some(nic) = nics.get(&place) {
            return Ok(nic.clone());
        }
        let journal: Arc<NicJournal> = Arc::new(self.attachments()?.of(target_of(&place)));
        let lock = self.lock();
        // A call that runs without the agent ends before its journal is read. Such a call has the lock itself.
        let held = match self.daemon {
            Some(_) => Some(lock.hold().await.map_err(unlocked)?),
            None => None,
        };
        self.prune(&journal).await?;
        let interrupted = journal.rows().await.map_err(unrecorded)?;
        drop(held);
        let target = NicTarget {
            cloud: site.cloud.clone(),
            place: place.clone(),
            release: Releaser {
                engine: Arc::downgrade(self),
                journal: Arc::clone(&journal),
            },
            lock: self.daemon.is_some().then_some(lock),
        };
        let started = Reconciler::start(Arc::new(target), Arc::clone(&journal), GATHER).await;
        let reconciler = started.map_err(unrecorded)?;
        for (address, row) in interrupted {
            // An ADD that was killed before it asked for the alias: unless it is asked for again, the address goes.
            if row.state == State::Held && !row.is_open() {
                let recorded = reconciler.detach(address).await;
                recorded.map_err(|error| later(error.to_string(), "the runtime tries again"))?;
            }
        }
        let nic = Nic {
            reconciler,
            journal,
        };
        nics.insert(place, nic.clone());
        self.keep_warm(info, &nic);
        Ok(nic)
    }

    /// Drops from the journal what another node or pod holds by now: it moved while this process was away, and must not be
    /// attached here again.
    async fn prune(&self, journal: &NicJournal) -> Result<(), CniError> {
        let rows = journal.rows().await.map_err(unrecorded)?;
        let mut pools: BTreeMap<String, berth_core::Pool> = BTreeMap::new();
        let mut gone = Vec::new();
        for (address, row) in &rows {
            let Some(name) = row.holder.attribute(POOL) else {
                continue;
            };
            if !pools.contains_key(name) {
                let info = self.pool_named(name, method_of(&row.holder)).await?;
                pools.insert(name.to_owned(), self.load(&info).await?);
            }
            let held = pools.get(name).and_then(|pool| pool.get(at(*address)));
            let ours = held.is_some_and(|held| {
                held.attribute(NODE) == Some(&self.node) && held.owner == row.holder.owner
            });
            let moving = held.is_some_and(super::moves::is_moving);
            // What has to be detached stays: its release names the holder, and leaves another's record alone.
            if row.state == State::Present && (!ours || moving) {
                gone.push(*address);
            }
        }
        if !gone.is_empty() {
            tracing::info!(addresses = ?gone, "these moved to other nodes while the agent was away");
            journal.drop_rows(&gone).await.map_err(unrecorded)?;
        }
        Ok(())
    }

    /// Releases an address whose alias is gone, if the holder that the detach was recorded for still has it.
    async fn release_detached(
        &self,
        journal: &NicJournal,
        address: Ipv4Addr,
    ) -> Result<(), CniError> {
        let Some(row) = journal.row(&address).await.map_err(unrecorded)? else {
            return Ok(());
        };
        let Some(name) = row.holder.attribute(POOL) else {
            return Ok(());
        };
        let info = self.pool_named(name, method_of(&row.holder)).await?;
        self.free(&info, address, &row.holder).await?;
        journal.note_released(&address, &row.holder);
        Ok(())
    }

    /// Releases an address in its pool; one that another holder has by now is left alone (I6).
    pub(super) async fn free(
        &self,
        info: &PoolInfo,
        address: Ipv4Addr,
        holder: &Record,
    ) -> Result<(), CniError> {
        if method_of(holder) == Method::Static {
            self.unreserve(info, address, holder).await?;
        }
        let unknown = Record {
            handle: Handle::new(""),
            ..holder.clone()
        };
        // Where another program has dropped the container from the entry, the pod's UID names the holder.
        for holder in [holder, &unknown] {
            let request = Request::Release(ReleaseRequest {
                selector: Selector::Address {
                    address: at(address),
                    holder: holder.clone(),
                },
                cooldown: self.settings.cooldown,
            });
            match self.ask(info, address, request).await? {
                Answer::Refused(Refusal::Held { by, .. }) if by == holder.owner => {}
                Answer::Refused(Refusal::Held { by, .. }) => {
                    tracing::info!(%address, pool = info.name, %by, "not released: another pod holds it by now");
                    return Ok(());
                }
                _ => {
                    tracing::info!(%address, pool = info.name, owner = %holder.owner, "released");
                    return Ok(());
                }
            }
        }
        tracing::info!(%address, pool = info.name, owner = %holder.owner, "not released: its pod has a new sandbox, or it moves");
        Ok(())
    }

    /// Writes an event on a pod; a call does not wait for it, where there is a process to write it later.
    pub(super) async fn tell(self: &Arc<Self>, event: PodEvent) {
        match self.daemon {
            Some(_) => {
                let engine = Arc::clone(self);
                self.spawn(async move { engine.events.write(event).await });
            }
            None => self.events.write(event).await,
        }
    }

    /// Runs a task until the front stops; a process that serves one call runs none.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(daemon) = &self.daemon else {
            return;
        };
        let stop = daemon.stop.clone();
        daemon.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }
}

/// Frees what the reconciler has detached.
#[derive(Debug)]
struct Releaser {
    engine: Weak<Engine>,
    journal: Arc<NicJournal>,
}

impl Release for Releaser {
    async fn release(&self, address: Ipv4Addr) -> Result<(), String> {
        let Some(engine) = self.engine.upgrade() else {
            return Err("the front is stopping".to_owned());
        };
        let released = engine.release_detached(&self.journal, address).await;
        released.map_err(|error| error.msg)
    }
}

/// The VM that has the alias of an allocation, where it is recorded; its name is its node's unless another is.
pub(super) fn vm_of(record: &Record) -> Option<Vm> {
    let instance = record
        .attribute(INSTANCE)
        .or_else(|| record.attribute(NODE))?;
    Some(Vm {
        zone: record.attribute(ZONE)?.to_owned(),
        instance: instance.to_owned(),
    })
}

/// How the address of an allocation became its VM's.
pub(super) fn method_of(record: &Record) -> Method {
    match record.attribute(METHOD) {
        Some(STATIC) => Method::Static,
        _ => Method::SecondaryRange,
    }
}

pub(super) fn unrecorded(error: impl Into<Arc<LedgerError>>) -> CniError {
    let error: Arc<LedgerError> = error.into();
    later(
        format!(
            "the node's own file: {}",
            berth_ledger::chain(error.as_ref())
        ),
        "check the disk that holds the agent's database",
    )
}

pub(super) fn unlocked(error: crate::nic::NicError) -> CniError {
    super::config::invalid(
        error.to_string(),
        "make the lock file's directory writable for the agent and the plugin",
    )
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    let millis = elapsed.unwrap_or(Duration::ZERO).as_millis();
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// Nodes that began to wait together do not return together.
pub(super) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(1.0..1.25))
}
