//! `berth pools`.

use berth_core::examine::examine;
use berth_ledger::SharedLedger;
use clap::Args;
use serde::Serialize;

use crate::output::{self, Format, Row};

#[derive(Debug, Args)]
pub struct Pools {}

#[derive(Debug, Serialize)]
struct PoolRow {
    pool: String,
    network: Option<String>,
    allocated: usize,
    resting: usize,
    findings: Vec<String>,
}

impl Row for PoolRow {
    const COLUMNS: &'static [&'static str] =
        &["pool", "network", "allocated", "resting", "findings"];

    fn cells(&self) -> Vec<String> {
        let findings = match self.findings.as_slice() {
            [] => "none".to_owned(),
            many => many.join("; "),
        };
        vec![
            self.pool.clone(),
            self.network.clone().unwrap_or_else(|| "-".into()),
            self.allocated.to_string(),
            self.resting.to_string(),
            findings,
        ]
    }
}

impl Pools {
    pub async fn run(&self, ledger: SharedLedger, format: Format) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for key in ledger.pools().await? {
            let row = match ledger.load(&key).await {
                Ok(snapshot) => PoolRow {
                    pool: key.name.clone(),
                    network: key.network.map(|network| network.to_string()),
                    allocated: snapshot.pool.len(),
                    resting: snapshot.pool.rests().count(),
                    findings: examine(&snapshot.pool, key.network)
                        .iter()
                        .map(ToString::to_string)
                        .collect(),
                },
                // One pool that can't be read must not hide the others.
                Err(error) => PoolRow {
                    pool: key.name.clone(),
                    network: key.network.map(|network| network.to_string()),
                    allocated: 0,
                    resting: 0,
                    findings: vec![error.to_string()],
                },
            };
            rows.push(row);
        }
        output::print(format, &rows)
    }
}
