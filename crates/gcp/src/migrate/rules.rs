//! Whether a pod may have the address that its annotation names; pure.
//!
//! Upstream lets any pod claim any address. Here the pod that holds it must agree: it is the same pod by name, its sibling by
//! controller, or it carries the marker `live.cast.ai/move-out-ip`, always in the same namespace.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use thiserror::Error;

use super::{IP, MOVE_OUT_IP, ORIGINAL_INSTANCE};
use crate::pool::gateway;

/// The pod that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applicant<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    /// The UID of its controller's ownerReference.
    pub controller: Option<&'a str>,
    /// The node that it starts on.
    pub node: &'a str,
    /// `live.cast.ai/ip`.
    pub ip: &'a str,
    /// `live.cast.ai/original-instance`.
    pub original_instance: Option<&'a str>,
}

/// The pod that holds the address, as the pool and its object say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub controller: Option<&'a str>,
    pub node: &'a str,
    /// `live.cast.ai/move-out-ip`, recorded in the allocation when it appeared.
    pub move_out: Option<&'a str>,
}

/// What the ADD does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is free: allocate exactly this address, unless it cools down for another owner.
    Allocate(Ipv4Addr),
    /// It is this pod's already, on this node.
    Own(Ipv4Addr),
    /// Move it here from the node that holds it.
    Move { address: Ipv4Addr, source: String },
}

/// Why the pod does not get it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    #[error("{IP}: '{0}' is not an IPv4 address such as 10.111.0.5")]
    NotAnAddress(String),
    #[error("{IP}: {address} is not in the pool's cidr {cidr}")]
    Outside { address: Ipv4Addr, cidr: Ipv4Net },
    #[error("{IP}: {0} is the pool's gateway, network or broadcast address, which no pod can have")]
    Reserved(Ipv4Addr),
    #[error("{IP}: {address} is held by {holder}, a pod of another namespace")]
    OtherNamespace { address: Ipv4Addr, holder: String },
    #[error("{IP}: {address} is held by {holder}, whose {MOVE_OUT_IP} names '{named}'")]
    OtherAddress {
        address: Ipv4Addr,
        holder: String,
        named: String,
    },
    #[error("{IP}: {address} is held by {holder}, which does not carry {MOVE_OUT_IP} yet")]
    NotMarked { address: Ipv4Addr, holder: String },
    #[error("{ORIGINAL_INSTANCE}: '{named}' is wrong: {address} is attached to '{found}'")]
    OtherInstance {
        address: Ipv4Addr,
        named: String,
        found: String,
    },
    #[error(
        "{ORIGINAL_INSTANCE}: '{0}' is this node itself; name the node that the pod moves away from"
    )]
    SameInstance(String),
}

impl Denied {
    /// CNI's error code: 11 for what passes by itself, 7 for what has to be changed.
    pub fn code(&self) -> u32 {
        match self {
            Denied::NotMarked { .. } => 11,
            _ => 7,
        }
    }
}

/// Whether a pod can have the address at all.
pub fn address_of(text: &str, cidr: Ipv4Net) -> Result<Ipv4Addr, Denied> {
    let address: Ipv4Addr = text
        .trim()
        .parse()
        .map_err(|_| Denied::NotAnAddress(text.to_owned()))?;
    if !cidr.contains(&address) {
        return Err(Denied::Outside { address, cidr });
    }
    if [gateway(cidr), cidr.network(), cidr.broadcast()].contains(&address) {
        return Err(Denied::Reserved(address));
    }
    Ok(address)
}

/// See the module.
pub fn judge(
    pod: &Applicant<'_>,
    cidr: Ipv4Net,
    holder: Option<&Holder<'_>>,
) -> Result<Verdict, Denied> {
    let address = address_of(pod.ip, cidr)?;
    let Some(holder) = holder else {
        return Ok(Verdict::Allocate(address));
    };
    if holder.uid == pod.uid && holder.node == pod.node {
        return Ok(Verdict::Own(address));
    }
    agree(pod, holder, address)?;
    match pod.original_instance {
        Some(named) if named == pod.node && holder.node != pod.node => {
            Err(Denied::SameInstance(named.to_owned()))
        }
        Some(named) if named != holder.node => Err(Denied::OtherInstance {
            address,
            named: named.to_owned(),
            found: holder.node.to_owned(),
        }),
        _ => Ok(Verdict::Move {
            address,
            source: holder.node.to_owned(),
        }),
    }
}

