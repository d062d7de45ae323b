//! The settings in force, and those that a reload can change.
//!
//! - A configuration that cannot be read, is invalid, or names a site record that does not open
//!   changes nothing.
//! - Settings that determine sockets, threads and memory keep their values, and the reload names
//!   them: a restart by takeover changes them.
//! - Workers check [`generation`](LiveSettings::generation) during their periodic work, and then
//!   apply the new settings.

use crate::config::Config;
use crate::inputs::read_site;
use crate::site::OwnSite;
use arc_swap::ArcSwap;
use handle_daemon::log::SetLog;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::settings::reload::{SettingChanges, merged};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A configuration in force, with the site record read for it.
#[derive(Debug)]
pub(crate) struct ActiveSettings {
    pub(crate) config: Config,
    pub(crate) site: OwnSite,
}

/// The settings in force.
#[derive(Debug)]
pub(crate) struct LiveSettings {
    current: ArcSwap<ActiveSettings>,
    generation: AtomicU64,
    /// Held while a new configuration is read and applied, and while the published set is reloaded
    /// after it.
    pub(crate) reloading: Mutex<()>,
}

impl LiveSettings {
    pub(crate) fn new(config: Config, site: OwnSite) -> Self {
        Self {
            current: ArcSwap::from_pointee(ActiveSettings { config, site }),
            generation: AtomicU64::new(0),
            reloading: Mutex::new(()),
        }
    }

    pub(crate) fn current(&self) -> Arc<ActiveSettings> {
        self.current.load_full()
    }

    /// A number that changes whenever other settings come into force.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Applies those settings of `new` that can change while serving. Calls must not run
    /// concurrently.
    ///
    /// # Errors
    /// When the configuration is invalid; then nothing has changed.
    pub(crate) fn take(
        &self,
        new: &Config,
        check_site: impl Fn(&OwnSite) -> anyhow::Result<()>,
        set_log: Option<&SetLog>,
    ) -> anyhow::Result<SettingChanges> {
        new.check()?;
        let old = self.current();
        let (config, changes) = merged(&old.config, new)?;
        // The combination with the settings that keep their values must be valid as well.
        config.check()?;
        // Read even if the path is unchanged, because the contents of the file may have changed.
        let site = read_site(&config)?.relaying(old.site.relays());
        check_site(&site)?;
        if config.log != old.config.log
            && let Some(set_log) = set_log
        {
            set_log(&config.log)?;
        }
        for difference in site.differences().iter().filter(|one| !old.site.differences().contains(one)) {
            tracing::warn!("{difference}");
        }
        self.current.store(Arc::new(ActiveSettings { config, site }));
        self.generation.fetch_add(1, Ordering::Release);
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::log::LogError;

    fn settings() -> LiveSettings {
        LiveSettings::new(Config::default(), OwnSite::alone())
    }

    #[test]
    fn what_can_change_does_and_the_rest_is_named() {
        let settings = settings();
        let mut new = Config::default();
        new.limits.answer_datagrams = 7;
        new.limits.socket_receive_bytes = 7;
        new.workers = 3;
        new.tcp.enabled = false;
        new.templates.delimiter = Some("@".to_owned());
        let changes = settings.take(&new, |_| Ok(()), None).unwrap();
        assert_eq!(changes.changed, ["limits.answer_datagrams", "templates.delimiter"]);
        assert_eq!(changes.need_restart, ["limits.socket_receive_bytes", "tcp.enabled", "workers"]);
        let config = &settings.current().config;
        assert_eq!(config.limits.answer_datagrams, 7);
        assert_eq!(config.limits.socket_receive_bytes, Config::default().limits.socket_receive_bytes);
        assert_eq!(settings.generation(), 1);
        // Settings that were not applied are reported again; applied ones are not.
        let changes = settings.take(&new, |_| Ok(()), None).unwrap();
        assert_eq!(changes.changed, [""; 0]);
        assert_eq!(changes.need_restart, ["limits.socket_receive_bytes", "tcp.enabled", "workers"]);
    }

    #[test]
    fn constants_that_a_program_has_chosen_survive_a_reload() {
        let mut chosen = Config::default();
        chosen.limits.batch_datagrams = 7;
        let settings = LiveSettings::new(chosen, OwnSite::alone());
        let new = Config { log: "warn".to_owned(), ..Config::default() };
        assert_eq!(settings.take(&new, |_| Ok(()), None).unwrap().changed, ["log"]);
        let config = &settings.current().config;
        assert_eq!((config.log.as_str(), config.limits.batch_datagrams), ("warn", 7));
    }

    #[test]
    fn settings_that_were_not_there_come_and_go() {
        let settings = settings();
        let new = Config { control: Some("control.sock".into()), server_id: Some(3), ..Config::default() };
        let changes = settings.take(&new, |_| Ok(()), None).unwrap();
        assert_eq!(
            (changes.changed, changes.need_restart),
            (vec!["server_id".into()], vec!["control".into()])
        );
        assert_eq!(settings.current().config.server_id, Some(3));
        assert_eq!(settings.take(&Config::default(), |_| Ok(()), None).unwrap().changed, ["server_id"]);
        assert_eq!(settings.current().config.server_id, None);
    }

    #[test]
    fn what_is_wrong_changes_nothing() {
        let settings = settings();
        let mut wrong = Config::default();
        wrong.tcp.connections = 7;
        wrong.limits.answer_datagrams = 0;
        assert!(
            settings
                .take(&wrong, |_| Ok(()), None)
                .unwrap_err()
                .to_string()
                .contains("limits.answer_datagrams")
        );
        let mut wrong = Config { site: Some("/nonexistent".into()), ..Config::default() };
        wrong.tcp.connections = 7;
        assert!(settings.take(&wrong, |_| Ok(()), None).unwrap_err().to_string().contains("/nonexistent"));
        let mut wrong = Config { log: "debug".to_owned(), ..Config::default() };
        wrong.tcp.connections = 7;
        let refuse: SetLog = Box::new(|_| Err(LogError::Ended));
        let refused = settings.take(&wrong, |_| Ok(()), Some(&refuse)).unwrap_err();
        assert_eq!(refused.to_string(), LogError::Ended.to_string());
        assert_eq!(settings.current().config.tcp.connections, 10_240);
        assert_eq!(settings.generation(), 0);
    }
}
