//! A pool that is deleted and created again: the leader takes the enactments' addresses back.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use berth_nodes::objects::NODE_IP_POOL;
use kube::api::DeleteParams;

use super::join::{POOL_NAME, addresses, allocations};
use super::site::{Site, reason};
use crate::figure::{Figure, Target};

const TIMEOUT: Duration = Duration::from_secs(120);

pub async fn created_again(site: &Site, nodes: usize) -> Result<Vec<Figure>> {
    let before = addresses(site).await?;
    ensure!(before.len() >= nodes, "{} enactments", before.len());
    let params = DeleteParams::default();
    site.api(NODE_IP_POOL).delete(POOL_NAME, &params).await?;
    let started = Instant::now();
    site.pool(POOL_NAME, 71).await?;
    let (took, pool) = loop {
        let pool = site.get(NODE_IP_POOL, POOL_NAME).await?;
        let used = pool["status"]["used"].as_u64().unwrap_or_default();
        // A leader that allocates before it has recovered everything would allocate an address twice.
        if reason(&pool) == "ReconciledPool" {
            ensure!(
                used == before.len() as u64,
                "Available with {used} of {} addresses",
                before.len()
            );
            break (started.elapsed(), pool);
        }
        if started.elapsed() > TIMEOUT {
            bail!("the pool is not rebuilt: {}", pool["status"]);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let after = allocations(&pool);
    let kept = before
        .iter()
        .filter(|(node, addresses)| after.get(*node) == Some(*addresses))
        .count();
    let what = format!("a pool created again, {} enactments", before.len());
    Ok(vec![
        Figure::new(
            format!("{what}: Available after"),
            took.as_secs_f64(),
            "s",
            Target::AtMost(3.0),
        ),
        Figure::new(
            format!("{what}: kept"),
            kept as f64,
            "",
            Target::AtLeast(before.len() as f64),
        ),
    ])
}
