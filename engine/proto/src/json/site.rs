//! Site records as JSON: the data of HS_SITE values, and `siteinfo.json`.

use super::read::{self, Object, Result};
use super::{Json, JsonError, key, lossy, object};
use crate::code::Version;
use crate::data::key::PublicKey;
use crate::data::site::{
    Address, Interface, InterfaceKind, InterfaceProtocol, Server, Site, SiteBuf, SiteFlags,
};
use crate::data::site_build::{ServerBuilder, SiteBuilder};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;
use data_encoding::BASE64;

/// A site as JSON, with its members in the order of deployed software.
#[must_use]
pub fn site_to_json(site: &Site<'_>) -> Json {
    let mut json = object([
        ("version", site.format_version.into()),
        ("protocolVersion", site.protocol.to_string().into()),
        ("serialNumber", site.serial.into()),
        ("primarySite", site.flags.has(SiteFlags::PRIMARY).into()),
        ("multiPrimary", site.flags.has(SiteFlags::MULTI_PRIMARY).into()),
    ]);
    if site.hash_option_number != HASH_OPTION_DEFAULT {
        json["hashOption"] = site.hash_option_number.cast_signed().into();
    }
    if !site.hash_filter.is_empty() {
        json["hashFilter"] = lossy(site.hash_filter);
    }
    let attributes = site.attributes.iter();
    json["attributes"] =
        attributes.map(|item| object([("name", lossy(item.name)), ("value", lossy(item.value))])).collect();
    json["servers"] = site.servers.iter().map(|server| server_to_json(&server)).collect();
    json
}

/// The default option, hashing the whole handle, is not written.
const HASH_OPTION_DEFAULT: u8 = crate::code::HashOption::Handle as u8;

fn server_to_json(server: &Server<'_>) -> Json {
    object([
        ("serverId", server.id.into()),
        ("address", server.address.to_string().into()),
        ("publicKey", public_key_to_json(server.public_key)),
        ("interfaces", server.interfaces.iter().map(interface_to_json).collect()),
    ])
}

fn public_key_to_json(record: &[u8]) -> Json {
    let jwk = PublicKey::decode(record).ok().and_then(|key| key::public_key_to_jwk(&key));
    let (format, value) = match jwk {
        Some(jwk) => ("key", jwk),
        None => ("base64", BASE64.encode(record).into()),
    };
    object([("format", format.into()), ("value", value)])
}

/// Numbers without a name are signed, as in deployed software. `values.jsonl`,
/// `site/odd_interfaces`.
fn interface_to_json(interface: Interface) -> Json {
    let protocol = interface.protocol;
    object([
        ("query", interface.kind.has(InterfaceKind::QUERY).into()),
        ("admin", interface.kind.has(InterfaceKind::ADMIN).into()),
        ("protocol", protocol.name().map_or_else(|| protocol.0.cast_signed().into(), Json::from)),
        ("port", interface.port_number.cast_signed().into()),
    ])
}

/// Reads a site, also from older files with capitalised names. Absent members have their defaults.
///
/// An address that is a host name becomes the unspecified address and the attribute `domain.<n>`,
/// whose name clients look up. Unknown members are ignored: see [`keep_unknown`].
///
/// # Errors
/// When a member is invalid.
pub fn site_from_json(json: &Json) -> Result<SiteBuf> {
    let json = read::object(json)?;
    let mut site = SiteBuilder::new();
    if let Some(version) = optional(json, "version", int16)? {
        site.format_version = version;
    }
    if let Some(protocol) = optional(json, "protocolVersion", protocol_version)? {
        site.protocol = protocol;
    }
    site.serial = optional(json, "serialNumber", int16)?.unwrap_or_default();
    for (name, flag) in [("primarySite", SiteFlags::PRIMARY), ("multiPrimary", SiteFlags::MULTI_PRIMARY)] {
        if optional(json, name, read::boolean)?.unwrap_or_default() {
            site.flags = site.flags.with(flag);
        }
    }
    if let Some(number) = optional(json, "hashOption", int8)? {
        site.hash_option_number = number;
    }
    if let Some(filter) = optional(json, "hashFilter", read::string)? {
        site.hash_filter = filter.as_bytes().to_vec();
    }
    site.attributes = optional(json, "attributes", attributes)?.unwrap_or_default();
    let list = if find(json, "servers").is_some() { "servers" } else { "serverList" };
    let servers = optional(json, list, |servers| read::each(servers, server))?.unwrap_or_default();
    for (at, (mut server, host)) in servers.into_iter().enumerate() {
        if let Some(host) = host {
            name_host(&mut site, at, &host)
                .map_err(|error| error.within(&format!("{list}[{at}].address")))?;
            server.address = Address::UNSPECIFIED;
        }
        site.server(server);
    }
    Ok(site.build())
}

