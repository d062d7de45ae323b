//! Builds and changes site records.

use super::site::{Address, Attribute, Interface, Site, SiteBuf, SiteFlags};
use crate::code::{HashOption, Version};
use crate::wire::put;
use alloc::string::String;
use alloc::vec::Vec;

/// The fields of a site record, for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteBuilder {
    /// Version of the record's layout; 1.
    pub format_version: i16,
    /// Protocol version of the servers.
    pub protocol: Version,
    /// Serial number, which grows with each change and wraps.
    pub serial: i16,
    /// The role of the site.
    pub flags: SiteFlags,
    /// Number of a [`HashOption`].
    pub hash_option_number: u8,
    /// Unused; empty.
    pub hash_filter: Vec<u8>,
    /// Names and values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The servers, in the order in which the hash counts them.
    pub servers: Vec<ServerBuilder>,
}

/// The fields of one server of a site record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerBuilder {
    /// The id of the server, which may be any number.
    pub id: i32,
    /// Its address.
    pub address: Address,
    /// Its key record.
    pub public_key: Vec<u8>,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
}

impl SiteBuilder {
    /// A site without servers, with the current version and the hash of whole handles.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            format_version: Site::FORMAT_VERSION,
            protocol: Version::CURRENT,
            serial: 0,
            flags: SiteFlags(0),
            hash_option_number: HashOption::Handle as u8,
            hash_filter: Vec::new(),
            attributes: Vec::new(),
            servers: Vec::new(),
        }
    }

    /// Adds an attribute at the end.
    pub fn attribute(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.attributes.push((name.into().into_bytes(), value.into().into_bytes()));
        self
    }

    /// Adds a server at the end.
    pub fn server(&mut self, server: ServerBuilder) -> &mut Self {
        self.servers.push(server);
        self
    }

    /// The encoding.
    #[must_use]
    pub fn build(&self) -> SiteBuf {
        let mut out = Vec::new();
        out.extend_from_slice(&self.format_version.to_be_bytes());
        out.extend_from_slice(&[self.protocol.major, self.protocol.minor]);
        out.extend_from_slice(&self.serial.to_be_bytes());
        out.extend_from_slice(&[self.flags.0, self.hash_option_number]);
        put::string(&mut out, &self.hash_filter);
        put::count(&mut out, self.attributes.len());
        for (name, value) in &self.attributes {
            Attribute { name, value }.encode(&mut out);
        }
        put::count(&mut out, self.servers.len());
        for server in &self.servers {
            server.encode(&mut out);
        }
        SiteBuf::from_bytes(out).expect("the lists have an allowed length")
    }
}

impl Default for SiteBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerBuilder {
    fn encode(&self, out: &mut Vec<u8>) {
        put::i32(out, self.id);
        out.extend_from_slice(&self.address.0);
        put::string(out, &self.public_key);
        put::count(out, self.interfaces.len());
        for interface in &self.interfaces {
            interface.encode(out);
        }
    }
}

impl From<&Site<'_>> for SiteBuilder {
    fn from(site: &Site<'_>) -> Self {
        Self {
            format_version: site.format_version,
            protocol: site.protocol,
            serial: site.serial,
            flags: site.flags,
            hash_option_number: site.hash_option_number,
            hash_filter: site.hash_filter.to_vec(),
            attributes: site
                .attributes
                .iter()
                .map(|item| (item.name.to_vec(), item.value.to_vec()))
                .collect(),
            servers: site
                .servers
                .iter()
                .map(|server| ServerBuilder {
                    id: server.id,
                    address: server.address,
                    public_key: server.public_key.to_vec(),
                    interfaces: server.interfaces.iter().collect(),
                })
                .collect(),
        }
    }
}
