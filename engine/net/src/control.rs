//! Socket addresses and control messages, as the bytes that the kernel reads and writes.
//!
//! Their layout is the kernel's and does not depend on the C library, so this needs no pointers.

#![expect(clippy::host_endian_bytes, reason = "the kernel's structures are in host order")]

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::batch::Peer;

/// Room for the address of a peer: `sockaddr_in6` is 28 bytes, `sockaddr_in` is 16.
pub(crate) const NAME_LEN: usize = 32;

/// Room for one control message with an address and an interface: `in6_pktinfo`, with its header.
pub(crate) const CONTROL_LEN: usize = HEADER_LEN + 24;

/// Length, level and type in front of each control message.
const HEADER_LEN: usize = size_of::<usize>() + 8;

#[expect(clippy::cast_possible_truncation, reason = "address families are small numbers")]
const AF_INET: u16 = libc::AF_INET as u16;
#[expect(clippy::cast_possible_truncation, reason = "address families are small numbers")]
const AF_INET6: u16 = libc::AF_INET6 as u16;

const _: () = assert!(size_of::<libc::sockaddr_in6>() <= NAME_LEN);
const _: () = assert!(size_of::<libc::cmsghdr>() == HEADER_LEN);
const _: () = assert!(size_of::<libc::in6_pktinfo>() == 20 && size_of::<libc::in_pktinfo>() == 12);

/// Which kind of addresses a socket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(address: SocketAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The peer that `name` and `control` of a received message tell of. `None` if `name` is no IP address.
pub(crate) fn decode(name: &[u8], control: &[u8]) -> Option<Peer> {
    let (remote, scope_id) = match u16::from_ne_bytes(field(name, 0)?) {
        AF_INET => (Ipv4Addr::from(field::<4>(name, 4)?).to_ipv6_mapped(), 0),
        AF_INET6 => (Ipv6Addr::from(field::<16>(name, 8)?), u32::from_ne_bytes(field(name, 24)?)),
        _ => return None,
    };
    let port = u16::from_be_bytes(field(name, 2)?);
    let (local, interface) = decode_local(control).unwrap_or((Ipv6Addr::UNSPECIFIED, 0));
    Some(Peer { remote, local, scope_id, interface, port })
}

/// The address that was asked, and where it arrived.
fn decode_local(mut control: &[u8]) -> Option<(Ipv6Addr, u32)> {
    loop {
        let len = usize::from_ne_bytes(field(control, 0)?);
        let level = i32::from_ne_bytes(field(control, size_of::<usize>())?);
        let kind = i32::from_ne_bytes(field(control, size_of::<usize>() + 4)?);
        let data = control.get(HEADER_LEN..len)?;
        let (local, interface) = match (level, kind) {
            // `ipi_spec_dst`, not `ipi_addr`: for a broadcast it is the address to answer from.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                (Ipv4Addr::from(field::<4>(data, 4)?).to_ipv6_mapped(), field(data, 0)?)
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                (Ipv6Addr::from(field::<16>(data, 0)?), field(data, 16)?)
            }
            _ => {
                control = control.get(len.next_multiple_of(size_of::<usize>())..)?;
                continue;
            }
        };
        // Not an address to answer from: a group, or the kernel did not know it when it queued this.
        let usable = match local.to_ipv4_mapped() {
            Some(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
            None => !local.is_multicast(),
        };
        return usable.then_some((local, u32::from_ne_bytes(interface)));
    }
}

