//! What a sweep reads before it judges: reservations, then all pools, then the pods and nodes that these name.
//!
//! Promises: no list of all entries is held. Of a pool's entries the survey keeps who is named, a few bytes each for the
//! comparison of owners ([`Index`]), and how many entries each reservation has; the pool is read again when it is judged.
//!
//! Pools are read before pods: an entry was made for a pod that existed, so a pod that is missing from the later list has
//! gone since. What changes between the reads of one look is suspected at most, and is found right by the next look.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use berth_core::{Address, Handle, Owner};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, Snapshot, Visited};

use super::duplicates::{Duplicate, Sources};
use super::facts::{Held, Note, Observed, PodRef, Sandbox, Sight};
use super::index::{Index, Shared};
use super::reserved::{Packing, Reserved};
use super::sweep::{Broken, Sweep};
use super::terms::{Terms, read_terms};
use super::witness::NodeSight;

/// One look at the cluster, but for the entries of the pools.
pub(super) struct Survey {
    pub reserved: Reserved,
    pub index: Index,
    /// Every pool that can be read, and how many entries it has.
    pub pools: Vec<(PoolKey, usize)>,
    /// Pools that nodes publish, and the nodes.
    pub views: BTreeMap<String, String>,
    pub terms: Terms,
    /// What was observed of everything else; its entries and reservations are those of one pool at a time.
    pub observed: Observed,
    /// What this node's own journal has.
    pub journal: HashSet<(String, Address, Handle)>,
}

/// What a pass over all pools keeps of them.
#[derive(Default)]
struct Pools {
    reserved: Reserved,
    index: Index,
    pools: Vec<(PoolKey, usize)>,
    views: BTreeMap<String, String>,
    pods: BTreeSet<PodRef>,
    nodes: BTreeSet<String>,
    /// The names of pools that can't be read.
    unreadable: Vec<String>,
}

impl Pools {
    fn add(&mut self, seen: Visited) {
        let Visited {
            key,
            publisher,
            snapshot,
        } = seen;
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(error) => {
                // A person has to look at that one (I5); the others need not wait for it.
                tracing::warn!(pool = %key, %error, "a pool is left out of the sweep");
                self.unreadable.push(key.name);
                return;
            }
        };
        self.index
            .add_pool(&key, publisher.as_deref(), &snapshot.pool);
        let held = held_in(&key, &snapshot);
        self.reserved.count(&held);
        for held in &held {
            self.name(&held.record.owner, held.node());
        }
        if let Some(node) = publisher {
            self.views.insert(key.name.clone(), node);
        }
        self.pools.push((key, held.len()));
    }

    /// The pod and the node have to be looked for.
    fn name(&mut self, owner: &Owner, node: Option<&str>) {
        if let Some(pod) = PodRef::parse(&owner.subject) {
            self.pods.insert(pod);
        }
        if let Some(node) = node.filter(|node| !self.nodes.contains(*node)) {
            self.nodes.insert(node.to_owned());
        }
    }

    fn add_reservations(&mut self) {
        let reserved = std::mem::take(&mut self.reserved);
        for (name, owner) in reserved.owners() {
            self.index.add_reservation(name, &owner);
            self.name(&owner, None);
        }
        self.nodes.extend(reserved.nodes().map(str::to_owned));
        self.reserved = reserved;
    }
}

impl Sweep {
    pub(super) async fn survey(&self) -> Result<Survey, Broken> {
        let mut all = Pools {
            reserved: self.reservations().await?,
            ..Pools::default()
        };
        let mut add = |seen: Visited| all.add(seen);
        self.ledger.visit_pools(&mut add).await?;
        for pool in &all.unreadable {
            all.reserved.withhold(pool);
        }
        all.add_reservations();
        let pods = self.witness.pods(all.pods).await?;
        let mut asked = all.nodes;
        asked.extend(pods.values().filter_map(node_of));
        let nodes = self.witness.nodes(asked).await?;
        let lost = nodes.iter().filter(|(_, sight)| sight.is_lost());
        let lost = lost.map(|(name, _)| name.clone()).collect();
        let there = |(name, sight)| (name, sight != NodeSight::Absent);
        let nodes = nodes.into_iter().map(there).collect();
        let terms = read_terms(&self.witness, Some(&self.policies), &self.flat_places).await?;
        let (journal, journalled) = self.journalled().await?;
        let mut views = self.ledger.views().await?;
        views.extend(all.views);
        let observed = Observed {
            pods,
            nodes,
            lost,
            here: self.node.clone(),
            overlap_checked: terms.overlap_checked(),
            journalled,
            ..Observed::default()
        };
        Ok(Survey {
            reserved: all.reserved,
            index: all.index.sorted(),
            pools: all.pools,
            views,
            terms,
            observed,
            journal,
        })
    }

