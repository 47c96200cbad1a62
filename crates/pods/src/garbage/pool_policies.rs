//! What the networks of a cluster want of their pools: read from the NetworkAttachmentDefinitions.
//!
//! A pool's object does not say which network it is of. A network whose configuration is on the nodes' disks, or
//! can't be read, is not known here: its pools get no repair and no cooldown, and are collected all the same.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_cni::conf::LONGEST_CONFIGURATION;
use berth_collector::{QuorumReader, ReadError};
use berth_core::{Address, Space};
use berth_kube::Selection;
use berth_ledger::PoolKey;
use serde::Deserialize;

use crate::config::PodNetwork;
use crate::layout::Layout;
use crate::sticky::Retention;
use berth_networks::definitions::{self, DEFINITIONS};
use berth_networks::range_policy::{Policies, Policy};

/// What the networks of one pool want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolPolicy {
    /// The network's name, for Events.
    pub network: String,
    /// The names that claims may call the network by: its definition's, and that of its configuration; each with
    /// the definition's namespace.
    pub names: BTreeSet<(String, String)>,
    pub pool: Option<PoolKey>,
    /// Every entry is to have a reservation.
    pub overlap_checks: bool,
    /// How long a released address cools down (I10).
    pub cooldown: Duration,
    /// Which addresses outlive their pods.
    pub retention: Retention,
    /// What the pool's networks may allocate of it.
    pub usable: Option<Arc<Space>>,
}

impl PoolPolicy {
    /// What the pool's networks are called.
    pub fn called(&self) -> Vec<&str> {
        self.names.iter().map(|(_, name)| name.as_str()).collect()
    }
}

/// The policies of pools, by the pool's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolPolicies(BTreeMap<String, PoolPolicy>);

impl PoolPolicies {
    pub fn of(&self, pool: &str) -> Option<&PoolPolicy> {
        self.0.get(pool)
    }

    pub fn pools(&self) -> impl Iterator<Item = &PoolPolicy> {
        self.0.values()
    }

    pub fn overlap_checked(&self) -> HashSet<String> {
        let checked = self.0.iter().filter(|(_, policy)| policy.overlap_checks);
        checked.map(|(pool, _)| pool.clone()).collect()
    }

    /// Adds one definition; what is no network of ours, or can't be read, changes nothing.
    fn add(&mut self, definition: &Definition, flat_places: &[PathBuf], policy: &Policy) {
        let Definition { metadata, spec } = definition;
        let defined = definitions::read(&metadata.name, &spec.config, flat_places);
        let networks = defined.networks.into_iter();
        for network in networks.filter_map(|defined| defined.network.ok()) {
            // A definition that may not use the range has no say in how its addresses cool down.
            if policy.allow(&metadata.namespace, &network).is_err() {
                continue;
            }
            self.add_network(&metadata.namespace, &metadata.name, &network);
        }
    }

    /// Adds the network of the definition `name`.
    pub fn add_network(&mut self, namespace: &str, name: &str, network: &PodNetwork) {
        for pool in Layout::of(network).pools {
            let policy = self.0.entry(pool.key.name.clone()).or_default();
            for name in [name, &network.name] {
                policy.names.insert((namespace.to_owned(), name.to_owned()));
            }
            policy.pool = Some(pool.key);
            // Networks may share a pool: the stricter setting applies.
            if policy.network.is_empty() {
                name.clone_into(&mut policy.network);
            }
            policy.overlap_checks |= network.overlap_checks;
            policy.cooldown = policy.cooldown.max(network.settings.cooldown);
            policy.retention = policy.retention.or(Retention::from(&network.settings));
            if let Some(range) = pool.sliced.or(pool.plain) {
                policy.usable = Some(match policy.usable.take() {
                    Some(all) if !all.covers(&range.usable) => Arc::new(all.joined(&range.usable)),
                    Some(all) => all,
                    None => Arc::clone(&range.usable),
                });
            }
        }
    }

    /// The pool of a definition's network that an address is of.
    pub fn pool_of(&self, network: &(String, String), address: Address) -> Option<&PoolKey> {
        let pools = self
            .0
            .values()
            .filter(|policy| policy.names.contains(network));
        pools
            .filter_map(|policy| policy.pool.as_ref())
            .find(|pool| {
                let range = pool.network;
                range.is_some_and(|range| range.contains(address))
            })
    }
}

/// Definitions of all namespaces, a few at a time: each may have 1.5 MB, and any user may write one.
const ALL: Selection<'static> = Selection {
    labels: "",
    fields: "",
    page: 16,
    everywhere: true,
    cached: false,
};

