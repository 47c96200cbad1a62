//! The warm pool of a node: addresses that are attached before a pod asks for them, so that its ADD needs no operation.
//!
//! Guarantees: a warm address is this node's allocation in the pool, under an owner of its own; a pod gets it by a
//! compare-and-set of that allocation (I1), and it is attached by then. Off unless a target is set.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_cni::CniError;
use berth_core::{AddressRequest, Allocate, Answer, Handle, NODE, Owner, Record, Request};
use futures::future::join_all;
use rand::RngExt;
use tokio::time::{Instant, timeout};

use super::add::{Call, owner};
use super::engine::{Engine, Nic, jittered, unrecorded};
use super::journal::{POOL, State, holder};
use super::pools::{PoolInfo, unallocated, v4};
use super::site::Site;
use crate::nic::MAX_ALIASES;
use crate::nic::warm::{Step, WarmPool, WarmState};
use crate::pool::attributes::{INSTANCE, WARM, ZONE};

/// The namespace of such owners; no pod can be in it, for a namespace is never called that by Berth or Kubernetes.
const NAMESPACE: &str = "berth-warm";
const PAUSE: Duration = Duration::from_secs(10);
const ATTACH: Duration = Duration::from_secs(120);

pub fn is_warm(record: &Record) -> bool {
    record.attribute(WARM).is_some()
}

impl Engine {
    /// Keeps the targets of one NIC until the front stops.
    pub(super) fn keep_warm(self: &Arc<Self>, info: &Arc<PoolInfo>, nic: &Nic) {
        if self.settings.warm.is_off() || self.daemon.is_none() || info.range.is_none() {
            return;
        }
        let (engine, info, nic) = (Arc::clone(self), Arc::clone(info), nic.clone());
        self.spawn(async move {
            loop {
                if let Err(error) = engine.fill(&info, &nic).await {
                    tracing::warn!(pool = info.name, %error, "the warm pool is not filled; tried again");
                }
                // An ADD that takes one says so.
                let _ = timeout(jittered(PAUSE), engine.taken.notified()).await;
            }
        });
    }

    async fn fill(self: &Arc<Self>, info: &Arc<PoolInfo>, nic: &Nic) -> Result<(), CniError> {
        let rows = nic.journal.rows().await.map_err(unrecorded)?;
        let mut pool = WarmPool::new(self.settings.warm);
        for (address, row) in &rows {
            let state = match (is_warm(&row.holder), row.state) {
                (true, State::Present) => WarmState::Warm,
                (true, State::Held) => WarmState::Attaching,
                (_, State::Absent) => WarmState::Detaching,
                (false, _) => WarmState::Assigned,
            };
            pool.restore(*address, state);
        }
        // One is the node's own range on GKE.
        let room = MAX_ALIASES.saturating_sub(rows.len() + 1);
        let site = self.site().await?;
        for step in pool.plan(room) {
            match step {
                Step::Allocate(count) => {
                    let attached = (0..count).map(|_| self.attach_warm(info, nic, site));
                    for outcome in join_all(attached).await {
                        outcome?;
                    }
                }
                Step::Detach(address) => {
                    let Some(_taking) = self.start_taking(address) else {
                        continue;
                    };
                    let row = nic.journal.row(&address).await.map_err(unrecorded)?;
                    if row.is_some_and(|row| is_warm(&row.holder)) {
                        drop(nic.reconciler.detach(address).await);
                    }
                }
            }
        }
        Ok(())
    }

    async fn attach_warm(
        &self,
        info: &Arc<PoolInfo>,
        nic: &Nic,
        site: &Site,
    ) -> Result<(), CniError> {
        let uid = format!("{:032x}", rand::rng().random::<u128>());
        let owner = Owner::new(self.warm_subject(), uid);
        let record = Record::new(owner.clone(), Handle::new(""))
            .with(NODE, &self.node)
            .with(WARM, "true")
            .with(ZONE, &site.vm.zone)
            .with(INSTANCE, &site.vm.instance);
        let claim = |want: AddressRequest| {
            Request::Allocate(Allocate {
                record: record.clone(),
                wants: vec![want],
            })
        };
        let granted = match self.ask_any(info, &owner, claim).await? {
            Answer::Granted(granted) => granted,
            Answer::Refused(refusal) => return Err(unallocated(info, &refusal)),
            _ => return Ok(()),
        };
        for address in granted.iter().filter_map(|granted| v4(granted.address)) {
            let holder = holder(&record, &info.name);
            let held = nic.journal.hold(&address, &holder).await;
            held.map_err(unrecorded)?;
            if let Err(error) = nic
                .reconciler
                .attach(address, Instant::now() + ATTACH)
                .await
            {
                tracing::warn!(%address, %error, "a warm address is not attached");
                drop(nic.reconciler.detach(address).await);
            }
        }
        Ok(())
    }

    /// A warm address for a pod that has none yet; None: the pod's own allocation and attach follow.
    pub(super) async fn take_warm(
        &self,
        call: &Call<'_>,
        nic: &Nic,
    ) -> Result<Option<Ipv4Addr>, CniError> {
        if self.settings.warm.is_off() || self.daemon.is_none() {
            return Ok(None);
        }
        let held = self.held_here(&owner(call.pod), &call.info.name).await?;
        if held.is_some() {
            return Ok(None);
        }
        let rows = nic.journal.rows_of(&self.warm_subject()).await;
        let rows = rows.map_err(unrecorded)?;
        let warm = rows
            .iter()
            .filter(|(_, row)| row.state == State::Present && is_warm(&row.holder))
            .filter(|(_, row)| row.holder.attribute(POOL) == Some(&call.info.name));
        for (address, row) in warm {
            // The transfers of pods that start together share one write of the pool.
            let Some(_taking) = self.start_taking(*address) else {
                continue;
            };
            let mut expected = row.holder.clone();
            expected.attributes.remove(POOL);
            let record = self.record(call);
            if self
                .transfer(call.info, *address, (&expected, &record))
                .await?
            {
                let holder = holder(&record, &call.info.name);
                nic.journal
                    .hold(address, &holder)
                    .await
                    .map_err(unrecorded)?;
                self.taken.notify_one();
                return Ok(Some(*address));
            }
        }
        Ok(None)
    }

    fn warm_subject(&self) -> String {
        format!("{NAMESPACE}/{}", self.node)
    }

    /// None: another call takes or detaches the address just now.
    fn start_taking(&self, address: Ipv4Addr) -> Option<Taking<'_>> {
        let first = self.taking.lock().insert(address);
        first.then_some(Taking {
            engine: self,
            address,
        })
    }
}

/// A warm address that one call takes or detaches.
struct Taking<'a> {
    engine: &'a Engine,
    address: Ipv4Addr,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.engine.taking.lock().remove(&self.address);
    }
}
