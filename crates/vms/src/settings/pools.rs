//! Which pools there are and which VMs each has.
//!
//! Guarantees that no VM is in two pools and no two pools share a ConfigMap: either would allocate one
//! VM twice (I1).

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::keys;
use super::layers::{Layers, Origin, SettingsError};
use super::{IpsError, Settings, parse_ips};
use crate::shards::spread;

/// The pool of `VM_POOL_IPS`, and the default of requests that name none.
pub const DEFAULT_POOL: &str = "default";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    pub name: String,
    /// In the order of the settings, each once.
    pub ips: Vec<IpAddr>,
    pub configmap: String,
}

pub(super) fn from_layers(
    layers: &Layers,
    max_range: u32,
    configmap: &str,
    configmap_count: u32,
) -> Result<Vec<PoolSettings>, SettingsError> {
    let mut pools = Vec::new();
    let parse = |text: &str| parse_ips(text, max_range).map_err(|error| error.to_string());
    if let Some(ips) = layers.parse(keys::VM_POOL_IPS, parse)? {
        pools.push(PoolSettings {
            name: DEFAULT_POOL.into(),
            ips,
            configmap: configmap.into(),
        });
    }
    let origin = || Origin::File(layers.file.clone().unwrap_or_default());
    for listed in &layers.pools {
        let wrong = |why: String| SettingsError::Value {
            origin: origin(),
            name: format!("pool {:?}", listed.name),
            why,
        };
        check_name(&listed.name).map_err(wrong)?;
        let named = listed.configmap.clone();
        pools.push(PoolSettings {
            name: listed.name.clone(),
            ips: parse(&listed.ips).map_err(wrong)?,
            configmap: named.unwrap_or_else(|| configmap_of(configmap, &listed.name)),
        });
    }
    check_apart(&pools).map_err(SettingsError::Together)?;
    let pools = spread(pools, configmap_count);
    check_apart(&pools).map_err(SettingsError::Together)?;
    Ok(pools)
}

/// A pool of the ConfigMap that lists pools: the key is its name, the value its VMs.
pub(crate) fn pool_from_configmap(
    settings: &Settings,
    name: &str,
    ips: &str,
) -> Result<Vec<PoolSettings>, String> {
    let in_pool = |why: String| format!("pool {name:?}: {why}");
    check_name(name).map_err(in_pool)?;
    // An empty list, unlike in the settings, is intended: the pool is being emptied.
    let ips = match parse_ips(ips, settings.max_range_ips) {
        Err(IpsError::Empty) => Vec::new(),
        parsed => parsed.map_err(|error| in_pool(error.to_string()))?,
    };
    let pool = PoolSettings {
        name: name.into(),
        ips,
        configmap: configmap_of(&settings.configmap, name),
    };
    Ok(spread(vec![pool], settings.configmap_count))
}

/// The state's ConfigMap of a pool that does not name one.
fn configmap_of(configmap: &str, pool: &str) -> String {
    if pool == DEFAULT_POOL {
        configmap.into()
    } else {
        format!("{configmap}-{pool}")
    }
}

/// A pool's name is part of a ConfigMap's, of metrics and of URLs.
fn check_name(name: &str) -> Result<(), String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edge = |c: Option<char>| c.is_some_and(|c| c != '-');
    let fits = (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && edge(name.chars().next())
        && edge(name.chars().last());
    if fits {
        return Ok(());
    }
    Err(
        "a pool's name has up to 63 lower-case letters, digits and dashes, and no dash at its ends"
            .into(),
    )
}

/// No name, no ConfigMap and no VM twice.
pub(crate) fn check_apart(pools: &[PoolSettings]) -> Result<(), String> {
    let mut configmaps: BTreeMap<&str, &str> = BTreeMap::new();
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut vms: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for pool in pools {
        if names.insert(&pool.name, &pool.name).is_some() {
            return Err(format!("there are two pools {:?}", pool.name));
        }
        if let Some(other) = configmaps.insert(&pool.configmap, &pool.name) {
            return Err(format!(
                "pools {other:?} and {:?} share the ConfigMap {:?}: set one for each",
                pool.name, pool.configmap
            ));
        }
        for ip in &pool.ips {
            if let Some(other) = vms.insert(*ip, &pool.name) {
                return Err(format!(
                    "{ip} is in pool {other:?} and in pool {:?}: it would be allocated twice",
                    pool.name
                ));
            }
        }
    }
    Ok(())
}
