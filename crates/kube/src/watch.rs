//! Watches of objects of any kind.

use std::fmt;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::DynamicResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use crate::client::{ObjectClient, api_resource};
use crate::list::{Selection, text};
use crate::resource::Resource;
use crate::response::{Failure, Verb};
use crate::{KubeError, chain};

impl ObjectClient {
    /// Events of the selected objects: what there is, then every change. A watch that breaks is shown as an error and begins
    /// again after a backoff.
    pub fn watch(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
    ) -> BoxStream<'static, Result<Event<DynamicObject>, KubeError>> {
        self.events(resource, selection)
    }

    /// The same with the objects' metadata alone: what they hold is not sent.
    pub fn watch_metadata(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
    ) -> BoxStream<'static, Result<Event<PartialObjectMeta<DynamicObject>>, KubeError>> {
        self.events(resource, selection)
    }

    fn events<K>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
    ) -> BoxStream<'static, Result<Event<K>, KubeError>>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
        K: Clone + fmt::Debug + DeserializeOwned + Send + 'static,
    {
        let config = watcher::Config {
            label_selector: text(selection.labels),
            field_selector: text(selection.fields),
            page_size: Some(selection.page),
            ..watcher::Config::default()
        };
        let api: Api<K> = match selection.everywhere {
            true => Api::all_with(self.kube().clone(), &api_resource(resource)),
            false => self.api(resource),
        };
        let client = self.clone();
        watcher::watcher(api, config)
            .default_backoff()
            .map(move |event| {
                let ask = client.ask(Verb::Watch, resource, "");
                event.map_err(|error| watch_failure(error).into_error(ask))
            })
            .boxed()
    }
}

fn watch_failure(error: watcher::Error) -> Failure {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Failure::of(error),
        watcher::Error::WatchError(status) => Failure::of(kube::Error::Api(status)),
        other => Failure::Lost(chain(&other)),
    }
}
