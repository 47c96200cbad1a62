//! A front before it runs ([`Front`]) and while it serves ([`Serving`]).
//!
//! Guarantees that a front may rely on: `start` is called once, before anything is served; every CNI call that reaches
//! `call` names one of its own plugins; `finish` is called once, after the last call was answered.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use berth_cni::wire::{Answer, Request};
use berth_cni::{CniError, Code, NetConf};
use berth_desk::DeskMetrics;
use berth_node::LazyFile;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clusters::Clusters;
use crate::node::Node;

/// Why a front does not start.
pub type StartError = Box<dyn Error + Send + Sync>;

/// A front that was set up and does not run yet.
#[async_trait]
pub trait Front: fmt::Debug + Send {
    /// Its name in logs and errors: `pods`.
    fn name(&self) -> &'static str;

    /// The CNI plugin names (`ipam.type`) that it answers to. No two fronts of a process share one.
    fn plugins(&self) -> &'static [&'static str] {
        &[]
    }

    /// Registers its metrics, opens its stores, starts its background tasks. What is wrong with its settings shows here;
    /// a cluster that does not answer yet is no reason to fail.
    async fn start(self: Box<Self>, host: Host<'_>) -> Result<Arc<dyn Serving>, StartError>;
}

/// What a front starts with.
#[derive(Debug)]
pub struct Host<'a> {
    pub node: &'a Node,
    /// The node's own file, which the fronts share.
    pub file: Arc<LazyFile>,
    pub lifetime: Lifetime,
    /// The clusters of this process: fronts that open one share its connection.
    pub clusters: Arc<Clusters>,
    /// What `/metrics` shows.
    pub registry: &'a mut Registry,
    /// The figures of this process's desks, registered already.
    pub desk_metrics: DeskMetrics,
    /// Cancelled when the process has to stop.
    pub stop: CancellationToken,
    /// Background tasks: each ends by itself after `stop`, and the process waits for them.
    pub tasks: TaskTracker,
}

/// How long the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// The node's agent: copies of pools are kept up to date, garbage is collected.
    Daemon,
    /// `berth cni`: one call, and nothing in the background.
    Call,
}

/// A front that serves.
#[async_trait]
pub trait Serving: fmt::Debug + Send + Sync + 'static {
    /// Answers a CNI call. There is always an answer.
    async fn call(&self, request: &Request) -> Answer {
        let error = CniError::new(Code::Internal, "this front serves no CNI calls");
        Answer::failure(error.render(NetConf::version_of(&request.stdin)))
    }

    /// What it serves on the agent's socket, which only root may open.
    fn routes(&self) -> Router {
        Router::new()
    }

    /// Whether it can serve now. Asked by probes: must answer within a few seconds.
    async fn ready(&self) -> Readiness {
        Readiness::Ready
    }

    /// What is left to do after the last call: at an agent's stop, or after the only call of `berth cni`.
    async fn finish(&self) {}
}

/// What a front can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// A part of it; what waits, and why.
    Degraded(String),
    /// Nothing, and why.
    NotReady(String),
}
