//! Back to the plain pool: a range that is not sliced any more, without a pod that notices.
//!
//! ```text
//!   mark: leaving  ->  nothing is given from slices  ->  entries are copied into the plain pool
//!                  ->  holdings, published entries and claims go  ->  no claim left: the mark goes
//! ```
//! The mark is turned first: a claim that is made after that sees it and goes, one that was made before is in the list
//! that is read after. So when a list shows none, nobody gives from a slice of the range.
//!
//! A claim of which a part was lent goes after that part, and its offer before it, as any offer is taken back: should the
//! range be sliced again meanwhile, a part that somebody claims is a part of something. One that is nobody's, for its node
//! was lost, becomes the claim of whoever brings the range back: in name only, to end it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use berth_core::slice::NodeName;
use berth_core::slice::elastic::{Mark, MarkState};
use berth_core::{Change, Pool, Prefix, Record};
use berth_ledger::{Ledger, LedgerError};
use berth_whereabouts::SliceObject;

use crate::adopt::{ORIGIN, PLAIN};
use crate::error::SliceError;
use crate::holdings::{Holding, State};
use crate::pool::SlicePool;
use crate::publish::SURRENDERED;
use crate::sliced::Sliced;

/// Asked for by nobody: whoever finds it among the wants of its claim looks at the range's mark.
pub(crate) const LEAVING: &str = "(leaving)";

/// Commits into the plain pool, and changes of its mark, that met another writer.
const TRIES: usize = 20;

/// Between calls to those who may end a claim and have not.
const CALL_AGAIN: Duration = Duration::from_secs(2);

/// Whether somebody has a part of it.
fn is_lent(object: &SliceObject, all: &[SliceObject]) -> bool {
    let claimed = |part: Prefix| all.iter().any(|one| one.claim.range == part);
    let mut offers = object.claim.offers.iter();
    offers.any(|offer| claimed(offer.range))
}

impl SlicePool {
    /// Does this node's share; says which nodes have not done theirs, nobody: the plain pool gives again.
    pub async fn retire(&self, of: &Arc<Sliced>) -> Result<Vec<String>, SliceError> {
        let _gate = self.gate.lock().await;
        self.bring_back(of).await
    }

    /// The same. The gate must be held.
    pub async fn bring_back(&self, of: &Arc<Sliced>) -> Result<Vec<String>, SliceError> {
        let (world, plain) = (&self.world, of.plain());
        let mut tries = 0..TRIES;
        let left = loop {
            let Some(mark) = world.cluster.mark(&plain).await? else {
                return Ok(Vec::new());
            };
            if tries.next().is_none() {
                return Err(SliceError::Leaving { range: of.range });
            }
            let leaving = Mark {
                state: MarkState::Leaving,
                ..mark
            };
            if mark != leaving {
                tracing::info!(range = %of.range, "the range goes back to its plain pool");
                let turned = world.cluster.set_mark(&plain, Some(mark), Some(leaving));
                if !turned.await? {
                    continue;
                }
            }
            self.set_mark(None);
            self.leave(of).await?;
            let left = self.all_claims(of).await?;
            if self.inherit_all(&left).await? {
                continue;
            }
            if !left.is_empty() {
                break left;
            }
            // Refused: it is sliced again, or somebody else was faster.
            if world.cluster.set_mark(&plain, Some(leaving), None).await? {
                tracing::info!(range = %of.range, "the plain pool gives again");
                return Ok(Vec::new());
            }
        };
        let again = self.calls_again(CALL_AGAIN);
        for object in &left {
            // Whoever holds it hears of the change and looks at the mark.
            let mut claim = object.claim.clone();
            if !claim.wants.iter().any(|want| want.as_str() == LEAVING) {
                claim.wants.push(NodeName::new(LEAVING));
                world.cluster.amend_slice(object, &claim).await?;
                world.call(&object.claim.node, object).await;
            } else if again && !claim.offers.is_empty() && !is_lent(object, &left) {
                // It was called when somebody had a part of it still.
                world.call(&object.claim.node, object).await;
            }
        }
        let name = |one: &SliceObject| match one.claim.node.as_str() {
            "" => "nobody".to_owned(),
            node => node.to_owned(),
        };
        let mut nodes: Vec<String> = left.iter().map(name).collect();
        nodes.sort();
        nodes.dedup();
        Ok(nodes)
    }

