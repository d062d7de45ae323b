//! What the configuration names and the gateway reads before it serves.

use crate::administration::AdministrationService;
use crate::config::Config;
use crate::proxy::rules::ProxyRules;
use crate::set::MappedSet;
use crate::tls::TlsIdentity;
use crate::upstream::Upstream;
use anyhow::ensure;
use handle_daemon::site::SiteRecord;
use std::path::PathBuf;

/// Everything that a configuration names and that needs no port.
#[derive(Debug)]
pub struct GatewaySources {
    /// The set.
    pub set: Option<MappedSet>,
    /// The site record.
    pub site: Option<SiteRecord>,
    /// The Handle System.
    pub upstream: Option<Upstream>,
    /// The administration service.
    pub admin: Option<AdministrationService>,
    /// The certificate.
    pub tls: Option<TlsIdentity>,
    /// The rules of the proxy.
    pub rules: ProxyRules,
}

impl GatewaySources {
    /// Opens everything that `config` names.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        ensure!(
            config.snapshot.is_some() || config.upstream.is_configured(),
            "nothing to answer from: set `snapshot` or pass --snapshot DIRECTORY, or set `upstream.root`"
        );
        let open =
            |directory: &PathBuf| MappedSet::open(directory, config.verify_new_layers, &config.publishers);
        let set = config.snapshot.as_ref().map(open).transpose()?;
        Ok(Self { set, ..Self::open_without_set(config)? })
    }

    /// Opens everything that `config` names, except for the set.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(crate) fn open_without_set(config: &Config) -> anyhow::Result<Self> {
        let read = |path: &PathBuf| SiteRecord::read(path, config.server_id);
        let site = config.site.as_ref().map(read).transpose()?;
        let admin = AdministrationService::open(&config.admin, site.as_ref())?;
        let tls = TlsIdentity::open(&config.tls, config.http2.enabled)?;
        let rules = ProxyRules::open(config)?;
        Ok(Self { set: None, site, upstream: Upstream::open(&config.upstream)?, admin, tls, rules })
    }
}
