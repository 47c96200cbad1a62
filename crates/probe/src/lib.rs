//! Probes a link for addresses that another machine uses: a host with a fixed address in the range, a pod of a cluster
//! that was restored from a backup.
//!
//! Sends ARP probes and neighbour solicitations on an interface of this host. Silence is no proof, which is why a probe
//! comes on top of the pool's record and never in its place. Interfaces of pods on the same macvlan master do not
//! receive the master's frames; those addresses are in the pool.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod packet;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use berth_core::Address;
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

/// Probes that are sent for one address: a frame may be lost.
const TRIES: u32 = 3;
/// How long an answer to each may take.
const WAIT: Duration = Duration::from_millis(100);

/// The link that is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub interface: String,
    /// The network namespace that it is in; none for this process's own.
    pub netns: Option<PathBuf>,
}

/// Why the link can't be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("interface {0} does not exist")]
    NoInterface(String),
    #[error("interface {0} has no Ethernet address, so it can't be probed")]
    NotEthernet(String),
    #[error(
        "interface {0} can't be used for a probe: that needs the capability NET_RAW, which deploy/probe and deploy/nodes add to the agent's (docs/install.md, Rights)"
    )]
    NotAllowed(String),
    #[error("interface {interface} can't be used for a probe: {why}")]
    Io { interface: String, why: String },
}

/// The hardware address of an Ethernet interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Who uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// This host, on any of its interfaces.
    ThisHost,
    /// Another machine, which answered from this hardware address.
    Other(Mac),
}

/// Probes for all of the addresses at once: those that are in use, by this host or another machine.
pub async fn in_use(link: Link, addresses: Vec<Address>) -> Result<Vec<Address>, ProbeError> {
    let users = users(link, addresses).await?;
    Ok(users.into_keys().collect())
}

/// Probes for all of the addresses at once: which machine uses each that is in use. Another machine that answers for
/// an address of this host is reported; answers from this host's own interfaces are ignored.
pub async fn users(
    link: Link,
    addresses: Vec<Address>,
) -> Result<BTreeMap<Address, User>, ProbeError> {
    let (sender, answer) = oneshot::channel();
    let failed = |why: String| ProbeError::Io {
        interface: link.interface.clone(),
        why,
    };
    let asked = link.clone();
    // A separate thread: it may move into another network namespace, where no other task must run.
    let thread = std::thread::Builder::new().name("probe".to_owned());
    thread
        .spawn(move || sender.send(ask(&asked, &addresses)))
        .map_err(|error| failed(error.to_string()))?;
    answer
        .await
        .unwrap_or_else(|_| Err(failed("the probe broke off".to_owned())))
}

fn ask(link: &Link, addresses: &[Address]) -> Result<BTreeMap<Address, User>, ProbeError> {
    let failed = |error: io::Error| ProbeError::Io {
        interface: link.interface.clone(),
        why: error.to_string(),
    };
    if let Some(path) = &link.netns {
        let netns = File::open(path).map_err(failed)?;
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| failed(error.into()))?;
    }
    let interfaces = pnet_datalink::interfaces();
    let interface = interfaces
        .iter()
        .find(|found| found.name == link.interface)
        .ok_or_else(|| ProbeError::NoInterface(link.interface.clone()))?;
    let mac = interface
        .mac
        .ok_or_else(|| ProbeError::NotEthernet(link.interface.clone()))?;
    let wanted: BTreeSet<IpAddr> = addresses.iter().map(|address| (*address).into()).collect();
    let own = interfaces.iter().filter_map(|one| one.mac);
    let own: Vec<Mac> = own.map(|mac| Mac(mac.octets())).collect();
    let mut others = BTreeMap::new();
    let (mut sender, mut receiver) = open(interface, link)?;
    for _ in 0..TRIES {
        for address in wanted.iter().filter(|one| !others.contains_key(*one)) {
            let frame = packet::question(*address, mac.octets());
            match sender.send_to(&frame, None) {
                Some(sent) => sent.map_err(failed)?,
                None => return Err(failed(io::Error::other("the frame does not fit"))),
            }
        }
        listen(receiver.as_mut(), &wanted, &own, &mut others).map_err(failed)?;
    }
    // The kernel does not answer itself.
    let here = interfaces.iter().flat_map(|interface| &interface.ips);
    let here = here.map(|network| network.ip());
    let mut users: BTreeMap<Address, User> = here
        .filter(|ip| wanted.contains(ip))
        .map(|ip| (Address::from(ip), User::ThisHost))
        .collect();
    let others = others.into_iter();
    users.extend(others.map(|(ip, mac)| (Address::from(ip), User::Other(mac))));
    Ok(users)
}

type Ends = (Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>);

fn open(interface: &NetworkInterface, link: &Link) -> Result<Ends, ProbeError> {
    let config = Config {
        read_timeout: Some(WAIT / 4),
        ..Config::default()
    };
    let failed = |why: String| ProbeError::Io {
        interface: link.interface.clone(),
        why,
    };
    match pnet_datalink::channel(interface, config) {
        Ok(Channel::Ethernet(sender, receiver)) => Ok((sender, receiver)),
        Ok(_) => Err(failed("it carries no Ethernet frames".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(ProbeError::NotAllowed(link.interface.clone()))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Listens for as long as an answer may take, or until all addresses are known to be in use.
fn listen(
    receiver: &mut dyn DataLinkReceiver,
    wanted: &BTreeSet<IpAddr>,
    own: &[Mac],
    others: &mut BTreeMap<IpAddr, Mac>,
) -> io::Result<()> {
    let end = Instant::now() + WAIT;
    while Instant::now() < end && others.len() < wanted.len() {
        match receiver.next() {
            Ok(frame) => {
                let answer = packet::answer(frame).map(|(ip, mac)| (ip, Mac(mac)));
                let other = |(ip, mac): &(IpAddr, Mac)| wanted.contains(ip) && !own.contains(mac);
                others.extend(answer.filter(other));
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
