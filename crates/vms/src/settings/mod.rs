//! The settings of the VM pools.
//!
//! Guarantees: flags over environment over file over defaults; unknown, misspelt and contradictory settings are
//! refused, and the message names the setting, where it was set and what would be right. One VM in two pools is
//! refused: it would be allocated twice (I1).

mod duration;
mod ips;
pub mod keys;
mod layers;
mod place;
mod pools;
mod scaling;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_core::Order;
use berth_ledger::RetryPolicy;

pub use ips::{IpsError, parse_ips};
pub use layers::{Layers, Origin, SettingsError};
pub use place::DEFAULT_NAMESPACE;
pub use pools::{DEFAULT_POOL, PoolSettings};
pub(crate) use pools::{check_apart, pool_from_configmap};
pub use scaling::{Hook, Level, Scaling};

use crate::vm::{Access, HostKeyRule, RebootTiming};
use duration::parse_duration;

/// All settings of the VM front.
#[derive(Debug, Clone)]
pub struct Settings {
    pub pools: Vec<PoolSettings>,
    /// The ConfigMap that lists further pools, read while Berth runs.
    pub pools_configmap: Option<String>,
    /// The prefix of the ConfigMaps of such pools: this, a dash and the pool's name.
    pub configmap: String,
    pub namespace: String,
    pub node: String,
    /// How many ConfigMaps each pool is spread over; `pools` lists each of them.
    pub configmap_count: u32,
    pub max_range_ips: u32,
    pub access: Access,
    pub order: Order,
    pub readiness: Readiness,
    pub dead_for: Duration,
    pub allocate_within: Duration,
    /// `None`: VMs are not rebooted by Berth.
    pub cleanup: Option<Cleanup>,
    pub recover_at_start: RecoverAtStart,
    /// The file that names the node's boot; `None`: the agent's choice.
    pub boot_file: Option<PathBuf>,
    pub ledger: LedgerChoice,
    pub retry: RetryPolicy,
    pub tcp: Option<TcpListen>,
    /// `None`: pools that run low are not reported.
    pub scaling: Option<Scaling>,
    /// The file that was read, to be watched for edits.
    pub file: Option<PathBuf>,
}

/// What is checked of a VM before a pod gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    Off,
    Tcp,
    /// TCP, then the SSH handshake and the login.
    Ssh,
}

/// When a start deallocates this node's VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoverAtStart {
    /// After a reboot of the node: its pods did not survive it.
    Boot,
    /// Every time: where the pods die with this process.
    Always,
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleanup {
    pub timing: RebootTiming,
    /// The pause before a failed cleanup is tried again.
    pub retry: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerChoice {
    ConfigMap,
    Sqlite(PathBuf),
}

/// The HTTP API on TCP. Never without a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpListen {
    pub address: SocketAddr,
    pub token_file: PathBuf,
}

impl Settings {
    /// From the environment of this process.
    pub fn from_process(
        flags: impl Fn(&str) -> Option<String>,
        file: Option<&Path>,
    ) -> Result<Self, SettingsError> {
        let env = |name: &str| std::env::var(name).ok();
        Self::new(flags, env, file, Path::new("/"))
    }

    /// `root` is the directory that the files of the node's name and of the service account are read under.
    pub fn new(
        flags: impl Fn(&str) -> Option<String>,
        env: impl Fn(&str) -> Option<String>,
        file: Option<&Path>,
        root: &Path,
    ) -> Result<Self, SettingsError> {
        let pod_namespace = env("POD_NAMESPACE");
        let layers = Layers::read(flags, env, file)?;
        Self::resolve(&layers, pod_namespace.as_deref(), root)
    }

