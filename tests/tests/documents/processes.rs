//! The processes with settings and metrics. A new one is one row here.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_daemon::metrics::MetricGroup;
use handle_daemon::settings::file::to_table;
use handle_daemon::settings::{SettingSection, SettingTable};
use toml::Table;

/// A process with settings and metrics.
pub(crate) struct Process {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    /// Start of the names of its pages, as `fetch` of `fetch-settings.md`.
    pages: &'static str,
    pub(crate) tables: Vec<SettingTable>,
    pub(crate) metrics: Vec<MetricGroup>,
    pub(crate) defaults: Table,
    /// Reads a table as settings.
    pub(crate) read: fn(&Table) -> Result<(), String>,
    /// The same, and checks their bounds.
    pub(crate) check: fn(&Table) -> Result<(), String>,
    /// Reads a table as settings, and writes them again.
    pub(crate) reread: fn(&Table) -> Table,
}

impl Process {
    pub(crate) fn all() -> [Self; 5] {
        let source = "[[sources]]\nname = \"a\"\nprefixes = [\"10.1\"]\nurl = \"http://a.example\"";
        [
            Self::new::<handle_worker::config::Config>("handle-server", "handled", "")
                .with_metrics(handle_worker::observe::metric_groups()),
            Self::new::<handle_admin::config::Config>("handle-admin", "handle-admin", "admin")
                .with_lists(source)
                .with_metrics(handle_admin::observe::metric_groups()),
            Self::new::<handle_gateway::Config>("handle-gateway", "handle-gateway", "gateway")
                .with_metrics(handle_gateway::observe::metric_groups()),
            Self::new::<handle_fetch::Config>("handle-fetch", "handle-fetch", "fetch")
                .with_metrics(handle_fetch::observe::metric_groups()),
            Self::new::<handle_cache::Config>("handle-cache", "handle-cache", "cache")
                .with_metrics(handle_cache::metrics::metric_groups()),
        ]
    }

    fn new<C: SettingSection>(package: &'static str, name: &'static str, pages: &'static str) -> Self {
        let read = |table: &Table| table.clone().try_into::<C>().map(drop).map_err(|error| error.to_string());
        let check = |table: &Table| {
            let config: C = table.clone().try_into().map_err(|error: toml::de::Error| error.to_string())?;
            config.check().map_err(|error| error.to_string())
        };
        let defaults = to_table(&C::default()).unwrap();
        let reread = |table: &Table| to_table(&table.clone().try_into::<C>().unwrap()).unwrap();
        Self {
            package,
            name,
            pages,
            tables: C::tables(""),
            metrics: Vec::new(),
            defaults,
            read,
            check,
            reread,
        }
    }

    /// Adds one table for each list of sections to the defaults.
    fn with_lists(mut self, lists: &str) -> Self {
        let lists: Table = lists.parse().unwrap();
        let mut table = self.defaults.clone();
        table.extend(lists);
        self.defaults = (self.reread)(&table);
        self
    }

    fn with_metrics(mut self, metrics: Vec<MetricGroup>) -> Self {
        self.metrics = metrics;
        self
    }

    /// The page in `docs/operations` about its settings or its metrics.
    pub(crate) fn page(&self, subject: &str) -> String {
        match self.pages {
            "" => format!("{subject}.md"),
            start => format!("{start}-{subject}.md"),
        }
    }
}
