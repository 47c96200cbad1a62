//! The leader's figures, from what the watches show.

use std::collections::BTreeMap;

use serde_json::Value;

use super::plan::{Outcome, Step};
use super::run::Upkeep;
use super::seen::Seen;
use crate::metrics::PoolFigures;
use crate::pool::{Health, codec};

impl Upkeep {
    pub(super) fn count(&self, known: &Seen) {
        let pools = known.pools();
        let pools = pools.filter_map(|(name, object)| Some((name.clone(), figures(object)?)));
        let mut phases: BTreeMap<&'static str, i64> = BTreeMap::new();
        for one in known.enactments() {
            *phases.entry(one.phase.label()).or_default() += 1;
        }
        self.metrics().show(pools, &phases);
    }

    pub(super) fn count_released(&self, pool: &str, outcome: &Outcome) {
        for step in &outcome.steps {
            if let Step::Release { why, .. } = step {
                self.metrics().released(pool, *why);
            }
        }
    }
}

/// None for a pool that the leader has not written yet.
fn figures(object: &Value) -> Option<PoolFigures> {
    let (_, reason) = codec::available(object)?;
    let count = |field: &str| object["status"][field].as_i64().unwrap_or_default();
    Some(PoolFigures {
        used: count("used"),
        free: count("free"),
        reason: Health::known_reason(&reason?),
    })
}
