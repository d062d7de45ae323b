//! The other side of a connection.

use std::net::IpAddr;

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpPeer {
    /// Its address; IPv4 not mapped.
    pub address: IpAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// Whether the scheme of the client's URL is `https`.
    pub is_https: bool,
    /// Whether credentials are accepted.
    pub is_confidential: bool,
}

impl HttpPeer {
    /// The peer of a connection, who is the client itself as far as is known.
    #[must_use]
    pub const fn new(address: IpAddr, is_tls: bool) -> Self {
        Self { address, is_tls, is_https: is_tls, is_confidential: is_tls }
    }
}
