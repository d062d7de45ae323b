//! The site record and this server's place in it.

use handle_daemon::site::SiteRecord;
use handle_proto::HashOption;
use handle_proto::limit::FRAGMENTS_MAX;
use handle_resolver::ServiceFacts;

/// The site record in wire form, with the fields that every reply needs.
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
    relays: bool,
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
            relays: alone.relays,
            resolves_for_old: alone.resolves_for_old,
            differences: Vec::new(),
        }
    }

    /// Adds the differences between `listen` and the site record.
    #[must_use]
    pub fn differing_in(self, differences: Vec<String>) -> Self {
        Self { differences, ..self }
    }

    /// The differences between `listen` and the site record that clients use, in one sentence each.
    #[must_use]
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// Sets the maximum number of datagrams of one answer.
    #[must_use]
    pub const fn answering_in(mut self, datagrams_max: usize) -> Self {
        self.answer_datagrams_max = datagrams_max;
        self
    }

    /// Enables the slow path, which makes challenges, signs if it has a key, and may have sessions.
    #[must_use]
    pub const fn with_slow_path(mut self, signs: bool, sessions: bool) -> Self {
        (self.signs, self.authenticates, self.sessions) = (signs, true, sessions);
        self
    }

    /// Enables forwarding to another process: of requests to list names if `listing` is set, and of
    /// requests of old clients that need a referral.
    #[must_use]
    pub const fn forwarding(mut self, listing: bool, old_clients: bool) -> Self {
        (self.forwards_listing, self.resolves_for_old) = (listing, old_clients);
        self
    }

    /// Whether requests that only another service can decide are handed to it.
    #[must_use]
    pub const fn relays(&self) -> bool {
        self.relays
    }

    /// Hands requests that only another service can decide to that service, if `relays` is set.
    #[must_use]
    pub const fn relaying(mut self, relays: bool) -> Self {
        self.relays = relays;
        self
    }

    /// The public key record that the site record has for this server; `None` without a site
    /// record.
    #[must_use]
    pub fn public_key(&self) -> Option<&[u8]> {
        self.public_key.as_deref()
    }

    /// The facts that the resolver needs for requests over TCP. A connected client has proven its
    /// address, so it may get answers of any length and forwarded answers.
    #[must_use]
    pub fn stream_service(&self) -> ServiceFacts<'_> {
        ServiceFacts {
            answer_datagrams_max: FRAGMENTS_MAX,
            forwards_listing: self.forwards_listing,
            ..self.service()
        }
    }

    /// The facts that the resolver needs for requests over UDP.
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
            relays: self.relays,
            resolves_for_old: self.resolves_for_old,
        }
    }
}
