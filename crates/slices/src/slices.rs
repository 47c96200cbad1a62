//! What the front asks: which slices may be given from now, and for more of them.

mod hear;
mod rebuild;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use berth_core::slice::NodeName;
use berth_core::slice::assigned::Assignments;
use berth_core::slice::elastic::MarkState;
use berth_core::{Prefix, Record, Space};
use berth_kube::Connection;
use berth_ledger::{LedgerError, SharedRecordLedger};
use berth_whereabouts::slicepools::SlicePools;
use berth_whereabouts::{FileMark, KubeLedger};
use futures::future::join_all;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::busy::Busy;
use crate::error::SliceError;
use crate::holdings::range_of;
use crate::ledger::NodeLedger;
use crate::link::Link;
use crate::metrics::SliceMetrics;
use crate::outage::Outage;
use crate::patience::Patience;
use crate::plain::PlainPools;
use crate::pool::{Active, SlicePool};
use crate::proofs::Ranges;
use crate::settings::SliceSettings;
use crate::sliced::{self, Mode, Sliced};
use crate::world::{World, locked};

/// How long an ADD that finds no slice at all waits for an API server that is busy or away.
const PASSING_LIMIT: Duration = Duration::from_secs(8);
/// How long an agent's start waits for its slices.
const OPEN_LIMIT: Duration = Duration::from_secs(15);
/// How long an ADD waits for other nodes to give their slices up.
const RETIRE_LIMIT: Duration = Duration::from_secs(20);
const RETIRE_PAUSE: Duration = Duration::from_millis(100);

/// What a node's slices need.
#[derive(Debug)]
pub struct Setup {
    pub connection: Connection,
    /// The node's own ledger.
    pub local: SharedRecordLedger,
    /// The file that it is, and the identity of that.
    pub database: PathBuf,
    pub file: String,
    pub node: String,
    pub boot: String,
    pub settings: SliceSettings,
    pub metrics: SliceMetrics,
    /// Where background work runs and what ends it; none in a process that serves one call.
    pub daemon: Option<(TaskTracker, CancellationToken)>,
}

/// The slices of one node in one cluster.
#[derive(Clone)]
pub struct Slices {
    inner: Arc<Inner>,
}

struct Inner {
    world: Arc<World>,
    ledger: SharedRecordLedger,
    pools: Pools,
    daemon: Option<(TaskTracker, CancellationToken)>,
    /// Whether claims are watched, and assignments.
    watching: AtomicBool,
    following: AtomicBool,
}

type Pools = Arc<Mutex<HashMap<String, Arc<SlicePool>>>>;

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices")
            .field("node", &self.inner.world.node)
            .finish_non_exhaustive()
    }
}

impl Slices {
    pub fn new(setup: Setup) -> Slices {
        let Setup {
            connection,
            local,
            database,
            file,
            node,
            boot,
            settings,
            metrics,
            daemon,
        } = setup;
        let cluster = Arc::new(KubeLedger::new(connection.clone()));
        let views = KubeLedger::new(connection.clone()).publishing(&node);
        let file = FileMark {
            node: node.clone(),
            id: file,
            path: database.display().to_string(),
        };
        cluster.mark_with(&file);
        views.mark_with(&file);
        let pools = Pools::default();
        let weak: Weak<_> = Arc::downgrade(&pools);
        let keeper = move |key: &berth_ledger::PoolKey| {
            let pools: Pools = weak.upgrade()?;
            locked(&pools).get(&key.name).cloned()
        };
        let ledger = NodeLedger::new(
            SharedRecordLedger::clone(&local),
            Arc::clone(&cluster) as SharedRecordLedger,
            Box::new(keeper),
        );
        let world = World {
            assigned: SlicePools::new(&connection),
            plain: PlainPools::of(Arc::clone(&cluster), &connection),
            pending: AtomicBool::new(true),
            contested: Mutex::default(),
            moves: KubeLedger::new(connection.clone()).into_marked_pools(),
            views,
            node: NodeName::new(node),
            boot,
            local,
            file,
            is_daemon: daemon.is_some(),
            cluster,
            connection,
            settings,
            metrics,
            registration: Mutex::default(),
            pools: Mutex::default(),
            assigning: AsyncMutex::default(),
            noting: AsyncMutex::default(),
            busy: Busy::default(),
            outage: Outage::default(),
            link: Link::default(),
            proved: Mutex::default(),
            found: OnceCell::new(),
            first_pods: OnceCell::new(),
            cached_results: OnceCell::new(),
        };
        Slices {
            inner: Arc::new(Inner {
                world: Arc::new(world),
                ledger: Arc::new(ledger),
                pools,
                daemon,
                watching: AtomicBool::new(false),
                following: AtomicBool::new(false),
            }),
        }
    }

