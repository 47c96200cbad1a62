//! The keys that an `ipam` object may have. An unknown key is ignored, as whereabouts does, and reported: it is usually
//! a typing error.

use berth_cni::ids::shown;
use berth_core::Warning;
use serde_json::{Map, Value};

/// How many unknown keys of one network are reported: a definition may have thousands.
const MOST: usize = 16;

/// A key that a network's author may write. Known keys are accepted, and documented in docs/settings.md.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    /// As text; empty if there is none.
    pub default: &'static str,
    pub help: &'static str,
}

const fn key(name: &'static str, default: &'static str, help: &'static str) -> Key {
    Key {
        name,
        default,
        help,
    }
}

const IGNORED: &str = "ignored, as whereabouts does since v0.6";
const NO_LEASE: &str = "read and checked; no effect, because there is no lease";

/// The keys that whereabouts has.
pub const WHEREABOUTS: &[Key] = &[
    key("type", "", "`whereabouts` or `berth`"),
    key("name", "", "ignored"),
    key(
        "range",
        "none: only static addresses",
        "a CIDR, or `first-last/length`; host bits are masked; comes before `ipRanges`",
    ),
    key(
        "range_start",
        "the range's first usable address",
        "the first address that may be allocated",
    ),
    key(
        "range_end",
        "the range's last usable address",
        "the last address that may be allocated",
    ),
    key(
        "exclude",
        "none",
        "CIDRs or addresses that are never allocated",
    ),
    key(
        "ipRanges",
        "none",
        "a list of ranges: one address of each, all or none",
    ),
    key(
        "addresses",
        "none",
        "static addresses, in addition to those of the ranges",
    ),
    key(
        "gateway",
        "none",
        "copied to the result; not allocated to a pod (`exclude_gateway`)",
    ),
    key("routes", "none", "copied to the result"),
    key("dns", "none", "copied to the result"),
    key(
        "network_name",
        "none",
        "prefixes the names of pools, reservations and slices: networks with different names may use one range",
    ),
    key(
        "enable_overlapping_ranges",
        "true",
        "an address is unique across pools, by a reservation per address; only the inline value counts",
    ),
    key(
        "node_slice_size",
        "none",
        "`/26` or `26`: the controller cuts the range into [node slices](slices.md)",
    ),
    key(
        "kubernetes",
        "the agent's own cluster",
        "`kubernetes.kubeconfig` names the cluster that keeps the pools; ignored where the node's cluster is known ([definitions.md](definitions.md))",
    ),
    key(
        "configuration_path",
        "none",
        "the path of the flat file; ignored where the node's cluster is known",
    ),
    key("leader_lease_duration", "1500 ms", NO_LEASE),
    key("leader_renew_deadline", "1000 ms", NO_LEASE),
    key("leader_retry_period", "500 ms", NO_LEASE),
    key(
        "log_file",
        "none",
        "no effect: the agent logs to stderr, and root writes no path that a network names",
    ),
    key("log_level", "none", "no effect: use `BERTH_LOG`"),
    key(
        "reconciler_cron_expression",
        "`30 4 * * *`",
        "read and checked; no effect: the agent collects on events and in sweeps",
    ),
    key("sleep_for_race", "0", "read and checked; no effect"),
    key(
        "optimistic_ipam",
        "false",
        "no effect: Berth never holds a lease for an allocation",
    ),
    key("datastore", "", IGNORED),
    key("etcd_ca_cert_file", "", IGNORED),
    key("etcd_cert_file", "", IGNORED),
    key("etcd_host", "", IGNORED),
    key("etcd_key_file", "", IGNORED),
    key("etcd_password", "", IGNORED),
    key("etcd_username", "", IGNORED),
];

/// The keys that Berth adds.
pub const BERTH: &[Key] = &[
    key(
        "exclude_gateway",
        "true",
        "the gateway is never allocated to a pod",
    ),
    key(
        "enable_l3",
        "false",
        "in /31, /32, /127 and /128 all addresses may be allocated",
    ),
    key(
        "check_addresses",
        "true",
        "a static address is recorded and refused to a second pod; false returns it to every pod, as whereabouts does",
    ),
    key(
        "cooldown_seconds",
        "0",
        "how long a released address cools down before another owner gets it; at most 86400",
    ),
    key(
        "fast_ipam",
        "false",
        "nodes claim [slices](slices.md) of the range and allocate from them without an API call",
    ),
    key(
        "slice_size",
        "half of the range's bits, at most 64 IPv4 or 256 IPv6 addresses",
        "prefix length of a slice of the first range, with `fast_ipam`",
    ),
    key(
        "slice_borrow",
        "true",
        "ask other nodes for parts of their slices when none is free, with `fast_ipam`",
    ),
    key(
        "reserve_later",
        "false",
        "while the API server is down, allocate from a slice and create the reservation later, if no other network overlaps",
    ),
    key(
        "sticky_statefulset",
        "false",
        "a StatefulSet's pod keeps its addresses until the set is scaled down or deleted",
    ),
    key(
        "allowPersistentIPs",
        "false",
        "a pod with an `ipam-claim-reference` uses the addresses of that IPAMClaim, until the claim is deleted; also beside `ipam`",
    ),
    key(
        "probe",
        "false",
        "check by ARP or ND that no machine uses an address before it is allocated; needs NET_RAW ([deploy/probe](install.md#rights))",
    ),
];

