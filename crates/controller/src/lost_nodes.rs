//! Reclaims slices that lost nodes had claimed (docs/decisions/slices/claimed.md).
//!
//! ```text
//!   claim of a node that is gone, unused, twice a grace period apart -> recalled, and the node is notified
//!   a pause, one more read                                           -> without offers: deleted
//!                                                                   -> with offers: no holder, at the next epoch
//! ```
//! A read and a write are two moments: a Node may be registered again between them, under an agent that never stopped.
//! That agent has noticed the recall by the second read, and allocates nothing from the claim before it has written it,
//! which makes older conditional writes fail.
//! A claim with offers keeps its name: its parts would be free by name while they are in use. Any node may take one
//! without a holder. Both writes are conditional on the version that was judged.
//! Each claim is judged separately: one that has to stay does not block others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_core::Moment;
use berth_core::slice::elastic::Claimed;
use berth_core::slice::grace::{Suspicions, Verdict};
use berth_core::slice::{Epoch, Holding, NodeName};
use berth_whereabouts::SliceObject;

use crate::events::Notice;
use crate::reconcile::{ReconcileError, Reconciler};
use crate::usage::UsageError;
use crate::watch_cache::View;

/// After a claim that can't be judged: it may have been repaired by then.
const STUCK: Duration = Duration::from_secs(30);

/// A suspected claim: its name, its node's UID, its epoch.
type Suspect = (String, String, Epoch);

/// Names and UIDs of deleted nodes, and names of those out of service.
type Absent = (BTreeMap<String, String>, BTreeSet<NodeName>);

#[derive(Debug, Default)]
pub(crate) struct LostClaims {
    suspicions: Suspicions<Suspect>,
    /// Nodes that were deleted or out of service when all claims were last read.
    checked: Option<Absent>,
    again: Option<Moment>,
    /// Recalled claims whose nodes were notified, since when: counted from the next pass, because a pass may take
    /// longer than the pause. No object records who recalled it, and when.
    recalled: BTreeMap<Suspect, Option<Moment>>,
    /// What was reclaimed, until it is reported.
    pub news: Vec<Notice>,
}

/// What happens to the claim of a node that is gone; `None`: it is deleted.
fn after(claim: &Claimed) -> Option<Claimed> {
    (!claim.may_go()).then(|| Claimed {
        node: NodeName::new(""),
        node_uid: String::new(),
        epoch: Epoch(claim.epoch.0.saturating_add(1)),
        wants: Vec::new(),
        recalled: false,
        ..claim.clone()
    })
}

impl LostClaims {
    /// The next pass reads all claims.
    pub fn forget(&mut self) {
        self.checked = None;
    }

    /// Checks for losses; returns when to check again.
    pub async fn reconcile(
        &mut self,
        reconciler: &Reconciler,
        view: &View,
        now: Moment,
    ) -> Result<Option<Moment>, ReconcileError> {
        let due = self.again.is_some_and(|again| again <= now);
        let absent = (view.gone.clone(), view.out_of_service.clone());
        if self.checked.as_ref() == Some(&absent) && !due {
            return Ok(self.again);
        }
        self.again = None;
        let ledger = &reconciler.usage_reader.ledger;
        let mut known = BTreeSet::new();
        let mut stuck = false;
        for label in ledger.strange_claimants(&view.nodes).await? {
            let node = NodeName::new(label);
            let listed = ledger.list_slices(None, Some(&node)).await?;
            // An unreadable claim stays; the others of its node are judged.
            for unreadable in &listed.unreadable {
                tracing::warn!(claim = unreadable.name, error = %unreadable.why, "claim of a lost node stays for now");
                stuck = true;
            }
            let mut objects = listed.claims.clone();
            // Whole before part: writes of the lost node to the whole fail before another node can have the part.
            objects.sort_by_key(|object| object.claim.range.length());
            let mut left: Vec<SliceObject> = Vec::new();
            for object in objects {
                if object.claim.node.as_str().is_empty() || view.nodes.contains(&object.claim.node)
                {
                    continue;
                }
                known.insert(suspect(&object));
                let (network, range) = (&object.network, object.claim.range);
                let is_part = left
                    .iter()
                    .any(|whole| whole.network == *network && whole.claim.range.covers(range))
                    || listed.may_hide(network, range);
                let checked = match is_part {
                    true => Ok(false),
                    false => self.check(reconciler, view, &object, now).await,
                };
                let taken = match checked {
                    Ok(taken) => taken,
                    Err(error) => {
                        stays(&object.name, error)?;
                        stuck = true;
                        false
                    }
                };
                if !taken {
                    left.push(object);
                }
            }
        }
        self.suspicions.retain(|suspect| known.contains(suspect));
        self.recalled.retain(|suspect, _| known.contains(suspect));
        if stuck {
            self.recheck_at(now.plus(STUCK));
        }
        self.checked = Some(absent);
        Ok(self.again)
    }

