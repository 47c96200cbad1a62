//! Where a connection comes from, for the purpose of limits.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The unit that limits apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// A process of this machine, through a unix socket that only root can open.
    Local,
    /// An IPv4 address, or the /64 of an IPv6 address: a host usually has all addresses of its /64.
    Net(IpAddr),
}

impl Peer {
    pub fn of(address: SocketAddr) -> Peer {
        Peer::Net(match address.ip().to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                let [a, b, c, d, ..] = v6.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            other => other,
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Local => f.write_str("a local process"),
            Peer::Net(address @ IpAddr::V4(_)) => address.fmt(f),
            Peer::Net(address) => write!(f, "{address}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_machine_are_one_peer() {
        let peer = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(peer("10.0.0.1:1"), peer("[::ffff:10.0.0.1]:2"));
        assert_eq!(peer("[fd00::1]:1"), peer("[fd00::9:2]:2"));
        assert_ne!(peer("[fd00::1]:1"), peer("[fd00:0:0:1::1]:1"));
        assert_ne!(peer("10.0.0.1:1"), peer("10.0.0.2:1"));
        assert_eq!(peer("[fd00::1]:1").to_string(), "fd00::/64");
    }
}
