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
use berth_front::Readiness;
use berth_listen::{Recent, exposition};
use prometheus_client::registry::Registry;
use tokio_util::task::TaskTracker;

use crate::fronts::Fronts;
use crate::metrics::Metrics;

/// What every request needs.
#[derive(Debug, Clone)]
pub(crate) struct AppState {
    pub(crate) fronts: Arc<Fronts>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Arc<Registry>,
    /// The calls under way. They are finished even if the plugin that asked is gone: the runtime will ask again,
    /// and must find a completed state.
    pub(crate) calls: TaskTracker,
    /// What `/readyz` said last: anyone on the node's network may ask, and each answer costs a read of the cluster.
    pub(crate) readiness: Recent<Verdict>,
}

/// The answer to a probe.
pub(crate) type Verdict = (StatusCode, String);

/// The socket's routes.
pub(crate) fn on_socket(state: AppState) -> Router {
    Router::new()
        .route(CALL_PATH, post(call))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(state.clone())
        .merge(on_network(state))
}

/// The routes that may be open to the node's network: they change nothing.
pub(crate) fn on_network(state: AppState) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(state)
}

async fn call(State(state): State<AppState>, headers: HeaderMap, body: Bytes) -> Response {
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
    state.metrics.under_way.inc();
    let (fronts, metrics) = (Arc::clone(&state.fronts), state.metrics.clone());
    let served = state.calls.spawn(async move {
        let answer = fronts.call(&request).await;
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

async fn ready(State(state): State<AppState>) -> Response {
    let asked = state.readiness.clone();
    match asked.get(verdict(state)).await {
        Ok(verdict) => verdict.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn verdict(state: AppState) -> Verdict {
    match state.fronts.ready().await {
        Readiness::Ready => (StatusCode::OK, "ready\n".to_owned()),
        Readiness::Degraded(why) => (StatusCode::OK, format!("ready, degraded: {why}\n")),
        Readiness::NotReady(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn metrics(State(state): State<AppState>, headers: HeaderMap) -> Response {
    exposition::respond(&state.registry, &headers)
}
