//! A collector of the whole cluster as a leader task: it frees what pods of lost nodes left where agents may not.

use std::fmt;

use async_trait::async_trait;
use berth_front::LeaderTask;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::collector::Collector;
use super::policy::Policy;

/// Runs a collector that sweeps while this process leads ([`Collector::led`]).
pub struct CollectTask<P: Policy> {
    name: &'static str,
    /// What the names of its metrics begin with.
    prefix: &'static str,
    /// Taken by the process's one call of `follow`.
    collector: Mutex<Option<Collector<P>>>,
}

impl<P: Policy> CollectTask<P> {
    pub fn new(
        name: &'static str,
        prefix: &'static str,
        collector: Collector<P>,
    ) -> CollectTask<P> {
        CollectTask {
            name,
            prefix,
            collector: Mutex::new(Some(collector)),
        }
    }

    fn with_collector<T>(&self, with: impl FnOnce(&mut Option<Collector<P>>) -> T) -> T {
        with(&mut self.collector.lock())
    }
}

impl<P: Policy> fmt::Debug for CollectTask<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectTask")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<P: Policy> LeaderTask for CollectTask<P> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn register(&self, registry: &mut Registry) {
        self.with_collector(|collector| {
            if let Some(collector) = collector {
                collector.register(registry, self.prefix);
            }
        });
    }

    /// Not bound to one term: the collector checks before each sweep whether this process leads.
    async fn follow(&self, stop: CancellationToken) {
        let Some(collector) = self.with_collector(Option::take) else {
            return;
        };
        collector.run(stop.cancelled_owned()).await;
    }
}
