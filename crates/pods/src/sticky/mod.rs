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

use berth_core::Address;
use berth_kube::{Connection, ObjectClient, Place, Resource, Selection};

pub use adoption::{Adoption, adopt, settle};
pub use claim::Claim;
pub use set::StatefulSet;

use crate::config::Settings;
use berth_collector::observed::PodRef;
use berth_collector::{QuorumReader, ReadError};
use claim::IPAM_CLAIMS;

const STATEFUL_SETS: Resource = Resource {
    group: "apps",
    version: "v1",
    plural: "statefulsets",
    kind: "StatefulSet",
    place: Place::Namespaced,
};

/// Asks the API server whether an address is kept.
#[derive(Clone, Debug)]
pub struct Sticky {
    pub(crate) reader: QuorumReader,
    /// Writes the status of claims.
    objects: ObjectClient,
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
    pub fn new(connection: &Connection) -> Sticky {
        Sticky {
            reader: QuorumReader::new(connection),
            objects: ObjectClient::new(connection),
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
        let mut kept = false;
        let of_namespace = Selection::default();
        let look = |claim: Claim| kept |= claim.keeps(names, &pod.name, address);
        self.visit_claims(&pod.namespace, &of_namespace, look)
            .await?;
        Ok(kept)
    }

    /// Whether a StatefulSet will create the pod again.
    pub async fn set_wants(&self, pod: &PodRef) -> Result<bool, ReadError> {
        let Some((set, ordinal)) = set::parse(&pod.name) else {
            return Ok(false);
        };
        let read = self.reader.get(&STATEFUL_SETS, &pod.namespace, set);
        let found: Option<StatefulSet> = read.await?;
        Ok(found.is_some_and(|set| set.wants(ordinal)))
    }

    /// Shows the claims of all namespaces to `visit`.
    pub async fn all_claims(&self, visit: impl FnMut(Claim)) -> Result<(), ReadError> {
        let all = Selection {
            everywhere: true,
            ..Selection::default()
        };
        self.visit_claims("", &all, visit).await
    }

    /// A cluster without the kind has none.
    async fn visit_claims(
        &self,
        namespace: &str,
        selection: &Selection<'_>,
        visit: impl FnMut(Claim),
    ) -> Result<(), ReadError> {
        let listed = self.reader.list(&IPAM_CLAIMS, namespace, selection, visit);
        match listed.await {
            Err(error) if error.code == Some(404) => Ok(()),
            listed => listed,
        }
    }
}
