//! Requests to the API server for objects of any kind, one at a time, each with a time limit.
//!
//! Below [`kube::Api`], because two things are needed that it hides: the `Retry-After` of an answer,
//! and the raw object, of which nothing may be lost (I7). Guarantees: reads carry no resourceVersion (quorum reads), so
//! they see every write that was acknowledged before; lists are shown object by object, and one page is held at a time; a
//! write whose outcome is unknown is told from one that was refused ([`Failure`]).

use std::fmt;
use std::time::Duration;

use berth_api::names::is_path_segment;
use futures::StreamExt;
use futures::stream::BoxStream;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HeaderValue, RETRY_AFTER};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GetParams, ListParams, PartialObjectMeta, Patch,
    PatchParams, PostParams, Preconditions,
};
use kube::client::Body;
use kube::core::DynamicResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Client, core};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::connect::Connection;
use super::resource::{Part, Resource};
use super::response::{Ask, Failure, Refusal, Verb};
use crate::{LedgerError, Rejection, chain};

type Request = Result<hyper::Request<Vec<u8>>, core::request::Error>;

/// A write that the server gives up when nobody waits for its answer any longer: it can't be carried out at some later time.
/// Nor is it searched for fields that the server does not know, which would cost as much as the object is large.
fn limited(uri: &str, timeout: Duration) -> String {
    let separator = if uri.contains('?') { "&" } else { "?" };
    let seconds = timeout.as_secs().max(1);
    format!("{uri}{separator}timeout={seconds}s&fieldValidation=Ignore")
}

fn api_resource(resource: &Resource) -> ApiResource {
    ApiResource {
        group: resource.group.into(),
        version: resource.version.into(),
        api_version: resource.api_version(),
        kind: resource.kind.into(),
        plural: resource.plural.into(),
    }
}

fn text(selector: &str) -> Option<String> {
    (!selector.is_empty()).then(|| selector.to_owned())
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

/// Asks for the object's metadata alone: the whole answer would be as long as the pool.
fn metadata_alone(mut request: Request) -> Request {
    if let Ok(request) = &mut request {
        let accepted = HeaderValue::from_static(METADATA);
        request.headers_mut().insert(ACCEPT, accepted);
    }
    request
}

/// Refuses to write to a name that would lead to another object's path.
fn fit(name: &str) -> Result<(), Failure> {
    match is_path_segment(name) {
        true => Ok(()),
        false => Err(Failure::Unfit(Rejection::Invalid {
            code: 422,
            message: format!("{name:?} is not a name that an object can have"),
        })),
    }
}

/// An answer with the object's metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Reads and writes objects, each by the [`Resource`] that it is of.
#[derive(Clone)]
pub struct ObjectClient {
    kube: Client,
    namespace: String,
    timeout: Duration,
}

impl fmt::Debug for ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectClient")
            .field("namespace", &self.namespace)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// An object, how many bytes it came in, and these, if it came by itself.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub object: Value,
    pub size: usize,
    pub text: Option<Bytes>,
}

/// Which objects of a kind a list or a watch is about.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// A label selector; empty for any.
    pub labels: &'a str,
    /// A field selector; empty for any.
    pub fields: &'a str,
    /// Objects in one answer of a list.
    pub page: u32,
    /// Of all namespaces, and not of the client's alone.
    pub everywhere: bool,
}

impl Default for Selection<'_> {
    fn default() -> Self {
        Self {
            labels: "",
            fields: "",
            page: 500,
            everywhere: false,
        }
    }
}

impl ObjectClient {
    pub fn new(connection: &Connection) -> Self {
        Self {
            kube: connection.client.clone(),
            namespace: connection.namespace.clone(),
            timeout: connection.timeout,
        }
    }

