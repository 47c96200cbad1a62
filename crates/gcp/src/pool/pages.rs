//! Pages: IPPools that each keep one block of a large pool's addresses, because one object holds some 3,500 allocations. Pure.
//!
//! ```text
//!  ippool-nodes                     10.111.0.0/16   everything that no page has; berth.dev/pages lists them
//!  ippool-nodes-10-111-248-0-21     10.111.248.0/21  berth.dev/page-of names the pool
//! ```
//! Guarantees: an address is kept by one object, for good: a block becomes a page's only while nothing in it is allocated or cools
//! down, by one write of the pool's object, and no entry ever changes its object (I1). Upstream's plugin knows no pages: while there
//! are any, a write of its own is detected, and nothing is allocated until an administrator has read it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use berth_core::{Address, Block, Pool, Space};
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::space::{capacity, space};
use super::{GROUP, KIND, VERSION};

/// On the pool: the UIDs of its pages, by block.
pub const PAGES: &str = "berth.dev/pages";
/// On the pool, while it has pages: a digest of its allocations as Berth wrote them. Removing it accepts them as they are.
pub const DIGEST: &str = "berth.dev/allocations-digest";
/// On a page: which pool it is of.
pub const PAGE_OF: &str = "berth.dev/page-of";
/// The size of a page: 2,048 addresses are about 0.8 MB.
pub const PREFIX: u8 = 21;

/// What a page says of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOf {
    pub pool: String,
    /// The pool's.
    pub cidr: Ipv4Net,
}

/// The pages of a pool: the UID of each one's object, by block.
pub type Pages = BTreeMap<Ipv4Net, String>;

/// Whether the object is a page, or why that can't be read.
pub fn page_of(object: &Value) -> Result<Option<PageOf>, String> {
    let Some(mut found) = annotation(object, PAGE_OF)? else {
        return Ok(None);
    };
    let (pool, cidr) = (found.remove("pool"), found.remove("cidr"));
    match (pool, cidr.as_deref().map(str::parse)) {
        (Some(pool), Some(Ok(cidr))) => Ok(Some(PageOf { pool, cidr })),
        _ => Err(format!("annotation {PAGE_OF} has no pool, or no cidr")),
    }
}

/// The pages that the object lists, or why the list can't be read.
pub fn pages_of(object: &Value) -> Result<Pages, String> {
    let found = annotation(object, PAGES)?.unwrap_or_default();
    let page = |(block, uid): (String, String)| match block.parse::<Ipv4Net>() {
        Ok(net) => Ok((net, uid)),
        Err(error) => Err(format!("annotation {PAGES}: '{block}': {error}")),
    };
    found.into_iter().map(page).collect()
}

fn annotation(object: &Value, name: &str) -> Result<Option<BTreeMap<String, String>>, String> {
    match &object["metadata"]["annotations"][name] {
        Value::Null => Ok(None),
        Value::String(text) => serde_json::from_str(text)
            .map(Some)
            .map_err(|error| format!("annotation {name} can't be read: {error}")),
        other => Err(format!("annotation {name} can't be read: {other}")),
    }
}

/// The name of a page's object.
pub fn name_of(pool: &str, block: Ipv4Net) -> String {
    let block = block.to_string().replace(['.', '/'], "-");
    format!("{pool}-{block}")
}

/// The page that has the address.
pub fn holding(pages: &Pages, address: Ipv4Addr) -> Option<Ipv4Net> {
    let mut blocks = pages.keys();
    blocks.find(|block| block.contains(&address)).copied()
}

/// The addresses of one object: a page's block, or what the pages leave of the pool; never network, gateway or broadcast.
pub fn space_of(cidr: Ipv4Net, page: Option<Ipv4Net>, pages: &Pages) -> Space {
    let at = |address: u32| Address::from(IpAddr::from(Ipv4Addr::from(address)));
    let (first, last) = match page {
        Some(page) => (u32::from(page.network()), u32::from(page.broadcast())),
        None => (u32::from(cidr.network()), u32::from(cidr.broadcast())),
    };
    if pages.is_empty() && page.is_none() {
        return space(cidr);
    }
    let first = first.max(u32::from(cidr.network()).saturating_add(2));
    let last = last.min(u32::from(cidr.broadcast()).saturating_sub(1));
    let mut blocks = Vec::new();
    let mut from = first;
    if page.is_none() {
        for block in pages.keys() {
            let (begin, end) = (u32::from(block.network()), u32::from(block.broadcast()));
            if from < begin {
                blocks.push(Block::new(at(from), at(begin - 1)));
            }
            from = from.max(end.saturating_add(1));
        }
    }
    if from <= last {
        blocks.push(Block::new(at(from), at(last)));
    }
    Space::list(blocks)
}

