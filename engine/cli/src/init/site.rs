//! The site record of a single server for queries and administration.

use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteFlags};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::data::{SiteBuf, site::Address};
use std::net::IpAddr;

/// The contents of the site record of the only server.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteDescription<'a> {
    pub(super) address: IpAddr,
    pub(super) query_port: u16,
    pub(super) admin_port: u16,
    pub(super) description: &'a str,
    pub(super) public_key: &'a [u8],
}

/// Builds the record, with interfaces in this order: connections for queries, connections for
/// administration, datagrams for queries. If queries and administration share a port, their
/// connections are one interface.
///
/// The order matters: deployed clients take the first interface that fits.
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
