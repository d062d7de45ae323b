//! The setting that an unknown one probably stands for.

use super::{SettingTable, full_name};
use std::collections::BTreeSet;
use std::fmt;
use strsim::damerau_levenshtein;
use toml::{Table, Value};

/// A name in a configuration that is neither that of a setting nor that of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSetting {
    /// Its dotted name.
    pub name: String,
    /// The dotted name of the setting or section that is meant, if one is similar.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown setting `{}`", self.name)?;
        match &self.nearest {
            Some(nearest) => write!(f, ": did you mean `{nearest}`?"),
            None => Ok(()),
        }
    }
}

/// The names in `config` that `tables` do not declare.
pub(super) fn unknown_settings(tables: &[SettingTable], config: &Table) -> Vec<UnknownSetting> {
    let names = DeclaredNames {
        settings: tables.iter().flat_map(|table| &table.rows).map(|row| row.name.as_str()).collect(),
        sections: tables.iter().map(|table| table.section.as_str()).filter(|name| !name.is_empty()).collect(),
    };
    let mut unknown = Vec::new();
    names.find_unknown(config, "", &mut unknown);
    let with_nearest = |name: String| UnknownSetting { nearest: names.nearest(&name), name };
    unknown.into_iter().map(with_nearest).collect()
}

struct DeclaredNames<'t> {
    settings: BTreeSet<&'t str>,
    sections: BTreeSet<&'t str>,
}

impl DeclaredNames<'_> {
    fn find_unknown(&self, table: &Table, section: &str, unknown: &mut Vec<String>) {
        for (name, value) in table {
            let name = full_name(section, name);
            if self.sections.contains(name.as_str()) {
                tables_in(value).for_each(|table| self.find_unknown(table, &name, unknown));
            } else if !self.settings.contains(name.as_str()) {
                unknown.push(name);
            }
        }
    }

    /// The similar name in the same section; else the same name in the most similar section; else
    /// the similar name in any section.
    fn nearest(&self, name: &str) -> Option<String> {
        let (section, short) = split(name);
        let all = || self.settings.iter().chain(&self.sections).copied().map(|other| (other, split(other)));
        let is_similar = |other: &str| damerau_levenshtein(short, other) <= (short.len() / 3).max(1);
        let in_section = all()
            .filter(|(_, (its_section, its_short))| *its_section == section && is_similar(its_short))
            .min_by_key(|(_, (_, its_short))| damerau_levenshtein(short, its_short));
        let elsewhere = || {
            all()
                .filter(|(_, (_, its_short))| *its_short == short)
                .min_by_key(|(_, (its_section, _))| damerau_levenshtein(section, its_section))
        };
        let anywhere = || {
            all()
                .filter(|(_, (_, its_short))| is_similar(its_short))
                .min_by_key(|(_, (_, its_short))| damerau_levenshtein(short, its_short))
        };
        let (nearest, _) = in_section.or_else(elsewhere).or_else(anywhere)?;
        Some(nearest.to_owned())
    }
}

/// The section and the name in it.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// The table, or the tables of the list.
fn tables_in(value: &Value) -> impl Iterator<Item = &Table> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    list.iter().filter_map(Value::as_table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingSection as _;

    crate::settings! {
        /// Limits on connections.
        struct SampleTcp {
            /// Connections at a time.
            live connections: usize = 8;
            /// How long one may be idle.
            live idle_ms: u32 = 8;
        }
    }

    crate::settings! {
        /// A backend.
        struct SampleBackend {
            /// Where it is.
            live url: String = String::new();
        }
    }

    crate::settings! {
        /// A configuration.
        struct SampleConfig {
            /// The site record.
            live site: Option<String> = None;
            section tcp: SampleTcp;
            section backends: Vec<SampleBackend>;
        }
    }

    fn nearest(text: &str) -> Vec<(String, Option<String>)> {
        let unknown = unknown_settings(&SampleConfig::tables(""), &text.parse().unwrap());
        unknown.into_iter().map(|unknown| (unknown.name, unknown.nearest)).collect()
    }

    #[test]
    fn a_mistyped_setting_is_near_to_the_one_that_is_meant() {
        for (text, name, expected) in [
            ("tcp.conections = 1", "tcp.conections", Some("tcp.connections")),
            ("tcp.idle_sm = 1", "tcp.idle_sm", Some("tcp.idle_ms")),
            ("[tpc]\nidle_ms = 1", "tpc", Some("tcp")),
            ("siet = \"x\"", "siet", Some("site")),
            ("[[backends]]\nurl = \"x\"\n[[backends]]\nurI = \"x\"", "backends.urI", Some("backends.url")),
            // In the wrong section, and there with a mistake.
            ("idle_ms = 1", "idle_ms", Some("tcp.idle_ms")),
            ("backends = [{ connections = 1 }]", "backends.connections", Some("tcp.connections")),
            ("conections = 1", "conections", Some("tcp.connections")),
            ("tcp.site = \"x\"", "tcp.site", Some("site")),
            ("tcp.nonsense = 1", "tcp.nonsense", None),
        ] {
            assert_eq!(nearest(text), [(name.to_owned(), expected.map(str::to_owned))], "{text}");
        }
        assert_eq!(nearest("site = \"x\"\n[tcp]\nidle_ms = 1\n[[backends]]\nurl = \"x\""), []);
    }

    #[test]
    fn the_text_asks_for_the_nearest_name() {
        let [unknown] =
            &unknown_settings(&SampleConfig::tables(""), &"tcp.conections = 1".parse().unwrap())[..]
        else {
            panic!("one setting is unknown");
        };
        assert_eq!(unknown.to_string(), "unknown setting `tcp.conections`: did you mean `tcp.connections`?");
        let unknown = UnknownSetting { nearest: None, ..unknown.clone() };
        assert_eq!(unknown.to_string(), "unknown setting `tcp.conections`");
    }
}
