//! The links of a change as the kernel has them: their addresses, and whether they are up.
//!
//! nmstate shows a link that is down as one without addresses, and can't take a link down without NetworkManager. So the read-back and
//! the last step of an undo are made here, directly on the kernel's state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use nispor::{IfaceConf, IfaceFlag, IfaceState, IpAddrConf, IpConf, NetConf, NetState};
use nmstate::{Interface, NetworkState};
use serde::{Deserialize, Serialize};

use crate::error::HostError;

/// A link and its addresses that have no end, as `192.0.2.7/24`. Link-local addresses of the kernel (fe80::/10) are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub up: bool,
    pub addresses: BTreeSet<String>,
}

/// The links that a state names; none for one that does not exist.
pub type Links = BTreeMap<String, Option<Link>>;

/// Reads the links that a state names.
pub fn read(state: &NetworkState) -> Result<Links, HostError> {
    let kernel = NetState::retrieve()?;
    let of = |interface: &&Interface| {
        let name = interface.name().to_owned();
        let link = kernel.ifaces.get(&name).map(link);
        (name, link)
    };
    Ok(state.interfaces.to_vec().iter().map(of).collect())
}

fn link(iface: &nispor::Iface) -> Link {
    let mut addresses = BTreeSet::new();
    for one in iface.ipv4.iter().flat_map(|ipv4| &ipv4.addresses) {
        if one.valid_lft == "forever" {
            addresses.insert(format!("{}/{}", one.address, one.prefix_len));
        }
    }
    for one in iface.ipv6.iter().flat_map(|ipv6| &ipv6.addresses) {
        if one.valid_lft == "forever" && !is_link_local(&one.address) {
            addresses.insert(format!("{}/{}", one.address, one.prefix_len));
        }
    }
    Link {
        up: iface.flags.contains(&IfaceFlag::Up),
        addresses,
    }
}

fn is_link_local(address: &str) -> bool {
    let address = address.parse::<std::net::Ipv6Addr>();
    address.is_ok_and(|address| address.is_unicast_link_local())
}

/// The addresses that a state asks for on an interface.
fn wanted(interface: &Interface) -> BTreeSet<String> {
    let base = interface.base_iface();
    let ipv4 = base.ipv4.iter().filter(|ipv4| ipv4.enabled);
    let ipv4 = ipv4.flat_map(|ipv4| ipv4.addresses.iter().flatten());
    let ipv6 = base.ipv6.iter().filter(|ipv6| ipv6.enabled);
    let ipv6 = ipv6.flat_map(|ipv6| ipv6.addresses.iter().flatten());
    let texts = ipv4
        .chain(ipv6)
        .map(|one| format!("{}/{}", one.ip, one.prefix_length));
    let given = |text: &String| !text.split('/').next().is_some_and(is_link_local);
    texts.filter(given).collect()
}

/// What a state wants that can't be had without NetworkManager, before anything is changed.
pub fn check_possible(desired: &NetworkState, before: &Links) -> Result<(), HostError> {
    for interface in desired.interfaces.to_vec() {
        let (name, exists) = (interface.name(), before.get(interface.name()));
        let exists = exists.is_some_and(Option::is_some);
        if interface.is_down() {
            return Err(HostError::Refused(format!(
                "interfaces.{name}.state: `down` is for NetworkManager; without it (--kernel) use up or absent"
            )));
        }
        if interface.is_up() && !exists && !interface.is_virtual() && !is_new_veth(interface) {
            return Err(HostError::Refused(format!(
                "interfaces.{name}: this host has no such interface; name one that `berth-host show --kernel` lists"
            )));
        }
    }
    Ok(())
}

fn is_new_veth(interface: &Interface) -> bool {
    matches!(interface, Interface::Ethernet(one) if one.veth.is_some())
}

/// Describes what of a state is missing; none if nothing is.
pub fn missing(desired: &NetworkState) -> Result<Option<String>, HostError> {
    let links = read(desired)?;
    let mut text = String::new();
    for interface in desired.interfaces.to_vec() {
        let name = interface.name();
        let link = links.get(name).and_then(Option::as_ref);
        match link {
            Some(_) if interface.is_absent() => note(&mut text, name, "is still there"),
            None if interface.is_up() => note(&mut text, name, "does not exist"),
            Some(link) if interface.is_up() => {
                if !link.up {
                    note(&mut text, name, "is down");
                }
                for address in wanted(interface).difference(&link.addresses) {
                    note(&mut text, name, &format!("lacks {address}"));
                }
            }
            _ => {}
        }
    }
    Ok((!text.is_empty()).then_some(text))
}

fn note(text: &mut String, name: &str, what: &str) {
    let comma = if text.is_empty() { "" } else { ", " };
    let _ = write!(text, "{comma}{name} {what}");
}

