//! That a pool's object was written: its versions alone, not what it holds.
//!
//! Every node of a cluster hears of every write of a shared pool. With the object in it, that costs the API server and
//! all nodes what the pool holds, at every write, for a copy that most of them never look at.

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde_json::json;

use super::base::{Base, Stamp};
use super::resource::POOLS;
use super::status::Verb;
use super::watch::failure;
use super::wire::Wire;
use crate::{LedgerError, Version};

pub(super) fn news(wire: Wire, pool: &str) -> BoxStream<'static, Result<Version, LedgerError>> {
    let api = wire.api::<PartialObjectMeta<DynamicObject>>(&POOLS);
    let config = watcher::Config::default().fields(&format!("metadata.name={pool}"));
    let events = watcher::watcher(api, config).default_backoff();
    let pool = pool.to_owned();
    let version = move |event: Result<Event<PartialObjectMeta<DynamicObject>>, watcher::Error>| {
        let heard = match event {
            Ok(Event::Init | Event::InitDone) => None,
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                let object = json!({ "metadata": object.metadata });
                Stamp::read(&object).ok().map(|stamp| Ok(Base::At(stamp)))
            }
            Ok(Event::Delete(_)) => Some(Ok(Base::Absent)),
            Err(error) => {
                let ask = wire.ask(Verb::Watch, &POOLS, &pool);
                Some(Err(failure(error).into_error(ask)))
            }
        };
        let heard = heard.map(|heard| heard.map(|base| Version::from(&base)));
        futures::future::ready(heard)
    };
    events.filter_map(version).boxed()
}
