//! The background work. An agent that has such pods: unfinished moves of its node, addresses kept for a move that never came, and
//! addresses of its dead pods. The leader: moves that stand still, and addresses of nodes that are gone.
//!
//! Guarantees (I4): an address is released only after its pod was read as gone twice, a grace period apart, by quorum reads,
//! and after its VM was read: the alias is gone with the VM, or is removed first.
//!
//! It shares the collector's suspicions and not its loop. There one process sweeps all pools and releases by the ledger. Here a
//! release follows a detach by the NIC's reconciler, which only the node's own agent has, and the same pass resumes moves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_attachment::{Failure, Goal, Intent, IntentId, Target as _};
use berth_cni::CniError;
use berth_collector::suspicions::{Round, Suspicions};
use berth_core::{Moment, NODE, Owner, Record};
use rand::RngExt;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::config::{Method, later};
use super::engine::{Duty, Engine, jittered, method_of, now, unrecorded, vm_of};
use super::journal::{POOL, State, holder, moves_of};
use super::metrics::Gone;
use super::moves::of_record;
use super::pools::{PoolInfo, unloaded, unread, v4};
use super::site::{NIC, Site};
use super::warm::is_warm;
use crate::migrate::executor::Vm;
use crate::migrate::machine::Phase;
use crate::nic::{NicError, NicPlace, NicTarget, Release};
use crate::pool::attributes::KEPT_AT;
use crate::pool::pages;

const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The phases of moves by pool: one that does not change from sweep to sweep is carried out by no process.
type Phases = BTreeMap<(String, Ipv4Addr), Phase>;

/// What one sweep leaves to the next.
#[derive(Debug, Default)]
struct Seen {
    /// Allocations that were read without their pod, or without their Node.
    suspicions: Suspicions,
    phases: Phases,
}

/// One sweep.
#[derive(Debug)]
struct Sweep<'a> {
    round: Round<'a>,
    before: &'a Phases,
    phases: Phases,
    /// The pods of this node, as one list has them. A pod that is missing here is read by itself.
    pods: BTreeSet<Owner>,
    /// Which Nodes there are, as far as they were read.
    nodes: BTreeMap<String, bool>,
}

impl Engine {
    /// Begins the background work once: with the first pod, or with what an earlier process left.
    pub(super) async fn start_background(self: &Arc<Self>) {
        let begin = async || {
            let (watching, sweeping) = (Arc::clone(self), Arc::clone(self));
            self.spawn(watching.watch_pods());
            self.spawn(sweeping.sweep_forever());
        };
        self.background.get_or_init(begin).await;
    }

