//! Sites and keys for tests.

use data_encoding::HEXLOWER;
use handle_auth::PrivateKey;
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteBuf};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::json::Json;
use std::net::IpAddr;

/// A site of one server, 192.0.2.`number`, which answers over UDP and TCP.
pub(crate) fn site_at(number: u8) -> SiteBuf {
    site_of(&[number])
}

/// A site of servers at 192.0.2.x, in this order.
pub(crate) fn site_of(numbers: &[u8]) -> SiteBuf {
    let mut site = SiteBuilder::new();
    for &number in numbers {
        let address = IpAddr::from([192, 0, 2, number]);
        let interfaces = [InterfaceProtocol::UDP, InterfaceProtocol::TCP]
            .map(|protocol| Interface::new(InterfaceKind::BOTH, protocol, 2641));
        site.server(ServerBuilder {
            id: number.into(),
            address: address.into(),
            public_key: vec![],
            interfaces: interfaces.to_vec(),
        });
    }
    site.build()
}

/// A private key of the golden vectors, which are used nowhere else.
pub(crate) fn private_key(id: &str) -> PrivateKey {
    PrivateKey::from_record(&key_record(id, "handle_private_hex")).expect("a key that signs")
}

/// The record of its public half.
pub(crate) fn public_record(id: &str) -> Vec<u8> {
    key_record(id, "handle_public_hex")
}

fn key_record(id: &str, member: &str) -> Vec<u8> {
    let text = include_str!("../../../tests/vectors/servers.json");
    let json: Json = serde_json::from_str(text).expect("JSON");
    let hex = json["keys"][id][member].as_str().expect("a key").as_bytes();
    HEXLOWER.decode(hex).expect("hexadecimal")
}
