//! The desks of a process: one per pool, opened when first asked for and closed when it was not used for a while.
//!
//! A desk costs a task, a copy of its pool, a watch and its metric series: pools that are no longer used must not keep
//! them. A desk that still has something to undo is not closed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_ledger::{PoolKey, SharedLedger};
use parking_lot::Mutex;

use crate::{Desk, DeskMetrics, DeskSettings};

/// How long an unused desk stays open.
const IDLE: Duration = Duration::from_secs(600);
/// How often unused desks are searched.
const SWEEP: Duration = Duration::from_secs(60);
/// Desks that are open at a time; at more the least recently used ones are closed before their time.
const OPEN: usize = 1024;

#[derive(Clone, Debug)]
pub struct Desks {
    ledger: SharedLedger,
    settings: DeskSettings,
    metrics: DeskMetrics,
    /// Which pools this process alone writes.
    local: Option<fn(&PoolKey) -> bool>,
    idle: Duration,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug)]
struct Open {
    desks: HashMap<PoolKey, Used>,
    swept: Instant,
}

#[derive(Debug)]
struct Used {
    desk: Desk,
    at: Instant,
}

impl Desks {
    pub fn new(ledger: SharedLedger, settings: DeskSettings, metrics: DeskMetrics) -> Self {
        Self {
            ledger,
            settings,
            metrics,
            local: None,
            idle: IDLE,
            open: Arc::new(Mutex::new(Open {
                desks: HashMap::new(),
                swept: Instant::now(),
            })),
        }
    }

    /// With another time after which an unused desk is closed.
    #[must_use]
    pub fn with_idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// With pools that this process alone writes: their desks ask no leader, watch nothing and have no metric series
    /// of their own.
    #[must_use]
    pub fn with_local(self, is_local: fn(&PoolKey) -> bool) -> Self {
        Self {
            local: Some(is_local),
            ..self
        }
    }

    pub fn ledger(&self) -> &SharedLedger {
        &self.ledger
    }

    /// The pool's desk, if it is open.
    pub fn opened(&self, pool: &PoolKey) -> Option<Desk> {
        let mut open = self.open.lock();
        let used = open.desks.get_mut(pool)?;
        used.at = Instant::now();
        Some(used.desk.clone())
    }

    pub fn of(&self, pool: &PoolKey) -> Desk {
        let now = Instant::now();
        let mut open = self.open.lock();
        if let Some(used) = open.desks.get_mut(pool) {
            used.at = now;
            return used.desk.clone();
        }
        self.sweep(&mut open, now);
        let ledger = Arc::clone(&self.ledger);
        let desk = match self.local.is_some_and(|is_local| is_local(pool)) {
            true => {
                let (settings, metrics) = (DeskSettings::default(), DeskMetrics::default());
                Desk::open(ledger, pool.clone(), &settings, metrics.of(&pool.name))
            }
            false => {
                let metrics = self.metrics.of(&pool.name);
                Desk::open(ledger, pool.clone(), &self.settings, metrics)
            }
        };
        let used = Used {
            desk: desk.clone(),
            at: now,
        };
        open.desks.insert(pool.clone(), used);
        desk
    }

    /// Closes desks whose time is over, where no new one is opened that would; how many are left open.
    pub fn close_idle(&self) -> usize {
        let mut open = self.open.lock();
        open.swept = open.swept.checked_sub(SWEEP).unwrap_or(open.swept);
        self.sweep(&mut open, Instant::now());
        open.desks.len()
    }

    fn sweep(&self, open: &mut Open, now: Instant) {
        let full = open.desks.len() >= OPEN;
        if !full && now.duration_since(open.swept) < SWEEP.min(self.idle) {
            return;
        }
        open.swept = now;
        self.close_where(open, |used| now.duration_since(used.at) >= self.idle);
        if open.desks.len() >= OPEN {
            let mut times: Vec<Instant> = open.desks.values().map(|used| used.at).collect();
            // A quarter at once, so that not every new desk has to search.
            let (_, middle, _) = times.select_nth_unstable(OPEN / 4);
            let limit = *middle;
            self.close_where(open, |used| used.at <= limit);
        }
    }

    fn close_where(&self, open: &mut Open, is_old: impl Fn(&Used) -> bool) {
        let closed = open
            .desks
            .extract_if(|_, used| is_old(used) && used.desk.is_unused());
        for (pool, _) in closed {
            self.metrics.forget(&pool.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_ledger::MemoryLedger;
    use prometheus_client::registry::Registry;

    use super::*;

    fn series(metrics: &DeskMetrics) -> usize {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    fn desks(metrics: &DeskMetrics) -> Desks {
        let ledger = Arc::new(MemoryLedger::new());
        Desks::new(ledger, DeskSettings::default(), metrics.clone())
    }

    async fn until_unused(desks: &Desks, pool: &PoolKey) {
        while !desks.opened(pool).unwrap().is_idle() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_unused_desk_is_closed_with_its_series_and_one_in_use_is_not() {
        let metrics = DeskMetrics::default();
        let without = series(&metrics);
        let desks = desks(&metrics).with_idle(Duration::ZERO);
        let (one, two) = (PoolKey::named("one"), PoolKey::named("two"));
        let held = desks.of(&one);
        desks.of(&two);
        until_unused(&desks, &one).await;
        until_unused(&desks, &two).await;
        assert_eq!(desks.close_idle(), 1, "one is held");
        assert!(desks.opened(&two).is_none());
        drop(held);
        assert_eq!(desks.close_idle(), 0);
        assert_eq!(series(&metrics), without);
    }

    #[tokio::test]
    async fn ten_thousand_pools_do_not_stay_open() {
        let desks = desks(&DeskMetrics::default());
        for n in 0..10_000 {
            let pool = PoolKey::named(n.to_string());
            desks.of(&pool);
            until_unused(&desks, &pool).await;
        }
        assert!(desks.close_idle() <= OPEN, "{}", desks.close_idle());
    }

    #[tokio::test]
    async fn eleven_pools_have_few_series() {
        let metrics = DeskMetrics::default();
        for pool in 0..11 {
            metrics.of(&format!("pool-{pool}"));
        }
        let count = series(&metrics);
        assert!(count <= 110, "{count}");
    }
}
