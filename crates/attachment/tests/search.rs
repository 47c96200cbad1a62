//! Allocate, verify, else release, avoid, retry.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use berth_attachment::search::{Driver, Held, Search};
use tokio::time::timeout;

/// A pool of numbers, some of which others use without a record.
#[derive(Default)]
struct Pool {
    size: u32,
    held: BTreeSet<u32>,
    used: BTreeSet<u32>,
    surveys: usize,
    hangs: bool,
    /// Releases at once what was rejected; otherwise the next allocation exchanges it.
    releases: bool,
    mine_before: Option<u32>,
}

impl Driver for Pool {
    type Item = u32;
    type Key = u32;
    type Error = &'static str;

    fn key(&self, item: &u32) -> u32 {
        *item
    }

    async fn allocate(
        &mut self,
        avoid: &BTreeSet<u32>,
        instead_of: &[u32],
        held: &mut Vec<Held<u32>>,
    ) -> Result<(), &'static str> {
        if let Some(item) = self.mine_before.filter(|item| !instead_of.contains(item)) {
            held.push(Held { item, fresh: false });
            return Ok(());
        }
        let is_free = |item: &u32| !avoid.contains(item) && !self.held.contains(item);
        let item = (0..self.size).find(is_free).ok_or("exhausted")?;
        self.held.retain(|item| !instead_of.contains(item));
        self.held.insert(item);
        held.push(Held { item, fresh: true });
        Ok(())
    }

    fn is_exhausted(&self, error: &&'static str) -> bool {
        *error == "exhausted"
    }

    async fn verify(&mut self, held: &[Held<u32>]) -> Result<Vec<u32>, &'static str> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let items = held.iter().map(|held| held.item);
        Ok(items.filter(|item| self.used.contains(item)).collect())
    }

    async fn release(&mut self, rejected: Vec<u32>) -> Result<Vec<u32>, &'static str> {
        if !self.releases {
            return Ok(rejected);
        }
        self.held.retain(|item| !rejected.contains(item));
        Ok(Vec::new())
    }

    async fn survey(&mut self) -> Result<Vec<u32>, &'static str> {
        self.surveys += 1;
        Ok(self.used.iter().copied().collect())
    }
}

/// What was found, or why not (`None`: the deadline) and what is left to be released.
type Outcome = Result<Vec<u32>, (Option<&'static str>, Vec<u32>)>;

async fn run(pool: &mut Pool, hints: &[u32]) -> Outcome {
    let mut search = Search::new(hints.iter().copied().collect(), 2);
    let ended = timeout(Duration::from_secs(5), search.run(pool)).await;
    let left = || search.left().to_vec();
    match ended {
        Ok(Ok(found)) => Ok(found.into_iter().map(|held| held.item).collect()),
        Ok(Err(error)) => Err((Some(error), left())),
        Err(_) => Err((None, left())),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_rejected_is_released_or_exchanged_and_avoided() {
    for releases in [false, true] {
        let mut pool = Pool {
            size: 8,
            used: BTreeSet::from([0, 1]),
            releases,
            ..Pool::default()
        };
        assert_eq!(run(&mut pool, &[]).await.unwrap(), [2]);
        assert_eq!(pool.held, BTreeSet::from([2]));
        assert_eq!(pool.surveys, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn after_some_rounds_everything_is_read_at_once() {
    let mut pool = Pool {
        size: 100,
        used: (0..99).collect(),
        ..Pool::default()
    };
    assert_eq!(run(&mut pool, &[]).await.unwrap(), [99]);
    assert_eq!(pool.surveys, 1);
}

#[tokio::test(start_paused = true)]
async fn hints_are_dropped_before_a_pool_counts_as_exhausted() {
    let mut pool = Pool {
        size: 1,
        ..Pool::default()
    };
    assert_eq!(run(&mut pool, &[0]).await.unwrap(), [0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_is_named_for_the_caller() {
    let full = |releases, hangs| Pool {
        size: 1,
        used: BTreeSet::from([0]),
        releases,
        hangs,
        ..Pool::default()
    };
    for (mut pool, ended) in [
        (full(false, false), (Some("exhausted"), vec![0])),
        (full(true, false), (Some("exhausted"), vec![])),
        (full(false, true), (None, vec![0])),
    ] {
        assert_eq!(run(&mut pool, &[]).await.unwrap_err(), ended);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_held_before_is_not_released() {
    let mut pool = Pool {
        hangs: true,
        mine_before: Some(3),
        ..Pool::default()
    };
    assert_eq!(run(&mut pool, &[]).await.unwrap_err(), (None, vec![]));
}

/// Allocates a pair, of which the second is rejected in the first round. In the second round the pool says that the
/// first one was held before.
#[derive(Default)]
struct Pair {
    round: u32,
    fails: bool,
    verified: Vec<Held<u32>>,
}

impl Driver for Pair {
    type Item = u32;
    type Key = u32;
    type Error = ();

    fn key(&self, item: &u32) -> u32 {
        *item
    }

    async fn allocate(
        &mut self,
        _: &BTreeSet<u32>,
        _: &[u32],
        held: &mut Vec<Held<u32>>,
    ) -> Result<(), ()> {
        self.round += 1;
        held.extend(
            [(1, self.round == 1), (10 + self.round, true)]
                .map(|(item, fresh)| Held { item, fresh }),
        );
        Ok(())
    }

    fn is_exhausted(&self, (): &()) -> bool {
        false
    }

    async fn verify(&mut self, held: &[Held<u32>]) -> Result<Vec<u32>, ()> {
        self.verified = held.to_vec();
        match self.round {
            1 => Ok(vec![11]),
            _ if self.fails => Err(()),
            _ => Ok(vec![]),
        }
    }
}

#[tokio::test]
async fn what_an_earlier_round_was_the_first_to_hold_stays_fresh_and_is_left() {
    for fails in [false, true] {
        let mut pair = Pair {
            fails,
            ..Pair::default()
        };
        let mut search = Search::new(BTreeSet::new(), 2);
        assert_eq!(search.run(&mut pair).await.is_err(), fails);
        assert!(pair.verified.iter().all(|held| held.fresh));
        let left: &[u32] = if fails { &[1, 12] } else { &[] };
        assert_eq!(search.left(), left);
    }
}