/// The keys of each item of `ipRanges`.
pub const RANGE: &[Key] = &[
    key("range", "", "as above"),
    key("range_start", "", "as above"),
    key("range_end", "", "as above"),
    key("exclude", "", "as above"),
    key(
        "gateway",
        "`gateway`, if of the range's family",
        "the gateway of this range",
    ),
];

/// The keys of each item of `addresses`.
pub const ADDRESS: &[Key] = &[
    key("address", "", "the address as a CIDR"),
    key("gateway", "none", "its gateway"),
    key("version", "", "ignored"),
];

/// The unknown keys of an `ipam` object, its ranges and its addresses.
pub(super) fn unknown(ipam: &Value) -> Vec<Warning> {
    let mut found = Vec::new();
    let Some(fields) = ipam.as_object() else {
        return found;
    };
    note("ipam", fields, &[WHEREABOUTS, BERTH], &mut found);
    for (list, known) in [("ipRanges", RANGE), ("addresses", ADDRESS)] {
        let value = fields
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(list));
        let items = value.and_then(|(_, value)| value.as_array());
        for item in items.into_iter().flatten().filter_map(Value::as_object) {
            note(list, item, &[known], &mut found);
        }
    }
    found.truncate(MOST);
    found
}

fn note(
    place: &'static str,
    fields: &Map<String, Value>,
    tables: &[&[Key]],
    found: &mut Vec<Warning>,
) {
    let known = || tables.iter().copied().flatten().map(|key| key.name);
    for key in fields.keys() {
        let is_known = known().any(|known| known.eq_ignore_ascii_case(key));
        // `_comment` is how people write comments in JSON.
        if is_known || key.starts_with('_') || found.len() >= MOST {
            continue;
        }
        let nearest = known()
            .map(|known| (distance(&key.to_ascii_lowercase(), known), known))
            .min()
            .filter(|(distance, _)| *distance <= 2);
        let why = match nearest {
            Some((_, nearest)) => format!("the key is unknown; is {nearest} meant?"),
            None => "the key is unknown".to_owned(),
        };
        found.push(Warning {
            field: place,
            value: shown(key).trim_matches('"').to_owned(),
            why,
        });
    }
}

/// How many characters have to be inserted, removed, replaced or swapped with their neighbour. Long words are not
/// compared.
fn distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 40;
    let (a, b): (Vec<char>, Vec<char>) = (
        a.chars().collect(),
        b.to_ascii_lowercase().chars().collect(),
    );
    if a.len() > LONGEST || a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(LONGEST);
            let mut best = (at(&above, j + 1) + 1)
                .min(at(&row, j) + 1)
                .min(at(&above, j) + usize::from(x != y));
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(LONGEST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(ipam: Value) -> Vec<String> {
        unknown(&ipam).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_typing_error_is_reported_with_the_likely_key() {
        for (typo, meant) in [
            ("rnage", "range"),
            ("fast_ipma", "fast_ipam"),
            ("enable_overlaping_ranges", "enable_overlapping_ranges"),
            ("ip_ranges", "ipRanges"),
        ] {
            let mut ipam = json!({"type": "whereabouts"});
            ipam[typo] = json!("x");
            let messages = messages(ipam);
            assert_eq!(messages.len(), 1, "{typo}");
            assert!(
                messages[0].contains(typo) && messages[0].contains(meant),
                "{messages:?}"
            );
        }
        let inner = json!({"ipRanges": [{"range": "x", "rang_start": "y"}], "addresses": [{"adress": "z"}]});
        let messages = messages(inner);
        assert!(
            messages[0].contains("rang_start") && messages[1].contains("adress"),
            "{messages:?}"
        );
    }

    #[test]
    fn known_keys_of_any_case_and_comments_are_not_reported() {
        let ipam =
            json!({"TYPE": "x", "IPRanges": [], "_comment": "y", "Range": "z", "etcd_host": ""});
        assert_eq!(messages(ipam), [""; 0]);
        let foreign = messages(json!({"something_else": 1}));
        assert_eq!(
            foreign,
            ["ipam: `something_else` is ignored: the key is unknown"]
        );
    }

    #[test]
    fn of_many_unknown_keys_only_a_few_are_reported() {
        let keys = (0..5000).map(|n| (format!("key{n}"), json!(1)));
        let ipam = Value::Object(keys.collect());
        assert_eq!(unknown(&ipam).len(), MOST);
    }
}
