//! `[administrators]` in the configuration: the same names with the same meaning for both
//! processes.

use crate::identity::identities;
use serde::{Deserialize, Serialize};

/// The identities, as `index:handle`, and their rights; groups are allowed too. A process ignores
/// the entries for operations that it does not perform.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdministratorsConfig {
    /// Administrators of the server: home prefixes, and what the others below may.
    pub server: Vec<String>,
    /// Whether administrators of the server may do everything with every handle: read it, at
    /// `handled`.
    pub server_full_access: bool,
    /// Who may home and release prefixes, and list them.
    pub home_only: Vec<String>,
    /// Who may ask for transactions and all records.
    pub replication: Vec<String>,
    /// Who may ask for a backup.
    pub backup: Vec<String>,
    /// Who may read `0.SITE/status`.
    pub status: Vec<String>,
    /// Whether administrators of a prefix may create and list handles under it.
    pub prefix_administrators: bool,
}

impl Default for AdministratorsConfig {
    fn default() -> Self {
        Self {
            server: Vec::new(),
            server_full_access: true,
            home_only: Vec::new(),
            replication: Vec::new(),
            backup: Vec::new(),
            status: Vec::new(),
            prefix_administrators: true,
        }
    }
}

impl AdministratorsConfig {
    /// Checks that every identity is valid.
    ///
    /// # Errors
    /// Names the setting with the invalid identity.
    pub fn check(&self) -> anyhow::Result<()> {
        for (setting, texts) in [
            ("administrators.server", &self.server),
            ("administrators.home_only", &self.home_only),
            ("administrators.replication", &self.replication),
            ("administrators.backup", &self.backup),
            ("administrators.status", &self.status),
        ] {
            identities(setting, texts)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_is_checked_and_named() {
        type AdministratorChange = fn(&mut AdministratorsConfig) -> &mut Vec<String>;
        let lists: [(&str, AdministratorChange); 5] = [
            ("server", |it| &mut it.server),
            ("home_only", |it| &mut it.home_only),
            ("replication", |it| &mut it.replication),
            ("backup", |it| &mut it.backup),
            ("status", |it| &mut it.status),
        ];
        AdministratorsConfig::default().check().unwrap();
        for (name, list) in lists {
            let mut config = AdministratorsConfig::default();
            list(&mut config).push("300:".to_owned());
            let error = format!("{:#}", config.check().unwrap_err());
            assert!(error.contains(&format!("`administrators.{name}`")), "{error}");
        }
    }
}
