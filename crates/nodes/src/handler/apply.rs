//! Applies a rendered state to the host and shows how it went; takes addresses off again.
//!
//! Guarantees: the enactment says Progressing before the host is changed, and names an address until the host has it no more (I9).

use berth_core::Address;
use serde_json::Value;

use super::enact;
use super::execute::{Done, HandlerError, Next, Run};
use super::observe::Seen;
use super::phase::{Phase, Shown};
use super::plan::{Backoff, Mode, TRIES};
use super::run::{Handler, Memory};
use crate::capture::Rendered;
use crate::host::{self, HostError};

impl Handler {
    /// Once for each start of the process: whether the host lacks an address that the enactment says is applied.
    pub(super) async fn has_lost(&self, seen: &Seen, memory: &mut Memory) -> bool {
        let applied = seen.enactment().filter(|one| one.phase == Phase::Available);
        let Some(applied) = applied.filter(|_| self.config.mode == Mode::Host) else {
            return false;
        };
        if !memory.is_first_look() {
            return memory.has_lost();
        }
        let shown = match self.config.host.show().await {
            Ok(state) => host::addresses(&state),
            Err(error) => {
                tracing::warn!(%error, "the host can't be looked at");
                return false;
            }
        };
        let mut claimed = applied.claims.addresses();
        let lost = claimed.any(|address| !shown.iter().any(|(_, one)| *one == address));
        memory.looked(lost);
        lost
    }
}

impl Run<'_> {
    pub(super) async fn apply(&mut self, rendered: &Rendered) -> Result<Done, HandlerError> {
        let generation = self.seen.generation();
        let mut pools = self.seen.pools.iter();
        // The plan counts anew when a pool has changed.
        let anew = pools.any(|(name, pool)| self.memory.has_changed(name, &pool.identity()));
        let tried = self.seen.enactment().filter(|_| !anew);
        let tries = tried.map_or(0, |known| known.tries) + 1;
        let outcome = self.apply_to_host(rendered).await;
        let (status, shown) = match outcome {
            Ok(resolved) => {
                let status = self.resolved_status(&resolved);
                let message = "successfully reconciled";
                let shown = Shown::new(Phase::Available, "SuccessfullyConfigured", message);
                self.memory.succeeded();
                self.memory.looked(false);
                (status, shown)
            }
            Err(error) => {
                let node = &self.handler.config.node;
                let message = format!(
                    "error reconciling NodeNetworkConfigurationPolicy on node {node} at desired state apply: {error}"
                );
                tracing::warn!(policy = self.policy, tries, %error, "the policy was not applied");
                let status = enact::tried(&self.status(), generation, tries);
                let pools = self.seen.pools.iter();
                let pools = pools.map(|(name, pool)| (name.clone(), pool.identity()));
                self.memory.failed(Backoff::after(tries), pools.collect());
                (
                    status,
                    Shown::new(Phase::Failing, "FailedToConfigure", message),
                )
            }
        };
        self.put_status(enact::show(&status, &shown)).await?;
        self.publish().await;
        Ok(match shown.phase {
            Phase::Failing if tries < TRIES => Done::Rest(Next::After(Backoff::after(tries))),
            _ => Done::Rest(Next::Settled),
        })
    }

    async fn apply_to_host(&self, rendered: &Rendered) -> Result<host::Resolved, HostError> {
        let config = &self.handler.config;
        let resolved = config.host.resolve(rendered).await?;
        let wanted: Vec<Address> = self
            .seen
            .enactment()
            .map(|known| known.claims.addresses().collect())
            .unwrap_or_default();
        config
            .host
            .apply(&resolved.desired_state, self.probe(&wanted))
            .await?;
        Ok(resolved)
    }

    /// The host has the addresses, and the API server is still reached.
    async fn probe(&self, wanted: &[Address]) -> Result<(), String> {
        let state = self.handler.config.host.show().await;
        let state = state.map_err(|error| error.to_string())?;
        let shown = host::addresses(&state);
        for address in wanted {
            if !shown.iter().any(|(_, one)| one == address) {
                return Err(format!("no interface has {address} after the apply"));
            }
        }
        let reached = self.handler.policies.get_metadata_opt(self.policy).await;
        let failed = |error| format!("the API server is not reached after the apply: {error}");
        reached.map(drop).map_err(failed)
    }

    /// The status with what nmstate made of the policy.
    fn resolved_status(&self, resolved: &host::Resolved) -> Value {
        let mut status = self.status();
        if resolved.captured.is_empty() && resolved.desired_state == status["desiredState"] {
            return status;
        }
        status["desiredState"] = resolved.desired_state.clone();
        for (name, captured) in &resolved.captured {
            status["capturedStates"][name] = captured.clone();
        }
        status
    }

    async fn publish(&self) {
        if self.handler.config.mode != Mode::Host {
            return;
        }
        if let Err(error) = self.handler.publish_state().await {
            tracing::warn!(%error, "the NodeNetworkState was not written; it is tried again");
        }
    }

    pub(super) async fn withdraw(&self, addresses: &[Address]) -> Result<(), HandlerError> {
        let host = &self.handler.config.host;
        let current = host.show().await?;
        if let Some(state) = host::without(&current, addresses) {
            host.apply(&state, async { Ok(()) }).await?;
        }
        self.publish().await;
        Ok(())
    }
}