    /// Makes what is nobody's this node's in name, so that somebody ends it. Whether there was any.
    async fn inherit_all(&self, claims: &[SliceObject]) -> Result<bool, SliceError> {
        let mut any = false;
        for object in claims {
            if object.claim.node.as_str().is_empty() {
                any |= self.inherit(object).await?.is_some();
            }
        }
        Ok(any)
    }

    /// Gives up every slice of the range, if it is going back. The gate must be held.
    pub async fn leave_if_told(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let mark = self.world.cluster.mark(&of.plain()).await?;
        let leaving = mark.is_some_and(|mark| mark.state == MarkState::Leaving);
        if leaving {
            self.set_mark(None);
            self.leave(of).await?;
        }
        Ok(leaving)
    }

    async fn leave(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        {
            let _closed = self.giving.write().await;
            self.set_held(self.holdings.load().await?);
        }
        let held = self.held();
        for holding in held.iter() {
            let lost = Holding {
                state: State::Lost,
                ..holding.clone()
            };
            {
                // Who is about to give from it has done so when this is written, or finds that it may not.
                let _closed = self.giving.write().await;
                self.set_held(self.holdings.put(&lost).await?);
            }
            self.world.note_given_up(of).await?;
            // So that what is published is known to be ours before it goes.
            let mut publisher = self.publisher.lock().await;
            self.publish_slice(&mut publisher, holding.slice).await?;
        }
        let mut slices: Vec<Prefix> = held.iter().map(|holding| holding.slice).collect();
        if !self.is_confirmed() {
            slices.extend(self.adopt_unknown(of, &slices).await?);
        }
        self.set_plain_is_empty(false);
        self.copy_to_plain(of).await?;
        for holding in held.iter() {
            let _closed = self.giving.write().await;
            self.set_held(self.holdings.forget(holding).await?);
        }
        self.empty(of).await?;
        for slice in slices {
            {
                let mut publisher = self.publisher.lock().await;
                self.publish_slice(&mut publisher, slice).await?;
            }
            self.unpublish(slice).await;
        }
        let of_range = Some((of.network.as_str(), of.range));
        let cluster = &self.world.cluster;
        let mut mine = cluster.slices(of_range, Some(&self.world.node)).await?;
        if !mine.is_empty() {
            self.outdate_looks().await?;
        }
        // Parts first: what they are of can go after them.
        mine.sort_by_key(|object| Reverse(object.claim.range.length()));
        for object in mine {
            self.end_claim(of, object).await?;
        }
        Ok(())
    }

    /// What is in the plain pool is that pool's: here it goes, and from what is published. Not so what another process of this
    /// node gives from a slice that it has taken on meanwhile: nobody has copied that.
    async fn empty(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let (held, unchanged) = self.held_and_guard();
        let emptied = match held.is_empty() {
            true => {
                self.world
                    .amend_beside(&of.key(), &unchanged, everything)
                    .await
            }
            false => return Err(SliceError::Leaving { range: of.range }),
        };
        match emptied {
            Err(error) if error.is_of(&unchanged) => Err(SliceError::Leaving { range: of.range }),
            emptied => Ok(emptied.map(|_| ())?),
        }
    }

    /// Takes in what may be held in slices that are this node's and that its ledger does not know, for it was lost: what pods
    /// have of them is told by nobody else. The slices.
    async fn adopt_unknown(
        &self,
        of: &Arc<Sliced>,
        known: &[Prefix],
    ) -> Result<Vec<Prefix>, SliceError> {
        let of_range = Some((of.network.as_str(), of.range));
        let mine = self.world.cluster.slices(of_range, Some(&self.world.node));
        let mut unknown: Vec<Prefix> = mine.await?.iter().map(|one| one.claim.range).collect();
        unknown.retain(|slice| !known.contains(slice));
        for slice in &unknown {
            self.adopt(of, *slice).await?;
        }
        Ok(unknown)
    }

