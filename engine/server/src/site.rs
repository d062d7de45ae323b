//! Who this server is: the site record, and the place in it.

use handle_daemon::site::SiteRecord;
use handle_proto::HashOption;
use handle_proto::limit::FRAGMENTS_MAX;
use handle_resolver::ServiceFacts;

/// The site record in wire form, with what is read from it for every reply.
#[derive(Clone, Debug)]
pub struct OwnSite {
    bytes: Vec<u8>,
    serial: i16,
    primary: bool,
    hash_option: HashOption,
    servers_count: u32,
    server_at: u32,
    answer_datagrams_max: usize,
    /// The record of this server's key in the site record.
    public_key: Option<Vec<u8>>,
    signs: bool,
    authenticates: bool,
    sessions: bool,
    forwards_listing: bool,
    resolves_for_old: bool,
    differences: Vec<String>,
}

impl From<&SiteRecord> for OwnSite {
    fn from(record: &SiteRecord) -> Self {
        Self {
            bytes: record.as_bytes().to_vec(),
            serial: record.view().serial,
            primary: record.is_primary(),
            hash_option: record.hash_option(),
            servers_count: record.servers_count(),
            server_at: record.server_at(),
            public_key: record.server().map(|server| server.public_key.to_vec()),
            ..Self::alone()
        }
    }
}

impl OwnSite {
    /// A server that is alone in a site without a record.
    #[must_use]
    pub fn alone() -> Self {
        let alone = ServiceFacts::ALONE;
        Self {
            bytes: Vec::new(),
            serial: alone.site_serial,
            primary: alone.primary,
            hash_option: alone.hash_option,
            servers_count: alone.servers_count,
            server_at: alone.server_at,
            answer_datagrams_max: alone.answer_datagrams_max,
            public_key: None,
            signs: alone.signs,
            authenticates: alone.authenticates,
            sessions: alone.sessions,
            forwards_listing: alone.forwards_listing,
            resolves_for_old: alone.resolves_for_old,
            differences: Vec::new(),
        }
    }

    /// With what `listen` differs in from the site record.
    #[must_use]
    pub fn differing_in(self, differences: Vec<String>) -> Self {
        Self { differences, ..self }
    }

    /// How `listen` differs from what the site record tells clients, in one sentence each.
    #[must_use]
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// With a bound on the datagrams of one answer.
    #[must_use]
    pub const fn answering_in(mut self, datagrams_max: usize) -> Self {
        self.answer_datagrams_max = datagrams_max;
        self
    }

    /// With a slow path, which makes challenges, signs where it has a key, and may have sessions.
    #[must_use]
    pub const fn with_slow_path(mut self, signs: bool, sessions: bool) -> Self {
        (self.signs, self.authenticates, self.sessions) = (signs, true, sessions);
        self
    }

    /// With requests that are forwarded to another process: to list names, where that `listing` says so, and of old clients
    /// that are to be referred.
    #[must_use]
    pub const fn forwarding(mut self, listing: bool, old_clients: bool) -> Self {
        (self.forwards_listing, self.resolves_for_old) = (listing, old_clients);
        self
    }

    /// The record of this server's key as the site record tells it to clients; `None` without a site record.
    #[must_use]
    pub fn public_key(&self) -> Option<&[u8]> {
        self.public_key.as_deref()
    }

    /// What the resolver needs of it for requests over TCP. Who is connected has proven their address: they may have as
    /// long an answer as there is, and what is forwarded.
    #[must_use]
    pub fn stream_service(&self) -> ServiceFacts<'_> {
        ServiceFacts {
            answer_datagrams_max: FRAGMENTS_MAX,
            forwards_listing: self.forwards_listing,
            ..self.service()
        }
    }

    /// What the resolver needs of it for requests over UDP.
    #[must_use]
    pub fn service(&self) -> ServiceFacts<'_> {
        ServiceFacts {
            site: &self.bytes,
            site_serial: self.serial,
            primary: self.primary,
            hash_option: self.hash_option,
            servers_count: self.servers_count,
            server_at: self.server_at,
            answer_datagrams_max: self.answer_datagrams_max,
            signs: self.signs,
            authenticates: self.authenticates,
            sessions: self.sessions,
            forwards_listing: false,
            resolves_for_old: self.resolves_for_old,
        }
    }
}