    fn resolve(
        layers: &Layers,
        pod_namespace: Option<&str>,
        root: &Path,
    ) -> Result<Self, SettingsError> {
        let text = |name| layers.get(name).map(|(text, _)| text.trim().to_string());
        let max_range_ips = number(layers, keys::MAX_RANGE_IPS, 1)?;
        let configmap = text(keys::POOL_CONFIGMAP_NAME).unwrap_or_default();
        let configmap_count = number(layers, keys::POOL_CONFIGMAP_COUNT, 1)?;
        let pools = pools::from_layers(layers, max_range_ips, &configmap, configmap_count)?;
        let pools_configmap = text(keys::POOLS_CONFIGMAP);
        if pools.is_empty() && pools_configmap.is_none() {
            return Err(SettingsError::Together(format!(
                "{}: set VM_POOL_IPS, pools in the settings file, or pools-configmap",
                IpsError::Empty
            )));
        }
        let ledger = required(layers, keys::VM_LEDGER, parse_ledger)?;
        if configmap_count > 1 && ledger != LedgerChoice::ConfigMap {
            return Err(SettingsError::Together(
                "pool-configmap-count needs vm-ledger configmap: a file has no size limit".into(),
            ));
        }
        let node_setting = text(keys::NODE_NAME);
        Ok(Self {
            pools,
            pools_configmap,
            configmap,
            configmap_count,
            namespace: place::namespace(text(keys::POOL_NAMESPACE).as_deref(), pod_namespace, root),
            node: place::node_name(node_setting.as_deref(), root)
                .ok_or(SettingsError::NoNodeName)?,
            max_range_ips,
            access: access(layers)?,
            order: required(layers, keys::VM_ORDER, parse_order)?,
            readiness: required(layers, keys::VM_READINESS, parse_readiness)?,
            dead_for: required(layers, keys::VM_DEAD_FOR, parse_duration)?,
            allocate_within: required(layers, keys::VM_ALLOCATE_TIMEOUT, some_time)?,
            cleanup: cleanup(layers)?,
            recover_at_start: required(layers, keys::VM_RECOVER, parse_recover)?,
            boot_file: text(keys::VM_BOOT_FILE).map(PathBuf::from),
            ledger,
            retry: retry(layers)?,
            tcp: tcp(layers)?,
            scaling: scaling::read(layers)?,
            file: layers.file.clone(),
        })
    }
}

/// A setting that has a default in the table.
fn required<T>(
    layers: &Layers,
    name: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, SettingsError> {
    let value = layers.parse(name, parse)?;
    value.ok_or_else(|| SettingsError::Together(format!("{name} has no value")))
}

fn number<T>(layers: &Layers, name: &'static str, least: T) -> Result<T, SettingsError>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    required(layers, name, |text| match text.parse::<T>() {
        Ok(value) if value >= least => Ok(value),
        _ => Err(format!("{text:?} is no whole number of at least {least}")),
    })
}

fn some_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time.is_zero() {
        return Err(format!("{text:?} leaves no time; set at least 1ms"));
    }
    Ok(time)
}

fn access(layers: &Layers) -> Result<Access, SettingsError> {
    let path = |text: &str| Ok(PathBuf::from(text));
    let any = required(layers, keys::SSH_ACCEPT_ANY, parse_bool)?;
    let list = layers.parse(keys::SSH_ALLOWLIST, path)?;
    let host_keys = match (list, any) {
        (Some(dir), false) => HostKeyRule::AllowList(dir),
        (None, true) => HostKeyRule::AcceptAny,
        (None, false) => HostKeyRule::Unset,
        (Some(_), true) => {
            return Err(SettingsError::Together(
                "ssh-host-key-allowlist-dir and ssh-accept-any-host-key contradict each other: leave one out".into(),
            ));
        }
    };
    Ok(Access {
        user: required(layers, keys::SSH_USERNAME, |text| Ok(text.to_string()))?,
        private_key: required(layers, keys::SSH_PRIV_KEY, path)?,
        port: number(layers, keys::SSH_PORT, 1)?,
        timeout: required(layers, keys::SSH_TIMEOUT, some_time)?,
        connect_timeout: required(layers, keys::SSH_CONNECT_TIMEOUT, some_time)?,
        host_keys,
    })
}

