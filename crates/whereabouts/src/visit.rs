//! All pools, read page by page: the text of one page is held at a time, and one parsed object.

use std::collections::BTreeSet;

use berth_kube::{Fetched, Selection, Verb};
use serde::Deserialize;
use serde_json::Value;

use super::object::Object;
use super::resource::POOLS;
use super::{KubeLedger, PAGE, PUBLISHED, snapshot};
use berth_ledger::{LedgerError, PoolKey, Visited};

impl KubeLedger {
    /// Shows every pool to `visit`; one that can't be read is shown with the reason.
    pub async fn visit_each(&self, mut visit: impl FnMut(Visited)) -> Result<(), LedgerError> {
        let show = |object: Value| visit(self.visited(object));
        Ok(self.client.reduce(&POOLS, "", PAGE, show).await?)
    }

    /// The names and ranges of all pools.
    pub(super) async fn keys(&self) -> Result<Vec<PoolKey>, LedgerError> {
        let mut keys = Vec::new();
        let keep = |pool: Named| {
            keys.push(PoolKey {
                name: pool.metadata.name,
                network: pool.spec.range.as_str().unwrap_or_default().parse().ok(),
            });
        };
        self.client.reduce(&POOLS, "", PAGE, keep).await?;
        Ok(keys)
    }

    fn visited(&self, object: Value) -> Visited {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let range = object["spec"]["range"].as_str().unwrap_or_default();
        let key = PoolKey {
            name: text(&object["metadata"]["name"]).unwrap_or_default(),
            network: range.parse().ok(),
        };
        let publisher = text(&object["metadata"]["annotations"][PUBLISHED]);
        let fetched = Fetched {
            object,
            size: 0,
            text: None,
        };
        let snapshot = match Object::read(key.network, fetched) {
            Ok(object) => Ok(snapshot(Some(&object))),
            Err(why) => Err(LedgerError::Unreadable {
                target: self.client.ask(Verb::Get, &POOLS, &key.name).target(),
                why,
            }),
        };
        Visited {
            key,
            publisher,
            snapshot,
        }
    }

    /// Whether there is a pool in the ledger's own namespace. Metadata alone is read.
    pub async fn has_pools(&self) -> Result<bool, LedgerError> {
        Ok(self.client.has_any(&POOLS).await?)
    }

    /// The namespaces of the cluster that have pools. Metadata alone is read.
    pub async fn namespaces(&self) -> Result<BTreeSet<String>, LedgerError> {
        let everywhere = Selection {
            everywhere: true,
            ..Selection::default()
        };
        let mut found = BTreeSet::new();
        let keep = |object: Value| {
            let namespace = object["metadata"]["namespace"].as_str();
            found.extend(namespace.map(str::to_owned));
        };
        self.client.list_metadata(&POOLS, &everywhere, keep).await?;
        Ok(found)
    }
}

/// What the name and range of a pool are read from: its entries are passed over.
#[derive(Deserialize)]
struct Named {
    metadata: Name,
    #[serde(default)]
    spec: Range,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

#[derive(Default, Deserialize)]
struct Range {
    #[serde(default)]
    range: Value,
}
