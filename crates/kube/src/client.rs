//! Requests to the API server for objects of any kind, one at a time, each with a time limit.
//!
//! Below [`kube::Api`], because two things are needed that it hides: the `Retry-After` of an answer,
//! and the raw object, of which nothing may be lost (I7). Guarantees: reads carry no resourceVersion (quorum reads), so
//! they see every write that was acknowledged before; lists are shown object by object, and one page is held at a time; a
//! write whose outcome is unknown is distinguished from one that was refused ([`Failure`]).

use std::fmt;
use std::time::Duration;

use berth_api::names::is_path_segment;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HeaderValue, RETRY_AFTER};
use kube::api::{
    Api, ApiResource, DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::client::Body;
use kube::core::DynamicResourceScope;
use kube::{Client, core};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::connect::Connection;
use crate::resource::{Part, Resource};
use crate::response::{Ask, Failure, Refusal, Verb};
use crate::{KubeError, Rejection, chain};

pub(crate) type Request = Result<hyper::Request<Vec<u8>>, core::request::Error>;

/// A write that the server abandons after the client's timeout, so that it can't be carried out at some later time.
/// Nor is it searched for fields that the server does not know, which would cost as much as the object is large.
fn limited(uri: &str, timeout: Duration) -> String {
    let separator = if uri.contains('?') { "&" } else { "?" };
    let seconds = timeout.as_secs().max(1);
    format!("{uri}{separator}timeout={seconds}s&fieldValidation=Ignore")
}

pub(crate) fn api_resource(resource: &Resource) -> ApiResource {
    ApiResource {
        group: resource.group.into(),
        version: resource.version.into(),
        api_version: resource.api_version(),
        kind: resource.kind.into(),
        plural: resource.plural.into(),
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

    pub(crate) fn request(&self, resource: &Resource) -> core::Request {
        core::Request::new(resource.path(&self.namespace))
    }

    /// The object of that name; none if it does not exist.
    pub async fn get(
        &self,
        resource: &'static Resource,
        name: &str,
    ) -> Result<Option<Fetched>, KubeError> {
        let request = self.request(resource).get(name, &GetParams::default());
        self.get_by(resource, name, request).await
    }

    /// The same with its metadata alone: what the object holds is not sent.
    pub async fn get_metadata(
        &self,
        resource: &'static Resource,
        name: &str,
    ) -> Result<Option<Fetched>, KubeError> {
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
    ) -> Result<Option<Fetched>, KubeError> {
        let cached = GetParams::any();
        let request = self.request(resource).get_metadata(name, &cached);
        self.get_by(resource, name, request).await
    }

    /// The object as the caller's own type, which keeps what the caller needs of it. None only if the API server says that
    /// this very object does not exist: proof that it is gone (I4).
    pub async fn read<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        name: &str,
    ) -> Result<Option<T>, KubeError> {
        if !is_path_segment(name) {
            // No object can have that name: an annotation or a record may name anything.
            return Ok(None);
        }
        let request = self.request(resource).get(name, &GetParams::default());
        let read = self.send_text(request).await;
        match read.and_then(|text| parse(&text)) {
            Ok(object) => Ok(Some(object)),
            Err(Failure::Refused(refusal)) if refusal.proves_absence(resource, name) => Ok(None),
            Err(failure) => Err(failure.into_error(self.ask(Verb::Get, resource, name))),
        }
    }

    async fn get_by(
        &self,
        resource: &'static Resource,
        name: &str,
        request: Request,
    ) -> Result<Option<Fetched>, KubeError> {
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

    /// Deletes the object if it still is that one, at that version; [`KubeError::Conflict`] if it is not. One that does
    /// not exist is as deleted as asked.
    pub async fn delete(
        &self,
        resource: &'static Resource,
        name: &str,
        preconditions: Preconditions,
    ) -> Result<(), KubeError> {
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

    async fn send(&self, request: Request) -> Result<Fetched, Failure> {
        let text = self.send_text(request).await?;
        Ok(Fetched {
            object: parse(&text)?,
            size: text.len(),
            text: Some(text),
        })
    }

    /// The answer as it came.
    pub(crate) async fn send_text(&self, request: Request) -> Result<Bytes, Failure> {
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

pub(crate) fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| {
        let length = text.len();
        Failure::Lost(format!("the answer is no JSON ({length} bytes): {error}"))
    })
}