    /// The plain pools of the cluster, through the ledger that the slices use.
    pub fn plain_pools(&self) -> PlainPools {
        self.inner.world.plain.clone()
    }

    /// Pools of slices in the node's own ledger, all others in the cluster's.
    pub fn ledger(&self) -> SharedRecordLedger {
        SharedRecordLedger::clone(&self.inner.ledger)
    }

    /// Brings what this node held when it last ran in line with the cluster, before anything is served; what its ledger has
    /// lost, too. Without the API server that is left for later.
    pub async fn open(&self) -> Result<(), LedgerError> {
        let mut known = Vec::new();
        for key in self.inner.world.local.pools().await? {
            if key.name.starts_with(sliced::HOLDINGS) {
                known.extend(range_of(&*self.inner.world.local, &key).await?);
            }
        }
        // Before many nodes have claimed much: this list costs the API server a look at every claim there is.
        let lists = async {
            match &self.inner.daemon {
                Some(_) => self.unknown(&known).await,
                None => self.inner.world.found().await.map(|_| Vec::new()),
            }
        };
        let mut all = known.clone();
        match timeout(OPEN_LIMIT, lists).await {
            Ok(Ok(unknown)) => all.extend(unknown),
            _ => {
                tracing::info!("claims are listed when a network needs them");
                self.background(|slices| async move { slices.rebuild_later(known).await });
            }
        }
        // What is not confirmed by then is when it is needed.
        if timeout(OPEN_LIMIT, self.bring_up(all)).await.is_err() {
            tracing::warn!("the API server is slow: slices are confirmed later");
        }
        Ok(())
    }

    async fn bring_up(&self, ranges: Vec<Sliced>) {
        let all = ranges.into_iter().map(|of| async move {
            let (range, pool) = (of.range, self.pool(&Arc::new(of)));
            if let Err(error) = pool.ready().await {
                tracing::warn!(%range, %error, "slices are not confirmed yet");
                pool.suspect();
            }
        });
        join_all(all).await;
    }

    /// The slices that may be given from now; waits for the first one, if there is none.
    pub async fn active(&self, of: &Arc<Sliced>) -> Result<Active, SliceError> {
        let pool = self.pool(of);
        let mut patience = Patience::new(PASSING_LIMIT);
        loop {
            let active = async {
                pool.ready().await?;
                pool.tell_unreserved(of).await?;
                let active = pool.active();
                if !active.slices.is_empty() {
                    return Ok(active);
                }
                self.extend(of, &active).await
            };
            match active.await {
                Err(error) => patience.after(error).await?,
                active => return active,
            }
        }
    }

    /// The slices that an ADD would allocate from first, as far as that is known without a write: none where this node would
    /// have to claim one. An error where an ADD would be refused.
    pub async fn foreseen(&self, of: &Arc<Sliced>) -> Result<Vec<Prefix>, SliceError> {
        let world = &self.inner.world;
        let active = self.known(of).map(|pool| pool.active().slices);
        if let Some(active) = active.filter(|slices| !slices.is_empty()) {
            return Ok(active);
        }
        let Mode::Assigned = of.mode else {
            // Whether the range can be read, and is not on its way back.
            let mark = world.cluster.mark(&of.plain()).await?;
            return match mark.map(|mark| mark.state) {
                Some(MarkState::Leaving) => Err(SliceError::Leaving { range: of.range }),
                _ => Ok(Vec::new()),
            };
        };
        let table = world.assigned.load(&of.slice_pool).await?;
        let table = table.as_ref().map(|stored| &stored.pool.table);
        let lines = table.into_iter().flat_map(Assignments::holdings);
        let ours = lines.filter(|line| line.node == world.node);
        let ours = ours.filter(|line| table.is_some_and(|table| !table.is_recalled(line.slice)));
        let slices: Vec<Prefix> = ours.map(|line| line.slice).collect();
        match slices.is_empty() {
            false => Ok(slices),
            true => Err(SliceError::Unassigned {
                node: world.node.clone(),
                range: of.range,
                slice_pool: of.slice_pool.clone(),
            }),
        }
    }