/// How one object counts its addresses: those of all objects of a pool are the pool's.
pub fn capacity_of(cidr: Ipv4Net, page: Option<Ipv4Net>, pages: &Pages) -> u64 {
    let of_page = |page: Ipv4Net| {
        let size = capacity(page) + 2;
        size - u64::from(page.broadcast() == cidr.broadcast())
    };
    match page {
        Some(page) => of_page(page),
        None => {
            capacity(cidr)
                - pages
                    .keys()
                    .copied()
                    .map(of_page)
                    .sum::<u64>()
                    .min(capacity(cidr))
        }
    }
}

/// The last block in which nothing is allocated or cools down, and that is no page yet. The first one has the gateway and stays.
pub fn free_block(cidr: Ipv4Net, pool: &Pool, pages: &Pages) -> Option<Ipv4Net> {
    let blocks: Vec<Ipv4Net> = cidr.subnets(PREFIX).ok()?.skip(1).collect();
    let held = |block: &Ipv4Net| {
        let mut addresses = pool
            .records()
            .map(|(address, _)| address)
            .chain(pool.cooldowns().map(|(address, _)| address));
        addresses.any(|address| match IpAddr::from(address) {
            IpAddr::V4(address) => block.contains(&address),
            IpAddr::V6(_) => false,
        })
    };
    // A stray is an address that can't be read: it could be of any block.
    let unparsed = |block: &Ipv4Net| {
        let mut keys = pool
            .unparsed()
            .iter()
            .map(|stray| stray.key.parse::<Ipv4Addr>());
        keys.any(|key| key.is_ok_and(|key| block.contains(&key)))
    };
    let free = |block: &Ipv4Net| !pages.contains_key(block) && !held(block) && !unparsed(block);
    blocks.into_iter().rev().find(free)
}

/// The object of a new page.
pub fn page_object(pool: &Value, cidr: Ipv4Net, block: Ipv4Net) -> Value {
    let name = pool["metadata"]["name"].as_str().unwrap_or_default();
    let page_of = json!({ "pool": name, "cidr": cidr.to_string() });
    let capacity = capacity_of(cidr, Some(block), &Pages::new());
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND,
        "metadata": { "name": name_of(name, block), "annotations": { PAGE_OF: page_of.to_string() } },
        "spec": {
            "cidr": block.to_string(), "subnet": pool["spec"]["subnet"],
            "secondaryRangeName": pool["spec"]["secondaryRangeName"], "allocations": {},
        },
        "status": { "capacity": capacity, "allocated": 0, "available": capacity },
    })
}

/// The pool's object with a page more.
pub fn with_page(mut object: Value, cidr: Ipv4Net, (block, uid): (Ipv4Net, String)) -> Value {
    let mut pages = pages_of(&object).unwrap_or_default();
    pages.insert(block, uid);
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    let listed: BTreeMap<String, &String> = pages
        .iter()
        .map(|(block, uid)| (block.to_string(), uid))
        .collect();
    object["metadata"]["annotations"][PAGES] = json!(json!(listed).to_string());
    let capacity = capacity_of(cidr, None, &pages);
    let allocated = object["status"]["allocated"].as_u64().unwrap_or_default();
    object["status"]["capacity"] = json!(capacity);
    object["status"]["available"] = json!(capacity.saturating_sub(allocated));
    note_digest(&mut object, &pages);
    object
}

