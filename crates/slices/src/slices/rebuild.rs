//! What is this node's by the cluster's objects, and not by its ledger: the ledger was lost. Brought up before anything is
//! asked of it, so that a container that ends frees its address, and what pods left is collected.
//!
//! Claims say whose they are. Rows of a table do not say whether they were ever given from; a pool that this node has published
//! does. So a node that has nothing lost reads no table.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::names;
use berth_core::Space;
use berth_core::slice::assigned::Assignments;
use berth_ledger::LedgerError;
use rand::RngExt;
use tokio::time::sleep;

use super::Slices;
use crate::sliced::{Mode, Sliced};

/// Between tries, while the API server is away.
const PAUSE: Duration = Duration::from_secs(5);

impl Slices {
    /// The ranges of which this node has slices that its ledger does not know.
    pub(super) async fn unknown(&self, known: &[Sliced]) -> Result<Vec<Sliced>, LedgerError> {
        let mut unknown = self.claimed(known).await?;
        // A ledger that has any holding was not lost.
        if known.is_empty() {
            let assigned = self.assigned(&unknown).await?;
            unknown.extend(assigned);
        }
        Ok(unknown)
    }

    /// The same, as soon as the API server tells; then they are brought up.
    pub(super) async fn rebuild_later(&self, known: Vec<Sliced>) {
        loop {
            // Apart from each other: all nodes wait for the same.
            let part = rand::rng().random_range(0.5..1.5);
            sleep(PAUSE.mul_f64(part)).await;
            match self.unknown(&known).await {
                Ok(mut unknown) => {
                    // What a call was faster with is as that call has it.
                    let used = self.all();
                    unknown.retain(|of| !used.iter().any(|pool| pool.of().key() == of.key()));
                    return self.bring_up(unknown).await;
                }
                Err(error) => tracing::debug!(%error, "what this node has is not known yet"),
            }
        }
    }

    async fn claimed(&self, known: &[Sliced]) -> Result<Vec<Sliced>, LedgerError> {
        let world = &self.inner.world;
        let mut ranges: Vec<Sliced> = Vec::new();
        for object in world.found().await? {
            let mut all = known.iter().chain(&ranges);
            if all.any(|of| object.is_of(&of.network, of.range)) {
                continue;
            }
            let Some(range) = object.whole() else {
                tracing::info!(
                    claim = object.name,
                    "a claim is looked at when its network is used"
                );
                continue;
            };
            // Until a call tells what the network's configuration has.
            let of = Sliced {
                network: object.network.clone(),
                slice_pool: String::new(),
                range,
                usable: Arc::new(Space::list([range.block()])),
                mode: Mode::Elastic {
                    size: None,
                    borrow: false,
                },
                checked: true,
            };
            // Nobody has cut the range: what the claim is worth, a call has to tell.
            if world.cluster.mark(&of.plain()).await?.is_some() {
                ranges.push(of);
            }
        }
        Ok(ranges)
    }

    async fn assigned(&self, others: &[Sliced]) -> Result<Vec<Sliced>, LedgerError> {
        let world = &self.inner.world;
        let mut published = world.cluster.published_by(world.node.as_str()).await?;
        for object in world.found().await? {
            let claimed = names::pool(&object.network, world.node.as_str(), object.claim.range);
            published.remove(&claimed);
        }
        if published.is_empty() {
            return Ok(Vec::new());
        }
        let mut ranges: Vec<Sliced> = Vec::new();
        for table in world.assigned.names().await? {
            let found = match world.assigned.load(&table).await {
                Ok(Some(found)) => found.pool.table,
                Ok(None) => continue,
                Err(error @ LedgerError::Unreadable { .. }) => {
                    tracing::warn!(table, %error, "a table is looked at when its network is used");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let of = self.given_from(&table, &found, &published);
            ranges.extend(of.filter(|of| !others.iter().any(|one| one.key() == of.key())));
        }
        Ok(ranges)
    }

    /// The range of a table, if this node has published a slice that the table says is its own.
    fn given_from(
        &self,
        table: &str,
        found: &Assignments,
        published: &BTreeSet<String>,
    ) -> Option<Sliced> {
        let (node, range) = (&self.inner.world.node, found.cut().range());
        let rows = found.holdings().filter(|row| row.node == *node);
        let slices: Vec<_> = rows.map(|row| row.slice).collect();
        let has = |network: &String| {
            let mut names = slices
                .iter()
                .map(|slice| names::pool(network, node.as_str(), *slice));
            names.any(|name| published.contains(&name))
        };
        let network = names::slice_networks(table, range).into_iter().find(has)?;
        Some(Sliced {
            network,
            slice_pool: table.to_owned(),
            range,
            usable: Arc::new(Space::list([range.block()])),
            mode: Mode::Assigned,
            checked: true,
        })
    }
}
