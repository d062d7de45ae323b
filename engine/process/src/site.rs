//! Who a server is: the site record, and the server's place in it.

use crate::text;
use anyhow::{Context as _, anyhow, bail};
use handle_proto::data::site::{Server, Site, SiteBuf};
use handle_proto::json::site_from_json;
use handle_proto::{Handle, HashOption};
use std::path::Path;

/// A site record, and which of its servers this is.
#[derive(Clone, Debug)]
pub struct SiteRecord {
    site: SiteBuf,
    hash_option: HashOption,
    servers_count: u32,
    server_at: u32,
}

impl SiteRecord {
    /// Reads a site record from a JSON file and finds the server with the number `server_id` in it; of a single
    /// server the number need not be said.
    ///
    /// # Errors
    /// When the file cannot be read, is not a site record, or has no such server.
    pub fn read(path: &Path, server_id: Option<i32>) -> anyhow::Result<Self> {
        let text = text::read(path, "the site record")?;
        Self::parse(&text, server_id).with_context(|| format!("in the site record {}", path.display()))
    }

    /// The same, from the text of the file.
    ///
    /// # Errors
    /// When it is not a site record, or has no such server.
    pub fn parse(text: &str, server_id: Option<i32>) -> anyhow::Result<Self> {
        let site = site_from_json(&serde_json::from_str(text)?)?;
        let view = site.view();
        let number = view.hash_option_number;
        let hash_option = view
            .hash_option()
            .ok_or_else(|| anyhow!("hash option {number} is not defined: use 0, 1 or 2"))?;
        let ids: Vec<i32> = view.servers.iter().map(|server| server.id).collect();
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
        let (servers_count, server_at) = (u32::try_from(ids.len())?, u32::try_from(server_at)?);
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

    /// By what a server of the site is chosen.
    #[must_use]
    pub const fn hash_option(&self) -> HashOption {
        self.hash_option
    }

    /// How many servers the site has.
    #[must_use]
    pub const fn servers_count(&self) -> u32 {
        self.servers_count
    }

    /// The place of this one, from 0.
    #[must_use]
    pub const fn server_at(&self) -> u32 {
        self.server_at
    }

    /// What the record says of this server.
    #[must_use]
    pub fn server(&self) -> Option<Server<'_>> {
        self.view().servers.iter().nth(self.server_at as usize)
    }

    /// Whether it is a primary site.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.view().is_primary()
    }

    /// Whether this is the server of the site that has `handle`, if the site has it.
    #[must_use]
    pub fn has(&self, handle: Handle<'_>) -> bool {
        handle.server_at(self.hash_option, self.servers_count) == Some(self.server_at)
    }
}