/// The links as an undo should leave them: as they were, with the addresses that other programs have added meanwhile (I7). nmstate's
/// revert would remove those.
pub fn target(desired: &NetworkState, before: &Links) -> Result<Links, HostError> {
    let now = read(desired)?;
    let mut target = before.clone();
    for interface in desired.interfaces.to_vec() {
        let now = now.get(interface.name()).and_then(Option::as_ref);
        let before = target.get_mut(interface.name()).and_then(Option::as_mut);
        if let (Some(now), Some(before)) = (now, before) {
            let asked = wanted(interface);
            let others = now.addresses.difference(&asked).cloned();
            before.addresses.extend(others);
        }
    }
    Ok(target)
}

/// How far the links are from what they should be.
pub fn differences(desired: &NetworkState, before: &Links) -> Result<Vec<Difference>, HostError> {
    let now = read(desired)?;
    let mut all = Vec::new();
    for interface in desired.interfaces.to_vec() {
        let name = interface.name();
        let before = before.get(name).and_then(Option::as_ref);
        let now = now.get(name).and_then(Option::as_ref);
        let (before, now) = match (before, now) {
            (None, None) => continue,
            (Some(_), None) => {
                all.push(Difference::gone(name));
                continue;
            }
            (None, Some(_)) => {
                all.push(Difference::new(name));
                continue;
            }
            (Some(before), Some(now)) => (before, now),
        };
        let asked = wanted(interface);
        let added = now.addresses.difference(&before.addresses);
        let difference = Difference {
            name: name.to_owned(),
            link: (before.up != now.up).then_some(LinkChange::Up(before.up)),
            remove: added.filter(|one| asked.contains(*one)).cloned().collect(),
            add: before
                .addresses
                .difference(&now.addresses)
                .cloned()
                .collect(),
        };
        if !difference.is_empty() {
            all.push(difference);
        }
    }
    Ok(all)
}

/// What has to be done to a link so that it is as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    name: String,
    link: Option<LinkChange>,
    remove: Vec<String>,
    add: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkChange {
    /// To be up, or down.
    Up(bool),
    /// It did not exist.
    Remove,
    /// It is gone, and with it what it was.
    Lost,
}

impl Difference {
    fn of(name: &str, link: LinkChange) -> Difference {
        Difference {
            name: name.to_owned(),
            link: Some(link),
            remove: Vec::new(),
            add: Vec::new(),
        }
    }

    fn gone(name: &str) -> Difference {
        Difference::of(name, LinkChange::Lost)
    }

    fn new(name: &str) -> Difference {
        Difference::of(name, LinkChange::Remove)
    }

    const fn is_empty(&self) -> bool {
        self.link.is_none() && self.remove.is_empty() && self.add.is_empty()
    }

    /// Does it. Addresses first: a link that goes down takes IPv6 addresses with it.
    pub fn undo(&self) -> Result<(), HostError> {
        let mut conf = IfaceConf::default();
        conf.name.clone_from(&self.name);
        conf.state = IfaceState::Unknown;
        let part = |ipv6: bool| {
            let removed = self.remove.iter().map(|text| (true, text));
            let all = removed.chain(self.add.iter().map(|text| (false, text)));
            let mut conf = IpConf::default();
            conf.addresses = all
                .filter(|(_, text)| text.contains(':') == ipv6)
                .filter_map(|(remove, text)| address(text, remove))
                .collect();
            (!conf.addresses.is_empty()).then_some(conf)
        };
        (conf.ipv4, conf.ipv6) = (part(false), part(true));
        if conf.ipv4.is_some() || conf.ipv6.is_some() {
            apply(conf.clone())?;
        }
        let state = match self.link {
            Some(LinkChange::Up(true)) => IfaceState::Up,
            Some(LinkChange::Up(false)) => IfaceState::Down,
            Some(LinkChange::Remove) => IfaceState::Absent,
            Some(LinkChange::Lost) | None => return Ok(()),
        };
        (conf.ipv4, conf.ipv6, conf.state) = (None, None, state);
        apply(conf)
    }
}

fn apply(conf: IfaceConf) -> Result<(), HostError> {
    let mut all = NetConf::default();
    all.ifaces = Some(vec![conf]);
    Ok(all.apply()?)
}

fn address(text: &str, remove: bool) -> Option<IpAddrConf> {
    let (address, length) = text.split_once('/')?;
    let mut conf = IpAddrConf::default();
    conf.remove = remove;
    address.clone_into(&mut conf.address);
    conf.prefix_len = length.parse().ok()?;
    Some(conf)
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut words = Vec::new();
        match self.link {
            Some(LinkChange::Up(true)) => words.push("is down".to_owned()),
            Some(LinkChange::Up(false)) => words.push("is up".to_owned()),
            Some(LinkChange::Remove) => words.push("is still there".to_owned()),
            Some(LinkChange::Lost) => words.push("is gone".to_owned()),
            None => {}
        }
        words.extend(self.remove.iter().map(|one| format!("still has {one}")));
        words.extend(self.add.iter().map(|one| format!("lacks {one}")));
        write!(f, "{} {}", self.name, words.join(" and "))
    }
}
