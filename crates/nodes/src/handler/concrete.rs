//! Beside kubernetes-nmstate: one concrete policy per node, without pools, owned by the pool policy.
//!
//! Guarantees: a concrete policy names only addresses that pool and enactment already name; it is written only where pool policies are
//! kept away from kubernetes-nmstate, so that no two handlers serve one policy.

use std::time::Duration;

use kube::Client;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};

use super::enact;
use super::execute::{Done, HandlerError, Next, Run};
use super::observe::KEPT_AWAY;
use super::phase::{Phase, Shown};
use super::plan::{Peers, TRIES};
use crate::capture::Rendered;
use crate::objects;

/// The policy that keeps kubernetes-nmstate away from pool policies (deploy/nodes/beside-nmstate).
const KEEPER: &str = "berth-pool-policies";
/// The label of a concrete policy: the pool policy that it is of.
pub const OF: &str = "berth.dev/of-pool-policy";
/// How often the outcome is read.
const LOOK: Duration = Duration::from_secs(1);

/// Why `--nodes-apply=policy` does not start, if it can't.
pub async fn check_kept_away(client: &Client, timeout: Duration) -> Result<(), String> {
    const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
    let ask = async |path: &str| {
        let request = kube::core::Request::new(path);
        let request = request
            .list(&kube::api::ListParams::default())
            .map_err(|error| error.to_string())?;
        let answer = tokio::time::timeout(timeout, client.request_text(request)).await;
        let answer = answer.map_err(|_| "the API server did not answer in time".to_owned())?;
        answer.map_err(|error| error.to_string())
    };
    let kinds = ask(GROUP)
        .await
        .map_err(|why| format!("--nodes-apply=policy: {GROUP}: {why}"))?;
    if !kinds.contains("\"mutatingadmissionpolicies\"") {
        return Err(
            "--nodes-apply=policy: this cluster does not serve MutatingAdmissionPolicy admissionregistration.k8s.io/v1, \
             which keeps kubernetes-nmstate away from policies that name a pool; upgrade Kubernetes, or use --nodes-apply=host"
                .to_owned(),
        );
    }
    for plural in [
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
    ] {
        let request = kube::core::Request::new(format!("{GROUP}/{plural}"));
        let request = request.get(KEEPER, &kube::api::GetParams::default());
        let request = request.map_err(|error| error.to_string())?;
        let found = tokio::time::timeout(timeout, client.request_text(request)).await;
        let found = found.map_err(|_| "the API server did not answer in time".to_owned())?;
        found.map_err(|error| {
            format!(
                "--nodes-apply=policy: {plural} {KEEPER}: {error}; apply deploy/nodes/beside-nmstate"
            )
        })?;
    }
    Ok(())
}

/// The name of the concrete policy: a label's value, at most 63 characters.
pub fn name(policy: &str, node: &str) -> String {
    let whole = format!("{policy}.{node}");
    if whole.len() <= 63 {
        return whole;
    }
    let hash = whole.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let head: String = whole.chars().take(46).collect();
    format!("{}-{hash:016x}", head.trim_end_matches(['.', '-', '_']))
}

/// The concrete policy for a node.
pub fn object(policy: &Value, node: &str, hostname: &str, rendered: &Rendered) -> Value {
    let of = objects::name(policy);
    let mut spec = json!({
        "nodeSelector": { "kubernetes.io/hostname": hostname },
        "desiredState": rendered.desired_state,
    });
    if !rendered.capture.is_empty() {
        spec["capture"] = json!(rendered.capture);
    }
    json!({
        "apiVersion": "nmstate.io/v1",
        "kind": "NodeNetworkConfigurationPolicy",
        "metadata": {
            "name": name(of, node),
            "labels": { OF: of, objects::NODE_LABEL: node },
            "ownerReferences": [{
                "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
                "name": of, "uid": objects::uid(policy),
            }],
        },
        "spec": spec,
    })
}

