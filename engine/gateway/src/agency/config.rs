//! Settings of the registration agencies of prefixes.

use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use std::path::PathBuf;

settings! {
    /// The registration agencies of prefixes. Without `prefixes` and `file`, they are not served.
    pub struct AgenciesConfig {
        /// First segment of the path, without slashes.
        live path: String = "doiRA".to_owned(), PATH_RULE;
        /// Prefixes and the names of their agencies, as `10.5072 DataCite`. A prefix without an
        /// entry has the agency of the prefix before its last dot.
        live prefixes: Vec<String> = Vec::new(), ENTRIES_RULE;
        /// File with further entries, one in each line. Lines that begin with `#` are comments.
        live file: Option<PathBuf> = None;
        /// Maximum number of names in a request.
        live names: usize = 100, 1..=10_000;
    }
}

const PATH_RULE: SettingRule<String> = SettingRule {
    words: "letters, digits, `-` and `_`; not `api`",
    check: |path| {
        let is_of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        match !path.is_empty() && path != "api" && path.bytes().all(is_of_path) {
            true => Ok(()),
            false => Err(format!("is {path:?}: it must have letters, digits, - and _ only, and not be api")),
        }
    },
};

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
