//! Site records from JSON: a second implementation, against which the reader of the engine is
//! compared.

use crate::vectors::bytes;
use data_encoding::BASE64URL_NOPAD;
use handle_proto::HashOption;
use handle_proto::wire::put;
use serde_json::Value;
use std::net::IpAddr;

const PROTOCOLS: [&str; 4] = ["UDP", "TCP", "HTTP", "HTTPS"];
const PRIMARY: u8 = 0x80;
const MULTI_PRIMARY: u8 = 0x40;
const RSA: &[u8] = b"RSA_PUB_KEY";
const DSA: &[u8] = b"DSA_PUB_KEY";

/// The encoded site record that JSON describes.
///
/// # Panics
/// If a member is missing or invalid.
#[must_use]
pub fn from_json(site: &Value) -> Vec<u8> {
    let mut out = vec![];
    let (major, minor) =
        site["protocolVersion"].as_str().and_then(|version| version.split_once('.')).expect("a version");
    put::u16(&mut out, integer(&site["version"]));
    out.extend([major.parse().expect("a number"), minor.parse::<u8>().expect("a number")]);
    put::u16(&mut out, integer::<i16>(&site["serialNumber"]).cast_unsigned());
    let primary = if site["primarySite"] == true { PRIMARY } else { 0 };
    out.push(primary | if site["multiPrimary"] == true { MULTI_PRIMARY } else { 0 });
    out.push(site.get("hashOption").map_or(HashOption::Handle as u8, integer));
    put::string(&mut out, &site.get("hashFilter").map(bytes).unwrap_or_default());
    let attributes = array(&site["attributes"]);
    put::count(&mut out, attributes.len());
    for attribute in attributes {
        put::string(&mut out, &bytes(&attribute["name"]));
        put::string(&mut out, &bytes(&attribute["value"]));
    }
    let servers = array(&site["servers"]);
    put::count(&mut out, servers.len());
    for server in servers {
        server_from_json(server, &mut out);
    }
    out
}

fn server_from_json(server: &Value, out: &mut Vec<u8>) {
    put::i32(out, integer(&server["serverId"]));
    match server["address"].as_str().and_then(|address| address.parse().ok()).expect("an address") {
        IpAddr::V4(v4) => out.extend([&[0; 12][..], &v4.octets()].concat()),
        IpAddr::V6(v6) => out.extend(v6.octets()),
    }
    put::string(out, &key_from_json(&server["publicKey"]["value"]));
    let interfaces = array(&server["interfaces"]);
    put::count(out, interfaces.len());
    for interface in interfaces {
        let admin = u8::from(interface["admin"] == true);
        out.push(admin | if interface["query"] == true { 2 } else { 0 });
        let protocol = PROTOCOLS.iter().position(|name| interface["protocol"] == *name);
        out.push(
            protocol.map_or_else(|| integer(&interface["protocol"]), |at| u8::try_from(at).expect("few")),
        );
        put::i32(out, integer(&interface["port"]));
    }
}

fn key_from_json(key: &Value) -> Vec<u8> {
    let mut out = vec![];
    let (kind, numbers): (_, &[&str]) = match key["kty"].as_str() {
        Some("RSA") => (RSA, &["e", "n"]),
        Some("DSA") => (DSA, &["q", "p", "g", "y"]),
        other => panic!("key type {other:?}"),
    };
    put::string(&mut out, kind);
    put::u16(&mut out, 0);
    for name in numbers {
        let text = key[name].as_str().expect("a number in base64url");
        let number = BASE64URL_NOPAD.decode(text.as_bytes()).expect("base64url");
        let sign: &[u8] = if number.first().is_some_and(|&first| first >= 0x80) { &[0] } else { &[] };
        put::string(&mut out, &[sign, &number].concat());
    }
    if kind == RSA {
        out.extend([0; 4]);
    }
    out
}

pub(crate) fn array(v: &Value) -> &[Value] {
    v.as_array().unwrap_or_else(|| panic!("not a list: {v}"))
}

pub(crate) fn integer<T: TryFrom<i64>>(v: &Value) -> T {
    let number = v.as_i64().and_then(|number| T::try_from(number).ok());
    number.unwrap_or_else(|| panic!("not an integer, or too large: {v}"))
}
