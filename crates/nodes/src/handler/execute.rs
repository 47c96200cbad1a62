//! Executes the plan of one policy on this node, one durable step after the other.
//!
//! Guarantees: what follows an allocation or a record is planned again on a new quorum read, so that an address is applied only
//! if the pool still has it after the enactment names it; a process that ends between two steps resumes with the plan of what it finds.

use std::time::Duration;

use berth_core::Address;
use berth_desk::DeskError;
use berth_ledger::LedgerError;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use thiserror::Error;

use super::agenda::Memory;
use super::enact;
use super::link::InUse;
use super::observe::{POLICY_UID, Seen, is_ours};
use super::peers::{Turn, is_unlimited};
use super::phase::{Phase, Shown};
use super::plan::{Mode, Peers, Record, Step, Wait, plan};
use super::run::Handler;
use crate::enactment::{self, ANNOTATION, Claims};
use crate::host::HostError;
use crate::objects;

/// How often one policy is planned in a row.
const ROUNDS: usize = 24;
/// The pause after a conflict, while a pool is rebuilt, or while another node applies.
const SOON: Duration = Duration::from_millis(500);

/// Why a policy was not reconciled to the end; it is retried.
#[derive(Debug, Error)]
pub enum HandlerError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("the API server did not answer in time")]
    NoAnswer,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Desk(#[from] DeskError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("an object can't be made: {0}")]
    Object(String),
}

impl HandlerError {
    pub(super) fn object(error: serde_json::Error) -> HandlerError {
        HandlerError::Object(error.to_string())
    }

    /// Another writer changed an object: planned again at once.
    fn is_conflict(&self) -> bool {
        matches!(self, HandlerError::Kube(kube::Error::Api(status)) if matches!(status.code, 404 | 409))
            || matches!(self, HandlerError::Ledger(LedgerError::Conflict { .. }))
    }
}

/// When a policy is reconciled again, unless something changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Only a change of the policy, the enactment, the node or a pool's spec matters.
    Settled,
    /// Any change of its pools matters, too.
    WhenPoolChanges,
    After(Duration),
}

/// What became of a step.
pub(super) enum Done {
    Go,
    /// Plan on a new observation.
    Again,
    Rest(Next),
}

