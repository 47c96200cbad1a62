//! The identity of the node's file: claims and published objects carry it, so that slices are allocated from by one file.
//!
//! A process that serves one call and finds this node's slices marked with another file refuses and names it. An agent that
//! starts takes them over, after it has recovered what they hold ([`crate::recover`]); one that finds that another agent of
//! the node has done so loses them.

use std::sync::Arc;

use berth_core::Prefix;
use berth_core::slice::assigned::Assignments;
use berth_whereabouts::SliceObject;

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::sliced::{Mode, Sliced};
use crate::world::World;

impl World {
    /// Whether a claim of this node is kept in another of its files.
    pub fn is_elsewhere(&self, object: &SliceObject) -> bool {
        let theirs = object.file.as_ref();
        object.claim.node == self.node && theirs.is_some_and(|theirs| theirs.is_beside(&self.file))
    }
}

impl SlicePool {
    /// Marks an assigned slice with this node's file before it is allocated from. An agent that starts takes it over; false: it
    /// is another agent's.
    pub async fn own_assigned(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<bool, SliceError> {
        let world = &self.world;
        let pool = of.published(&world.node, slice);
        let take_over = world.is_daemon && !self.is_confirmed();
        if world.views.mark_published(&pool, take_over).await? {
            return Ok(true);
        }
        if !world.is_daemon {
            self.refuse_other_file(of).await?;
        }
        Ok(false)
    }

    /// Loses the assigned slices that another agent of this node has taken over. Whether there were any.
    pub async fn lose_assigned_elsewhere(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let (world, mut lost) = (&self.world, false);
        let ours = &world.file;
        let held = self.held();
        for holding in held.iter().filter(|holding| holding.is_active()) {
            let pool = of.published(&world.node, holding.slice);
            let theirs = world.cluster.published_file(&pool).await?;
            if theirs.is_some_and(|theirs| theirs.is_beside(ours)) {
                self.lose(holding, "another agent's of this node").await?;
                lost = true;
            }
        }
        Ok(lost)
    }

    /// Refuses to serve one call from a file that this node's slices are not kept in.
    pub async fn refuse_other_file(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let world = &self.world;
        let ours = &world.file;
        let mut found = Vec::new();
        match of.mode {
            Mode::Elastic { .. } => {
                let claims = world.found().await?.iter();
                let of_range = claims.filter(|object| object.is_of(&of.network, of.range));
                found.extend(of_range.filter_map(|object| object.file.clone()));
            }
            Mode::Assigned => {
                let table = world.assigned.load(&of.slice_pool).await?;
                let table = table.as_ref().map(|stored| &stored.pool.table);
                let lines = table.into_iter().flat_map(Assignments::holdings);
                for line in lines.filter(|line| line.node == world.node) {
                    let pool = of.published(&world.node, line.slice);
                    found.extend(world.cluster.published_file(&pool).await?);
                }
            }
        }
        match found.into_iter().find(|theirs| theirs.is_beside(ours)) {
            None => Ok(()),
            Some(theirs) => Err(SliceError::OtherFile {
                range: of.range,
                node: world.node.clone(),
                path: theirs.path,
                ours: ours.path.clone(),
            }),
        }
    }
}
