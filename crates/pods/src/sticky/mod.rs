//! Addresses that outlive their pod: those of a StatefulSet's pods, by name, and those that an IPAMClaim records.
//!
//! Nothing special is stored for them: the pool's entry stays, under the name of the last pod, and the next one takes it
//! over. So whereabouts, which knows neither, sees an entry like any other. What is special is who asks before freeing:
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
use crate::garbage::facts::PodRef;
use crate::garbage::witness::{Blind, Witness};

/// Asks the API server who keeps an address.
#[derive(Clone)]
pub struct Sticky {
    client: Client,
    pub(crate) witness: Witness,
    timeout: Duration,
}

impl fmt::Debug for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sticky").finish_non_exhaustive()
    }
}

/// What a network wants kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub statefulsets: bool,
    pub claims: bool,
}

impl Wishes {
    pub fn any(self) -> bool {
        self.statefulsets || self.claims
    }

    #[must_use]
    pub fn or(self, other: Wishes) -> Wishes {
        Wishes {
            statefulsets: self.statefulsets || other.statefulsets,
            claims: self.claims || other.claims,
        }
    }
}

impl From<&Settings> for Wishes {
    fn from(settings: &Settings) -> Wishes {
        Wishes {
            statefulsets: settings.sticky_statefulset,
            claims: settings.persistent_ips,
        }
    }
}

impl Sticky {
    pub fn new(client: Client, timeout: Duration) -> Sticky {
        Sticky {
            witness: Witness::new(client.clone(), timeout),
            client,
            timeout,
        }
    }

    /// Whether the address stays with the pod's name although the pod may be gone. `names` are those of the network
    /// that the pod has it in.
    pub async fn keeps(
        &self,
        wishes: Wishes,
        names: &[&str],
        pod: &PodRef,
        address: Address,
    ) -> Result<bool, Blind> {
        if wishes.statefulsets && self.set_wants(pod).await? {
            return Ok(true);
        }
        if !wishes.claims {
            return Ok(false);
        }
        let claims = self.list(&claim::path(&pod.namespace)).await?;
        Ok(claims
            .iter()
            .any(|claim| claim.keeps(names, &pod.name, address)))
    }

    /// Whether a StatefulSet will make the pod again.
    pub async fn set_wants(&self, pod: &PodRef) -> Result<bool, Blind> {
        let Some((set, ordinal)) = set::parse(&pod.name) else {
            return Ok(false);
        };
        let path = format!("/apis/apps/v1/namespaces/{}/statefulsets", pod.namespace);
        let found: Option<StatefulSet> = self.witness.get(&path, "statefulsets", set).await?;
        Ok(found.is_some_and(|set| set.wants(ordinal)))
    }

    /// The claims of all namespaces.
    pub async fn all_claims(&self) -> Result<Vec<Claim>, Blind> {
        self.list(claim::ALL).await
    }

    /// A cluster without the kind has none.
    async fn list(&self, path: &str) -> Result<Vec<Claim>, Blind> {
        let mut claims = Vec::new();
        let keep = |claim: Claim| claims.push(claim);
        let listed = self.witness.reduce(path, ListParams::default(), keep);
        match listed.await {
            Err(blind) if blind.code == Some(404) => Ok(Vec::new()),
            listed => listed.map(|()| claims),
        }
    }
}
