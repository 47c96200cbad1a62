//! Allocate, verify, else release, avoid and retry, until everything that is held is verified.
//!
//! ```text
//!  allocate ──► verify ──► found
//!     ▲           │ rejected
//!     │           ▼
//!     └── avoid ◄── release   (or exchanged by the next allocation)
//! ```
//! Guarantees: what was held before the search started is not among what it leaves to be released (I3). When the search
//! ends without an answer, or its caller drops it at a deadline, [`Search::left`] is what it was the first to hold and
//! has not released. Keys that are only hints (rejected a moment ago, maybe free by now) never cause a refusal: they
//! are dropped before the pool counts as exhausted.

use std::collections::BTreeSet;

/// Something allocated, and whether this search was the first to hold it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held<T> {
    pub item: T,
    pub fresh: bool,
}

/// What a front brings.
pub trait Driver: Send {
    type Item: Clone + PartialEq + Send + Sync;
    /// What is avoided after a rejection, such as the address of an item.
    type Key: Clone + Ord + Send + Sync;
    type Error: Send;

    fn key(&self, item: &Self::Item) -> Self::Key;

    /// Allocates what is wanted, none of `avoid`, into `held`: also what it got before it failed. `instead_of` was
    /// rejected and is still held: the same commit releases it.
    fn allocate(
        &mut self,
        avoid: &BTreeSet<Self::Key>,
        instead_of: &[Self::Item],
        held: &mut Vec<Held<Self::Item>>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Whether an allocation failed because nothing is free that is not avoided.
    fn is_exhausted(&self, error: &Self::Error) -> bool;

    /// The hints were dropped, because nothing else was free.
    fn hints_dropped(&mut self) {}

    /// The items that can't be used. An error ends the search.
    fn verify(
        &mut self,
        held: &[Held<Self::Item>],
    ) -> impl Future<Output = Result<Vec<Self::Item>, Self::Error>> + Send;

    /// Releases what was rejected. Returns what is still held, for the next allocation to exchange: by default all of
    /// it.
    fn release(
        &mut self,
        rejected: Vec<Self::Item>,
    ) -> impl Future<Output = Result<Vec<Self::Item>, Self::Error>> + Send {
        async { Ok(rejected) }
    }

    /// Everything to be avoided, read at once after some rounds of single rejections.
    fn survey(&mut self) -> impl Future<Output = Result<Vec<Self::Key>, Self::Error>> + Send {
        async { Ok(Vec::new()) }
    }
}

/// What the search does next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next<T, E> {
    Allocate,
    Verify,
    Release,
    Survey,
    Found(Vec<Held<T>>),
    Ended(E),
}

/// Where a search stands: [`Search::run`] executes the steps, the other methods are pure.
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
    /// `hints` are avoided first. After `survey_after` rounds that ended with a rejection, each further one is followed
    /// by a survey.
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

    /// Runs the search to its end. Its rounds are bounded by the pool, because each rejection is avoided; a caller with
    /// a deadline drops the future and releases [`Search::left`].
    pub async fn run<D>(&mut self, driver: &mut D) -> Result<Vec<Held<T>>, D::Error>
    where
        D: Driver<Item = T, Key = K>,
        T: Send + Sync,
        K: Send + Sync,
    {
        let mut next = Next::Allocate;
        loop {
            next = match next {
                Next::Allocate => {
                    let avoid = self.avoid.union(&self.hints).cloned().collect();
                    self.held.clear();
                    let outcome = driver.allocate(&avoid, &self.rejected, &mut self.held);
                    let outcome = outcome.await;
                    let exhausted = matches!(&outcome, Err(error) if driver.is_exhausted(error));
                    if exhausted && !self.hints.is_empty() {
                        driver.hints_dropped();
                    }
                    self.allocated(outcome, exhausted)
                }
                Next::Verify => {
                    let outcome = driver.verify(&self.held).await;
                    self.verified(outcome, |item| driver.key(item))
                }
                Next::Release => self.released(driver.release(self.rejected.clone()).await),
                Next::Survey => self.surveyed(driver.survey().await),
                Next::Found(held) => return Ok(held),
                Next::Ended(error) => return Err(error),
            };
        }
    }

    /// What the caller has to release when the search has not found anything.
    pub fn left(&self) -> &[T] {
        &self.ours
    }

    fn allocated<E>(&mut self, outcome: Result<(), E>, exhausted: bool) -> Next<T, E> {
        if outcome.is_ok() {
            // Only a success has released what was rejected.
            let rejected = std::mem::take(&mut self.rejected);
            self.ours.retain(|item| !rejected.contains(item));
        }
        for held in &mut self.held {
            // What an earlier round was the first to hold is fresh for the whole search.
            match self.ours.contains(&held.item) {
                true => held.fresh = true,
                false if held.fresh => self.ours.push(held.item.clone()),
                false => {}
            }
        }
        match outcome {
            Ok(()) => Next::Verify,
            // Hints may be out of date: no allocation is refused because of them.
            Err(_) if exhausted && !std::mem::take(&mut self.hints).is_empty() => Next::Allocate,
            Err(error) => Next::Ended(error),
        }
    }

    fn verified<E>(&mut self, outcome: Result<Vec<T>, E>, key: impl Fn(&T) -> K) -> Next<T, E> {
        let rejected = match outcome {
            Ok(rejected) => rejected,
            Err(error) => return Next::Ended(error),
        };
        if rejected.is_empty() {
            self.ours.clear();
            return Next::Found(std::mem::take(&mut self.held));
        }
        self.avoid.extend(rejected.iter().map(key));
        self.rejected = rejected;
        self.rounds += 1;
        Next::Release
    }

    fn released<E>(&mut self, outcome: Result<Vec<T>, E>) -> Next<T, E> {
        let still_held = match outcome {
            Ok(still_held) => still_held,
            Err(error) => return Next::Ended(error),
        };
        let rejected = std::mem::replace(&mut self.rejected, still_held);
        let still_held = &self.rejected;
        self.ours
            .retain(|item| !rejected.contains(item) || still_held.contains(item));
        match self.rounds > self.survey_after {
            true => Next::Survey,
            false => Next::Allocate,
        }
    }

    fn surveyed<E>(&mut self, outcome: Result<Vec<K>, E>) -> Next<T, E> {
        match outcome {
            Ok(keys) => {
                self.avoid.extend(keys);
                Next::Allocate
            }
            Err(error) => Next::Ended(error),
        }
    }
}
