//! Version watch: that a pool's object was written: its versions alone, not what it holds.
//!
//! Every node of a cluster hears of every write of a shared pool. With the object in it, that costs the API server and
//! all nodes what the pool holds, at every write, for a copy that most of them never look at.

use berth_kube::{ObjectClient, Resource, Selection};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::Event;

use crate::{LedgerError, Version};

/// The versions that the object of that name has from now on.
pub fn versions(
    client: &ObjectClient,
    resource: &'static Resource,
    name: &str,
) -> BoxStream<'static, Result<Version, LedgerError>> {
    let fields = format!("metadata.name={name}");
    let selection = Selection {
        fields: &fields,
        ..Selection::default()
    };
    let events = client.watch_metadata(resource, &selection);
    events
        .filter_map(
            |event| async move { event.map(version).map_err(LedgerError::from).transpose() },
        )
        .boxed()
}

fn version(event: Event<PartialObjectMeta<DynamicObject>>) -> Option<Version> {
    match event {
        Event::Init | Event::InitDone => None,
        Event::Apply(object) | Event::InitApply(object) => {
            object.metadata.resource_version.map(Version::new)
        }
        Event::Delete(_) => Some(Version::absent()),
    }
}
