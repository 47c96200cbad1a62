//! A pool's object or objects, watched: the newest state, whoever wrote it.
//!
//! A task of its own reads the stream, so that a slow caller gets the newest state next and not all
//! that it missed. It ends when the caller drops the stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::object::Object;
use super::pages::{self, Place};
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

/// What is looked at: one object, or all pages of a pool.
pub(super) struct View {
    pub pool: PoolKey,
    pub paged: bool,
}

impl View {
    fn config(&self) -> watcher::Config {
        let config = watcher::Config::default();
        if self.paged {
            config.labels(&pages::selector(&self.pool.name))
        } else {
            config.fields(&format!("metadata.name={}", self.pool.name))
        }
    }

    /// The page of an object of this view; the only object of a pool is its page 0.
    fn page(&self, object: &Value) -> Option<u128> {
        if self.paged {
            pages::page_in(object, &self.pool.name)
        } else {
            Some(0)
        }
    }

    fn read(&self, page: u128, object: Value) -> Result<Object, String> {
        let place = if self.paged {
            Place::Page(page)
        } else {
            Place::Whole
        };
        let fetched = Fetched {
            object,
            size: 0,
            text: None,
        };
        Object::read(self.pool.network, place, fetched)
    }

    /// One object that can't be read makes the whole unreadable: what it holds must not seem free.
    fn snapshot(&self, target: &str, objects: &Objects) -> Result<Snapshot, LedgerError> {
        let mut readable = Vec::new();
        for (page, object) in objects {
            match object {
                Ok(object) => readable.push((*page, object)),
                Err(why) => {
                    return Err(LedgerError::Unreadable {
                        target: target.to_owned(),
                        why: why.clone(),
                    });
                }
            }
        }
        if self.paged {
            return Ok(pages::snapshot(readable.into_iter()));
        }
        Ok(snapshot(readable.first().map(|(_, object)| *object)))
    }
}

type Objects = BTreeMap<u128, Result<Object, String>>;

pub(super) fn watch(
    wire: Wire,
    view: View,
    now: Snapshot,
) -> BoxStream<'static, Result<Snapshot, LedgerError>> {
    let slot = Arc::new(Slot::default());
    slot.put(Ok(now));
    let mut task = JoinSet::new();
    task.spawn(follow(wire, view, Arc::clone(&slot)));
    futures::stream::unfold((slot, task), |(slot, task)| async move {
        let item = slot.take().await;
        Some((item, (slot, task)))
    })
    .boxed()
}

async fn follow(wire: Wire, view: View, slot: Arc<Slot>) {
    let mut events = start(wire.api::<DynamicObject>(&POOLS), view.config())
        .default_backoff()
        .boxed();
    let ask = wire.ask(Verb::Watch, &POOLS, &view.pool.name);
    let mut objects = Objects::new();
    // What a list brings replaces the whole when it is complete, and not before.
    let mut listed = Objects::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                listed = Objects::new();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                take_in(&view, &mut listed, &object);
                continue;
            }
            Ok(Event::InitDone) => objects = std::mem::take(&mut listed),
            Ok(Event::Apply(object)) => take_in(&view, &mut objects, &object),
            Ok(Event::Delete(object)) => {
                if let Some(page) = value(&object).ok().and_then(|value| view.page(&value)) {
                    objects.remove(&page);
                }
            }
            Err(error) => {
                slot.put(Err(failure(error).into_error(ask)));
                continue;
            }
        }
        slot.put(view.snapshot(&ask.target(), &objects));
    }
}

fn take_in(view: &View, objects: &mut Objects, object: &DynamicObject) {
    let read = value(object).map(|value| (view.page(&value), value));
    match read {
        Ok((Some(page), value)) => {
            objects.insert(page, view.read(page, value));
        }
        Ok((None, _)) => {}
        Err(why) => {
            objects.insert(0, Err(why));
        }
    }
}

fn value(object: &DynamicObject) -> Result<Value, String> {
    serde_json::to_value(object).map_err(|error| error.to_string())
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
