//! A front of the tests' own: pools are `Shelf` objects, cluster-scoped, with their entries in `status`. Everything that a
//! front brings is in this file: the kind and its codec, the CNI calls, the policy of its collector.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_cni::call::Call;
use berth_cni::wire::{self, Answer};
use berth_cni::{CniError, Code, NetConf};
use berth_collector::{
    CollectTask, Collector, CollectorMetrics, CollectorSettings, GracePeriods, NoRepair, Policy,
    PoolsOnly,
};
use berth_core::plan::Selector;
use berth_core::{
    Address, AddressRequest, Allocate, Handle, NODE, Owner, Pool, Prefix, Record, Release, Request,
    Space,
};
use berth_desk::Desks;
use berth_front::{Front, Host, Kind, Serving, StartError};
use berth_kube::{Connection, Part, Place, Resource, Verb};
use berth_leader::{Owners, PoolKind};
use berth_ledger::PoolKey;
use berth_ledger::object::{Codec, Commit, EncodeError, ObjectLedger};
use serde_json::{Value, json};

pub const SHELVES: Resource = Resource {
    group: "front.berth.dev",
    version: "v1",
    plural: "shelves",
    kind: "Shelf",
    place: Place::Cluster,
};

pub const KIND: Kind = Kind {
    pool: PoolKind {
        resource: &SHELVES,
        part: Part::Status,
        verb: Verb::Update,
    },
    owners: Owners::Pods,
    linger: Duration::ZERO,
    move_of: None,
    ledger: |connection| Arc::new(ObjectLedger::new(connection, Shelves)),
};

#[derive(Debug)]
pub struct Shelves;

fn range(object: &Value) -> Option<Prefix> {
    object["spec"]["range"].as_str()?.parse().ok()
}

impl Codec for Shelves {
    fn resource(&self) -> &'static Resource {
        &SHELVES
    }

    fn part(&self) -> Part {
        Part::Status
    }

    fn decode(&self, _key: &PoolKey, object: &Value) -> Result<Pool, String> {
        let mut pool = Pool::new();
        for (key, entry) in object["status"]["entries"]
            .as_object()
            .into_iter()
            .flatten()
        {
            let address: Address = key.parse().map_err(|_| format!("{key} is no address"))?;
            let record = serde_json::from_value(entry.clone());
            pool.restore(address, record.map_err(|error| error.to_string())?);
        }
        Ok(pool)
    }

    fn encode(&self, object: &mut Value, commit: &Commit<'_>) -> Result<(), EncodeError> {
        let records = commit.after.records();
        let entries: serde_json::Map<String, Value> = records
            .map(|(address, record)| (address.to_string(), json!(record)))
            .collect();
        object["status"]["entries"] = Value::Object(entries);
        Ok(())
    }

    fn network(&self, object: &Value) -> Option<Prefix> {
        range(object)
    }
}

#[derive(Debug)]
pub struct ShelfFront;

#[async_trait]
impl Front for ShelfFront {
    fn name(&self) -> &'static str {
        "shelves"
    }

    fn plugins(&self) -> &'static [&'static str] {
        &["shelf-ipam"]
    }

    async fn start(self: Box<Self>, host: Host<'_>) -> Result<Arc<dyn Serving>, StartError> {
        let connect = host.node.cluster.as_ref().ok_or("shelves need a cluster")?;
        let cluster = host.clusters.open(connect).await?;
        Ok(Arc::new(ServingShelves {
            desks: KIND.desks(&cluster, host.desk_metrics),
            node: host.node.name.clone(),
        }))
    }
}

#[derive(Debug)]
struct ServingShelves {
    desks: Desks,
    node: String,
}

#[async_trait]
impl Serving for ServingShelves {
    async fn call(&self, request: &wire::Request) -> Answer {
        match self.serve(request).await {
            Ok(stdout) => Answer::success(stdout),
            Err(error) => Answer::failure(error.render(NetConf::version_of(&request.stdin))),
        }
    }
}

fn refused(why: impl ToString) -> CniError {
    CniError::new(Code::TryLater, why.to_string())
}

impl ServingShelves {
    async fn serve(&self, request: &wire::Request) -> Result<String, CniError> {
        let conf: Value = serde_json::from_str(&request.stdin).map_err(refused)?;
        let text = |field: &str| conf["ipam"][field].as_str().unwrap_or_default();
        let range: Prefix = text("range").parse().map_err(refused)?;
        let shelf = PoolKey {
            name: text("shelf").to_owned(),
            network: Some(range),
        };
        let desk = self.desks.of(&shelf);
        match request.environment.call()? {
            Call::Add(target) => {
                let pod = format!("{}/{}", target.args.pod_namespace, target.args.pod_name);
                let owner = Owner::new(pod, target.ifname.as_str());
                let handle = Handle::new(target.container_id.as_str());
                let claim = Allocate {
                    record: Record::new(owner, handle).with(NODE, &self.node),
                    wants: vec![AddressRequest::any(Arc::new(Space::list([range.block()])))],
                };
                match desk
                    .submit(Request::Allocate(claim))
                    .await
                    .map_err(refused)?
                {
                    berth_core::Answer::Granted(granted) => {
                        let ip = format!("{}/{}", granted[0].address, range.length());
                        Ok(
                            json!({ "cniVersion": "1.1.0", "ips": [{ "address": ip }] })
                                .to_string(),
                        )
                    }
                    other => Err(refused(format!("{other:?}"))),
                }
            }
            Call::Del(target) => {
                let selector = Selector::Handle {
                    handle: Handle::new(target.container_id.as_str()),
                    part: None,
                };
                let cooldown = Duration::ZERO;
                let release = Request::Release(Release { selector, cooldown });
                desk.submit(release).await.map_err(refused)?;
                Ok(String::new())
            }
            _ => Ok(String::new()),
        }
    }
}

/// Owners are pods, and nothing ends with an address: the collector's defaults are all that it takes.
impl Policy for Shelves {
    type PoolPolicies = ();
    type Ends = ();
    type Repair = NoRepair;
    type Survey = PoolsOnly;
}

/// The collector of shelves, which sweeps while this process leads.
pub fn collect_task(
    connection: Connection,
    leads: impl Fn() -> bool + Send + Sync + 'static,
) -> CollectTask<Shelves> {
    let ledger = (KIND.ledger)(&connection);
    let moment = Duration::from_millis(200);
    let settings = CollectorSettings {
        grace: GracePeriods {
            pod: moment,
            node: moment,
        },
        interval: moment,
    };
    let metrics = CollectorMetrics::default();
    let collector = Collector::new(connection, ledger, Shelves, "leader", settings, metrics);
    CollectTask::new("shelves", "berth_shelves", collector.led(leads))
}
