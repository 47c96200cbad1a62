//! Applies a rendered state to the host and shows how it went; takes addresses off again.
//!
//! Guarantees: the enactment says Progressing before the host is changed, and names an address until the host has it no more (I9).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use berth_core::Address;
use serde_json::Value;

use super::agenda::Memory;
use super::enact;
use super::execute::{Done, HandlerError, Next, Run};
use super::link::{self, InUse};
use super::observe::Seen;
use super::phase::{Phase, Shown};
use super::plan::{Backoff, Mode, TRIES};
use super::run::Handler;
use crate::capture::Rendered;
use crate::host::{self, HostError};
use crate::metrics::Outcome;

/// When a link is probed again on which another machine uses the address.
const PROBE_AGAIN: Duration = Duration::from_secs(15);

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
                tracing::warn!(%error, "the host's state can't be read");
                return false;
            }
        };
        let mut claimed = applied.claims.addresses();
        let lost = claimed.any(|address| !shown.iter().any(|(_, one)| *one == address));
        memory.looked(lost);
        lost
    }
}

/// Why a state was not applied.
#[derive(Debug)]
enum Failure {
    Host(HostError),
    /// Nothing was tried, or it was rolled back: another machine has the address.
    InUse(InUse),
}

impl Run<'_> {
    pub(super) async fn apply(&mut self, rendered: &Rendered) -> Result<Done, HandlerError> {
        match self.wait_for_turn().await? {
            Done::Go => {}
            waits => return Ok(waits),
        }
        let begun = Instant::now();
        let outcome = self.apply_to_host(rendered).await;
        let counted = match &outcome {
            Ok(_) => Outcome::Success,
            Err(Failure::Host(_)) => Outcome::Failure,
            Err(Failure::InUse(_)) => Outcome::Collision,
        };
        self.handler
            .config
            .metrics
            .applied(counted, begun.elapsed());
        let next = match outcome {
            Ok(resolved) => self.applied(&resolved).await?,
            Err(Failure::Host(error)) => self.failed(&error).await?,
            Err(Failure::InUse(found)) => self.collided(&found).await?,
        };
        self.publish().await;
        Ok(Done::Rest(next))
    }

    async fn applied(&mut self, resolved: &host::Resolved) -> Result<Next, HandlerError> {
        let status = self.resolved_status(resolved);
        let message = "successfully reconciled";
        let shown = Shown::new(Phase::Available, "SuccessfullyConfigured", message);
        self.memory.succeeded();
        self.memory.looked(false);
        self.set_in_use(None).await?;
        self.put_status(enact::show(&status, &shown)).await?;
        Ok(Next::Settled)
    }

    async fn failed(&mut self, error: &HostError) -> Result<Next, HandlerError> {
        let mut pools = self.seen.pools.iter();
        // The plan counts from the start when a pool has changed.
        let again = pools.any(|(name, pool)| self.memory.has_changed(name, &pool.identity()));
        let tried = self.seen.enactment().filter(|_| !again);
        let tries = tried.map_or(0, |known| known.tries) + 1;
        tracing::warn!(policy = self.policy, tries, %error, "the policy was not applied");
        let status = enact::tried(&self.status(), self.seen.generation(), tries);
        self.remember_failure(Backoff::after(tries));
        self.put_status(enact::show(&status, &self.not_applied(error)))
            .await?;
        Ok(match tries < TRIES {
            true => Next::After(Backoff::after(tries)),
            false => Next::Settled,
        })
    }

    /// No try is counted, and other nodes do not wait: the policy is applied when the other machine no longer answers.
    async fn collided(&mut self, found: &InUse) -> Result<Next, HandlerError> {
        tracing::warn!(policy = self.policy, %found, "the policy is not applied");
        self.remember_failure(PROBE_AGAIN);
        self.set_in_use(Some(found)).await?;
        self.put_status(enact::show(&self.status(), &self.not_applied(found)))
            .await?;
        Ok(Next::After(PROBE_AGAIN))
    }

    fn not_applied(&self, why: &impl std::fmt::Display) -> Shown {
        let node = &self.handler.config.node;
        let message = format!(
            "error reconciling NodeNetworkConfigurationPolicy on node {node} at desired state apply: {why}"
        );
        Shown::new(Phase::Failing, "FailedToConfigure", message)
    }

    fn remember_failure(&mut self, pause: Duration) {
        let pools = self.seen.pools.iter();
        let pools = pools.map(|(name, pool)| (name.clone(), pool.identity()));
        self.memory.failed(pause, pools.collect());
    }

    async fn apply_to_host(&self, rendered: &Rendered) -> Result<host::Resolved, Failure> {
        let config = &self.handler.config;
        let resolved = config.host.resolve(rendered).await.map_err(Failure::Host)?;
        let wanted: Vec<Address> = self
            .seen
            .enactment()
            .map(|known| known.claims.addresses().collect())
            .unwrap_or_default();
        let mut placed = host::addresses(&resolved.desired_state);
        placed.retain(|(_, address)| wanted.contains(address));
        let netns = config.netns.as_ref();
        let unprobed = link::probe(placed, netns).await.map_err(Failure::InUse)?;
        let found = OnceLock::new();
        let probe = async {
            self.probe(&wanted).await?;
            // Their links were down before.
            link::probe(unprobed, netns).await.map(drop).map_err(|one| {
                let message = one.to_string();
                let _ = found.set(one);
                message
            })
        };
        let applied = config.host.apply(&resolved.desired_state, probe).await;
        match (applied, found.into_inner()) {
            (Ok(()), _) => Ok(resolved),
            (Err(_), Some(found)) => Err(Failure::InUse(found)),
            (Err(error), None) => Err(Failure::Host(error)),
        }
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
            tracing::warn!(%error, "the NodeNetworkState was not written; retrying");
        }
    }

    pub(super) async fn withdraw(&self, addresses: &[Address]) -> Result<(), HandlerError> {
        let host = &self.handler.config.host;
        let current = host.show().await?;
        if let Some(state) = host::without(&current, addresses) {
            host.apply(&state, async { Ok(()) }).await?;
            self.handler.config.metrics.withdrew(addresses.len());
        }
        self.publish().await;
        Ok(())
    }
}
