//! Who this server is: the site record, and the place in it.

use anyhow::{Context as _, anyhow, bail};
use handle_proto::HashOption;
use handle_proto::data::site::Site;
use handle_proto::json::site_from_json;
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
    sessions: bool,
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
            sessions: alone.sessions,
        }
    }

    /// Reads a site record from a JSON file and finds the server with the number `server_id` in it; of a single
    /// server the number need not be said.
    ///
    /// # Errors
    /// When the file cannot be read, is not a site record, or has no such server.
    pub fn read(path: &Path, server_id: Option<i32>) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the site record {}", path.display()))?;
        Self::parse(&text, server_id).with_context(|| format!("in the site record {}", path.display()))
    }

    fn parse(text: &str, server_id: Option<i32>) -> anyhow::Result<Self> {
        let json = serde_json::from_str(text)?;
        let bytes = site_from_json(&json)?.as_bytes().to_vec();
        let site = Site::decode(&bytes)?;
        let number = site.hash_option_number;
        let hash_option = site
            .hash_option()
            .ok_or_else(|| anyhow!("hash option {number} is not defined: use 0, 1 or 2"))?;
        let ids: Vec<i32> = site.servers.iter().map(|server| server.id).collect();
        let shown = ids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        let server_at = match (server_id, ids.as_slice()) {
            (_, []) => bail!("the site has no server"),
            (None, [_]) => 0,
            (None, _) => bail!("the site has several servers: say which this is (`server_id`): {shown}"),
            (Some(id), _) => ids
                .iter()
                .position(|&other| other == id)
                .ok_or_else(|| anyhow!("no server has the number {id} (`server_id`); there are: {shown}"))?,
        };
        let public_key = site.servers.iter().nth(server_at).map(|server| server.public_key.to_vec());
        Ok(Self {
            serial: site.serial,
            primary: site.is_primary(),
            hash_option,
            servers_count: u32::try_from(ids.len())?,
            server_at: u32::try_from(server_at)?,
            answer_datagrams_max: Service::ALONE.answer_datagrams_max,
            public_key,
            signs: false,
            authenticates: false,
            sessions: false,
            bytes,
        })
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
            sessions: self.sessions,
        }
    }
}
