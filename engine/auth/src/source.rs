//! The origin of requests: sources, their networks, and lists of networks that are exempt from
//! limits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// The source that `address` belongs to: an IPv4 address in any notation, or a /64 of IPv6, because
/// the owner of an IPv6 address has 2^64 of them.
#[must_use]
pub fn of(address: IpAddr) -> IpAddr {
    Network::new(address.to_canonical(), if address.to_canonical().is_ipv4() { 32 } else { 64 }).address
}

/// The networks of `address`, from the widest to its [source](of): /24 and /32 of IPv4, /48, /56
/// and /64 of IPv6. The widest networks share work first.
#[must_use]
pub fn networks_of(address: IpAddr) -> [IpAddr; 3] {
    let address = address.to_canonical();
    let bits = if address.is_ipv4() { [24, 32, 32] } else { [48, 56, 64] };
    bits.map(|bits| Network::new(address, bits).address)
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOrigin {
    /// The address of the sender.
    pub ip: IpAddr,
    /// Whether the sender has proved its address. A connection proves it; the address of a datagram
    /// can be forged.
    pub is_connected: bool,
}

impl RequestOrigin {
    /// The sender of a datagram.
    #[must_use]
    pub const fn datagram(ip: IpAddr) -> Self {
        Self { ip, is_connected: false }
    }

    /// The other end of a connection.
    #[must_use]
    pub const fn connection(ip: IpAddr) -> Self {
        Self { ip, is_connected: true }
    }
}

/// A network: the first bits of an address, the others zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// A text that is not an address or a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidNetwork;

impl fmt::Display for InvalidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid network: expected ADDRESS or ADDRESS/BITS")
    }
}

impl std::error::Error for InvalidNetwork {}

impl Network {
    /// The first `bits` bits of `address`; a larger number stands for all of them.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Self {
        match address {
            IpAddr::V4(ip) => {
                let bits = bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Self { address: Ipv4Addr::from_bits(ip.to_bits() & mask).into(), bits }
            }
            IpAddr::V6(ip) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Self { address: Ipv6Addr::from_bits(ip.to_bits() & mask).into(), bits }
            }
        }
    }

    /// The first address of the network.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether `address` is in the network. An IPv4 address in IPv6 notation counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::new(address.to_canonical(), self.bits).address == self.address
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| InvalidNetwork)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|&bits| bits <= most).ok_or(InvalidNetwork)?,
            None => most,
        };
        Ok(Self::new(address, bits))
    }
}

/// The IPv4 addresses to which translators and tunnels carry packets for `address`: those in the
/// last bits (NAT64 and IPv4-compatible addresses, and, inverted, Teredo), and that of a 6to4
/// router.
fn embedded_ipv4(address: IpAddr) -> [Option<Ipv4Addr>; 2] {
    let IpAddr::V6(ipv6) = address.to_canonical() else { return [None; 2] };
    let [first, second, third, .., before, last] = ipv6.segments();
    let ipv4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let is_in = |network: [u16; 8], bits| Network::new(network.into(), bits).contains(address);
    let ends = is_in([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96)
        || is_in([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48)
        || is_in([0; 8], 96);
    let is_teredo = is_in([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);
    let at_end = match (ends, is_teredo) {
        (true, _) => Some(ipv4(before, last)),
        (_, true) => Some(ipv4(!before, !last)),
        _ => None,
    };
    [at_end, (first == 0x2002).then(|| ipv4(second, third))]
}

/// Networks that are exempt from limits by source. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceList(Arc<[Network]>);

impl SourceList {
    /// Most networks in a list. Each limited request is compared with all of them.
    pub const LEN_MAX: usize = 1024;

    /// Parses networks.
    ///
    /// # Errors
    /// The first invalid text.
    pub fn parse(texts: &[String]) -> Result<Self, &String> {
        texts
            .iter()
            .map(|text| text.parse().map_err(|InvalidNetwork| text))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether `address`, or an IPv4 address to which packets for it may be carried, is in one of
    /// the networks.
    #[must_use]
    pub fn reaches(&self, address: IpAddr) -> bool {
        let embedded = embedded_ipv4(address).into_iter().flatten();
        self.contains(address) || embedded.into_iter().any(|ipv4| self.contains(ipv4.into()))
    }

    /// Whether `address` is in one of the networks.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_source_is_a_64_of_ipv6_or_an_ipv4_address_in_any_notation() {
        let v6 = |n: u16, m: u16| IpAddr::from([0x2001, 0xdb8, 0, n, 0, 0, 0, m]);
        assert_eq!(of(v6(1, 1)), of(v6(1, 2)));
        assert_ne!(of(v6(1, 1)), of(v6(2, 1)));
        let v4 = Ipv4Addr::new(192, 0, 2, 9);
        assert_eq!(of(IpAddr::V6(v4.to_ipv6_mapped())), of(v4.into()));
        assert_eq!(of(v4.into()), IpAddr::V4(v4));
    }

    #[test]
    fn an_address_reaches_the_ipv4_address_that_it_stands_for() {
        let list = SourceList::parse(&["10.0.0.0/8".to_owned()]).unwrap();
        for address in [
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "64:ff9b::10.1.2.3",
            "64:ff9b:1::10.1.2.3",
            "64:ff9b:1:2:3::10.1.2.3",
            "2002:a01:203::1",
            "::10.1.2.3",
            "2001:0:c000:201::f5fe:fdfc",
        ] {
            assert!(list.reaches(ip(address)), "{address}");
        }
        for address in ["192.0.2.1", "64:ff9b::192.0.2.1", "2002:c000:201::1", "2001:db8::10.1.2.3"] {
            assert!(!list.reaches(ip(address)), "{address}");
        }
    }

    #[test]
    fn networks_go_from_the_widest_to_the_source() {
        let shown = |text| networks_of(ip(text)).map(|network| network.to_string());
        assert_eq!(shown("192.0.2.77"), ["192.0.2.0", "192.0.2.77", "192.0.2.77"]);
        assert_eq!(shown("::ffff:192.0.2.77"), shown("192.0.2.77"));
        assert_eq!(shown("2001:db8:1:2f3:4::5"), ["2001:db8:1::", "2001:db8:1:200::", "2001:db8:1:2f3::"]);
    }

    #[test]
    fn lists_accept_only_addresses_and_networks() {
        let list = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            SourceList::parse(&texts).map_err(Clone::clone)
        };
        let some = list(&["192.0.2.0/24", "198.51.100.7", "2001:db8::/32", "0.0.0.0/32"]).unwrap();
        for inside in ["192.0.2.255", "::ffff:192.0.2.1", "198.51.100.7", "2001:db8:ffff::1", "0.0.0.0"] {
            assert!(some.contains(ip(inside)), "{inside}");
        }
        for outside in ["192.0.3.1", "198.51.100.8", "2001:db9::1", "::", "::1"] {
            assert!(!some.contains(ip(outside)), "{outside}");
        }
        assert!(list(&["0.0.0.0/0"]).unwrap().contains(ip("203.0.113.1")));
        assert!(!list(&["0.0.0.0/0"]).unwrap().contains(ip("2001:db8::1")));
        assert!(!list(&[]).unwrap().contains(ip("::1")));
        for wrong in ["", "192.0.2.0/33", "::/129", "192.0.2.0/", "192.0.2/24", "host", "192.0.2.0/-1"] {
            assert_eq!(list(&["::1", wrong]), Err(wrong.to_owned()));
        }
    }
}
