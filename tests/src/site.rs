//! Site records as JSON, written for the vectors alone: a second opinion on the engine's own.

use crate::vectors::{byte_string, bytes};
use data_encoding::BASE64URL_NOPAD;
use handle_proto::Field;
use handle_proto::wire::cursor::Cursor;
use handle_proto::wire::put;
use handle_proto::{DecodeError, HashOption};
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const PROTOCOLS: [&str; 4] = ["UDP", "TCP", "HTTP", "HTTPS"];
const PRIMARY: u8 = 0x80;
const MULTI_PRIMARY: u8 = 0x40;
const RSA: &[u8] = b"RSA_PUB_KEY";
const DSA: &[u8] = b"DSA_PUB_KEY";

/// A site record as JSON.
///
/// # Errors
/// When the record is cut short.
pub fn to_json(record: &[u8]) -> Result<Value, DecodeError> {
    let cursor = &mut Cursor::new(record);
    let mut site = Map::new();
    let version = cursor.u16(Field::Site)?;
    let (major, minor) = (cursor.u8(Field::Site)?, cursor.u8(Field::Site)?);
    let serial = cursor.u16(Field::Site)?.cast_signed();
    let (primary, hash_option) = (cursor.u8(Field::Site)?, cursor.u8(Field::Site)?);
    site.insert("version".into(), json!(version));
    site.insert("protocolVersion".into(), json!(format!("{major}.{minor}")));
    site.insert("serialNumber".into(), json!(serial));
    site.insert("primarySite".into(), json!(primary & PRIMARY != 0));
    site.insert("multiPrimary".into(), json!(primary & MULTI_PRIMARY != 0));
    if hash_option != HashOption::Handle as u8 {
        site.insert("hashOption".into(), json!(hash_option));
    }
    let filter = cursor.string(Field::Site)?;
    if !filter.is_empty() {
        site.insert("hashFilter".into(), byte_string(filter));
    }
    let attributes = list(cursor, |cursor| {
        let (name, value) = (cursor.string(Field::Site)?, cursor.string(Field::Site)?);
        Ok(json!({ "name": byte_string(name), "value": byte_string(value) }))
    })?;
    site.insert("attributes".into(), attributes);
    site.insert("servers".into(), list(cursor, server_to_json)?);
    Ok(site.into())
}

fn list(
    cursor: &mut Cursor<'_>,
    mut item: impl FnMut(&mut Cursor<'_>) -> Result<Value, DecodeError>,
) -> Result<Value, DecodeError> {
    let count = cursor.count(1, Field::Site)?;
    (0..count).map(|_| item(cursor)).collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn server_to_json(cursor: &mut Cursor<'_>) -> Result<Value, DecodeError> {
    let id = cursor.i32(Field::Server)?;
    let address = match cursor.array::<16>(Field::Server)? {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, v4 @ ..] => IpAddr::V4(Ipv4Addr::from(*v4)),
        v6 => IpAddr::V6(Ipv6Addr::from(*v6)),
    };
    let key = key_to_json(cursor.string(Field::Key)?)?;
    let interfaces = list(cursor, |cursor| {
        let (kind, protocol) = (cursor.u8(Field::Server)?, cursor.u8(Field::Server)?);
        let port = cursor.i32(Field::Server)?;
        let protocol = PROTOCOLS.get(usize::from(protocol)).map_or(json!(protocol), |name| json!(name));
        Ok(json!({ "query": kind & 2 != 0, "admin": kind & 1 != 0, "protocol": protocol, "port": port }))
    })?;
    Ok(json!({
        "serverId": id,
        "address": address.to_string(),
        "publicKey": { "format": "key", "value": key },
        "interfaces": interfaces,
    }))
}

fn key_to_json(record: &[u8]) -> Result<Value, DecodeError> {
    let cursor = &mut Cursor::new(record);
    let kind = cursor.string(Field::Key)?;
    cursor.u16(Field::Key)?;
    let mut number = || -> Result<String, DecodeError> {
        let number = cursor.string(Field::Key)?;
        Ok(BASE64URL_NOPAD.encode(number.strip_prefix(&[0]).unwrap_or(number)))
    };
    Ok(match kind {
        RSA => {
            let (e, n) = (number()?, number()?);
            json!({ "kty": "RSA", "n": n, "e": e })
        }
        DSA => {
            let (q, p, g, y) = (number()?, number()?, number()?, number()?);
            json!({ "kty": "DSA", "y": y, "p": p, "q": q, "g": g })
        }
        _ => return Err(DecodeError::Invalid { field: Field::Key, at: 0 }),
    })
}

/// The site record that JSON describes.
///
/// # Panics
/// When something in it is not as [`to_json`] writes it.
#[must_use]
pub fn from_json(site: &Value) -> Vec<u8> {
    let mut out = vec![];
    let (major, minor) =
        site["protocolVersion"].as_str().and_then(|it| it.split_once('.')).expect("a version");
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
    match server["address"].as_str().and_then(|it| it.parse().ok()).expect("an address") {
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
            protocol.map_or_else(|| integer(&interface["protocol"]), |it| u8::try_from(it).expect("few")),
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
