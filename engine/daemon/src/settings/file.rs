//! Configurations as files: read, overridden by arguments, and printed.

use super::nearest::unknown_settings;
use super::reload::put;
use super::{SettingSection, UnknownSetting};
use crate::text::{self, TextError};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The settings that may be in the file that several processes read (`shared`).
pub const SHARED: [&str; 5] = ["administrators", "server_id", "server_key", "sessions", "site"];

/// What an error says a file was read as.
const OWN: &str = "the configuration";
const COMMON: &str = "the shared configuration";

/// Why a configuration cannot be read.
#[derive(Debug)]
pub enum ConfigurationError {
    /// A file cannot be read.
    Text(TextError),
    /// A file is not TOML, or has a setting that is unknown or of another type.
    Invalid {
        /// What the file is.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// Where the mistake is, and what is expected.
        error: Box<toml::de::Error>,
    },
    /// A file has a setting that is unknown, and similar to a known one.
    Unknown {
        /// What the file is.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The line of the setting, if it is known.
        line: Option<usize>,
        /// The setting.
        setting: UnknownSetting,
    },
    /// The shared file has a setting that is not shared.
    NotShared {
        /// The name of the setting.
        name: String,
        /// Path of the shared file.
        path: PathBuf,
    },
    /// A setting is in both files.
    Twice {
        /// The name of the setting.
        name: String,
        /// Path of the configuration.
        path: PathBuf,
        /// Path of the shared file.
        shared: PathBuf,
    },
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(error) => error.fmt(f),
            Self::Invalid { what, path, .. } => write!(f, "in {what} {}", path.display()),
            Self::Unknown { what, path, line, setting } => {
                write!(f, "in {what} {}", path.display())?;
                if let Some(line) = line {
                    write!(f, ", line {line}")?;
                }
                write!(f, ": {setting}")
            }
            Self::NotShared { name, path } => write!(
                f,
                "`{name}` is set in {}: only {} are shared, other settings belong to one process",
                path.display(),
                SHARED.join(", ")
            ),
            Self::Twice { name, path, shared } => write!(
                f,
                "`{name}` is set in {} and in {}: remove it from one of them",
                path.display(),
                shared.display()
            ),
        }
    }
}

impl std::error::Error for ConfigurationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Text(error) => error.source(),
            Self::Invalid { error, .. } => Some(error),
            Self::Unknown { .. } | Self::NotShared { .. } | Self::Twice { .. } => None,
        }
    }
}

impl From<TextError> for ConfigurationError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}

/// A file of TOML.
struct SettingsFile {
    what: &'static str,
    path: PathBuf,
    text: String,
    table: Table,
}

impl SettingsFile {
    fn read(what: &'static str, path: PathBuf) -> Result<Self, ConfigurationError> {
        let text = text::read(&path, what)?;
        match text.parse() {
            Ok(table) => Ok(Self { what, path, text, table }),
            Err(error) => Err(ConfigurationError::Invalid { what, path, error: Box::new(error) }),
        }
    }

