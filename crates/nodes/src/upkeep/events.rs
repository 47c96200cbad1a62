//! Events of what the leader did and found.

use std::collections::BTreeSet;

use berth_api::nmstate::RESET_ANNOTATION;
use berth_ledger::kube::events::Tone;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use super::plan::{Outcome, Step};
use super::run::Upkeep;
use super::seen::Seen;
use crate::objects::{self, ENACTMENT, Kind, NODE_IP_POOL, POLICY};

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
                Step::ReportForeign(claim) => (
                    Tone::Warning,
                    "ForeignClaim",
                    format!(
                        "the enactment of policy {} on node {} claims {}, which is not in this pool",
                        claim.policy, claim.node, claim.address
                    ),
                ),
                _ => continue,
            };
            self.tell(NODE_IP_POOL, pool, tone, reason, &message).await;
        }
    }

    /// A reset that names a pool which does not exist.
    pub(super) async fn report_unknown_resets(&self, known: &Seen) {
        let pools: BTreeSet<&str> = known.pools().map(|(name, _)| name.as_str()).collect();
        let message = |pool: &str| {
            format!(
                "{RESET_ANNOTATION}: there is no NodeIPPool `{pool}`; give the name of one that exists"
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

    pub(super) async fn tell(
        &self,
        kind: Kind,
        object: &Value,
        tone: Tone,
        reason: &str,
        message: &str,
    ) {
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
}
