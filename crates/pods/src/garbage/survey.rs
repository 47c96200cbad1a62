//! What a sweep keeps beside the pools: reservations, what networks want of their pools, and this node's journal.
//!
//! Guarantees: no list of all entries is held. Of a pool's entries a few bytes each are kept for the
//! comparison of owners ([`AddressIndex`]), and how many entries each reservation has.
//!
//! Reservations are read before pools: a reservation is made after its entry, so one that the list shows has its entry in
//! the pools that are read later, or has none.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use berth_collector::observed::{Held, Observed, Owners, PodRef, Sandbox};
use berth_collector::suspicions::Round;
use berth_collector::{Names, Policy, ReadPool, Survey, SweepError};
use berth_core::{Address, Handle, Owner};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, Visited};
use tokio::time::sleep;

use super::address_index::{AddressIndex, Shared};
use super::claim_repair::{self, ClaimedPools};
use super::duplicates::{Duplicate, Holder, Place, Sources};
use super::packed_reservations::{PackedReservations, Packing};
use super::plan::{PoolReservations, Reservation, Step, plan_orphans, plan_pool};
use super::policy::PodPolicy;
use super::pool_policies::PoolPolicies;

/// Between the two reads of an address that seems to have several holders.
const READ_AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct PodSurvey {
    reserved: PackedReservations,
    index: AddressIndex,
    policies: PoolPolicies,
    overlap_checked: HashSet<String>,
    /// Pools that nodes publish, and the nodes.
    published: BTreeMap<String, String>,
    /// Pools with an entry that has no reservation of its own.
    unreserved: HashSet<String>,
    /// The names of pools that can't be read.
    unreadable: Vec<String>,
    claimed: ClaimedPools,
    /// What this node's own journal has of shared pools.
    journal: HashSet<(String, Address, Handle)>,
    /// Owners in the journal: what they hold is released by this node, which knows about their sandboxes.
    journalled: HashSet<Owner>,
    disputed: Vec<Address>,
    /// How many reservations without an entry were planned.
    planned: usize,
}

impl PodSurvey {
    pub(super) async fn begin(policy: &PodPolicy) -> Result<PodSurvey, SweepError> {
        let policies = policy.pool_policies().await?;
        let mut survey = PodSurvey {
            reserved: reservations(policy).await?,
            overlap_checked: policies.overlap_checked(),
            policies,
            ..PodSurvey::default()
        };
        survey.read_journal(policy).await?;
        Ok(survey)
    }

    /// What the journal has is left to the local collector, which knows about its sandboxes.
    async fn read_journal(&mut self, policy: &PodPolicy) -> Result<(), LedgerError> {
        let Some(journal) = &policy.journal else {
            return Ok(());
        };
        let (shared, sliced) = (journal.all().await?, journal.of_slices().await?);
        let all = shared.iter().chain(&sliced);
        self.journalled = all.map(|(_, entry)| entry.record.owner.clone()).collect();
        let places = shared
            .into_iter()
            .map(|(_, entry)| (entry.pool.name, entry.address, entry.record.handle));
        self.journal = places.collect();
        Ok(())
    }

    /// Addresses that seem to have several living owners.
    async fn shared(
        &self,
        policy: &PodPolicy,
        owners: &Owners,
    ) -> Result<Vec<Duplicate>, SweepError> {
        let differ = |one: &_| self.index.differ(one, &self.policies);
        let attached = policy.reader.attached(differ).await;
        let attached = attached.unwrap_or_else(|error| {
            tracing::warn!(%error, "the pods' network-status is not compared with the pools");
            Vec::new()
        });
        let mut shared = Shared::of(&self.index, &attached);
        if shared.is_empty() {
            return Ok(Vec::new());
        }
        let mut add = |visited: Visited| {
            if let Ok(snapshot) = visited.snapshot {
                shared.add_pool(&visited.key, &snapshot.pool);
            }
        };
        policy.ledger.visit_pools(&mut add).await?;
        let mut add = |key: ClaimKey, record| shared.add_reservation(key, record);
        policy
            .ledger
            .visit(ClaimKind::Reservation, &mut add)
            .await?;
        let sources = Sources {
            held: &shared.held,
            reservations: &shared.reservations,
            attached: &attached,
            published: &self.published,
            pool_policies: &self.policies,
            networks: shared.networks(),
        };
        let found = sources.duplicates().into_iter();
        let living = found.filter_map(|one| one.living(owners));
        Ok(living.collect())
    }

    /// Addresses that several living owners have by two reads: an ADD under way has an entry before it knows whether
    /// another has the address.
    async fn duplicates(
        &self,
        policy: &PodPolicy,
        owners: &Owners,
    ) -> Result<Vec<Duplicate>, SweepError> {
        let found = self.shared(policy, owners).await?;
        if found.is_empty() {
            return Ok(found);
        }
        sleep(READ_AGAIN).await;
        let mut confirmed = Vec::new();
        for mut duplicate in found {
            let mut holders = Vec::new();
            for holder in duplicate.holders {
                if still_has(policy, &holder, duplicate.address).await? {
                    holders.push(holder);
                }
            }
            duplicate.holders = holders;
            if duplicate.holders.len() > 1 {
                confirmed.push(duplicate);
            }
        }
        Ok(confirmed)
    }
}

#[async_trait]
impl Survey<PodPolicy> for PodSurvey {
    fn pool_policies(&self) -> &PoolPolicies {
        &self.policies
    }

