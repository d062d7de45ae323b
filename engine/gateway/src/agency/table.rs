//! The agencies of prefixes.

use super::config::{AgenciesConfig, entry_of};
use anyhow::Context as _;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;

/// Maximum length of the file.
const FILE_LEN_MAX: u64 = 64 << 20;

/// Agencies by prefix.
#[derive(Debug, Default)]
pub struct AgencyTable(HashMap<String, String>);

impl AgencyTable {
    /// Reads the entries of the settings and of the file. Entries of the file take precedence.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &AgenciesConfig) -> anyhow::Result<Self> {
        let mut table = Self::default();
        for entry in &config.prefixes {
            table.0.extend(entry_of(entry).map(|(prefix, name)| (prefix, name.to_owned())));
        }
        if let Some(path) = &config.file {
            let mut text = String::new();
            let read = File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_string(&mut text));
            read.with_context(|| format!("`agencies.file`: cannot read {}", path.display()))?;
            for (number, line) in (1..).zip(text.lines()) {
                if line.trim().is_empty() || line.starts_with('#') {
                    continue;
                }
                let (prefix, name) = entry_of(line).with_context(|| {
                    let path = path.display();
                    format!("`agencies.file`: {path}, line {number} is not a prefix, a blank and a name")
                })?;
                table.0.insert(prefix, name.to_owned());
            }
        }
        Ok(table)
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The agency of a prefix, or of the nearest prefix from which it is derived.
    #[must_use]
    pub fn of(&self, prefix: &str) -> Option<&str> {
        let mut prefix = prefix.to_ascii_uppercase();
        loop {
            if let Some(name) = self.0.get(&prefix) {
                return Some(name);
            }
            let dot = prefix.rfind('.')?;
            prefix.truncate(dot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn a_prefix_has_the_agency_of_the_nearest_entry() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# agencies\n\n10.1045\tCrossref\n10.1045.5 Other agency\n").unwrap();
        let prefixes = vec!["10.5072 DataCite".to_owned(), "10 DOI".to_owned(), "a.B  x y ".to_owned()];
        let config = AgenciesConfig { prefixes, file: Some(file.path().to_owned()) };
        config.check().unwrap();
        let table = AgencyTable::open(&config).unwrap();
        for (prefix, agency) in [
            ("10.5072", Some("DataCite")),
            ("10.1045", Some("Crossref")),
            ("10.1045.5.7", Some("Other agency")),
            ("10.9999", Some("DOI")),
            ("A.b.c", Some("x y")),
            ("20.500", None),
            ("1", None),
            ("", None),
        ] {
            assert_eq!(table.of(prefix), agency, "{prefix}");
        }
        std::fs::write(file.path(), "10.1045 Crossref\nnothing\n").unwrap();
        let error = AgencyTable::open(&config).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        for (setting, is_good) in [
            ("prefixes = ['10.1']", false),
            ("prefixes = ['10.1/x y']", false),
            ("prefixes = ['10.1 x y']", true),
        ] {
            assert_eq!(
                toml::from_str::<AgenciesConfig>(setting).unwrap().check().is_ok(),
                is_good,
                "{setting}"
            );
        }
    }
}
