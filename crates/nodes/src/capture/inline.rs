//! The proposal's other syntax: `address: [{ipam: {pool: NAME}}]` in an interface's ipv4 or ipv6 block.

use berth_core::Family;
use serde_json::Value;

use super::error::CaptureError;
use super::policy::is_pool_name;

/// The name of an inline request: no capture can have it, because it has dots. It names the place, so that the same place of a changed
/// policy keeps its address.
pub(super) fn name(interface: &str, family: Family, index: usize) -> String {
    let block = block_of(family);
    format!("{interface}.{block}.{index}")
}

pub(super) const fn block_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

/// The name and the pool of each inline request.
pub(super) fn find(desired: &Value) -> Result<Vec<(String, String)>, CaptureError> {
    let mut found = Vec::new();
    for (place, interface) in interfaces(desired) {
        for family in [Family::V4, Family::V6] {
            let list = addresses(interface, family);
            for (index, entry) in list.into_iter().flatten().enumerate() {
                let Some(ipam) = entry.get("ipam") else {
                    continue;
                };
                let block = block_of(family);
                let path =
                    format!("spec.desiredState.interfaces[{place}].{block}.address[{index}]");
                let pool = pool(&path, entry, ipam)?;
                found.push((name(&named(place, interface), family, index), pool));
            }
        }
    }
    Ok(found)
}

/// What an inline request is replaced with is decided by its name.
pub(super) fn named(place: usize, interface: &Value) -> String {
    let name = interface.get("name").and_then(Value::as_str);
    name.map_or_else(|| place.to_string(), str::to_owned)
}

fn interfaces(desired: &Value) -> impl Iterator<Item = (usize, &Value)> {
    let list = desired.get("interfaces").and_then(Value::as_array);
    list.into_iter().flatten().enumerate()
}

fn addresses(interface: &Value, family: Family) -> Option<&Vec<Value>> {
    let block = interface.get(block_of(family))?;
    block.get("address")?.as_array()
}

fn pool(path: &str, entry: &Value, ipam: &Value) -> Result<String, CaptureError> {
    let malformed = || CaptureError::Inline {
        path: path.to_owned(),
        value: ipam.to_string(),
    };
    if let Some(beside) = ["ip", "prefix-length"]
        .into_iter()
        .find(|key| entry.get(key).is_some())
    {
        return Err(CaptureError::InlineBeside {
            path: path.to_owned(),
            beside: beside.to_owned(),
        });
    }
    let map = ipam.as_object().filter(|map| map.len() == 1);
    let pool = map.and_then(|map| map.get("pool")?.as_str());
    let pool = pool.filter(|pool| is_pool_name(pool));
    pool.map(str::to_owned).ok_or_else(malformed)
}
