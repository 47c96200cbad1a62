//! The taker's side of borrowing: other nodes are asked, one after another, for a part of what they hold.

use std::sync::Arc;
use std::time::Duration;

use berth_core::slice::elastic::{Claimed, Offer};
use berth_core::{Prefix, hash_index};
use berth_whereabouts::SliceObject;
use rand::RngExt;
use tokio::time::{Instant, sleep};

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::sliced::Sliced;

/// Between looks at a donor's answer.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// How long what is free may go from hand to hand before one who asks gives up.
const BORROW_LIMIT: Duration = Duration::from_secs(40);
/// How many are asked in one round: a question is some writes at the API server, and where so many have nothing left, the next
/// ADD asks others.
const DONORS: usize = 32;

/// What became of a question.
enum Reply {
    Part(Prefix),
    /// The claim itself is ours now.
    Whole(Box<SliceObject>),
    Nothing,
    /// The donor is away, or slow: it may still answer, and the offer is found by the next search.
    Silence,
}

/// Who holds what: what a round of questions is about.
fn picture(claims: &[SliceObject]) -> Vec<(Prefix, String, Vec<Offer>)> {
    let one = |object: &SliceObject| {
        let claim = &object.claim;
        (claim.range, claim.node.to_string(), claim.offers.clone())
    };
    claims.iter().map(one).collect()
}

/// Whether something is on its way to somebody: it may come back.
fn has_open_offer(claims: &[SliceObject]) -> bool {
    let claimed = |part: Prefix| claims.iter().any(|object| object.claim.range == part);
    let mut offers = claims.iter().flat_map(|object| &object.claim.offers);
    offers.any(|offer| !claimed(offer.range))
}

impl SlicePool {
    /// Gets a part of another node's slice, or back what it was offered; says how many were asked in vain. The gate must be
    /// held.
    ///
    /// While others ask too, what is free goes from hand to hand: nothing is to be had only when everybody was asked and
    /// nobody's claim has changed meanwhile.
    pub async fn borrow(&self, of: &Arc<Sliced>) -> Result<Result<(), usize>, SliceError> {
        let end = Instant::now() + BORROW_LIMIT;
        // An answer may come when nobody waits for it any more: a claim in our name that nothing is known of.
        self.set_unsure(true);
        let mut claims = self.list_claims(of).await?.claims;
        loop {
            let Err(asked) = self.ask_all(of, &claims, end).await? else {
                return Ok(Ok(()));
            };
            let pause = PAUSE * rand::rng().random_range(1..8);
            sleep(pause).await;
            if self.claim_free(of).await? {
                return Ok(Ok(()));
            }
            // What this node offered and nobody took can be told by nobody else; its keeper waits for the gate.
            if self.withdraw_offers(of).await? {
                return Ok(Ok(()));
            }
            let now = self.list_claims(of).await?.claims;
            let settled = picture(&now) == picture(&claims) && !has_open_offer(&now);
            if settled || Instant::now() >= end {
                return Ok(Err(asked));
            }
            claims = now;
        }
    }

    async fn ask_all(
        &self,
        of: &Arc<Sliced>,
        claims: &[SliceObject],
        end: Instant,
    ) -> Result<Result<(), usize>, SliceError> {
        let me = &self.world.node;
        for object in claims {
            // What was offered to us and came too late for the one who asked.
            for offer in object.claim.offers.iter().filter(|offer| offer.node == *me) {
                let claimed = claims.iter().any(|one| one.claim.range == offer.range);
                if !claimed && self.take_part(of, object, offer.range).await? {
                    return Ok(Ok(()));
                }
            }
            if object.claim.node.as_str().is_empty() && self.take_over(of, object).await? {
                return Ok(Ok(()));
            }
        }
        let mut donors: Vec<&SliceObject> = claims
            .iter()
            .filter(|object| object.claim.node != *me && !object.claim.node.as_str().is_empty())
            .collect();
        // Some of many, others each time; everybody asks in an order of his own, the large slices first.
        let orders = u128::from(u32::MAX);
        if donors.len() > DONORS {
            let salt = rand::rng().random_range(0..u64::MAX);
            donors.sort_by_cached_key(|object| {
                hash_index(&format!("{salt} {}", object.name), orders)
            });
            donors.truncate(DONORS);
        }
        donors.sort_by_cached_key(|object| {
            let order = hash_index(&format!("{me} {}", object.name), orders);
            (object.claim.range.length(), order)
        });
        let mut silent: Vec<&str> = Vec::new();
        let mut asked = 0;
        for donor in donors {
            if silent.contains(&donor.claim.node.as_str()) {
                continue;
            }
            if Instant::now() >= end {
                break;
            }
            asked += 1;
            match self.ask(of, donor.claim.range).await? {
                Reply::Part(part) => {
                    let now = self
                        .world
                        .cluster
                        .slice(&of.network, donor.claim.range)
                        .await?;
                    if let Some(parent) = now
                        && self.take_part(of, &parent, part).await?
                    {
                        return Ok(Ok(()));
                    }
                }
                Reply::Whole(object) => {
                    if self.take_whole(of, &object).await? {
                        return Ok(Ok(()));
                    }
                }
                Reply::Nothing => {}
                Reply::Silence => {
                    tracing::warn!(node = %donor.claim.node, slice = %donor.claim.range, "no answer to a request for a part");
                    silent.push(donor.claim.node.as_str());
                }
            }
        }
        Ok(Err(asked))
    }

