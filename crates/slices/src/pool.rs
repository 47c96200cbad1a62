//! One range on this node: what it holds, and whether that is confirmed.

use std::cmp::Ordering::{Equal, Less};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_core::Prefix;
use berth_core::slice::NodeName;
use berth_core::slice::elastic::Mark;
use berth_ledger::{Guard, LedgerError, SharedLedger, Version};
use berth_whereabouts::slicepools::{StoredSlicePool, Versions};
use tokio::sync::{Mutex as AsyncMutex, Notify, RwLock};
use tokio::time::Instant;

use crate::confirm::Confirmation;
use crate::error::SliceError;
use crate::gate::Gate;
use crate::holdings::{Holding, Holdings, Roll};
use crate::metrics::OfRange;
use crate::publish::Publisher;
use crate::retire::LEAVING;
use crate::sliced::Sliced;
use crate::vain::Vain;
use crate::world::{World, locked};

pub(crate) struct SlicePool {
    pub world: Arc<World>,
    pub holdings: Holdings,
    pub publisher: AsyncMutex<Publisher>,
    /// Held by whoever changes what is held.
    pub gate: Gate,
    /// Held by whoever surrenders parts or passes a slice on, and by whoever takes one on, until it is held; taken after
    /// the gate where both are.
    pub donating: AsyncMutex<()>,
    of: Mutex<Arc<Sliced>>,
    held: Mutex<Held>,
    mark: Mutex<Option<Mark>>,
    /// Since when the range is on its way back.
    leaving: Mutex<Option<Instant>>,
    /// When those were last called who may end a claim of it.
    called: Mutex<Option<Instant>>,
    pub vain: Vain,
    /// When a claim of a slice in use was last found deleted.
    pub vanished: Mutex<Option<Instant>>,
    /// Since when a slice is empty, or an offer not taken.
    idle: Mutex<HashMap<Prefix, Instant>>,
    pub confirmation: Mutex<Confirmation>,
    /// Something was seen that what is held does not fit.
    pub(crate) suspect: AtomicBool,
    /// The published objects may not be as this process knows them.
    pub(crate) anew: AtomicBool,
    /// The API server was away, and is back.
    pub(crate) returned: AtomicBool,
    /// There may be a claim in this node's name that this process does not know: a CREATE without an answer, a question
    /// whose answer came too late.
    unsure: AtomicBool,
    /// The plain pool was empty after the mark was set: nothing comes into it while that stands. Spares a DEL its look;
    /// nothing is given by it, for the range may have gone back and been sliced again since.
    plain_is_empty: AtomicBool,
    /// The plain pool was closed by this process, for slices of a table that Berth's controller tends.
    closed: AtomicBool,
    /// The controller has proved that no other network overlaps this one.
    disjoint: AtomicBool,
    changed: Mutex<Option<Instant>>,
    pub(crate) kick: Notify,
    /// The table of assignments that was last compared.
    table: Mutex<Option<Versions>>,
    /// A controller keeps that table which tells of every slice that changes hands: a watch is enough.
    pub(crate) is_told: AtomicBool,
    /// Held for reading while an address is given, for writing while a slice stops being given from.
    pub giving: RwLock<()>,
}

/// The slices that may be given from, and which state that was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// Apart from each other.
    pub slices: Vec<Prefix>,
    /// Slices that are not given from any more: what pods hold of them is theirs.
    pub lost: Vec<Prefix>,
    generation: u64,
}

#[derive(Default)]
struct Held {
    all: Arc<Vec<Holding>>,
    /// Of their pool in the node's ledger; none before it was read. Another process may have changed it since.
    version: Option<Version>,
    generation: u64,
}

impl SlicePool {
    pub fn new(world: Arc<World>, of: Arc<Sliced>) -> Self {
        let ledger: SharedLedger = world.local.clone();
        Self {
            holdings: Holdings::new(ledger, &of),
            world,
            publisher: AsyncMutex::default(),
            gate: Gate::default(),
            donating: AsyncMutex::default(),
            of: Mutex::new(of),
            held: Mutex::default(),
            mark: Mutex::default(),
            leaving: Mutex::default(),
            called: Mutex::default(),
            vain: Vain::default(),
            vanished: Mutex::default(),
            idle: Mutex::default(),
            suspect: AtomicBool::new(false),
            anew: AtomicBool::new(false),
            returned: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
            plain_is_empty: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            disjoint: AtomicBool::new(false),
            confirmation: Mutex::new(Confirmation::Unknown),
            changed: Mutex::default(),
            kick: Notify::new(),
            table: Mutex::default(),
            is_told: AtomicBool::new(false),
            giving: RwLock::default(),
        }
    }

