//! What survives a crash: the open intent, what is present, and what has to become absent.

use std::collections::BTreeSet;

use parking_lot::Mutex;
/// Names an intent; a cloud driver makes its request id of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IntentId(pub u128);

/// What should become of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Goal {
    Present,
    Absent,
}

/// One call that is about to be made: additions only, or removals only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intent<I: Ord> {
    pub id: IntentId,
    pub goal: Goal,
    pub items: BTreeSet<I>,
}

/// A change of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry<I: Ord> {
    /// The call is about to start.
    Begin(Intent<I>),
    /// The outcome of the call is known: carried out, or not at all.
    End { id: IntentId, carried_out: bool },
    /// The item has to be removed, and then released.
    Absent { item: I },
    /// An item that had to be removed is wanted again.
    Present { item: I },
    /// The item is absent and released.
    Forget { item: I },
}

/// What a journal says, all of its entries applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recorded<I: Ord> {
    pub intent: Option<Intent<I>>,
    pub present: BTreeSet<I>,
    pub absent: BTreeSet<I>,
}

impl<I: Ord> Default for Recorded<I> {
    fn default() -> Self {
        Recorded {
            intent: None,
            present: BTreeSet::new(),
            absent: BTreeSet::new(),
        }
    }
}

impl<I: Ord + Clone> Recorded<I> {
    pub fn apply(&mut self, entry: &Entry<I>) {
        match entry {
            Entry::Begin(intent) => self.intent = Some(intent.clone()),
            Entry::End { id, carried_out } => {
                let Some(intent) = self.intent.take_if(|open| open.id == *id) else {
                    return;
                };
                if !carried_out {
                    return;
                }
                for item in intent.items {
                    match intent.goal {
                        // An item that must be removed again since the call started stays among the absent.
                        Goal::Present if self.absent.contains(&item) => {}
                        Goal::Present => drop(self.present.insert(item)),
                        Goal::Absent => drop(self.present.remove(&item)),
                    }
                }
            }
            Entry::Absent { item } => {
                self.present.remove(item);
                self.absent.insert(item.clone());
            }
            Entry::Present { item } => {
                self.absent.remove(item);
                self.present.insert(item.clone());
            }
            Entry::Forget { item } => drop(self.absent.remove(item)),
        }
    }
}

/// Where intents are recorded. All entries of one `record` become durable together, or none does.
pub trait Journal<I: Ord>: Send + Sync {
    type Error: std::fmt::Display + Send;

    fn load(&self) -> impl Future<Output = Result<Recorded<I>, Self::Error>> + Send;

    fn record(&self, entries: &[Entry<I>]) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A journal in memory, for tests and for targets whose state outlives the process by itself.
#[derive(Debug)]
pub struct MemoryJournal<I: Ord>(Mutex<Recorded<I>>);

impl<I: Ord> Default for MemoryJournal<I> {
    fn default() -> Self {
        MemoryJournal(Mutex::new(Recorded::default()))
    }
}

impl<I: Ord + Clone + Send + Sync> Journal<I> for MemoryJournal<I> {
    type Error = std::convert::Infallible;

    async fn load(&self) -> Result<Recorded<I>, Self::Error> {
        Ok(self.0.lock().clone())
    }

    async fn record(&self, entries: &[Entry<I>]) -> Result<(), Self::Error> {
        let mut recorded = self.0.lock();
        entries.iter().for_each(|entry| recorded.apply(entry));
        Ok(())
    }
}
