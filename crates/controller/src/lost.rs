//! Slices that nodes claimed by themselves, and whose nodes are gone (docs/decisions/0006-slices.md, "Loss").
//!
//! ```text
//!   claim of a node that is gone, unused, twice a grace period apart -> recalled, and the node is called
//!   a pause, one more look                                           -> without offers: deleted
//!                                                                   -> with offers: nobody's, at the next epoch
//! ```
//! A look and a write are two moments: a Node may be made again between them, under an agent that never stopped. That agent
//! has heard of the recall by the second look, and gives nothing from the claim before it has written on it, which ends what
//! was planned on it.
//! A claim with offers keeps its name: the parts that others have would be free by name while they live. Whoever
//! finds one that is nobody's may take it. Both are guarded by the version that was judged.
//! Each claim is judged by itself: one that has to stay holds up no other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_core::Moment;
use berth_core::slice::elastic::Claimed;
use berth_core::slice::proof::{Suspicions, Verdict};
use berth_core::slice::{Epoch, Holding, NodeName};
use berth_ledger::kube::SliceObject;

use crate::events::News;
use crate::look::LookError;
use crate::seen::View;
use crate::tend::{TendError, Tender};

/// After a claim that nobody can judge: somebody may have made it good.
const STUCK: Duration = Duration::from_secs(30);

/// Which claim is suspected: its name, its node's UID, its epoch.
type Suspect = (String, String, Epoch);

/// Names and UIDs of nodes that went, and names of those out of service.
type Absent = (BTreeMap<String, String>, BTreeSet<NodeName>);

#[derive(Debug, Default)]
pub(crate) struct LostClaims {
    suspicions: Suspicions<Suspect>,
    /// Nodes that were seen to go, or out of service, when all claims were last looked at.
    looked: Option<Absent>,
    again: Option<Moment>,
    /// Claims that are known to be recalled and whose nodes were called, since when: counted from the pass after that, for
    /// a pass may take longer than the pause. Who made a recall, and when, is nowhere told.
    recalled: BTreeMap<Suspect, Option<Moment>>,
    /// What was taken back, until it is told.
    pub news: Vec<News>,
}

/// What becomes of the claim of a node that is gone; none: it goes.
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
    /// The next look begins with all claims.
    pub fn forget(&mut self) {
        self.looked = None;
    }

    /// Looks if something may be lost; when to look again.
    pub async fn tend(
        &mut self,
        tender: &Tender,
        view: &View,
        now: Moment,
    ) -> Result<Option<Moment>, TendError> {
        let due = self.again.is_some_and(|again| again <= now);
        let absent = (view.gone.clone(), view.out_of_service.clone());
        if self.looked.as_ref() == Some(&absent) && !due {
            return Ok(self.again);
        }
        self.again = None;
        let ledger = &tender.looker.ledger;
        let mut known = BTreeSet::new();
        let mut stuck = false;
        for label in ledger.strange_claimants(&view.nodes).await? {
            let node = NodeName::new(label);
            let listed = ledger.list_slices(None, Some(&node)).await?;
            // A claim that can't be read stays; the others of its node are judged.
            for unreadable in &listed.unreadable {
                tracing::warn!(claim = unreadable.name, error = %unreadable.why, "a claim of a node that is gone stays");
                stuck = true;
            }
            let mut objects = listed.claims.clone();
            // Whole before part: what the lost node still has on its way to the whole dies before another can have the
            // part.
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
                let looked = match is_part {
                    true => Ok(false),
                    false => self.look(tender, view, &object, now).await,
                };
                let taken = match looked {
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
            self.look_at(now.plus(STUCK));
        }
        self.looked = Some(absent);
        Ok(self.again)
    }

    /// Whether the claim is taken back.
    async fn look(
        &mut self,
        tender: &Tender,
        view: &View,
        object: &SliceObject,
        now: Moment,
    ) -> Result<bool, TendError> {
        let (grace, suspect) = (tender.grace, suspect(object));
        if let Some(until) = self.suspicions.due(&suspect, grace)
            && until > now
        {
            self.look_at(until);
            return Ok(false);
        }
        if let Some(until) = self.settles(tender, object, now).await
            && until > now
        {
            self.look_at(until);
            return Ok(false);
        }
        let claim = &object.claim;
        let holding = Holding {
            slice: claim.range,
            node: claim.node.clone(),
            epoch: claim.epoch,
        };
        let looker = &tender.looker;
        let gone = looker.gone(BTreeSet::from([&claim.node])).await;
        let gone = gone.map_err(LookError::from)?;
        let definitions = definitions(view, &object.network);
        let networks = [object.network.clone()];
        let names: Vec<String> = definitions.iter().filter_map(|key| name_of(key)).collect();
        let used = looker.uses(&[holding], &networks, &names).await?;
        let lost = !gone.is_empty() && used.live.is_empty();
        let mut taken = false;
        match self.suspicions.look(suspect, lost, grace, now) {
            Verdict::Kept => self.look_at(now.plus(tender.pause())),
            Verdict::Suspected { until } => self.look_at(until),
            Verdict::Proved if !claim.recalled => {
                let recalled = Claimed {
                    recalled: true,
                    ..claim.clone()
                };
                if looker
                    .ledger
                    .amend_slice(object, &recalled)
                    .await?
                    .is_some()
                {
                    tracing::info!(claim = object.name, node = %claim.node, "a claimed slice is recalled: its node is gone");
                }
                // Its pause begins when it is seen.
                self.look_at(now);
            }
            Verdict::Proved => {
                looker.retire(&used.pools).await?;
                let done = match after(claim) {
                    None => looker.ledger.end_slice(object).await?,
                    Some(next) => looker.ledger.amend_slice(object, &next).await?.is_some(),
                };
                taken = done;
                if done {
                    tracing::info!(
                        claim = object.name, node = %claim.node, offers = claim.offers.len(),
                        "a claimed slice was taken back: its node is gone"
                    );
                    tender.metrics.reclaimed.inc();
                    self.news.push(News::claim_ended(
                        &object.name,
                        &claim.node,
                        claim.offers.len(),
                        definitions.clone(),
                    ));
                } else {
                    self.look_at(now.plus(Duration::from_millis(200)));
                }
            }
        }
        Ok(taken)
    }

    /// Until when a claim that is recalled is left alone: an agent that runs after all has heard of it then.
    async fn settles(
        &mut self,
        tender: &Tender,
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
                match tender.looker.ledger.call_node(node, object).await {
                    Ok(()) => {
                        self.recalled.insert(suspect, None);
                        return Some(now.plus(Duration::from_millis(1)));
                    }
                    Err(error) => {
                        tracing::warn!(%node, claim = object.name, %error, "the node was not called; it is again");
                        return Some(now.plus(tender.pause()));
                    }
                }
            }
        };
        self.recalled.insert(suspect, Some(since));
        Some(since.plus(tender.pause()))
    }

    fn look_at(&mut self, moment: Moment) {
        self.again = Some(self.again.map_or(moment, |known| known.min(moment)));
    }
}

/// An error that is of one claim, or of one node's, is told, and the others are looked at.
fn stays(what: &str, error: TendError) -> Result<(), TendError> {
    if !error.is_of_one() {
        return Err(error);
    }
    tracing::warn!(what, %error, "a claim of a node that is gone stays");
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
    fn a_claim_whose_parts_are_others_stays_as_nobodys() {
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
