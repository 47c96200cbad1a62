//! The leader's side: listens, checks who asks, puts what is asked to the pool's desk.
//!
//! Each kind of pool has its own desks ([`Route`]). Promises that it answers only while it leads; that what was granted is not taken back because nobody heard it (the
//! node may have found it in the ledger); that a token is checked before the body is read; and that no desk is opened
//! for a pool that nothing in the cluster speaks of.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use berth_core::plan::Scope;
use berth_core::{Answer, NODE, Request};
use berth_desk::{Desk, DeskError, Desks};
use berth_ledger::PoolKey;
use berth_listen::{Limits, Peer, Server, Tally, Transport};
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bounds::fit;
use crate::guard::{Guard, Refused, same_node};
use crate::transfer::Transfers;
use crate::wire::{Batch, MAX_BODY, PATH, Replies};
use crate::{AUDIENCE, Identity, Owners, PoolKind, Route};

/// The longest that a request may wait, whatever its sender says.
const LIMIT: Duration = Duration::from_secs(30);

/// Room for the agents of a large cluster; one that is closed for another connects again with its next request.
const CONNECTIONS: usize = 2048;

/// Whether there may be such a pool: a desk is opened for no other.
pub type Admission = Arc<dyn Fn(PoolKey) -> BoxFuture<'static, bool> + Send + Sync>;

/// What serves the nodes.
#[derive(Clone)]
pub struct Counter {
    /// By the names of their kinds.
    routes: BTreeMap<String, Route>,
    guard: Arc<Guard>,
    leads: Arc<dyn Fn() -> bool + Send + Sync>,
    refused: Tally,
    /// Requests under way: they end before the process does, heard or not.
    under_way: TaskTracker,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").finish_non_exhaustive()
    }
}

impl Counter {
    /// A desk of whereabouts' pools. `leads` tells whether this process leads, at the time it is asked; `admits` which pools
    /// there may be.
    pub fn new(
        desks: Desks,
        guard: Guard,
        leads: impl Fn() -> bool + Send + Sync + 'static,
        admits: Admission,
    ) -> Counter {
        let counter = Counter {
            routes: BTreeMap::new(),
            guard: Arc::new(guard),
            leads: Arc::new(leads),
            refused: Tally::new("requests were refused at the leader's desk"),
            under_way: TaskTracker::new(),
        };
        counter.serving(Route {
            kind: PoolKind::IP_POOLS,
            owners: Owners::Pods,
            desks,
            admits,
        })
    }

    /// The same with another kind of pool.
    #[must_use]
    pub fn serving(mut self, route: Route) -> Counter {
        self.routes.insert(route.kind.name(), route);
        self
    }
}

/// Serves until `end`, then finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    identity: &Identity,
    counter: Counter,
    end: CancellationToken,
) {
    let routes = Router::new()
        .route(PATH, post(put_plain))
        .route(&format!("{PATH}/{{kind}}"), post(put_kind))
        .with_state(counter.clone());
    let server = Server {
        name: "leader desk",
        transport: Transport::Tls(listener, identity.server()),
        routes,
        limits: Limits {
            connections: CONNECTIONS,
            ..Limits::default()
        },
    };
    server.run(end).await;
    counter.under_way.close();
    counter.under_way.wait().await;
}

/// A batch that names no kind: whereabouts' pools, as agents from before kinds have it.
async fn put_plain(
    State(counter): State<Counter>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    put(&counter, &PoolKind::IP_POOLS.name(), peer, &headers, body).await
}

async fn put_kind(
    State(counter): State<Counter>,
    Path(kind): Path<String>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    put(&counter, &kind, peer, &headers, body).await
}