    /// Resumes what the node's file says, until that has succeeded. An empty file costs no call.
    pub(super) async fn resume(self: Arc<Self>) {
        let mut pause = RETRY.0;
        loop {
            match self.resume_once().await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%error, "what the last agent left of its NICs is not resumed yet; tried again");
                }
            }
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    async fn resume_once(self: &Arc<Self>) -> Result<(), CniError> {
        for found in self.all_rows().await? {
            let holder = &found.row.holder;
            if let Some(name) = holder.attribute(POOL) {
                let info = self.pool_named(name, method_of(holder)).await?;
                self.nic(&info).await?;
                self.start_background().await;
            }
        }
        self.resume_moves().await
    }

    /// Moves to this node that the last process began. Their callers may never ask again.
    async fn resume_moves(self: &Arc<Self>) -> Result<(), CniError> {
        let begun = moves_of(self.attachments()?);
        for (address, row) in begun.rows().await.map_err(unrecorded)? {
            let Some(name) = row.holder.attribute(POOL) else {
                continue;
            };
            let info = self.pool_named(name, method_of(&row.holder)).await?;
            let record = self.holder(&info, address).await?;
            let read = record.as_ref().map_or(Ok(None), of_record);
            let moving = match read {
                Ok(moving) => moving.filter(|(note, _)| note.uid == row.holder.owner.part),
                Err(why) => {
                    tracing::warn!(%address, pool = info.name, why, "the move is left as it is");
                    continue;
                }
            };
            let arrived = record.is_some_and(|record| record.owner == row.holder.owner);
            if moving.is_none() && !arrived {
                let dropped = begun.drop_row_of(&row.holder.owner, &address).await;
                dropped.map_err(unrecorded)?;
                continue;
            }
            // The sweep looks after an address whose pod has died meanwhile.
            self.nic(&info).await?;
            self.start_background().await;
            if let Some((note, _)) = moving {
                drop(self.carry_on(&info, address, note.until).await?);
            }
        }
        Ok(())
    }

    pub(super) async fn sweep_forever(self: Arc<Self>) {
        let begun = Instant::now();
        let mut seen = Seen::default();
        loop {
            // Not the wall clock: one that is set would shorten a grace period.
            let now = Moment(0).plus(begun.elapsed());
            let round = Round::new(&seen.suspicions, self.settings.grace, now);
            match self.sweep_once(round, &seen.phases).await {
                Ok(next) => seen = next,
                // What was suspected is suspected from its next read on.
                Err(error) => {
                    seen = Seen::default();
                    tracing::warn!(%error, "not swept; the sweep is repeated");
                }
            }
            sleep(jittered(self.settings.sweep)).await;
        }
    }

    async fn sweep_once(
        self: &Arc<Self>,
        round: Round<'_>,
        before: &Phases,
    ) -> Result<Seen, CniError> {
        let infos = self.pools_to_sweep().await?;
        let pods = match &self.duty {
            Duty::Node(_) => self.cluster.pods_of(&self.node).await.map_err(unread)?,
            Duty::Cluster => BTreeSet::new(),
        };
        let mut sweep = Sweep {
            round,
            before,
            phases: Phases::default(),
            pods,
            nodes: BTreeMap::new(),
        };
        for info in infos {
            self.sweep_pool(&info, &mut sweep).await;
        }
        Ok(Seen {
            suspicions: sweep.round.done().0,
            phases: sweep.phases,
        })
    }

    /// A node's agent sweeps the pools that it serves; the leader all.
    async fn pools_to_sweep(&self) -> Result<Vec<Arc<PoolInfo>>, CniError> {
        if matches!(self.duty, Duty::Node(_)) {
            let infos = self.infos.lock();
            return Ok(infos.values().map(|(info, _)| Arc::clone(info)).collect());
        }
        let keys = self.desks.ledger().pools().await.map_err(unloaded)?;
        let mut infos = Vec::new();
        for key in keys {
            let object = self.cluster.pool(&key.name).await.map_err(unread)?;
            // Pages are swept with their pool.
            let is_page = |object: &Value| matches!(pages::page_of(object), Ok(Some(_)));
            if object.is_none_or(|object| is_page(&object)) {
                continue;
            }
            match self.pool_named(&key.name, Method::SecondaryRange).await {
                Ok(info) => infos.push(info),
                Err(error) => tracing::warn!(pool = key.name, %error, "not swept"),
            }
        }
        Ok(infos)
    }

    async fn sweep_pool(self: &Arc<Self>, info: &Arc<PoolInfo>, sweep: &mut Sweep<'_>) {
        let pool = match self.load(info).await {
            Ok(pool) => pool,
            Err(error) => {
                tracing::warn!(pool = info.name, %error, "not swept; the sweep is repeated");
                return;
            }
        };
        for (address, record) in pool.records() {
            let Some(address) = v4(address) else {
                continue;
            };
            let judged = async {
                // Which range its alias is of, its record says.
                let info = self.pool_named(&info.name, method_of(record)).await?;
                self.judge_one(&info, address, record, sweep).await
            };
            if let Err(error) = judged.await {
                tracing::warn!(%address, pool = info.name, %error, "not judged; it stays allocated");
            }
        }
    }

    async fn judge_one(
        self: &Arc<Self>,
        info: &Arc<PoolInfo>,
        address: Ipv4Addr,
        record: &Record,
        sweep: &mut Sweep<'_>,
    ) -> Result<(), CniError> {
        match of_record(record) {
            Err(why) => {
                tracing::warn!(%address, pool = info.name, why, "the move is left as it is");
                return Ok(());
            }
            Ok(Some((note, phase))) => {
                let key = (info.name.clone(), address);
                let stuck = sweep.before.get(&key) == Some(&phase);
                sweep.phases.insert(key, phase);
                let ours = [&note.from.node, &note.to.node].contains(&&self.node);
                // The agents of both nodes may be away: the leader carries on what stands still.
                if stuck && (ours || matches!(self.duty, Duty::Cluster)) {
                    // It runs in the background.
                    drop(self.carry_on(info, address, note.until).await?);
                }
                return Ok(());
            }
            Ok(None) => {}
        }
        let Some(gone) = self.what_is_gone(record, sweep).await? else {
            return Ok(());
        };
        let suspect = (&info.name, address, &record.owner);
        if !sweep.round.is_due(suspect, self.grace(record, gone)) {
            return Ok(());
        }
        match gone {
            Gone::Pod => self.collect_here(info, address, record).await,
            Gone::Node => self.collect_elsewhere(info, address, record).await,
        }
    }

    /// An address kept for a move waits for it as long as a move may take.
    fn grace(&self, record: &Record, gone: Gone) -> Duration {
        let grace = match gone {
            Gone::Node => self.settings.grace.node,
            Gone::Pod => self.settings.grace.pod,
        };
        let Some(kept) = record.attribute(KEPT_AT) else {
            return grace;
        };
        let kept = Duration::from_millis(now().saturating_sub(kept.parse().unwrap_or(0)));
        grace.max(self.settings.move_timeout.saturating_sub(kept))
    }

    /// What of an allocation's owner is gone; None: nothing, it is another process's to judge, or it can't be known.
    async fn what_is_gone(
        &self,
        record: &Record,
        sweep: &mut Sweep<'_>,
    ) -> Result<Option<Gone>, CniError> {
        let node = record.attribute(NODE).unwrap_or_default();
        let (namespace, name) = record.owner.subject.split_once('/').unwrap_or_default();
        let unknown = namespace.is_empty() || name.is_empty() || node.is_empty();
        if unknown || sweep.pods.contains(&record.owner) {
            return Ok(None);
        }
        let gone = match &self.duty {
            // A warm address has no pod: it goes with its node, or by the node's own targets.
            Duty::Node(_) if node == self.node && !is_warm(record) => Gone::Pod,
            Duty::Cluster if !self.is_node(node, &mut sweep.nodes).await? => Gone::Node,
            Duty::Node(_) | Duty::Cluster => return Ok(None),
        };
        let pod = self.cluster.pod(namespace, name).await.map_err(unread)?;
        let lives = pod.is_some_and(|pod| pod.uid == record.owner.part);
        Ok((!lives).then_some(gone))
    }

    async fn is_node(
        &self,
        name: &str,
        nodes: &mut BTreeMap<String, bool>,
    ) -> Result<bool, CniError> {
        if let Some(known) = nodes.get(name) {
            return Ok(*known);
        }
        let found = self.cluster.provider_id(name).await.map_err(unread)?;
        nodes.insert(name.to_owned(), found.is_some());
        Ok(found.is_some())
    }

    /// Through the NIC's reconciler, which reads the VM before it removes anything.
    async fn collect_here(
        self: &Arc<Self>,
        info: &Arc<PoolInfo>,
        address: Ipv4Addr,
        record: &Record,
    ) -> Result<(), CniError> {
        let nic = self.nic(info).await?;
        let row = nic.journal.row(&address).await.map_err(unrecorded)?;
        if row.is_some_and(|row| row.state == State::Absent) {
            return Ok(());
        }
        let holder = holder(record, &info.name);
        nic.journal
            .hold(&address, &holder)
            .await
            .map_err(unrecorded)?;
        let recorded = nic.reconciler.detach(address).await;
        recorded.map_err(|error| later(error.to_string(), "the next sweep tries again"))?;
        self.metrics.collected(Gone::Pod);
        tracing::info!(%address, owner = %record.owner, pool = info.name, "its pod is gone: detached and released");
        Ok(())
    }

    async fn collect_elsewhere(
        self: &Arc<Self>,
        info: &Arc<PoolInfo>,
        address: Ipv4Addr,
        record: &Record,
    ) -> Result<(), CniError> {
        let site = self.site().await?;
        let Some(vm) = vm_of(record) else {
            tracing::warn!(%address, pool = info.name, "its node is gone and its entry names no VM: it stays allocated; where no VM has this alias, remove the entry from the IPPool");
            return Ok(());
        };
        self.detach_from(site, info.range.clone(), &vm, address)
            .await?;
        self.free(info, address, record).await?;
        self.metrics.collected(Gone::Node);
        tracing::info!(%address, owner = %record.owner, pool = info.name, "its pod and node are gone: released");
        Ok(())
    }

    /// Removes the alias from a VM whose Node is gone; a VM that is gone too has none.
    async fn detach_from(
        &self,
        site: &Site,
        range: Option<String>,
        vm: &Vm,
        address: Ipv4Addr,
    ) -> Result<(), CniError> {
        let target = NicTarget {
            cloud: site.cloud.clone(),
            place: NicPlace {
                zone: vm.zone.clone(),
                instance: vm.instance.clone(),
                nic: NIC.to_owned(),
                range,
            },
            release: Nothing,
            lock: None,
        };
        let intent = Intent {
            id: IntentId(rand::rng().random()),
            goal: Goal::Absent,
            items: [address].into(),
        };
        match target.apply(&intent).await {
            Ok(()) | Err(Failure::Gone(_)) => Ok(()),
            Err(failure) => {
                let error: &NicError = failure.error();
                Err(later(error.to_string(), "the next sweep tries again"))
            }
        }
    }
}

/// The sweep releases by itself, after the detach.
#[derive(Debug)]
struct Nothing;

impl Release for Nothing {
    async fn release(&self, _: Ipv4Addr) -> Result<(), String> {
        Ok(())
    }
}
