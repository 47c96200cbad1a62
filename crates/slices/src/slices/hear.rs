//! What a node hears of: that somebody has written on a claim of its, or made one its own; that slices are assigned and
//! recalled; which networks overlap no other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_ledger::LedgerError;
use berth_whereabouts::Heard;
use berth_whereabouts::slicepools::HeadEvent;
use futures::StreamExt;
use rand::RngExt;
use tokio::time::sleep;

use super::{Slices, locked};
use crate::link::ASK;
use crate::pool::SlicePool;
use crate::sliced::Mode;

impl Slices {
    /// Hears from now on what concerns slices of that kind.
    pub(super) fn hear(&self, mode: Mode) {
        let begun = match mode {
            Mode::Elastic { .. } => &self.inner.watching,
            Mode::Assigned => &self.inner.following,
        };
        if begun.load(Ordering::Acquire) || begun.swap(true, Ordering::AcqRel) {
            return;
        }
        match mode {
            Mode::Elastic { .. } => {
                self.background(|slices| async move { slices.listen().await });
            }
            Mode::Assigned => self.background(|slices| async move { slices.follow().await }),
        }
    }

    /// Hears that somebody has written on a claim of this node: a request for a part, or that it is another's.
    pub(super) async fn listen(&self) {
        let world = &self.inner.world;
        let mut calls = world.cluster.calls(&world.node);
        loop {
            // Apart from other nodes, which lost it at the same moment.
            let ask = ASK.mul_f64(rand::rng().random_range(0.5..1.0));
            let heard = tokio::select! {
                heard = calls.next() => heard,
                () = sleep(ask), if world.link.is_away() => {
                    // What fails is asked again.
                    let _ = world.greet().await;
                    continue;
                }
            };
            let about = match heard {
                None => return,
                Some(Heard::Broken) => {
                    world.doubt().await;
                    continue;
                }
                Some(Heard::Complete) => {
                    world.greeted();
                    continue;
                }
                Some(Heard::Call(about)) => about,
            };
            if let Some(claim) = about {
                // Beside it: whoever takes the claim on just now holds the gate, and others wait to be answered.
                self.background(|slices| async move { slices.look_at(&claim).await });
            }
            let elastic = |pool: &Arc<SlicePool>| matches!(pool.of().mode, Mode::Elastic { .. });
            for pool in self.all().into_iter().filter(elastic) {
                if let Err(error) = pool.heed_call().await {
                    tracing::warn!(range = %pool.of().range, %error, "a call was not answered");
                    pool.suspect();
                }
            }
        }
    }

    /// Has a claim taken on that is in this node's name, if it turns out that nobody waits for it.
    async fn look_at(&self, claim: &str) {
        if let Err(error) = self.look_for(claim).await {
            tracing::warn!(claim, %error, "a claim was not looked at");
        }
    }

    async fn look_for(&self, claim: &str) -> Result<(), LedgerError> {
        let world = &self.inner.world;
        let ours = async || {
            let found = world.cluster.slice_named(claim).await?;
            Ok::<_, LedgerError>(found.filter(|found| found.claim.node == world.node))
        };
        let Some(found) = ours().await? else {
            return Ok(());
        };
        let is_of = |pool: &&Arc<SlicePool>| {
            let of = pool.of();
            found.is_of(&of.network, of.range)
        };
        let all = self.all();
        let Some(pool) = all.iter().find(is_of) else {
            return Ok(());
        };
        if pool.knows(&found.claim) {
            return Ok(());
        }
        // Whoever asked for it and takes it on just now holds the gate until it knows it.
        let _gate = pool.gate.lock().await;
        if ours().await?.is_some_and(|now| !pool.knows(&now.claim)) {
            pool.set_unsure(true);
            pool.suspect();
        }
        Ok(())
    }

    /// Hears which networks overlap no other.
    pub(super) async fn learn(&self) {
        let mut proved = self.inner.world.watch_disjoint_ranges();
        while let Some(ranges) = proved.next().await {
            let ranges = Arc::new(ranges);
            *locked(&self.inner.world.proved) = Some(Arc::clone(&ranges));
            for pool in self.all() {
                self.prove(&pool, &ranges).await;
            }
        }
    }

    /// Hears of slices that are assigned and recalled. Of a table its metadata is sent: whose slice changes hands is there.
    pub(super) async fn follow(&self) {
        let mut heads = self.inner.world.assigned.heads();
        while let Some(event) = heads.next().await {
            let concerned: Box<dyn Fn(&SlicePool) -> bool + Send + Sync> = match event {
                HeadEvent::Listed(head) | HeadEvent::Put(head) => {
                    Box::new(move |pool| pool.is_told_by(&head))
                }
                HeadEvent::Gone(head) => Box::new(move |pool| pool.of().slice_pool == head.pool()),
                HeadEvent::Init | HeadEvent::Complete | HeadEvent::Broken(_) => continue,
            };
            for pool in self.all().iter().filter(|pool| concerned(pool)) {
                pool.suspect();
            }
        }
    }
}
