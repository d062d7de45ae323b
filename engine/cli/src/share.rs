//! The share of one server: the records that hash to it.

use crate::client::read_site;
use anyhow::{Context as _, ensure};
use handle_proto::Handle;
use handle_proto::data::site::SiteBuf;
use std::path::PathBuf;

/// The server and the site whose share is selected.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ShareArgs {
    /// Use only the share of one server of this site (siteinfo.json), the records that hash to it.
    #[arg(long, value_name = "SITEINFO", requires = "server")]
    site: Option<PathBuf>,
    /// The server, by its serverId in --site.
    #[arg(long, value_name = "N", requires = "site", allow_negative_numbers = true)]
    server: Option<i32>,
}

/// The share of one server of a site, or everything if no site is named.
#[derive(Debug)]
pub(crate) struct Share(Option<(SiteBuf, usize)>);

impl ShareArgs {
    /// The selected share.
    pub(crate) fn read(&self) -> anyhow::Result<Share> {
        let (Some(path), Some(id)) = (&self.site, self.server) else { return Ok(Share(None)) };
        let site = read_site(path)?;
        let view = site.view();
        let shown = path.display();
        let at = view.servers.iter().position(|server| server.id == id);
        let at = at.with_context(|| format!("{shown} has no server with serverId {id}"))?;
        ensure!(
            view.server_at(Handle(b"0.NA/0.NA")).is_some(),
            "{shown} has hash option {}, which is not defined: use 0, 1 or 2",
            view.hash_option_number
        );
        Ok(Share(Some((site, at))))
    }
}

impl Share {
    /// Whether the server has `handle`.
    pub(crate) fn has(&self, handle: Handle<'_>) -> bool {
        self.0.as_ref().is_none_or(|(site, at)| site.view().server_at(handle) == Some(*at))
    }
}
