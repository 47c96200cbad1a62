//! The proposal's own way: each handler reads the pool, takes the first free offset, writes the status, and retries
//! on conflict with client-go's `retry.DefaultBackoff`. After a failure it is queued again, as controller-runtime
//! does.
//!
//! It does less than Berth's handlers do: no watches, no host, no NodeNetworkState.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_kube::Connect;
use berth_nodes::objects::{self, ENACTMENT, NODE_IP_POOL};
use kube::Client;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use rand::RngExt;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::site::{Credentials, Site};
use crate::figure::progress;
use crate::parallel;

const POOL: &str = "contended";
const POLICY: &str = "retrying";
const GROUP: &str = "retry";

/// `retry.DefaultBackoff`: 4 steps, 10 ms, factor 5, jitter 0.1.
const STEPS: u32 = 4;
const FIRST: Duration = Duration::from_millis(10);
const FACTOR: f64 = 5.0;
const JITTER: f64 = 0.1;
/// controller-runtime's rate limiter of failed items: 5 ms, doubled each time.
const REQUEUE: Duration = Duration::from_millis(5);

/// Their outcome.
#[derive(Debug, Default)]
pub struct Retried {
    pub nodes: usize,
    pub served: usize,
    /// Rounds of four tries that ended in a conflict.
    pub failed: u64,
    pub elapsed: Duration,
}

impl Retried {
    pub fn rate(&self) -> f64 {
        self.served as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

pub async fn run(site: &Site, nodes: usize, limit: u64) -> Result<Retried> {
    site.pool(POOL, 70).await?;
    site.policy(POLICY, GROUP, POOL).await?;
    let clients = parallel::each("accounts are made", nodes, 8, async |number| {
        let name = format!("retry-{number:03}");
        site.node(&name, GROUP).await?;
        let credentials = site.credentials(&name).await?;
        let client = connect(&credentials).await?;
        // The TLS connection is open before it counts.
        objects::api(client.clone(), NODE_IP_POOL).get(POOL).await?;
        Ok((name, client))
    })
    .await?;
    let bar = progress("nodes at once, get-update-retry", nodes as u64);
    let start = Arc::new(Barrier::new(nodes));
    let limit = Duration::from_secs(limit);
    let started = Instant::now();
    let tasks = clients.into_iter().map(|(node, client)| {
        let (start, bar) = (Arc::clone(&start), bar.clone());
        tokio::spawn(async move {
            start.wait().await;
            let mut failed = 0;
            let served = tokio::time::timeout(limit, join(&client, &node, &mut failed)).await;
            bar.inc(1);
            match served {
                Ok(Ok(address)) => Ok((Some(address), failed, started.elapsed())),
                Ok(Err(error)) => Err(error),
                Err(_) => Ok((None, failed, started.elapsed())),
            }
        })
    });
    let mut all = Retried {
        nodes,
        ..Retried::default()
    };
    let mut addresses = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        let (address, failed, at) = task.await??;
        all.failed += failed;
        all.served += usize::from(address.is_some());
        all.elapsed = all.elapsed.max(at);
        addresses.extend(address);
    }
    bar.finish_and_clear();
    // A leader would collect what no enactment claims, during the next part.
    for (kind, name) in [(NODE_IP_POOL, POOL), (objects::POLICY, POLICY)] {
        let params = DeleteParams::default();
        site.api(kind).delete(name, &params).await?;
    }
    addresses.sort_unstable();
    let before = addresses.len();
    addresses.dedup();
    if addresses.len() != before {
        bail!("get-update-retry allocated an address twice");
    }
    Ok(all)
}

async fn connect(credentials: &Credentials) -> Result<Client> {
    let connect = Connect {
        kubeconfig: Some(credentials.kubeconfig.clone()),
        ..Connect::default()
    };
    Ok(connect.open().await?.client)
}

/// Allocates, then writes the enactment twice, as Berth does.
async fn join(client: &Client, node: &str, failed: &mut u64) -> Result<u64> {
    let mut pause = REQUEUE;
    let offset = loop {
        match allocate(client).await? {
            Some(offset) => break offset,
            None => {
                *failed += 1;
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
    };
    let api = objects::api(client.clone(), ENACTMENT);
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationEnactment",
        "metadata": {
            "name": format!("{node}.{POLICY}"),
            "labels": { objects::NODE_LABEL: node, objects::POLICY_LABEL: POLICY },
        },
    }))?;
    let mut object = api.create(&PostParams::default(), &object).await?;
    for condition in ["Progressing", "Available"] {
        object.data["status"] = json!({
            "policyGeneration": 1, "desiredState": { "offset": offset },
            "conditions": [{ "type": condition, "status": "True" }],
        });
        let name = format!("{node}.{POLICY}");
        object = api
            .replace_status(&name, &PostParams::default(), &object)
            .await?;
    }
    Ok(offset)
}

/// `retry.RetryOnConflict(retry.DefaultBackoff, ...)`: `None` if every attempt conflicted.
async fn allocate(client: &Client) -> Result<Option<u64>> {
    let api = objects::api(client.clone(), NODE_IP_POOL);
    let mut pause = FIRST;
    for step in 1..=STEPS {
        let mut object = api.get(POOL).await?;
        let status = &object.data["status"];
        let list = status["allocated-offsets"].as_array();
        let mut offsets: Vec<u64> = list
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect();
        let free = (0..).find(|offset| !offsets.contains(offset));
        let free = free.context("no offset is free")?;
        offsets.push(free);
        offsets.sort_unstable();
        object.data["status"]["allocated-offsets"] = json!(offsets);
        let params = PostParams::default();
        match api.replace_status(POOL, &params, &object).await {
            Ok(_) => return Ok(Some(free)),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        if step < STEPS {
            let jitter = 1.0 + JITTER * rand::rng().random_range(0.0..1.0);
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            pause = pause.mul_f64(FACTOR);
        }
    }
    Ok(None)
}
