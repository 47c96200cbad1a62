//! Static addresses: `addresses`, `IP=` and `GATEWAY=` in CNI_ARGS, and those that the runtime requests
//! (`runtimeConfig.ips`, `args.cni.ips`).
//!
//! The first two come after those of the ranges, as in whereabouts. An address that the runtime requests replaces the
//! choice of the range that contains it: a pod that requests 10.0.0.7 gets 10.0.0.7, and not another address besides.

use berth_cni::fields::{Fields, Path};
use berth_cni::{Args, NetConf, Version};
use berth_core::{Address, Family, Prefix};

use super::ranges::address;
use super::source::Source;
use super::{ConfigError, PodNetwork};

/// An address that is used as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticAddress {
    pub address: Address,
    /// The network that the result reports with it.
    pub network: Prefix,
    pub gateway: Option<Address>,
}

pub(super) fn read(source: &Source<'_>) -> Result<Vec<StaticAddress>, ConfigError> {
    let list = Path::Root("addresses");
    let mut addresses = Vec::new();
    for (index, item) in source.list("addresses")?.iter().enumerate() {
        let path = Path::Index(&list, index);
        let fields = Fields::of(&path, item)?;
        let field = format!("addresses[{index}].address");
        let mut one = cidr(&field, &fields.text_or_empty("address")?)?;
        let field = format!("addresses[{index}].gateway");
        one.gateway = address(&field, &fields.text_or_empty("gateway")?)?;
        addresses.push(one);
    }
    Ok(addresses)
}

/// Adds the requests of this call to the network's addresses.
pub(super) fn add_requested(
    network: &mut PodNetwork,
    conf: &NetConf,
    args: &Args,
) -> Result<(), ConfigError> {
    for text in &args.ip {
        add_static(network, requested("CNI_ARGS IP", text, network)?);
    }
    for text in &args.gateway {
        let Some(gateway) = address("CNI_ARGS GATEWAY", text)? else {
            continue;
        };
        for one in &mut network.addresses {
            if one.network.contains(gateway) {
                one.gateway = Some(gateway);
            }
        }
    }
    refuse_what_the_form_cannot_carry(network, conf.version)?;
    for (field, text) in asked_by_runtime(conf) {
        add_named(network, requested(field, text, network)?);
    }
    Ok(())
}

/// The same for a release: invalid requests are left out, and gateways do not matter.
pub(super) fn add_readable(network: &mut PodNetwork, conf: &NetConf, args: &Args) {
    for text in &args.ip {
        if let Ok(one) = requested("CNI_ARGS IP", text, network) {
            add_static(network, one);
        }
    }
    for (field, text) in asked_by_runtime(conf) {
        if let Ok(one) = requested(field, text, network) {
            add_named(network, one);
        }
    }
}

/// The addresses that the runtime requests, with their field.
fn asked_by_runtime(conf: &NetConf) -> impl Iterator<Item = (&'static str, &String)> {
    let of_runtime = conf.runtime_ips.iter();
    let of_runtime = of_runtime.map(|text| ("runtimeConfig.ips", text));
    of_runtime.chain(conf.arg_ips.iter().map(|text| ("args.cni.ips", text)))
}

/// A duplicate is left out: it would be refused, because the pod itself has the address.
fn add_static(network: &mut PodNetwork, one: StaticAddress) {
    let known = |other: &StaticAddress| other.address == one.address;
    if !network.addresses.iter().any(known) {
        network.addresses.push(one);
    }
}

/// Replaces the choice of the range that contains it.
fn add_named(network: &mut PodNetwork, one: StaticAddress) {
    let named_already = |range: &super::RangeConfig| range.wanted == Some(one.address);
    if network.ranges.iter().any(named_already) {
        return;
    }
    let home = network
        .ranges
        .iter_mut()
        .find(|range| range.wanted.is_none() && range.spec.prefix.contains(one.address));
    match home {
        Some(range) => {
            range.wanted = Some(one.address);
            // Multus passes a selection's `ips` a second time, as `IP=`.
            network
                .addresses
                .retain(|other| other.address != one.address);
        }
        None => add_static(network, one),
    }
}

/// An address with its length, or one of a configured range, which then has the range's length and gateway.
fn requested(field: &str, text: &str, network: &PodNetwork) -> Result<StaticAddress, ConfigError> {
    if text.contains('/') {
        return cidr(field, text);
    }
    let bare = Address::parse_lenient(text);
    let home = bare.and_then(|bare| {
        let range = network
            .ranges
            .iter()
            .find(|range| range.spec.prefix.contains(bare))?;
        Some(StaticAddress {
            address: bare,
            network: range.spec.prefix,
            gateway: range.gateway,
        })
    });
    home.ok_or_else(|| ConfigError::Value {
        field: field.to_owned(),
        value: text.to_owned(),
        expected: "an address with its prefix length, or one of the configured ranges",
    })
}

fn cidr(field: &str, text: &str) -> Result<StaticAddress, ConfigError> {
    let parse = || {
        let network = Prefix::parse_lenient("address", text).ok()?;
        let address = Address::parse_lenient(text.split('/').next()?)?;
        Some(StaticAddress {
            address,
            network,
            gateway: None,
        })
    };
    parse().ok_or_else(|| ConfigError::Value {
        field: field.to_owned(),
        value: text.to_owned(),
        expected: "an address with its prefix length, such as 10.0.0.7/24",
    })
}

/// Up to 0.2.0 a result has room for one address of each family.
fn refuse_what_the_form_cannot_carry(
    network: &PodNetwork,
    version: Version,
) -> Result<(), ConfigError> {
    let count = |family: Family| {
        let of_family = |one: &&StaticAddress| one.address.family() == family;
        network.addresses.iter().filter(of_family).count()
    };
    if version <= Version::V0_2_0 && (count(Family::V4) > 1 || count(Family::V6) > 1) {
        return Err(ConfigError::TooManyAddresses {
            version: version.to_string(),
        });
    }
    Ok(())
}