    /// More than `had`, in which nothing is free of what `of` wants. The same again, if there is no more.
    pub async fn more(&self, of: &Arc<Sliced>, had: &Active) -> Result<Active, SliceError> {
        let mut patience = Patience::new(Duration::ZERO);
        loop {
            match self.extend(of, had).await {
                Err(error) => patience.after(error).await?,
                active => return active,
            }
        }
    }

    async fn extend(&self, of: &Arc<Sliced>, had: &Active) -> Result<Active, SliceError> {
        self.reach(of, had).await?;
        let pool = self.pool(of);
        pool.tell_unreserved(of).await?;
        Ok(pool.active())
    }

    /// Gets more slices than `had`, if there are any.
    async fn reach(&self, of: &Arc<Sliced>, had: &Active) -> Result<(), SliceError> {
        let pool = self.pool(of);
        let world = &self.inner.world;
        match of.mode {
            Mode::Assigned => {
                let none = had.slices.is_empty();
                let patience = if none {
                    world.settings.assign_wait
                } else {
                    Duration::ZERO
                };
                if !pool.await_assigned(of, had, patience).await? && none {
                    return Err(SliceError::Unassigned {
                        node: world.node.clone(),
                        range: of.range,
                        slice_pool: of.slice_pool.clone(),
                    });
                }
            }
            Mode::Elastic { borrow, .. } => {
                // One at a time: what the first of several who wait gets, or does not get, may do for all.
                let came = Instant::now();
                let _gate = pool.gate.lock().await;
                let now = pool.active();
                if now != *had && !now.slices.is_empty() {
                    return Ok(());
                }
                let none = |donors| SliceError::NoSlice {
                    node: world.node.clone(),
                    range: of.range,
                    donors,
                };
                if let Some(donors) = pool.vain.asked_since(came) {
                    return Err(none(donors));
                }
                let began = Instant::now();
                let search = async {
                    match pool.claim_free(of).await? {
                        true => Ok(Ok(())),
                        false if borrow => pool.borrow(of).await,
                        false => Ok(Err(0)),
                    }
                };
                match search.await {
                    Ok(Ok(())) => {}
                    Ok(Err(donors)) => {
                        pool.vain.note_asked(began, Instant::now(), donors);
                        return Err(none(donors));
                    }
                    // Another process of this node was faster: what it has got may do for this one too.
                    Err(SliceError::Store(error))
                        if error.needs_reload() && pool.active() != now => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// What networks of this range give by choice, as far as this node was called for them.
    pub fn by_choice(&self, of: &Arc<Sliced>) -> Arc<Space> {
        Arc::clone(&self.pool(of).of().usable)
    }

    /// Slices that were lost, where the node has none that may be given from: what its ledger says, nobody is asked.
    pub async fn lost_without_others(&self, of: &Arc<Sliced>) -> Result<Vec<Prefix>, LedgerError> {
        self.pool(of).lost_without_others().await
    }

    /// Brings a range back to its plain pool; returns when that gives again.
    pub async fn retire(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let pool = self.pool(of);
        let end = Instant::now() + RETIRE_LIMIT;
        loop {
            let nodes = pool.retire(of).await?;
            if nodes.is_empty() {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(SliceError::StillSliced {
                    range: of.range,
                    nodes: nodes.join(", "),
                });
            }
            sleep(RETIRE_PAUSE).await;
        }
    }

    /// Whether the controller has proved, when it was last seen, that no other network overlaps this one.
    pub fn is_disjoint(&self, of: &Arc<Sliced>) -> bool {
        self.pool(of).is_disjoint()
    }

    /// Makes a reservation when the API server is there again; durable when this returns.
    pub async fn reserve_later(&self, name: &str, holder: &Record) -> Result<(), LedgerError> {
        self.inner.world.reserve_later(name, holder).await
    }

    /// Whether the plain pool may hold addresses that were given before the range was sliced.
    pub fn plain_may_hold(&self, of: &Arc<Sliced>) -> bool {
        !self.pool(of).plain_is_empty()
    }

    /// Whether this node's ledger may hold addresses of a range that is not sliced any more.
    pub fn slices_may_hold(&self, of: &Sliced) -> bool {
        let pool = locked(&self.inner.pools).get(&of.key().name).cloned();
        pool.is_some_and(|pool| !pool.held().is_empty())
    }

    /// Publishes what is not published yet: for a process that serves one call.
    pub async fn flush(&self) -> Result<(), SliceError> {
        for pool in self.all() {
            pool.publish(false).await?;
        }
        Ok(())
    }

    /// Finds out whether other networks overlap this one, and hears of it from then on: for a network that gives unchecked while
    /// the API server is away. A table of assignments tells by itself.
    pub async fn note_proof(&self, of: &Arc<Sliced>) {
        if of.mode == Mode::Assigned {
            return;
        }
        let known = locked(&self.inner.world.proved).clone();
        let ranges = match known {
            Some(ranges) => ranges,
            None => match self.inner.world.disjoint_ranges().await {
                Ok(ranges) => {
                    let ranges = Arc::new(ranges);
                    let mut proved = locked(&self.inner.world.proved);
                    let first = proved.replace(Arc::clone(&ranges)).is_none();
                    drop(proved);
                    if first {
                        self.background(|slices| async move { slices.learn().await });
                    }
                    ranges
                }
                Err(error) => {
                    tracing::warn!(range = %of.range, %error, "whether other networks overlap this one is not known");
                    return;
                }
            },
        };
        self.prove(&self.pool(of), &ranges).await;
    }

    async fn prove(&self, pool: &SlicePool, ranges: &Ranges) {
        let of = pool.of();
        if of.mode == Mode::Assigned {
            return;
        }
        let disjoint = ranges.get(&of.plain().name) == Some(&of.range);
        if let Err(error) = pool.prove(disjoint).await {
            tracing::warn!(range = %of.range, %error, "a proof was not noted");
        }
    }

    /// Runs beside the calls, where there is a daemon.
    fn background<F>(&self, work: impl FnOnce(Slices) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some((tasks, stop)) = &self.inner.daemon else {
            return;
        };
        let (work, stop) = (work(self.clone()), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    pub(crate) fn world(&self) -> &World {
        &self.inner.world
    }

    /// The range, if this process was called for it before.
    pub(crate) fn known(&self, of: &Sliced) -> Option<Arc<SlicePool>> {
        locked(&self.inner.pools).get(&of.key().name).cloned()
    }

    fn all(&self) -> Vec<Arc<SlicePool>> {
        locked(&self.inner.pools).values().cloned().collect()
    }

    /// How many ranges this node can give from without asking anybody.
    pub fn serving(&self) -> usize {
        let all = self.all();
        let serves = |pool: &&Arc<SlicePool>| !pool.active().slices.is_empty();
        all.iter().filter(serves).count()
    }

    pub(crate) fn pool(&self, of: &Arc<Sliced>) -> Arc<SlicePool> {
        let pool = self.pool_as_called(of);
        // Whenever it is called for: a network may turn to slices of another kind under a node that runs.
        self.hear(of.mode);
        pool
    }

    fn pool_as_called(&self, of: &Arc<Sliced>) -> Arc<SlicePool> {
        let mut pools = locked(&self.inner.pools);
        if let Some(pool) = pools.get(&of.key().name) {
            pool.renew(of);
            return Arc::clone(pool);
        }
        let pool = Arc::new(SlicePool::new(
            Arc::clone(&self.inner.world),
            Arc::clone(of),
        ));
        if let Some((tasks, stop)) = &self.inner.daemon {
            tasks.spawn(Arc::clone(&pool).keep(stop.clone()));
        }
        locked(&self.inner.world.pools).push(Arc::downgrade(&pool));
        pools.insert(of.key().name, Arc::clone(&pool));
        pool
    }
}
