//! Which NodeSlicePools there are: their metadata, watched. What they hold is not sent, and a change that
//! somebody else made is known by its version.

use berth_api::slices::{MANAGED, NETWORKS, SLICE_PAGE, SLICE_POOL};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use kube::{Api, ResourceExt};

use super::super::resource::SLICE_POOLS;
use super::super::wire::Wire;

/// A NodeSlicePool, without what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The object's name.
    pub name: String,
    /// The pool that it is a further page of.
    pub page_of: Option<String>,
    pub version: String,
    /// A controller made it: Berth's, or whereabouts'.
    pub made: bool,
    /// The definitions that share it, `namespace/name`.
    pub networks: Vec<String>,
    /// UIDs of the definitions that whereabouts' controller noted.
    pub owners: Vec<String>,
}

/// What a watch of them shows.
#[derive(Clone, Debug)]
pub enum HeadEvent {
    /// A list begins: what was known before is replaced by what follows, once it is complete.
    Init,
    Listed(Head),
    Complete,
    Put(Head),
    Gone(String),
    /// The watch is renewed by itself.
    Broken(String),
}

pub fn follow(wire: &Wire) -> BoxStream<'static, HeadEvent> {
    let kind = ApiResource {
        group: SLICE_POOLS.group.into(),
        version: SLICE_POOLS.version.into(),
        api_version: SLICE_POOLS.api_version(),
        kind: SLICE_POOLS.kind.into(),
        plural: SLICE_POOLS.plural.into(),
    };
    let api: Api<PartialObjectMeta<DynamicObject>> =
        Api::namespaced_with(wire.client.clone(), &wire.namespace, &kind);
    start(api, watcher::Config::default())
        .default_backoff()
        .map(|event| match event {
            Ok(Event::Init) => HeadEvent::Init,
            Ok(Event::InitApply(object)) => HeadEvent::Listed(head(&object)),
            Ok(Event::InitDone) => HeadEvent::Complete,
            Ok(Event::Apply(object)) => HeadEvent::Put(head(&object)),
            Ok(Event::Delete(object)) => HeadEvent::Gone(object.name_any()),
            Err(error) => HeadEvent::Broken(error.to_string()),
        })
        .boxed()
}

fn head(object: &PartialObjectMeta<DynamicObject>) -> Head {
    let annotation = |name: &str| object.annotations().get(name).map(String::as_str);
    let networks = annotation(NETWORKS).unwrap_or_default().split(',');
    let owners = object.owner_references().iter();
    let owners: Vec<String> = owners
        .filter(|owner| owner.kind == "NetworkAttachmentDefinition")
        .map(|owner| owner.uid.clone())
        .collect();
    let further = annotation(SLICE_PAGE).is_some_and(|page| !page.starts_with("0/"));
    Head {
        name: object.name_any(),
        page_of: further
            .then(|| annotation(SLICE_POOL).map(str::to_owned))
            .flatten(),
        version: object.resource_version().unwrap_or_default(),
        made: annotation(MANAGED) == Some("true") || !owners.is_empty(),
        networks: networks
            .filter(|network| !network.is_empty())
            .map(str::to_owned)
            .collect(),
        owners,
    }
}
