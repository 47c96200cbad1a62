//! Slices that a controller has assigned: ours, or whereabouts' own.
//!
//! Before a slice is taken on, this node's Node object is seen, and the table is read after that (I8): a controller that
//! takes the slice back recalls it and then looks for the Node, so either it sees this node, or this node sees the recall.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::Prefix;
use berth_core::slice::Epoch;
use berth_core::slice::assigned::Assignments;
use berth_ledger::LedgerError;
use berth_whereabouts::slicepools::{Head, StoredSlicePool};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::{Instant, sleep};

use crate::error::SliceError;
use crate::holdings::{Holding, Source, State};
use crate::pool::{Active, SlicePool};
use crate::sliced::{Mode, Sliced};
use crate::world::{Registration, World};

/// Between two looks for an assignment that is about to come.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);

impl World {
    /// Sees that this node's Node object is there, now; what is told of it.
    pub async fn registered(&self) -> Result<Registration, SliceError> {
        let nodes: Api<Node> = Api::all(self.connection.client.clone());
        let asked = nodes.get_opt(self.node.as_str());
        let why = match tokio::time::timeout(self.connection.timeout, asked).await {
            Ok(Ok(Some(node))) => return Ok(Registration::read(&node)),
            Ok(Ok(None)) => {
                return Err(SliceError::Unregistered {
                    node: self.node.clone(),
                });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        Err(SliceError::Store(LedgerError::Unavailable {
            target: format!("Node {}", self.node),
            why,
            retry_after: None,
        }))
    }
}

impl SlicePool {
    /// Takes on what is assigned, loses what is not any more. The gate must be held.
    pub async fn compare_assigned(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let confirmed = self.is_confirmed();
        let untold = self.is_untold(of);
        if confirmed {
            self.lose_assigned_elsewhere(of).await?;
        }
        if confirmed && !untold && self.is_table_known(of).await? {
            return Ok(());
        }
        let mut assigned = self.world.assigned.load(&of.slice_pool).await?;
        let news = untold || self.has_news(assigned.as_ref(), confirmed);
        if news {
            self.world.registered().await?;
            assigned = self.world.assigned.load(&of.slice_pool).await?;
        }
        let found = assigned.as_ref().map(|one| one.pool.table.cut().range());
        if let Some(found) = found.filter(|found| *found != of.range) {
            // What it takes away counts, whatever range it is of.
            self.lose_taken(assigned.as_ref()).await?;
            return Err(SliceError::OtherRange {
                slice_pool: of.slice_pool.clone(),
                found,
                range: of.range,
            });
        }
        let tells = assigned.as_ref().is_some_and(StoredSlicePool::tells);
        // A table that was whereabouts' closed nothing, and was given from.
        let taken_over = tells && !self.has_closed() && !self.active().slices.is_empty();
        let alone = if tells && (news || taken_over) {
            self.end_others(of).await
        } else {
            Ok(())
        };
        self.set_closed(tells && alone.is_ok() && (news || taken_over || self.has_closed()));
        self.set_disjoint(assigned.as_ref().is_some_and(|one| one.pool.marks.disjoint));
        self.lose_taken(assigned.as_ref()).await?;
        // What is lost is lost whatever comes of the rest.
        alone?;
        let table = assigned.as_ref().map(|one| &one.pool.table);
        let is_recalled = |slice| table.is_some_and(|table| table.is_recalled(slice));
        let lines = table.into_iter().flat_map(Assignments::holdings);
        let mut withheld = false;
        for line in lines.filter(|line| line.node == self.world.node) {
            let (slice, epoch) = (line.slice, line.epoch);
            if is_recalled(slice) {
                continue;
            }
            let _alone = self.world.assigning.lock().await;
            let held = self.held();
            let known = held
                .iter()
                .find(|holding| holding.slice == slice && holding.is_active());
            if (known.is_none() || !confirmed) && !self.own_assigned(of, slice).await? {
                tracing::warn!(%slice, node = %self.world.node, "another agent of this node allocates from this slice; this one does not");
                continue;
            }
            let told = known.is_some_and(|known| known.unreserved);
            let unreserved = told || !of.checked;
            let source = Source::Assigned {
                slice_pool: of.slice_pool.clone(),
            };
            let same = |known: &Holding| {
                known.boot == self.world.boot
                    && known.disjoint == self.is_disjoint()
                    && known.unreserved == unreserved
                    && known.source == source
            };
            if known.is_some_and(same) && !taken_over {
                continue;
            }
            if known.is_none() {
                self.take_from_others(of, slice).await?;
                if let Err(error) = self.adopt(of, slice).await {
                    self.withhold(slice, error)?;
                    withheld = true;
                    continue;
                }
            } else if taken_over || unreserved && !told {
                // The plain pool gave beside it: as long as both made reservations, or as nobody closed it.
                self.adopt_plain(of, slice).await?;
            }
            self.hold(Holding {
                slice,
                epoch,
                node: self.world.node.clone(),
                node_uid: String::new(),
                boot: self.world.boot.clone(),
                state: State::Active,
                disjoint: self.is_disjoint(),
                unreserved,
                source,
            })
            .await?;
        }
        if !withheld {
            self.note_table(assigned.as_ref());
        }
        Ok(())
    }

    /// Stops giving from what the table says is recalled, or not this node's any more.
    async fn lose_taken(&self, assigned: Option<&StoredSlicePool>) -> Result<(), SliceError> {
        let table = assigned.map(|one| &one.pool.table);
        let is_recalled = |slice| table.is_some_and(|table| table.is_recalled(slice));
        let lines = table.into_iter().flat_map(Assignments::holdings);
        let holders: BTreeMap<Prefix, (String, Epoch)> = lines
            .map(|line| (line.slice, (line.node.to_string(), line.epoch)))
            .collect();
        let me = self.world.node.as_str();
        for holding in self.held().iter().filter(|holding| holding.is_active()) {
            match holders.get(&holding.slice) {
                Some(_) if is_recalled(holding.slice) => self.lose(holding, "recalled").await?,
                Some((node, epoch)) if node == me && *epoch == holding.epoch => {}
                Some((node, _)) if node == me => self.lose(holding, "ours anew").await?,
                Some((node, _)) => self.lose(holding, &format!("{node}'s")).await?,
                None => self.lose(holding, "nobody's").await?,
            }
        }
        Ok(())
    }

    /// Sees to it that slices of this range are given by assignment alone: the plain pool is closed, and then what nodes have
    /// claimed by themselves goes back to it. Where both have reservations, these do the same. The gate must be held.
    async fn end_others(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        self.world.plain.close(of).await?;
        let marks = self.world.cluster.marks(&of.plain()).await?;
        if !marks.must_leave(of.checked) {
            return Ok(());
        }
        let nodes = self.bring_back(of).await?;
        if nodes.is_empty() {
            return Ok(());
        }
        Err(SliceError::StillSliced {
            range: of.range,
            nodes: nodes.join(", "),
        })
    }

    /// Whether the table is the one that was last compared: its metadata is asked for, not its thousands of rows.
    async fn is_table_known(&self, of: &Sliced) -> Result<bool, SliceError> {
        let Some(versions) = self.known_table() else {
            return Ok(false);
        };
        Ok(self.world.assigned.is_at(&of.slice_pool, &versions).await?)
    }

    /// Whether a slice would be taken on that this node does not give from now, or, before anything is confirmed, any.
    fn has_news(&self, assigned: Option<&StoredSlicePool>, confirmed: bool) -> bool {
        let held = self.held();
        let known = |slice: Prefix| {
            let mut active = held.iter().filter(|one| one.is_active());
            confirmed && active.any(|one| one.slice == slice)
        };
        let table = assigned.map(|one| &one.pool.table);
        let mut lines = table.into_iter().flat_map(Assignments::holdings);
        lines.any(|line| line.node == self.world.node && !known(line.slice))
    }

    /// Whether what a watch shows of the table concerns this node: its slice changes hands, it has none yet, what is proved
    /// of the range is other than it was, or the table is Berth's where it was whereabouts'.
    pub fn is_told_by(&self, head: &Head) -> bool {
        let of = self.of();
        if of.mode != Mode::Assigned || of.slice_pool != head.pool() {
            return false;
        }
        if head.page_of.is_none() && head.disjoint != self.is_disjoint() {
            return true;
        }
        if head.tells_of_hands() && !self.has_closed() {
            return true;
        }
        let held = self.held();
        let mut active = held.iter().filter(|holding| holding.is_active()).peekable();
        active.peek().is_none() || active.any(|one| head.takes(one.slice, one.epoch))
    }

    /// Waits a while for a slice beyond `had`; says whether one came.
    pub async fn await_assigned(
        &self,
        of: &Arc<Sliced>,
        had: &Active,
        limit: Duration,
    ) -> Result<bool, SliceError> {
        let end = Instant::now() + limit;
        let mut pause = PAUSE;
        loop {
            {
                let _gate = self.gate.lock().await;
                self.compare_assigned(of).await?;
            }
            if self.active() != *had && !self.active().slices.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
