//! A pool's object, watched: the newest state, whoever wrote it.
//!
//! A task of its own reads the stream, so that a slow caller gets the newest state next and not all
//! that it missed. It ends when the caller drops the stream.

use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::object::Object;
use super::resource::POOLS;
use super::snapshot;
use super::status::{Failure, Verb};
use super::wire::{Fetched, Wire};
use crate::{LedgerError, PoolKey, Snapshot, chain};

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
    let config = watcher::Config::default().fields(&format!("metadata.name={}", pool.name));
    let mut events = start(wire.api::<DynamicObject>(&POOLS), config)
        .default_backoff()
        .boxed();
    let ask = wire.ask(Verb::Watch, &POOLS, &pool.name);
    // What a list brings is the state when the list is complete, and not before.
    let mut listed = None;
    while let Some(event) = events.next().await {
        let object = match event {
            Ok(Event::Init) => {
                listed = None;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = Some(object);
                continue;
            }
            Ok(Event::InitDone) => listed.take(),
            Ok(Event::Apply(object)) => Some(object),
            Ok(Event::Delete(_)) => None,
            Err(error) => {
                slot.put(Err(failure(error).into_error(ask)));
                continue;
            }
        };
        // One that can't be read is no empty pool: what it holds must not seem free.
        let read = object
            .as_ref()
            .map(|object| read(&pool, object))
            .transpose();
        let seen = read.map(|object| snapshot(object.as_ref()));
        slot.put(seen.map_err(|why| LedgerError::Unreadable {
            target: ask.target(),
            why,
        }));
    }
}

fn read(pool: &PoolKey, object: &DynamicObject) -> Result<Object, String> {
    let fetched = Fetched {
        object: serde_json::to_value(object).map_err(|error| error.to_string())?,
        size: 0,
        text: None,
    };
    Object::read(pool.network, fetched)
}

pub(super) fn failure(error: watcher::Error) -> Failure {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Failure::of(error),
        watcher::Error::WatchError(status) => Failure::of(kube::Error::Api(status)),
        other => Failure::Lost(chain(&other)),
    }
}
