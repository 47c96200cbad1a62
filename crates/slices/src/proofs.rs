//! Which networks overlap no other, as the controller has found out: for elastic slices in one ConfigMap, watched.
//!
//! A proof matters only while the API server is away: as long as it is there, every address is checked by its reservation.

use std::collections::BTreeMap;

use berth_api::slices::{DISJOINT_KEY, DisjointRanges, NETWORKS_MAP};
use berth_core::Prefix;
use berth_ledger::LedgerError;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};

use crate::world::World;

pub(crate) type Ranges = BTreeMap<String, Prefix>;

impl World {
    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.connection.client.clone(), &self.connection.namespace)
    }

    /// The ranges that are proved, by the names of their plain pools.
    pub async fn disjoint_ranges(&self) -> Result<Ranges, LedgerError> {
        let maps = self.maps();
        let asked = maps.get_opt(NETWORKS_MAP);
        let why = match tokio::time::timeout(self.connection.timeout, asked).await {
            Ok(Ok(map)) => return Ok(ranges(map.as_ref())),
            // No right to read it: nothing is proved.
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => return Ok(Ranges::new()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        Err(LedgerError::Unavailable {
            target: format!("ConfigMap {NETWORKS_MAP}"),
            why,
            retry_after: None,
        })
    }

    /// The same, after every change.
    pub fn watch_disjoint_ranges(&self) -> BoxStream<'static, Ranges> {
        let named = format!("metadata.name={NETWORKS_MAP}");
        watcher(self.maps(), watcher::Config::default().fields(&named))
            .default_backoff()
            .filter_map(|event| async move {
                match event.ok()? {
                    watcher::Event::Apply(map) | watcher::Event::InitApply(map) => {
                        Some(ranges(Some(&map)))
                    }
                    watcher::Event::Delete(_) => Some(Ranges::new()),
                    watcher::Event::Init | watcher::Event::InitDone => None,
                }
            })
            .boxed()
    }
}

/// What can't be read proves nothing.
fn ranges(map: Option<&ConfigMap>) -> Ranges {
    let text = map
        .and_then(|map| map.data.as_ref())
        .and_then(|data| data.get(DISJOINT_KEY));
    let read = text.and_then(|text| serde_json::from_str::<DisjointRanges>(text).ok());
    read.map(|read| read.0).unwrap_or_default()
}