    fn add_pool(&mut self, pool: &ReadPool<'_>) {
        let name = &pool.key.name;
        self.index
            .add_pool(pool.key, pool.publisher, &pool.snapshot.pool);
        if !self.reserved.count(pool.held) {
            self.unreserved.insert(name.clone());
        }
        let is_published = pool.publisher.is_some();
        if let Some(node) = pool.publisher {
            self.published.insert(name.clone(), node.to_owned());
        }
        if !is_published || self.overlap_checked.contains(name) {
            let of_pool = self.policies.of(name);
            self.claimed.add(pool.key, of_pool, pool.held);
        }
    }

    fn add_unreadable(&mut self, pool: &PoolKey) {
        self.unreadable.push(pool.name.clone());
    }

    fn add_names(&mut self, names: &mut Names) {
        for pool in &self.unreadable {
            self.reserved.withhold(pool);
        }
        for (name, owner) in self.reserved.owners() {
            self.index.add_reservation(name, &owner);
            names.add(PodRef::parse(&owner.subject), None);
        }
        for node in self.reserved.nodes() {
            names.add(None, Some(node));
        }
        self.index.sort();
    }

    /// Reports duplicates, once a sweep: it reads the status of every pod.
    async fn check(
        &mut self,
        policy: &PodPolicy,
        owners: &Owners,
        first: bool,
    ) -> Result<(), SweepError> {
        if first {
            let duplicates = self.duplicates(policy, owners).await?;
            policy.report(&duplicates, owners).await;
        }
        Ok(())
    }

    /// A living entry may lack its reservation.
    fn wants(&self, pool: &PoolKey) -> bool {
        self.overlap_checked.contains(&pool.name) && self.unreserved.contains(&pool.name)
    }

    fn add_notes(&self, held: &mut [Held]) {
        for one in held {
            let place = (
                one.pool.name.clone(),
                one.address,
                one.record.handle.clone(),
            );
            if self.journal.contains(&place) {
                one.note.sandbox = Sandbox::Present;
            }
            // The entry of a large pool names no node, nor does one whose definition prunes the field.
            if one.node().is_none() {
                one.note.node = self.reserved.node_of(one);
            }
        }
    }

    fn plan(&mut self, _: &PodPolicy, observed: &Observed, round: &mut Round<'_>) -> Vec<Step> {
        let Some(pool) = observed.held.first().map(|held| &held.pool.name) else {
            return Vec::new();
        };
        let (reservations, entered_elsewhere) = self.reserved.of_pool(&observed.held);
        let reserved = PoolReservations {
            reservations,
            entered_elsewhere,
            overlap_checked: self.overlap_checked.contains(pool),
        };
        let plan = plan_pool(observed, &reserved, round);
        for dispute in &plan.disputes {
            tracing::error!(
                address = %dispute.address, entry = %dispute.entry, other = %dispute.other,
                "two living pods hold one address; delete one of them"
            );
            self.disputed.push(dispute.address);
        }
        plan.steps
    }

    fn plan_rest(
        &mut self,
        owners: &Owners,
        round: &mut Round<'_>,
        batch: usize,
    ) -> Option<Vec<Step>> {
        let orphans = self.reserved.without_entry().skip(self.planned).take(batch);
        let orphans: Vec<Reservation> = orphans.collect();
        self.planned += orphans.len();
        if orphans.is_empty() {
            return None;
        }
        Some(plan_orphans(&orphans, owners, &self.journalled, round))
    }

    async fn finish(&mut self, policy: &PodPolicy, first: bool) -> Result<(), SweepError> {
        if first {
            let mut all = policy.reported();
            all.extend(self.disputed.iter().copied());
            let count = i64::try_from(all.len()).unwrap_or(i64::MAX);
            policy.metrics.disputes.set(count);
        }
        let missing = claim_repair::find(&policy.sticky, &self.claimed, &self.policies).await?;
        for one in missing {
            // What another holder has by now stays theirs; what fails is found again by the next sweep.
            if let Err(error) = claim_repair::enter(&policy.ledger, &one).await {
                tracing::warn!(?one, %error, "an address that a claim records is not held yet");
            }
        }
        Ok(())
    }
}

impl PodPolicy {
    /// Logs every duplicate, and writes an Event on its pods once for as long as it lasts.
    async fn report(&self, duplicates: &[Duplicate], owners: &Owners) {
        let reported = self.set_reported(duplicates.iter().map(|one| one.address).collect());
        for duplicate in duplicates {
            tracing::error!(
                "{duplicate}; delete all but one of these pods, or release the address by hand"
            );
            if reported.contains(&duplicate.address) {
                continue;
            }
            for pod in duplicate.pods() {
                let found = owners.pods.get(&pod).and_then(|state| state.present());
                let uid = found.and_then(|found| found.uids.first());
                self.recorder
                    .duplicate(&pod, uid.map(String::as_str), duplicate)
                    .await;
            }
        }
    }
}

async fn reservations(policy: &PodPolicy) -> Result<PackedReservations, LedgerError> {
    let mut packing = Packing::default();
    let mut pack = |key: ClaimKey, record| packing.add(&key.name, &record);
    policy
        .ledger
        .visit(ClaimKind::Reservation, &mut pack)
        .await?;
    Ok(packing.done())
}

async fn still_has(
    policy: &PodPolicy,
    holder: &Holder,
    address: Address,
) -> Result<bool, LedgerError> {
    Ok(match &holder.place {
        Place::Pool(pool) => {
            let now = policy.ledger.peek(pool).await?;
            let mut holders = now.pool.holders(address);
            holders.any(|record| record.owner == holder.owner)
        }
        Place::Reservation(name) => {
            let key = ClaimKey::new(ClaimKind::Reservation, name);
            let now = policy.ledger.get(&key).await?;
            now.is_some_and(|record| record.owner == holder.owner)
        }
        Place::Pod(_) => true,
    })
}