async fn put(
    counter: &Counter,
    kind: &str,
    peer: Peer,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    if !(counter.leads)() {
        let text = "this process does not lead; the Lease says who does\n";
        return (StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    let Some(route) = counter.routes.get(kind) else {
        let served: Vec<&str> = counter.routes.keys().map(String::as_str).collect();
        let text = format!(
            "this leader has no desk for pools of that kind, only for {}; commit by yourself\n",
            served.join(", ")
        );
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let Some(token) = token else {
        let text = format!("say who you are: Authorization: Bearer, a token for {AUDIENCE}\n");
        return (StatusCode::UNAUTHORIZED, text).into_response();
    };
    // Before the body is read: a stranger costs no memory.
    let node = match counter.guard.check(token, &route.kind, peer).await {
        Ok(node) => node,
        Err(refused) => return counter.refuse(peer, &refused),
    };
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        let text = format!("a batch has at most {MAX_BODY} bytes\n");
        return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    };
    let batch: Batch = match serde_json::from_slice(&body) {
        Ok(batch) => batch,
        Err(error) => {
            let text = format!("the batch can't be read: {error}\n");
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    drop(body);
    if let Err(refused) = same_node(&node, &batch.node) {
        return counter.refuse(peer, &refused);
    }
    if let Err(unfit) = fit(&batch, route.owners) {
        counter
            .refused
            .note(|| format!("{peer}: node {node}: {unfit}"));
        return (StatusCode::BAD_REQUEST, format!("{unfit}\n")).into_response();
    }
    let limit = Duration::from_millis(batch.limit_ms).min(LIMIT);
    let Some(desk) = route.desk(&batch.pool).await else {
        tracing::debug!(%node, pool = %batch.pool, "neither a pool nor a definition: left to the node");
        let answers = batch.requests.iter().map(|_| None).collect();
        return axum::Json(Replies { answers }).into_response();
    };
    let transfers = match route.owners {
        Owners::Pods => Some(counter.guard.transfers()),
        Owners::Nodes => None,
    };
    let (sender, requests) = (Arc::clone(&node), batch.requests);
    // In a task of its own: a caller that hangs up must not leave half of its batch in the queue.
    let answered = counter.under_way.spawn(async move {
        serve_within(&desk, transfers.as_ref(), &sender, requests, limit).await
    });
    let Ok(answered) = answered.await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let answers = answered
        .into_iter()
        .map(|answer| {
            answer
                .inspect_err(|error| tracing::debug!(%node, %error, "left to the node"))
                .ok()
        })
        .collect();
    axum::Json(Replies { answers }).into_response()
}

impl Route {
    /// The pool's desk. One that is not open is opened only for a pool that there may be: each costs a watch.
    async fn desk(&self, pool: &PoolKey) -> Option<Desk> {
        if let Some(desk) = self.desks.opened(pool) {
            return Some(desk);
        }
        (self.admits)(pool.clone())
            .await
            .then(|| self.desks.of(pool))
    }
}

impl Counter {
    fn refuse(&self, peer: Peer, refused: &Refused) -> Response {
        let status = match refused {
            Refused::Unknown(_) => StatusCode::UNAUTHORIZED,
            Refused::Forbidden(_) => StatusCode::FORBIDDEN,
            Refused::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Refused::Blind(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        self.refused.note(|| format!("{peer}: {refused}"));
        (status, format!("{refused}\n")).into_response()
    }
}

/// Serves requests of one node: on its own entries, on those that name none and whose pod is on no other node, and on those of
/// another that its pods may take over, where there are transfers.
async fn serve_within(
    desk: &Desk,
    transfers: Option<&Transfers>,
    node: &str,
    requests: Vec<Request>,
    limit: Duration,
) -> Vec<Result<Answer, DeskError>> {
    let own = Scope {
        node: node.to_owned(),
        ..Scope::default()
    };
    let scoped = desk.submit_within_scope(requests.clone(), Some(own.clone()), limit);
    let mut answers = scoped.await;
    for (answer, request) in answers.iter_mut().zip(requests) {
        let Err(DeskError::Foreign { address, held, .. }) = answer else {
            continue;
        };
        let may_transfer = match transfers {
            Some(transfers) => transfers.may(node, &request, *address, held).await,
            None => false,
        };
        if !may_transfer {
            tracing::warn!(node, %address, owner = %held.owner, "left alone: the entry is not of the node that asks");
            continue;
        }
        let named = held.attribute(NODE).is_some();
        let wider = Scope {
            unnamed: !named,
            transfers: named,
            ..own.clone()
        };
        let again = desk.submit_within_scope(vec![request], Some(wider), limit);
        if let Some(served) = again.await.into_iter().next() {
            *answer = served;
        }
    }
    answers
}
