//! Carries a plan out: observe, plan, one step, until nothing is left.
//!
//! Guarantees: idempotent and resumable, because every run plans from what it observes; a dry run changes nothing; everything
//! that is not Berth's (other ranges, labels and annotations of the IPPool) stays as it is. A step that another run began and
//! did not finish is waited for.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::sleep;

use super::plan::{Method, Observed, PoolObserved, Wanted, plan, plan_undo};
use super::step::{Block, Refusal, Step};
use crate::cloud::{Cloud, CloudError, RangeRequest, RequestId, SecondaryRange};
use crate::pool;
use crate::pool::pages::{name_of, pages_of};

/// The IPPool objects of the cluster.
pub trait Pools: Sync {
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Value>, PoolsError>> + Send;
    fn create(&self, object: &Value) -> impl Future<Output = Result<(), PoolsError>> + Send;
    /// Replaces exactly the version that was read.
    fn replace(&self, object: &Value) -> impl Future<Output = Result<(), PoolsError>> + Send;
    /// Deletes exactly the version that was read.
    fn delete(&self, object: &Value) -> impl Future<Output = Result<(), PoolsError>> + Send;
}

/// Why a call about an IPPool failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolsError {
    /// Somebody else wrote it since it was read: read it again.
    #[error("it was changed meanwhile: {0}")]
    Conflict(String),
    /// The API server can't be reached or does not answer now.
    #[error("{0}")]
    Unavailable(String),
    /// Trying again changes nothing.
    #[error("{0}")]
    Refused(String),
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Provision,
    Undo,
}

#[derive(Debug, Error)]
pub enum ProvisionError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{what}: {error}{}", remedy(.error, .needs))]
    Cloud {
        what: String,
        /// The permissions of the calls that this takes.
        needs: &'static str,
        error: CloudError,
    },
    #[error(
        "no /{prefix_length} could be reserved in {within}: {why}; choose other addresses with --target-cidr, or a smaller range with a longer --prefix-length"
    )]
    NoRoom {
        prefix_length: u8,
        within: String,
        why: String,
    },
    #[error("IPPool {name}: {error}")]
    Pool { name: String, error: PoolsError },
    #[error("IPPool {name} can't be read: {why}; it is left as it is")]
    Unreadable { name: String, why: String },
    #[error("it is still not done after {0} steps: something else undoes them")]
    Endless(usize),
}

fn remedy(error: &CloudError, needs: &str) -> String {
    match error {
        CloudError::Denied(_) => format!("; the service account needs {needs}"),
        _ => String::new(),
    }
}

impl ProvisionError {
    /// Passes while the run goes on: another program was faster, or a step of an earlier run still runs.
    fn is_passing(&self) -> bool {
        matches!(
            self,
            ProvisionError::Cloud {
                error: CloudError::Stale(_)
                    | CloudError::NotReady(_)
                    | CloudError::AlreadyExists(_),
                ..
            } | ProvisionError::Pool {
                error: PoolsError::Conflict(_),
                ..
            }
        )
    }
}

/// Provisions one subnet.
#[derive(Debug)]
pub struct Provisioner<P> {
    /// Of the subnet's project.
    pub cloud: Cloud,
    pub pools: P,
    pub region: String,
    pub subnetwork: String,
    pub wanted: Wanted,
    /// Where Google may choose the range from, and what it must leave out.
    pub within: Vec<String>,
    pub excluded: Vec<String>,
    /// How long it tries again where another program's change is in the way.
    pub patience: Duration,
}

/// More steps than any plan has.
const MOST_STEPS: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);

const GET_RANGE: &str = "networkconnectivity.internalRanges.get";
const GET_SUBNET: &str = "compute.subnetworks.get";
const CREATE_RANGE: &str = "networkconnectivity.internalRanges.create, networkconnectivity.operations.get and compute.networks.use";
const DELETE_RANGE: &str =
    "networkconnectivity.internalRanges.delete and networkconnectivity.operations.get";
const PATCH_SUBNET: &str = "compute.subnetworks.update and compute.regionOperations.get";

impl<P: Pools> Provisioner<P> {
    /// What is left to do.
    pub async fn steps(&self, direction: Direction) -> Result<Vec<Step>, ProvisionError> {
        let (observed, _) = self.observe().await?;
        self.plan(direction, &observed)
    }

