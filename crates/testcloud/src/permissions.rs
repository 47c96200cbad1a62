//! Which IAM permissions Google's documentation names for a call, and which ones a page of Berth's names.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use crate::discovery::Discovery;
use crate::requests::Recorded;

/// Of the calls that Berth makes. None: it makes no such call.
pub fn permissions(call: &str) -> Option<&'static [&'static str]> {
    Some(match call {
        "metadata" => &[],
        "instances.get" => &["compute.instances.get"],
        "instances.updateNetworkInterface" => &[
            "compute.instances.updateNetworkInterface",
            "compute.subnetworks.use",
        ],
        "zoneOperations.wait" => &["compute.zoneOperations.get"],
        "regionOperations.wait" => &["compute.regionOperations.get"],
        // And the right to attach what is reserved.
        "addresses.insert" => &[
            "compute.addresses.create",
            "compute.addresses.createInternal",
            "compute.addresses.use",
            "compute.subnetworks.use",
        ],
        "addresses.get" => &["compute.addresses.get"],
        "addresses.delete" => &[
            "compute.addresses.delete",
            "compute.addresses.deleteInternal",
        ],
        "subnetworks.get" => &["compute.subnetworks.get"],
        "subnetworks.patch" => &["compute.subnetworks.update"],
        "internalRanges.get" => &["networkconnectivity.internalRanges.get"],
        "internalRanges.create" => &[
            "networkconnectivity.internalRanges.create",
            "compute.networks.use",
        ],
        "internalRanges.delete" => &["networkconnectivity.internalRanges.delete"],
        "operations.get" => &["networkconnectivity.operations.get"],
        _ => return None,
    })
}

/// What the requests needed.
///
/// # Panics
/// For a call without an entry above.
#[allow(clippy::panic, reason = "for tests alone")]
pub fn permissions_of(requests: &[Recorded]) -> BTreeSet<String> {
    let of = |request: &Recorded| {
        permissions(&request.call).unwrap_or_else(|| panic!("{} is not known", request.call))
    };
    let all = requests.iter().flat_map(of);
    all.map(|permission| (*permission).to_owned()).collect()
}

/// The permissions in the first table after these words. A name that begins with a dot is of the resource before it.
pub fn documented(page: &str, after: &str) -> BTreeSet<String> {
    let text = page.split_once(after).map_or("", |(_, text)| text);
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    let mut found = BTreeSet::new();
    for row in rows {
        let cell = row.split('|').nth(1).unwrap_or_default();
        let mut resource = String::new();
        for name in cell.split('`').skip(1).step_by(2) {
            let full = match name.starts_with('.') {
                true => format!("{resource}{name}"),
                false => name.to_owned(),
            };
            if let Some((before, _)) = full.rsplit_once('.') {
                before.clone_into(&mut resource);
            }
            found.insert(full);
        }
    }
    found
}

/// Every request is one that Google's discovery files describe.
///
/// # Panics
/// For one that is not.
#[allow(clippy::panic, clippy::expect_used, reason = "for tests alone")]
pub fn assert_described(requests: &[Recorded], apis: &[&Path]) {
    static DISCOVERY: OnceLock<Discovery> = OnceLock::new();
    let discovery = DISCOVERY.get_or_init(|| Discovery::load(apis).expect("the discovery files"));
    for request in requests.iter().filter(|request| request.call != "metadata") {
        match discovery.check(request) {
            Ok(id) if id.ends_with(&request.call) => {}
            Ok(id) => panic!("{id} was taken for {}", request.call),
            Err(why) => panic!("{why}: {request:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read() {
        let page = "The agent:\n\n| permission | for |\n|---|---|\n| `a.b.get`, `.use` | x |\n| `a.c.get` | `y` |\n\n| `z` | |\n";
        let found: Vec<String> = documented(page, "The agent").into_iter().collect();
        assert_eq!(found, ["a.b.get", "a.b.use", "a.c.get"]);
    }
}
