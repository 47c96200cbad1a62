//! What the networks of a cluster want of their pools: read from the NetworkAttachmentDefinitions.
//!
//! A pool's object does not say which network it is of. A network whose configuration lies on the nodes' disks, or
//! can't be read, is not known here: its pools get no repair and no rest, and are collected all the same.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_cni::conf::LONGEST_CONFIGURATION;
use berth_core::{Address, Space};
use berth_ledger::PoolKey;
use serde::Deserialize;

use super::witness::{Blind, Witness};
use crate::config::PodNetwork;
use crate::definitions;
use crate::layout::Layout;
use crate::policy::{Policies, Policy};
use crate::sticky::Wishes;

/// What is to be minded when an entry of a pool is freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolTerms {
    /// The network's name, for people.
    pub network: String,
    /// The names that claims may call the network by: its definition's, and that of its configuration; each with
    /// the definition's namespace.
    pub names: BTreeSet<(String, String)>,
    pub pool: Option<PoolKey>,
    /// Every entry is to have a reservation.
    pub overlap_checks: bool,
    /// How long a freed address rests (I10).
    pub cooldown: Duration,
    /// Which addresses outlive their pods.
    pub wishes: Wishes,
    /// What the pool's networks may allocate of it.
    pub usable: Option<Arc<Space>>,
}

impl PoolTerms {
    /// What the pool's networks are called.
    pub fn called(&self) -> Vec<&str> {
        self.names.iter().map(|(_, name)| name.as_str()).collect()
    }
}

/// Terms by the pool's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms(BTreeMap<String, PoolTerms>);

impl Terms {
    pub fn of(&self, pool: &str) -> Option<&PoolTerms> {
        self.0.get(pool)
    }

    pub fn pools(&self) -> impl Iterator<Item = &PoolTerms> {
        self.0.values()
    }

    pub fn overlap_checked(&self) -> HashSet<String> {
        let checked = self.0.iter().filter(|(_, terms)| terms.overlap_checks);
        checked.map(|(pool, _)| pool.clone()).collect()
    }

    /// Takes in one definition; what is no network of ours, or can't be read, changes nothing.
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

    /// Takes in the network of the definition `name`.
    pub fn add_network(&mut self, namespace: &str, name: &str, network: &PodNetwork) {
        for pool in Layout::of(network).pools {
            let terms = self.0.entry(pool.key.name.clone()).or_default();
            for name in [name, &network.name] {
                terms.names.insert((namespace.to_owned(), name.to_owned()));
            }
            terms.pool = Some(pool.key);
            // Networks may share a pool: the stricter wish holds.
            if terms.network.is_empty() {
                name.clone_into(&mut terms.network);
            }
            terms.overlap_checks |= network.overlap_checks;
            terms.cooldown = terms.cooldown.max(network.settings.cooldown);
            terms.wishes = terms.wishes.or(Wishes::from(&network.settings));
            if let Some(range) = pool.sliced.or(pool.plain) {
                terms.usable = Some(match terms.usable.take() {
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
            .filter(|terms| terms.names.contains(network));
        pools.filter_map(|terms| terms.pool.as_ref()).find(|pool| {
            let range = pool.network;
            range.is_some_and(|range| range.contains(address))
        })
    }
}

const PATH: &str = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";

/// Reads all definitions, a few at a time. A cluster without the kind has none, and whoever may not read them knows none.
/// Those that `policies` does not allow are left out.
pub async fn read_terms(
    witness: &Witness,
    policies: Option<&Policies>,
    flat_places: &[PathBuf],
) -> Result<Terms, Blind> {
    let policy = match policies {
        Some(policies) => policies.read().await.map_err(|why| Blind {
            target: "RangePolicy".to_owned(),
            why,
            code: None,
        })?,
        None => Arc::default(),
    };
    let mut terms = Terms::default();
    let mut token = None;
    loop {
        let (definitions, more) = match witness.large_page::<Definition>(PATH, token).await {
            Ok(page) => page,
            Err(blind) if blind.code == Some(404) => return Ok(terms),
            Err(blind) if blind.code == Some(403) => {
                tracing::warn!(%blind, "networks are unknown: no rest, no reservation is repaired");
                return Ok(terms);
            }
            Err(blind) => return Err(blind),
        };
        let (flat_places, policy) = (flat_places.to_vec(), Arc::clone(&policy));
        let read = move || {
            for definition in definitions {
                terms.add(&definition, &flat_places, &policy);
            }
            terms
        };
        let read = tokio::task::spawn_blocking(read).await;
        terms = read.map_err(|error| Blind {
            target: PATH.to_owned(),
            why: error.to_string(),
            code: None,
        })?;
        match more {
            Some(_) => token = more,
            None => return Ok(terms),
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

    fn mk_terms(configs: &[&str]) -> Terms {
        let mut terms = Terms::default();
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
            terms.add(&definition, &[], &Policy::default());
        }
        terms
    }

    #[test]
    fn a_networks_terms_are_those_of_all_its_pools() {
        let terms = mk_terms(&[
            r#"{"cniVersion":"0.3.1","type":"macvlan","ipam":{"type":"whereabouts","range":"10.0.0.0/24",
                "ipRanges":[{"range":"fd00::/64"}],"network_name":"blue","cooldown_seconds":60}}"#,
            r#"{"cniVersion":"1.0.0","name":"list","plugins":[
                {"type":"bridge","ipam":{"type":"berth","range":"10.1.0.0/24","enable_overlapping_ranges":false}},
                {"type":"tuning"}]}"#,
        ]);
        for pool in ["blue-10.0.0.0-24", "blue-fd00---64"] {
            let blue = terms.of(pool).unwrap();
            assert!(blue.overlap_checks, "whereabouts' default");
            assert_eq!(blue.cooldown, Duration::from_secs(60));
            assert_eq!(blue.network, "net-0");
        }
        let list = terms.of("10.1.0.0-24").unwrap();
        assert!(!list.overlap_checks);
        assert_eq!(terms.overlap_checked().len(), 2);
    }

    #[test]
    fn what_can_not_be_read_or_is_not_ours_has_no_terms() {
        let terms = mk_terms(&[
            "",
            "{",
            "[]",
            r#"{"cniVersion":"0.3.1","type":"macvlan"}"#,
            r#"{"cniVersion":"0.3.1","type":"macvlan","ipam":{"type":"host-local","range":"10.0.0.0/24"}}"#,
            r#"{"cniVersion":"0.3.1","type":"macvlan","ipam":{"type":"whereabouts","range":"nonsense"}}"#,
        ]);
        assert_eq!(terms, Terms::default());
    }
}
