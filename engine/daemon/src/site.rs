//! The identity of a server: its site record, and its position in that record.

use crate::text::{self, TextError};
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, Server, Site, SiteBuf};
use handle_proto::json::{JsonError, site_from_json};
use handle_proto::{Handle, HashOption};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// A site record and the position of this server in it.
#[derive(Clone, Debug)]
pub struct SiteRecord {
    site: SiteBuf,
    hash_option: HashOption,
    servers_count: u32,
    server_at: u32,
}

impl SiteRecord {
    /// Reads a site record from a JSON file and finds the server with the number `server_id` in it;
    /// for a site of one server the number is optional.
    ///
    /// # Errors
    /// When the file cannot be read, is not a site record, or has no such server.
    pub fn read(path: &Path, server_id: Option<i32>) -> Result<Self, SiteFileError> {
        let text = text::read(path, "the site record").map_err(SiteFileError::Text)?;
        Self::parse(&text, server_id).map_err(|error| SiteFileError::Record(path.to_owned(), error))
    }

    /// Like [`read`](Self::read), from the text of the file.
    ///
    /// # Errors
    /// When it is not a site record, or has no such server.
    pub fn parse(text: &str, server_id: Option<i32>) -> Result<Self, SiteError> {
        let json = serde_json::from_str(text).map_err(SiteError::Syntax)?;
        let site = site_from_json(&json).map_err(SiteError::Json)?;
        let view = site.view();
        let number = view.hash_option_number;
        let hash_option = view.hash_option().ok_or(SiteError::HashOption(number))?;
        let ids: Vec<i32> = view.servers.iter().map(|server| server.id).collect();
        let server_at = match (server_id, ids.as_slice()) {
            (_, []) => return Err(SiteError::NoServer),
            (None, [_]) => 0,
            (None, _) => return Err(SiteError::SeveralServers(ids)),
            (Some(id), _) => match ids.iter().position(|&other| other == id) {
                Some(at) => at,
                None => return Err(SiteError::UnknownServer { id, ids }),
            },
        };
        // A list in a record has far fewer entries.
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (servers_count, server_at) = (count(ids.len()), count(server_at));
        Ok(Self { site, hash_option, servers_count, server_at })
    }

    /// The record.
    #[must_use]
    pub fn view(&self) -> Site<'_> {
        self.site.view()
    }

    /// The record in wire form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.site.as_bytes()
    }

    /// The part of a handle that is hashed to choose a server of the site.
    #[must_use]
    pub const fn hash_option(&self) -> HashOption {
        self.hash_option
    }

    /// Number of servers of the site.
    #[must_use]
    pub const fn servers_count(&self) -> u32 {
        self.servers_count
    }

    /// Position of this server, from 0.
    #[must_use]
    pub const fn server_at(&self) -> u32 {
        self.server_at
    }

    /// The entry of this server in the record.
    #[must_use]
    pub fn server(&self) -> Option<Server<'_>> {
        self.view().servers.iter().nth(self.server_at as usize)
    }

    /// Whether the site is a primary site.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.view().is_primary()
    }

    /// Whether this server is the one responsible for `handle` within the site.
    #[must_use]
    pub fn has(&self, handle: Handle<'_>) -> bool {
        handle.server_at(self.hash_option, self.servers_count) == Some(self.server_at)
    }
}

/// Why a text is not the site record of a server.
#[derive(Debug)]
pub enum SiteError {
    /// It is not JSON.
    Syntax(serde_json::Error),
    /// It is not the JSON of a site record.
    Json(JsonError),
    /// The hash option is not one of those that are defined.
    HashOption(u8),
    /// The site has no server.
    NoServer,
    /// The site has several servers, with these numbers, and `server_id` is not set.
    SeveralServers(Vec<i32>),
    /// No server of the site has the number `id`.
    UnknownServer {
        /// The number that is set as `server_id`.
        id: i32,
        /// The numbers of the servers.
        ids: Vec<i32>,
    },
}

impl fmt::Display for SiteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |ids: &[i32]| ids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Syntax(error) => error.fmt(f),
            Self::Json(error) => error.fmt(f),
            Self::HashOption(number) => write!(f, "hash option {number} is not defined: use 0, 1 or 2"),
            Self::NoServer => f.write_str("the site has no server"),
            Self::SeveralServers(ids) => write!(
                f,
                "the site has several servers: set `server_id` to the one that this is: {}",
                shown(ids)
            ),
            Self::UnknownServer { id, ids } => {
                write!(f, "no server has the number {id} (`server_id`); there are: {}", shown(ids))
            }
        }
    }
}

