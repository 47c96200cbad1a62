//! The pools of a network, and what an ADD requests from each.
//!
//! Ranges of one CIDR share a pool, so they are requested in one claim: that is what keeps two of them from
//! getting the same address. A static address is requested from the pool of its own network, the one that a range
//! over the same network would use.

use std::net::IpAddr;
use std::sync::Arc;

use berth_api::names;
use berth_cni::result::IpConfig;
use berth_core::{Address, AddressRequest, Prefix, Space};
use berth_ledger::PoolKey;
use berth_slices::{Mode, Sliced};
use ipnet::IpNet;

use crate::config::{PodNetwork, RangeConfig, StaticAddress};

/// The pools of a network, in the order of its configuration.
#[derive(Debug, Clone)]
pub struct Layout {
    pub pools: Vec<PoolWants>,
    /// One per address of the result, in its order: ranges first, then static addresses.
    pub slots: Vec<Slot>,
}

/// One pool and what is requested from it.
#[derive(Debug, Clone)]
pub struct PoolWants {
    pub key: PoolKey,
    /// Which slot each want fills. Named addresses come first: a free choice must not take what the owner holds
    /// by name.
    pub wants: Vec<(usize, AddressRequest)>,
    /// The range, where its addresses are allocated from slices of this node.
    pub sliced: Option<Arc<Sliced>>,
    /// The range, where it is not sliced: it may have been.
    pub plain: Option<Arc<Sliced>>,
}

/// How an address appears in the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub network: Prefix,
    pub gateway: Option<Address>,
    /// The address, where it is named and not chosen.
    pub named: Option<Address>,
    /// Not recorded: a static address of a network that does not have them checked.
    pub unrecorded: bool,
}

impl Layout {
    pub fn of(network: &PodNetwork) -> Layout {
        let mut layout = Layout {
            pools: Vec::new(),
            slots: Vec::new(),
        };
        for range in &network.ranges {
            layout.add_range(network, range);
        }
        for one in &network.addresses {
            layout.add_static(network, one);
        }
        for pool in &mut layout.pools {
            pool.wants.sort_by_key(|(_, want)| want.exact.is_none());
        }
        layout
    }

    fn add_range(&mut self, network: &PodNetwork, range: &RangeConfig) {
        let slot = self.slots.len();
        self.slots.push(Slot {
            network: range.spec.prefix,
            gateway: range.gateway,
            named: range.wanted,
            unrecorded: false,
        });
        let space = Arc::clone(&range.space);
        let want = match range.wanted {
            Some(address) => AddressRequest::exactly(space, address),
            None => AddressRequest::any(space),
        };
        let pool = self.pool(network, range.spec.prefix);
        pool.wants.push((slot, want));
    }

    fn add_static(&mut self, network: &PodNetwork, one: &StaticAddress) {
        let slot = self.slots.len();
        self.slots.push(Slot {
            network: one.network,
            gateway: one.gateway,
            named: Some(one.address),
            unrecorded: !network.settings.check_addresses,
        });
        if network.settings.check_addresses {
            let want = AddressRequest::exactly(Arc::new(Space::only(one.address)), one.address);
            self.pool(network, one.network).wants.push((slot, want));
        }
    }

    fn pool(&mut self, network: &PodNetwork, prefix: Prefix) -> &mut PoolWants {
        let range = range_of(network, prefix);
        let (sliced, plain) = if network.is_sliced() {
            (range, None)
        } else {
            (None, range)
        };
        let key = match &sliced {
            Some(sliced) => sliced.key(),
            None => PoolKey::of_network(names::pool(&network.network_name, "", prefix), prefix),
        };
        let place = match self.pools.iter().position(|pool| pool.key == key) {
            Some(place) => place,
            None => {
                self.pools.push(PoolWants {
                    key,
                    wants: Vec::new(),
                    sliced: sliced.map(Arc::new),
                    plain: plain.map(Arc::new),
                });
                self.pools.len() - 1
            }
        };
        &mut self.pools[place]
    }
}

/// The range of that network. A static address may be of none.
fn range_of(network: &PodNetwork, prefix: Prefix) -> Option<Sliced> {
    let is_of = |range: &&RangeConfig| range.spec.prefix == prefix;
    let place = network.ranges.iter().position(|range| is_of(&range))?;
    let mut spaces = network.ranges.iter().filter(is_of);
    let first = Arc::clone(&spaces.next()?.space);
    let usable = spaces.fold(first, |all, range| match all.covers(&range.space) {
        true => all,
        false => Arc::new(all.joined(&range.space)),
    });
    let further = (place > 0).then_some(prefix);
    // A reservation that is created later does not protect against networks that allocate in another way meanwhile.
    let may_be_late = network.is_sliced() && network.settings.reserve_later;
    let mode = match network.node_slice_size {
        Some(_) => Mode::Assigned,
        None => Mode::Elastic {
            size: network.settings.slice_size.map(|size| match further {
                None => size,
                // As many addresses as in the first range, of whichever family.
                Some(_) => {
                    let first = network
                        .ranges
                        .first()
                        .map_or(prefix, |first| first.spec.prefix);
                    let bits = first.family().bits().saturating_sub(size);
                    prefix.family().bits() - bits.min(prefix.host_bits())
                }
            }),
            borrow: network.settings.slice_borrow,
        },
    };
    Some(Sliced {
        network: network.network_name.clone(),
        slice_pool: names::slice_pool(&network.network_name, &network.name, further),
        range: prefix,
        usable,
        mode,
        checked: network.overlap_checks && !may_be_late,
    })
}

impl Slot {
    /// The address as the result has it. The length is that of the configured range.
    pub fn ip_config(&self, address: Address) -> IpConfig {
        let address = IpAddr::from(address);
        let length = self.network.length();
        IpConfig {
            // A length that does not fit the family cannot get here: the prefix is of the address's family.
            address: IpNet::new(address, length).unwrap_or_else(|_| IpNet::from(address)),
            gateway: self.gateway.map(IpAddr::from),
        }
    }
}
