//! The frames of a probe, and the meaning of received frames. Pure.
//!
//! An ARP probe (RFC 5227) names no sender, so that no neighbour learns a wrong owner from it. A
//! neighbour solicitation of duplicate address detection (RFC 4862) does the same in IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const ETHER_ARP: u16 = 0x0806;
const ETHER_IPV6: u16 = 0x86dd;
const ETHERNET: usize = 14;
const ARP: usize = 28;
const IPV6: usize = 40;
/// Type, code, checksum, reserved, target.
const NEIGHBOUR: usize = 24;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The frame that asks whether a machine has the address.
pub fn question(address: IpAddr, from: Mac) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp_probe(address, from),
        IpAddr::V6(address) => solicitation(address, from),
    }
}

/// The address that a frame shows to be in use, and the hardware address that sent the frame; `None` if it shows
/// none.
pub fn answer(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    let (head, body) = frame.split_at_checked(ETHERNET)?;
    let address = match u16::from_be_bytes([head[12], head[13]]) {
        ETHER_ARP => IpAddr::V4(arp_sender(body)?),
        ETHER_IPV6 => IpAddr::V6(advertised(body)?),
        _ => return None,
    };
    Some((address, head[6..12].try_into().ok()?))
}

fn ethernet(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + IPV6 + NEIGHBOUR);
    frame.extend(to);
    frame.extend(from);
    frame.extend(kind.to_be_bytes());
    frame
}

fn arp_probe(address: Ipv4Addr, from: Mac) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, from, ETHER_ARP);
    // Ethernet, IPv4, their lengths, request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from);
    frame.extend(Ipv4Addr::UNSPECIFIED.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

/// Every ARP packet, question or answer, names its sender's address.
fn arp_sender(body: &[u8]) -> Option<Ipv4Addr> {
    let arp = body.get(..ARP)?;
    (arp[..6] == [0, 1, 8, 0, 6, 4]).then_some(())?;
    let sender = Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]);
    (!sender.is_unspecified()).then_some(sender)
}

fn solicitation(address: Ipv6Addr, from: Mac) -> Vec<u8> {
    let target = address.octets();
    let [.., a, b, c] = target;
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    let mut frame = ethernet([0x33, 0x33, 0xff, a, b, c], from, ETHER_IPV6);
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target);
    let sum = checksum(Ipv6Addr::UNSPECIFIED, group, &message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    frame.extend([0x60, 0, 0, 0, 0, NEIGHBOUR as u8, ICMPV6, 255]);
    frame.extend(Ipv6Addr::UNSPECIFIED.octets());
    frame.extend(group.octets());
    frame.extend(message);
    frame
}

fn advertised(body: &[u8]) -> Option<Ipv6Addr> {
    let (head, message) = body.split_at_checked(IPV6)?;
    let message = message.get(..NEIGHBOUR)?;
    // A hop limit of 255 shows that it comes from this link.
    let ours = head[0] >> 4 == 6 && head[6] == ICMPV6 && head[7] == 255;
    (ours && message[0] == ADVERTISEMENT).then_some(())?;
    let target: [u8; 16] = message[8..].try_into().ok()?;
    Some(Ipv6Addr::from(target))
}

/// The Internet checksum over the message and the pseudo header of IPv6.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        let pairs = bytes.chunks(2);
        pairs
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from))
            .sum()
    };
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut sum =
        words(&from.octets()) + words(&to.octets()) + words(message) + length + u32::from(ICMPV6);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];

    /// An answer as a host with the address would send it.
    fn arp_reply(sender: Ipv4Addr) -> Vec<u8> {
        let mut frame = arp_probe(Ipv4Addr::UNSPECIFIED, MAC);
        frame[21] = 2;
        frame[28..32].copy_from_slice(&sender.octets());
        frame
    }

    #[test]
    fn a_question_claims_nothing_and_an_answer_names_its_sender() {
        for address in ["10.0.0.5", "fd00::12:3456"] {
            let question = question(address.parse().unwrap(), MAC);
            assert_eq!(answer(&question), None, "our own question is no answer");
        }
        let host = Ipv4Addr::new(10, 0, 0, 5);
        assert_eq!(answer(&arp_reply(host)), Some((IpAddr::V4(host), MAC)));
        let target: Ipv6Addr = "fd00::5".parse().unwrap();
        let mut advertisement = solicitation(target, MAC);
        advertisement[ETHERNET + IPV6] = ADVERTISEMENT;
        assert_eq!(answer(&advertisement), Some((IpAddr::V6(target), MAC)));
        // From beyond a router, it proves nothing about this link.
        advertisement[ETHERNET + 7] = 64;
        assert_eq!(answer(&advertisement), None);
    }

    #[test]
    fn a_solicitation_goes_to_the_group_of_its_target_and_its_checksum_holds() {
        let target: Ipv6Addr = "fd00::12:3456".parse().unwrap();
        let frame = solicitation(target, MAC);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let group: [u8; 16] = frame[38..54].try_into().unwrap();
        assert_eq!(Ipv6Addr::from(group).to_string(), "ff02::1:ff12:3456");
        // Over a message with its checksum in place, the sum is zero.
        let sum = checksum(Ipv6Addr::UNSPECIFIED, group.into(), &frame[54..]);
        assert_eq!(sum, 0);
    }

    proptest! {
        #[test]
        fn nothing_that_comes_from_the_wire_can_hurt(frame in prop::collection::vec(any::<u8>(), 0..128)) {
            answer(&frame);
        }

        #[test]
        fn a_truncated_frame_shows_nothing(cut in 0..42usize) {
            let whole = arp_reply(Ipv4Addr::new(10, 0, 0, 5));
            prop_assert_eq!(answer(&whole[..cut]), None);
        }
    }
}
