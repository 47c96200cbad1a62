//! What the users of each front expect of a range, as data.
//!
//! The fronts withhold different addresses and tolerate different typing errors. None of that is a branch in the
//! engine: a dialect is a row in a table that [`Space`] reads. A new front adds a row.
//!
//! [`Space`]: crate::Space

use serde::{Deserialize, Deserializer, Serialize};

/// Which of a network's own addresses are withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// The first address of the prefix (in IPv6 the subnet-router anycast address).
    pub network: bool,
    /// The last address, in IPv4.
    pub last_v4: bool,
    /// The last address, in IPv6, where it has no special meaning.
    pub last_v6: bool,
    /// The range's gateway, when it has one.
    pub gateway: bool,
    /// In IPv4 prefixes up to this length, every address that ends in .0 or .255.
    pub octet_ends_up_to: Option<u8>,
}

/// Prefixes that would have no address left (/31, /32, /127, /128).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tiny {
    Refuse,
    /// Every address may be used: point-to-point links and single hosts.
    Whole,
}

/// What a bound outside the usable addresses means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bounds {
    Refuse,
    /// Ignored with a [`Warning`](crate::Warning): live clusters depend on it.
    Ignore,
}

/// How addresses are numbered where a front stores offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Numbering {
    /// Distance from the network address.
    FromNetwork,
    /// Position among the addresses that can have an offset, counted from the start of the range.
    FromStart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Dialect {
    pub name: &'static str,
    pub withheld: Withheld,
    pub tiny: Tiny,
    pub bounds: Bounds,
    /// Whether exclude entries may overlap, or are refused as a typing error.
    pub excludes_may_overlap: bool,
    pub numbering: Numbering,
}

/// whereabouts: the first and last address are withheld in IPv6 too; the gateway is not, unless a setting says so.
pub const WHEREABOUTS: Dialect = Dialect {
    name: "whereabouts",
    withheld: Withheld {
        network: true,
        last_v4: true,
        last_v6: true,
        gateway: false,
        octet_ends_up_to: None,
    },
    tiny: Tiny::Refuse,
    bounds: Bounds::Ignore,
    excludes_may_overlap: true,
    numbering: Numbering::FromNetwork,
};

/// NodeIPPool: .0 and .255 have no offset in large IPv4 networks.
pub const NODE_IP_POOL: Dialect = Dialect {
    name: "NodeIPPool",
    withheld: Withheld {
        network: true,
        last_v4: true,
        last_v6: false,
        gateway: true,
        octet_ends_up_to: Some(24),
    },
    tiny: Tiny::Whole,
    bounds: Bounds::Refuse,
    excludes_may_overlap: false,
    numbering: Numbering::FromStart,
};

/// A list of pre-created VMs: every listed address may be allocated.
pub const VM_LIST: Dialect = Dialect {
    name: "VM list",
    withheld: Withheld {
        network: false,
        last_v4: false,
        last_v6: false,
        gateway: false,
        octet_ends_up_to: None,
    },
    tiny: Tiny::Whole,
    bounds: Bounds::Refuse,
    excludes_may_overlap: false,
    numbering: Numbering::FromNetwork,
};

/// Google Cloud's secondary ranges: network, broadcast and gateway belong to the cloud.
pub const GCP: Dialect = Dialect {
    name: "gcp",
    withheld: Withheld {
        network: true,
        last_v4: true,
        last_v6: true,
        gateway: true,
        octet_ends_up_to: None,
    },
    tiny: Tiny::Refuse,
    bounds: Bounds::Refuse,
    excludes_may_overlap: false,
    numbering: Numbering::FromNetwork,
};

/// The dialects by their names.
const ALL: [Dialect; 4] = [WHEREABOUTS, NODE_IP_POOL, VM_LIST, GCP];

impl<'de> Deserialize<'de> for Dialect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The same fields with an owned name, which is checked afterwards.
        #[derive(Deserialize)]
        struct Form {
            name: String,
            withheld: Withheld,
            tiny: Tiny,
            bounds: Bounds,
            excludes_may_overlap: bool,
            numbering: Numbering,
        }
        let form = Form::deserialize(deserializer)?;
        let Some(named) = ALL.iter().find(|dialect| dialect.name == form.name) else {
            let text = format!("dialect: `{}` is none of ours", form.name);
            return Err(serde::de::Error::custom(text));
        };
        Ok(Self {
            name: named.name,
            withheld: form.withheld,
            tiny: form.tiny,
            bounds: form.bounds,
            excludes_may_overlap: form.excludes_may_overlap,
            numbering: form.numbering,
        })
    }
}

impl Dialect {
    /// The same dialect, but the gateway is withheld too.
    #[must_use]
    pub const fn withholding_gateway(mut self) -> Self {
        self.withheld.gateway = true;
        self
    }

    /// The same dialect, but /31, /32, /127 and /128 can be used.
    #[must_use]
    pub const fn with_tiny_networks(mut self) -> Self {
        self.tiny = Tiny::Whole;
        self
    }
}
