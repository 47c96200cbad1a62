//! The journal of attachments: which outside effects of its allocations this node has to carry out, one row per item.
//!
//! A target is what the effects are on, such as a NIC of this VM and its range. A row says who holds the item, whether
//! it is attached or has to be detached, and the call that is under way.
//!
//! Guarantees: an entry is durable before the call that it announces (I9); a detach survives the process, and with it
//! the holder that the pool's release names (I6). Nothing is kept in memory except what a process released itself: a
//! plugin that runs without the agent writes the same file. Reads are by key; waiting writes share one transaction.

mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use berth_attachment::{Entry, Goal, Intent, IntentId, Journal, Recorded};
use berth_core::{Handle, Owner, Record};
use berth_ledger::{GroupWriter, LedgerError, SqliteFailure, SqliteLedger};
use parking_lot::Mutex;
use rusqlite::Connection;

use rows::Key;

/// The recorded state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its holder is recorded; nothing was done yet.
    Held,
    Present,
    /// It has to be detached and released.
    Absent,
}

/// One item of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub holder: Record,
    pub state: State,
    intent: Option<(IntentId, Goal)>,
}

impl Row {
    /// Whether a call for it is under way, or was when the process ended.
    pub fn is_open(&self) -> bool {
        self.intent.is_some()
    }
}

/// A row with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<I> {
    pub target: String,
    pub item: I,
    pub row: Row,
}

/// The table in the node's file.
#[derive(Clone, Debug)]
pub struct Attachments {
    ledger: SqliteLedger,
    writer: GroupWriter,
}

impl Attachments {
    pub(crate) fn new(ledger: SqliteLedger) -> Attachments {
        let writer = GroupWriter::new(ledger.clone(), "attachments");
        Attachments { ledger, writer }
    }

    /// The journal of one target. A process has one of each.
    pub fn of<I>(&self, target: impl Into<String>) -> TargetJournal<I> {
        TargetJournal {
            table: self.clone(),
            target: target.into(),
            released: Mutex::default(),
            items: PhantomData,
        }
    }

    /// Every row.
    pub async fn all<I: Item>(&self) -> Result<Vec<Found<I>>, LedgerError> {
        self.select(Key::All).await
    }

    /// What a container holds.
    pub async fn held_under<I: Item>(&self, handle: &Handle) -> Result<Vec<Found<I>>, LedgerError> {
        self.select(Key::Handle(handle.clone())).await
    }

    /// What an owner holds.
    pub async fn held_by<I: Item>(&self, owner: &Owner) -> Result<Vec<Found<I>>, LedgerError> {
        self.select(Key::Owner(owner.clone())).await
    }

    /// Records who holds an item, before anything is done about it.
    pub async fn hold<I: Item>(
        &self,
        target: &str,
        item: &I,
        holder: &Record,
    ) -> Result<(), Arc<LedgerError>> {
        let (target, item, holder) = (target.to_owned(), item.to_string(), holder.clone());
        self.write(move |connection| rows::hold(connection, (&target, &item), &holder))
            .await
    }

    async fn select<I: Item>(&self, key: Key) -> Result<Vec<Found<I>>, LedgerError> {
        let read = move |connection: &Connection| rows::select(connection, &key);
        self.ledger.query("read the attachments", read).await
    }

    async fn write<F>(&self, work: F) -> Result<(), Arc<LedgerError>>
    where
        F: FnOnce(&Connection) -> Result<(), SqliteFailure> + Send + 'static,
    {
        self.writer.write(work).await
    }
}

/// The items of a target, stored as text.
pub trait Item: Ord + Clone + Display + FromStr + Send + Sync + 'static {}

impl<I: Ord + Clone + Display + FromStr + Send + Sync + 'static> Item for I {}

/// The rows of one target.
#[derive(Debug)]
pub struct TargetJournal<I> {
    table: Attachments,
    target: String,
    /// Holders whose item was released: their row is deleted with the next `Forget`, a later holder's stays.
    released: Mutex<BTreeMap<String, Record>>,
    items: PhantomData<fn() -> I>,
}

