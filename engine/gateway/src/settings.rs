//! The settings in force, and which settings of a new configuration can take effect while serving.
//!
//! A configuration that is unreadable or invalid changes nothing. Ports, threads, files and caches
//! stay as they were opened; changed settings that affect them are named, and take effect after a
//! restart.

use crate::config::Config;
use arc_swap::{ArcSwap, Guard};
use handle_auth::source::SourceList;
use handle_daemon::log::SetLog;
use handle_daemon::program::ReadConfig;
use handle_daemon::takeover::SuccessorProgram;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Functions that only the program can provide.
#[derive(Default)]
pub struct GatewayHooks {
    /// The command line of this program, for a restart by takeover.
    pub program: Option<SuccessorProgram>,
    /// Reads the configuration for a reload; without it only the published set is reloaded.
    pub read_config: Option<ReadConfig<Config>>,
    /// Changes the log settings at a reload.
    pub set_log: Option<SetLog>,
}

impl fmt::Debug for GatewayHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// The lists of networks in the settings, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkLists {
    /// Trusted proxies.
    pub trusted: SourceList,
    /// Sources whose requests are not limited.
    pub exempt: SourceList,
}

impl NetworkLists {
    pub(crate) fn of(config: &Config) -> Self {
        // A configuration is checked before it gets here.
        let parse = |texts: &[String]| SourceList::parse(texts).unwrap_or_default();
        Self { trusted: parse(&config.proxies.trusted), exempt: parse(&config.request_rate.exempt) }
    }
}

/// The settings in force.
#[derive(Debug)]
pub struct GatewaySettings {
    pub(crate) current: ArcSwap<Config>,
    pub(crate) networks: ArcSwap<NetworkLists>,
    hooks: GatewayHooks,
    /// Held while a new configuration is read and applied.
    pub(crate) taking: Mutex<()>,
}

impl GatewaySettings {
    /// Starts with the configuration of the start.
    #[must_use]
    pub fn new(config: Config, hooks: GatewayHooks) -> Self {
        let networks = ArcSwap::from_pointee(NetworkLists::of(&config));
        Self { current: ArcSwap::from_pointee(config), networks, hooks, taking: Mutex::new(()) }
    }

    /// The lists of networks, for a moment.
    #[must_use]
    pub fn networks(&self) -> Guard<Arc<NetworkLists>> {
        self.networks.load()
    }

    /// The configuration, for a moment.
    #[must_use]
    pub fn current(&self) -> Guard<Arc<Config>> {
        self.current.load()
    }

    /// What the program provides.
    #[must_use]
    pub const fn hooks(&self) -> &GatewayHooks {
        &self.hooks
    }

    /// The configuration, for as long as a request or connection takes.
    #[must_use]
    pub fn current_shared(&self) -> Arc<Config> {
        self.current.load_full()
    }
}
