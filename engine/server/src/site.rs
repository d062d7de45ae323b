//! Who this server is: the site record, and the place in it.

use handle_process::site::SiteRecord;
use handle_proto::HashOption;
use handle_resolver::Service;
use std::path::Path;

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
        let alone = Service::ALONE;
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
        }
    }

    /// Reads a site record from a JSON file and finds the server with the number `server_id` in it; of a single
    /// server the number need not be said.
    ///
    /// # Errors
    /// When the file cannot be read, is not a site record, or has no such server.
    pub fn read(path: &Path, server_id: Option<i32>) -> anyhow::Result<Self> {
        Ok(Self::from(&SiteRecord::read(path, server_id)?))
    }

    /// With a bound on the datagrams of one answer.
    #[must_use]
    pub const fn answering_in(mut self, datagrams_max: usize) -> Self {
        self.answer_datagrams_max = datagrams_max;
        self
    }

    /// With a slow path, which makes challenges, and signs where it has a key.
    #[must_use]
    pub const fn with_slow_path(mut self, signs: bool) -> Self {
        (self.signs, self.authenticates) = (signs, true);
        self
    }

    /// The record of this server's key as the site record tells it to clients; `None` without a site record.
    #[must_use]
    pub fn public_key(&self) -> Option<&[u8]> {
        self.public_key.as_deref()
    }

    /// What the resolver needs of it.
    #[must_use]
    pub fn service(&self) -> Service<'_> {
        Service {
            site: &self.bytes,
            site_serial: self.serial,
            primary: self.primary,
            hash_option: self.hash_option,
            servers_count: self.servers_count,
            server_at: self.server_at,
            answer_datagrams_max: self.answer_datagrams_max,
            signs: self.signs,
            authenticates: self.authenticates,
        }
    }
}
