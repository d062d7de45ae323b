//! What all commands that find services share: where the global service is, and how servers are asked.

use anyhow::Context as _;
use handle_client::bootstrap::{self, FILE_LEN_MAX, Root};
use handle_client::lookup::Client;
use handle_proto::data::site::{InterfaceProtocol, SiteBuf};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the global service is, and how servers are asked.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ClientArgs {
    /// File of the global service: bootstrap_handles (JSON) or root_info of a deployed client. Unless
    /// given, ~/.handle/bootstrap_handles, and failing that ~/.handle/root_info.
    #[arg(long, value_name = "FILE", env = "HDL_ROOT")]
    root: Option<PathBuf>,
    /// Prefixes with a service of their own: local_info.json or local_info of a deployed client.
    #[arg(long, value_name = "FILE", env = "HDL_LOCAL_INFO")]
    local_info: Option<PathBuf>,
    /// A site that all public questions go to: resolver_site of a deployed client.
    #[arg(long, value_name = "FILE", env = "HDL_RESOLVER_SITE")]
    resolver_site: Option<PathBuf>,
    /// Ask over TCP instead of UDP.
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Ask sites with this keyword first (attribute site_filter_keywords).
    #[arg(long, value_name = "WORD")]
    keyword: Option<String>,
    /// Seconds that one handle may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

impl ClientArgs {
    /// A client that knows what the files say.
    pub(crate) fn client(&self) -> anyhow::Result<Arc<Client>> {
        let mut client = Client::new(self.root()?);
        if let Some(path) = &self.resolver_site {
            let bytes = read(path)?;
            client.overrides.read_resolver(&bytes).with_context(|| path.display().to_string())?;
        }
        if let Some(path) = &self.local_info {
            let bytes = read(path)?;
            client.overrides.add_local_info(&bytes).with_context(|| path.display().to_string())?;
        }
        if self.tcp {
            client.preferences.protocols = vec![InterfaceProtocol::TCP];
        }
        client.preferences.keyword.clone_from(&self.keyword);
        client.limits.patience_ms = self.patience.max(1) * 1000;
        // One server that does not answer must not take all the time there is.
        client.patience.tcp_ms = 10_000;
        // Who wants it renewed says so: `hdl root --refresh`.
        client.renewal.automatic = false;
        Ok(Arc::new(client))
    }

    /// The global service; of no sites where no file is named and none is there.
    fn root(&self) -> anyhow::Result<Root> {
        let found = || {
            let directory = PathBuf::from(std::env::var_os("HOME")?).join(".handle");
            let names = ["bootstrap_handles", "root_info"];
            names.map(|name| directory.join(name)).into_iter().find(|path| path.is_file())
        };
        let Some(path) = self.root.clone().or_else(found) else { return Ok(Root::default()) };
        Root::read(&read(&path)?)
            .with_context(|| format!("{} is no file of the global service", path.display()))
    }
}

/// Reads a site: a siteinfo.json, or a site record.
pub(crate) fn read_site(path: &Path) -> anyhow::Result<SiteBuf> {
    bootstrap::read_site(&read(path)?).with_context(|| format!("{} is no site", path.display()))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
    file.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}
