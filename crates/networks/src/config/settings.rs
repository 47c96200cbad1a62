//! Settings beside the ranges: Berth's own, and those that whereabouts has and Berth accepts.

use std::time::Duration;

use berth_cni::NetConf;

use super::ConfigError;
use super::source::Source;

/// Berth's own keys. All may be set in the flat file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `exclude_gateway`, default true: the gateway is never allocated to a pod.
    pub exclude_gateway: bool,
    /// `enable_l3`, default false: all addresses of /31, /32, /127 and /128 may be allocated.
    pub tiny_networks: bool,
    /// `cooldown_seconds`, default 0, at most 86,400: how long a released address cools down before another owner gets
    /// it.
    pub cooldown: Duration,
    /// `sticky_statefulset`, default false: a StatefulSet's pod keeps its addresses while it is recreated.
    pub sticky_statefulset: bool,
    /// `allowPersistentIPs`, beside `ipam` or in it, default false: a pod that refers to an IPAMClaim gets the claim's
    /// addresses, and they outlive it.
    pub persistent_ips: bool,
    /// `probe`, default false: probe by ARP or ND whether a host uses an address before it is allocated.
    pub probe: bool,
    /// `slice_size`: the length of slices that nodes claim by themselves; none: by the range's size.
    pub slice_size: Option<u8>,
    /// `slice_borrow`, default true: a node that finds no free slice asks others for parts of theirs. Set to false
    /// where routes follow slices.
    pub slice_borrow: bool,
    /// `reserve_later`, default false: while the API server is away, an address of a slice is allocated without the
    /// check for overlapping ranges, if a controller has proved that there are none; its reservation follows.
    pub reserve_later: bool,
    /// `check_addresses`, default true: a static address is recorded and refused to a second pod.
    pub check_addresses: bool,
}

/// Keys of settings that Berth does otherwise or does not have. Accepted, with whereabouts' defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compatible {
    pub leader_lease_duration: Duration,
    pub leader_renew_deadline: Duration,
    pub leader_retry_period: Duration,
    pub log_file: String,
    pub log_level: String,
    pub reconciler_cron_expression: String,
}

/// The longest cooldown, a day: a longer one would take addresses from all users of the range.
const LONGEST_COOLDOWN: u64 = 86_400;

pub(super) fn read(
    source: &Source<'_>,
    conf: &NetConf,
    faults: &mut Vec<ConfigError>,
) -> Result<Settings, ConfigError> {
    let configured = source.integer("cooldown_seconds")?.unwrap_or(0);
    let cooldown = u64::try_from(configured).unwrap_or(0).min(LONGEST_COOLDOWN);
    if i64::try_from(cooldown) != Ok(configured) {
        faults.push(ConfigError::Value {
            field: "cooldown_seconds".to_owned(),
            value: configured.to_string(),
            expected: "a number of seconds from 0 to 86400",
        });
    }
    Ok(Settings {
        exclude_gateway: source.flag("exclude_gateway")?.unwrap_or(true),
        tiny_networks: source.flag("enable_l3")?.unwrap_or(false),
        cooldown: Duration::from_secs(cooldown),
        sticky_statefulset: source.flag("sticky_statefulset")?.unwrap_or(false),
        persistent_ips: conf.persistent_ips || source.flag("allowPersistentIPs")?.unwrap_or(false),
        probe: source.flag("probe")?.unwrap_or(false),
        slice_size: length(source, "slice_size")?,
        slice_borrow: source.flag("slice_borrow")?.unwrap_or(true),
        reserve_later: source.flag("reserve_later")?.unwrap_or(false),
        check_addresses: source.flag("check_addresses")?.unwrap_or(true),
    })
}

pub(super) fn compatible(source: &Source<'_>) -> Result<Compatible, ConfigError> {
    let millis = |key: &str, default: u64| -> Result<Duration, ConfigError> {
        let value = source.integer(key)?.and_then(|ms| u64::try_from(ms).ok());
        Ok(Duration::from_millis(value.unwrap_or(default)))
    };
    // Type-checked as in whereabouts, and otherwise ignored: it is a test aid there.
    source.integer("sleep_for_race")?;
    let cron = source.text("reconciler_cron_expression")?;
    Ok(Compatible {
        leader_lease_duration: millis("leader_lease_duration", 1500)?,
        leader_renew_deadline: millis("leader_renew_deadline", 1000)?,
        leader_retry_period: millis("leader_retry_period", 500)?,
        log_file: source.text("log_file")?,
        log_level: source.text("log_level")?,
        reconciler_cron_expression: if cron.is_empty() {
            "30 4 * * *".to_owned()
        } else {
            cron
        },
    })
}

/// `node_slice_size` enables slices of that size.
pub(super) fn node_slice_size(source: &Source<'_>) -> Result<Option<u8>, ConfigError> {
    length(source, "node_slice_size")
}

fn length(source: &Source<'_>, field: &str) -> Result<Option<u8>, ConfigError> {
    let text = source.text(field)?;
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.strip_prefix('/').unwrap_or(&text);
    match digits.parse::<u8>() {
        Ok(length) if length <= 128 => Ok(Some(length)),
        _ => Err(ConfigError::Value {
            field: field.to_owned(),
            value: text,
            expected: "a prefix length such as /26",
        }),
    }
}
