//! A NodeIPPool for commands: from the cluster, or from a file.

use std::path::Path;

use anyhow::{Context, bail};
use berth_api::nmstate::NodeIPPool;
use berth_nodes::pool::{PoolSpace, Recorded};
use kube::api::{Api, ApiResource, DynamicObject};
use serde_json::Value;

use crate::documents;
use crate::exit::Negative;
use crate::output;
use crate::store::StoreArgs;

const EXPECTED: &str = "NodeIPPools (apiVersion nmstate.io/v1), separated by lines of ---";

/// A pool as read, with its status.
#[derive(Debug)]
pub struct NodePool {
    pub name: String,
    pub space: PoolSpace,
    pub recorded: Recorded,
}

impl NodePool {
    /// Parses the object; an entry of the status that can't be parsed is reported and skipped.
    fn read(object: &Value, spec_is_input: bool) -> anyhow::Result<NodePool> {
        let name = name_of(object);
        let refuse = |text: String| match spec_is_input {
            true => Negative::Usage(text),
            false => Negative::Broken(text),
        };
        let spec = object.get("spec").cloned().unwrap_or(Value::Null);
        let spec = serde_json::from_value(spec)
            .map_err(|error| refuse(format!("NodeIPPool {name}: spec: {error}")))?;
        let space = PoolSpace::read(&spec)
            .map_err(|error| refuse(format!("NodeIPPool {name}: {error}")))?;
        for warning in space.warnings() {
            output::note(&format!("NodeIPPool {name}: {warning}"));
        }
        let status = object.get("status").unwrap_or(&Value::Null);
        let recorded = Recorded::read(status, &space);
        for part in &recorded.set_aside {
            let shown: String = part.value.chars().take(80).collect();
            output::note(&format!(
                "NodeIPPool {name}: status.{}: {shown} is passed over: {}",
                part.field, part.why
            ));
        }
        Ok(NodePool {
            name,
            space,
            recorded,
        })
    }

    /// A pool of the cluster.
    pub async fn of_cluster(store: &StoreArgs, name: &str) -> anyhow::Result<NodePool> {
        let Some(connection) = store.cluster().await? else {
            bail!(Negative::Usage(format!(
                "NodeIPPool {name}: these pools are a cluster's; name its kubeconfig with --kubeconfig or KUBECONFIG, or a file with -f"
            )));
        };
        // As stored: one wrong field of the status must not hide the others.
        let resource = ApiResource::erase::<NodeIPPool>(&());
        let pools: Api<DynamicObject> = Api::all_with(connection.client, &resource);
        let found = tokio::time::timeout(connection.timeout, pools.get_opt(name)).await;
        let found = match found {
            Ok(found) => found.context(Negative::Later(format!("read NodeIPPool {name}")))?,
            Err(_) => bail!(Negative::Later(format!(
                "read NodeIPPool {name}: the API server did not answer in {} s",
                connection.timeout.as_secs()
            ))),
        };
        let Some(found) = found else {
            bail!(Negative::NotFound(format!(
                "there is no NodeIPPool {name}; `kubectl get nodeippools` lists them"
            )));
        };
        NodePool::read(&serde_json::to_value(found)?, false)
    }

    /// A pool of a file, and the remaining arguments. If the file has several pools, the first argument names one.
    pub fn of_file<'a>(
        file: &Path,
        arguments: &'a [String],
    ) -> anyhow::Result<(NodePool, &'a [String])> {
        let objects = documents::all(file, EXPECTED)?;
        for object in &objects {
            check_kind(file, object)?;
        }
        let named = arguments.first();
        let named = named.and_then(|name| objects.iter().find(|one| name_of(one) == *name));
        let left = arguments.get(usize::from(named.is_some())..);
        let object = match (named, objects.as_slice()) {
            (Some(object), _) | (None, [object]) => object,
            (None, []) => bail!(Negative::Usage(format!(
                "{} is empty; give {EXPECTED}",
                file.display()
            ))),
            (None, several) => {
                let names: Vec<String> = several.iter().map(name_of).collect();
                bail!(Negative::Usage(format!(
                    "{} has the NodeIPPools {}; name one of them before offsets and addresses",
                    file.display(),
                    names.join(", ")
                )))
            }
        };
        Ok((NodePool::read(object, true)?, left.unwrap_or_default()))
    }
}

fn name_of(object: &Value) -> String {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    name.unwrap_or("without a name").to_owned()
}

fn check_kind(file: &Path, object: &Value) -> anyhow::Result<()> {
    for (field, right) in [("apiVersion", "nmstate.io/v1"), ("kind", "NodeIPPool")] {
        let found = object.get(field).and_then(Value::as_str);
        if found != Some(right) {
            let found = found.unwrap_or("nothing");
            bail!(Negative::Usage(format!(
                "{}: {field}: `{found}` is not {right}; give {EXPECTED}",
                file.display()
            )));
        }
    }
    Ok(())
}
