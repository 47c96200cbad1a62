//! A pool's object, watched: the newest state, whoever wrote it.
//!
//! A task of its own reads the stream, so that a slow caller gets the newest state next and not all
//! that it missed. It ends when the caller drops the stream.

use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::object::Object;
use super::resource::POOLS;
use super::snapshot;
use super::status::{Failure, Verb, chain};
use super::wire::{Fetched, Wire};
use crate::{LedgerError, PoolKey, Snapshot};

/// The newest state that the reader has not taken yet.
#[derive(Default)]
struct Slot {
    newest: Mutex<Option<Result<Snapshot, LedgerError>>>,
    filled: Notify,
}

impl Slot {
    fn put(&self, item: Result<Snapshot, LedgerError>) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(item);
        self.filled.notify_one();
    }

    async fn take(&self) -> Result<Snapshot, LedgerError> {
        loop {
            let newest = self
                .newest
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            match newest {
                Some(item) => return item,
                None => self.filled.notified().await,
            }
        }
    }
}

pub(super) fn watch(
    wire: Wire,
    pool: PoolKey,
    now: Snapshot,
) -> BoxStream<'static, Result<Snapshot, LedgerError>> {
    let slot = Arc::new(Slot::default());
    slot.put(Ok(now));
    let mut task = JoinSet::new();
    task.spawn(follow(wire, pool, Arc::clone(&slot)));
    futures::stream::unfold((slot, task), |(slot, task)| async move {
        let item = slot.take().await;
        Some((item, (slot, task)))
    })
    .boxed()
}

async fn follow(wire: Wire, pool: PoolKey, slot: Arc<Slot>) {
    let kind = ApiResource {
        group: POOLS.group.into(),
        version: POOLS.version.into(),
        api_version: POOLS.api_version(),
        kind: POOLS.kind.into(),
        plural: POOLS.plural.into(),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(wire.client.clone(), &wire.namespace, &kind);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", pool.name));
    let mut events = start(api, config).default_backoff().boxed();
    let ask = wire.ask(Verb::Watch, &POOLS, &pool.name);
    // A list without the object ends with nothing in between: the pool is absent.
    let mut listed = None;
    while let Some(event) = events.next().await {
        let item = match event {
            Ok(Event::Init) => {
                listed = None;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = Some(object);
                continue;
            }
            Ok(Event::InitDone) => read(&ask.target(), &pool, listed.take()),
            Ok(Event::Apply(object)) => read(&ask.target(), &pool, Some(object)),
            Ok(Event::Delete(_)) => read(&ask.target(), &pool, None),
            Err(error) => Err(failure(error).into_error(ask)),
        };
        slot.put(item);
    }
}

fn read(
    target: &str,
    pool: &PoolKey,
    object: Option<DynamicObject>,
) -> Result<Snapshot, LedgerError> {
    let Some(object) = object else {
        return Ok(snapshot(None));
    };
    let object = serde_json::to_value(&object).map_err(|error| LedgerError::Unreadable {
        target: target.to_owned(),
        why: error.to_string(),
    })?;
    let fetched = Fetched { object, size: 0 };
    let object = Object::read(target, pool.network, fetched)?;
    Ok(snapshot(Some(&object)))
}

fn failure(error: watcher::Error) -> Failure {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Failure::of(error),
        watcher::Error::WatchError(status) => Failure::of(kube::Error::Api(status)),
        other => Failure::Lost(chain(&other)),
    }
}
