//! Keys and sites, as pages show them, and mail addresses.

use super::{Messages, fill};
use data_encoding::HEXUPPER;
use handle_proto::data::site::{InterfaceKind, Server};
use handle_proto::data::{PREDEFINED_TYPES, PublicKey, Site};
use handle_proto::printable::Printable;
use handle_proto::{Handle, HashOption};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

/// What may not stand in the URL of a mail address, beyond what such an address may not have.
const NOT_IN_MAIL: &AsciiSet = &CONTROLS.add(b'{').add(b'}').add(b'|').add(b'^').add(b'`');

/// A public key.
#[derive(Clone, Debug)]
pub struct KeyView {
    /// Its algorithm and length.
    pub name: String,
    /// Its fingerprint, with the name of the digest.
    pub fingerprint: String,
}

/// A site of a service.
#[derive(Clone, Debug)]
pub struct SiteView {
    /// Whether it is the primary site.
    pub role: &'static str,
    /// Its serial number.
    pub serial: i16,
    /// The version of the protocol.
    pub protocol: String,
    /// The part of a handle that chooses a server.
    pub hashed_by: &'static str,
    /// Names and values of its attributes.
    pub attributes: Vec<(String, String)>,
    /// Its servers.
    pub servers: Vec<ServerView>,
}

/// A server of a site.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Its number, as a text.
    pub name: String,
    /// Its address; empty if it has none.
    pub address: String,
    /// Its protocols, ports and uses.
    pub interfaces: Vec<String>,
    /// Its key.
    pub key: Option<KeyView>,
}

/// The URL of a mail address. Texts with characters that begin the options of such a URL have none.
#[must_use]
pub fn mail_url(text: &str) -> Option<String> {
    let text = text.trim();
    let (user, host) = text.split_once('@')?;
    let is_odd = |c: char| c.is_whitespace() || "?&#%,;:<>\"\\()[]".contains(c);
    if user.is_empty() || host.is_empty() || text.contains(is_odd) {
        return None;
    }
    Some(format!("mailto:{}", utf8_percent_encode(text, NOT_IN_MAIL)))
}

impl KeyView {
    /// The view of `key`.
    #[must_use]
    pub fn new(key: &PublicKey<'_>) -> Self {
        let digest = HEXUPPER.encode(&Sha256::digest(key.to_bytes()));
        let name = format!("{} {}", key.algorithm(), key.bits());
        Self { name, fingerprint: format!("SHA256:{}", digest.to_lowercase()) }
    }
}

impl SiteView {
    /// The view of `site`.
    #[must_use]
    pub fn new(site: &Site<'_>, texts: &Messages) -> Self {
        let hashed_by = match site.hash_option() {
            Some(HashOption::Prefix) => texts.hash_options[0],
            Some(HashOption::Suffix) => texts.hash_options[1],
            Some(HashOption::Handle) => texts.hash_options[2],
            None => texts.hash_options[3],
        };
        let text = |bytes: &[u8]| Printable(Handle(bytes)).to_string();
        Self {
            role: if site.is_primary() { texts.primary_site } else { texts.mirror_site },
            serial: site.serial,
            protocol: format!("{}.{}", site.protocol.major, site.protocol.minor),
            hashed_by,
            attributes: site.attributes.iter().map(|one| (text(one.name), text(one.value))).collect(),
            servers: site.servers.iter().map(|server| ServerView::new(&server, texts)).collect(),
        }
    }
}

impl ServerView {
    fn new(server: &Server<'_>, texts: &Messages) -> Self {
        let interfaces = server.interfaces.iter().map(|interface| {
            let name = interface.protocol.name().unwrap_or("?");
            let uses = match interface.kind {
                InterfaceKind::BOTH => format!("{}, {}", texts.queries, texts.administration),
                kind if kind.has(InterfaceKind::QUERY) => texts.queries.to_owned(),
                kind if kind.has(InterfaceKind::ADMIN) => texts.administration.to_owned(),
                _ => texts.no_interface.to_owned(),
            };
            format!("{name} {} ({uses})", interface.port_number)
        });
        Self {
            name: fill(texts.server, server.id),
            address: if server.address.is_unspecified() {
                String::new()
            } else {
                server.address.ip().to_string()
            },
            interfaces: interfaces.collect(),
            key: PublicKey::decode(server.public_key).ok().map(|key| KeyView::new(&key)),
        }
    }
}

/// The names of the types that forms for new values offer.
pub fn offered_types() -> impl Iterator<Item = &'static str> {
    let offered = PREDEFINED_TYPES.iter().filter(|predefined| predefined.is_offered);
    offered.filter_map(|predefined| str::from_utf8(predefined.name).ok())
}
