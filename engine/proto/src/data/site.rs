//! HS_SITE: the servers of a service. RFC 3651 section 3.2.2, in the deployed layout.
//!
//! This is the record of HS_SITE, HS_SITE.6, HS_SITE.PREFIX and HS_NA_DELEGATE. Deployed software
//! gives other numbers than the RFC to the two flags, to interface types and to interface
//! protocols; `values.jsonl`, `site/all_interface_kinds` and `site/primary_*`.

use super::site_build::SiteBuilder;
use crate::code::{HashOption, Version};
use crate::error::{DecodeError, Field};
use crate::name::Handle;
use crate::wire::cursor::Cursor;
use crate::wire::list::{Items, counted_list};
use crate::wire::put;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The role of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SiteFlags(pub u8);

impl SiteFlags {
    /// The site accepts changes of records.
    pub const PRIMARY: Self = Self(0x80);
    /// Other sites accept changes of records too.
    pub const MULTI_PRIMARY: Self = Self(0x40);

    /// Whether all bits of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags with the bits of `flags` set.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Clears the bits without a meaning, as deployed software does when it writes.
    #[must_use]
    pub const fn known(self) -> Self {
        Self(self.0 & (Self::PRIMARY.0 | Self::MULTI_PRIMARY.0))
    }
}

/// A site record, borrowed from its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site<'a> {
    /// Version of the record's layout; 1.
    pub format_version: i16,
    /// Protocol version of the servers.
    pub protocol: Version,
    /// Serial number, which grows with each change and wraps.
    pub serial: i16,
    /// The role of the site.
    pub flags: SiteFlags,
    /// Number of the part of a handle that is hashed; see [`hash_option`](Self::hash_option).
    pub hash_option_number: u8,
    /// Unused.
    pub hash_filter: &'a [u8],
    /// Names and values.
    pub attributes: Attributes<'a>,
    /// The servers, in the order in which the hash counts them.
    pub servers: Servers<'a>,
}

impl<'a> Site<'a> {
    /// The layout version that is written.
    pub const FORMAT_VERSION: i16 = 1;

    /// Decodes the data of a value, or a server's own site file.
    ///
    /// # Errors
    /// When a length or count does not fit, or bytes follow the last server.
    pub fn decode(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(data);
        let [v0, v1, major, minor, s0, s1, flags, hash_option_number] = *cursor.array(Field::Site)?;
        let site = Self {
            format_version: i16::from_be_bytes([v0, v1]),
            protocol: Version::new(major, minor),
            serial: i16::from_be_bytes([s0, s1]),
            flags: SiteFlags(flags),
            hash_option_number,
            hash_filter: cursor.string(Field::Site)?,
            attributes: Attributes::decode(&mut cursor)?,
            servers: Servers::decode(&mut cursor)?,
        };
        cursor.finish(Field::Site)?;
        Ok(site)
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.format_version.to_be_bytes());
        out.extend_from_slice(&[self.protocol.major, self.protocol.minor]);
        out.extend_from_slice(&self.serial.to_be_bytes());
        out.extend_from_slice(&[self.flags.0, self.hash_option_number]);
        put::string(out, self.hash_filter);
        self.attributes.encode(out);
        self.servers.encode(out);
    }

    /// The part of a handle that is hashed; `None` for an undefined number.
    #[must_use]
    pub const fn hash_option(&self) -> Option<HashOption> {
        HashOption::from_number(self.hash_option_number)
    }

    /// Position of the server that has `handle`; `None` without servers, or with several and an
    /// unknown hash option. RFC 3652 section 3.1.3.
    #[must_use]
    pub fn server_at(&self, handle: Handle<'_>) -> Option<usize> {
        let count = u32::try_from(self.servers.len()).ok()?;
        let at = match (self.hash_option(), count) {
            (_, 1) => 0,
            (option, _) => handle.server_at(option?, count)?,
        };
        usize::try_from(at).ok()
    }

    /// The server that has `handle`, as [`server_at`](Self::server_at).
    #[must_use]
    pub fn server_for(&self, handle: Handle<'_>) -> Option<Server<'a>> {
        self.servers.iter().nth(self.server_at(handle)?)
    }

    /// Writes what an operator looks for: role, serial number, servers and their interfaces.
    pub(super) fn summarize(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = if self.is_primary() { "primary" } else { "secondary" };
        write!(f, "{role} site, serial {}, protocol {}", self.serial, self.protocol)?;
        for server in self.servers {
            write!(f, "; server {} at {}:", server.id, server.address)?;
            for interface in server.interfaces.iter() {
                let protocol = interface.protocol.name().unwrap_or("?");
                write!(f, " {protocol}/{}", interface.port_number)?;
            }
        }
        Ok(())
    }

    /// Whether the site accepts changes of records.
    #[must_use]
    pub const fn is_primary(&self) -> bool {
        self.flags.has(SiteFlags::PRIMARY)
    }

    /// Whether a server has an address that is not IPv4.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.servers.iter().any(|server| server.address.ip().is_ipv6())
    }

    /// The value of the first attribute called `name`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&'a [u8]> {
        self.attributes.iter().find(|attribute| attribute.name == name.as_bytes()).map(|found| found.value)
    }

    /// The value of the attribute `name.number`, or else that of `name`.
    ///
    /// `domain` and `path` count positions from 0; the number of `alt_addr` is the server's id.
    #[must_use]
    pub fn attribute_of(&self, name: &str, number: i32) -> Option<&'a [u8]> {
        let suffix = alloc::format!("{number}");
        let suffixed = |whole: &[u8]| {
            whole.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"."))
                == Some(suffix.as_bytes())
        };
        let own = self.attributes.iter().find(|attribute| suffixed(attribute.name));
        own.map(|found| found.value).or_else(|| self.attribute(name))
    }
}