fn agree(pod: &Applicant<'_>, holder: &Holder<'_>, address: Ipv4Addr) -> Result<(), Denied> {
    let shown = format!("{}/{}", holder.namespace, holder.name);
    if holder.namespace != pod.namespace {
        return Err(Denied::OtherNamespace {
            address,
            holder: shown,
        });
    }
    if let Some(named) = holder
        .move_out
        .and_then(|value| value.trim().parse::<Ipv4Addr>().ok())
        && named != address
    {
        return Err(Denied::OtherAddress {
            address,
            holder: shown,
            named: named.to_string(),
        });
    }
    let sibling = pod.controller.is_some() && pod.controller == holder.controller;
    if holder.name == pod.name || sibling || holder.move_out.is_some() {
        return Ok(());
    }
    Err(Denied::NotMarked {
        address,
        holder: shown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Applicant<'static> = Applicant {
        namespace: "shop",
        name: "cart-clone",
        uid: "u2",
        controller: None,
        node: "node-b",
        ip: "10.111.0.5",
        original_instance: Some("node-a"),
    };
    const HOLDER: Holder<'static> = Holder {
        namespace: "shop",
        name: "cart",
        uid: "u1",
        controller: None,
        node: "node-a",
        move_out: Some("true"),
    };

    fn cidr() -> Ipv4Net {
        "10.111.0.0/16".parse().unwrap()
    }

    fn moved() -> Result<Verdict, Denied> {
        Ok(Verdict::Move {
            address: "10.111.0.5".parse().unwrap(),
            source: "node-a".to_owned(),
        })
    }

    #[test]
    fn the_holder_must_agree() {
        let judge = |pod: &Applicant<'_>, holder: &Holder<'_>| judge(pod, cidr(), Some(holder));
        assert_eq!(judge(&POD, &HOLDER), moved());
        assert_eq!(
            judge(
                &POD,
                &Holder {
                    move_out: Some(""),
                    ..HOLDER
                }
            ),
            moved()
        );
        assert_eq!(
            judge(
                &POD,
                &Holder {
                    move_out: Some("10.111.0.5"),
                    ..HOLDER
                }
            ),
            moved()
        );
        let other = judge(
            &POD,
            &Holder {
                move_out: Some("10.111.0.6"),
                ..HOLDER
            },
        )
        .unwrap_err();
        assert!(matches!(other, Denied::OtherAddress { .. }), "{other}");
        let unmarked = Holder {
            move_out: None,
            ..HOLDER
        };
        let early = judge(&POD, &unmarked).unwrap_err();
        assert_eq!(early.code(), 11, "{early}");
        assert_eq!(
            judge(
                &Applicant {
                    name: "cart",
                    ..POD
                },
                &unmarked
            ),
            moved()
        );
        let (sibling, of_set) = (
            Applicant {
                controller: Some("rs"),
                ..POD
            },
            Holder {
                controller: Some("rs"),
                ..unmarked.clone()
            },
        );
        assert_eq!(judge(&sibling, &of_set), moved());
        assert_eq!(
            judge(&sibling, &unmarked).unwrap_err().code(),
            11,
            "no controller is not the same controller"
        );
        let stranger = judge(
            &POD,
            &Holder {
                namespace: "other",
                ..HOLDER
            },
        )
        .unwrap_err();
        assert_eq!(
            (
                stranger.code(),
                matches!(stranger, Denied::OtherNamespace { .. })
            ),
            (7, true)
        );
    }

    #[test]
    fn the_source_is_where_the_pool_says() {
        let without = Applicant {
            original_instance: None,
            ..POD
        };
        assert_eq!(judge(&without, cidr(), Some(&HOLDER)), moved());
        let wrong = Applicant {
            original_instance: Some("node-c"),
            ..POD
        };
        let error = judge(&wrong, cidr(), Some(&HOLDER))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("node-c") && error.contains("node-a"),
            "{error}"
        );
        let own = Applicant {
            original_instance: Some("node-b"),
            ..POD
        };
        assert_eq!(
            judge(&own, cidr(), Some(&HOLDER)),
            Err(Denied::SameInstance("node-b".to_owned()))
        );
    }

    #[test]
    fn a_free_address_is_allocated_and_an_own_one_is_kept() {
        let address: Ipv4Addr = "10.111.0.5".parse().unwrap();
        assert_eq!(judge(&POD, cidr(), None), Ok(Verdict::Allocate(address)));
        let own = Holder {
            uid: "u2",
            node: "node-b",
            ..HOLDER
        };
        assert_eq!(judge(&POD, cidr(), Some(&own)), Ok(Verdict::Own(address)));
    }

    #[test]
    fn an_address_that_no_pod_can_have_is_refused() {
        for (ip, text) in [
            ("10.112.0.5", "not in the pool's cidr 10.111.0.0/16"),
            ("10.111.0.1", "gateway"),
            ("10.111.0.0", "gateway, network"),
            ("10.111.255.255", "broadcast"),
            ("fd00::1", "not an IPv4 address"),
            ("", "not an IPv4 address"),
        ] {
            let error = judge(&Applicant { ip, ..POD }, cidr(), None).unwrap_err();
            assert!(
                error.to_string().contains(text) && error.code() == 7,
                "{ip}: {error}"
            );
        }
    }
}