/// Reads all definitions, a few at a time. A cluster without the kind has none, and an account that may not read them knows
/// none. Those that `policies` does not allow are left out.
pub async fn read_pool_policies(
    reader: &QuorumReader,
    policies: Option<&Policies>,
    flat_places: &[PathBuf],
) -> Result<PoolPolicies, ReadError> {
    let policy = match policies {
        Some(policies) => {
            let read = policies.read().await;
            read.map_err(|why| ReadError::unusable("RangePolicy", why))?
        }
        None => Arc::default(),
    };
    let mut pool_policies = PoolPolicies::default();
    let mut pages = reader.pages(&DEFINITIONS, &ALL);
    loop {
        let mut definitions = Vec::new();
        let page = pages.next(|definition: Definition| definitions.push(definition));
        let more = match page.await.map_err(ReadError::from) {
            Ok(more) => more,
            Err(error) if error.code == Some(404) => return Ok(pool_policies),
            Err(error) if error.code == Some(403) => {
                tracing::warn!(%error, "network definitions may not be read: released addresses do not cool down, and no reservation is repaired; grant get and list");
                return Ok(pool_policies);
            }
            Err(error) => return Err(error),
        };
        // What is kept of a page is parsed where it may block: it reads the node's flat file.
        let (flat_places, policy) = (flat_places.to_vec(), Arc::clone(&policy));
        let read = move || {
            for definition in definitions {
                pool_policies.add(&definition, &flat_places, &policy);
            }
            pool_policies
        };
        let read = tokio::task::spawn_blocking(read).await;
        pool_policies = read.map_err(|error| ReadError::unusable(DEFINITIONS.name(), error))?;
        if !more {
            return Ok(pool_policies);
        }
    }
}

#[derive(Deserialize)]
struct Definition {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default, deserialize_with = "bounded")]
    config: String,
}

/// What is too long to be a configuration is not kept: only that it is too long.
fn bounded<'de, D: serde::Deserializer<'de>>(source: D) -> Result<String, D::Error> {
    let mut config = String::deserialize(source)?;
    if config.len() > LONGEST_CONFIGURATION {
        config = String::new();
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_policies(configs: &[&str]) -> PoolPolicies {
        let mut pool_policies = PoolPolicies::default();
        for (number, config) in configs.iter().enumerate() {
            let definition = Definition {
                metadata: Metadata {
                    name: format!("net-{number}"),
                    namespace: "default".to_owned(),
                },
                spec: Spec {
                    config: (*config).to_owned(),
                },
            };
            pool_policies.add(&definition, &[], &Policy::default());
        }
        pool_policies
    }

    #[test]
    fn a_networks_policy_applies_to_all_its_pools() {
        let pool_policies = mk_policies(&[
            r#"{"cniVersion":"0.3.1","type":"macvlan","ipam":{"type":"whereabouts","range":"10.0.0.0/24",
                "ipRanges":[{"range":"fd00::/64"}],"network_name":"blue","cooldown_seconds":60}}"#,
            r#"{"cniVersion":"1.0.0","name":"list","plugins":[
                {"type":"bridge","ipam":{"type":"berth","range":"10.1.0.0/24","enable_overlapping_ranges":false}},
                {"type":"tuning"}]}"#,
        ]);
        for pool in ["blue-10.0.0.0-24", "blue-fd00---64"] {
            let blue = pool_policies.of(pool).unwrap();
            assert!(blue.overlap_checks, "whereabouts' default");
            assert_eq!(blue.cooldown, Duration::from_secs(60));
            assert_eq!(blue.network, "net-0");
        }
        let list = pool_policies.of("10.1.0.0-24").unwrap();
        assert!(!list.overlap_checks);
        assert_eq!(pool_policies.overlap_checked().len(), 2);
    }

    #[test]
    fn what_can_not_be_read_or_is_not_ours_has_no_policy() {
        let pool_policies = mk_policies(&[
            "",
            "{",
            "[]",
            r#"{"cniVersion":"0.3.1","type":"macvlan"}"#,
            r#"{"cniVersion":"0.3.1","type":"macvlan","ipam":{"type":"host-local","range":"10.0.0.0/24"}}"#,
            r#"{"cniVersion":"0.3.1","type":"macvlan","ipam":{"type":"whereabouts","range":"nonsense"}}"#,
        ]);
        assert_eq!(pool_policies, PoolPolicies::default());
    }
}