fn cleanup(layers: &Layers) -> Result<Option<Cleanup>, SettingsError> {
    let timing = RebootTiming {
        floor: required(layers, keys::VM_CLEANUP_WAIT, parse_duration)?,
        limit: required(layers, keys::VM_CLEANUP_LIMIT, some_time)?,
        must_be_seen_down: required(layers, keys::VM_CLEANUP_SEEN_DOWN, parse_bool)?,
        down_for: layers.parse(keys::VM_CLEANUP_DOWN_FOR, some_time)?,
        ..RebootTiming::default()
    };
    if timing.limit < timing.floor {
        return Err(SettingsError::Together(format!(
            "vm-cleanup-limit {:?} is below vm-cleanup-wait {:?}: set at least that",
            timing.limit, timing.floor
        )));
    }
    let cleanup = Cleanup {
        timing,
        retry: required(layers, keys::VM_CLEANUP_RETRY, some_time)?,
    };
    let wanted = required(layers, keys::VM_CLEANUP, parse_bool)?;
    Ok(wanted.then_some(cleanup))
}

fn retry(layers: &Layers) -> Result<RetryPolicy, SettingsError> {
    let base: Duration = required(layers, keys::RETRY_INTERVAL, some_time)?;
    let policy = RetryPolicy {
        timeout: required(layers, keys::OPERATION_TIMEOUT, some_time)?,
        retries: number(layers, keys::MAX_RETRIES, 0)?,
        base,
        factor: required(layers, keys::RETRY_FACTOR, parse_factor)?,
        max: RetryPolicy::default().max.max(base),
    };
    policy.validate().map_err(SettingsError::Together)?;
    Ok(policy)
}

fn tcp(layers: &Layers) -> Result<Option<TcpListen>, SettingsError> {
    let address = layers.parse(keys::LISTEN, |text| {
        let parsed = text.parse::<SocketAddr>();
        parsed.map_err(|_| format!("{text:?} is no address with a port, like 127.0.0.1:8480"))
    })?;
    let token_file = layers.parse(keys::TOKEN_FILE, |text| Ok(PathBuf::from(text)))?;
    match (address, token_file) {
        (Some(address), Some(token_file)) => Ok(Some(TcpListen {
            address,
            token_file,
        })),
        (Some(_), None) => Err(SettingsError::Together(
            "vm-listen needs vm-token-file: without it any host that can reach the address could take every VM"
                .into(),
        )),
        (None, _) => Ok(None),
    }
}

fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

fn parse_factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (1.0..=10.0).contains(&factor) => Ok(factor),
        _ => Err(format!("{text:?} is no number from 1 to 10")),
    }
}

fn parse_recover(text: &str) -> Result<RecoverAtStart, String> {
    match text {
        "boot" => Ok(RecoverAtStart::Boot),
        // The value before there was `boot`.
        "always" | "true" => Ok(RecoverAtStart::Always),
        "never" | "false" => Ok(RecoverAtStart::Never),
        _ => Err(format!("{text:?} is none of boot, always, never")),
    }
}

fn parse_order(text: &str) -> Result<Order, String> {
    match text {
        "hash" => Ok(Order::HashIndex),
        "rendezvous" => Ok(Order::Rendezvous),
        "lowest" => Ok(Order::Lowest),
        "longest-released" => Ok(Order::LongestReleased),
        _ => Err(format!(
            "{text:?} is none of hash, rendezvous, lowest, longest-released"
        )),
    }
}

fn parse_readiness(text: &str) -> Result<Readiness, String> {
    match text {
        "ssh" => Ok(Readiness::Ssh),
        "tcp" => Ok(Readiness::Tcp),
        "off" => Ok(Readiness::Off),
        _ => Err(format!("{text:?} is none of ssh, tcp, off")),
    }
}

fn parse_ledger(text: &str) -> Result<LedgerChoice, String> {
    match text.strip_prefix("sqlite:") {
        Some(path) if path.starts_with('/') => Ok(LedgerChoice::Sqlite(path.into())),
        None if text == "configmap" => Ok(LedgerChoice::ConfigMap),
        _ => Err(format!(
            "{text:?} is neither configmap nor sqlite:/path/to/file"
        )),
    }
}

#[cfg(test)]
mod tests;
