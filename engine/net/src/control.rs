//! Socket addresses and control messages, as the bytes that the kernel reads and writes.
//!
//! The kernel defines their layout, independent of the C library, so this module needs no pointers.

#![expect(clippy::host_endian_bytes, reason = "the kernel's structures are in host order")]

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::batch::Peer;

/// Bytes for the address of a peer: `sockaddr_in6` is 28 bytes, `sockaddr_in` is 16.
pub(crate) const NAME_LEN: usize = 32;

/// Bytes for a control message with an address and an interface: `in6_pktinfo`, with its header.
pub(crate) const ADDRESS_LEN: usize = HEADER_LEN + 24;

/// Bytes for a control message with the length of the segments of a train, received or to be sent.
pub(crate) const SEGMENT_LEN: usize = HEADER_LEN + 8;

/// Bytes for both.
pub(crate) const CONTROL_LEN: usize = ADDRESS_LEN + SEGMENT_LEN;

/// Bytes of length, level and type before each control message.
const HEADER_LEN: usize = size_of::<usize>() + 8;

#[expect(clippy::cast_possible_truncation, reason = "address families are small numbers")]
const AF_INET: u16 = libc::AF_INET as u16;
#[expect(clippy::cast_possible_truncation, reason = "address families are small numbers")]
const AF_INET6: u16 = libc::AF_INET6 as u16;

const _: () = assert!(size_of::<libc::sockaddr_in6>() <= NAME_LEN);
const _: () = assert!(size_of::<libc::cmsghdr>() == HEADER_LEN);
const _: () = assert!(size_of::<libc::in6_pktinfo>() == 20 && size_of::<libc::in_pktinfo>() == 12);

/// The family of addresses that a socket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressFamily {
    V4,
    V6,
}

impl AddressFamily {
    pub(crate) fn of(address: SocketAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Decodes `name` and `control` of a received message: the peer, and the length of the segments if
/// it is a train. `None` if `name` is not an IP address.
pub(crate) fn decode(name: &[u8], control: &[u8]) -> Option<(Peer, Option<usize>)> {
    let (remote, scope_id) = match u16::from_ne_bytes(field(name, 0)?) {
        AF_INET => (Ipv4Addr::from(field::<4>(name, 4)?).to_ipv6_mapped(), 0),
        AF_INET6 => (Ipv6Addr::from(field::<16>(name, 8)?), u32::from_ne_bytes(field(name, 24)?)),
        _ => return None,
    };
    let port = u16::from_be_bytes(field(name, 2)?);
    let mut peer = Peer { remote, local: Ipv6Addr::UNSPECIFIED, scope_id, interface: 0, port };
    let mut segment_len = None;
    // A socket that is bound to a single address gets no control messages, except with trains.
    let mut rest = control;
    while let Some(next) = decode_next(rest, &mut peer, &mut segment_len) {
        rest = next;
    }
    Some((peer, segment_len))
}

/// Decodes one control message, and returns the bytes behind it.
fn decode_next<'a>(control: &'a [u8], peer: &mut Peer, segment_len: &mut Option<usize>) -> Option<&'a [u8]> {
    let len = usize::from_ne_bytes(field(control, 0)?);
    let level = i32::from_ne_bytes(field(control, size_of::<usize>())?);
    let kind = i32::from_ne_bytes(field(control, size_of::<usize>() + 4)?);
    let data = control.get(HEADER_LEN..len)?;
    let (local, interface) = match (level, kind) {
        // `ipi_spec_dst`, not `ipi_addr`, because for a broadcast it is the address to answer from.
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            (Ipv4Addr::from(field::<4>(data, 4)?).to_ipv6_mapped(), field(data, 0)?)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => (Ipv6Addr::from(field::<16>(data, 0)?), field(data, 16)?),
        (libc::SOL_UDP, libc::UDP_GRO) => {
            *segment_len = usize::try_from(i32::from_ne_bytes(field(data, 0)?)).ok().filter(|&len| len > 0);
            return control.get(len.next_multiple_of(size_of::<usize>())..);
        }
        _ => return control.get(len.next_multiple_of(size_of::<usize>())..),
    };
    // Not an address to answer from: it is a multicast group, or the kernel did not know it when it
    // queued the datagram.
    let usable = match local.to_ipv4_mapped() {
        Some(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
        None => !local.is_multicast(),
    };
    if usable {
        (peer.local, peer.interface) = (local, u32::from_ne_bytes(interface));
    }
    control.get(len.next_multiple_of(size_of::<usize>())..)
}

/// Writes the address of `peer` for a socket of `family`, and returns its length.
///
/// An IPv6 peer of an IPv4 socket is written unchanged, and the kernel refuses it.
pub(crate) fn encode_name(peer: &Peer, family: AddressFamily, name: &mut [u8; NAME_LEN]) -> u32 {
    *name = [0; NAME_LEN];
    name[2..4].copy_from_slice(&peer.port.to_be_bytes());
    if family == AddressFamily::V4
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

/// Writes the control messages that make a datagram leave from the local address of `peer` and, if
/// the length of its segments is given, as a train.
///
/// Returns their length, 0 if none are needed.
#[inline]
pub(crate) fn encode(
    peer: &Peer,
    family: AddressFamily,
    segment_len: Option<u16>,
    control: &mut [u8; CONTROL_LEN],
) -> usize {
    let address_len = encode_local(peer, family, control);
    match (segment_len, control[address_len..].first_chunk_mut()) {
        (Some(segment_len), Some(buffer)) => {
            encode_segment_len(segment_len, buffer);
            address_len + SEGMENT_LEN
        }
        _ => address_len,
    }
}

fn encode_local(peer: &Peer, family: AddressFamily, control: &mut [u8; CONTROL_LEN]) -> usize {
    if peer.local.is_unspecified() {
        return 0;
    }
    let mut data = [0; 20];
    let (level, kind, data_len) = match (family, peer.local.to_ipv4_mapped()) {
        (AddressFamily::V4, Some(local)) => {
            data[4..8].copy_from_slice(&local.octets());
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12)
        }
        _ => {
            data[..16].copy_from_slice(&peer.local.octets());
            // Only for link-local addresses, which need it. For others it would override the
            // routing table.
            if peer.local.is_unicast_link_local() {
                data[16..20].copy_from_slice(&peer.interface.to_ne_bytes());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20)
        }
    };
    put(level, kind, &data[..data_len], control)
}

fn encode_segment_len(segment_len: u16, control: &mut [u8; SEGMENT_LEN]) {
    put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment_len.to_ne_bytes(), control);
}

