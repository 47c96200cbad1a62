//! The view of a node's slices in the cluster: one pool object per slice, as whereabouts has it, written in the
//! background, many changes at once.
//!
//! The node's ledger is the truth. An entry that is in the object, not in the ledger, and was not put there by this
//! process is somebody else's: it is held here from then on (I7), never removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_core::{Address, Change, Pool, Prefix, Record};
use berth_ledger::{Ledger, LedgerError, PoolKey, Snapshot};
use berth_whereabouts::KubeLedger;

use crate::adopt::{ORIGIN, PLAIN};
use crate::error::SliceError;
use crate::holdings::State;
use crate::ours::Ours;
use crate::pool::SlicePool;
use crate::sliced::Sliced;

/// Writes that met another writer, before it is left to the next time.
const TRIES: usize = 5;

/// Who holds addresses that were surrendered to another node: nobody, here.
pub(crate) const SURRENDERED: &str = "(surrendered)";

/// What this process knows of the objects.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    views: HashMap<Prefix, View>,
    /// Slices that are not held any more, whose objects still show what was.
    given_up: BTreeSet<Prefix>,
}

#[derive(Debug)]
struct View {
    object: Snapshot,
    /// What was put there by this node, as far as this process knows.
    ours: Ours,
    /// Addresses that somebody else has put there and that are held here too: theirs stay as they are (I7).
    disputed: BTreeSet<Address>,
    /// The object says that this node publishes it.
    marked: bool,
    /// This process has read or written the object: what comes into it from then on is not its own of before.
    seen: bool,
}

impl Publisher {
    /// What the ledger had before anything could be freed, and what it notes as published: in the object it is ours, and
    /// goes with it.
    pub fn learn(&mut self, slice: Prefix, ours: &Ours, noted: bool) {
        let view = self.views.entry(slice).or_insert_with(|| View {
            object: Snapshot::default(),
            ours: Ours::default(),
            disputed: BTreeSet::new(),
            marked: false,
            seen: false,
        });
        view.ours.join(ours);
        // What was put there is known from the file.
        view.seen |= noted;
    }

    /// A slice that was just claimed: most likely nobody has published it. If somebody has, the first commit says so.
    pub fn expect_none(&mut self, slice: Prefix) {
        self.views.entry(slice).or_insert(View {
            object: KubeLedger::absent(),
            ours: Ours::default(),
            disputed: BTreeSet::new(),
            marked: false,
            seen: false,
        });
    }

    /// Whether an entry of a slice's object is one that this process has put there, and will take off.
    pub fn has_put(&self, slice: Prefix, address: Address, record: &Record) -> bool {
        let view = self.views.get(&slice);
        view.is_some_and(|view| view.has_put(address, record))
    }
}

impl View {
    fn has_put(&self, address: Address, record: &Record) -> bool {
        self.ours.has(address, record)
    }
}

impl SlicePool {
    /// Brings the objects to what the ledger has; with `anew` the objects are read first.
    pub async fn publish(&self, anew: bool) -> Result<(), SliceError> {
        let since = self.take_changed();
        let mut publisher = self.publisher.lock().await;
        let mut outcome = Ok(());
        // The server asked for a pause: that holds for every slice.
        let told_to_wait = |error: &SliceError| error.retry_after().is_some();
        let held = self.held();
        for holding in held.iter().filter(|one| one.state != State::Moved) {
            if anew && let Some(view) = publisher.views.get_mut(&holding.slice) {
                view.object = Snapshot::default();
            }
            if let Err(error) = self.publish_slice(&mut publisher, holding.slice).await {
                let ends = told_to_wait(&error);
                outcome = Err(error);
                if ends {
                    break;
                }
            }
        }
        if !outcome.as_ref().is_err_and(told_to_wait)
            && let Err(error) = self.clear(&mut publisher).await
        {
            outcome = Err(error);
        }
        match (&outcome, since) {
            (Ok(()), Some(since)) => {
                let lag = since.elapsed().as_secs_f64();
                self.world.metrics.lag.observe(lag);
            }
            (Ok(()), None) => {}
            (Err(_), since) => self.put_back_changed(since),
        }
        outcome
    }