    /// Puts our name on a donor's claim and waits for what it makes of it.
    async fn ask(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<Reply, SliceError> {
        let me = &self.world.node;
        let end = Instant::now() + self.world.settings.donor_wait;
        let mut asked = false;
        let mut pause = PAUSE;
        // Offers of before are held already, or were tried.
        let mut before: Option<Vec<Offer>> = None;
        loop {
            let Some(object) = self.world.cluster.slice(&of.network, slice).await? else {
                return Ok(Reply::Nothing);
            };
            if object.claim.node == *me {
                return Ok(Reply::Whole(Box::new(object)));
            }
            let before = before.get_or_insert_with(|| object.claim.offers.clone());
            let mut offers = object.claim.offers.iter();
            let offer = offers.find(|offer| offer.node == *me && !before.contains(offer));
            if let Some(offer) = offer {
                return Ok(Reply::Part(offer.range));
            }
            let waits = object.claim.wants.contains(me);
            if asked && !waits {
                return Ok(Reply::Nothing);
            }
            if Instant::now() >= end {
                self.take_back_want(&object).await?;
                return Ok(Reply::Silence);
            }
            if waits {
                asked = true;
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            }
            let mut claim = object.claim.clone();
            claim.wants.push(me.clone());
            let written = self.world.cluster.amend_slice(&object, &claim).await?;
            asked = written.is_some();
            if asked {
                self.world.call(&claim.node, &object).await;
            }
        }
    }

    async fn take_back_want(&self, object: &SliceObject) -> Result<(), SliceError> {
        let mut claim = object.claim.clone();
        claim.wants.retain(|want| *want != self.world.node);
        if claim.wants.len() != object.claim.wants.len() {
            // Lost to another writer: a late offer is found by the next search, or taken back.
            self.world.cluster.amend_slice(object, &claim).await?;
        }
        Ok(())
    }

    /// Claims a part that was offered, then looks whether it still is: only then it is ours.
    async fn take_part(
        &self,
        of: &Arc<Sliced>,
        parent: &SliceObject,
        part: Prefix,
    ) -> Result<bool, SliceError> {
        let world = &self.world;
        let held = self.held();
        if held
            .iter()
            .any(|holding| holding.slice == part && holding.is_active())
        {
            return Ok(false);
        }
        let claim = world.claimed(part, world.node_uid().await?);
        let made = world
            .cluster
            .claim_slice(&of.network, of.range, &claim)
            .await?;
        let Some(child) = made else {
            return Ok(false);
        };
        let now = world.cluster.slice(&of.network, parent.claim.range).await?;
        if !now.is_some_and(|now| now.claim.lets(part, &world.node)) {
            self.drop_claim(&child).await?;
            return Ok(false);
        }
        self.take(of, &child).await?;
        world.metrics.borrows.get_or_create(&self.label()).inc();
        tracing::info!(%part, slice = %parent.claim.range, node = %parent.claim.node, "a part of another node's slice is held");
        Ok(true)
    }

    /// Takes on a slice that its node has passed on to this one.
    async fn take_whole(&self, of: &Arc<Sliced>, object: &SliceObject) -> Result<bool, SliceError> {
        let claim = Claimed {
            node_uid: self.world.node_uid().await?,
            recalled: false,
            ..object.claim.clone()
        };
        match self.world.cluster.amend_slice(object, &claim).await? {
            Some(object) => {
                self.take(of, &object).await?;
                self.world
                    .metrics
                    .borrows
                    .get_or_create(&self.label())
                    .inc();
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Takes on a slice whose node was lost while parts of it were others'.
    async fn take_over(&self, of: &Arc<Sliced>, object: &SliceObject) -> Result<bool, SliceError> {
        match self.inherit(object).await? {
            Some(object) => {
                self.take(of, &object).await?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Writes this node's name on a claim that is nobody's. None: somebody was faster.
    pub async fn inherit(&self, object: &SliceObject) -> Result<Option<SliceObject>, SliceError> {
        let claim = Claimed {
            node: self.world.node.clone(),
            node_uid: self.world.node_uid().await?,
            epoch: berth_core::slice::Epoch(object.claim.epoch.0 + 1),
            wants: Vec::new(),
            ..object.claim.clone()
        };
        // Until it is held it is a claim in our name that nothing is known of.
        self.set_unsure(true);
        Ok(self.world.cluster.amend_slice(object, &claim).await?)
    }
}
