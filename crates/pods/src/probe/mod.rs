//! Whether somebody on the link uses an address that the pool says is free: a host with a fixed address in the range, a
//! pod of a cluster that was restored from a backup.
//!
//! Asks by ARP and neighbour discovery on the host's own interface, the one that the network's interfaces hang on
//! (`master`, `bridge`), before the address is given. It finds whoever answers within a few tries: silence is no proof,
//! which is why it comes on top of the pool's record and never in its place. Interfaces of pods on the same macvlan master do
//! not hear the master; those addresses are in the pool.

mod packet;

use std::collections::BTreeSet;
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

/// Questions that are put for one address: a frame may be lost.
const TRIES: u32 = 3;
/// How long an answer to each may take.
const WAIT: Duration = Duration::from_millis(100);

/// The link that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub interface: String,
    /// The network namespace that it is in; none for this process's own.
    pub netns: Option<PathBuf>,
}

/// Why nobody could be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("interface {0} does not exist")]
    NoInterface(String),
    #[error("interface {0} has no Ethernet address: nobody can be asked on it")]
    NotEthernet(String),
    #[error(
        "interface {0} can't be used for a probe: that needs the capability NET_RAW, which the agent does not have unless deploy/probe gave it (docs/install.md, Rights)"
    )]
    NotAllowed(String),
    #[error("interface {interface} can't be used for a probe: {why}")]
    Io { interface: String, why: String },
}

/// Asks for all of the addresses at once; gives back those that somebody uses.
pub async fn in_use(link: Link, addresses: Vec<Address>) -> Result<Vec<Address>, ProbeError> {
    let (tell, told) = oneshot::channel();
    let failed = |why: String| ProbeError::Io {
        interface: link.interface.clone(),
        why,
    };
    let asked = link.clone();
    // A thread of its own: it may move into another network namespace, which no other task must find itself in.
    let thread = std::thread::Builder::new().name("probe".to_owned());
    thread
        .spawn(move || tell.send(ask(&asked, &addresses)))
        .map_err(|error| failed(error.to_string()))?;
    told.await
        .unwrap_or_else(|_| Err(failed("the probe broke off".to_owned())))
}

fn ask(link: &Link, addresses: &[Address]) -> Result<Vec<Address>, ProbeError> {
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
    // The kernel does not answer itself.
    let mut used: BTreeSet<IpAddr> = own(&interfaces).filter(|ip| wanted.contains(ip)).collect();
    let (mut sender, mut receiver) = open(interface, link)?;
    for _ in 0..TRIES {
        for address in wanted.difference(&used) {
            let frame = packet::question(*address, mac.octets());
            match sender.send_to(&frame, None) {
                Some(sent) => sent.map_err(failed)?,
                None => return Err(failed(io::Error::other("the frame does not fit"))),
            }
        }
        listen(receiver.as_mut(), &wanted, &mut used).map_err(failed)?;
    }
    Ok(used.into_iter().map(Address::from).collect())
}

fn own(interfaces: &[NetworkInterface]) -> impl Iterator<Item = IpAddr> {
    let networks = interfaces.iter().flat_map(|interface| &interface.ips);
    networks.map(|network| network.ip())
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

/// Listens for as long as an answer may take, or until all are known to be used.
fn listen(
    receiver: &mut dyn DataLinkReceiver,
    wanted: &BTreeSet<IpAddr>,
    used: &mut BTreeSet<IpAddr>,
) -> io::Result<()> {
    let end = Instant::now() + WAIT;
    while Instant::now() < end && used != wanted {
        match receiver.next() {
            Ok(frame) => used.extend(packet::answer(frame).filter(|ip| wanted.contains(ip))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
