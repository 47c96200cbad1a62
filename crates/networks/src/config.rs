//! The `ipam` object: whereabouts' configuration, key for key, and Berth's own settings beside it.
//!
//! Guarantees: a configuration that works with whereabouts works here and means the same; a typing error that
//! whereabouts ignores is ignored here too, and returned as a warning. Pure except [`flat`], which reads the node's
//! files: a network definition is untrusted input, and which of the node's files it may name is decided there. Where
//! pools are kept is decided elsewhere.

pub mod flat;
pub mod keys;
mod outcome;
mod ranges;
mod settings;
mod source;
mod statics;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use berth_cni::fields::FieldError;
use berth_cni::ids::{NETWORK_NAME_MAX, shown};
use berth_cni::result::{Dns, Route};
use berth_cni::{Args, CniError, Code, NetConf};
use berth_core::{Address, RangeError, RangeSpec, Space, Warning};

pub use flat::{FlatFile, Found, NamedPaths, NodeFiles};
pub use settings::{Compatible, Settings};
pub use statics::StaticAddress;

use source::Source;

/// The maximum number of addresses of one interface: each costs a write, and each range the reads of a pool.
const MOST_ADDRESSES: usize = 64;

/// One network as a pod's interface joins it: where its addresses come from and what the result reports with them.
#[derive(Debug, Clone)]
pub struct PodNetwork {
    /// The CNI configuration's `name`.
    pub name: String,
    /// `network_name`: separates pools and reservations from those of other networks.
    pub network_name: String,
    /// One address is allocated from each.
    pub ranges: Vec<RangeConfig>,
    /// Used as they are, after those of the ranges.
    pub addresses: Vec<StaticAddress>,
    pub routes: Vec<Route>,
    pub dns: Dns,
    /// Whether an address must be free in every pool of the cluster whose range overlaps.
    pub overlap_checks: bool,
    /// The prefix length of a node's slice; none for a range that all nodes share.
    pub node_slice_size: Option<u8>,
    /// `fast_ipam`: a node may claim slices by itself. Without a size, such a network is a plain range for a version
    /// that does not know slices.
    pub fast_ipam: bool,
    /// Of the node's own configuration, or of a definition that may name it: [`NodeFiles`].
    pub kubeconfig: Option<PathBuf>,
    /// The host's interface under the container's one; empty if the configuration names none.
    pub link: String,
    pub settings: Settings,
    pub compatible: Compatible,
    /// Errors that were ignored, for the log.
    pub warnings: Vec<Warning>,
    /// Unknown keys, for the log.
    pub unknown_keys: Vec<Warning>,
    /// Why no address is allocated although everything could be read. These do not stop a DEL.
    pub faults: Vec<CniError>,
}

/// A range from which one address is allocated.
#[derive(Debug, Clone)]
pub struct RangeConfig {
    pub spec: RangeSpec,
    /// What may be allocated of it.
    pub space: Arc<Space>,
    /// Reported in the CNI result with the address.
    pub gateway: Option<Address>,
    /// The address that this call requests, if any.
    pub wanted: Option<Address>,
}

/// A configuration that can't be served. The user has to correct it, so each error has the field and the value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("IPAM config missing 'ipam' key")]
    NoIpam,
    #[error("ipam.type {found:?} is not this plugin's: it was called as {accepted:?}")]
    Type { found: String, accepted: String },
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("could not parse exclude range: {0}")]
    Exclude(RangeError),
    #[error("{field}: {value:?} is not {expected}")]
    Value {
        field: String,
        value: String,
        expected: &'static str,
    },
    #[error("network_name: {shown} has {length} bytes: at most {NETWORK_NAME_MAX} are taken")]
    LongNetworkName { shown: String, length: usize },
    #[error("CNI version {version} does not support more than 1 address per family")]
    TooManyAddresses { version: String },
    #[error("flat file {path}: {why}")]
    Flat { path: String, why: String },
    #[error("{field}: {path:?} is not taken: {why}")]
    Path {
        field: &'static str,
        path: String,
        why: String,
    },
}