/// One attribute of a site: UTF-8 by convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// `desc`, `domain`, `path`, `alt_addr`, `site_filter_keywords`, or any other name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    const LEN_MIN: usize = 8;

    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self { name: cursor.string(Field::Site)?, value: cursor.string(Field::Site)? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.name);
        put::string(out, self.value);
    }
}

counted_list! {
    /// The attributes of a site.
    Attributes, Attribute<'a>, Attribute::LEN_MIN, Site, |cursor| Attribute::decode(cursor)
}
counted_list! {
    /// The servers of a site, in the order in which the hash counts them.
    Servers, Server<'a>, Server::LEN_MIN, Server, |cursor| Server::decode(cursor)
}

/// One server of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server<'a> {
    /// The id of the server. The hash uses its position, not this number.
    pub id: i32,
    /// Its address.
    pub address: Address,
    /// The key record that its signatures are checked with; may be empty.
    pub public_key: &'a [u8],
    /// Its interfaces.
    pub interfaces: Interfaces<'a>,
}

impl<'a> Server<'a> {
    const LEN_MIN: usize = 28;

    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: cursor.i32(Field::Server)?,
            address: Address(*cursor.array(Field::Server)?),
            public_key: cursor.string(Field::Server)?,
            interfaces: Interfaces::decode(cursor)?,
        })
    }

    /// The first interface with `protocol` whose kind has all of `kind`.
    #[must_use]
    pub fn interface(&self, protocol: InterfaceProtocol, kind: InterfaceKind) -> Option<Interface> {
        self.interfaces.iter().find(|interface| interface.protocol == protocol && interface.kind.has(kind))
    }
}

/// An address in 16 bytes: IPv6, or IPv4 after twelve zero bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address(pub [u8; 16]);

impl Address {
    /// No address: the attribute `domain` has a name to look up.
    pub const UNSPECIFIED: Self = Self([0; 16]);

    /// The address. It is IPv4 after twelve zero bytes, so that `::1` becomes `0.0.0.1`, as in
    /// deployed software.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            bytes => IpAddr::V6(Ipv6Addr::from(bytes)),
        }
    }

    /// Whether all bytes are zero.
    #[must_use]
    pub fn is_unspecified(self) -> bool {
        self == Self::UNSPECIFIED
    }
}

impl From<IpAddr> for Address {
    /// Writes IPv4 after twelve zero bytes, even if it is mapped into IPv6, because deployed
    /// software treats a mapped address as IPv6.
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
            }
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }
}

