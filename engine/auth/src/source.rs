//! What counts as one source of sessions and challenges.

use std::net::{IpAddr, Ipv6Addr};

/// The source that `address` belongs to: an IPv4 address, however it is written, or a /64 of IPv6. Whoever has an
/// IPv6 address has 2^64 of them.
#[must_use]
pub fn of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn an_address_of_ipv6_is_one_of_many_and_ipv4_is_the_same_however_written() {
        let v6 = |n: u16, m: u16| IpAddr::from([0x2001, 0xdb8, 0, n, 0, 0, 0, m]);
        assert_eq!(of(v6(1, 1)), of(v6(1, 2)));
        assert_ne!(of(v6(1, 1)), of(v6(2, 1)));
        let v4 = Ipv4Addr::new(192, 0, 2, 9);
        assert_eq!(of(IpAddr::V6(v4.to_ipv6_mapped())), of(v4.into()));
    }
}
