//! The handler of each route.

use std::net::IpAddr;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{OPENAPI, Route};
use crate::{Allocation, Applicant, Fleet, PoolError, Recovered, Returned, Status};

/// User data is a cloud-config with keys and certificates; this is far above any of them.
const MAX_USER_DATA: usize = 8 * 1024 * 1024;
/// A request contains three names.
const MAX_REQUEST: usize = 64 * 1024;
/// The longest that a request may wait for a cleanup.
const MAX_WAIT: u64 = 600;
const POLL: Duration = Duration::from_millis(500);

pub(super) fn table() -> Vec<Route> {
    let route = |path, names, methods| Route {
        path,
        names,
        methods,
    };
    let allocate = post(allocate).layer(DefaultBodyLimit::max(MAX_REQUEST));
    let user_data = put(put_user_data).layer(DefaultBodyLimit::max(MAX_USER_DATA));
    vec![
        route("/allocations", &["get", "post"], get(list).merge(allocate)),
        route(
            "/allocations/{id}",
            &["get", "delete"],
            get(by_id).merge(delete(deallocate)),
        ),
        route("/allocations/{id}/user-data", &["put"], user_data),
        route("/ips/{ip}", &["get"], get(by_ip)),
        route("/status", &["get"], get(status)),
        route("/recover", &["post"], post(recover)),
        route("/openapi.json", &["get"], get(openapi)),
    ]
}

/// A request that can't be parsed fails in the same form as every other failure.
fn unreadable(what: &'static str, why: String) -> PoolError {
    PoolError::Invalid {
        field: what,
        value: why,
        right: "a request of this API: see openapi.json",
    }
}

fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, PoolError> {
    query
        .map(|Query(value)| value)
        .map_err(|error| unreadable("query", error.body_text()))
}

fn path<T>(path: Result<Path<T>, PathRejection>) -> Result<T, PoolError> {
    path.map(|Path(value)| value)
        .map_err(|error| unreadable("path", error.body_text()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InPool {
    pool: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    pool: Option<String>,
    node: Option<String>,
}

/// The list of allocations.
#[derive(Debug, Serialize, Deserialize)]
pub struct Allocations {
    pub allocations: Vec<Allocation>,
}

async fn list(
    State(fleet): State<Fleet>,
    asked: Result<Query<Listed>, QueryRejection>,
) -> Result<Json<Allocations>, PoolError> {
    let asked = query(asked)?;
    let mut allocations = fleet.list(asked.pool.as_deref()).await?;
    if let Some(node) = &asked.node {
        allocations.retain(|allocation| allocation.node_name == *node);
    }
    Ok(Json(Allocations { allocations }))
}

async fn allocate(
    State(fleet): State<Fleet>,
    asked: Result<Query<InPool>, QueryRejection>,
    applicant: Result<Json<Applicant>, JsonRejection>,
) -> Result<Json<Allocation>, PoolError> {
    let asked = query(asked)?;
    let Json(applicant) = applicant.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => PoolError::TooLarge {
            what: "request",
            limit: MAX_REQUEST,
        },
        _ => unreadable("body", error.body_text()),
    })?;
    let allocation = fleet.allocate(asked.pool.as_deref(), applicant).await?;
    Ok(Json(allocation))
}

async fn by_id(
    State(fleet): State<Fleet>,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<InPool>, QueryRejection>,
) -> Result<Json<Allocation>, PoolError> {
    let (id, asked) = (path(id)?, query(asked)?);
    Ok(Json(fleet.by_id(asked.pool.as_deref(), &id).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Deallocation {
    pool: Option<String>,
    /// Free the VM as it is.
    #[serde(default)]
    force: bool,
    /// Wait so many seconds for the cleanup.
    #[serde(default)]
    wait: u64,
}

/// How a deallocation ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct Deallocated {
    pub returned: Returned,
}

async fn deallocate(
    State(fleet): State<Fleet>,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<Deallocation>, QueryRejection>,
) -> Result<Json<Deallocated>, PoolError> {
    let (id, asked) = (path(id)?, query(asked)?);
    let pool = asked.pool.as_deref();
    let mut returned = fleet.deallocate(pool, &id, asked.force).await?;
    let end = Instant::now() + Duration::from_secs(asked.wait.min(MAX_WAIT));
    while returned == Returned::Quarantined && Instant::now() < end {
        tokio::time::sleep(POLL).await;
        match fleet.by_id(pool, &id).await {
            Ok(allocation) if allocation.quarantine.is_some() => {}
            Ok(_) | Err(PoolError::UnknownAllocation(_)) => returned = Returned::Released,
            Err(error) => return Err(error),
        }
    }
    Ok(Json(Deallocated { returned }))
}

async fn put_user_data(
    State(fleet): State<Fleet>,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<InPool>, QueryRejection>,
    data: Result<Bytes, BytesRejection>,
) -> Result<Json<Allocation>, PoolError> {
    let (id, asked) = (path(id)?, query(asked)?);
    let data = data.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => PoolError::TooLarge {
            what: "user data",
            limit: MAX_USER_DATA,
        },
        _ => unreadable("body", error.body_text()),
    })?;
    let written = fleet
        .put_user_data(asked.pool.as_deref(), &id, &data)
        .await?;
    Ok(Json(written))
}

async fn by_ip(
    State(fleet): State<Fleet>,
    ip: Result<Path<IpAddr>, PathRejection>,
) -> Result<Json<Allocation>, PoolError> {
    Ok(Json(fleet.by_ip(path(ip)?).await?))
}

/// The pools' numbers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Statuses {
    pub pools: Vec<Status>,
    /// VMs that join a pool once another pool has released them.
    pub waiting: Vec<IpAddr>,
    /// Why the last edit of the settings is not used, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

async fn status(
    State(fleet): State<Fleet>,
    asked: Result<Query<InPool>, QueryRejection>,
) -> Result<Json<Statuses>, PoolError> {
    let asked = query(asked)?;
    Ok(Json(Statuses {
        pools: fleet.status(asked.pool.as_deref()).await?,
        waiting: fleet.waiting(),
        problem: fleet.problem(),
    }))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Recovery {
    pool: Option<String>,
    /// Deallocate every VM of this node: its pods are gone.
    #[serde(default)]
    take_back: bool,
}

/// What a recovery did, by pool.
#[derive(Debug, Serialize, Deserialize)]
pub struct Recoveries {
    pub pools: Vec<Recovered>,
}

async fn recover(
    State(fleet): State<Fleet>,
    asked: Result<Query<Recovery>, QueryRejection>,
) -> Result<Json<Recoveries>, PoolError> {
    let asked = query(asked)?;
    let pools = fleet
        .recover(asked.pool.as_deref(), asked.take_back)
        .await?;
    Ok(Json(Recoveries { pools }))
}

async fn openapi() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::OK, kind, OPENAPI).into_response()
}
