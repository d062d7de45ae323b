//! The site record of one server that answers and administers.

use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteFlags};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::data::{SiteBuf, site::Address};
use std::net::IpAddr;

/// What a site record says of its only server.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteDescription<'a> {
    pub(super) address: IpAddr,
    pub(super) query_port: u16,
    pub(super) admin_port: u16,
    pub(super) description: &'a str,
    pub(super) public_key: &'a [u8],
}

/// The record: connections for queries, connections for administration, datagrams for queries. Where connections have one
/// port, they are one interface.
///
/// Deployed clients take the first interface that fits, so the order is that in which they should try.
pub(super) fn record(described: &SiteDescription<'_>) -> SiteBuf {
    let mut site = SiteBuilder::new();
    site.serial = 1;
    site.flags = SiteFlags::PRIMARY;
    if !described.description.is_empty() {
        site.attribute("desc", described.description);
    }
    let interface = |kind, protocol, port: u16| Interface { kind, protocol, port_number: port.into() };
    let interfaces = match described.query_port == described.admin_port {
        true => vec![
            interface(InterfaceKind::BOTH, InterfaceProtocol::TCP, described.query_port),
            interface(InterfaceKind::QUERY, InterfaceProtocol::UDP, described.query_port),
        ],
        false => vec![
            interface(InterfaceKind::QUERY, InterfaceProtocol::TCP, described.query_port),
            interface(InterfaceKind::ADMIN, InterfaceProtocol::TCP, described.admin_port),
            interface(InterfaceKind::QUERY, InterfaceProtocol::UDP, described.query_port),
        ],
    };
    site.server(ServerBuilder {
        id: 1,
        address: Address::from(described.address),
        public_key: described.public_key.to_vec(),
        interfaces,
    });
    site.build()
}