    /// Does what is left, and reports each step when it is done. Every round plans again from what it reads, so that the
    /// addresses that Google chose are known in the next one.
    pub async fn run(
        &self,
        direction: Direction,
        mut done: impl FnMut(&Step),
    ) -> Result<(), ProvisionError> {
        let deadline = Instant::now() + self.patience;
        let mut count = 0;
        while count < MOST_STEPS {
            let (observed, object) = self.observe().await?;
            let steps = self.plan(direction, &observed)?;
            let Some(step) = steps.first() else {
                return Ok(());
            };
            match self.carry_out(step, &observed, object).await {
                Ok(()) => {
                    done(step);
                    count += 1;
                }
                Err(error) if error.is_passing() && Instant::now() < deadline => {
                    tracing::info!(%error, %step, "trying again");
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(ProvisionError::Endless(MOST_STEPS))
    }

    fn plan(&self, direction: Direction, observed: &Observed) -> Result<Vec<Step>, ProvisionError> {
        Ok(match direction {
            Direction::Provision => plan(&self.wanted, observed)?,
            Direction::Undo => plan_undo(&self.wanted, observed)?,
        })
    }

    async fn observe(&self) -> Result<(Observed, Option<Value>), ProvisionError> {
        let internal_range = match &self.wanted.method {
            Method::Static { .. } => None,
            Method::Secondary { range, .. } => match self.cloud.internal_range(range).await {
                Ok(found) => Some(found),
                Err(CloudError::NotFound(_)) => None,
                Err(error) => {
                    return Err(cloud(format!("internal range {range}"), GET_RANGE, error));
                }
            },
        };
        let subnetwork = self.cloud.subnetwork(&self.region, &self.subnetwork).await;
        let subnetwork = subnetwork
            .map_err(|error| cloud(format!("subnet {}", self.wanted.subnet), GET_SUBNET, error))?;
        let object = self.pools.get(&self.wanted.pool).await;
        let object = object.map_err(|error| self.pool_error(error))?;
        let mut pool = object
            .as_ref()
            .map(|object| self.read(object))
            .transpose()?;
        if let (Some(pool), Some(object)) = (&mut pool, &object) {
            for page in self.pages(object).await? {
                pool.allocations += self.read(&page)?.allocations;
            }
        }
        let observed = Observed {
            internal_range,
            subnetwork,
            pool,
        };
        Ok((observed, object))
    }

    /// The objects that keep blocks of the pool.
    async fn pages(&self, pool: &Value) -> Result<Vec<Value>, ProvisionError> {
        let listed = pages_of(pool).map_err(|why| self.unreadable(why))?;
        let mut found = Vec::new();
        for block in listed.keys() {
            let page = self.pools.get(&name_of(&self.wanted.pool, *block)).await;
            found.extend(page.map_err(|error| self.pool_error(error))?);
        }
        Ok(found)
    }

    fn read(&self, object: &Value) -> Result<PoolObserved, ProvisionError> {
        let found = pool::decode(object).map_err(|error| self.unreadable(error))?;
        // The counter too: a stray may be a pod's.
        let counted = object["status"]["allocated"].as_u64().unwrap_or_default();
        let counted = usize::try_from(counted).unwrap_or(usize::MAX);
        Ok(PoolObserved {
            cidr: found.cidr.to_string(),
            subnet: found.subnet,
            range: found.range,
            allocations: counted.max(found.pool.len() + found.pool.unparsed().len()),
        })
    }

    async fn carry_out(
        &self,
        step: &Step,
        observed: &Observed,
        object: Option<Value>,
    ) -> Result<(), ProvisionError> {
        let pool_failed = |error| self.pool_error(error);
        match step {
            Step::ReserveInternalRange {
                name,
                prefix_length,
            } => self.reserve(step, name, *prefix_length, observed).await,
            Step::AddSecondaryRange { name, .. } => {
                let mut ranges = observed.subnetwork.secondary.clone();
                let internal = observed.internal_range.as_ref();
                ranges.push(SecondaryRange {
                    name: name.clone(),
                    cidr: internal.map(|range| range.cidr.clone()).unwrap_or_default(),
                    internal_range: internal.map(|range| range.name.clone()),
                    other: serde_json::Map::new(),
                });
                self.set_ranges(step, observed, &ranges).await
            }
            Step::RemoveSecondaryRange { name } => {
                let mut ranges = observed.subnetwork.secondary.clone();
                ranges.retain(|range| range.name != *name);
                self.set_ranges(step, observed, &ranges).await
            }
            Step::ReleaseInternalRange { name } => {
                let released = self.cloud.release_range(name, &RequestId::random()).await;
                released.map_err(|error| cloud(step.to_string(), DELETE_RANGE, error))
            }
            Step::CreatePool { block, .. } => {
                let empty = json!({ "metadata": { "name": self.wanted.pool } });
                let object = self.object(empty, block)?;
                self.pools.create(&object).await.map_err(pool_failed)
            }
            Step::UpdatePool { block, .. } => {
                let object = self.object(object.unwrap_or_default(), block)?;
                self.pools.replace(&object).await.map_err(pool_failed)
            }
            Step::DeletePool { .. } => {
                let object = object.unwrap_or_default();
                // Each in the version that was read without allocations.
                for page in self.pages(&object).await? {
                    if self.read(&page)?.allocations > 0 {
                        let changed = "a page has allocations".to_owned();
                        return Err(pool_failed(PoolsError::Conflict(changed)));
                    }
                    self.pools.delete(&page).await.map_err(pool_failed)?;
                }
                self.pools.delete(&object).await.map_err(pool_failed)
            }
        }
    }

    async fn reserve(
        &self,
        step: &Step,
        name: &str,
        prefix_length: u8,
        observed: &Observed,
    ) -> Result<(), ProvisionError> {
        let wanted = RangeRequest {
            id: name.to_owned(),
            network: path_of(&observed.subnetwork.network),
            prefix_length,
            within: self.within.clone(),
            excluded: self.excluded.clone(),
        };
        let request = RequestId::random();
        let reserved = self.cloud.reserve_range(&wanted, &request).await;
        reserved.map(drop).map_err(|error| match error {
            CloudError::Refused(why) => ProvisionError::NoRoom {
                prefix_length,
                within: self.within.join(", "),
                why,
            },
            error => cloud(step.to_string(), CREATE_RANGE, error),
        })
    }

    async fn set_ranges(
        &self,
        step: &Step,
        observed: &Observed,
        ranges: &[SecondaryRange],
    ) -> Result<(), ProvisionError> {
        let failed = |error| cloud(step.to_string(), PATCH_SUBNET, error);
        let request = RequestId::random();
        let begun = self
            .cloud
            .set_secondary_ranges(&observed.subnetwork, ranges, &request)
            .await;
        self.cloud
            .wait(&begun.map_err(failed)?)
            .await
            .map_err(failed)
    }

    /// The object with the pool's range; entries, labels and annotations stay.
    fn object(&self, mut object: Value, block: &Block) -> Result<Value, ProvisionError> {
        object["apiVersion"] = json!(format!("{}/{}", pool::GROUP, pool::VERSION));
        object["kind"] = json!("IPPool");
        object["spec"]["cidr"] = json!(block.to_string());
        object["spec"]["subnet"] = json!(self.wanted.subnet);
        // Empty: the primary range. An absent one would become the definition's default.
        object["spec"]["secondaryRangeName"] = match &self.wanted.method {
            Method::Secondary { range, .. } => json!(range),
            Method::Static { .. } => json!(""),
        };
        let read = pool::decode(&object).map_err(|error| self.unreadable(error))?;
        if let Some(finding) = read.findings.iter().find(|finding| finding.stops_writes()) {
            return Err(self.unreadable(finding));
        }
        Ok(pool::encode(&object, read.cidr, &read.pool))
    }

    fn pool_error(&self, error: PoolsError) -> ProvisionError {
        let name = self.wanted.pool.clone();
        ProvisionError::Pool { name, error }
    }

    fn unreadable(&self, error: impl std::fmt::Display) -> ProvisionError {
        ProvisionError::Unreadable {
            name: self.wanted.pool.clone(),
            why: error.to_string(),
        }
    }
}

fn cloud(what: String, needs: &'static str, error: CloudError) -> ProvisionError {
    ProvisionError::Cloud { what, needs, error }
}

/// `projects/…` of a resource's URL.
fn path_of(url: &str) -> String {
    url.find("projects/")
        .and_then(|at| url.get(at..))
        .unwrap_or(url)
        .to_owned()
}
