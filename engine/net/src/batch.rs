//! Received datagrams: peers, datagrams, and batches of them.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::outbox::Outbox;

/// The other side of a datagram, and the local address that it used.
///
/// An answer to the peer of a received datagram leaves from the address that the datagram was sent
/// to.
// IPv4 addresses are kept in their mapped form, so that a peer has 44 bytes and is compared
// bytewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(crate) remote: Ipv6Addr,
    /// With `::` the kernel chooses.
    pub(crate) local: Ipv6Addr,
    pub(crate) scope_id: u32,
    /// The interface it arrived on, 0 if unknown. Used only for link-local addresses, which need
    /// it.
    pub(crate) interface: u32,
    pub(crate) port: u16,
}
const _: () = assert!(size_of::<Peer>() == 44, "a batch of peers stays in the first-level cache");

impl Peer {
    /// The peer at `remote`. The kernel chooses the local address to send from.
    pub fn to(remote: SocketAddr) -> Self {
        let (ip, scope_id) = match remote {
            SocketAddr::V4(remote) => (remote.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(remote) => (*remote.ip(), remote.scope_id()),
        };
        Self { remote: ip, local: Ipv6Addr::UNSPECIFIED, scope_id, interface: 0, port: remote.port() }
    }

    /// The same peer, with `local` as the address to send from. The socket must be bound to it or
    /// to a wildcard address that includes it.
    #[must_use]
    pub fn leaving_from(self, local: IpAddr) -> Self {
        let local = match local {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { local, ..self }
    }

    /// The address of the other side. An IPv4 peer of a dual-stack socket is given as IPv4.
    pub fn remote(&self) -> SocketAddr {
        match self.remote.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(IpAddr::V4(ip), self.port),
            None => core::net::SocketAddrV6::new(self.remote, self.port, 0, self.scope_id).into(),
        }
    }

    /// The address of the other side as a number, for IPv4 in its mapped form.
    #[inline]
    pub const fn remote_bits(&self) -> u128 {
        self.remote.to_bits()
    }

    /// The local address that the datagram was sent to, if the socket is bound to several.
    pub fn local(&self) -> Option<IpAddr> {
        (!self.local.is_unspecified()).then(|| self.local.to_canonical())
    }
}

/// A received datagram, or a train of them from one peer.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The payload. Every [`segment_len`](Self::segment_len) bytes are one datagram; the last may
    /// be shorter.
    pub bytes: &'a [u8],
    /// The sender, and the local address that it sent to.
    pub peer: Peer,
    /// Bytes of one datagram. For a single datagram, the length of `bytes`.
    pub segment_len: usize,
    /// Whether it was larger than a receive buffer. The rest is lost: the last segment is
    /// incomplete, and later ones are missing.
    pub truncated: bool,
}

impl<'a> Datagram<'a> {
    /// The datagrams of the train, at least one: an empty datagram is one empty segment.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        Segments { rest: Some(self.bytes), len: self.segment_len.max(1) }
    }

    /// Number of datagrams in the train, at least one.
    #[inline]
    pub fn segments_count(&self) -> usize {
        // For a single datagram this avoids a division.
        if self.segment_len >= self.bytes.len() {
            return 1;
        }
        self.bytes.len().div_ceil(self.segment_len.max(1))
    }
}

struct Segments<'a> {
    rest: Option<&'a [u8]>,
    len: usize,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        match rest.split_at_checked(self.len) {
            Some((segment, rest)) => {
                self.rest = (!rest.is_empty()).then_some(rest);
                Some(segment)
            }
            None => {
                self.rest = None;
                Some(rest)
            }
        }
    }
}

/// The datagrams that one wait received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inbox<'a>(&'a [Datagram<'a>]);

impl<'a> Inbox<'a> {
    /// A view over `datagrams`, also for tests without a socket.
    pub fn new(datagrams: &'a [Datagram<'a>]) -> Self {
        Self(datagrams)
    }

    /// Number of received buffers; a train counts once.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Number of datagrams, including those in trains.
    pub fn datagrams_count(&self) -> usize {
        self.0.iter().map(Datagram::segments_count).sum()
    }

    /// Whether nothing was received.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The datagram at `i`, in order of arrival.
    ///
    /// # Panics
    ///
    /// Unless `i` is less than [`len`](Self::len).
    pub fn get(&self, i: usize) -> Datagram<'a> {
        self.0[i]
    }

    /// All of them, in order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'a>> + use<'a> {
        self.0.iter().copied()
    }
}

/// Received datagrams, and the outbox for their answers.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The received datagrams, valid until the path is used again.
    pub inbox: Inbox<'a>,
    /// The answers, which [`flush`](crate::DatagramPath::flush) sends.
    pub outbox: &'a mut Outbox,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(bytes: &[u8], segment_len: usize) -> Vec<&[u8]> {
        let peer = Peer::to(([127, 0, 0, 1], 1).into());
        let train = Datagram { bytes, peer, segment_len, truncated: false };
        let segments: Vec<_> = train.segments().collect();
        assert_eq!(train.segments_count(), segments.len(), "{} in {segment_len}", bytes.len());
        segments
    }

    #[test]
    fn splits_trains() {
        assert_eq!(train(b"aabbc", 2), [&b"aa"[..], b"bb", b"c"]);
        assert_eq!(train(b"aabb", 2), [b"aa", b"bb"]);
        assert_eq!(train(b"aabb", 4), [b"aabb"]);
        assert_eq!(train(b"", 0), [b""], "an empty datagram is a datagram");
        assert_eq!(train(b"ab", 0).len(), 2, "no division by zero");
    }

    #[test]
    fn peers_return_their_addresses() {
        for address in ["192.0.2.1:53", "[2001:db8::1]:2641", "[fe80::1%7]:9"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(Peer::to(address).remote(), address);
            assert_eq!(Peer::to(address).local(), None, "{address}");
            for local in ["192.0.2.7", "2001:db8::7"].map(|local| local.parse().unwrap()) {
                let peer = Peer::to(address).leaving_from(local);
                assert_eq!((peer.remote(), peer.local()), (address, Some(local)));
            }
        }
        let mapped = Peer::to("[::ffff:192.0.2.1]:53".parse().unwrap());
        assert_eq!(mapped, Peer::to("192.0.2.1:53".parse().unwrap()));
    }
}
