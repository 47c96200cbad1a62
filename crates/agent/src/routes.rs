//! What the agent answers to.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use berth_cni::wire::{CALL_PATH, MAX_BODY, PROTOCOL, PROTOCOL_HEADER, Request};
use berth_pods::Front;
use prometheus_client::registry::Registry;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::stores::{NodeStores, Readiness};

/// What every request needs.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub(crate) front: Arc<Front>,
    pub(crate) stores: Arc<NodeStores>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Arc<Registry>,
    /// The calls under way. They are finished even if the plugin that asked is gone: the runtime will ask again,
    /// and must find a state that somebody completed.
    pub(crate) calls: TaskTracker,
}

/// The socket's routes.
pub(crate) fn on_socket(desk: Desk) -> Router {
    Router::new()
        .route(CALL_PATH, post(call))
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

/// Ready as long as it can give something: a node whose slices serve while the API server is away must not be taken for
/// one that does not serve. What it can't do, the answer and a metric tell.
async fn ready(State(desk): State<Desk>) -> Response {
    let readiness = desk.stores.ready().await;
    let whole = matches!(readiness, Ok(Readiness::Whole));
    desk.metrics.degraded.set(i64::from(!whole));
    match readiness {
        Ok(Readiness::Whole) => "ready\n".into_response(),
        Ok(Readiness::Degraded { ranges, why }) => format!(
            "ready, degraded: {ranges} ranges are served from this node's slices; shared pools, reservations and new slices wait: {why}\n"
        )
        .into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn metrics(State(desk): State<Desk>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &desk.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