    /// Whether the claim is reclaimed.
    async fn check(
        &mut self,
        reconciler: &Reconciler,
        view: &View,
        object: &SliceObject,
        now: Moment,
    ) -> Result<bool, ReconcileError> {
        let (grace, suspect) = (reconciler.grace, suspect(object));
        if let Some(until) = self.suspicions.due(&suspect, grace)
            && until > now
        {
            self.recheck_at(until);
            return Ok(false);
        }
        if let Some(until) = self.settles(reconciler, object, now).await
            && until > now
        {
            self.recheck_at(until);
            return Ok(false);
        }
        let claim = &object.claim;
        let holding = Holding {
            slice: claim.range,
            node: claim.node.clone(),
            epoch: claim.epoch,
        };
        let usage_reader = &reconciler.usage_reader;
        let gone = usage_reader.gone(BTreeSet::from([&claim.node])).await;
        let gone = gone.map_err(UsageError::from)?;
        let definitions = definitions(view, &object.network);
        let networks = [object.network.clone()];
        let names: Vec<String> = definitions.iter().filter_map(|key| name_of(key)).collect();
        let used = usage_reader.uses(&[holding], &networks, &names).await?;
        let lost = !gone.is_empty() && used.live.is_empty();
        let mut taken = false;
        match self.suspicions.observe(suspect, lost, grace, now) {
            Verdict::Kept => self.recheck_at(now.plus(reconciler.pause())),
            Verdict::Suspected { until } => self.recheck_at(until),
            Verdict::Proved if !claim.recalled => {
                let recalled = Claimed {
                    recalled: true,
                    ..claim.clone()
                };
                if usage_reader
                    .ledger
                    .amend_slice(object, &recalled)
                    .await?
                    .is_some()
                {
                    tracing::info!(claim = object.name, node = %claim.node, "a claimed slice is recalled: its node is gone");
                }
                // Its pause starts when the recall is seen.
                self.recheck_at(now);
            }
            Verdict::Proved => {
                usage_reader.retire(&used.pools).await?;
                let done = match after(claim) {
                    None => usage_reader.ledger.end_slice(object).await?,
                    Some(next) => usage_reader
                        .ledger
                        .amend_slice(object, &next)
                        .await?
                        .is_some(),
                };
                taken = done;
                if done {
                    tracing::info!(
                        claim = object.name, node = %claim.node, offers = claim.offers.len(),
                        "claimed slice reclaimed: its node is gone"
                    );
                    reconciler.metrics.reclaimed.inc();
                    self.news.push(Notice::claim_ended(
                        &object.name,
                        &claim.node,
                        claim.offers.len(),
                        definitions.clone(),
                    ));
                } else {
                    self.recheck_at(now.plus(Duration::from_millis(200)));
                }
            }
        }
        Ok(taken)
    }

    /// Until when a recalled claim is left alone: a running agent has noticed it by then.
    async fn settles(
        &mut self,
        reconciler: &Reconciler,
        object: &SliceObject,
        now: Moment,
    ) -> Option<Moment> {
        let suspect = suspect(object);
        if !object.claim.recalled {
            self.recalled.remove(&suspect);
            return None;
        }
        let since = match self.recalled.get(&suspect) {
            Some(since) => since.unwrap_or(now),
            None => {
                let node = &object.claim.node;
                match reconciler.usage_reader.ledger.call_node(node, object).await {
                    Ok(()) => {
                        self.recalled.insert(suspect, None);
                        return Some(now.plus(Duration::from_millis(1)));
                    }
                    Err(error) => {
                        tracing::warn!(%node, claim = object.name, %error, "can't notify the node; retrying");
                        return Some(now.plus(reconciler.pause()));
                    }
                }
            }
        };
        self.recalled.insert(suspect, Some(since));
        Some(since.plus(reconciler.pause()))
    }

    fn recheck_at(&mut self, moment: Moment) {
        self.again = Some(self.again.map_or(moment, |known| known.min(moment)));
    }
}

/// An error that concerns one claim, or one node's claims, is reported, and the others are judged.
fn stays(what: &str, error: ReconcileError) -> Result<(), ReconcileError> {
    if !error.is_of_one() {
        return Err(error);
    }
    tracing::warn!(what, %error, "claim of a lost node stays for now");
    Ok(())
}

fn suspect(object: &SliceObject) -> Suspect {
    let claim = &object.claim;
    (object.name.clone(), claim.node_uid.clone(), claim.epoch)
}

fn name_of(key: &str) -> Option<String> {
    Some(key.split_once('/')?.1.to_owned())
}

/// The definitions whose nodes claim slices of that network, `namespace/name`.
fn definitions(view: &View, network: &str) -> Vec<String> {
    let of = view.definitions.iter().filter(|defined| {
        let mut networks = defined.definition.networks.iter();
        networks.any(|one| {
            let read = one.network.as_ref();
            read.is_ok_and(|read| read.fast_ipam && read.network_name == network)
        })
    });
    of.map(|defined| defined.key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use berth_core::slice::elastic::Offer;

    use super::*;

    #[test]
    fn a_claim_whose_parts_are_others_stays_without_an_owner() {
        let mut claim = Claimed {
            range: "10.0.0.0/26".parse().unwrap(),
            node: NodeName::new("a"),
            node_uid: "u".into(),
            epoch: Epoch(3),
            offers: Vec::new(),
            wants: vec![NodeName::new("c")],
            recalled: true,
        };
        assert_eq!(after(&claim), None);
        claim.offers.push(Offer {
            range: "10.0.0.0/28".parse().unwrap(),
            node: NodeName::new("b"),
        });
        let next = after(&claim).unwrap();
        assert_eq!((next.node.as_str(), next.epoch), ("", Epoch(4)));
        assert_eq!((&next.offers, next.recalled), (&claim.offers, false));
    }
}