impl Handler {
    /// Brings this node in line with one policy, as far as it goes now.
    pub(super) async fn reconcile(
        &self,
        policy: &str,
        memory: &mut Memory,
    ) -> Result<Next, HandlerError> {
        let name = match enactment::name(&self.config.node, policy) {
            Ok(name) => name,
            Err(error) => {
                tracing::warn!(policy, %error, "the policy is not served on this node");
                return Ok(Next::Settled);
            }
        };
        for _ in 0..ROUNDS {
            match self.round(policy, &name, memory).await {
                Ok(None) => {}
                Ok(Some(next)) => return Ok(next),
                Err(error) if error.is_conflict() => {
                    tracing::debug!(policy, %error, "another writer changed an object; planning again");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Next::After(SOON))
    }

    async fn round(
        &self,
        policy: &str,
        name: &str,
        memory: &mut Memory,
    ) -> Result<Option<Next>, HandlerError> {
        if self.this_node().is_none() {
            return Ok(Some(Next::Settled));
        }
        let mut seen = self.see(policy, name, memory).await?;
        let foreign = |object: &Value| seen.policy.is_none() && !is_ours(object);
        if seen.enactment.as_ref().is_some_and(foreign) {
            return Ok(Some(Next::Settled));
        }
        if self.config.mode == Mode::Off {
            self.rehearse(policy, &seen);
            return Ok(Some(Next::Settled));
        }
        seen.lost = self.has_lost(&seen, memory).await;
        let observed = seen.observed(self, policy, memory, Peers::unlimited());
        for (pool, view) in &observed.pools {
            for (capture, address) in &view.held {
                memory.grant(pool, capture, *address);
            }
        }
        let mut steps = plan(&observed);
        let begins =
            |step: &Step| matches!(step, Step::Show(shown) if shown.phase == Phase::Progressing);
        let limited = |object: &&Value| steps.iter().any(begins) && !is_unlimited(object);
        if let Some(object) = seen.policy.as_ref().filter(limited) {
            let peers = self.peers(object).await?;
            steps = plan(&seen.observed(self, policy, memory, peers));
        }
        let mut run = Run {
            handler: self,
            policy,
            name,
            seen: &mut seen,
            memory,
        };
        let mut steps = steps.into_iter().peekable();
        while let Some(step) = steps.next() {
            let done = match (step, steps.peek()) {
                // What is shown next goes into the same write.
                (Step::Record(record), Some(Step::Show(shown))) => {
                    run.record(&record, shown).await?
                }
                (step, _) => run.execute(step).await?,
            };
            match done {
                Done::Go => {}
                Done::Again => return Ok(None),
                Done::Rest(next) => return Ok(Some(next)),
            }
        }
        Ok(Some(Next::Settled))
    }

    /// Logs what would be done.
    fn rehearse(&self, policy: &str, seen: &Seen) {
        let Ok(spec) = &seen.spec else {
            return;
        };
        if seen.policy.is_none() || !spec.uses_pools() {
            return;
        }
        let pools = |name: &str| Some(&seen.pools.get(name)?.read.as_ref().ok()?.space);
        match spec.rehearse(pools) {
            Ok(()) => tracing::info!(policy, "the policy can be rendered; nothing is applied"),
            Err(error) => tracing::warn!(policy, %error, "the policy can't be rendered"),
        }
    }
}

/// One plan that is being executed.
pub(super) struct Run<'a> {
    pub handler: &'a Handler,
    pub policy: &'a str,
    /// The enactment's.
    pub name: &'a str,
    pub seen: &'a mut Seen,
    pub memory: &'a mut Memory,
}

impl Run<'_> {
    async fn execute(&mut self, step: Step) -> Result<Done, HandlerError> {
        match step {
            // It is created by the record or the conditions that follow.
            Step::CreateEnactment => Ok(Done::Go),
            Step::Allocate {
                capture,
                pool,
                address,
            } => self.allocate(&pool, &capture, address).await,
            Step::Record(record) => {
                let unknown = Shown::new(Phase::New, "", "");
                self.record(&record, &unknown).await
            }
            Step::Show(shown) => self.show(&shown).await,
            Step::Apply(rendered) => self.apply(&rendered).await,
            Step::RenderPolicy(rendered) => self.render_policy(&rendered).await,
            Step::Withdraw { addresses } => {
                self.withdraw(&addresses).await?;
                Ok(Done::Go)
            }
            Step::DeleteEnactment => {
                if self.handler.config.mode == Mode::Policy {
                    self.delete_concrete().await?;
                }
                self.delete_enactment().await?;
                self.memory.forget();
                Ok(Done::Rest(Next::Settled))
            }
            Step::Wait(wait) => Ok(Done::Rest(match wait {
                Wait::Pool(_) | Wait::PolicyChange => Next::WhenPoolChanges,
                Wait::NodeReady => Next::Settled,
                Wait::MaxUnavailable => Next::After(SOON),
                Wait::Backoff(left) => Next::After(left),
            })),
        }
    }

    /// The enactment as this handler has just written it.
    fn wrote(&mut self, written: &DynamicObject) {
        if let Some(version) = &written.metadata.resource_version {
            self.memory.wrote(version);
        }
        self.seen.enactment = Some(objects::value(written));
    }

    pub(super) fn status(&self) -> Value {
        let object = self.seen.enactment.as_ref();
        let status = object.and_then(|object| object.get("status"));
        status.cloned().unwrap_or(Value::Null)
    }

    /// The claims first as metadata, which other writers keep, then the whole status.
    async fn record(&mut self, record: &Record, shown: &Shown) -> Result<Done, HandlerError> {
        let Record {
            generation,
            claims,
            rendered,
        } = record;
        let known = self.seen.enactment().map(|known| known.claims);
        let kept: Vec<Address> = claims.addresses().collect();
        let dropped = known.iter().flat_map(Claims::addresses);
        let dropped: Vec<Address> = dropped.filter(|one| !kept.contains(one)).collect();
        if self.handler.config.mode == Mode::Host && !dropped.is_empty() {
            // While the enactment still names them: it is tried again if this process ends here.
            self.withdraw(&dropped).await?;
        }
        self.ensure(claims).await?;
        let status = enact::record(&self.status(), *generation, claims, rendered);
        self.put_status(enact::show(&status, shown)).await?;
        Ok(Done::Again)
    }

