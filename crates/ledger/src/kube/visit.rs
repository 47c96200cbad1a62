//! All pools, read page by page: the text of one page is held at a time, and one parsed object.

use std::collections::BTreeSet;

use kube::api::ListParams;
use serde::Deserialize;
use serde_json::Value;

use super::client::Fetched;
use super::object::Object;
use super::resource::POOLS;
use super::response::Verb;
use super::{KubeLedger, PAGE, PUBLISHED, snapshot};
use crate::{LedgerError, PoolKey, Visited};

/// Pools in one answer of a list of metadata.
const METADATA_PAGE: u32 = 500;

impl KubeLedger {
    /// Shows every pool to `visit`; one that can't be read is shown with the reason.
    pub async fn visit(&self, mut visit: impl FnMut(Visited)) -> Result<(), LedgerError> {
        let show = |object: Value| visit(self.visited(object));
        self.client.reduce(&POOLS, "", PAGE, show).await
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
        let one = ListParams::default().limit(1);
        let page = self.client.page_of_metadata(&POOLS, &one).await?;
        Ok(page["items"]
            .as_array()
            .is_some_and(|items| !items.is_empty()))
    }

    /// The namespaces of the cluster that have pools. Metadata alone is read.
    pub async fn namespaces(&self) -> Result<BTreeSet<String>, LedgerError> {
        let mut found = BTreeSet::new();
        let mut params = ListParams::default().limit(METADATA_PAGE);
        loop {
            let page = self.client.page_everywhere(&POOLS, &params).await?;
            let objects = page["items"].as_array().into_iter().flatten();
            let namespace = |object: &Value| {
                let namespace = object["metadata"]["namespace"].as_str();
                namespace.map(str::to_owned)
            };
            found.extend(objects.filter_map(namespace));
            match next(&page) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(found),
            }
        }
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

/// Where the list goes on.
fn next(page: &Value) -> Option<String> {
    let token = page["metadata"]["continue"].as_str()?;
    (!token.is_empty()).then(|| token.to_owned())
}