/// Writes a control message to the start of `control`. Returns its length with the padding that
/// aligns the next one.
fn put(level: i32, kind: i32, data: &[u8], control: &mut [u8]) -> usize {
    let len = HEADER_LEN + data.len();
    let (len_field, rest) = control.split_at_mut(size_of::<usize>());
    len_field.copy_from_slice(&len.to_ne_bytes());
    rest[..4].copy_from_slice(&level.to_ne_bytes());
    rest[4..8].copy_from_slice(&kind.to_ne_bytes());
    let aligned_len = len.next_multiple_of(size_of::<usize>());
    control[HEADER_LEN..len].copy_from_slice(data);
    control[len..aligned_len].fill(0);
    aligned_len
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

    fn encoded(peer: &Peer, family: AddressFamily) -> (Vec<u8>, Vec<u8>) {
        encoded_train(peer, family, None)
    }

    fn encoded_train(peer: &Peer, family: AddressFamily, segment_len: Option<u16>) -> (Vec<u8>, Vec<u8>) {
        let (mut name, mut control) = ([0xff; NAME_LEN], [0xff; CONTROL_LEN]);
        let name_len = encode_name(peer, family, &mut name) as usize;
        let control_len = encode(peer, family, segment_len, &mut control);
        (name[..name_len].to_vec(), control[..control_len].to_vec())
    }

    /// A control message as the kernel writes it for a received train.
    fn received_segment_len(len: i32) -> Vec<u8> {
        let mut control = [0xff; SEGMENT_LEN];
        let len = put(libc::SOL_UDP, libc::UDP_GRO, &len.to_ne_bytes(), &mut control);
        control[..len].to_vec()
    }

    #[test]
    fn peers_survive_the_round_trip() {
        for (remote, local, family) in [
            ("192.0.2.1:2641", "198.51.100.7", AddressFamily::V4),
            ("192.0.2.1:2641", "198.51.100.7", AddressFamily::V6),
            ("[2001:db8::1]:2641", "2001:db8::2", AddressFamily::V6),
            ("[fe80::1%3]:2641", "::", AddressFamily::V6),
        ] {
            let peer = peer(remote, local);
            let (name, control) = encoded(&peer, family);
            assert_eq!(decode(&name, &control), Some((peer, None)), "{remote} {local}");
        }
    }

    #[test]
    fn only_link_local_answers_are_tied_to_an_interface() {
        for (local, interface) in [("fe80::2", 3), ("2001:db8::2", 0)] {
            let peer = Peer { interface: 3, ..peer("[fe80::1%3]:9", local) };
            let (name, control) = encoded(&peer, AddressFamily::V6);
            assert_eq!(decode(&name, &control).unwrap().0.interface, interface, "{local}");
        }
    }

    #[test]
    fn multicast_groups_are_not_answered_from() {
        for local in ["224.0.0.1", "255.255.255.255", "ff02::1"] {
            let (name, control) = encoded(&peer("[2001:db8::1]:9", local), AddressFamily::V6);
            assert_eq!(decode(&name, &control).unwrap().0.local(), None, "{local}");
        }
    }

    #[test]
    fn finds_its_messages_in_any_order_and_behind_others() {
        let peer = peer("192.0.2.1:9", "198.51.100.7");
        let (name, address) = encoded(&peer, AddressFamily::V4);
        let train = received_segment_len(1472);
        let mut other = [0xff; SEGMENT_LEN];
        let len = put(libc::SOL_SOCKET, 9999, &[1, 2, 3, 4], &mut other);
        let other = other[..len].to_vec();
        for control in [
            [&*other, &address, &train].concat(),
            [&*train, &other, &address].concat(),
            [&*address, &train].concat(),
        ] {
            assert_eq!(decode(&name, &control), Some((peer, Some(1472))));
        }
        assert_eq!(decode(&name, &[other, address].concat()), Some((peer, None)));
    }

    #[test]
    fn trains_have_the_local_address_and_the_segment_length() {
        for local in ["0.0.0.0", "198.51.100.7"] {
            let peer = peer("192.0.2.1:9", local);
            let (_, alone) = encoded(&peer, AddressFamily::V4);
            let (_, train) = encoded_train(&peer, AddressFamily::V4, Some(512));
            let (address, segment) = train.split_at(alone.len());
            assert_eq!(address, alone);
            let expected = [
                &(HEADER_LEN + 2).to_ne_bytes()[..],
                &libc::SOL_UDP.to_ne_bytes(),
                &libc::UDP_SEGMENT.to_ne_bytes(),
                &512u16.to_ne_bytes(),
                &[0; 6],
            ]
            .concat();
            assert_eq!(segment, expected);
        }
    }

    #[test]
    fn segments_of_no_length_are_no_train() {
        let (name, _) = encoded(&peer("192.0.2.1:9", "0.0.0.0"), AddressFamily::V4);
        for len in [0, -1, i32::MIN] {
            assert_eq!(decode(&name, &received_segment_len(len)).unwrap().1, None, "{len}");
        }
        let whole = received_segment_len(7);
        for len in 0..HEADER_LEN + 4 {
            assert_eq!(decode(&name, &whole[..len]).unwrap().1, None, "cut to {len}");
        }
    }

    #[test]
    fn refuses_every_truncation_and_lengths_that_lie() {
        let (name, control) = encoded(&peer("[2001:db8::1]:9", "2001:db8::2"), AddressFamily::V6);
        for len in 0..name.len() {
            assert_eq!(decode(&name[..len], &control), None, "cut to {len}");
        }
        for len in 0..HEADER_LEN + 20 {
            assert_eq!(decode(&name, &control[..len]).unwrap().0.local(), None, "cut to {len}");
        }
        for len in [0, 1, HEADER_LEN - 1, HEADER_LEN, usize::MAX] {
            let mut control = control.clone();
            control[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(decode(&name, &control).unwrap().0.local(), None, "claims {len}");
        }
        assert_eq!(decode(&[0; NAME_LEN], &control), None, "AF_UNSPEC");
    }
}