    async fn reservations(&self) -> Result<Reserved, LedgerError> {
        let mut packing = Packing::default();
        let mut pack = |key: ClaimKey, record| packing.add(&key.name, &record);
        self.ledger
            .visit_claims(ClaimKind::Reservation, &mut pack)
            .await?;
        Ok(packing.done())
    }

    /// What this node's own journal has of the pools of all nodes, and whose entries it has there and in its slices. They are
    /// left to [`super::local`], which knows of their sandboxes.
    async fn journalled(
        &self,
    ) -> Result<(HashSet<(String, Address, Handle)>, HashSet<Owner>), LedgerError> {
        let Some(journal) = &self.journal else {
            return Ok(Default::default());
        };
        let (shared, sliced) = (journal.all().await?, journal.of_slices().await?);
        let all = shared.iter().chain(&sliced);
        let owners = all.map(|(_, entry)| entry.record.owner.clone()).collect();
        let places = shared
            .into_iter()
            .map(|(_, entry)| (entry.pool.name, entry.address, entry.record.handle));
        Ok((places.collect(), owners))
    }

    /// Addresses that seem to have several living owners.
    pub(super) async fn shared(&self, survey: &Survey) -> Result<Vec<Duplicate>, Broken> {
        let differ = |one: &_| survey.index.differ(one, &survey.terms);
        let attached = self.witness.attached(differ).await;
        let attached = attached.unwrap_or_else(|blind| {
            tracing::warn!(%blind, "the pods' own addresses are not compared with the pools");
            Vec::new()
        });
        let mut shared = Shared::of(&survey.index, &attached);
        if shared.is_empty() {
            return Ok(Vec::new());
        }
        let mut add = |seen: Visited| {
            if let Ok(snapshot) = seen.snapshot {
                shared.add_pool(&seen.key, &snapshot.pool);
            }
        };
        self.ledger.visit_pools(&mut add).await?;
        let mut add = |key: ClaimKey, record| shared.add_reservation(key, record);
        self.ledger
            .visit_claims(ClaimKind::Reservation, &mut add)
            .await?;
        let sources = Sources {
            held: &shared.held,
            reservations: &shared.reservations,
            attached: &attached,
            views: &survey.views,
            terms: &survey.terms,
            networks: shared.networks(),
        };
        let found = sources.duplicates().into_iter();
        let living = found.filter_map(|one| one.living(&survey.observed));
        Ok(living.collect())
    }
}

impl Survey {
    /// Turns to the entries of one pool: what was observed of everything else stays.
    pub fn turn_to(&mut self, pool: &PoolKey, snapshot: &Snapshot) {
        let mut held = held_in(pool, snapshot);
        for one in &mut held {
            let place = (pool.name.clone(), one.address, one.record.handle.clone());
            if self.journal.contains(&place) {
                one.note.sandbox = Sandbox::There;
            }
            if one.node().is_none() {
                one.note.node = self.reserved.node_of(one);
            }
        }
        let (reservations, elsewhere) = self.reserved.of_pool(&held);
        self.observed.held = held;
        self.observed.reservations = reservations;
        self.observed.entered_elsewhere = elsewhere;
        self.observed.all_pools = false;
    }

    /// Turns to some of the reservations that no pool has an entry for, as far as pools can be read; false if there are no
    /// more.
    pub fn turn_to_orphans(&mut self, from: usize, count: usize) -> bool {
        let orphans = self.reserved.without_entry().skip(from).take(count);
        self.observed.reservations = orphans.collect();
        self.observed.held = Vec::new();
        self.observed.entered_elsewhere = HashSet::new();
        self.observed.all_pools = true;
        !self.observed.reservations.is_empty()
    }
}

fn held_in(pool: &PoolKey, snapshot: &Snapshot) -> Vec<Held> {
    let entries = snapshot.pool.records().chain(snapshot.pool.rivals());
    let held = entries.map(|(address, record)| Held {
        pool: pool.clone(),
        address,
        record: record.clone(),
        note: Note::default(),
    });
    held.collect()
}

/// The node of a pod that was found.
fn node_of(sight: &Sight) -> Option<String> {
    match sight {
        Sight::There(pod) => pod.node.clone(),
        Sight::Absent => None,
    }
}
