//! The background work of an agent that has such pods: unfinished moves, addresses kept for a move that never came, and
//! addresses of dead pods and nodes.
//!
//! Guarantees (I4): an address is released only after its pod was read as gone twice, a grace period apart, by quorum reads,
//! and after its VM was read: the alias is gone with the VM, or is removed first.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_attachment::{Failure, Goal, Intent, IntentId, Target as _};
use berth_cni::CniError;
use berth_core::{NODE, Owner, Record};
use rand::RngExt;
use tokio::time::{Instant, sleep};

use super::config::later;
use super::engine::{Engine, jittered, method_of, now, unrecorded, vm_of};
use super::journal::{POOL, State};
use super::moves::{KEPT_AT, of_record};
use super::pools::{PoolInfo, unread, v4};
use super::site::{NIC, Site};
use super::warm::is_warm;
use crate::migrate::executor::Vm;
use crate::migrate::machine::Phase;
use crate::nic::{NicError, NicPlace, NicTarget, Release};

const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What one sweep tells the next.
#[derive(Debug, Default)]
struct Seen {
    /// When an allocation was first seen without its pod, or without its Node.
    missing: BTreeMap<(Ipv4Addr, Owner), Instant>,
    /// The phases of moves: one that does not change from sweep to sweep is carried out by nobody.
    phases: BTreeMap<Ipv4Addr, Phase>,
}

/// Why an allocation is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The pod is there, or it can't be known.
    Alive,
    /// The pod is gone; its node is this one.
    DeadHere,
    /// The pod and its Node are gone.
    DeadNode,
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
        for (_, _, holder) in self.rows().await? {
            if let Some(name) = holder.attribute(POOL) {
                let info = self.pool_named(name, method_of(&holder)).await?;
                self.nic(&info).await?;
                self.start_background().await;
            }
        }
        Ok(())
    }

    async fn sweep_forever(self: Arc<Self>) {
        let mut seen = Seen::default();
        loop {
            let infos: Vec<Arc<PoolInfo>> = {
                let infos = self.infos.lock();
                infos.values().map(|(info, _)| Arc::clone(info)).collect()
            };
            for info in infos {
                if let Err(error) = self.sweep(&info, &mut seen).await {
                    tracing::warn!(pool = info.name, %error, "the sweep is not complete; it is repeated");
                }
            }
            sleep(jittered(self.settings.sweep)).await;
        }
    }

    async fn sweep(
        self: &Arc<Self>,
        info: &Arc<PoolInfo>,
        before: &mut Seen,
    ) -> Result<(), CniError> {
        let pool = self.load(info).await?.pool;
        let mut seen = Seen::default();
        for (address, record) in pool.records() {
            let Some(address) = v4(address) else {
                continue;
            };
            let swept = self.judge_one(info, address, record, (before, &mut seen));
            if let Err(error) = swept.await {
                tracing::warn!(%address, pool = info.name, %error, "not judged; it stays allocated");
            }
        }
        *before = seen;
        Ok(())
    }

    async fn judge_one(
        self: &Arc<Self>,
        info: &Arc<PoolInfo>,
        address: Ipv4Addr,
        record: &Record,
        (before, seen): (&Seen, &mut Seen),
    ) -> Result<(), CniError> {
        match of_record(record) {
            Err(why) => {
                tracing::warn!(%address, pool = info.name, why, "the move is left as it is");
                return Ok(());
            }
            Ok(Some((note, phase))) => {
                seen.phases.insert(address, phase);
                let ours = [&note.from.node, &note.to.node].contains(&&self.node);
                let stuck = before.phases.get(&address) == Some(&phase);
                // A move whose nodes both are gone is carried on by any agent, once its time is over.
                if stuck && (ours || now() > note.until) {
                    // It runs in the background.
                    drop(self.carry_on(info, address, note.until).await?);
                }
                return Ok(());
            }
            Ok(None) => {}
        }
        let standing = self.standing(record).await?;
        if standing == Standing::Alive {
            return Ok(());
        }
        let key = (address, record.owner.clone());
        let first = before.missing.get(&key).copied();
        seen.missing.insert(key, first.unwrap_or_else(Instant::now));
        // Read as gone for the second time, a grace period later.
        if first.is_none_or(|first| first.elapsed() < self.grace(record, standing)) {
            return Ok(());
        }
        match standing {
            Standing::Alive => {}
            Standing::DeadHere => self.collect_here(info, address, record).await?,
            Standing::DeadNode => self.collect_elsewhere(info, address, record).await?,
        }
        Ok(())
    }

    /// An address kept for a move waits for it as long as a move may take.
    fn grace(&self, record: &Record, standing: Standing) -> Duration {
        let (pod, node) = self.settings.grace;
        let grace = match standing {
            Standing::DeadNode => node,
            _ => pod,
        };
        let Some(kept) = record.attribute(KEPT_AT) else {
            return grace;
        };
        let kept = Duration::from_millis(now().saturating_sub(kept.parse().unwrap_or(0)));
        grace.max(self.settings.move_timeout.saturating_sub(kept))
    }

    async fn standing(&self, record: &Record) -> Result<Standing, CniError> {
        let node = record.attribute(NODE).unwrap_or_default();
        let (namespace, name) = record.owner.subject.split_once('/').unwrap_or_default();
        if namespace.is_empty() || name.is_empty() {
            return Ok(Standing::Alive);
        }
        if node != self.node
            && self
                .cluster
                .provider_id(node)
                .await
                .map_err(unread)?
                .is_some()
        {
            return Ok(Standing::Alive);
        }
        // A warm address has no pod: it goes with its node, or by the node's own targets.
        if node == self.node && is_warm(record) {
            return Ok(Standing::Alive);
        }
        let pod = self.cluster.pod(namespace, name).await.map_err(unread)?;
        if pod.is_some_and(|pod| pod.uid == record.owner.part) {
            return Ok(Standing::Alive);
        }
        Ok(match node == self.node {
            true => Standing::DeadHere,
            false => Standing::DeadNode,
        })
    }

    /// Through the NIC's reconciler, which reads the VM before it removes anything.
    async fn collect_here(
        self: &Arc<Self>,
        info: &Arc<PoolInfo>,
        address: Ipv4Addr,
        record: &Record,
    ) -> Result<(), CniError> {
        let nic = self.nic(info).await?;
        let row = nic.journal.row(address).await.map_err(unrecorded)?;
        if row.is_some_and(|row| row.state == State::Absent) {
            return Ok(());
        }
        let holder = record.clone().with(POOL, &info.name);
        nic.journal
            .hold(address, &holder)
            .await
            .map_err(unrecorded)?;
        let recorded = nic.reconciler.detach(address).await;
        recorded.map_err(|error| later(error.to_string(), "the next sweep tries again"))?;
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
            tracing::warn!(%address, pool = info.name, "its node is gone and its VM unknown: `berth gcp check` releases it");
            return Ok(());
        };
        self.detach_from(site, info, &vm, address).await?;
        self.free(info, address, record).await?;
        tracing::info!(%address, owner = %record.owner, pool = info.name, "its pod and node are gone: released");
        Ok(())
    }

    /// Removes the alias from a VM whose Node is gone; a VM that is gone too has none.
    async fn detach_from(
        &self,
        site: &Site,
        info: &PoolInfo,
        vm: &Vm,
        address: Ipv4Addr,
    ) -> Result<(), CniError> {
        let target = NicTarget {
            cloud: site.cloud.clone(),
            place: NicPlace {
                zone: vm.zone.clone(),
                instance: vm.instance.clone(),
                nic: NIC.to_owned(),
                range: info.range.clone(),
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
