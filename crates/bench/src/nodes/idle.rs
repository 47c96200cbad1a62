//! What the nodes front adds to the resident memory of an idle agent.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_nodes::objects::ENACTMENT;
use berth_testkit::{Agent, Process};

use super::join::POLICY_NAME;
use super::site::{Credentials, Site};
use crate::figure::{Figure, Target};

const TIMEOUT: Duration = Duration::from_secs(60);

pub async fn memory(site: &Site) -> Result<Vec<Figure>> {
    let plain = site.credentials("idle-0").await?;
    let nodes = site.credentials("idle-1").await?;
    for one in [&plain, &nodes] {
        site.node(&one.node, "join").await?;
    }
    let (without, with) = tokio::task::block_in_place(|| -> Result<_> {
        Ok((agent(site, &plain, false)?, agent(site, &nodes, true)?))
    })?;
    let started = Instant::now();
    let enactment = format!("{}.{POLICY_NAME}", nodes.node);
    // Idle as on a node: its policy was served, and nothing is to be done.
    while site.get(ENACTMENT, &enactment).await?.is_null() {
        if started.elapsed() > TIMEOUT {
            bail!("no enactment; {}", with.process.tail());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (without, with) = (resident(&without.process)?, resident(&with.process)?);
    Ok(vec![
        Figure::new("agent, resident, idle", without, "MB", Target::None),
        Figure::new(
            "agent, resident, idle, with --nodes: more",
            with - without,
            "MB",
            Target::AtMost(10.0),
        ),
    ])
}

fn agent(site: &Site, credentials: &Credentials, nodes: bool) -> Result<Agent> {
    let Credentials {
        node,
        kubeconfig,
        token_file,
        host,
        ..
    } = credentials;
    Agent::start(&site.berth, site.dir.path(), node, |command| {
        command
            .args(["--node", node, "--log-format", "json"])
            .env("BERTH_KUBECONFIG", kubeconfig)
            .env("BERTH_DESK_TOKEN_FILE", token_file);
        if nodes {
            command.arg("--nodes").arg("--host-program").arg(host);
        }
    })
}

fn resident(process: &Process) -> Result<f64> {
    let path = format!("/proc/{}/status", process.pid()?);
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let kib = kib.with_context(|| format!("{path} has no VmRSS"))?;
    Ok(kib * 1024.0 / 1e6)
}