impl std::error::Error for SiteError {}

/// Why the file of a site record cannot be used.
#[derive(Debug)]
pub enum SiteFileError {
    /// It cannot be read.
    Text(TextError),
    /// Its content is not the site record of this server.
    Record(PathBuf, SiteError),
}

impl fmt::Display for SiteFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(error) => error.fmt(f),
            Self::Record(path, _) => write!(f, "in the site record {}", path.display()),
        }
    }
}

impl std::error::Error for SiteFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Text(error) => error.source(),
            Self::Record(_, error) => Some(error),
        }
    }
}

/// What a process answers on the addresses of its `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerService {
    /// Queries over UDP, and over TCP if enabled.
    Queries {
        /// Whether TCP is enabled.
        over_tcp: bool,
    },
    /// Administration and queries over TCP.
    Administration,
}

impl ListenerService {
    /// Reason why this process does not answer on an interface that it should serve. `None` if it
    /// does, or if the interface belongs to the other process.
    fn missing(self, interface: Interface, listen: &[SocketAddr]) -> Option<&'static str> {
        let is_listened_on = listen.iter().any(|address| Some(address.port()) == interface.port());
        let for_queries = interface.kind.has(InterfaceKind::QUERY);
        match (self, interface.protocol) {
            _ if interface.kind == InterfaceKind::NONE => None,
            (Self::Queries { .. }, InterfaceProtocol::UDP) if !for_queries => {
                Some("administration is answered over TCP only")
            }
            (Self::Queries { .. }, InterfaceProtocol::UDP) if !is_listened_on => Some(NO_SUCH_PORT),
            // An interface for queries and administration belongs to the other process when both
            // share a port number.
            (Self::Queries { over_tcp }, InterfaceProtocol::TCP)
                if interface.kind == InterfaceKind::QUERY =>
            {
                match (is_listened_on, over_tcp) {
                    (false, _) => Some(NO_SUCH_PORT),
                    (true, false) => Some("`tcp.enabled` is off"),
                    (true, true) => None,
                }
            }
            (Self::Administration, InterfaceProtocol::TCP)
                if interface.kind.has(InterfaceKind::ADMIN) && !is_listened_on =>
            {
                Some(NO_SUCH_PORT)
            }
            (_, InterfaceProtocol::UDP | InterfaceProtocol::TCP) => None,
            (Self::Queries { .. }, _) => Some("neither handled nor handle-admin speaks this protocol"),
            (Self::Administration, _) => None,
        }
    }

    /// Whether this process may serve an interface.
    fn may_be_behind(self, interface: Interface) -> bool {
        match self {
            Self::Queries { .. } => interface.protocol.0 <= InterfaceProtocol::TCP.0,
            Self::Administration => interface.protocol == InterfaceProtocol::TCP,
        }
    }
}

const NO_SUCH_PORT: &str = "`listen` has no such port";

/// Differences between `listen` and the entry of the server in the site record, one sentence each:
/// interfaces without a listener, ports that the record does not name, and addresses of other
/// servers.
#[must_use]
pub fn differences(server: &Server<'_>, listen: &[SocketAddr], answers: ListenerService) -> Vec<String> {
    // Ports chosen by the kernel are not in a site record.
    if listen.iter().any(|address| address.port() == 0) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for interface in server.interfaces.iter() {
        if let Some(why) = answers.missing(interface, listen) {
            found.push(format!(
                "no socket listens on the interface {} of the site record: {why}",
                shown(interface)
            ));
        }
    }
    for address in listen {
        let is_named = |interface: Interface| {
            Some(address.port()) == interface.port()
                && interface.kind != InterfaceKind::NONE
                && answers.may_be_behind(interface)
        };
        if !server.interfaces.iter().any(is_named) {
            found.push(format!(
                "`listen` has {address}, and the site record tells no client of that port (server {})",
                server.id
            ));
        }
    }
    let site_ip = server.address.ip();
    let is_reached = |ip: IpAddr| ip.is_unspecified() || ip.to_canonical() == site_ip;
    if !server.address.is_unspecified() && !listen.iter().any(|address| is_reached(address.ip())) {
        let listens: Vec<String> = listen.iter().map(|address| address.ip().to_string()).collect();
        found.push(format!(
            "the site record sends clients to {site_ip}, and `listen` has {} only (right where addresses are translated)",
            listens.join(", ")
        ));
    }
    found
}

