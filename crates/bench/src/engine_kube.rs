//! The engine on a real API server, everything on this machine.
//!
//! "No hot object": 64 requesters of one IPPool through one desk, from an empty pool on, compared with the same 64 with
//! a desk each. And claims by name compared with bare CREATEs, alternating, so that a slow machine slows both.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use berth_core::Address;
use berth_desk::{Desk, DeskMetrics};
use berth_kube::Connect;
use berth_ledger::configmap::ConfigMapLedger;
use berth_ledger::{PoolKey, SharedLedger, SharedRecordLedger};
use berth_testkit::Cluster;
use berth_whereabouts::KubeLedger;
use clap::Args;
use kube::Api;

use crate::claims::{self, Maker};
use crate::figure::{Figure, Target};
use crate::shared::{self, End, mk_pool, settings};

#[derive(Args, Debug)]
pub struct EngineKube {
    /// Requesters of the shared pool.
    #[arg(long, default_value_t = 64)]
    requesters: usize,
    /// Entries that one desk fills the pool to.
    #[arg(long, default_value_t = 5_000)]
    entries: usize,
    /// Seconds for the separate desks: their rate is measured, not how long they wait.
    #[arg(long, default_value_t = 30)]
    separate_seconds: u64,
    /// VMs of the ConfigMap's document, all of which are claimed.
    #[arg(long, default_value_t = 1_000)]
    vms: u32,
    /// Objects per round of claims by name: so many that the connections of the first do not matter.
    #[arg(long, default_value_t = 5_000)]
    names: u64,
    /// Requesters of claims by name.
    #[arg(long, default_value_t = 32)]
    name_requesters: u64,
}

struct Testbed {
    cluster: Cluster,
    namespace: String,
}

impl Testbed {
    async fn new() -> Result<Self> {
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        let namespace = cluster.namespace("bench").await?;
        Ok(Self { cluster, namespace })
    }

    /// A ledger with connections of its own.
    async fn open(&self) -> Result<SharedRecordLedger> {
        let connect = Connect {
            kubeconfig: Some(self.cluster.kubeconfig()),
            namespace: Some(self.namespace.clone()),
            timeout: Duration::from_secs(60),
        };
        Ok(Arc::new(KubeLedger::new(connect.open().await?)))
    }

    /// `count` desks, each of its own, as that many nodes would have.
    async fn desks(
        &self,
        pool: &PoolKey,
        metrics: &DeskMetrics,
        count: usize,
    ) -> Result<Vec<Desk>> {
        let mut desks = Vec::new();
        for _ in 0..count {
            let ledger = self.open().await?;
            desks.push(Desk::open(
                ledger,
                pool.clone(),
                &settings(),
                metrics.of(&pool.name),
            ));
        }
        Ok(desks)
    }
}

impl EngineKube {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let testbed = Testbed::new().await?;
        let mut figures = self.shared_pool(&testbed).await?;
        figures.push(self.document(&testbed).await?);
        figures.extend(self.names(&testbed).await?);
        Ok(figures)
    }

    async fn shared_pool(&self, testbed: &Testbed) -> Result<Vec<Figure>> {
        let ledger: SharedLedger = testbed.open().await?;
        let n = self.requesters;
        let metrics = DeskMetrics::default();

        let pool = mk_pool("separate")?;
        let desks = testbed.desks(&pool, &metrics, n).await?;
        let end = End {
            claims: self.entries,
            after: Duration::from_secs(self.separate_seconds),
        };
        let what = format!("{n} desks, one object");
        let separate = shared::run(&what, &ledger, &pool, desks, &metrics, n, end).await?;

        let pool = mk_pool("one")?;
        let desks = testbed.desks(&pool, &metrics, 1).await?;
        let end = End {
            claims: self.entries,
            after: Duration::from_secs(3_600),
        };
        let what = format!("one desk, {n} requesters");
        let one = shared::run(&what, &ledger, &pool, desks, &metrics, n, end).await?;

        Ok(vec![
            Figure::new(
                format!(
                    "{n} separate desks on one IPPool ({} claims)",
                    separate.claims
                ),
                separate.rate(),
                "claims/s",
                Target::None,
            ),
            Figure::new(
                format!("one desk, {n} requesters, empty to {} entries", one.claims),
                one.rate(),
                "claims/s",
                Target::AtLeast(10.0 * separate.rate()),
            ),
            Figure::new(
                "claims in one write of that desk",
                one.claims as f64 / one.commits.max(1) as f64,
                "",
                Target::None,
            ),
        ])
    }

    /// A document in a ConfigMap is written whole, so batching in one desk is all that can be gained.
    async fn document(&self, testbed: &Testbed) -> Result<Figure> {
        let pool = mk_pool("document")?;
        let client = testbed.cluster.client().await?;
        let ledger = ConfigMapLedger::new(client, &testbed.namespace, Duration::from_secs(60));
        let first: Address = "10.0.0.1".parse()?;
        let vms = (0..self.vms).filter_map(|n| first.plus(n.into()));
        ledger.set_members(&pool, &vms.collect::<Vec<_>>());
        let ledger: SharedLedger = Arc::new(ledger);
        let metrics = DeskMetrics::default();
        let of_pool = metrics.of(&pool.name);
        let desk = Desk::open(Arc::clone(&ledger), pool.clone(), &settings(), of_pool);
        let n = self.requesters;
        let end = End {
            claims: self.vms as usize,
            after: Duration::from_secs(600),
        };
        let what = format!("one desk on a ConfigMap, {n} requesters");
        let run = shared::run(&what, &ledger, &pool, vec![desk], &metrics, n, end).await?;
        Ok(Figure::new(
            format!("{what}, empty to {} entries", run.claims),
            run.rate(),
            "claims/s",
            Target::AtLeast(300.0),
        ))
    }

    async fn names(&self, testbed: &Testbed) -> Result<Vec<Figure>> {
        let client = testbed.cluster.client().await?;
        let bare = Maker::Bare(Box::new(Api::namespaced(client, &testbed.namespace)));
        let ours = Maker::Ledger(testbed.open().await?);
        let (n, count) = (self.name_requesters, self.names);
        let mut rates = [0.0, 0.0];
        const TURNS: u64 = 2;
        for turn in 0..TURNS {
            for (at, maker, what) in [(0, &bare, "bare CREATEs"), (1, &ours, "claims by name")] {
                let first = (turn * 2 + at) * count;
                let rate = claims::run(what, maker, n, first, count).await?;
                rates[at as usize] += rate / TURNS as f64;
            }
        }
        let [bare, ours] = rates;
        Ok(vec![
            Figure::new(
                format!("bare CREATEs, {n} requesters"),
                bare,
                "a second",
                Target::None,
            ),
            Figure::new(
                format!("claims by name, {n} requesters"),
                ours,
                "claims/s",
                Target::AtLeast(0.8 * bare),
            ),
        ])
    }
}
