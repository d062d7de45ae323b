//! Options shared by all commands that find services: where the global service is, and how servers
//! are asked.

mod local;

use anyhow::{Context as _, ensure};
use handle_client::bootstrap::{self, FILE_LEN_MAX, Overrides, Root};
use handle_client::lookup::Client;
use handle_formats::dct::DctSettings;
use handle_proto::data::site::{InterfaceProtocol, SiteBuf};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use local::ClientDirectory;

/// Where the global service is, and how servers are asked.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ClientArgs {
    /// File with the global service: bootstrap_handles (JSON), or root_info of a deployed client.
    /// Default: bootstrap_handles in --client-dir, otherwise root_info there.
    #[arg(long, value_name = "FILE", env = "HDL_ROOT")]
    root: Option<PathBuf>,
    /// File with the services of single prefixes: local_info.json, or local_info of a deployed
    /// client.
    #[arg(long, value_name = "FILE", env = "HDL_LOCAL_INFO")]
    local_info: Option<PathBuf>,
    /// File with the site that answers all public queries: resolver_site of a deployed client.
    #[arg(long, value_name = "FILE", env = "HDL_RESOLVER_SITE")]
    resolver_site: Option<PathBuf>,
    /// Directory of a deployed client, with its files such as config.dct. Default: ~/.handle if it
    /// exists, unless --root is given.
    #[arg(long, value_name = "DIR", env = "HDL_CLIENT_DIR")]
    client_dir: Option<PathBuf>,
    /// Use TCP instead of UDP.
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Prefer sites with this keyword (attribute site_filter_keywords), instead of those of
    /// config.dct.
    #[arg(long, value_name = "WORD")]
    keyword: Option<String>,
    /// Time limit for the lookup of one handle, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lookup_timeout: u64,
}

impl ClientArgs {
    /// Returns a client set up from these files.
    pub(crate) fn client(&self) -> anyhow::Result<Arc<Client>> {
        let directory = ClientDirectory::find(self.client_dir.as_deref(), self.root.is_none())?;
        let settings = directory.settings()?;
        let mut client = Client::new(self.root(&directory, &settings)?);
        // One silent server must not use up the whole time limit.
        client.timeout.tcp_ms = 10_000;
        // The file is renewed only on request, with `hdl root --refresh`.
        client.renewal.automatic = false;
        directory.apply(&settings, &mut client.preferences, &mut client.timeout)?;
        self.add_overrides(&directory, &mut client.overrides)?;
        if self.tcp {
            client.preferences.protocols = vec![InterfaceProtocol::TCP];
        }
        if let Some(keyword) = &self.keyword {
            client.preferences.keywords = vec![keyword.clone()];
        }
        client.limits.timeout_ms = self.lookup_timeout.max(1) * 1000;
        Ok(Arc::new(client))
    }

    /// The file that defines the global service, and how to use another.
    pub(crate) fn root_source(&self) -> (String, &'static str) {
        let Some(path) = &self.root else {
            return (
                "the directory of the client (~/.handle) or --client-dir".to_owned(),
                "choose another with --root FILE",
            );
        };
        let is_from_environment = std::env::var_os("HDL_ROOT").is_some_and(|root| root == **path);
        match is_from_environment {
            true => {
                (format!("HDL_ROOT={}", path.display()), "unset HDL_ROOT, or choose another file with --root")
            }
            false => (path.display().to_string(), "choose another with --root FILE"),
        }
    }

    /// Reads the global service; without sites if no file is named and none exists.
    fn root(&self, directory: &ClientDirectory, settings: &DctSettings) -> anyhow::Result<Root> {
        let found = || directory.file(&["bootstrap_handles", "root_info"]);
        let Some(path) = self.root.clone().or_else(found) else { return Ok(Root::default()) };
        let preferred = settings.text("preferred_global_service_handle").unwrap_or("0.NA/0.NA");
        Root::read_preferring(&read(&path)?, preferred.as_bytes()).with_context(|| {
            format!("{} is not a bootstrap file (bootstrap_handles or root_info)", path.display())
        })
    }

    /// The services known beforehand: those of the options, otherwise those of the directory.
    fn add_overrides(&self, directory: &ClientDirectory, overrides: &mut Overrides) -> anyhow::Result<()> {
        let found = |given: &Option<PathBuf>, names| given.clone().or_else(|| directory.file(names));
        if let Some(path) = found(&self.resolver_site, &["resolver_site"]) {
            overrides.read_resolver(&read(&path)?).with_context(|| path.display().to_string())?;
        }
        if let Some(path) = directory.file(&["local_nas"]) {
            overrides.add_local_prefixes(&local::text(&path)?);
        }
        if let Some(path) = found(&self.local_info, &["local_info.json", "local_info"]) {
            overrides.add_local_info(&read(&path)?).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

/// Reads a site: a siteinfo.json, or a site record.
pub(crate) fn read_site(path: &Path) -> anyhow::Result<SiteBuf> {
    bootstrap::read_site(&read(path)?)
        .with_context(|| format!("{} is not a site (siteinfo.json or site record)", path.display()))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes));
    let len = read.with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(len as u64 <= FILE_LEN_MAX, "{} is longer than {} MiB", path.display(), FILE_LEN_MAX >> 20);
    Ok(bytes)
}