    pub fn of(&self) -> Arc<Sliced> {
        Arc::clone(&locked(&self.of))
    }

    /// Takes in the network as the newest call has it.
    pub fn renew(&self, of: &Arc<Sliced>) {
        let mut now = locked(&self.of);
        *now = now.renewed(of);
    }

    pub fn label(&self) -> OfRange {
        OfRange {
            pool: self.of().plain().name,
        }
    }

    pub fn held(&self) -> Arc<Vec<Holding>> {
        Arc::clone(&locked(&self.held).all)
    }

    /// The same, and what lets a commit pass only while it is so.
    pub fn held_and_guard(&self) -> (Arc<Vec<Holding>>, Guard) {
        let held = locked(&self.held);
        let guard = self
            .holdings
            .guard(held.version.clone().unwrap_or_default());
        (Arc::clone(&held.all), guard)
    }

    pub fn set_held(&self, roll: Roll) {
        let active = roll.all.iter().filter(|one| one.is_active()).count();
        let gauge = self.world.metrics.held.get_or_create(&self.label()).clone();
        let mut now = locked(&self.held);
        if let Some(known) = &now.version {
            // Nothing new, or read before what is known already was written.
            if matches!(roll.version.order(known), Some(Equal | Less)) {
                return;
            }
            if roll.since != *known {
                self.gate.note_other();
            }
        }
        gauge.set(i64::try_from(active).unwrap_or(i64::MAX));
        now.all = Arc::new(roll.all);
        now.version = Some(roll.version);
        now.generation += 1;
    }

    /// There is more to give from the same slices: whoever found them full looks again.
    pub fn note_more(&self) {
        locked(&self.held).generation += 1;
    }

    /// The slices that may be given from now. One that lies in another is part of it: what others hold of that one is
    /// taken out of use address by address.
    pub fn active(&self) -> Active {
        let confirmed = *locked(&self.confirmation) == Confirmation::Confirmed;
        let held = locked(&self.held);
        let given_from: Vec<Prefix> = held
            .all
            .iter()
            .filter(|holding| {
                let this_boot = !holding.boot.is_empty() && holding.boot == self.world.boot;
                holding.is_active() && (confirmed || this_boot)
            })
            .map(|holding| holding.slice)
            .collect();
        let given_again = |slice: &Prefix| given_from.iter().any(|other| other.covers(*slice));
        let lost = held.all.iter().filter(|one| !one.is_active());
        let lost = lost.map(|one| one.slice);
        let lost = lost.filter(|slice| !given_again(slice)).collect();
        let nested = |slice: &Prefix| {
            let around = |other: &Prefix| other != slice && other.covers(*slice);
            given_from.iter().any(around)
        };
        Active {
            slices: given_from
                .iter()
                .copied()
                .filter(|slice| !nested(slice))
                .collect(),
            lost,
            generation: held.generation,
        }
    }

    /// Slices that were lost, where there is none that may be given from.
    pub async fn lost_without_others(&self) -> Result<Vec<Prefix>, LedgerError> {
        if !self.active().slices.is_empty() {
            return Ok(Vec::new());
        }
        let held = self.holdings.load().await?.all;
        let lost = held.iter().filter(|one| !one.is_active());
        Ok(lost.map(|one| one.slice).collect())
    }

    /// The slices of this node that lie inside `slice`, lost ones too: each is published by itself.
    pub fn nested(&self, slice: Prefix) -> Vec<Prefix> {
        let held = self.held();
        let inside = |holding: &&Holding| holding.slice != slice && slice.covers(holding.slice);
        held.iter()
            .filter(inside)
            .map(|holding| holding.slice)
            .collect()
    }

    /// The slices inside `slice` that this node gives from: what is in use there is theirs to say.
    pub fn active_inside(&self, slice: Prefix) -> Vec<Prefix> {
        let held = self.held();
        let inside =
            |one: &&Holding| one.is_active() && one.slice != slice && slice.covers(one.slice);
        held.iter().filter(inside).map(|one| one.slice).collect()
    }

    pub fn known_mark(&self) -> Option<Mark> {
        *locked(&self.mark)
    }

    pub fn set_mark(&self, mark: Option<Mark>) {
        *locked(&self.mark) = mark;
    }

