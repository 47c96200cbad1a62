//! Addresses that outlive their pod: those of a StatefulSet's pods, by name, and those that an IPAMClaim records.
//!
//! Nothing special is stored for them: the pool's entry stays, under the name of the last pod, and the next one takes it
//! over. So whereabouts, which knows neither, sees an entry like any other. What differs is that these ask before they release:
//! DEL, CNI GC and the collector.
//!
//! | kind | while | switched on by |
//! |---|---|---|
//! | StatefulSet | the set exists, is not being deleted, and its replicas include the pod's ordinal | `sticky_statefulset` |
//! | IPAMClaim | the claim exists, is of the network, and its status has the address | `allowPersistentIPs` |

mod adoption;
mod claim;
mod set;

use std::fmt;
use std::time::Duration;

use berth_core::Address;
use kube::Client;
use kube::api::ListParams;

pub use adoption::{Adoption, adopt, settle};
pub use claim::Claim;
pub use set::StatefulSet;

use crate::config::Settings;
use berth_collector::observed::PodRef;
use berth_collector::{QuorumReader, ReadError};

/// Asks the API server whether an address is kept.
#[derive(Clone)]
pub struct Sticky {
    client: Client,
    pub(crate) reader: QuorumReader,
    timeout: Duration,
}

impl fmt::Debug for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sticky").finish_non_exhaustive()
    }
}

/// Which addresses of a network outlive their pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    pub statefulsets: bool,
    pub claims: bool,
}

impl Retention {
    pub fn any(self) -> bool {
        self.statefulsets || self.claims
    }

    #[must_use]
    pub fn or(self, other: Retention) -> Retention {
        Retention {
            statefulsets: self.statefulsets || other.statefulsets,
            claims: self.claims || other.claims,
        }
    }
}

impl From<&Settings> for Retention {
    fn from(settings: &Settings) -> Retention {
        Retention {
            statefulsets: settings.sticky_statefulset,
            claims: settings.persistent_ips,
        }
    }
}

impl Sticky {
    pub fn new(client: Client, timeout: Duration) -> Sticky {
        Sticky {
            reader: QuorumReader::new(client.clone(), timeout),
            client,
            timeout,
        }
    }

    /// Whether the address stays with the pod's name although the pod may be gone. `names` are those of the network
    /// that the pod has it in.
    pub async fn keeps(
        &self,
        retention: Retention,
        names: &[&str],
        pod: &PodRef,
        address: Address,
    ) -> Result<bool, ReadError> {
        if retention.statefulsets && self.set_wants(pod).await? {
            return Ok(true);
        }
        if !retention.claims {
            return Ok(false);
        }
        let claims = self.list(&claim::path(&pod.namespace)).await?;
        Ok(claims
            .iter()
            .any(|claim| claim.keeps(names, &pod.name, address)))
    }

    /// Whether a StatefulSet will create the pod again.
    pub async fn set_wants(&self, pod: &PodRef) -> Result<bool, ReadError> {
        let Some((set, ordinal)) = set::parse(&pod.name) else {
            return Ok(false);
        };
        let path = format!("/apis/apps/v1/namespaces/{}/statefulsets", pod.namespace);
        let found: Option<StatefulSet> = self.reader.get(&path, "statefulsets", set).await?;
        Ok(found.is_some_and(|set| set.wants(ordinal)))
    }

    /// The claims of all namespaces.
    pub async fn all_claims(&self) -> Result<Vec<Claim>, ReadError> {
        self.list(claim::ALL).await
    }

    /// A cluster without the kind has none.
    async fn list(&self, path: &str) -> Result<Vec<Claim>, ReadError> {
        let mut claims = Vec::new();
        let keep = |claim: Claim| claims.push(claim);
        let listed = self.reader.reduce(path, ListParams::default(), keep);
        match listed.await {
            Err(error) if error.code == Some(404) => Ok(Vec::new()),
            listed => listed.map(|()| claims),
        }
    }
}