/// A digest of what upstream knows of the allocations: the same after a write of Berth's, whichever definition is installed.
pub fn digest(object: &Value) -> String {
    let empty = serde_json::Map::new();
    let entries = object["spec"]["allocations"].as_object().unwrap_or(&empty);
    let sorted: BTreeMap<&String, &Value> = entries.iter().collect();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |text: &str| {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for (key, entry) in sorted {
        add(key);
        for field in ["podName", "podNamespace", "podUID", "nodeName"] {
            add(entry[field].as_str().unwrap_or_default());
        }
    }
    format!("{hash:016x}")
}

/// Why the allocations are not as Berth wrote them, if they are not.
pub fn foreign_write(object: &Value, pages: &Pages) -> Option<String> {
    if pages.is_empty() {
        return None;
    }
    let empty = serde_json::Map::new();
    let entries = object["spec"]["allocations"].as_object().unwrap_or(&empty);
    let in_page = entries.keys().find_map(|key| {
        let address: Ipv4Addr = key.parse().ok()?;
        holding(pages, address).map(|page| (address, page))
    });
    if let Some((address, page)) = in_page {
        return Some(format!(
            "spec.allocations[{address}] is of the page {page}, so another program wrote it; stop that program and remove the entry"
        ));
    }
    let written = object["metadata"]["annotations"][DIGEST].as_str()?;
    (written != digest(object)).then(|| {
        format!(
            "another program wrote spec.allocations, which upstream's plugin must not while the pool has pages; stop it, compare with \
             `berth gcp check`, then remove the annotation {DIGEST}"
        )
    })
}

/// Notes the digest of what is about to be written, where the pool has pages.
pub fn note_digest(object: &mut Value, pages: &Pages) {
    if !pages.is_empty() {
        let digest = digest(object);
        object["metadata"]["annotations"][DIGEST] = json!(digest);
    }
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner, Record};

    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn pages(blocks: &[&str]) -> Pages {
        blocks
            .iter()
            .map(|block| (net(block), "u".to_owned()))
            .collect()
    }

    #[test]
    fn the_objects_of_a_pool_share_its_addresses_out() {
        let cidr = net("10.111.0.0/16");
        let listed = pages(&["10.111.248.0/21", "10.111.16.0/21"]);
        let mut objects = vec![(
            space_of(cidr, None, &listed),
            capacity_of(cidr, None, &listed),
        )];
        for page in listed.keys() {
            let none = Pages::new();
            objects.push((
                space_of(cidr, Some(*page), &none),
                capacity_of(cidr, Some(*page), &none),
            ));
        }
        let count: u128 = objects.iter().map(|(space, _)| space.count()).sum();
        assert_eq!(count, 65_533, "all but network, gateway and broadcast");
        assert_eq!(
            objects.iter().map(|(_, capacity)| capacity).sum::<u64>(),
            65_534
        );
        for (address, owner) in [
            ("10.111.0.2", 0),
            ("10.111.15.255", 0),
            ("10.111.16.0", 1),
            ("10.111.23.255", 1),
            ("10.111.24.0", 0),
            ("10.111.255.254", 2),
        ] {
            let holders: Vec<usize> = (0..3)
                .filter(|at| objects[*at].0.contains(address.parse().unwrap()))
                .collect();
            assert_eq!(holders, [owner], "{address}");
        }
        for withheld in ["10.111.0.0", "10.111.0.1", "10.111.255.255"] {
            let held = objects
                .iter()
                .any(|(space, _)| space.contains(withheld.parse().unwrap()));
            assert!(!held, "{withheld}");
        }
    }

    #[test]
    fn a_page_is_a_block_without_an_entry() {
        let cidr = net("10.111.0.0/16");
        let mut pool = Pool::new();
        let record = Record::new(Owner::new("d/p", "u"), Handle::new("c"));
        pool.restore("10.111.248.9".parse().unwrap(), record);
        let listed = pages(&["10.111.240.0/21"]);
        assert_eq!(
            free_block(cidr, &pool, &listed),
            Some(net("10.111.232.0/21"))
        );
        assert_eq!(
            free_block(net("10.111.0.0/21"), &pool, &listed),
            None,
            "the first one stays"
        );
        assert_eq!(free_block(net("10.111.0.0/24"), &pool, &listed), None);
    }

    #[test]
    fn a_write_of_another_program_is_detected() {
        let entry = |pod: &str| json!({ "podName": pod, "podNamespace": "d", "podUID": pod, "nodeName": "n" });
        let listed = pages(&["10.111.248.0/21"]);
        let mut object =
            json!({ "metadata": {}, "spec": { "allocations": { "10.111.0.2": entry("a") } } });
        assert_eq!(
            foreign_write(&object, &listed),
            None,
            "no digest yet: accepted as it is"
        );
        note_digest(&mut object, &listed);
        // Berth's own field may be pruned by another definition.
        object["spec"]["allocations"]["10.111.0.2"]["berth"] = json!({ "zone": "z" });
        assert_eq!(foreign_write(&object, &listed), None);
        let mut written = object.clone();
        written["spec"]["allocations"]["10.111.0.3"] = entry("b");
        assert!(foreign_write(&written, &listed).unwrap().contains(DIGEST));
        assert_eq!(
            foreign_write(&written, &Pages::new()),
            None,
            "without pages upstream may write"
        );
        written["metadata"]["annotations"][DIGEST] = json!(null);
        assert_eq!(foreign_write(&written, &listed), None);
        written["spec"]["allocations"]["10.111.248.7"] = entry("c");
        assert!(
            foreign_write(&written, &listed)
                .unwrap()
                .contains("10.111.248.7")
        );
    }
}