impl<I: Item> TargetJournal<I> {
    pub async fn rows(&self) -> Result<BTreeMap<I, Row>, LedgerError> {
        self.read(Key::Target(self.target.clone())).await
    }

    pub async fn row(&self, item: &I) -> Result<Option<Row>, LedgerError> {
        let key = Key::Item(self.target.clone(), item.to_string());
        Ok(self.read(key).await?.into_values().next())
    }

    /// The rows of all holders with this subject, for every part.
    pub async fn rows_of(&self, subject: &str) -> Result<BTreeMap<I, Row>, LedgerError> {
        let key = Key::Subject(self.target.clone(), subject.to_owned());
        self.read(key).await
    }

    /// Records who holds the item, before anything is done about it.
    pub async fn hold(&self, item: &I, holder: &Record) -> Result<(), Arc<LedgerError>> {
        self.table.hold(&self.target, item, holder).await
    }

    /// Drops the rows of items that are now another node's; what is attached stays attached.
    pub async fn drop_rows(&self, items: &[I]) -> Result<(), Arc<LedgerError>> {
        let target = self.target.clone();
        let items: Vec<String> = items.iter().map(I::to_string).collect();
        self.table
            .write(move |connection| {
                let mut all = items.iter();
                all.try_for_each(|item| rows::delete(connection, (&target, item)))
            })
            .await
    }

    /// The same for one item, if this owner is its holder.
    pub async fn drop_row_of(&self, owner: &Owner, item: &I) -> Result<(), Arc<LedgerError>> {
        let (target, item, owner) = (self.target.clone(), item.to_string(), owner.clone());
        self.table
            .write(move |connection| {
                rows::delete_of_owner(connection, (&target, &item), &owner)?;
                Ok(())
            })
            .await
    }

    /// The holder has lost the item in its pool: the row is deleted when the reconciler forgets the item.
    pub fn note_released(&self, item: &I, holder: &Record) {
        self.released
            .lock()
            .insert(item.to_string(), holder.clone());
    }

    async fn read(&self, key: Key) -> Result<BTreeMap<I, Row>, LedgerError> {
        let found = self.table.select(key).await?;
        Ok(found
            .into_iter()
            .map(|found| (found.item, found.row))
            .collect())
    }
}

impl<I: Item> Journal<I> for TargetJournal<I> {
    type Error = Arc<LedgerError>;

    async fn load(&self) -> Result<Recorded<I>, Arc<LedgerError>> {
        let mut recorded = Recorded::default();
        for (item, row) in self.rows().await? {
            match row.state {
                State::Present => drop(recorded.present.insert(item.clone())),
                State::Absent => drop(recorded.absent.insert(item.clone())),
                State::Held => {}
            }
            if let Some((id, goal)) = row.intent {
                let open = recorded.intent.get_or_insert_with(|| Intent {
                    id,
                    goal,
                    items: BTreeSet::new(),
                });
                if open.id == id {
                    open.items.insert(item);
                }
            }
        }
        Ok(recorded)
    }

    async fn record(&self, entries: &[Entry<I>]) -> Result<(), Arc<LedgerError>> {
        let target = self.target.clone();
        let entries = entries.to_vec();
        let mut forgotten = BTreeMap::new();
        for entry in &entries {
            if let Entry::Forget { item } = entry {
                let item = item.to_string();
                let holder = self.released.lock().get(&item).cloned();
                forgotten.insert(item, holder);
            }
        }
        let items: Vec<String> = forgotten.keys().cloned().collect();
        self.table
            .write(move |connection| {
                let mut all = entries.iter();
                all.try_for_each(|entry| rows::apply(connection, &target, entry, &forgotten))
            })
            .await?;
        let mut released = self.released.lock();
        items.iter().for_each(|item| drop(released.remove(item)));
        Ok(())
    }
}