fn shown(interface: Interface) -> String {
    let kind = match interface.kind {
        InterfaceKind::ADMIN => "for administration",
        InterfaceKind::QUERY => "for queries",
        _ => "for administration and queries",
    };
    let protocol = interface.protocol;
    let name = protocol.name().map_or_else(|| format!("protocol {}", protocol.0), str::to_owned);
    format!("{name} port {} {kind}", interface.port_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server at 192.0.2.1 with these interfaces, as a site record of one server.
    fn site(interfaces: &[(&str, &str, u16)]) -> SiteRecord {
        let interfaces: Vec<_> = interfaces
            .iter()
            .map(|(protocol, kind, port)| {
                let (query, admin) = (kind.contains('q'), kind.contains('a'));
                serde_json::json!({ "protocol": protocol, "query": query, "admin": admin, "port": port })
            })
            .collect();
        let site = serde_json::json!({
            "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": true, "multiPrimary": false,
            "attributes": [], "servers": [
                { "serverId": 1, "address": "192.0.2.1", "interfaces": interfaces }
            ],
        });
        SiteRecord::parse(&site.to_string(), None).unwrap()
    }

    fn differ(interfaces: &[(&str, &str, u16)], listen: &[&str], answers: ListenerService) -> Vec<String> {
        let site = site(interfaces);
        let listen: Vec<SocketAddr> = listen.iter().map(|address| address.parse().unwrap()).collect();
        differences(&site.server().unwrap(), &listen, answers)
    }

    const QUERIES: ListenerService = ListenerService::Queries { over_tcp: true };
    const USUAL: [(&str, &str, u16); 3] = [("TCP", "q", 2641), ("TCP", "a", 2642), ("UDP", "q", 2641)];

    #[test]
    fn the_usual_layouts_are_as_the_site_record_says() {
        assert_eq!(differ(&USUAL, &["[::]:2641"], QUERIES), [""; 0]);
        assert_eq!(differ(&USUAL, &["192.0.2.1:2641"], QUERIES), [""; 0]);
        assert_eq!(differ(&USUAL, &["0.0.0.0:2642"], ListenerService::Administration), [""; 0]);
        let one_port = [("TCP", "qa", 2641), ("UDP", "q", 2641)];
        let over_udp = ListenerService::Queries { over_tcp: false };
        assert_eq!(differ(&one_port, &["[::]:2641"], ListenerService::Administration), [""; 0]);
        assert_eq!(differ(&one_port, &["[::]:2641"], over_udp), [""; 0]);
        assert_eq!(
            differ(&[("UDP", "q", 2641)], &["127.0.0.1:0"], QUERIES),
            [""; 0],
            "a port of the kernel's choice"
        );
    }

    #[test]
    fn interfaces_that_nobody_answers_on_are_named() {
        for (interface, answers, expected) in [
            (
                ("UDP", "q", 2643),
                QUERIES,
                "UDP port 2643 for queries of the site record: `listen` has no such port",
            ),
            (
                ("TCP", "q", 2643),
                QUERIES,
                "TCP port 2643 for queries of the site record: `listen` has no such port",
            ),
            (
                ("UDP", "a", 2641),
                QUERIES,
                "UDP port 2641 for administration of the site record: administration is",
            ),
            (
                ("HTTP", "qa", 8000),
                QUERIES,
                "HTTP port 8000 for administration and queries of the site record",
            ),
            (
                ("TCP", "a", 2644),
                ListenerService::Administration,
                "TCP port 2644 for administration of the site record",
            ),
            (("TCP", "q", 2641), ListenerService::Queries { over_tcp: false }, "`tcp.enabled` is off"),
        ] {
            let port = if answers == ListenerService::Administration { 2642 } else { 2641 };
            let interfaces = [("UDP", "q", 2641), ("TCP", "a", 2642), interface];
            let found = differ(&interfaces, &[&format!("[::]:{port}")], answers);
            assert!(found.len() == 1 && found[0].contains(expected), "{interface:?}: {found:?}");
        }
    }

    #[test]
    fn ports_and_addresses_that_clients_do_not_get_are_named() {
        let found = differ(&USUAL, &["[::]:2641", "[::]:2700"], QUERIES);
        assert!(
            found.len() == 1 && found[0].contains("[::]:2700") && found[0].contains("tells no client"),
            "{found:?}"
        );
        let found = differ(&USUAL, &["127.0.0.1:2641"], QUERIES);
        assert!(
            found.len() == 1 && found[0].contains("to 192.0.2.1, and `listen` has 127.0.0.1 only"),
            "{found:?}"
        );
    }
}