fn name_host(site: &mut SiteBuilder, at: usize, host: &str) -> Result<()> {
    let name = format!("domain.{at}");
    match site.attributes.iter().find(|(known, _)| known == name.as_bytes()) {
        Some((_, value)) if value != host.as_bytes() => {
            Err(JsonError::new(format!("not the host of attribute {name}")))
        }
        Some(_) => Ok(()),
        None => {
            site.attribute(name, host);
            Ok(())
        }
    }
}

/// Copies the members of `old` that this module does not know to `new`: members of the site, and of
/// each server with the same `serverId`. So a `siteinfo.json` can be read, changed and written
/// without loss.
pub fn keep_unknown(old: &Json, new: &mut Json) {
    const SITE: [&str; 9] = [
        "version",
        "protocolVersion",
        "serialNumber",
        "primarySite",
        "multiPrimary",
        "hashOption",
        "hashFilter",
        "attributes",
        "servers",
    ];
    const SERVER: [&str; 4] = ["serverId", "address", "publicKey", "interfaces"];
    let (Some(old), Some(new)) = (old.as_object(), new.as_object_mut()) else { return };
    copy_unknown(old, new, &SITE);
    let old_servers = find(old, "servers").or_else(|| find(old, "serverList")).and_then(Json::as_array);
    let new_servers = new.get_mut("servers").and_then(Json::as_array_mut);
    for server in new_servers.into_iter().flatten().filter_map(Json::as_object_mut) {
        let is_same = |old: &&Object| find(old, "serverId") == server.get("serverId");
        let mut servers = old_servers.into_iter().flatten().filter_map(Json::as_object);
        if let Some(old) = servers.find(is_same) {
            copy_unknown(old, server, &SERVER);
        }
    }
}

fn copy_unknown(old: &Object, new: &mut Object, known: &[&str]) {
    let is_known = |name: &str| name == "ServerList" || known.iter().any(|known| is_named(name, known));
    for (name, value) in old.iter().filter(|(name, _)| !is_known(name)) {
        new.insert(name.clone(), value.clone());
    }
}

/// Whether `member` is `name`, with or without a capital initial.
fn is_named(member: &str, name: &str) -> bool {
    member == name || member.strip_prefix(capital(name)).is_some_and(|rest| rest == &name[1..])
}

fn capital(name: &str) -> char {
    name.chars().next().unwrap_or_default().to_ascii_uppercase()
}

fn find<'a>(object: &'a Object, name: &str) -> Option<&'a Json> {
    object.get(name).or_else(|| {
        let mut capitalised = String::with_capacity(name.len());
        capitalised.push(capital(name));
        capitalised.push_str(&name[1..]);
        object.get(&capitalised)
    })
}

fn optional<'a, T>(
    object: &'a Object,
    name: &str,
    read: impl FnOnce(&'a Json) -> Result<T>,
) -> Result<Option<T>> {
    match find(object, name) {
        None | Some(Json::Null) => Ok(None),
        Some(json) => read(json).map(Some).map_err(|error| error.within(name)),
    }
}

fn required<'a, T>(object: &'a Object, name: &str, read: impl FnOnce(&'a Json) -> Result<T>) -> Result<T> {
    optional(object, name, read)?.ok_or_else(|| JsonError::new("missing").within(name))
}

/// Reads two bytes, signed or not.
fn int16(json: &Json) -> Result<i16> {
    let number = read::integer(json, i16::MIN.into(), u16::MAX.into())?;
    Ok(i16::try_from(number)
        .unwrap_or_else(|_| u16::try_from(number).expect("the range was checked").cast_signed()))
}

