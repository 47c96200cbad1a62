//! Allocate, verify, else release, avoid and retry: until everything that is held is verified, or the deadline.
//!
//! ```text
//!  allocate ──► verify ──► held
//!     ▲           │ rejected
//!     └── avoid ◄─┘   (released, or exchanged in the next allocation)
//! ```
//! Guarantees: what was held before the search began is never released by it (I3); whatever ends it, what it was the first
//! to hold and did not answer with is named, so that the caller releases it. Keys that are only hints (rejected a moment ago,
//! maybe free by now) never cause a refusal: they are dropped before the pool counts as exhausted.

use std::collections::BTreeSet;

use tokio::time::{Instant, timeout_at};

/// Something allocated, and whether this search was the first to hold it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held<T> {
    pub item: T,
    pub fresh: bool,
}

/// The outcome of an allocation. `held` is what is held all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocated<T, E> {
    All(Vec<Held<T>>),
    Exhausted { held: Vec<Held<T>>, error: E },
    Failed { held: Vec<Held<T>>, error: E },
}

/// The outcome of a verification: the items that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified<T, E> {
    Rejected(Vec<T>),
    /// Nobody can tell, or an item that the caller named is rejected: the search ends.
    Failed(E),
}

/// What a front brings.
pub trait Driver: Sync {
    type Item: Clone + PartialEq + Send + Sync;
    /// What is avoided after a rejection, such as the address of an item.
    type Key: Clone + Ord + Send + Sync;
    type Error: Send;

    fn key(&self, item: &Self::Item) -> Self::Key;

    /// Allocates what is wanted, none of `avoid`. `instead_of` was rejected and is still held: it is released by the same commit,
    /// or before it.
    fn allocate(
        &self,
        avoid: &BTreeSet<Self::Key>,
        instead_of: &[Self::Item],
    ) -> impl Future<Output = Allocated<Self::Item, Self::Error>> + Send;

    fn verify(
        &self,
        held: &[Held<Self::Item>],
    ) -> impl Future<Output = Verified<Self::Item, Self::Error>> + Send;

    /// Everything to be avoided, read at once: asked after some rounds of single rejections.
    fn survey(&self) -> impl Future<Output = Result<Vec<Self::Key>, Self::Error>> + Send {
        async { Ok(Vec::new()) }
    }
}

/// What the search does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T, E> {
    Allocate,
    Verify,
    Survey,
    Found(Vec<T>),
    Ended(Option<E>),
}

/// Where a search stands; pure.
#[derive(Clone, Debug)]
pub struct Search<T, K> {
    avoid: BTreeSet<K>,
    hints: BTreeSet<K>,
    held: Vec<Held<T>>,
    /// What this search was the first to hold, and has not released.
    ours: Vec<T>,
    rejected: Vec<T>,
    rounds: usize,
    survey_after: usize,
}

impl<T: Clone + PartialEq, K: Clone + Ord> Search<T, K> {
    pub fn new(hints: BTreeSet<K>, survey_after: usize) -> Self {
        Search {
            avoid: BTreeSet::new(),
            hints,
            held: Vec::new(),
            ours: Vec::new(),
            rejected: Vec::new(),
            rounds: 0,
            survey_after,
        }
    }

    /// What the next allocation avoids.
    pub fn avoided(&self) -> BTreeSet<K> {
        self.avoid.union(&self.hints).cloned().collect()
    }

    /// What it has to be allocated instead of.
    pub fn rejected(&self) -> &[T] {
        &self.rejected
    }

    pub fn held(&self) -> &[Held<T>] {
        &self.held
    }

    /// What has to be released when the search ends without an answer.
    pub fn left(&self) -> Vec<T> {
        self.ours.clone()
    }

    pub fn allocated<E>(&mut self, outcome: Allocated<T, E>) -> Next<T, E> {
        let (held, error, exhausted) = match outcome {
            Allocated::All(held) => (held, None, false),
            Allocated::Exhausted { held, error } => (held, Some(error), true),
            Allocated::Failed { held, error } => (held, Some(error), false),
        };
        if error.is_none() {
            // Only a success has released what was rejected.
            self.ours.retain(|item| !self.rejected.contains(item));
            self.rejected.clear();
        }
        let fresh = held.iter().filter(|held| held.fresh).map(|held| &held.item);
        for item in fresh {
            if !self.ours.contains(item) {
                self.ours.push(item.clone());
            }
        }
        self.held = held;
        match error {
            None => Next::Verify,
            // Hints may be out of date: nothing is refused because of them.
            Some(_) if exhausted && !std::mem::take(&mut self.hints).is_empty() => Next::Allocate,
            Some(error) => Next::Ended(Some(error)),
        }
    }

    pub fn verified<E>(&mut self, outcome: Verified<T, E>, key: impl Fn(&T) -> K) -> Next<T, E> {
        let rejected = match outcome {
            Verified::Rejected(rejected) => rejected,
            Verified::Failed(error) => return Next::Ended(Some(error)),
        };
        if rejected.is_empty() {
            self.ours.clear();
            return Next::Found(self.held.drain(..).map(|held| held.item).collect());
        }
        self.avoid.extend(rejected.iter().map(key));
        self.rejected = rejected;
        self.rounds += 1;
        if self.rounds > self.survey_after {
            Next::Survey
        } else {
            Next::Allocate
        }
    }

    pub fn surveyed<E>(&mut self, outcome: Result<Vec<K>, E>) -> Next<T, E> {
        match outcome {
            Ok(keys) => {
                self.avoid.extend(keys);
                Next::Allocate
            }
            Err(error) => Next::Ended(Some(error)),
        }
    }
}

/// A search that ended without an answer.
#[derive(Debug)]
pub struct Ended<T, E> {
    /// None: the deadline.
    pub error: Option<E>,
    /// To be released by the caller, at once or in the background.
    pub left: Vec<T>,
}

/// Runs a search to its end. Rounds are bounded by the deadline and by the pool: each rejection is avoided.
pub async fn search<D: Driver>(
    driver: &D,
    mut search: Search<D::Item, D::Key>,
    deadline: Instant,
) -> Result<Vec<D::Item>, Ended<D::Item, D::Error>> {
    let mut next = Next::Allocate;
    loop {
        let step = async {
            match next {
                Next::Allocate => {
                    let outcome = driver.allocate(&search.avoided(), search.rejected()).await;
                    search.allocated(outcome)
                }
                Next::Verify => {
                    let outcome = driver.verify(search.held()).await;
                    search.verified(outcome, |item| driver.key(item))
                }
                Next::Survey => search.surveyed(driver.survey().await),
                end => end,
            }
        };
        next = match timeout_at(deadline, step).await {
            Ok(Next::Found(items)) => return Ok(items),
            Ok(Next::Ended(error)) => {
                return Err(Ended {
                    error,
                    left: search.left(),
                });
            }
            Ok(next) => next,
            Err(_) => {
                return Err(Ended {
                    error: None,
                    left: search.left(),
                });
            }
        };
    }
}