    pub async fn publish_slice(
        &self,
        publisher: &mut Publisher,
        slice: Prefix,
    ) -> Result<(), SliceError> {
        let of = self.of();
        let key = of.published(&self.world.node, slice);
        for ledger in [&*self.world.cluster, &self.world.views] {
            ledger.place(&key, &of.network, self.slot_of(slice));
        }
        for _ in 0..TRIES {
            // Before the object: what is in both is known to be ours, whatever is freed meanwhile.
            let local = self.world.local.load(&of.key()).await?;
            let mut wanted = publishable(&local.pool, slice);
            for nested in self.nested(slice) {
                wanted.retain(|address, _| !nested.contains(*address));
            }
            let fresh = publisher
                .views
                .get(&slice)
                .is_none_or(|view| view.object.version.stored().is_empty());
            if fresh {
                // Kept if the look fails: what was put there is this node's at the next one too.
                let known = publisher.views.get(&slice);
                let unknown = known.is_none_or(|view| view.ours.is_empty() && !view.marked);
                if unknown && wanted.is_empty() && !self.has_object(&of, slice).await? {
                    return Ok(());
                }
                let view = self.look(&of, slice, known, &local.pool).await?;
                publisher.views.insert(slice, view);
                continue;
            }
            let Some(view) = publisher.views.get_mut(&slice) else {
                continue;
            };
            if view
                .disputed
                .iter()
                .any(|address| !wanted.contains_key(address))
            {
                // What is not held here any more is theirs alone.
                view.object = Snapshot::default();
                continue;
            }
            let mut changes = difference(&view.object.pool, &wanted);
            changes.retain(|change| !view.disputed.contains(&change.address()));
            if changes.is_empty() {
                return Ok(());
            }
            // Before it is sent: an answer that is lost may be that of a write that was made, and whoever goes before the next
            // look would be taken for somebody else's there.
            let before = view.ours.clone();
            view.ours.add(&wanted);
            // In the file too: the next process has to know it after a kill -9.
            let nested = self.nested(slice);
            self.world.note(&of, slice, &nested, &view.ours).await?;
            let label = self.label();
            self.world.metrics.publishes.get_or_create(&label).inc();
            match self
                .world
                .views
                .commit(&key, &view.object.version, &changes, None)
                .await
            {
                Ok(version) => {
                    view.ours = Ours::of(&wanted);
                    view.seen = true;
                    if version.is_merged() {
                        view.object = Snapshot::default();
                        continue;
                    }
                    view.object.version = version;
                    for change in &changes {
                        // Planned on exactly this copy.
                        let _ = view.object.pool.apply(change);
                    }
                    return Ok(());
                }
                Err(error) => {
                    if !matches!(error, LedgerError::Uncertain { .. }) {
                        view.ours = before;
                    }
                    if !error.needs_reload() {
                        return Err(error.into());
                    }
                    view.object = Snapshot::default();
                }
            }
        }
        Err(SliceError::Store(LedgerError::Conflict {
            pool: key.name,
            held: Vec::new(),
        }))
    }

    /// Leaves the object of a slice that was given up to the controller, which deletes it, without what this node put
    /// there: somebody who was freed last may still be shown. What fails is done with the next publication.
    pub async fn unpublish(&self, slice: Prefix) {
        let mut publisher = self.publisher.lock().await;
        publisher.given_up.insert(slice);
        if let Err(error) = self.clear(&mut publisher).await {
            tracing::info!(%slice, %error, "the pool of a slice that was given up is emptied later");
            self.touch();
        }
    }

    async fn clear(&self, publisher: &mut Publisher) -> Result<(), SliceError> {
        let mut outcome = Ok(());
        for slice in publisher.given_up.clone() {
            // Each by itself: an object that can't be read holds up no other.
            match self.clear_slice(publisher, slice).await {
                Ok(()) => {
                    publisher.given_up.remove(&slice);
                }
                Err(error) => {
                    let ends = error.retry_after().is_some();
                    outcome = Err(error);
                    if ends {
                        break;
                    }
                }
            }
        }
        outcome
    }

    async fn clear_slice(
        &self,
        publisher: &mut Publisher,
        slice: Prefix,
    ) -> Result<(), SliceError> {
        let held = self.held();
        if held.iter().any(|one| one.slice == slice) {
            // Held again: its object is published like any other.
            return Ok(());
        }
        let key = self.of().published(&self.world.node, slice);
        if let Some(view) = publisher.views.get(&slice) {
            self.clear_object(&key, view).await?;
        }
        self.world.cluster.label_given_back(&key).await?;
        let (of, nested) = (self.of(), self.nested(slice));
        self.world
            .note(&of, slice, &nested, &Ours::default())
            .await?;
        publisher.views.remove(&slice);
        Ok(())
    }

