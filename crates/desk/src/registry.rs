//! The desks of a process: one per pool, opened when first asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_ledger::{PoolKey, SharedLedger};

use crate::{Desk, DeskMetrics, DeskSettings};

#[derive(Clone, Debug)]
pub struct Desks {
    ledger: SharedLedger,
    settings: DeskSettings,
    metrics: DeskMetrics,
    open: Arc<Mutex<HashMap<PoolKey, Desk>>>,
}

impl Desks {
    pub fn new(ledger: SharedLedger, settings: DeskSettings, metrics: DeskMetrics) -> Self {
        Self {
            ledger,
            settings,
            metrics,
            open: Arc::default(),
        }
    }

    pub fn ledger(&self) -> &SharedLedger {
        &self.ledger
    }

    pub fn of(&self, pool: &PoolKey) -> Desk {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let desk = open.entry(pool.clone()).or_insert_with(|| {
            let metrics = self.metrics.of(&pool.name);
            Desk::open(
                Arc::clone(&self.ledger),
                pool.clone(),
                &self.settings,
                metrics,
            )
        });
        desk.clone()
    }
}
