//! One process of the comparison: pods that start and stop without a pause.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_kube::Connect;
use berth_ledger::configmap::{Allocation, ConfigMapLedger, Document, STATE_KEY};
use berth_vms::settings::Settings;
use berth_vms::vm::SshVms;
use berth_vms::{Applicant, Fleet, Store};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::Tally;
use super::plain::{self, OutOfTries};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Plain,
    Berth,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Berth => "berth",
        })
    }
}

#[derive(Args, Clone, Debug)]
pub struct VmsWorker {
    #[arg(long)]
    mode: Mode,
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long)]
    namespace: String,
    #[arg(long)]
    name: String,
    #[arg(long)]
    node: String,
    #[arg(long)]
    vms: usize,
    #[arg(long)]
    pods: usize,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    run_in: u64,
}

fn ip(n: usize) -> String {
    format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, n % 250 + 1)
}

/// A state with half of the VMs in use, so that it has the size of a real pool.
pub async fn prepare(api: &Api<ConfigMap>, name: &str, vms: usize) -> Result<()> {
    let mut state = Document {
        last_updated: Some("2026-04-23T09:56:00Z".parse()?),
        ..Document::default()
    };
    for n in 0..vms {
        if n % 2 == 0 {
            state.available.push(ip(n));
            continue;
        }
        let id = format!("workload-{n:04}-7c9b6d5f4-x2k8q-{n:064x}");
        let entry = Allocation {
            allocation_id: id.clone(),
            ip: ip(n),
            node_name: "elsewhere".into(),
            pod_name: format!("workload-{n:04}-7c9b6d5f4-x2k8q"),
            pod_namespace: Some("default".into()),
            allocated_at: state.last_updated,
            ..Allocation::default()
        };
        state.allocated.insert(id, entry);
    }
    let object = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(STATE_KEY.to_string(), state.encode()?)])),
        ..ConfigMap::default()
    };
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Both ways to change the state.
#[derive(Clone)]
enum Way {
    Plain(Box<Api<ConfigMap>>),
    Berth(Fleet),
}

impl VmsWorker {
    pub async fn run(&self) -> Result<Tally> {
        let connect = Connect {
            kubeconfig: Some(self.kubeconfig.clone()),
            namespace: Some(self.namespace.clone()),
            timeout: Duration::from_secs(30),
        };
        let client = connect.open().await?.client;
        let way = match self.mode {
            Mode::Plain => Way::Plain(Box::new(Api::namespaced(client, &self.namespace))),
            Mode::Berth => Way::Berth(self.fleet(client).await?),
        };
        let counted = Instant::now() + Duration::from_secs(self.run_in);
        let end = counted + Duration::from_secs(self.seconds);
        let mut pods = tokio::task::JoinSet::new();
        for pod in 0..self.pods {
            pods.spawn(self.clone().come_and_go(way.clone(), pod, counted..end));
        }
        let mut tally = Tally::default();
        while let Some(done) = pods.join_next().await {
            let done = done??;
            tally.millis.extend(done.millis);
            tally.first_millis.extend(done.first_millis);
            tally.repeats += done.repeats;
        }
        Ok(tally)
    }

    async fn fleet(&self, client: kube::Client) -> Result<Fleet> {
        let ips: Vec<String> = (0..self.vms).map(ip).collect();
        let ips = ips.join(",");
        let env = |name: &str| {
            let value = match name {
                "VM_POOL_IPS" => &ips,
                "POOL_CONFIGMAP_NAME" => &self.name,
                "NODE_NAME" => &self.node,
                // There are no VMs: only the state is measured.
                "VM_READINESS" => "off",
                "VM_CLEANUP" => "false",
                _ => return None,
            };
            Some(value.to_string())
        };
        let settings = Settings::new(|_| None, env, None, Path::new("/nowhere"))?;
        let ledger = ConfigMapLedger::new(client, &self.namespace, settings.retry.timeout);
        let store = Store::ConfigMap(Arc::new(ledger));
        let vms = Arc::new(SshVms::new(settings.access.clone()));
        let (metrics, desk_metrics) = Default::default();
        let fleet = Fleet::new(&settings, store, vms, metrics, desk_metrics);
        fleet.resize(&settings.pools).await?;
        Ok(fleet)
    }

    /// One pod after another, until the end; operations in progress are completed, so that nothing stays.
    async fn come_and_go(
        self,
        way: Way,
        pod: usize,
        counted: std::ops::Range<Instant>,
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        for n in 0.. {
            if Instant::now() >= counted.end {
                break;
            }
            let id = format!("pod-{}-{pod}-{n}", self.node);
            for allocates in [true, false] {
                let started = Instant::now();
                while self.operate(&way, &id, allocates).await?.is_err() {
                    tally.repeats += 1;
                }
                let millis = started.elapsed().as_secs_f64() * 1e3;
                // Counted by its end: an operation that started in the run-in and took long must count, or the slower
                // program would look faster.
                let ended = Instant::now();
                if ended < counted.start {
                    tally.first_millis.push(millis);
                } else if ended <= counted.end {
                    tally.millis.push(millis);
                }
            }
        }
        Ok(tally)
    }

    async fn operate(
        &self,
        way: &Way,
        id: &str,
        allocates: bool,
    ) -> Result<Result<(), OutOfTries>> {
        match (way, allocates) {
            (Way::Plain(api), true) => plain::allocate(api, &self.name, &self.node, id).await,
            (Way::Plain(api), false) => plain::deallocate(api, &self.name, id).await,
            (Way::Berth(fleet), true) => {
                let applicant = Applicant {
                    allocation_id: id.into(),
                    pod_name: id.into(),
                    pod_namespace: "default".into(),
                };
                fleet.allocate(None, applicant).await.context("allocate")?;
                Ok(Ok(()))
            }
            (Way::Berth(fleet), false) => {
                let returned = fleet.deallocate(None, id, false).await;
                returned.context("deallocate")?;
                Ok(Ok(()))
            }
        }
    }
}