/// Writes the address of `peer` for a socket of `family`, and returns its length.
///
/// An IPv6 peer of an IPv4 socket is written as it is, and the kernel refuses it.
pub(crate) fn encode_name(peer: &Peer, family: Family, name: &mut [u8; NAME_LEN]) -> u32 {
    *name = [0; NAME_LEN];
    name[2..4].copy_from_slice(&peer.port.to_be_bytes());
    if family == Family::V4
        && let Some(ip) = peer.remote.to_ipv4_mapped()
    {
        name[..2].copy_from_slice(&AF_INET.to_ne_bytes());
        name[4..8].copy_from_slice(&ip.octets());
        return 16;
    }
    name[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
    name[8..24].copy_from_slice(&peer.remote.octets());
    name[24..28].copy_from_slice(&peer.scope_id.to_ne_bytes());
    28
}

/// Writes the control message that makes a datagram leave from the address `peer` asked.
///
/// Returns its length, 0 when there is nothing to say.
pub(crate) fn encode_local(peer: &Peer, family: Family, control: &mut [u8; CONTROL_LEN]) -> usize {
    if peer.local.is_unspecified() {
        return 0;
    }
    *control = [0; CONTROL_LEN];
    let (header, data) = control.split_at_mut(HEADER_LEN);
    let (level, kind, data_len) = match (family, peer.local.to_ipv4_mapped()) {
        (Family::V4, Some(local)) => {
            data[4..8].copy_from_slice(&local.octets());
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12)
        }
        _ => {
            data[..16].copy_from_slice(&peer.local.octets());
            // Only where it is needed: elsewhere it would override the routing table.
            if peer.local.is_unicast_link_local() {
                data[16..20].copy_from_slice(&peer.interface.to_ne_bytes());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20)
        }
    };
    let (len, rest) = header.split_at_mut(size_of::<usize>());
    len.copy_from_slice(&(HEADER_LEN + data_len).to_ne_bytes());
    rest[..4].copy_from_slice(&level.to_ne_bytes());
    rest[4..].copy_from_slice(&kind.to_ne_bytes());
    HEADER_LEN + usize::next_multiple_of(data_len, size_of::<usize>())
}

/// The `N` bytes at `at`.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(remote: &str, local: &str) -> Peer {
        let local = match local.parse::<core::net::IpAddr>().unwrap() {
            core::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            core::net::IpAddr::V6(ip) => ip,
        };
        Peer { local, ..Peer::to(remote.parse().unwrap()) }
    }

    fn encoded(peer: &Peer, family: Family) -> (Vec<u8>, Vec<u8>) {
        let (mut name, mut control) = ([0xff; NAME_LEN], [0xff; CONTROL_LEN]);
        let name_len = encode_name(peer, family, &mut name) as usize;
        let control_len = encode_local(peer, family, &mut control);
        (name[..name_len].to_vec(), control[..control_len].to_vec())
    }

    #[test]
    fn peers_survive_the_round_trip() {
        for (remote, local, family) in [
            ("192.0.2.1:2641", "198.51.100.7", Family::V4),
            ("192.0.2.1:2641", "198.51.100.7", Family::V6),
            ("[2001:db8::1]:2641", "2001:db8::2", Family::V6),
            ("[fe80::1%3]:2641", "::", Family::V6),
        ] {
            let peer = peer(remote, local);
            let (name, control) = encoded(&peer, family);
            assert_eq!(decode(&name, &control), Some(peer), "{remote} {local}");
        }
    }

    #[test]
    fn only_link_local_answers_are_tied_to_an_interface() {
        for (local, interface) in [("fe80::2", 3), ("2001:db8::2", 0)] {
            let peer = Peer { interface: 3, ..peer("[fe80::1%3]:9", local) };
            let (name, control) = encoded(&peer, Family::V6);
            assert_eq!(decode(&name, &control).unwrap().interface, interface, "{local}");
        }
    }

    #[test]
    fn groups_are_not_answered_from() {
        for local in ["224.0.0.1", "255.255.255.255", "ff02::1"] {
            let (name, control) = encoded(&peer("[2001:db8::1]:9", local), Family::V6);
            assert_eq!(decode(&name, &control).unwrap().local(), None, "{local}");
        }
    }

    #[test]
    fn finds_its_message_behind_others() {
        let peer = peer("192.0.2.1:9", "198.51.100.7");
        let (name, control) = encoded(&peer, Family::V4);
        let mut other = (HEADER_LEN + 4).to_ne_bytes().to_vec();
        other.extend([0; HEADER_LEN - size_of::<usize>() + 4]);
        other.resize(other.len().next_multiple_of(size_of::<usize>()), 0);
        assert_eq!(decode(&name, &[other, control].concat()), Some(peer));
    }

    #[test]
    fn refuses_every_truncation_and_lengths_that_lie() {
        let (name, control) = encoded(&peer("[2001:db8::1]:9", "2001:db8::2"), Family::V6);
        for len in 0..name.len() {
            assert_eq!(decode(&name[..len], &control), None, "cut to {len}");
        }
        for len in 0..HEADER_LEN + 20 {
            assert_eq!(decode(&name, &control[..len]).unwrap().local(), None, "cut to {len}");
        }
        for len in [0, 1, HEADER_LEN - 1, HEADER_LEN, usize::MAX] {
            let mut control = control.clone();
            control[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(decode(&name, &control).unwrap().local(), None, "claims {len}");
        }
        assert_eq!(decode(&[0; NAME_LEN], &control), None, "AF_UNSPEC");
    }
}