impl Run<'_> {
    pub(super) async fn render_policy(
        &mut self,
        rendered: &Rendered,
    ) -> Result<Done, HandlerError> {
        let Some(policy) = self.seen.policy.clone() else {
            return Ok(Done::Again);
        };
        if !is_kept_away(&policy) {
            let shown = Shown::new(Phase::Pending, "NotKeptAway", not_kept_away(self.policy));
            self.show(&shown).await?;
            return Ok(Done::Rest(Next::Settled));
        }
        let node = self.handler.config.node.clone();
        let labels = &self.seen.node.labels;
        let hostname = labels.get("kubernetes.io/hostname").unwrap_or(&node);
        let wanted = object(&policy, &node, hostname, rendered);
        let api = &self.handler.policies;
        let found = self
            .handler
            .ask(api.get_opt(objects::name(&wanted)))
            .await?;
        let found = found.map(|object| objects::value(&object));
        let same = |found: &Value| {
            let owner =
                |one: &Value| objects::text(one, "/metadata/ownerReferences/0/uid").to_owned();
            found["spec"] == wanted["spec"] && owner(found) == owner(&wanted)
        };
        if let Some(found) = found.as_ref().filter(|found| same(found)) {
            return self.mirror(found).await;
        }
        if let Some(wait) = self.hold_back(&policy).await? {
            return Ok(wait);
        }
        let typed: DynamicObject =
            serde_json::from_value(wanted.clone()).map_err(HandlerError::object)?;
        let params = PostParams::default();
        match found {
            None => drop(self.handler.ask(api.create(&params, &typed)).await?),
            // Captures can't be modified, and a policy of an owner that is gone is about to be collected.
            Some(found) if found["spec"].get("capture").is_some() || !owned(&found, &policy) => {
                self.delete_concrete().await?;
                return Ok(Done::Rest(Next::After(LOOK / 2)));
            }
            Some(found) => {
                let mut next = found.clone();
                next["spec"] = wanted["spec"].clone();
                let next = serde_json::from_value(next).map_err(HandlerError::object)?;
                let name = objects::name(&wanted);
                drop(self.handler.ask(api.replace(name, &params, &next)).await?);
            }
        }
        Ok(Done::Rest(Next::After(LOOK / 2)))
    }

    /// Before the concrete policy changes: waits if another node failed or enough nodes are unavailable.
    async fn hold_back(&mut self, policy: &Value) -> Result<Option<Done>, HandlerError> {
        let phase = self.seen.enactment().map(|known| known.phase);
        if phase == Some(Phase::Progressing) {
            return Ok(None);
        }
        let Peers {
            unavailable,
            max_unavailable,
            failed,
        } = self.handler.peers(policy).await?;
        if let Some(other) = failed {
            let message = format!("policy has failed on node {other}; it is not applied here");
            let shown = Shown::new(Phase::Aborted, "ConfigurationAborted", message);
            self.show(&shown).await?;
            return Ok(Some(Done::Rest(Next::Settled)));
        }
        if unavailable >= max_unavailable {
            let message = format!(
                "{unavailable} nodes apply the policy, and maxUnavailable is {max_unavailable}"
            );
            let shown = Shown::new(Phase::Pending, "MaxUnavailableLimitReached", message);
            self.show(&shown).await?;
            return Ok(Some(Done::Rest(Next::After(LOOK))));
        }
        let message = "kubernetes-nmstate applies the rendered policy";
        let shown = Shown::new(Phase::Progressing, "ConfigurationProgressing", message);
        self.show(&shown).await?;
        match self.wait_for_turn().await? {
            Done::Go => Ok(None),
            waits => Ok(Some(waits)),
        }
    }

    /// Shows what kubernetes-nmstate's own enactment says.
    async fn mirror(&mut self, concrete: &Value) -> Result<Done, HandlerError> {
        let name = format!("{}.{}", self.handler.config.node, objects::name(concrete));
        let found = self
            .handler
            .ask(self.handler.enactments.get_opt(&name))
            .await?;
        let found = found.map(|object| objects::value(&object));
        let status = found.as_ref().and_then(|object| object.get("status"));
        let current = status.filter(|status| {
            status["policyGeneration"].as_i64() == Some(objects::generation(concrete))
        });
        let Some(status) = current else {
            return Ok(Done::Rest(Next::After(LOOK)));
        };
        let message = enact::message(status).to_owned();
        let (shown, next) = match enact::phase(status) {
            Phase::Available => (
                Shown::new(Phase::Available, "SuccessfullyConfigured", message),
                Next::Settled,
            ),
            Phase::Failing => (
                Shown::new(Phase::Failing, "FailedToConfigure", message),
                Next::After(LOOK * 10),
            ),
            Phase::Aborted => (
                Shown::new(Phase::Aborted, "ConfigurationAborted", message),
                Next::After(LOOK * 10),
            ),
            _ => return Ok(Done::Rest(Next::After(LOOK))),
        };
        if shown.phase == Phase::Failing {
            // kubernetes-nmstate retries by itself: what failed here is not applied to other nodes.
            let status = enact::tried(&self.status(), self.seen.generation(), TRIES);
            if status != self.status() {
                self.put_status(status).await?;
            }
        }
        self.show(&shown).await?;
        Ok(Done::Rest(next))
    }

    pub(super) async fn delete_concrete(&self) -> Result<(), HandlerError> {
        let name = name(self.policy, &self.handler.config.node);
        let params = DeleteParams::default();
        let deleted = self.handler.policies.delete(&name, &params);
        match self.handler.ask(deleted).await {
            Err(HandlerError::Kube(kube::Error::Api(status))) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

/// Whether kubernetes-nmstate finds no node for a pool policy. A policy that is older than the rule has no such selector yet.
fn is_kept_away(policy: &Value) -> bool {
    let selector = policy.pointer("/spec/nodeSelector");
    selector.is_some_and(|selector| selector.get(KEPT_AWAY).is_some())
}

fn not_kept_away(policy: &str) -> String {
    // Upstream's rule refuses a new spec while the policy is in progress, so writing it again is not enough.
    format!(
        "spec.nodeSelector of policy {policy} has no {KEPT_AWAY}, so kubernetes-nmstate serves it too: it is older than the \
         MutatingAdmissionPolicy {KEEPER}; delete the policy and create it again"
    )
}

fn owned(concrete: &Value, policy: &Value) -> bool {
    objects::text(concrete, "/metadata/ownerReferences/0/uid") == objects::uid(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_a_label() {
        assert_eq!(name("static-ip", "node01"), "static-ip.node01");
        let long = name(&"p".repeat(63), &"n".repeat(63));
        assert!(long.len() <= 63, "{long}");
        assert_ne!(long, name(&"p".repeat(63), &"n".repeat(62)));
    }
}