    /// The enactment with these claims in its metadata.
    async fn ensure(&mut self, claims: &Claims) -> Result<(), HandlerError> {
        let uid = self.seen.policy_uid().to_owned();
        let api = &self.handler.enactments;
        let annotations = match claims.is_empty() {
            true => json!({ POLICY_UID: uid }),
            false => json!({ POLICY_UID: uid, ANNOTATION: claims.annotation() }),
        };
        let written = match &self.seen.enactment {
            None => {
                let node = (&*self.handler.config.node, &*self.seen.node.uid);
                let mut object = enact::fresh(self.name, node, self.policy, claims);
                object["metadata"]["annotations"] = annotations;
                let object = serde_json::from_value(object).map_err(HandlerError::object)?;
                let params = PostParams::default();
                self.handler.ask(api.create(&params, &object)).await?
            }
            Some(known) => {
                let wanted = annotations.as_object().into_iter().flatten();
                let mut wanted = wanted.filter_map(|(key, value)| Some((key, value.as_str()?)));
                if wanted.all(|(key, value)| objects::annotation(known, key) == Some(value)) {
                    return Ok(());
                }
                let patch = json!({ "metadata": { "annotations": annotations } });
                let params = PatchParams::default();
                let patch = Patch::Merge(&patch);
                self.handler
                    .ask(api.patch(self.name, &params, &patch))
                    .await?
            }
        };
        self.wrote(&written);
        Ok(())
    }

    pub(super) async fn put_status(&mut self, status: Value) -> Result<(), HandlerError> {
        let Some(object) = &self.seen.enactment else {
            return Ok(());
        };
        let mut object = object.clone();
        object["status"] = status;
        let object: DynamicObject = serde_json::from_value(object).map_err(HandlerError::object)?;
        let (api, params) = (&self.handler.enactments, PostParams::default());
        let written = api.replace_status(self.name, &params, &object);
        let written = self.handler.ask(written).await?;
        self.wrote(&written);
        Ok(())
    }

    pub(super) async fn show(&mut self, shown: &Shown) -> Result<Done, HandlerError> {
        let claims = self.seen.enactment().map(|known| known.claims);
        self.ensure(&claims.unwrap_or_default()).await?;
        let generation = self.seen.generation();
        let mut status = self.status();
        if status["policyGeneration"].as_i64() != Some(generation) {
            status = enact::unrecorded(&status, generation);
        } else if enact::shows(&status, shown) {
            return Ok(Done::Go);
        }
        self.put_status(enact::show(&status, shown)).await?;
        Ok(Done::Go)
    }

    /// Records in the enactment's metadata which address another machine uses; none clears it.
    pub(super) async fn set_in_use(&mut self, found: Option<&InUse>) -> Result<(), HandlerError> {
        let known = self.seen.enactment.as_ref().and_then(InUse::read);
        if known.as_ref() == found {
            return Ok(());
        }
        let patch = InUse::metadata(found);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = self.handler.enactments.patch(self.name, &params, &patch);
        let written = self.handler.ask(written).await?;
        self.wrote(&written);
        Ok(())
    }

    /// The enactment says that this node is unavailable; it applies when no more than `maxUnavailable` are.
    pub(super) async fn wait_for_turn(&mut self) -> Result<Done, HandlerError> {
        let Some(policy) = self.seen.policy.clone() else {
            return Ok(Done::Again);
        };
        let begun = tokio::time::Instant::now();
        loop {
            match self.handler.may_apply(&policy).await? {
                Turn::Granted => return Ok(Done::Go),
                Turn::Wait if begun.elapsed() < self.handler.config.host.limit => {
                    tokio::time::sleep(SOON / 2).await;
                }
                Turn::Wait | Turn::GiveWay => {
                    let message = "another node applies the policy, and maxUnavailable is reached";
                    let pending = Shown::new(Phase::Pending, "MaxUnavailableLimitReached", message);
                    self.put_status(enact::show(&self.status(), &pending))
                        .await?;
                    return Ok(Done::Rest(Next::After(SOON)));
                }
            }
        }
    }

    async fn delete_enactment(&self) -> Result<(), HandlerError> {
        let Some(object) = &self.seen.enactment else {
            return Ok(());
        };
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(objects::uid(object).to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api = &self.handler.enactments;
        match self.handler.ask(api.delete(self.name, &params)).await {
            Err(HandlerError::Kube(kube::Error::Api(status))) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}
