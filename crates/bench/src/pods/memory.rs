//! The agent's resident memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_cni::http;
use berth_testkit::PodCall;

use super::plugin::{Plugin, arguments, container};
use super::testbed::{Node, Testbed, recorded};
use crate::figure::{Figure, Target, progress};

/// Pods of a node; kubelet's own limit is 110.
const PODS: usize = 200;

/// Callers that fill a pool.
const CALLERS: usize = 32;

pub async fn memory(testbed: &Testbed) -> Result<Vec<Figure>> {
    let home = testbed.home().await?;
    let node = testbed.node("node-0").await?;
    let plugin = testbed.berth_in(&node, &home);
    // Idle as on a node: connected, watching the pool, nothing to do.
    tokio::task::block_in_place(|| plugin.add("first"))?;
    tokio::task::block_in_place(|| plugin.del("first"))?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = node.resident()?;
    fill(&node, &plugin, PODS)?;
    let busy = node.resident()?;
    let held = recorded(&home.ledger).await?.len();
    if held != PODS {
        bail!("{PODS} pods got addresses, {held} are recorded");
    }
    Ok(vec![
        Figure::new("agent, resident, idle", idle, "MB", Target::AtMost(20.0)),
        Figure::new(
            format!("agent, resident, {PODS} pods"),
            busy,
            "MB",
            Target::AtMost(40.0),
        ),
    ])
}

/// Allocates addresses for `count` pods through the agent's socket, without a process for each.
pub fn fill(node: &Node, plugin: &Plugin, count: usize) -> Result<()> {
    let socket = node.socket();
    let bar = progress("filling a pool", count as u64);
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(());
            }
            let pod = format!("replica-{at:05}");
            let request = PodCall::new("berth", "ADD", &pod)
                .of_container(&container(&pod))
                .with_args(&arguments(&pod))
                .request_of(&plugin.configuration());
            let answer = http::call(&socket, &request, Duration::from_secs(60))?;
            if answer.exit != 0 {
                bail!("ADD of {pod} failed: {}", answer.stdout);
            }
            bar.inc(1);
        }
    };
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CALLERS).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().ok().context("a caller's thread panicked")?)
        })
    })?;
    bar.finish_and_clear();
    Ok(())
}
