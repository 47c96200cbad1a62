//! The peer: read the ConfigMap, change the state, write it under the version that was read, and on a conflict wait and
//! start again. 500 ms, times 1.5, with jitter, five tries: the design document's numbers.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_ledger::configmap::{Allocation, Document, STATE_KEY};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use rand::RngExt;

const TRIES: u32 = 5;
const FIRST: Duration = Duration::from_millis(500);

/// The tries are used up.
#[derive(Debug)]
pub struct OutOfTries;

pub async fn allocate(
    api: &Api<ConfigMap>,
    name: &str,
    node: &str,
    id: &str,
) -> Result<Result<(), OutOfTries>> {
    retry(api, name, |state| {
        if state.allocated.contains_key(id) {
            return Ok(false);
        }
        if state.available.is_empty() {
            bail!("no available IPs in pool");
        }
        let count = state.available.len() as u128;
        let place = usize::try_from(berth_core::hash_index(id, count))?;
        let entry = Allocation {
            allocation_id: id.into(),
            ip: state.available.remove(place),
            node_name: node.into(),
            pod_name: id.into(),
            pod_namespace: Some("default".into()),
            allocated_at: state.last_updated,
            ..Allocation::default()
        };
        state.allocated.insert(id.into(), entry);
        Ok(true)
    })
    .await
}

pub async fn deallocate(
    api: &Api<ConfigMap>,
    name: &str,
    id: &str,
) -> Result<Result<(), OutOfTries>> {
    retry(api, name, |state| {
        let Some(entry) = state.allocated.remove(id) else {
            return Ok(false);
        };
        state.available.push(entry.ip);
        Ok(true)
    })
    .await
}

async fn retry(
    api: &Api<ConfigMap>,
    name: &str,
    change: impl Fn(&mut Document) -> Result<bool>,
) -> Result<Result<(), OutOfTries>> {
    let mut pause = FIRST;
    for _ in 0..TRIES {
        let mut object = api.get(name).await?;
        let data = object.data.as_mut().context("no data")?;
        let mut state = Document::decode(data.get(STATE_KEY).context("no state")?)?;
        if !change(&mut state)? {
            return Ok(Ok(()));
        }
        state.version += 1;
        data.insert(STATE_KEY.into(), state.encode()?);
        match api.replace(name, &PostParams::default(), &object).await {
            Ok(_) => return Ok(Ok(())),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        let jitter = rand::rng().random_range(1.0..1.1);
        tokio::time::sleep(pause.mul_f64(jitter)).await;
        pause = pause.mul_f64(1.5);
    }
    Ok(Err(OutOfTries))
}