impl From<ConfigError> for CniError {
    fn from(error: ConfigError) -> CniError {
        let code = match &error {
            ConfigError::Field(_) => Code::Decode,
            ConfigError::Flat { .. } => Code::Io,
            _ => Code::Config,
        };
        CniError::new(code, error.to_string())
    }
}

impl PodNetwork {
    /// Whether its ranges are allocated from node slices.
    pub fn is_sliced(&self) -> bool {
        self.node_slice_size.is_some() || self.fast_ipam
    }

    /// The same network on a machine without other nodes, which has the whole range.
    pub fn unsliced(&mut self) {
        self.node_slice_size = None;
        self.fast_ipam = false;
    }

    /// Reads the `ipam` object of `conf`, completed by the node's files and by the requests of this call.
    ///
    /// `accepted` is the `ipam.type` that the plugin answers to.
    pub fn read(
        conf: &NetConf,
        args: &Args,
        accepted: &str,
        found: Found,
    ) -> Result<PodNetwork, ConfigError> {
        let mut network = PodNetwork::of_configuration(conf, accepted, found)?;
        statics::add_requested(&mut network, conf, args)?;
        let addresses = network.ranges.len() + network.addresses.len();
        if addresses > MOST_ADDRESSES {
            return Err(ConfigError::Value {
                field: "addresses and ranges".to_owned(),
                value: addresses.to_string(),
                expected: "a number of at most 64 addresses for one interface",
            });
        }
        Ok(network)
    }

    /// The same for a call that releases: an error that fails an ADD does not fail it. Requested addresses that can't
    /// be read are left out, and so are those beyond the maximum of an interface.
    pub fn read_to_release(
        conf: &NetConf,
        args: &Args,
        accepted: &str,
        found: Found,
    ) -> Result<PodNetwork, ConfigError> {
        let mut network = PodNetwork::of_configuration(conf, accepted, found)?;
        network.ranges.truncate(MOST_ADDRESSES);
        statics::add_readable(&mut network, conf, args);
        let room = MOST_ADDRESSES.saturating_sub(network.ranges.len());
        network.addresses.truncate(room);
        Ok(network)
    }

    fn of_configuration(
        conf: &NetConf,
        accepted: &str,
        found: Found,
    ) -> Result<PodNetwork, ConfigError> {
        let ipam = conf.ipam.as_ref().ok_or(ConfigError::NoIpam)?;
        let Found {
            flat,
            kubeconfig,
            mut warnings,
            mut faults,
        } = found;
        let source = Source::new(ipam, flat.as_ref())?;
        let kind = source.inline_text("type")?;
        if kind != accepted {
            return Err(ConfigError::Type {
                found: kind,
                accepted: accepted.to_owned(),
            });
        }
        let network_name = source.text("network_name")?;
        // It is part of the name of each pool.
        if network_name.len() > NETWORK_NAME_MAX {
            return Err(ConfigError::LongNetworkName {
                shown: shown(&network_name),
                length: network_name.len(),
            });
        }
        let settings = settings::read(&source, conf, &mut faults)?;
        let ranges = ranges::read(&source, &settings, &mut warnings)?;
        Ok(PodNetwork {
            name: conf.name.clone(),
            network_name,
            ranges,
            addresses: statics::read(&source)?,
            routes: outcome::routes(&source)?,
            dns: outcome::dns(&source)?,
            // The flat file's value is never used, as in whereabouts.
            overlap_checks: source
                .inline_flag("enable_overlapping_ranges")?
                .unwrap_or(true),
            node_slice_size: settings::node_slice_size(&source)?,
            fast_ipam: source.flag("fast_ipam")?.unwrap_or(false),
            kubeconfig,
            link: conf.link.clone(),
            settings,
            compatible: settings::compatible(&source)?,
            warnings,
            unknown_keys: keys::unknown(ipam),
            faults: faults.into_iter().map(CniError::from).collect(),
        })
    }
}
