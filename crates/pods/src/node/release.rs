//! `POST /v1/release` on the agent's socket: releases an address of this node's slices, which no other process may write.
//!
//! The same rule as everywhere: the holder's pod is read first, by a quorum read, and while it lives nothing is
//! released unless the caller insists.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use berth_core::{Address, Record};
use berth_ledger::{LedgerError, PoolKey};
use serde::{Deserialize, Serialize};

use super::stores::NodeStores;
use crate::by_hand::{self, Origin, Standing};
use crate::{PodError, Store};
use berth_collector::{QuorumReader, ReadError};

/// Where the route is.
pub const RELEASE_PATH: &str = "/v1/release";

/// What to release.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReleaseRequest {
    /// The node that has to do it: an agent of another one declines. Empty: whichever node this is.
    pub node: String,
    pub address: Address,
    /// Exactly this holder (I6); none: end the address's cooldown.
    #[serde(default)]
    pub holder: Option<Record>,
    /// Though its pod lives.
    #[serde(default)]
    pub force: bool,
}

/// What was done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReleaseAnswer {
    pub pool: String,
}

/// Why nothing was done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReleaseFailure {
    pub reason: ReleaseReason,
    pub error: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseReason {
    /// This is another node's agent.
    OtherNode,
    /// None of this node's slices has it, for that holder.
    NotFound,
    /// The holder's pod lives, or nothing can be proved of the holder.
    Alive,
    /// The request can't be read.
    Malformed,
    /// Try again later.
    Later,
}

struct Failed(ReleaseReason, String);

impl From<LedgerError> for Failed {
    fn from(error: LedgerError) -> Failed {
        Failed(ReleaseReason::Later, error.to_string())
    }
}

impl From<PodError> for Failed {
    fn from(error: PodError) -> Failed {
        Failed(ReleaseReason::Later, error.to_string())
    }
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Failed {
        Failed(ReleaseReason::Later, error.to_string())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Failed(reason, error) = self;
        let status = match reason {
            ReleaseReason::OtherNode => StatusCode::MISDIRECTED_REQUEST,
            ReleaseReason::NotFound => StatusCode::NOT_FOUND,
            ReleaseReason::Alive => StatusCode::CONFLICT,
            ReleaseReason::Malformed => StatusCode::BAD_REQUEST,
            ReleaseReason::Later => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(ReleaseFailure { reason, error })).into_response()
    }
}

/// Serves one request.
pub(crate) async fn release(State(stores): State<Arc<NodeStores>>, body: Bytes) -> Response {
    let request: ReleaseRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return Failed(ReleaseReason::Malformed, error.to_string()).into_response(),
    };
    match serve(&stores, &request).await {
        Ok(pool) => Json(ReleaseAnswer { pool: pool.name }).into_response(),
        Err(failed) => failed.into_response(),
    }
}

async fn serve(stores: &NodeStores, request: &ReleaseRequest) -> Result<PoolKey, Failed> {
    let node = stores.node();
    if !request.node.is_empty() && request.node != node {
        let text = format!("this is the agent of node {node}, not of {}", request.node);
        return Err(Failed(ReleaseReason::OtherNode, text));
    }
    let nowhere = || {
        let text = format!("no slice of node {node} has {}", request.address);
        Failed(ReleaseReason::NotFound, text)
    };
    let Some((store, connection)) = stores.sliced().await else {
        return Err(nowhere());
    };
    let reader = QuorumReader::new(&connection);
    let pools = stores.slice_pools().await?;
    let ledger = store.ledger();
    let Some(holder) = &request.holder else {
        for pool in &pools {
            if by_hand::end_cooldown(&**ledger, pool, request.address).await? {
                tracing::info!(address = %request.address, %pool, "a cooldown was ended by hand");
                return Ok(pool.clone());
            }
        }
        return Err(nowhere());
    };
    let found = by_hand::find(&**ledger, &pools, request.address).await?;
    let held = found.into_iter().find(|(_, held)| held.same_holder(holder));
    let (pool, held) = held.ok_or_else(nowhere)?;
    if !request.force {
        let origin = Origin::Agent(node);
        may_be_released(&reader, &held, request.address, origin).await?;
    }
    let freed = released(&store, &pool, request, &held).await?;
    match freed {
        true => Ok(pool),
        false => Err(nowhere()),
    }
}

async fn may_be_released(
    reader: &QuorumReader,
    held: &Record,
    address: Address,
    origin: Origin<'_>,
) -> Result<(), Failed> {
    let why = match by_hand::standing(reader, held, origin).await? {
        Standing::ByHand | Standing::Gone(_) => return Ok(()),
        Standing::Alive { pod, node } => {
            let node = node.unwrap_or_else(|| "no node yet".to_owned());
            format!("{address} is held by pod {pod}, which lives on {node}")
        }
        Standing::Unreleased { pod, node } => {
            format!("{address} is held by pod {pod}, which was deleted and may still run on {node}")
        }
        Standing::Unknown => format!(
            "{address} is held by {}, of which nothing can be proved",
            held.owner
        ),
    };
    Err(Failed(ReleaseReason::Alive, why))
}

async fn released(
    store: &Arc<Store>,
    pool: &PoolKey,
    request: &ReleaseRequest,
    held: &Record,
) -> Result<bool, PodError> {
    let freed = by_hand::release(store, pool, request.address, held).await?;
    if freed {
        tracing::info!(
            address = %request.address, %pool, owner = %held.owner, force = request.force,
            "an address was released by hand"
        );
    }
    Ok(freed)
}
