//! Settings of the registration agencies of prefixes.

use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use std::path::PathBuf;

settings! {
    /// The registration agencies of prefixes, at `/doiRA/`. Without `prefixes` and `file`, they are
    /// not served.
    pub struct AgenciesConfig {
        /// Set this when clients ask for the agencies of a few prefixes: entries such as `10.5072
        /// DataCite`. A prefix without one has the agency of the prefix before its last dot.
        live prefixes: Vec<String> = Vec::new(), ENTRIES_RULE;
        /// Set this when another program writes the entries, or there are many: file with further
        /// ones, one a line. Lines that begin with `#` are comments.
        live file: Option<PathBuf> = None;
    }
}

const ENTRIES_RULE: SettingRule<Vec<String>> = SettingRule {
    words: "`prefix name`",
    check: |entries| match entries.iter().find(|entry| entry_of(entry).is_none()) {
        Some(entry) => Err(format!("has {entry:?}: write a prefix, a blank and the name of its agency")),
        None => Ok(()),
    },
};

/// The folded prefix and the agency of an entry.
pub(super) fn entry_of(entry: &str) -> Option<(String, &str)> {
    let (prefix, name) = entry.trim().split_once([' ', '\t'])?;
    let name = name.trim();
    (!name.is_empty() && !prefix.contains('/')).then(|| (prefix.to_ascii_uppercase(), name))
}
