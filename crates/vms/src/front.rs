//! The VM pools as a front of the agent: `/v1/vms` on its socket, and readiness.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use berth_front::{Front, Host, Readiness, Serving, StartError};

use crate::{Fleet, Setup, http, start};

/// The path of the VM pools on the socket.
const PATH: &str = "/v1/vms";

/// The longest that a readiness probe waits.
const READY_LIMIT: Duration = Duration::from_secs(3);

#[async_trait]
impl Front for Setup {
    fn name(&self) -> &'static str {
        "vms"
    }

    async fn start(self: Box<Self>, host: Host<'_>) -> Result<Arc<dyn Serving>, StartError> {
        let fleet = start(*self, host.desk_metrics, host.registry, host.stop).await?;
        Ok(Arc::new(ServingVms(fleet)))
    }
}

#[derive(Debug)]
struct ServingVms(Fleet);

#[async_trait]
impl Serving for ServingVms {
    fn routes(&self) -> Router {
        Router::new().nest(PATH, http::router(self.0.clone()))
    }

    /// Not ready while the pools are not open yet, or a state is missing or can't be read.
    async fn ready(&self) -> Readiness {
        let why = match tokio::time::timeout(READY_LIMIT, self.0.ready()).await {
            Ok(Ok(())) => return Readiness::Ready,
            Ok(Err(error)) => berth_ledger::chain(&error),
            Err(_) => format!("their state was not read within {READY_LIMIT:?}"),
        };
        Readiness::NotReady(format!("the VM pools: {why}"))
    }
}
