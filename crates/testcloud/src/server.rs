//! The HTTP server: authentication, rates, faults, then the call itself.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, sleep_until};

use crate::aliases::Course;
use crate::error::ApiError;
use crate::fault::Fault;
use crate::metadata;
use crate::operations::{Operation, Scope};
use crate::project::Project;
use crate::requests::Recorded;
use crate::routes::Call;
use crate::token::Tokens;

type Rule = Box<dyn FnMut(&Recorded) -> Option<Fault> + Send>;
type Answer = Response<Full<Bytes>>;

struct Shared {
    project: Mutex<Project>,
    tokens: Mutex<Tokens>,
    rule: Mutex<Rule>,
    requests: Mutex<Vec<Recorded>>,
    base: String,
}

/// A running local cloud; it ends with this value.
pub struct Cloud {
    shared: Arc<Shared>,
    address: SocketAddr,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Cloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cloud")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Cloud {
    /// Serves `project` on a free port of loopback.
    pub async fn start(project: Project) -> Result<Cloud> {
        Cloud::listen(project, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Serves `project` on an address of the test's choice.
    pub async fn listen(project: Project, address: SocketAddr) -> Result<Cloud> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on {address}"))?;
        let address = listener.local_addr().context("read the port")?;
        let shared = Arc::new(Shared {
            project: Mutex::new(project),
            tokens: Mutex::default(),
            rule: Mutex::new(Box::new(|_| None)),
            requests: Mutex::default(),
            base: format!("http://{address}"),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared), None));
        Ok(Cloud {
            shared,
            address,
            tasks: Mutex::new(vec![task]),
        })
    }

    /// The endpoint of the Compute and the Network Connectivity API, and of tokens (`/token`).
    pub fn endpoint(&self) -> String {
        self.shared.base.clone()
    }

