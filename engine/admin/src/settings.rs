//! The settings in force, and which settings of a new configuration can take effect while serving.
//!
//! A configuration that is unreadable or invalid changes nothing. Ports, threads, keys and the
//! store stay as they were opened; changed settings that affect them are named, and take effect
//! after a restart.

use crate::audit::AuditTarget;
use crate::config::Config;
use crate::connections::AdminConnections;
use crate::operation::OperationRules;
use crate::publish::StorePublisher;
use crate::service::{ActiveRules, AdminService};
use crate::succession::Succession;
use handle_auth::source::SourceList;
use handle_daemon::log::SetLog;
use handle_daemon::program::ReadConfig;
use handle_daemon::readiness;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::settings::reload::{SettingChanges, merged, report_failed_reload};
use handle_daemon::site::SiteRecord;
use handle_source::PulledPrefixes;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// What only the program can provide.
#[derive(Clone, Default)]
pub struct AdminHooks {
    /// Reads the configuration for a reload; without it, reloading is not possible.
    pub read_config: Option<Arc<ReadConfig<Config>>>,
    /// Changes the log settings at a reload.
    pub set_log: Option<Arc<SetLog>>,
    /// How another process takes over.
    pub succession: Arc<Succession>,
}

impl fmt::Debug for AdminHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// The settings in force.
#[derive(Debug)]
pub struct AdminSettings {
    current: RwLock<Arc<Config>>,
    hooks: AdminHooks,
    /// Held while a new configuration is read and applied.
    taking: Mutex<()>,
}

impl AdminSettings {
    /// Starts with the configuration of the start.
    #[must_use]
    pub fn new(config: Config, hooks: AdminHooks) -> Self {
        Self { current: RwLock::new(Arc::new(config)), hooks, taking: Mutex::new(()) }
    }

    /// How another process takes over.
    #[must_use]
    pub fn succession(&self) -> &Arc<Succession> {
        &self.hooks.succession
    }

    /// The configuration.
    #[must_use]
    pub fn current(&self) -> Arc<Config> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The parts of the process that take new settings.
#[derive(Clone, Copy, Debug)]
pub struct ReloadTargets<'s> {
    /// The rules, the audit log and the limits of challenges.
    pub service: &'s AdminService,
    /// The limits of connections.
    pub connections: &'s AdminConnections,
    /// The publisher, if there is one.
    pub publisher: Option<&'s StorePublisher>,
}

/// The rules by which requests are decided, from the configuration.
///
/// `primaries` tells where changes are made, if this is a mirror.
pub(crate) fn active_rules(
    config: &Config,
    site: Arc<SiteRecord>,
    primaries: Option<String>,
) -> anyhow::Result<ActiveRules> {
    let rules = OperationRules {
        site,
        administrators: config.administrators()?,
        anonymous_full_access: config.anonymous_full_access,
        lists_handles: config.list_handles,
        replicates: config.replication.enabled && config.server_key.is_some(),
        primaries,
        pulled: PulledPrefixes::new(&config.sources),
        bounds: config.bounds(),
    };
    // The configuration has been checked.
    let exempt = SourceList::parse(&config.limits.exempt_sources).unwrap_or_default();
    Ok(ActiveRules { rules, effort: config.effort(), exempt })
}

/// Reads the configuration again, and reports the result.
pub fn reload(settings: &AdminSettings, targets: &ReloadTargets<'_>) -> Value {
    // Locked before the file is read: of two reloads at once, the later one must not be overtaken
    // by what the other has read, nor may the service manager take the end of one for that of the
    // other.
    let _taking = settings.taking.lock().unwrap_or_else(PoisonError::into_inner);
    readiness::reloading(|| match apply_changes(settings, targets) {
        Ok(changes) => {
            let mut answer = json!({ "ok": true });
            changes.report(&mut answer, "restart instead: hdl control restart");
            answer
        }
        Err(error) => report_failed_reload(&error),
    })
}

/// Applies the settings that can change while serving. Steps that may fail come first.
fn apply_changes(settings: &AdminSettings, targets: &ReloadTargets<'_>) -> anyhow::Result<SettingChanges> {
    let read = settings.hooks.read_config.as_ref();
    let new = read.ok_or_else(|| anyhow::anyhow!("this server has no configuration to read again"))?()?;
    new.check()?;
    let old = settings.current();
    let (config, changes) = merged(&*old, &new)?;
    // The new settings must also be valid together with those that stay.
    config.check()?;
    let service = targets.service;
    let rules = &service.decision.in_force().rules;
    let in_force = active_rules(&config, Arc::clone(&rules.site), rules.primaries.clone())?;
    let audit_target = AuditTarget::open(config.audit.as_deref(), config.audit_files())?;
    let set_log = settings.hooks.set_log.as_ref().filter(|_| config.log != old.log);
    if let Some(set_log) = set_log {
        set_log(&config.log)?;
    }
    // The last step that may fail, since this command cannot be undone.
    if let Some(publishing) = targets.publisher
        && let Err(error) = publishing.reconfigure(&config.publish)
    {
        set_log.map_or(Ok(()), |set_log| set_log(&old.log))?;
        return Err(error.into());
    }
    service.audit.put_in_force(audit_target, config.audit_bounds());
    service.decision.put_in_force(in_force);
    let challenge_limits = config.challenge_limits();
    if let Some(costly) = service.proof.costly() {
        costly.set_exempt(challenge_limits.exempt.clone());
    }
    service
        .decision
        .remote()
        .into_iter()
        .for_each(|remote| remote.set_exempt(challenge_limits.exempt.clone()));
    if let Some(referrals) = service.decision.referrals() {
        referrals.set_exempt(challenge_limits.exempt.clone());
    }
    service.proof.challenges().set_limits(challenge_limits);
    targets.connections.set_limits(&config.tcp);
    if config.anonymous_full_access && !old.anonymous_full_access {
        tracing::warn!("`anonymous_full_access` is on: every client has full access");
    }
    *settings.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    Ok(changes)
}
