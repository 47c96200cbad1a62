//! The NodeNetworkState of this node, where no kubernetes-nmstate writes it: what the host shows, so that the leader frees no
//! address that is still on an interface.

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::enact;
use super::execute::HandlerError;
use super::run::Handler;
use crate::objects;

/// The label of the states that Berth writes; another one is left alone.
const WRITER: (&str, &str) = ("app.kubernetes.io/managed-by", "berth");

impl Handler {
    /// Writes what the host shows now.
    pub(super) async fn publish_state(&self) -> Result<(), HandlerError> {
        let node = &self.config.node;
        let Some(this) = self.this_node() else {
            return Ok(());
        };
        let found = self.ask(self.states.get_opt(node)).await?;
        let found = found.map(|object| objects::value(&object));
        let other = |object: &Value| objects::label(object, WRITER.0) != Some(WRITER.1);
        if found.as_ref().is_some_and(other) {
            return Ok(());
        }
        let state = self.config.host.show().await?;
        if let Some(known) = &found
            && known.pointer("/status/currentState") == Some(&state)
        {
            return Ok(());
        }
        if found.is_none() {
            let object = json!({
                "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState",
                "metadata": {
                    "name": node, "labels": { WRITER.0: WRITER.1 },
                    "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": this.uid }],
                },
            });
            let object = serde_json::from_value(object).map_err(HandlerError::object)?;
            let params = PostParams::default();
            self.ask(self.states.create(&params, &object)).await?;
        }
        let status = json!({ "status": { "currentState": state, "lastSuccessfulUpdateTime": enact::now() } });
        // A merge would keep interfaces' fields that are gone: lists are replaced whole, and the state is a list of interfaces.
        let params = PatchParams::default();
        let patch = Patch::Merge(&status);
        self.ask(self.states.patch_status(node, &params, &patch))
            .await?;
        Ok(())
    }
}