    /// Ends a claim that is not held any more, unless somebody has a part of it.
    async fn end_claim(&self, of: &Arc<Sliced>, object: SliceObject) -> Result<(), SliceError> {
        let (cluster, slice) = (&self.world.cluster, object.claim.range);
        if object.claim.may_go() {
            cluster.end_slice(&object).await?;
            return Ok(());
        }
        let _donating = self.donating.lock().await;
        if is_lent(&object, &self.all_claims(of).await?) {
            return Ok(());
        }
        for offer in &object.claim.offers {
            let part = self
                .world
                .claimed(offer.range, object.claim.node_uid.clone());
            // A name that this does not get to end is found by the next comparison.
            self.set_unsure(true);
            let made = cluster
                .claim_new_slice(&of.network, of.range, &part)
                .await?;
            if made.is_none() || !self.finish_withdrawal(of, slice, offer.range).await? {
                return Ok(());
            }
        }
        let now = cluster.slice(&of.network, slice).await?;
        let ours = |now: &SliceObject| now.claim.node == self.world.node && now.claim.may_go();
        if let Some(now) = now.filter(ours) {
            cluster.end_slice(&now).await?;
        }
        Ok(())
    }

    async fn copy_to_plain(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let local = self.world.local.load(&of.key()).await?;
        let ours: Vec<(berth_core::Address, &Record)> = local
            .pool
            .records()
            .filter(|(_, record)| is_pods(record) && record.attribute(ORIGIN) != Some(PLAIN))
            .collect();
        for _ in 0..TRIES {
            let plain = self.world.cluster.load(&of.plain()).await?;
            let mut changes = Vec::new();
            for (address, record) in &ours {
                match plain.pool.get(*address) {
                    None => changes.push(Change::Allocate {
                        address: *address,
                        record: (*record).clone(),
                    }),
                    Some(held) if held.owner == record.owner => {}
                    Some(held) => {
                        self.report_conflict(*address, &record.owner.to_string(), &held.owner);
                    }
                }
            }
            if changes.is_empty() {
                return Ok(());
            }
            let committed = self
                .world
                .moves
                .commit(&of.plain(), &plain.version, &changes, None)
                .await;
            match committed {
                Ok(_) => return Ok(()),
                Err(error) if error.needs_reload() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(SliceError::Store(LedgerError::Conflict {
            pool: of.plain().name,
            held: Vec::new(),
        }))
    }

    /// Frees what is held here only because the plain pool has it, once that has it no more.
    pub async fn follow_plain(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let is_plain = |record: &Record| record.attribute(ORIGIN) == Some(PLAIN);
        let local = self.world.local.load(&of.key()).await?;
        let any = local.pool.records().any(|(_, record)| is_plain(record));
        if !any && self.plain_is_empty() {
            return Ok(());
        }
        let plain = self.world.cluster.load(&of.plain()).await?;
        self.note_plain(of, &plain.pool);
        let gone = |pool: &Pool| -> Vec<Change> {
            let old = pool.records().filter(|(address, record)| {
                let there = plain
                    .pool
                    .holders(*address)
                    .any(|held| held.owner == record.owner);
                is_plain(record) && !there
            });
            old.map(|(address, record)| Change::Release {
                address,
                expected: record.clone(),
                cooldown: None,
            })
            .collect()
        };
        self.world.amend(&of.key(), gone).await?;
        // What came in since: a program that does not know of slices gave it.
        for slice in self.active().slices {
            let found = plain
                .pool
                .records()
                .filter(|(address, _)| slice.contains(*address));
            let found =
                found.map(|(address, record)| (address, record.clone().with(ORIGIN, PLAIN)));
            self.take_in(of, found.collect()).await?;
        }
        Ok(())
    }
}

fn is_pods(record: &Record) -> bool {
    record.owner.subject != SURRENDERED
}

fn everything(pool: &Pool) -> Vec<Change> {
    pool.records()
        .map(|(address, record)| Change::Release {
            address,
            expected: record.clone(),
            cooldown: None,
        })
        .collect()
}
