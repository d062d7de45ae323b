//! Prefixes of addresses, as operators write them.

use super::bits_of;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A prefix of addresses: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressPrefix {
    address: IpAddr,
    bits: u8,
}

/// Why a text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidPrefix {
    /// There is no address before the slash.
    NotAnAddress(String),
    /// The text after the slash is not a prefix length of that address family.
    NotALength(String),
    /// Bits beyond the prefix length are set.
    BitsBeyond(String),
}

impl fmt::Display for InvalidPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, expectation) = match self {
            Self::NotAnAddress(text) => (text, "it must be an address, or a prefix as \"192.0.2.0/24\""),
            Self::NotALength(text) => (text, "the length must be 0 to 32 of IPv4, 0 to 128 of IPv6"),
            Self::BitsBeyond(text) => (text, "the address has bits beyond the length of the prefix"),
        };
        write!(f, "\"{text}\" is not an address prefix: {expectation}")
    }
}

impl std::error::Error for InvalidPrefix {}

impl FromStr for AddressPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| InvalidPrefix::NotAnAddress(text.to_owned()))?;
        let family_bits = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => family_bits,
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|&bits| bits <= family_bits)
                .ok_or_else(|| InvalidPrefix::NotALength(text.to_owned()))?,
        };
        let prefix = Self { address, bits };
        match prefix.first() == bits_of(address) {
            true => Ok(prefix),
            false => Err(InvalidPrefix::BitsBeyond(text.to_owned())),
        }
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl TryFrom<String> for AddressPrefix {
    type Error = InvalidPrefix;

    fn try_from(text: String) -> Result<Self, InvalidPrefix> {
        text.parse()
    }
}

impl From<AddressPrefix> for String {
    fn from(prefix: AddressPrefix) -> Self {
        prefix.to_string()
    }
}

impl AddressPrefix {
    /// The bits in which the addresses of the prefix differ.
    fn host_mask(self) -> u128 {
        let family_bits = if self.address.is_ipv4() { 32 } else { 128 };
        u128::MAX.checked_shr(128 - (family_bits - u32::from(self.bits))).unwrap_or(0)
    }

    fn first(self) -> u128 {
        bits_of(self.address) & !self.host_mask()
    }

    fn last(self) -> u128 {
        self.first() | self.host_mask()
    }
}

/// The addresses that any of several prefixes contains, found by binary search.
#[derive(Clone, Debug, Default)]
pub struct AddressPrefixes(Vec<(u128, u128)>);

impl AddressPrefixes {
    /// Collects the addresses of `prefixes`.
    #[must_use]
    pub fn new(prefixes: &[AddressPrefix]) -> Self {
        let mut ranges: Vec<_> = prefixes.iter().map(|prefix| (prefix.first(), prefix.last())).collect();
        ranges.sort_unstable();
        // Two prefixes are either disjoint or nested; of nested ones the longer range is kept.
        ranges.dedup_by(|next, kept| {
            let within = next.0 <= kept.1;
            kept.1 = if within { kept.1.max(next.1) } else { kept.1 };
            within
        });
        Self(ranges)
    }

    /// Whether `address` is one of these addresses. An empty list costs one comparison.
    #[inline]
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        !self.0.is_empty() && self.find(bits_of(address))
    }

    fn find(&self, bits: u128) -> bool {
        let at = self.0.partition_point(|&(first, _)| first <= bits);
        at > 0 && bits <= self.0[at - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> AddressPrefixes {
        AddressPrefixes::new(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn reads_what_it_writes() {
        for text in ["192.0.2.0/24", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::/32", "::/0", "::1/128"] {
            assert_eq!(text.parse::<AddressPrefix>().unwrap().to_string(), text);
        }
        assert_eq!("192.0.2.1".parse::<AddressPrefix>().unwrap().to_string(), "192.0.2.1/32");
    }

    #[test]
    fn says_what_is_wrong() {
        for text in ["", "/8", "192.0.2/24", "host/8", " 192.0.2.0/24"] {
            let error = text.parse::<AddressPrefix>().unwrap_err();
            assert_eq!(error, InvalidPrefix::NotAnAddress(text.to_owned()));
            assert!(error.to_string().contains(text));
        }
        for text in ["192.0.2.0/33", "192.0.2.0/", "192.0.2.0/-1", "2001:db8::/129", "::/x"] {
            assert_eq!(
                text.parse::<AddressPrefix>().unwrap_err(),
                InvalidPrefix::NotALength(text.to_owned())
            );
        }
        for text in ["192.0.2.1/24", "1.0.0.0/0", "2001:db8::/16"] {
            assert_eq!(
                text.parse::<AddressPrefix>().unwrap_err(),
                InvalidPrefix::BitsBeyond(text.to_owned())
            );
        }
    }

    #[test]
    fn has_the_first_and_the_last_address_and_none_beside() {
        let listed = prefixes(&["192.0.2.128/25", "2001:db8:0:1::/64", "::1", "10.1.0.0/16", "10.0.0.0/8"]);
        for (address, expected) in [
            ("192.0.2.127", false),
            ("192.0.2.128", true),
            ("192.0.2.255", true),
            ("192.0.3.0", false),
            ("::ffff:192.0.2.128", true),
            ("2001:db8:0:0:ffff:ffff:ffff:ffff", false),
            ("2001:db8:0:1::", true),
            ("2001:db8:0:1:ffff:ffff:ffff:ffff", true),
            ("2001:db8:0:2::", false),
            ("::1", true),
            ("::", false),
            ("9.255.255.255", false),
            ("10.0.0.0", true),
            ("10.1.2.3", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
        ] {
            assert_eq!(listed.has(address.parse().unwrap()), expected, "{address}");
        }
        assert!(!prefixes(&[]).has("10.0.0.0".parse().unwrap()));
        let every = prefixes(&["0.0.0.0/0"]);
        assert!(every.has("255.255.255.255".parse().unwrap()) && !every.has("::1".parse().unwrap()));
        assert!(prefixes(&["::/0"]).has("255.255.255.255".parse().unwrap()));
    }
}
