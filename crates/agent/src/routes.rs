//! What the agent answers to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use berth_cni::wire::{CALL_PATH, MAX_BODY, PROTOCOL, PROTOCOL_HEADER, Request};
use berth_listen::{Recent, exposition};
use berth_pods::Front;
use prometheus_client::registry::Registry;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::release::{RELEASE_PATH, release};
use crate::stores::{NodeStores, Readiness};

/// A probe waits no longer.
const VMS_LIMIT: Duration = Duration::from_secs(3);

/// What every request needs.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub(crate) front: Arc<Front>,
    pub(crate) stores: Arc<NodeStores>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Arc<Registry>,
    /// The VM pools, if there are any.
    pub(crate) vms: Option<berth_vms::Fleet>,
    /// The calls under way. They are finished even if the plugin that asked is gone: the runtime will ask again,
    /// and must find a state that somebody completed.
    pub(crate) calls: TaskTracker,
    /// What `/readyz` said last: anyone on the node's network may ask, and each answer costs a read of the cluster.
    pub(crate) readiness: Recent<Verdict>,
}

/// The answer to a probe.
pub(crate) type Verdict = (StatusCode, String);

/// The socket's routes.
pub(crate) fn on_socket(desk: Desk) -> Router {
    Router::new()
        .route(CALL_PATH, post(call))
        .route(RELEASE_PATH, post(release))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(desk.clone())
        .merge(on_network(desk))
}

/// The routes that may be open to the node's network: they change nothing.
pub(crate) fn on_network(desk: Desk) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(desk)
}

async fn call(State(desk): State<Desk>, headers: HeaderMap, body: Bytes) -> Response {
    let spoken = headers
        .get(PROTOCOL_HEADER)
        .and_then(|value| value.to_str().ok());
    let ours = [(
        HeaderName::from_static(PROTOCOL_HEADER),
        PROTOCOL.to_string(),
    )];
    if spoken
        .and_then(|value| value.parse().ok())
        .is_some_and(|theirs: u32| theirs > PROTOCOL)
    {
        let text = format!("this agent speaks protocol {PROTOCOL}\n");
        return (StatusCode::UPGRADE_REQUIRED, ours, text).into_response();
    }
    let request = match Request::decode(&body) {
        Ok(request) => request,
        Err(error) => {
            let text = format!("the call cannot be read: {error}\n");
            return (StatusCode::BAD_REQUEST, ours, text).into_response();
        }
    };
    let began = Instant::now();
    desk.metrics.under_way.inc();
    let (front, metrics) = (Arc::clone(&desk.front), desk.metrics.clone());
    let served = desk.calls.spawn(async move {
        let answer = front.answer(&request).await;
        metrics.under_way.dec();
        metrics.record(&request.environment.command, &answer, began.elapsed());
        answer
    });
    let encoded = match served.await {
        Ok(answer) => answer.encode().map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match encoded {
        Ok(body) => (ours, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, ours, error).into_response(),
    }
}

async fn ready(State(desk): State<Desk>) -> Response {
    let asked = desk.readiness.clone();
    match asked.get(verdict(desk)).await {
        Ok(verdict) => verdict.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Ready as long as it can give something: a node whose slices serve while the API server is away must not be taken for
/// one that does not serve. What it can't do, the answer and a metric tell.
async fn verdict(desk: Desk) -> Verdict {
    if let Some(why) = vms_not_ready(&desk).await {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the VM pools: {why}\n"),
        );
    }
    let readiness = desk.stores.ready().await;
    let whole = matches!(readiness, Ok(Readiness::Whole));
    desk.metrics.degraded.set(i64::from(!whole));
    match readiness {
        Ok(Readiness::Whole) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(Readiness::Degraded { ranges, why }) => (
            StatusCode::OK,
            format!(
                "ready, degraded: {ranges} ranges are served from this node's slices; shared pools, reservations and new slices wait: {why}\n"
            ),
        ),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// Why the VM pools are not ready: they are not open yet, or a state is gone or can't be read.
async fn vms_not_ready(desk: &Desk) -> Option<String> {
    let ready = desk.vms.as_ref()?.ready();
    match tokio::time::timeout(VMS_LIMIT, ready).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(berth_ledger::chain(&error)),
        Err(_) => Some(format!("their state was not read within {VMS_LIMIT:?}")),
    }
}

async fn metrics(State(desk): State<Desk>, headers: HeaderMap) -> Response {
    exposition::respond(&desk.registry, &headers)
}