    async fn clear_object(&self, key: &PoolKey, view: &View) -> Result<(), SliceError> {
        for _ in 0..TRIES {
            let object = self.world.cluster.load(key).await?;
            let ours = object.pool.records();
            let ours = ours.filter(|(address, record)| view.has_put(*address, record));
            let changes: Vec<Change> = ours
                .map(|(address, record)| Change::Release {
                    address,
                    expected: record.clone(),
                    cooldown: None,
                })
                .collect();
            if changes.is_empty() {
                return Ok(());
            }
            let emptied = self
                .world
                .views
                .commit(key, &object.version, &changes, None);
            match emptied.await {
                Ok(_) => return Ok(()),
                Err(error) if error.needs_reload() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(SliceError::Store(LedgerError::Conflict {
            pool: key.name.clone(),
            held: Vec::new(),
        }))
    }

    /// Notes what this node has of a slice, before anything is freed in it.
    pub async fn learn(&self, of: &Sliced, slice: Prefix) -> Result<(), LedgerError> {
        let local = self.world.local.load(&of.key()).await?;
        let mut ours = self.world.noted(of, slice).await?;
        let noted = !ours.is_empty();
        ours.join(&Ours::of(&publishable(&local.pool, slice)));
        self.publisher.lock().await.learn(slice, &ours, noted);
        Ok(())
    }

    async fn has_object(&self, of: &Sliced, slice: Prefix) -> Result<bool, LedgerError> {
        let key = of.published(&self.world.node, slice);
        Ok(!self.world.cluster.load(&key).await?.pool.is_empty())
    }

    /// Reads the object; what is somebody else's in it is held here from now on.
    async fn look(
        &self,
        of: &std::sync::Arc<Sliced>,
        slice: Prefix,
        known: Option<&View>,
        local: &Pool,
    ) -> Result<View, SliceError> {
        let key = of.published(&self.world.node, slice);
        let object = self.world.cluster.load(&key).await?;
        let mut ours = known.map(|view| view.ours.clone()).unwrap_or_default();
        let marked = known.is_some_and(|view| view.marked);
        let seen = known.is_some_and(|view| view.seen);
        if !marked && !object.pool.is_empty() {
            self.world
                .cluster
                .publish_as(&key, self.world.node.as_str())
                .await?;
        }
        let mut foreign = Vec::new();
        let mut disputed = BTreeSet::new();
        for (address, record) in object.pool.records() {
            let mine = known.is_some_and(|view| view.has_put(address, record));
            match local.get(address) {
                Some(held) if held.same_holder(record) => {
                    ours.add(&BTreeMap::from([(address, record.clone())]));
                }
                _ if mine => {}
                // A container that was made again.
                Some(held) if held.owner == record.owner => {}
                Some(held) => {
                    self.report_conflict(address, &held.owner.to_string(), &record.owner);
                    // At a start it is more likely what was published before than somebody else's.
                    if seen {
                        disputed.insert(address);
                    }
                }
                None => foreign.push((address, record.clone())),
            }
        }
        // A pod may have got one of them since the ledger was read.
        disputed.extend(self.take_in(of, foreign).await?);
        Ok(View {
            // Read again: the mark is part of what a commit is planned on.
            marked: marked || !object.pool.is_empty(),
            object: if marked || object.pool.is_empty() {
                object
            } else {
                self.world.cluster.load(&key).await?
            },
            ours,
            disputed,
            seen: true,
        })
    }
}

/// What others are shown of a slice.
fn publishable(pool: &Pool, slice: Prefix) -> BTreeMap<Address, Record> {
    pool.records()
        .filter(|(address, record)| {
            slice.contains(*address)
                && record.owner.subject != SURRENDERED
                && record.attribute(ORIGIN) != Some(PLAIN)
        })
        .map(|(address, record)| (address, record.clone()))
        .collect()
}

fn difference(object: &Pool, wanted: &BTreeMap<Address, Record>) -> Vec<Change> {
    let mut changes = Vec::new();
    for (address, held) in object.records() {
        match wanted.get(&address) {
            Some(record) if record.same_holder(held) => {}
            Some(record) => changes.push(Change::Update {
                address,
                expected: held.clone(),
                record: record.clone(),
            }),
            None => changes.push(Change::Release {
                address,
                expected: held.clone(),
                cooldown: None,
            }),
        }
    }
    let fresh = wanted
        .iter()
        .filter(|(address, _)| !object.is_held(**address));
    changes.extend(fresh.map(|(address, record)| Change::Allocate {
        address: *address,
        record: record.clone(),
    }));
    changes
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner};

    use super::*;

    fn record(pod: &str, container: &str) -> Record {
        Record::new(Owner::new(pod, "net1"), Handle::new(container))
    }

    fn pool(entries: &[(&str, Record)]) -> Pool {
        let mut pool = Pool::new();
        for (address, record) in entries {
            pool.restore(address.parse().unwrap(), record.clone());
        }
        pool
    }

    #[test]
    fn the_object_becomes_what_the_ledger_has_of_the_slice() {
        let slice = "10.0.0.0/28".parse().unwrap();
        let ledger = pool(&[
            ("10.0.0.1", record("ns/a", "a2")),
            ("10.0.0.3", record("ns/c", "c1")),
            ("10.0.0.4", record("ns/old", "o1").with(ORIGIN, PLAIN)),
            ("10.0.0.8", record(SURRENDERED, "b")),
            ("10.0.0.17", record("ns/elsewhere", "e1")),
        ]);
        let mut object = pool(&[
            ("10.0.0.1", record("ns/a", "a1")),
            ("10.0.0.2", record("ns/b", "b1")),
        ]);
        let wanted = publishable(&ledger, slice);
        assert_eq!(wanted.len(), 2);
        for change in difference(&object, &wanted) {
            object.apply(&change).unwrap();
        }
        let now: Vec<String> = object
            .records()
            .map(|(a, r)| format!("{a} {}", r.handle))
            .collect();
        assert_eq!(now, ["10.0.0.1 a2", "10.0.0.3 c1"]);
        assert!(difference(&object, &wanted).is_empty());
    }
}