/// Reads one byte, signed or not.
fn int8(json: &Json) -> Result<u8> {
    let number = read::integer(json, i8::MIN.into(), u8::MAX.into())?;
    Ok(u8::try_from(number)
        .unwrap_or_else(|_| i8::try_from(number).expect("the range was checked").cast_unsigned()))
}

fn port(json: &Json) -> Result<u32> {
    let number = read::integer(json, i32::MIN.into(), u32::MAX.into())?;
    Ok(u32::try_from(number)
        .unwrap_or_else(|_| i32::try_from(number).expect("the range was checked").cast_unsigned()))
}

fn protocol_version(json: &Json) -> Result<Version> {
    let parts = read::string(json)?.split_once('.');
    let version =
        parts.and_then(|(major, minor)| Some(Version::new(major.parse().ok()?, minor.parse().ok()?)));
    version.ok_or_else(|| JsonError::new("not a version such as 2.11"))
}

type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads a list of names and values, or an object of them.
fn attributes(json: &Json) -> Result<Attributes> {
    let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    match json {
        Json::Object(members) => members
            .iter()
            .map(|(name, value)| match read::string(value) {
                Ok(value) => Ok(pair(name, value)),
                Err(error) => Err(error.within(name)),
            })
            .collect(),
        json => read::each(json, |item| {
            let item = read::object(item)?;
            Ok(pair(required(item, "name", read::string)?, required(item, "value", read::string)?))
        }),
    }
}

/// Reads a server, and the host name that it has in place of an address.
fn server(json: &Json) -> Result<(ServerBuilder, Option<String>)> {
    let json = read::object(json)?;
    let id = required(json, "serverId", read::int32)?;
    let reached_at = required(json, "address", address)?;
    let public_key = optional(json, "publicKey", public_key)?.unwrap_or_default();
    let interfaces = optional(json, "interfaces", |list| read::each(list, interface))?.unwrap_or_default();
    let (address, host) = match reached_at {
        InterfaceHost::Address(address) => (address, None),
        InterfaceHost::Host(host) => (Address::UNSPECIFIED, Some(host)),
    };
    Ok((ServerBuilder { id, address, public_key, interfaces }, host))
}

enum InterfaceHost {
    Address(Address),
    Host(String),
}

fn address(json: &Json) -> Result<InterfaceHost> {
    let text = read::string(json)?;
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(InterfaceHost::Address(ip.into()));
    }
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    // A last label of digits shows that the text is a malformed address.
    let is_address = name.rsplit('.').next().is_none_or(|last| last.bytes().all(|c| c.is_ascii_digit()));
    if is_address || name.len() > 253 || !name.split('.').all(is_label) {
        return Err(JsonError::new("neither an address nor a host name"));
    }
    Ok(InterfaceHost::Host(name.to_string()))
}

/// Reads a key in any of its formats. Without a value there is no key, as deployed software writes
/// it.
fn public_key(json: &Json) -> Result<Vec<u8>> {
    match read::optional(read::object(json)?, "value", Ok)? {
        None => Ok(Vec::new()),
        Some(_) => super::data_from_json(json, super::Reading::Documented),
    }
}

fn interface(json: &Json) -> Result<Interface> {
    let json = read::object(json)?;
    let mut kind = InterfaceKind::NONE;
    for (name, bit) in [("query", InterfaceKind::QUERY), ("admin", InterfaceKind::ADMIN)] {
        if optional(json, name, read::boolean)?.unwrap_or_default() {
            kind.0 |= bit.0;
        }
    }
    let protocol = required(json, "protocol", protocol)?;
    Ok(Interface { kind, protocol, port_number: required(json, "port", port)? })
}

fn protocol(json: &Json) -> Result<InterfaceProtocol> {
    let named = json.as_str().and_then(InterfaceProtocol::from_name);
    match named {
        Some(protocol) => Ok(protocol),
        None => int8(json)
            .map(InterfaceProtocol)
            .map_err(|_| JsonError::new("not UDP, TCP, HTTP, HTTPS or a number of one byte")),
    }
}