    pub fn has_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::Release);
    }

    pub fn is_disjoint(&self) -> bool {
        self.disjoint.load(Ordering::Acquire)
    }

    pub fn set_disjoint(&self, disjoint: bool) {
        self.disjoint.store(disjoint, Ordering::Release);
    }

    /// Notes whether other networks overlap this one, in the node's ledger too: it is needed while the API server is away.
    pub async fn prove(&self, disjoint: bool) -> Result<(), SliceError> {
        if self.is_disjoint() == disjoint {
            return Ok(());
        }
        let _gate = self.gate.lock().await;
        self.set_disjoint(disjoint);
        for holding in self.held().iter().filter(|one| one.is_active()) {
            let proved = Holding {
                disjoint,
                ..holding.clone()
            };
            self.renew_holding(&proved).await?;
        }
        Ok(())
    }

    pub fn known_table(&self) -> Option<Versions> {
        locked(&self.table).clone()
    }

    /// Remembers which table was compared; one in which this node has nothing is always read.
    pub fn note_table(&self, table: Option<&StoredSlicePool>) {
        let none = self.active().slices.is_empty();
        *locked(&self.table) = table.filter(|_| !none).map(StoredSlicePool::versions);
        let told = table.is_some_and(StoredSlicePool::tells);
        self.is_told.store(told, Ordering::Release);
    }

    pub fn plain_is_empty(&self) -> bool {
        self.plain_is_empty.load(Ordering::Acquire)
    }

    pub fn set_plain_is_empty(&self, empty: bool) {
        self.plain_is_empty.store(empty, Ordering::Release);
    }

    /// Since when this is so; `now` if it is so, and not known to have been.
    pub fn idle_since(&self, slice: Prefix, now: Option<Instant>) -> Option<Instant> {
        let mut idle = locked(&self.idle);
        match now {
            Some(now) => Some(*idle.entry(slice).or_insert(now)),
            None => {
                idle.remove(&slice);
                None
            }
        }
    }

    /// How long the range has been seen on its way back to its plain pool, this look included.
    pub fn leaving_for(&self, leaving: bool) -> Duration {
        let mut since = locked(&self.leaving);
        *since = leaving.then(|| since.unwrap_or_else(Instant::now));
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether it was at the last look.
    pub fn is_leaving(&self) -> bool {
        locked(&self.leaving).is_some()
    }

    /// Whether it is time to call others again; if it is, they were called now.
    pub fn calls_again(&self, pause: Duration) -> bool {
        let mut called = locked(&self.called);
        let due = called.is_none_or(|last| last.elapsed() >= pause);
        if due {
            *called = Some(Instant::now());
        }
        due
    }

    /// Looks at the claims of what is held: somebody has written on one of them.
    pub async fn heed_call(&self) -> Result<(), SliceError> {
        let of = self.of();
        for holding in self.held().iter().filter(|holding| holding.is_active()) {
            let found = self.world.cluster.slice(&of.network, holding.slice).await?;
            let asks = |want: &NodeName| want.as_str() == LEAVING;
            match found {
                Some(object) if self.knows(&object.claim) => {
                    if object.claim.wants.iter().any(asks) {
                        self.suspect();
                    } else if !object.claim.wants.is_empty() {
                        self.answer_wants(&object).await?;
                    }
                }
                found => {
                    // At once: whoever has the gate may wait for others, and the controller does not wait for it.
                    if found.is_some_and(|object| object.claim.recalled) {
                        self.lose(holding, "recalled").await?;
                    }
                    self.suspect();
                }
            }
        }
        Ok(())
    }

    /// What is held has to be compared with the cluster's objects.
    pub fn suspect(&self) {
        self.suspect.store(true, Ordering::Release);
        self.kick.notify_one();
    }

    /// The next publication reads the objects first.
    pub fn read_anew(&self) {
        self.anew.store(true, Ordering::Release);
    }

    /// The next comparison lists the claims in this node's name.
    pub fn set_unsure(&self, unsure: bool) {
        self.unsure.store(unsure, Ordering::Release);
    }

    pub fn is_unsure(&self) -> bool {
        self.unsure.load(Ordering::Acquire)
    }

    /// Something was changed that has to be published.
    pub fn touch(&self) {
        locked(&self.changed).get_or_insert_with(Instant::now);
        self.kick.notify_one();
    }

    pub fn take_changed(&self) -> Option<Instant> {
        locked(&self.changed).take()
    }

    pub fn put_back_changed(&self, since: Option<Instant>) {
        if let Some(since) = since {
            let mut changed = locked(&self.changed);
            *changed = Some(changed.map_or(since, |now| now.min(since)));
        }
    }
}