    /// The file that this one names as `shared`.
    fn shared(&self) -> Result<Option<Self>, ConfigurationError> {
        let Some(shared) = self.table.get("shared").and_then(Value::as_str) else { return Ok(None) };
        Self::read(COMMON, self.directory().join(shared)).map(Some)
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Why the file is not a configuration of the form `C`: `error`, or the setting that is meant
    /// by one that does not exist.
    fn invalid<C: SettingSection>(&self, error: toml::de::Error) -> ConfigurationError {
        let (what, path) = (self.what, self.path.clone());
        let span = error.span();
        let line = span.clone().and_then(|span| self.text.get(..span.start));
        let line = line.map(|before| before.matches('\n').count() + 1);
        let written = span.and_then(|span| self.text.get(span)).unwrap_or_default();
        let is_unknown = error.message().starts_with("unknown field");
        let unknown = if is_unknown { unknown_settings(&C::tables(""), &self.table) } else { Vec::new() };
        // The one that the error is about: several may be unknown.
        let is_this = |setting: &UnknownSetting| setting.name.rsplit('.').next() == Some(written);
        match unknown.into_iter().find(is_this).filter(|setting| setting.nearest.is_some()) {
            Some(setting) => ConfigurationError::Unknown { what, path, line, setting },
            None => ConfigurationError::Invalid { what, path, error: Box::new(error) },
        }
    }

    /// The names of the settings in it that can be shared.
    fn shareable(&self) -> Vec<&str> {
        self.table.keys().map(String::as_str).filter(|name| SHARED.contains(name)).collect()
    }
}

/// Reads the configuration at `path`, without [checking](SettingSection::check) it. Settings of the
/// file that it names as `shared` count as if they were set in it. Relative paths in both are
/// resolved against the directory of `path`.
///
/// # Errors
/// When a file cannot be read or parsed, or a setting is in both.
pub fn read<C: SettingSection>(path: &Path) -> Result<C, ConfigurationError> {
    let own = SettingsFile::read(OWN, path.to_owned())?;
    // Each file as a configuration by itself, so that an error names the line.
    let mut config: C = toml::from_str(&own.text).map_err(|error| own.invalid::<C>(error))?;
    if let Some(shared) = own.shared()? {
        toml::from_str::<C>(&shared.text).map_err(|error| shared.invalid::<C>(error))?;
        let mut table = own.table.clone();
        for (name, value) in &shared.table {
            let name = name.clone();
            if !SHARED.contains(&name.as_str()) {
                return Err(ConfigurationError::NotShared { name, path: shared.path });
            }
            if table.contains_key(&name) {
                return Err(ConfigurationError::Twice { name, path: own.path, shared: shared.path });
            }
            table.insert(name, value.clone());
        }
        config = table.try_into().map_err(|error| shared.invalid::<C>(error))?;
    }
    config.resolve(own.directory());
    Ok(config)
}

/// A sentence about which settings of the configuration at `path` are in a file that several
/// processes read.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn explain_shared(path: &Path) -> Result<String, ConfigurationError> {
    let own = SettingsFile::read(OWN, path.to_owned())?;
    let not_shared = match own.shareable() {
        names if names.is_empty() => String::new(),
        names => format!("; its own: {}", names.join(", ")),
    };
    Ok(match own.shared()? {
        Some(shared) => format!(
            "shared with the other process, in {}: {}{not_shared}",
            shared.path.display(),
            shared.shareable().join(", ")
        ),
        None => format!("no settings are shared with the other process (`shared` is not set){not_shared}"),
    })
}

/// `config` with `arguments` over it: a field overrides the setting of its name. `None`, `false`
/// and empty lists are arguments that are not given.
///
/// # Errors
/// When a field is not the name of a setting, or its value not one of the type of the setting.
pub fn overlay<C: SettingSection>(config: &C, arguments: &impl Serialize) -> Result<C, toml::de::Error> {
    let (mut table, arguments) = (to_table(config)?, to_table(arguments)?);
    let is_given = |value: &Value| match value {
        Value::Boolean(is_set) => *is_set,
        Value::Array(values) => !values.is_empty(),
        _ => true,
    };
    for (name, value) in arguments.iter().filter(|(_, value)| is_given(value)) {
        put(&mut table, name, Some(value));
    }
    table.try_into()
}

/// The settings as a table.
///
/// # Errors
/// When a value has no form in TOML, as a path that is not UTF-8.
pub fn to_table(settings: &impl Serialize) -> Result<Table, toml::de::Error> {
    Table::try_from(settings).map_err(serde::de::Error::custom)
}

/// `config` as TOML that can be read back. Settings without a value, which TOML cannot express, are
/// listed after it. The settings of the shared file are part of it, so it names none.
///
/// # Errors
/// When a value has no form in TOML.
pub fn print<C: SettingSection>(config: &C) -> Result<String, toml::de::Error> {
    let mut table = to_table(config)?;
    table.remove("shared");
    let config: C = table.try_into()?;
    let mut text = toml::to_string(&config).map_err(serde::de::Error::custom)?;
    let unset = unset(&serde_json::to_value(&config).map_err(serde::de::Error::custom)?, "");
    if !unset.is_empty() {
        text.push_str(&format!("\n# Not set: {}\n", unset.join(", ")));
    }
    Ok(text)
}

