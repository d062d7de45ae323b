//! Sources whose records are copied into the store.

use crate::config::{PullConfig, SourceConfig};
use crate::listing::ListedSource;
use handle_proto::{Handle, fold};
use std::collections::HashMap;

/// The prefixes whose records are copied, and the names of their sources. Nothing else changes
/// handles of these prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PulledPrefixes(HashMap<Vec<u8>, String>);

impl PulledPrefixes {
    /// The prefixes of those of `sources` that are copied.
    #[must_use]
    pub fn new(sources: &[SourceConfig]) -> Self {
        let copied = sources.iter().filter(|source| source.pull.is_some());
        let prefixes = copied.flat_map(|source| {
            source.prefixes.iter().map(|prefix| (fold::folded(prefix.as_bytes()), source.name.clone()))
        });
        Self(prefixes.collect())
    }

    /// The name of the source that has `handle`, if its records are copied.
    #[must_use]
    pub fn source_of(&self, handle: &[u8]) -> Option<&str> {
        let handle = Handle(handle);
        if self.0.is_empty() || handle.slash_at().is_none() {
            return None;
        }
        self.0.get(&fold::folded(handle.naming_authority())).map(String::as_str)
    }
}

/// A source whose records are copied, with its settings.
#[derive(Debug)]
pub struct PulledSource {
    /// Its name in metrics and logs.
    pub name: String,
    /// Its settings.
    pub config: PullConfig,
    /// Where its records are.
    pub source: Box<dyn ListedSource>,
    /// The starts of the keys of its handles: prefixes with a slash.
    pub starts: Vec<Vec<u8>>,
    /// A text that changes when other records are to be copied.
    pub scope: String,
    /// Whether the source may have handles of other prefixes, which are not meant to be copied.
    pub has_others: bool,
}

impl PulledSource {
    pub(crate) fn new(
        config: &SourceConfig,
        pull: &PullConfig,
        source: Box<dyn ListedSource>,
        folds: bool,
    ) -> Self {
        let start = |prefix: &String| match folds {
            true => [&fold::folded(prefix.as_bytes())[..], b"/"].concat(),
            false => [prefix.as_bytes(), b"/"].concat(),
        };
        let kind = config.kind;
        let fingerprint = [&config.url, &config.database, &pull.list_query].map(String::as_str).concat();
        Self {
            name: config.name.clone(),
            config: pull.clone(),
            source,
            starts: config.prefixes.iter().map(start).collect(),
            scope: format!(
                "{kind:?} {fingerprint}{} {}",
                config.command.join(" "),
                config.prefixes.join(" ")
            ),
            has_others: kind == crate::SourceKind::Tables,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_below_the_prefixes_are_those_of_the_source() {
        let source = |name: &str, prefix: &str, pull| SourceConfig {
            name: name.to_owned(),
            prefixes: vec![prefix.to_owned()],
            pull,
            ..SourceConfig::default()
        };
        let sources = [source("copied", "10.a", Some(PullConfig::default())), source("asked", "10.2", None)];
        let prefixes = PulledPrefixes::new(&sources);
        for (handle, expected) in [
            ("10.A/x", Some("copied")),
            ("10.a/", Some("copied")),
            ("10.2/x", None),
            ("10.ab/x", None),
            ("10.a.1/x", None),
            ("0.NA/10.a", None),
            ("10.a", None),
        ] {
            assert_eq!(prefixes.source_of(handle.as_bytes()), expected, "{handle}");
        }
    }
}