    /// The same for another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.clone()
        }
    }

    /// The namespace of namespaced kinds.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// How long one request may take.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The client below, for what has an API of its own.
    pub const fn kube(&self) -> &Client {
        &self.kube
    }

    /// What a failure is about: it turns a [`Failure`] into an error that names verb, kind and object.
    pub fn ask<'a>(&'a self, verb: Verb, resource: &'static Resource, name: &'a str) -> Ask<'a> {
        Ask {
            verb,
            resource,
            part: Part::Object,
            connection: &self.namespace,
            name,
        }
    }

    /// For what goes through the client's own ways: watches.
    pub fn api<K>(&self, resource: &Resource) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        let kind = api_resource(resource);
        match resource.namespace(&self.namespace) {
            Some(namespace) => Api::namespaced_with(self.kube.clone(), &namespace, &kind),
            None => Api::all_with(self.kube.clone(), &kind),
        }
    }

    fn api_of<K>(&self, resource: &Resource, selection: &Selection<'_>) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        match selection.everywhere {
            true => Api::all_with(self.kube.clone(), &api_resource(resource)),
            false => self.api(resource),
        }
    }

    /// Events of the selected objects: what there is, then every change. A watch that breaks is shown as an error and begins
    /// again after a backoff.
    pub fn watch(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
    ) -> BoxStream<'static, Result<Event<DynamicObject>, LedgerError>> {
        self.events(resource, selection)
    }

    /// The same with the objects' metadata alone: what they hold is not sent.
    pub fn watch_metadata(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
    ) -> BoxStream<'static, Result<Event<PartialObjectMeta<DynamicObject>>, LedgerError>> {
        self.events(resource, selection)
    }

    fn events<K>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
    ) -> BoxStream<'static, Result<Event<K>, LedgerError>>
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
        let api = self.api_of::<K>(resource, selection);
        let client = self.clone();
        watcher::watcher(api, config)
            .default_backoff()
            .map(move |event| {
                let ask = client.ask(Verb::Watch, resource, "");
                event.map_err(|error| watch_failure(error).into_error(ask))
            })
            .boxed()
    }

    fn request(&self, resource: &Resource) -> core::Request {
        core::Request::new(resource.path(&self.namespace))
    }

    /// The object of that name; none if it does not exist.
    pub async fn get(
        &self,
        resource: &'static Resource,
        name: &str,
    ) -> Result<Option<Fetched>, LedgerError> {
        let request = self.request(resource).get(name, &GetParams::default());
        self.get_by(resource, name, request).await
    }

    /// The same with its metadata alone: what the object holds is not sent.
    pub async fn get_metadata(
        &self,
        resource: &'static Resource,
        name: &str,
    ) -> Result<Option<Fetched>, LedgerError> {
        let request = self
            .request(resource)
            .get_metadata(name, &GetParams::default());
        self.get_by(resource, name, request).await
    }

    /// The same as the API server's cache has it: it may be old, and costs no read of etcd.
    pub async fn get_cached_metadata(
        &self,
        resource: &'static Resource,
        name: &str,
    ) -> Result<Option<Fetched>, LedgerError> {
        let cached = GetParams::any();
        let request = self.request(resource).get_metadata(name, &cached);
        self.get_by(resource, name, request).await
    }

    async fn get_by(
        &self,
        resource: &'static Resource,
        name: &str,
        request: Request,
    ) -> Result<Option<Fetched>, LedgerError> {
        if !is_path_segment(name) {
            // No object can have that name: the server refuses to create it.
            return Ok(None);
        }
        match self.send(request).await {
            Ok(fetched) => Ok(Some(fetched)),
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(name) => Ok(None),
            Err(failure) => Err(failure.into_error(self.ask(Verb::Get, resource, name))),
        }
    }

    pub async fn create(
        &self,
        resource: &'static Resource,
        object: &Value,
    ) -> Result<Value, Failure> {
        let body = object.to_string().into_bytes();
        let request = self.request(resource).create(&PostParams::default(), body);
        self.send(request).await.map(|fetched| fetched.object)
    }

    /// Patches and returns the object's metadata alone: the answer would be as long as the pool.
    pub async fn patch(
        &self,
        resource: &'static Resource,
        name: &str,
        patch: &Patch<Value>,
    ) -> Result<Value, Failure> {
        self.patch_part(resource, Part::Object, name, patch).await
    }

    /// The same for one part of the object.
    pub async fn patch_part(
        &self,
        resource: &'static Resource,
        part: Part,
        name: &str,
        patch: &Patch<Value>,
    ) -> Result<Value, Failure> {
        fit(name)?;
        let (request, params) = (self.request(resource), PatchParams::default());
        let request = match part {
            Part::Object => request.patch(name, &params, patch),
            Part::Status => request.patch_subresource("status", name, &params, patch),
        };
        let sent = self.send(metadata_alone(request)).await;
        sent.map(|fetched| fetched.object)
    }

    /// Puts the whole object in the place of the one at the version that it names; returns its metadata alone.
    pub async fn replace(
        &self,
        resource: &'static Resource,
        part: Part,
        name: &str,
        text: &Bytes,
    ) -> Result<Value, Failure> {
        fit(name)?;
        let (request, params) = (self.request(resource), PostParams::default());
        let request = match part {
            Part::Object => request.replace(name, &params, text.to_vec()),
            Part::Status => request.replace_subresource("status", name, &params, text.to_vec()),
        };
        let sent = self.send(metadata_alone(request)).await;
        sent.map(|fetched| fetched.object)
    }

    /// Deletes the object if it still is that one, at that version; [`LedgerError::Conflict`] if it is not. One that does
    /// not exist is as deleted as asked.
    pub async fn delete(
        &self,
        resource: &'static Resource,
        name: &str,
        preconditions: Preconditions,
    ) -> Result<(), LedgerError> {
        if !is_path_segment(name) {
            return Ok(());
        }
        let params = DeleteParams::default().preconditions(preconditions);
        let request = self.request(resource).delete(name, &params);
        match self.send(request).await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(name) => Ok(()),
            Err(failure) => Err(failure.into_error(self.ask(Verb::Delete, resource, name))),
        }
    }

    /// Shows every object of a kind to `visit`, page by page, and drops it.
    pub async fn reduce<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        labels: &str,
        page: u32,
        visit: impl FnMut(T),
    ) -> Result<(), LedgerError> {
        let selection = Selection {
            labels,
            page,
            ..Selection::default()
        };
        self.list(resource, &selection, visit).await
    }

    /// Shows every selected object to `visit`, page by page, and drops it. Of a page only the text is held beside the one
    /// object that is shown: a list of whole objects would need ten times its size.
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        visit: impl FnMut(T),
    ) -> Result<(), LedgerError> {
        self.list_by(resource, selection, core::Request::list, visit)
            .await
    }

    /// The same with the objects' metadata alone.
    pub async fn list_metadata<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        visit: impl FnMut(T),
    ) -> Result<(), LedgerError> {
        self.list_by(resource, selection, core::Request::list_metadata, visit)
            .await
    }

    async fn list_by<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        request: fn(&core::Request, &ListParams) -> Request,
        mut visit: impl FnMut(T),
    ) -> Result<(), LedgerError> {
        let mut params = ListParams::default().limit(selection.page);
        params.label_selector = text(selection.labels);
        params.field_selector = text(selection.fields);
        let path = match selection.everywhere {
            true => resource.path_everywhere(),
            false => resource.path(&self.namespace),
        };
        let collection = core::Request::new(path);
        loop {
            let failed = |failure: Failure| failure.into_error(self.ask(Verb::List, resource, ""));
            let sent = self.send_text(request(&collection, &params)).await;
            let text = sent.map_err(failed)?;
            let page: TextPage<'_> = parse(&text).map_err(failed)?;
            for item in page.items.unwrap_or_default() {
                visit(parse(item.get().as_bytes()).map_err(failed)?);
            }
            match page.metadata.continues {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok(()),
            }
        }
    }

    /// The same with the objects' metadata alone.
    pub async fn page_of_metadata(
        &self,
        resource: &'static Resource,
        params: &ListParams,
    ) -> Result<Value, LedgerError> {
        match self
            .send(self.request(resource).list_metadata(params))
            .await
        {
            Ok(fetched) => Ok(fetched.object),
            Err(failure) => Err(failure.into_error(self.ask(Verb::List, resource, ""))),
        }
    }

    /// One page of the metadata of all objects of a kind, in whichever namespace.
    pub async fn page_everywhere(
        &self,
        resource: &'static Resource,
        params: &ListParams,
    ) -> Result<Value, LedgerError> {
        match self
            .send(core::Request::new(resource.path_everywhere()).list_metadata(params))
            .await
        {
            Ok(fetched) => Ok(fetched.object),
            Err(failure) => Err(failure.into_error(self.ask(Verb::List, resource, ""))),
        }
    }

    /// What `pick` takes of the metadata of all objects of a kind: what is not picked is not kept.
    pub async fn pick_metadata<T>(
        &self,
        resource: &'static Resource,
        labels: &str,
        page: u32,
        pick: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, LedgerError> {
        let mut params = ListParams::default().limit(page);
        if !labels.is_empty() {
            params = params.labels(labels);
        }
        let mut picked = Vec::new();
        loop {
            let request = self.request(resource).list_metadata(&params);
            let list = self.send(request).await;
            let list =
                list.map_err(|failure| failure.into_error(self.ask(Verb::List, resource, "")))?;
            let objects = list.object["items"].as_array().into_iter().flatten();
            picked.extend(objects.filter_map(|object| pick(&object["metadata"])));
            match list.object["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => params.continue_token = Some(token.to_owned()),
                _ => return Ok(picked),
            }
        }
    }

    /// The same of all objects with these labels as they were a moment ago, in one answer: this costs no read of etcd.
    pub async fn pick_cached_metadata<T>(
        &self,
        resource: &'static Resource,
        labels: &str,
        pick: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, LedgerError> {
        let params = ListParams::default().labels(labels).match_any();
        let request = self.request(resource).list_metadata(&params);
        let list = self.send(request).await;
        let list =
            list.map_err(|failure| failure.into_error(self.ask(Verb::List, resource, "")))?;
        let objects = list.object["items"].as_array().into_iter().flatten();
        Ok(objects
            .filter_map(|object| pick(&object["metadata"]))
            .collect())
    }

    async fn send(&self, request: Request) -> Result<Fetched, Failure> {
        let text = self.send_text(request).await?;
        Ok(Fetched {
            object: parse(&text)?,
            size: text.len(),
            text: Some(text),
        })
    }

    /// The answer as it came.
    async fn send_text(&self, request: Request) -> Result<Bytes, Failure> {
        let unfit = |error: &dyn std::error::Error| {
            let message = chain(error);
            Failure::Unfit(Rejection::Invalid { code: 400, message })
        };
        let mut request = request.map_err(|error| unfit(&error))?;
        if request.method() != hyper::Method::GET {
            let limited = limited(&request.uri().to_string(), self.timeout);
            *request.uri_mut() = limited.parse().map_err(|error| unfit(&error))?;
        }
        match tokio::time::timeout(self.timeout, self.exchange(request)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Lost(format!(
                "no answer within {:?}",
                self.timeout
            ))),
        }
    }

    async fn exchange(&self, request: hyper::Request<Vec<u8>>) -> Result<Bytes, Failure> {
        let sent = self.kube.send(request.map(Body::from)).await;
        let response = sent.map_err(Failure::of)?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = match response.into_body().collect_bytes().await {
            Ok(body) => body,
            Err(error) => return Err(Failure::Lost(chain(&error))),
        };
        if !status.is_success() {
            let refusal = Refusal::read(status.as_u16(), retry_after, &body);
            return Err(Failure::Refused(refusal));
        }
        Ok(body)
    }
}

/// A page of a list whose objects are not parsed yet.
#[derive(Deserialize)]
struct TextPage<'a> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    continues: Option<String>,
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| {
        let length = text.len();
        Failure::Lost(format!("the answer is no JSON ({length} bytes): {error}"))
    })
}