/// Dotted names of the settings that are null.
fn unset(value: &serde_json::Value, name: &str) -> Vec<String> {
    match value {
        serde_json::Value::Null => vec![name.to_owned()],
        serde_json::Value::Object(members) => {
            let named = |member: &str| super::full_name(name, member);
            members.iter().flat_map(|(member, value)| unset(value, &named(member))).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::settings! {
        /// A configuration.
        struct SampleConfig of process on port 2641 {
            /// The site record.
            live site: Option<PathBuf> = None;
            /// Threads.
            restart threads: usize = 2, 0..=1024;
            live_section administrators: crate::administrators::AdministratorsConfig;
        } constants {
            /// Enough for every sample.
            samples_max: usize = 16;
        }
    }

    #[test]
    fn a_constant_is_not_set_in_a_file() {
        let config: SampleConfig = toml::from_str("threads = 3").unwrap();
        assert_eq!((config.threads, config.samples_max), (3, 16));
        let error = toml::from_str::<SampleConfig>("samples_max = 3").unwrap_err().to_string();
        assert!(error.contains("unknown field `samples_max`"), "{error}");
        assert!(!super::super::file::to_table(&config).unwrap().contains_key("samples_max"));
        let names = <SampleConfig as crate::settings::SettingSection>::tables("");
        assert!(names.iter().flat_map(|table| &table.rows).all(|row| row.name != "samples_max"));
    }

    #[test]
    fn a_shared_file_applies_as_if_it_were_in_the_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let (path, shared) = (directory.path().join("config.toml"), directory.path().join("service.toml"));
        let with = |own: &str, text: &str| {
            std::fs::write(&path, format!("shared = \"service.toml\"\n{own}")).unwrap();
            std::fs::write(&shared, text).unwrap();
            let error = |error: ConfigurationError| match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            read::<SampleConfig>(&path).map_err(error)
        };
        let text = "site = \"site.json\"\n[administrators]\nserver = [\"300:10.1/a\"]\n";
        let config = with("threads = 3\n", text).unwrap();
        assert_eq!((config.threads, config.site), (3, Some(directory.path().join("site.json"))));
        assert_eq!(config.administrators.server, ["300:10.1/a"]);
        assert_eq!(config.shared.as_deref(), Some(&*shared));
        let explained = explain_shared(&path).unwrap();
        assert!(explained.ends_with("service.toml: administrators, site"), "{explained}");
        for (own, text, expected) in [
            ("site = \"a\"\n", "site = \"b\"\n", "`site` is set in"),
            ("", "threads = 3\n", "only administrators, server_id, server_key, sessions, site are shared"),
            ("", "\n[administrators]\nserver_reads_all = true\n", "server_full_access"),
            ("", "shared = \"other.toml\"\n", "`shared` is set in"),
            ("thread = 3\n", "", "config.toml, line 2: unknown setting `thread`: did you mean `threads`?"),
            ("server = []\n", "", "line 2: unknown setting `server`: did you mean `administrators.server`?"),
            ("", "siet = 3\n", "service.toml, line 1: unknown setting `siet`: did you mean `site`?"),
            ("nonsense = 3\n", "", "unknown field `nonsense`, expected one of"),
        ] {
            let error = with(own, text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        with("", "").unwrap();
        std::fs::remove_file(&shared).unwrap();
        assert!(read::<SampleConfig>(&path).unwrap_err().to_string().contains("service.toml"));
        std::fs::write(&path, "site = \"a\"\n").unwrap();
        assert!(explain_shared(&path).unwrap().ends_with("its own: site"));
    }

    #[derive(Default, Serialize)]
    struct SampleArguments {
        site: Option<PathBuf>,
        allow_root: bool,
        listen: Vec<std::net::SocketAddr>,
        #[serde(rename = "administrators.server")]
        server: Option<Vec<String>>,
    }

    #[test]
    fn arguments_override_what_they_name() {
        let config = SampleConfig { allow_root: true, threads: 7, ..SampleConfig::default() };
        assert_eq!(overlay(&config, &SampleArguments::default()).unwrap(), config);
        let arguments = SampleArguments {
            site: Some("site.json".into()),
            listen: vec!["127.0.0.1:1".parse().unwrap()],
            server: Some(vec!["300:10.1/a".to_owned()]),
            ..SampleArguments::default()
        };
        let over = overlay(&config, &arguments).unwrap();
        assert_eq!((over.site, over.listen), (arguments.site, arguments.listen));
        assert_eq!((over.allow_root, over.threads), (true, 7));
        assert_eq!(over.administrators.server, ["300:10.1/a"]);
    }

    #[test]
    fn what_is_printed_reads_back() {
        let config = SampleConfig { shared: Some("service.toml".into()), threads: 7, ..Default::default() };
        let printed = print(&config).unwrap();
        assert_eq!(toml::from_str::<SampleConfig>(&printed).unwrap().threads, 7);
        assert!(printed.ends_with("\n# Not set: control, user, shared, site\n"), "{printed}");
    }
}
