//! Events of what the leader did and found.

use std::collections::BTreeSet;

use berth_api::nmstate::RESET_ANNOTATION;
use berth_kube::events::Tone;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use super::plan::{Claim, Outcome, Step};
use super::run::Upkeep;
use super::seen::Seen;
use crate::enactment;
use crate::handler::Phase;
use crate::objects::{self, ENACTMENT, Kind, NODE_IP_POOL, POLICY};

/// Events that are remembered as written: more are written again, which the API server refuses by their name.
const REMEMBERED: usize = 4_096;

impl Upkeep {
    /// Events of what was done and found.
    pub(super) async fn report(&self, pool: &Value, outcome: &Outcome) {
        let condition = outcome.health.condition();
        if condition.status == "False" {
            self.tell(
                NODE_IP_POOL,
                pool,
                Tone::Warning,
                condition.reason,
                &condition.message,
            )
            .await;
        }
        for step in &outcome.steps {
            let (tone, reason, message) = match step {
                Step::Release {
                    address,
                    offset,
                    holder,
                    why,
                    ..
                } => {
                    let of = holder.as_ref().map_or_else(
                        || "no owner".to_owned(),
                        |holder| format!("node {} (policy {})", holder.node, holder.policy),
                    );
                    let message =
                        format!("{address} (offset {offset}) of {of} is released: {why:?}");
                    (Tone::Normal, "Released", message)
                }
                Step::ReportHeld { seen, .. } => (
                    Tone::Warning,
                    "AddressStillInUse",
                    format!(
                        "{} belongs to no policy and stays held, because node {} has it on interface {}",
                        seen.address, seen.node, seen.interface
                    ),
                ),
                _ => continue,
            };
            self.tell(NODE_IP_POOL, pool, tone, reason, &message).await;
        }
    }

    /// Claims of addresses that their pool does not have.
    pub(super) async fn report_foreign(&self, known: &Seen, foreign: &[(String, Claim)]) {
        for (pool, claim) in foreign {
            let mut pools = known.pools();
            let Some((_, object)) = pools.find(|(name, _)| *name == pool) else {
                continue;
            };
            let message = format!(
                "the enactment of policy {} on node {} claims {}, which is not in this pool",
                claim.policy, claim.node, claim.address
            );
            let tone = Tone::Warning;
            self.tell(NODE_IP_POOL, object, tone, "ForeignClaim", &message)
                .await;
        }
    }

    /// A reset that names a pool which does not exist.
    pub(super) async fn report_unknown_resets(&self, known: &Seen) {
        let pools: BTreeSet<&str> = known.pools().map(|(name, _)| name.as_str()).collect();
        let message = |pool: &str| {
            format!(
                "{RESET_ANNOTATION}: there is no NodeIPPool `{pool}`; use the name of one that exists"
            )
        };
        for (_, policy) in known.policies() {
            let asked = objects::annotation(&policy.object, RESET_ANNOTATION);
            if let Some(pool) = asked.filter(|pool| !pools.contains(pool)) {
                let (tone, message) = (Tone::Warning, message(pool));
                self.tell(POLICY, &policy.object, tone, "UnknownIPPool", &message)
                    .await;
            }
        }
        for one in known.enactments() {
            if let Some(pool) = one.reset.as_deref().filter(|pool| !pools.contains(pool)) {
                let object = json!({ "metadata": { "name": one.name, "uid": one.uid } });
                let (tone, message) = (Tone::Warning, message(pool));
                self.tell(ENACTMENT, &object, tone, "UnknownIPPool", &message)
                    .await;
            }
            if let Some(fault) = one.faults.first() {
                let object = json!({ "metadata": { "name": one.name, "uid": one.uid } });
                self.tell(ENACTMENT, &object, Tone::Warning, "UnreadableClaim", fault)
                    .await;
            }
        }
    }

    /// Policies that can't be rendered, and enactments that failed for another reason: no free address, or the host.
    pub(super) async fn report_failures(&self, known: &Seen) {
        let spaces = known.spaces();
        let space = |pool: &str| spaces.get(pool)?.as_ref().ok();
        let mut broken = BTreeSet::new();
        for (name, policy) in known.policies().filter(|(_, policy)| policy.is_ours()) {
            let rendered = policy.spec.as_ref().map_err(Clone::clone);
            if let Err(error) = rendered.and_then(|spec| spec.rehearse(space)) {
                broken.insert(name.as_str());
                let (tone, object, message) = (Tone::Warning, &policy.object, error.to_string());
                self.tell(POLICY, object, tone, "InvalidCapture", &message)
                    .await;
            }
        }
        let failing = known.enactments().filter(|one| one.phase == Phase::Failing);
        for one in failing.filter(|one| !broken.contains(one.policy.as_str())) {
            let object = json!({ "metadata": { "name": one.name, "uid": one.uid } });
            let (tone, reason) = (Tone::Warning, "FailedToConfigure");
            self.tell(ENACTMENT, &object, tone, reason, &one.message)
                .await;
        }
    }

    /// Nodes that a policy selects and whose enactment could not be named: nothing can be recorded there.
    pub(super) async fn report_unnameable(&self, known: &Seen) {
        for (name, policy) in known.policies().filter(|(_, policy)| policy.is_ours()) {
            let mut nodes = known.nodes().filter(|(_, labels)| policy.selects(labels));
            let error = nodes.find_map(|(node, _)| enactment::name(node, name).err());
            if let Some(error) = error {
                let message = format!("{error}; the policy is not served there");
                let (tone, object) = (Tone::Warning, &policy.object);
                self.tell(POLICY, object, tone, "NameTooLong", &message)
                    .await;
            }
        }
    }

    pub(super) async fn tell(
        &self,
        kind: Kind,
        object: &Value,
        tone: Tone,
        reason: &str,
        message: &str,
    ) {
        if !self.is_news(objects::uid(object), reason, message) {
            return;
        }
        let (version, kind, _) = kind;
        let about = ObjectReference {
            api_version: Some(format!("nmstate.io/{version}")),
            kind: Some(kind.to_owned()),
            name: Some(objects::name(object).to_owned()),
            uid: Some(objects::uid(object).to_owned()),
            ..ObjectReference::default()
        };
        self.events.tell_once(about, tone, reason, message).await;
    }

    /// Whether this was not written yet, in this term: every pass finds what is still wrong.
    fn is_news(&self, uid: &str, reason: &str, message: &str) -> bool {
        let mut written = self.written.lock();
        if written.len() >= REMEMBERED {
            written.clear();
        }
        let text = |text: &str| text.to_owned();
        written.insert((text(uid), text(reason), text(message)))
    }
}
