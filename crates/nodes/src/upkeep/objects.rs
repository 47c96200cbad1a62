//! What the leader writes beside pools: enactments of nodes that are gone, reset annotations, conditions of policies. Each write has
//! the precondition that it was decided on: a UID, a version, a value.

use berth_api::nmstate::RESET_ANNOTATION;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};

use super::plan::{Reset, Step};
use super::run::Upkeep;
use super::seen::Seen;
use crate::enactment;
use crate::objects::{self, ENACTMENT, NODE_IP_POOL, POLICY};

impl Upkeep {
    /// What is done beside the pool, after its status is durable.
    pub(super) async fn finish(&self, seen: &Seen, pool: &str, step: &Step) -> kube::Result<()> {
        match step {
            Step::DeleteEnactment { node, policy } => {
                let Ok(name) = enactment::name(node, policy) else {
                    return Ok(());
                };
                let mut known = seen.enactments();
                let Some(known) = known.find(|one| one.name == name) else {
                    return Ok(());
                };
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: Some(known.uid.clone()),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                absent_is_fine(self.api(ENACTMENT).delete(&name, &params).await.map(drop))
            }
            Step::RemoveReset(reset) => self.remove_reset(pool, reset).await,
            _ => Ok(()),
        }
    }

    /// Removes the annotation if it still asks for this pool.
    async fn remove_reset(&self, pool: &str, reset: &Reset) -> kube::Result<()> {
        let (kind, name, value) = match reset {
            Reset::Pool => (NODE_IP_POOL, pool.to_owned(), None),
            Reset::Policy(name) => (POLICY, name.clone(), Some(pool)),
            Reset::Enactment { node, policy } => {
                let name = enactment::name(node, policy).unwrap_or_default();
                (ENACTMENT, name, Some(pool))
            }
        };
        let api = self.api(kind);
        let Some(object) = api.get_opt(&name).await? else {
            return Ok(());
        };
        let known = object.annotations().get(RESET_ANNOTATION);
        let asks = known.is_some_and(|known| value.is_none_or(|value| value == known));
        if !asks {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "resourceVersion": object.resource_version(),
            "annotations": { RESET_ANNOTATION: null },
        } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        absent_is_fine(api.patch(&name, &params, &patch).await.map(drop))
    }

    pub(super) async fn write_policy(&self, name: &str, object: &Value, mut patch: Value) -> bool {
        let version = objects::text(object, "/metadata/resourceVersion");
        patch["metadata"] = json!({ "resourceVersion": version });
        let params = PatchParams::default();
        let written = self
            .api(POLICY)
            .patch_status(name, &params, &Patch::Merge(&patch))
            .await;
        match written {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => false,
            Err(error) => {
                tracing::warn!(policy = name, %error, "the policy's conditions were not written");
                false
            }
        }
    }
}

fn absent_is_fine(outcome: kube::Result<()>) -> kube::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        outcome => outcome,
    }
}
