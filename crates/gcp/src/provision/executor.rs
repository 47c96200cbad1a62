//! Carries a plan out: observe, plan, one step, until nothing is left.
//!
//! Guarantees: idempotent and resumable, because every run plans from what it observes; a dry run changes nothing; everything
//! that is not Berth's (other ranges, labels and annotations of the IPPool) stays as it is.

use serde_json::{Value, json};
use thiserror::Error;

use super::plan::{Observed, PoolObserved, Refusal, Step, Wanted, plan, plan_undo};
use crate::cloud::{Cloud, CloudError, RangeRequest, RequestId, SecondaryRange};
use crate::pool;

/// The IPPool objects of the cluster.
pub trait Pools: Sync {
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Value>, String>> + Send;
    fn create(&self, object: &Value) -> impl Future<Output = Result<(), String>> + Send;
    /// Replaces exactly the version that was read.
    fn replace(&self, object: &Value) -> impl Future<Output = Result<(), String>> + Send;
    /// Deletes exactly the version that was read.
    fn delete(&self, object: &Value) -> impl Future<Output = Result<(), String>> + Send;
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
    #[error("{what}: {error}")]
    Cloud { what: String, error: CloudError },
    #[error("IPPool {name}: {why}")]
    Pool { name: String, why: String },
    #[error("it is still not done after {0} steps: something else undoes them")]
    Endless(usize),
}

/// Provisions one subnet.
#[derive(Debug)]
pub struct Provisioner<P> {
    pub cloud: Cloud,
    pub pools: P,
    pub region: String,
    pub subnetwork: String,
    pub wanted: Wanted,
    /// Where Google may choose the range from, and what it must leave out.
    pub within: Vec<String>,
    pub excluded: Vec<String>,
}

/// More steps than any plan has, stale fingerprints included.
const MOST_STEPS: usize = 20;

impl<P: Pools> Provisioner<P> {
    /// What is left to do. Later steps depend on what Google chooses, so a fresh project shows the first one only.
    pub async fn steps(&self, direction: Direction) -> Result<Vec<Step>, ProvisionError> {
        let (observed, _) = self.observe().await?;
        self.plan(direction, &observed)
    }

    /// Does what is left, and reports each step when it is done.
    pub async fn run(
        &self,
        direction: Direction,
        mut done: impl FnMut(&Step),
    ) -> Result<(), ProvisionError> {
        for _ in 0..MOST_STEPS {
            let (observed, object) = self.observe().await?;
            let steps = self.plan(direction, &observed)?;
            let Some(step) = steps.first() else {
                return Ok(());
            };
            match self.carry_out(step, &observed, object).await {
                Ok(()) => done(step),
                // Somebody changed the subnet since it was read: the next round reads it again.
                Err(ProvisionError::Cloud {
                    error: CloudError::Stale(_),
                    ..
                }) => {}
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
        let range = &self.wanted.range;
        let internal_range = match self.cloud.internal_range(range).await {
            Ok(found) => Some(found),
            Err(CloudError::NotFound(_)) => None,
            Err(error) => return Err(cloud(format!("internal range {range}"), error)),
        };
        let subnetwork = self.cloud.subnetwork(&self.region, &self.subnetwork).await;
        let subnetwork =
            subnetwork.map_err(|error| cloud(format!("subnetwork {}", self.subnetwork), error))?;
        let object = self
            .pools
            .get(&self.wanted.pool)
            .await
            .map_err(|why| self.pool_error(why))?;
        let pool = object
            .as_ref()
            .map(|object| self.read(object))
            .transpose()?;
        let observed = Observed {
            internal_range,
            subnetwork,
            pool,
        };
        Ok((observed, object))
    }

    fn read(&self, object: &Value) -> Result<PoolObserved, ProvisionError> {
        let found = pool::decode(object).map_err(|error| self.pool_error(error.to_string()))?;
        Ok(PoolObserved {
            cidr: found.cidr.to_string(),
            subnet: found.subnet,
            range: found.range,
            // A stray may be a pod's too.
            allocations: found.pool.len() + found.pool.strays().len(),
        })
    }

    async fn carry_out(
        &self,
        step: &Step,
        observed: &Observed,
        object: Option<Value>,
    ) -> Result<(), ProvisionError> {
        let failed = |error| cloud(step.to_string(), error);
        let request = RequestId::random();
        match step {
            Step::ReserveInternalRange {
                name,
                prefix_length,
            } => {
                let wanted = RangeRequest {
                    id: name.clone(),
                    network: path_of(&observed.subnetwork.network),
                    prefix_length: *prefix_length,
                    within: self.within.clone(),
                    excluded: self.excluded.clone(),
                };
                self.cloud
                    .reserve_range(&wanted, &request)
                    .await
                    .map(drop)
                    .map_err(failed)
            }
            Step::AddSecondaryRange { range } => {
                let mut ranges = observed.subnetwork.secondary.clone();
                ranges.push(range.clone());
                self.set_ranges(step, observed, &ranges).await
            }
            Step::RemoveSecondaryRange { name } => {
                let mut ranges = observed.subnetwork.secondary.clone();
                ranges.retain(|range| range.name != *name);
                self.set_ranges(step, observed, &ranges).await
            }
            Step::ReleaseInternalRange { name } => self
                .cloud
                .release_range(name, &request)
                .await
                .map_err(failed),
            Step::CreatePool { cidr } => {
                let object = self.object(json!({ "metadata": { "name": self.wanted.pool } }), cidr);
                let object = object.map_err(|why| self.pool_error(why))?;
                self.pools
                    .create(&object)
                    .await
                    .map_err(|why| self.pool_error(why))
            }
            Step::UpdatePool { cidr } => {
                let object = self.object(object.unwrap_or_default(), cidr);
                let object = object.map_err(|why| self.pool_error(why))?;
                self.pools
                    .replace(&object)
                    .await
                    .map_err(|why| self.pool_error(why))
            }
            Step::DeletePool => {
                let object = object.unwrap_or_default();
                self.pools
                    .delete(&object)
                    .await
                    .map_err(|why| self.pool_error(why))
            }
        }
    }

    async fn set_ranges(
        &self,
        step: &Step,
        observed: &Observed,
        ranges: &[SecondaryRange],
    ) -> Result<(), ProvisionError> {
        let failed = |error| cloud(step.to_string(), error);
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
    fn object(&self, mut object: Value, cidr: &str) -> Result<Value, String> {
        object["apiVersion"] = json!(format!("{}/{}", pool::GROUP, pool::VERSION));
        object["kind"] = json!("IPPool");
        object["spec"]["cidr"] = json!(cidr);
        object["spec"]["subnet"] = json!(self.wanted.subnet);
        object["spec"]["secondaryRangeName"] = json!(self.wanted.range);
        let read = pool::decode(&object).map_err(|error| error.to_string())?;
        Ok(pool::encode(&object, read.cidr, &read.pool))
    }

    fn pool_error(&self, why: String) -> ProvisionError {
        let name = self.wanted.pool.clone();
        ProvisionError::Pool { name, why }
    }
}

fn cloud(what: String, error: CloudError) -> ProvisionError {
    ProvisionError::Cloud { what, error }
}

/// `projects/…` of a resource's URL.
fn path_of(url: &str) -> String {
    url.find("projects/")
        .and_then(|at| url.get(at..))
        .unwrap_or(url)
        .to_owned()
}
