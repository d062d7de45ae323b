//! Sites and keys for tests.

use crate::signature::{Claims, Permission, SigningScope, certificate, signature};
use data_encoding::HEXLOWER;
use handle_auth::PrivateKey;
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteBuf};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::data::{PublicKey, kind};
use handle_proto::json::Json;
use handle_proto::{Value, ValueBuf};
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

/// A private key of the golden vectors, which is used nowhere else.
pub(crate) fn private_key(id: &str) -> PrivateKey {
    PrivateKey::from_record(&key_record(id, "handle_private_hex")).expect("a key that signs")
}

/// The same key as PEM.
#[cfg(feature = "tls")]
pub(crate) fn private_pem(id: &str) -> String {
    keys()[id]["pkcs8_pem"].as_str().expect("a key").to_owned()
}

/// The record of its public half.
pub(crate) fn public_record(id: &str) -> Vec<u8> {
    key_record(id, "handle_public_hex")
}

fn key_record(id: &str, member: &str) -> Vec<u8> {
    let hex = keys()[id][member].as_str().expect("a key").as_bytes().to_vec();
    HEXLOWER.decode(&hex).expect("hexadecimal")
}

fn keys() -> Json {
    let text = include_str!("../../../tests/vectors/servers.json");
    let mut json: Json = serde_json::from_str(text).expect("JSON");
    json["keys"].take()
}

/// The issuer of the records of the global service.
pub(crate) const ISSUER: &str = "300:0.0/0.0";

/// The claims of a signature about `subject`, with the certificate 400 as its chain.
pub(crate) fn claims(subject: &[u8]) -> Claims {
    let (issuer, subject) = (ISSUER.to_owned(), String::from_utf8(subject.to_vec()).expect("UTF-8"));
    Claims { issuer, subject, chain: vec!["400:0.0/0.0".to_owned()], ..Claims::default() }
}

/// The root record, with this site and a service whose site is 192.0.2.2, and that of the trusted
/// keys; all signed with the key `server`.
pub(crate) fn signed_root(site: &SiteBuf) -> Vec<(&'static str, Vec<ValueBuf>)> {
    let value = |index, kind: &[u8], data: &[u8]| ValueBuf::from(&Value::new(index, kind, data));
    let (key, record) = (private_key("server"), public_record("server"));
    let everything = [Permission { permitted: SigningScope::Everything, handle: String::new() }];
    let own = Claims { chain: vec![], ..claims(ISSUER.as_bytes()) };
    let public = PublicKey::decode(&record).expect("a key");
    let cert = certificate(&own, &public, &everything, &key).expect("signed");
    let mut records = vec![
        (
            "0.NA/0.NA",
            vec![
                value(1, kind::HS_SITE, site.as_bytes()),
                value(2, kind::HS_SERV, b"0.GHR/1"),
                value(3, b"10320/sig.sig", b"of an older kind"),
            ],
        ),
        ("0.0/0.0", vec![value(300, kind::HS_PUBKEY, &record), value(400, kind::HS_CERT, cert.as_bytes())]),
        (
            "0.GHR/1",
            vec![value(1, kind::HS_SITE, site_at(2).as_bytes()), value(2, kind::HS_SERV, b"0.na/0.na")],
        ),
    ];
    for (handle, values) in &mut records {
        let views = values.iter().map(ValueBuf::view);
        let signed = signature(&claims(handle.as_bytes()), views, &key).expect("signed");
        values.push(value(900, kind::HS_SIGNATURE, signed.as_bytes()));
    }
    records
}
