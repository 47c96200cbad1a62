//! The baseline: how many claims by name the API server accepts from a client that does nothing else.

use std::time::Instant;

use anyhow::Result;
use berth_api::claim::{SliceClaim, SliceClaimSpec};
use berth_testkit::Cluster;
use kube::Api;
use kube::api::PostParams;

use crate::figure::{Figure, Target};
use crate::parallel;

pub async fn rate(cluster: &Cluster, claims: usize, at_once: usize) -> Result<Option<Figure>> {
    if claims == 0 {
        return Ok(None);
    }
    let namespace = cluster.namespace("bare").await?;
    let api: Api<SliceClaim> = Api::namespaced(cluster.client().await?, &namespace);
    let started = Instant::now();
    parallel::each("bare claims", claims, at_once, async |n| {
        let spec = SliceClaimSpec {
            network: "bare".to_owned(),
            range: "10.0.0.0/26".to_owned(),
            node: format!("node-{n:05}"),
            node_uid: "0a3c3e5e-bb1b-4f4e-8f6e-000000000000".to_owned(),
            epoch: 1,
            ..SliceClaimSpec::default()
        };
        let claim = SliceClaim::new(&format!("bare-{n:06}"), spec);
        api.create(&PostParams::default(), &claim).await?;
        Ok(())
    })
    .await?;
    let rate = claims as f64 / started.elapsed().as_secs_f64();
    Ok(Some(Figure::new(
        "bare CREATEs of claims, the same API server, nothing else",
        rate,
        "/s",
        Target::None,
    )))
}
