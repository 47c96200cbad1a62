//! Allocate, verify, else release, avoid, retry.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use berth_attachment::search::{Allocated, Driver, Ended, Held, Search, Verified, search};
use tokio::time::Instant;

/// A pool of numbers, some of which others use without a record.
#[derive(Default)]
struct Pool {
    size: u32,
    held: Mutex<BTreeSet<u32>>,
    used: BTreeSet<u32>,
    surveys: Mutex<usize>,
    hangs: bool,
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
        &self,
        avoid: &BTreeSet<u32>,
        instead_of: &[u32],
    ) -> Allocated<u32, &'static str> {
        let mut held = self.held.lock().unwrap();
        if let Some(item) = self.mine_before.filter(|item| !instead_of.contains(item)) {
            return Allocated::All(vec![Held { item, fresh: false }]);
        }
        let Some(item) = (0..self.size).find(|item| !avoid.contains(item) && !held.contains(item))
        else {
            return Allocated::Exhausted {
                held: Vec::new(),
                error: "exhausted",
            };
        };
        held.retain(|item| !instead_of.contains(item));
        held.insert(item);
        Allocated::All(vec![Held { item, fresh: true }])
    }

    async fn verify(&self, held: &[Held<u32>]) -> Verified<u32, &'static str> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let used = held
            .iter()
            .map(|held| held.item)
            .filter(|item| self.used.contains(item));
        Verified::Rejected(used.collect())
    }

    async fn survey(&self) -> Result<Vec<u32>, &'static str> {
        *self.surveys.lock().unwrap() += 1;
        Ok(self.used.iter().copied().collect())
    }
}

async fn run(pool: &Pool, hints: &[u32]) -> Result<Vec<u32>, Ended<u32, &'static str>> {
    let begin = Search::new(hints.iter().copied().collect(), 2);
    search(pool, begin, Instant::now() + Duration::from_secs(5)).await
}

#[tokio::test(start_paused = true)]
async fn what_is_rejected_is_released_and_avoided() {
    let pool = Pool {
        size: 8,
        used: BTreeSet::from([0, 1]),
        ..Pool::default()
    };
    assert_eq!(run(&pool, &[]).await.unwrap(), [2]);
    assert_eq!(*pool.held.lock().unwrap(), BTreeSet::from([2]));
    assert_eq!(*pool.surveys.lock().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_some_rounds_everything_is_read_at_once() {
    let pool = Pool {
        size: 100,
        used: (0..99).collect(),
        ..Pool::default()
    };
    assert_eq!(run(&pool, &[]).await.unwrap(), [99]);
    assert_eq!(*pool.surveys.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn hints_are_dropped_before_a_pool_counts_as_exhausted() {
    let pool = Pool {
        size: 1,
        ..Pool::default()
    };
    assert_eq!(run(&pool, &[0]).await.unwrap(), [0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_is_named_for_the_caller() {
    let pool = Pool {
        size: 1,
        used: BTreeSet::from([0]),
        ..Pool::default()
    };
    let ended = run(&pool, &[]).await.unwrap_err();
    assert_eq!((ended.error, ended.left), (Some("exhausted"), vec![0]));
    let pool = Pool {
        size: 1,
        hangs: true,
        ..Pool::default()
    };
    let ended = run(&pool, &[]).await.unwrap_err();
    assert_eq!((ended.error, ended.left), (None, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn what_was_held_before_is_not_released() {
    let pool = Pool {
        hangs: true,
        mine_before: Some(3),
        ..Pool::default()
    };
    let ended = run(&pool, &[]).await.unwrap_err();
    assert!(ended.left.is_empty());
}