impl fmt::Display for Address {
    /// As in deployed software: `site/address_v4_mapped` in `values.jsonl` shows `::ffff:c000:201`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip() {
            IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
                let [.., high, low] = ip.segments();
                write!(f, "::ffff:{high:x}:{low:x}")
            }
            ip => ip.fmt(f),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The purpose of an interface: two bits as deployed; the RFC exchanges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceKind(pub u8);

impl InterfaceKind {
    /// Out of service.
    pub const NONE: Self = Self(0);
    /// Administration.
    pub const ADMIN: Self = Self(1);
    /// Resolution.
    pub const QUERY: Self = Self(2);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// Whether all bits of `kind` are set.
    #[must_use]
    pub const fn has(self, kind: Self) -> bool {
        self.0 & kind.0 == kind.0
    }
}

/// The protocol of an interface: a number as deployed; the RFC has a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceProtocol(pub u8);

impl InterfaceProtocol {
    /// Datagrams.
    pub const UDP: Self = Self(0);
    /// A stream.
    pub const TCP: Self = Self(1);
    /// HTTP, and HTTPS on the same port.
    pub const HTTP: Self = Self(2);
    /// HTTPS only.
    pub const HTTPS: Self = Self(3);

    /// Its name, if it has one.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::UDP => Some("UDP"),
            Self::TCP => Some("TCP"),
            Self::HTTP => Some("HTTP"),
            Self::HTTPS => Some("HTTPS"),
            _ => None,
        }
    }

    /// The protocol with this name, in any ASCII case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::UDP, Self::TCP, Self::HTTP, Self::HTTPS]
            .into_iter()
            .find(|protocol| protocol.name().is_some_and(|known| known.eq_ignore_ascii_case(name)))
    }
}

/// One interface of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its purpose.
    pub kind: InterfaceKind,
    /// Its protocol.
    pub protocol: InterfaceProtocol,
    /// Its port, in four bytes as on the wire.
    pub port_number: u32,
}

impl Interface {
    const LEN: usize = 6;

    /// An interface.
    #[must_use]
    pub fn new(kind: InterfaceKind, protocol: InterfaceProtocol, port: u16) -> Self {
        Self { kind, protocol, port_number: u32::from(port) }
    }

    /// Its port; `None` for a number that is not a port.
    #[must_use]
    pub fn port(self) -> Option<u16> {
        u16::try_from(self.port_number).ok()
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.kind.0, self.protocol.0]);
        put::u32(out, self.port_number);
    }
}

/// The interfaces of a server: six bytes each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Interfaces<'a>(&'a [[u8; Interface::LEN]]);

impl<'a> Interfaces<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = cursor.count(Interface::LEN, Field::Server)?;
        let (interfaces, _) = cursor.bytes(count * Interface::LEN, Field::Server)?.as_chunks();
        Ok(Self(interfaces))
    }

    /// The interfaces, in order.
    pub fn iter(self) -> impl Iterator<Item = Interface> + 'a {
        self.0.iter().map(|&[kind, protocol, p0, p1, p2, p3]| Interface {
            kind: InterfaceKind(kind),
            protocol: InterfaceProtocol(protocol),
            port_number: u32::from_be_bytes([p0, p1, p2, p3]),
        })
    }

    /// Number of interfaces.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are no interfaces.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Interfaces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// An owned site record: its encoding, checked.
#[derive(Clone, PartialEq, Eq)]
pub struct SiteBuf(Vec<u8>);

impl SiteBuf {
    /// Takes the encoding of exactly one site record.
    ///
    /// # Errors
    /// When the bytes do not decode.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, DecodeError> {
        Site::decode(&bytes)?;
        Ok(Self(bytes))
    }

    /// The site.
    #[must_use]
    pub fn view(&self) -> Site<'_> {
        Site::decode(&self.0).expect("the encoding was checked")
    }

    /// The encoding: the data of an HS_SITE value.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Takes the encoding out.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Copies the fields to a builder, for changes.
    #[must_use]
    pub fn edit(&self) -> SiteBuilder {
        SiteBuilder::from(&self.view())
    }
}

impl fmt::Debug for SiteBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

#[cfg(test)]
#[path = "site_tests.rs"]
mod tests;