    /// Starts the metadata server of a VM; its `host:port`, as `GCE_METADATA_HOST` has it.
    pub async fn metadata(&self, zone: &str, instance: &str) -> Result<String> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let who = Some((zone.to_owned(), instance.to_owned()));
        let task = tokio::spawn(accept(listener, Arc::clone(&self.shared), who));
        self.tasks.lock().push(task);
        Ok(address.to_string())
    }

    /// Reads or changes the project's state.
    pub fn project<T>(&self, work: impl FnOnce(&mut Project) -> T) -> T {
        let mut project = self.shared.project.lock();
        project.settle(Instant::now());
        work(&mut project)
    }

    /// Decides over every request from now on.
    pub fn faults(&self, rule: impl FnMut(&Recorded) -> Option<Fault> + Send + 'static) {
        *self.shared.rule.lock() = Box::new(rule);
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.requests.lock().clone()
    }

    /// Requests of one API method so far, as in `instances.get`.
    pub fn count(&self, call: &str) -> usize {
        let requests = self.shared.requests.lock();
        requests
            .iter()
            .filter(|request| request.call == call)
            .count()
    }

    /// No token that was issued so far is good any longer.
    pub fn revoke_tokens(&self) {
        self.shared.tokens.lock().revoke_all();
    }

    /// What a GET of this path shows, outside the record of requests and the faults.
    pub fn show(&self, path: &str) -> Option<Value> {
        let (call, _) = Call::find("GET", path)?;
        let record = Recorded {
            call: call.name().to_owned(),
            method: "GET".to_owned(),
            path: path.to_owned(),
            query: Vec::new(),
            body: Value::Null,
            at: Instant::now(),
            code: None,
        };
        let mut state = self.shared.project.lock();
        state.settle(Instant::now());
        self.shared.immediate(&mut state, &call, &record, None).ok()
    }

    /// A token that is good, for a test's own requests.
    pub fn token(&self) -> String {
        self.shared.tokens.lock().issue()
    }

    /// Accepts assertions that are signed with this key (PKCS#1 public key, DER).
    pub fn trust_key(&self, key: Vec<u8>) {
        self.shared.tokens.lock().trust(key);
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        self.tasks.lock().iter().for_each(JoinHandle::abort);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, metadata: Option<(String, String)>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(connection(stream, Arc::clone(&shared), metadata.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>, metadata: Option<(String, String)>) {
    let answer = service_fn(move |request| {
        let (shared, metadata) = (Arc::clone(&shared), metadata.clone());
        async move {
            match metadata {
                Some(who) => shared.metadata(&who, &request),
                None => shared.answer(request).await,
            }
        }
    });
    // An error here is a connection that a fault closed, or that the client left.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

impl Shared {
    fn metadata(
        &self,
        (zone, name): &(String, String),
        request: &Request<Incoming>,
    ) -> io::Result<Answer> {
        let mut record = Recorded {
            call: "metadata".to_owned(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            query: Vec::new(),
            body: Value::Null,
            at: Instant::now(),
            code: None,
        };
        let fault = (self.rule.lock())(&record);
        let code = match fault {
            Some(Fault::Cut | Fault::LoseAnswer) => {
                self.requests.lock().push(record);
                return Err(io::Error::other("a fault closes the connection"));
            }
            Some(Fault::NotJson(code)) => code,
            Some(Fault::Refuse(error)) => error.code,
            _ => 200,
        };
        let flavour = request
            .headers()
            .get("Metadata-Flavor")
            .is_some_and(|flavour| flavour == "Google");
        let found = {
            let project = self.project.lock();
            let instance = project.instances.get(&(zone.clone(), name.clone()));
            instance.and_then(|instance| {
                let token = self.tokens.lock().issue();
                metadata::answer(instance, &project, &token, &record.path)
            })
        };
        let (code, text) = match (code, flavour, found) {
            (200, true, Some(text)) => (200, text),
            (200, true, None) => (404, "Not Found".to_owned()),
            (200, false, _) => (
                403,
                "Missing required header \"Metadata-Flavor\": \"Google\"".to_owned(),
            ),
            (code, ..) => (code, "a test refuses this".to_owned()),
        };
        record.code = Some(code);
        self.requests.lock().push(record);
        let mut answer = Response::new(Full::new(Bytes::from(text)));
        *answer.status_mut() = status(code);
        answer.headers_mut().insert(
            "Metadata-Flavor",
            hyper::header::HeaderValue::from_static("Google"),
        );
        Ok(answer)
    }

    async fn answer(&self, request: Request<Incoming>) -> io::Result<Answer> {
        let (head, body) = request.into_parts();
        let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let found = Call::find(head.method.as_str(), head.uri.path());
        let record = Recorded {
            call: found
                .as_ref()
                .map_or("unknown", |(call, _)| call.name())
                .to_owned(),
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: pairs(head.uri.query().unwrap_or_default()),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            at: Instant::now(),
            code: None,
        };
        let place = {
            let mut requests = self.requests.lock();
            requests.push(record.clone());
            requests.len() - 1
        };
        let fault = (self.rule.lock())(&record);
        let bearer = head
            .headers
            .get(AUTHORIZATION)
            .and_then(|header| header.to_str().ok())
            .map(str::to_owned);
        let answer = match &fault {
            Some(Fault::Cut) => return Err(io::Error::other("a fault closes the connection")),
            Some(Fault::Refuse(error)) => Err(error.clone()),
            Some(Fault::NotJson(code)) => {
                let mut answer = Response::new(Full::new(Bytes::from_static(
                    b"<html>upstream connect error</html>",
                )));
                *answer.status_mut() = status(*code);
                self.note(place, *code);
                return Ok(answer);
            }
            _ => {
                if let Some(Fault::Delay(pause)) = &fault {
                    sleep(*pause).await;
                }
                let text = String::from_utf8_lossy(&bytes);
                self.carry_out(found, &record, bearer.as_deref(), &text, fault.as_ref())
                    .await
            }
        };
        let (code, value) = match answer {
            Ok(value) => (200, value),
            Err(error) => (error.code, error.body()),
        };
        self.note(place, code);
        if matches!(fault, Some(Fault::LoseAnswer)) {
            return Err(io::Error::other("a fault keeps the answer"));
        }
        let mut answer = Response::new(Full::new(Bytes::from(value.to_string())));
        *answer.status_mut() = status(code);
        let json = hyper::header::HeaderValue::from_static("application/json; charset=UTF-8");
        answer.headers_mut().insert(CONTENT_TYPE, json);
        Ok(answer)
    }

    fn note(&self, place: usize, code: u16) {
        if let Some(record) = self.requests.lock().get_mut(place) {
            record.code = Some(code);
        }
    }

    async fn carry_out(
        &self,
        found: Option<(Call, String)>,
        record: &Recorded,
        bearer: Option<&str>,
        text: &str,
        fault: Option<&Fault>,
    ) -> Result<Value, ApiError> {
        let (call, project) = found.ok_or_else(|| ApiError::not_found(&record.path))?;
        if call == Call::Token {
            let token = self.tokens.lock().exchange(text)?;
            return Ok(
                json!({ "access_token": token, "expires_in": 3599, "token_type": "Bearer" }),
            );
        }
        self.tokens.lock().accept(bearer)?;
        {
            let mut state = self.project.lock();
            let limits = state.limits.clone();
            state.rates.admit(call.group(), &limits, record.at)?;
            if project != state.name {
                let message = format!(
                    "The project '{project}' was not found or you have no permission to it."
                );
                return Err(ApiError::new(403, "forbidden", message));
            }
        }
        match &call {
            Call::WaitZoneOperation { zone, name } => {
                self.wait(&Scope::Zone(zone.clone()), name).await
            }
            Call::WaitRegionOperation { region, name } => {
                self.wait(&Scope::Region(region.clone()), name).await
            }
            call => {
                let mut state = self.project.lock();
                state.settle(Instant::now());
                self.immediate(&mut state, call, record, fault)
            }
        }
    }

    /// Answers when the operation is done, or after the time that a wait may take.
    async fn wait(&self, scope: &Scope, name: &str) -> Result<Value, ApiError> {
        let (ends, latest) = {
            let state = self.project.lock();
            let operation = state.operation(scope, name)?;
            (operation.ends, Instant::now() + state.wait_time)
        };
        let until = ends.map_or(latest, |ends| ends.min(latest));
        sleep_until(until.into()).await;
        let mut state = self.project.lock();
        state.settle(Instant::now());
        let operation = state.operation(scope, name)?;
        Ok(operation.compute(&state.name, &self.base))
    }

    fn immediate(
        &self,
        state: &mut Project,
        call: &Call,
        record: &Recorded,
        fault: Option<&Fault>,
    ) -> Result<Value, ApiError> {
        let query = |name: &str| {
            let mut pairs = record.query.iter();
            pairs
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        };
        let course = match fault {
            Some(Fault::FailOperation(code, message)) => Course {
                error: Some((code.clone(), message.clone())),
                endless: false,
            },
            Some(Fault::EndlessOperation) => Course {
                error: None,
                endless: true,
            },
            _ => Course::default(),
        };
        let (now, body) = (Instant::now(), &record.body);
        let missing = || ApiError::not_found(&record.path);
        let name = state.name.clone();
        let compute = |operation: Operation| operation.compute(&name, &self.base);
        match call {
            Call::GetInstance {
                zone,
                name: instance,
            } => {
                let found = state
                    .instances
                    .get(&(zone.clone(), instance.clone()))
                    .ok_or_else(missing)?;
                Ok(found.show(&name, &self.base))
            }
            Call::AggregatedInstances => Ok(self.aggregated(state, query("filter"))),
            Call::UpdateNic {
                zone,
                name: instance,
            } => state
                .update_nic((zone, instance), &query, body, course, now)
                .map(compute),
            Call::GetZoneOperation {
                zone,
                name: operation,
            } => Ok(compute(
                state
                    .operation(&Scope::Zone(zone.clone()), operation)?
                    .clone(),
            )),
            Call::GetRegionOperation {
                region,
                name: operation,
            } => Ok(compute(
                state
                    .operation(&Scope::Region(region.clone()), operation)?
                    .clone(),
            )),
            Call::GetGlobalOperation { name: operation } => Ok(state
                .operation(&Scope::Global, operation)?
                .long_running(&name)),
            Call::GetSubnetwork {
                region,
                name: subnet,
            } => {
                let found = state
                    .subnetworks
                    .get(&(region.clone(), subnet.clone()))
                    .ok_or_else(missing)?;
                Ok(found.show(&name, &self.base))
            }
            Call::PatchSubnetwork {
                region,
                name: subnet,
            } => state
                .patch_subnetwork((region, subnet), &query, body, course, now)
                .map(compute),
            Call::ListAddresses { region } => {
                let of_region = state
                    .addresses
                    .values()
                    .filter(|address| &address.region == region);
                let items: Vec<Value> = of_region
                    .map(|address| state.show_address(address, &self.base))
                    .collect();
                Ok(json!({ "kind": "compute#addressList", "items": items }))
            }
            Call::GetAddress {
                region,
                name: address,
            } => {
                let found = state
                    .addresses
                    .get(&(region.clone(), address.clone()))
                    .ok_or_else(missing)?;
                Ok(state.show_address(found, &self.base))
            }
            Call::InsertAddress { region } => state
                .insert_address(region, &query, body, course, now)
                .map(compute),
            Call::DeleteAddress {
                region,
                name: address,
            } => state
                .delete_address((region, address), &query, course, now)
                .map(compute),
            Call::ListRanges => {
                let items: Vec<Value> = state
                    .ranges
                    .values()
                    .map(|range| state.show_range(range))
                    .collect();
                Ok(json!({ "internalRanges": items }))
            }
            Call::GetRange { name: range } => {
                let found = state.ranges.get(range).ok_or_else(missing)?;
                Ok(state.show_range(found))
            }
            Call::CreateRange => state
                .create_range(&query, body, course, now)
                .map(|operation| operation.long_running(&name)),
            Call::DeleteRange { name: range } => state
                .delete_range(range, &query, course, now)
                .map(|operation| operation.long_running(&name)),
            // Answered before.
            Call::WaitZoneOperation { .. } | Call::WaitRegionOperation { .. } | Call::Token => {
                Err(missing())
            }
        }
    }

    fn aggregated(&self, state: &Project, filter: Option<String>) -> Value {
        let wanted = filter.and_then(|filter| {
            let (field, value) = filter.split_once('=')?;
            (field.trim() == "name").then(|| value.trim().trim_matches('"').to_owned())
        });
        let mut items = json!({});
        for instance in state.instances.values() {
            if wanted
                .as_ref()
                .is_none_or(|wanted| wanted == &instance.name)
            {
                let zone = format!("zones/{}", instance.zone);
                if items[&zone].is_null() {
                    items[&zone] = json!({ "instances": [] });
                }
                if let Some(list) = items[&zone]["instances"].as_array_mut() {
                    list.push(instance.show(&state.name, &self.base));
                }
            }
        }
        json!({ "kind": "compute#instanceAggregatedList", "items": items })
    }
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, escaped) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
