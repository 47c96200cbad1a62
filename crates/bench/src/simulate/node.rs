//! One simulated node: the engine of `berth agent` without its socket. Its own SQLite file, its slices with their
//! background tasks, its desks and the pods front, which gets a CNI call as the socket would pass it.
//!
//! Without the collector: the pods of a simulation are only names, and it would find that they are gone.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use berth_core::Address;
use berth_desk::DeskMetrics;
use berth_kube::Connection;
use berth_ledger::{SharedRecordLedger, SqliteLedger};
use berth_pods::{Front, Store, Stores};
use berth_slices::slices::Setup;
use berth_slices::{SliceMetrics, SliceSettings, Slices};
use berth_testkit::PodCall;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pods::plugin::{arguments, container};

/// What the nodes of a simulation share: the connection and the stop signal.
#[derive(Clone)]
pub struct Machine {
    pub connection: Connection,
    pub settings: SliceSettings,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

pub struct Node {
    pub name: String,
    front: Front,
    slices: Slices,
}

impl Node {
    pub async fn start(machine: &Machine, name: String, dir: &Path) -> Result<Node> {
        let file = dir.join(format!("{name}.db"));
        let opened = tokio::task::spawn_blocking(move || SqliteLedger::open_alone(file)).await?;
        let local: SharedRecordLedger = Arc::new(opened.context("open a node's ledger")?);
        let slices = Slices::new(Setup {
            connection: machine.connection.clone(),
            local,
            database: "memory".into(),
            file: name.clone(),
            node: name.clone(),
            boot: "simulated".to_owned(),
            settings: machine.settings.clone(),
            metrics: SliceMetrics::default(),
            daemon: Some((machine.tasks.clone(), machine.stop.clone())),
        });
        slices.open().await.context("open a node's slices")?;
        let store = Store::cluster(slices.ledger(), DeskMetrics::default());
        let store = Arc::new(store.with_slices(slices.clone()));
        let stores: Arc<dyn Stores> = Arc::new(store);
        Ok(Node {
            front: Front::new(stores, &name).with_flat_places(Vec::new()),
            slices,
            name,
        })
    }

    /// An ADD as a runtime would call it; what the plugin would print, if that is not an address.
    pub async fn add(&self, pod: &str, network: &Network) -> Result<Address, String> {
        let request = PodCall::new("whereabouts", "ADD", pod)
            .of_container(&container(pod))
            .of_interface(&network.interface)
            .with_args(&arguments(pod))
            .request_of(&network.configuration);
        let answer = self.front.answer(&request).await;
        if answer.exit != 0 {
            return Err(answer.stdout);
        }
        let result: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        let text = result["ips"][0]["address"].as_str().unwrap_or_default();
        let bare = text.split('/').next().unwrap_or_default();
        Address::parse_lenient(bare).ok_or(answer.stdout)
    }

    /// Publishes what is not published yet.
    pub async fn flush(&self) -> Result<()> {
        self.slices.flush().await.context("publish a node's slices")
    }
}

/// A network of the simulation.
#[derive(Clone, Debug)]
pub struct Network {
    pub name: String,
    pub range: String,
    interface: String,
    configuration: String,
}

impl Network {
    /// The `n`th: elastic slices, no overlap checks.
    pub fn new(n: usize, length: u8) -> Result<Network> {
        let size = 1u128 << (32 - u32::from(length));
        let first: Address = "10.0.0.0".parse().context("the first address")?;
        let start = first.plus(size * n as u128).context("too many networks")?;
        let (name, range) = (format!("net-{n}"), format!("{start}/{length}"));
        let ipam = json!({
            "type": "whereabouts", "range": range, "network_name": name, "fast_ipam": true,
            "enable_overlapping_ranges": false,
        });
        let configuration =
            json!({ "cniVersion": "1.0.0", "name": name, "type": "macvlan", "ipam": ipam });
        Ok(Network {
            interface: format!("net{n}"),
            configuration: configuration.to_string(),
            name,
            range,
        })
    }
}
