//! Which NodeSlicePools there are: their metadata, watched. What they hold is not sent, and a change that
//! somebody else made is known by its version.

use std::collections::BTreeMap;

use berth_api::slices::{DISJOINT, EPOCHS, MANAGED, NETWORKS, RECALLED, SLICE_PAGE, SLICE_POOL};
use berth_core::Prefix;
use berth_core::slice::Epoch;
use berth_kube::ObjectClient;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::ResourceExt;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use serde::de::DeserializeOwned;

use super::super::resource::SLICE_POOLS;

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
    /// No other network has an address in its range.
    pub disjoint: bool,
    /// The epochs that it tells of, and what is recalled: the annotations as they are, read when somebody asks.
    epochs: String,
    recalled: String,
}

impl Head {
    /// The pool that it is an object of.
    pub fn pool(&self) -> &str {
        self.page_of.as_deref().unwrap_or(&self.name)
    }

    /// Whether a slice that somebody holds at that epoch is recalled, or has another one here. A slice that this
    /// object does not tell of is none of its business.
    pub fn takes(&self, slice: Prefix, epoch: Epoch) -> bool {
        let name = slice.to_string();
        // What can't be read is looked at.
        let Ok(recalled) = list::<Vec<String>>(&self.recalled) else {
            return true;
        };
        let Ok(epochs) = list::<BTreeMap<String, Epoch>>(&self.epochs) else {
            return true;
        };
        recalled.contains(&name) || epochs.get(&name).is_some_and(|now| *now != epoch)
    }

    /// Whether a controller keeps it that tells of every slice that changes hands.
    pub fn tells_of_hands(&self) -> bool {
        !self.networks.is_empty()
    }
}

fn list<T: Default + DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    if text.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(text)
}

/// What a watch of them shows.
#[derive(Clone, Debug)]
pub enum HeadEvent {
    /// A list begins: what was known before is replaced by what follows, once it is complete.
    Init,
    Listed(Head),
    Complete,
    Put(Head),
    /// As it was last seen.
    Gone(Head),
    /// The watch is renewed by itself.
    Broken(String),
}

pub fn follow(client: &ObjectClient) -> BoxStream<'static, HeadEvent> {
    let api = client.api::<PartialObjectMeta<DynamicObject>>(&SLICE_POOLS);
    start(api, watcher::Config::default())
        .default_backoff()
        .map(|event| match event {
            Ok(Event::Init) => HeadEvent::Init,
            Ok(Event::InitApply(object)) => HeadEvent::Listed(head(&object)),
            Ok(Event::InitDone) => HeadEvent::Complete,
            Ok(Event::Apply(object)) => HeadEvent::Put(head(&object)),
            Ok(Event::Delete(object)) => HeadEvent::Gone(head(&object)),
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
        disjoint: annotation(DISJOINT) == Some("true"),
        epochs: annotation(EPOCHS).unwrap_or_default().to_owned(),
        recalled: annotation(RECALLED).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_whose_slice_changes_hands() {
        let mut head = Head {
            name: "blue--p1".into(),
            page_of: Some("blue".into()),
            version: "7".into(),
            made: true,
            networks: vec!["ns/blue".into()],
            owners: Vec::new(),
            disjoint: false,
            epochs: r#"{"10.0.0.0/26":2}"#.into(),
            recalled: String::new(),
        };
        let slice = |text: &str| -> Prefix { text.parse().unwrap() };
        assert_eq!(head.pool(), "blue");
        assert!(head.takes(slice("10.0.0.0/26"), Epoch(1)));
        assert!(!head.takes(slice("10.0.0.0/26"), Epoch(2)));
        assert!(
            !head.takes(slice("10.0.0.64/26"), Epoch(5)),
            "on another page"
        );
        head.recalled = r#"["10.0.0.0/26"]"#.into();
        assert!(head.takes(slice("10.0.0.0/26"), Epoch(2)));
        head.recalled = "nonsense".into();
        assert!(head.takes(slice("10.0.0.64/26"), Epoch(0)));
    }
}
