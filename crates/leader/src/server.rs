//! The leader's side: listens, checks who asks, puts the requests to the pool's desk.
//!
//! Each kind of pool has its own desks ([`Route`]). Guarantees: it answers only while it leads; what was granted is not
//! undone because no node received the answer (the node may have found it in the ledger); a token is checked before the
//! body is read; no desk is opened for a pool that nothing in the cluster names.

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

use crate::authorization::{Authorizer, Refused, same_node};
use crate::bounds::fit;
use crate::transfer::Transfers;
use crate::wire::{Batch, MAX_BODY, PATH, Replies};
use crate::{AUDIENCE, Owners, PoolKind, Route, TlsIdentity};

/// The longest that a request may wait, whatever its sender says.
const LIMIT: Duration = Duration::from_secs(30);

/// Room for the agents of a large cluster; one that is closed for another connects again with its next request.
const CONNECTIONS: usize = 2048;

/// Whether there may be such a pool: a desk is opened for no other.
pub type Admission = Arc<dyn Fn(PoolKey) -> BoxFuture<'static, bool> + Send + Sync>;

/// What serves the nodes.
#[derive(Clone)]
pub struct DeskServer {
    /// By the names of their kinds.
    routes: BTreeMap<String, Route>,
    authorizer: Arc<Authorizer>,
    leads: Arc<dyn Fn() -> bool + Send + Sync>,
    refused: Tally,
    /// Requests under way: they end before the process does, whether their sender still waits or not.
    under_way: TaskTracker,
}

impl fmt::Debug for DeskServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeskServer").finish_non_exhaustive()
    }
}

impl DeskServer {
    /// A desk of whereabouts' pools. `leads` says whether this process leads at the time of the call; `admits` which pools
    /// there may be.
    pub fn new(
        desks: Desks,
        authorizer: Authorizer,
        leads: impl Fn() -> bool + Send + Sync + 'static,
        admits: Admission,
    ) -> DeskServer {
        let server = DeskServer {
            routes: BTreeMap::new(),
            authorizer: Arc::new(authorizer),
            leads: Arc::new(leads),
            refused: Tally::new("requests were refused at the leader's desk"),
            under_way: TaskTracker::new(),
        };
        server.serving(Route {
            kind: PoolKind::IP_POOLS,
            owners: Owners::Pods,
            move_of: None,
            desks,
            admits,
        })
    }

    /// The same with another kind of pool.
    #[must_use]
    pub fn serving(mut self, route: Route) -> DeskServer {
        self.routes.insert(route.kind.name(), route);
        self
    }
}

/// Serves until `end`, then finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    identity: &TlsIdentity,
    server: DeskServer,
    end: CancellationToken,
) {
    let routes = Router::new()
        .route(PATH, post(put_plain))
        .route(&format!("{PATH}/{{kind}}"), post(put_kind))
        .with_state(server.clone());
    let http = Server {
        name: "leader desk",
        transport: Transport::Tls(listener, identity.server()),
        routes,
        limits: Limits {
            connections: CONNECTIONS,
            ..Limits::default()
        },
    };
    http.run(end).await;
    server.under_way.close();
    server.under_way.wait().await;
}

/// A batch that names no kind: whereabouts' pools, as agents of earlier versions send it.
async fn put_plain(
    State(server): State<DeskServer>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    put(&server, &PoolKind::IP_POOLS.name(), peer, &headers, body).await
}

async fn put_kind(
    State(server): State<DeskServer>,
    Path(kind): Path<String>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    put(&server, &kind, peer, &headers, body).await
}

async fn put(
    server: &DeskServer,
    kind: &str,
    peer: Peer,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    if !(server.leads)() {
        let text = "this process does not lead; the Lease says who does\n";
        return (StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    let Some(route) = server.routes.get(kind) else {
        let served: Vec<&str> = server.routes.keys().map(String::as_str).collect();
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
        server
            .refused
            .note(|| format!("{peer}: no Authorization: Bearer"));
        let text = format!("say who you are: Authorization: Bearer, a token for {AUDIENCE}\n");
        return (StatusCode::UNAUTHORIZED, text).into_response();
    };
    // Before the body is read: a stranger costs no memory.
    let node = match server.authorizer.check(token, &route.kind, peer).await {
        Ok(node) => node,
        Err(refused) => return server.refuse(peer, &refused),
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
        return server.refuse(peer, &refused);
    }
    if let Err(unfit) = fit(&batch, route.owners, route.move_of) {
        server
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
        Owners::Pods => Some(server.authorizer.transfers(route.move_of)),
        Owners::Nodes => None,
    };
    let (sender, requests) = (Arc::clone(&node), batch.requests);
    // In a task of its own: a caller that hangs up must not leave half of its batch in the queue.
    let answered = server.under_way.spawn(async move {
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

impl DeskServer {
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
