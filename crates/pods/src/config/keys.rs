//! The keys that an `ipam` object may have. Another one is a typing error, or meant for somebody else: it is ignored, as
//! whereabouts does, and told.

use berth_cni::ids::shown;
use berth_core::Warning;
use serde_json::{Map, Value};

/// Told of one network at most: a definition may have thousands.
const MOST: usize = 16;

const IPAM: [&str; 42] = [
    "addresses",
    "allowPersistentIPs",
    "check_addresses",
    "configuration_path",
    "cooldown_seconds",
    "datastore",
    "dns",
    "enable_l3",
    "enable_overlapping_ranges",
    "etcd_ca_cert_file",
    "etcd_cert_file",
    "etcd_host",
    "etcd_key_file",
    "etcd_password",
    "etcd_username",
    "exclude",
    "exclude_gateway",
    "fast_ipam",
    "gateway",
    "ipRanges",
    "kubernetes",
    "leader_lease_duration",
    "leader_renew_deadline",
    "leader_retry_period",
    "log_file",
    "log_level",
    "name",
    "network_name",
    "node_slice_size",
    "optimistic_ipam",
    "probe",
    "range",
    "range_end",
    "range_start",
    "reconciler_cron_expression",
    "reserve_later",
    "routes",
    "sleep_for_race",
    "slice_borrow",
    "slice_size",
    "sticky_statefulset",
    "type",
];
const RANGE: [&str; 5] = ["exclude", "gateway", "range", "range_end", "range_start"];
const ADDRESS: [&str; 3] = ["address", "gateway", "version"];

/// What is unknown in an `ipam` object, its ranges and its addresses.
pub(super) fn unknown(ipam: &Value) -> Vec<Warning> {
    let mut found = Vec::new();
    let Some(fields) = ipam.as_object() else {
        return found;
    };
    note("ipam", fields, &IPAM, &mut found);
    for (list, known) in [("ipRanges", RANGE.as_slice()), ("addresses", &ADDRESS)] {
        let value = fields
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(list));
        let items = value.and_then(|(_, value)| value.as_array());
        for item in items.into_iter().flatten().filter_map(Value::as_object) {
            note(list, item, known, &mut found);
        }
    }
    found.truncate(MOST);
    found
}

fn note(
    place: &'static str,
    fields: &Map<String, Value>,
    known: &[&str],
    found: &mut Vec<Warning>,
) {
    for key in fields.keys() {
        let is_known = known.iter().any(|known| known.eq_ignore_ascii_case(key));
        // `_comment` is how people write comments in JSON.
        if is_known || key.starts_with('_') || found.len() >= MOST {
            continue;
        }
        let nearest = known
            .iter()
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

/// How many characters have to be inserted, removed, replaced or swapped with their neighbour. Long words are not compared.
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

    fn told(ipam: Value) -> Vec<String> {
        unknown(&ipam).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_typing_error_is_told_with_what_is_meant() {
        for (typo, meant) in [
            ("rnage", "range"),
            ("fast_ipma", "fast_ipam"),
            ("enable_overlaping_ranges", "enable_overlapping_ranges"),
            ("ip_ranges", "ipRanges"),
        ] {
            let mut ipam = json!({"type": "whereabouts"});
            ipam[typo] = json!("x");
            let told = told(ipam);
            assert_eq!(told.len(), 1, "{typo}");
            assert!(
                told[0].contains(typo) && told[0].contains(meant),
                "{told:?}"
            );
        }
        let inner = json!({"ipRanges": [{"range": "x", "rang_start": "y"}], "addresses": [{"adress": "z"}]});
        let told = told(inner);
        assert!(
            told[0].contains("rang_start") && told[1].contains("adress"),
            "{told:?}"
        );
    }

    #[test]
    fn known_keys_of_any_case_and_comments_are_not_told() {
        let ipam =
            json!({"TYPE": "x", "IPRanges": [], "_comment": "y", "Range": "z", "etcd_host": ""});
        assert_eq!(told(ipam), [""; 0]);
        let foreign = told(json!({"something_else": 1}));
        assert_eq!(
            foreign,
            ["ipam: `something_else` is ignored: the key is unknown"]
        );
    }

    #[test]
    fn a_definition_of_many_keys_is_told_of_a_few() {
        let keys = (0..5000).map(|n| (format!("key{n}"), json!(1)));
        let ipam = Value::Object(keys.collect());
        assert_eq!(unknown(&ipam).len(), MOST);
    }
}
