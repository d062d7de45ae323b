//! The tables `[[sources]]` of the configuration.

use handle_daemon::settings;
use handle_daemon::settings::{SettingError, SettingRule, SettingType};
use handle_proto::fold;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_store::DATABASE_URL;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// What answers for the handles of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// A server that answers over HTTP.
    #[default]
    Http,
    /// A program that answers on its standard output.
    Program,
    /// A query to a database of PostgreSQL.
    Sql,
    /// The tables of a reference server in a database of PostgreSQL.
    Tables,
}

impl SettingType for SourceKind {
    fn type_name() -> String {
        "`http`, `program`, `sql`, `tables`".to_owned()
    }
}

/// A name for metrics and logs.
const NAME: SettingRule<String> = SettingRule {
    words: "1 to 64 letters, digits, `-` and `_`",
    check: |name| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match (1..=64).contains(&name.len()) && name.chars().all(is_part) {
            true => Ok(()),
            false => Err(format!("is {name:?}: it must have 1 to 64 letters, digits, `-` and `_`")),
        }
    },
};

const PREFIXES: SettingRule<Vec<String>> = SettingRule {
    words: "1 to 1024 prefixes, as `10.1045` or `0.NA`",
    check: |prefixes| {
        if !(1..=1024).contains(&prefixes.len()) {
            return Err(format!("has {} prefixes: there must be 1 to 1024", prefixes.len()));
        }
        let is_prefix = |prefix: &&String| {
            !prefix.is_empty() && prefix.len() < HANDLE_LEN_MAX && !prefix.contains(['/', ' '])
        };
        match prefixes.iter().find(|prefix| !is_prefix(prefix)) {
            Some(wrong) => Err(format!("has {wrong:?}, which is no prefix: write it without `0.NA/`")),
            None => Ok(()),
        }
    },
};

const URL: SettingRule<String> = SettingRule {
    words: "`http://` or `https://`, without query",
    check: |url| match url.is_empty() || is_url(url) {
        true => Ok(()),
        false => Err(format!("is {url:?}: write http://HOST[:PORT]/PATH or https://, without a query")),
    },
};

fn is_url(text: &str) -> bool {
    let has_scheme = text.starts_with("http://") || text.starts_with("https://");
    has_scheme && !text.contains(['?', '#', '@']) && reqwest::Url::parse(text).is_ok_and(|url| url.has_host())
}

settings! {
    /// A source of records outside of the store, in a table `[[sources]]` of its own
    /// ([sources.md](../sources.md)). It is asked about handles of its prefixes that the store does
    /// not have.
    pub struct SourceConfig where is_complete {
        /// Name of the source in metrics and logs.
        restart name: String = String::new(), NAME;
        /// Prefixes whose handles the source has, without `0.NA/`. They are homed at the start.
        restart prefixes: Vec<String> = Vec::new(), PREFIXES;
        /// What answers: a server over HTTP (`url`), a program (`command`), a query to a database
        /// (`database`, `query`), or the tables of a reference server in a database (`database`).
        restart kind: SourceKind = SourceKind::Http;
        /// Of `http`: URL to which a slash and the handle are appended, percent-encoded.
        restart url: String = String::new(), URL;
        /// Of `http`: file with a token that is sent as `Authorization: Bearer`, for which only its
        /// owner may have permissions.
        restart token_file: Option<PathBuf> = None;
        /// File with the authorities (PEM) that certify a server or a database over TLS; without
        /// it, those that the host trusts.
        restart ca_file: Option<PathBuf> = None;
        /// Of `sql` and `tables`: URL of a database of PostgreSQL, as of `psql`. Servers on other
        /// machines are asked over TLS, unless `sslmode=disable` is in the URL.
        restart database: String = String::new(), DATABASE_URL;
        /// Of `sql` and `tables`: file with the password, for which only its owner may have
        /// permissions. Without it, the password is in the environment variable `PGPASSWORD`, if
        /// the database asks for one.
        restart password_file: Option<PathBuf> = None;
        /// Of `sql`: a SELECT that yields the values of the handle `$1`, one a row.
        restart query: String = String::new();
        /// Of `tables`: make the changes of administrators in the tables.
        restart writable: bool = false;
        /// Of `program`: the program, as an absolute path, and its arguments.
        restart command: Vec<String> = Vec::new();
        /// Time for an answer; of a database, each for connecting, preparing and answering.
        restart timeout_ms: u32 = 2000, 10..=120_000;
        /// Requests at a time, with those that wait for the answer to another one about the same
        /// handle; one more gets RC 3. A source that hangs keeps as many threads waiting, so it
        /// belongs below `forward.requests` of `handled`.
        restart outstanding: usize = 4, 1..=256;
        /// Most bytes of an answer.
        restart answer_bytes: usize = 1 << 20, 1024..=1 << 26;
        /// Requests in a row without an answer after which the source is paused.
        restart failures: u32 = 5, 1..=1000;
        /// Time for which a paused source is not asked. After it, one request at a time is tried. A
        /// program that ends is restarted after at most this time.
        restart pause_ms: u32 = 5000, 10..=3_600_000;
        /// Time for which a record is kept here; 0 to ask each time.
        restart cache_s: u32 = 5, 0..=86_400;
        /// Time for which the answer that there is no such handle is kept here; 0 to ask each time.
        restart negative_s: u32 = 1, 0..=86_400;
        /// Bytes of answers that are kept here.
        restart cache_bytes: usize = 16 << 20, 0..=1 << 36;
    }
}

/// Checks that a source has what its kind needs, and nothing of other kinds.
fn is_complete(config: &SourceConfig) -> Result<(), SettingError> {
    let is_path = config.command.first().is_some_and(|program| program.starts_with('/'));
    // Each setting, whether it is there, and the kinds that need it.
    let settings: [(&str, bool, &[SourceKind]); 4] = [
        ("url", !config.url.is_empty(), &[SourceKind::Http]),
        ("command", !config.command.is_empty(), &[SourceKind::Program]),
        ("database", !config.database.is_empty(), &[SourceKind::Sql, SourceKind::Tables]),
        ("query", !config.query.is_empty(), &[SourceKind::Sql]),
    ];
    let refuse = |why: String| Err(SettingError::Together(format!("the source {:?} {why}", config.name)));
    for (name, is_there, kinds) in settings {
        match (is_there, kinds.contains(&config.kind)) {
            (false, true) => return refuse(format!("has no `{name}`")),
            (true, false) => return refuse(format!("has `{name}`, which belongs to another kind")),
            _ => {}
        }
    }
    if config.kind == SourceKind::Program && !is_path {
        return refuse("has a `command` that does not begin with an absolute path".to_owned());
    }
    if config.writable && config.kind != SourceKind::Tables {
        return refuse("is `writable`, which only one of kind `tables` can be".to_owned());
    }
    Ok(())
}

/// Checks that sources do not share names or prefixes.
///
/// # Errors
/// The first name or prefix that occurs twice.
pub fn check_sources(sources: &[SourceConfig]) -> Result<(), SettingError> {
    let twice =
        |what, name: &str| Err(SettingError::Together(format!("two `[[sources]]` have the {what} {name:?}")));
    let (mut names, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
    for source in sources {
        if !names.insert(&source.name) {
            return twice("name", &source.name);
        }
        if let Some(prefix) =
            source.prefixes.iter().find(|prefix| !prefixes.insert(fold::folded(prefix.as_bytes())))
        {
            return twice("prefix", prefix);
        }
    }
    Ok(())
}

impl SourceConfig {
    /// Time for an answer.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.into())
    }

    /// Time for which a paused source is not asked.
    #[must_use]
    pub fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    fn parse(text: &str) -> Result<SourceConfig, String> {
        let config: SourceConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check_within("sources[0]").map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn each_kind_needs_its_settings_and_no_others() {
        let start = "name = \"a\"\nprefixes = [\"10.1\"]\n";
        for (text, expected) in [
            ("url = \"http://127.0.0.1:80/records\"", None),
            ("url = \"https://a.example\"", None),
            ("kind = \"program\"\ncommand = [\"/bin/records\", \"-v\"]", None),
            ("", Some("the source \"a\" has no `url`")),
            ("url = \"ftp://a\"", Some("`sources[0].url` is")),
            ("url = \"http://a/b?c=\"", Some("without a query")),
            ("url = \"http://user:password@a/\"", Some("`sources[0].url` is")),
            ("kind = \"program\"\ncommand = [\"records\"]", Some("absolute path")),
            ("kind = \"program\"\ncommand = [\"/a\"]\nurl = \"http://a\"", Some("another kind")),
            ("kind = \"telepathy\"", Some("`telepathy`")),
            ("kind = \"sql\"\ndatabase = \"postgresql://u@h/d\"\nquery = \"SELECT\"", None),
            ("kind = \"sql\"\ndatabase = \"postgresql://u@h/d\"", Some("no `query`")),
            ("kind = \"tables\"\ndatabase = \"postgresql://u@h/d\"\nwritable = true", None),
            ("kind = \"tables\"\ndatabase = \"postgresql://u:secret@h/d\"", Some("has a password")),
            ("kind = \"tables\"", Some("no `database`")),
            ("url = \"http://a\"\nwritable = true", Some("`writable`")),
        ] {
            let parsed = parse(&format!("{start}{text}"));
            match expected {
                None => assert!(parsed.is_ok(), "{text}: {parsed:?}"),
                Some(part) => assert!(parsed.clone().unwrap_err().contains(part), "{text}: {parsed:?}"),
            }
        }
        for (start, part) in [
            ("name = \"\"\nprefixes = [\"10.1\"]\n", "`sources[0].name`"),
            ("name = \"a b\"\nprefixes = [\"10.1\"]\n", "`sources[0].name`"),
            ("name = \"a\"\n", "`sources[0].prefixes` has 0"),
            ("name = \"a\"\nprefixes = [\"0.NA/10.1\"]\n", "without `0.NA/`"),
        ] {
            let error = parse(&format!("{start}url = \"http://a\"")).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn names_and_prefixes_belong_to_one_source() {
        let source = |name: &str, prefix: &str| SourceConfig {
            name: name.to_owned(),
            prefixes: vec![prefix.to_owned()],
            ..SourceConfig::default()
        };
        assert_eq!(check_sources(&[source("a", "10.1"), source("b", "10.2")]), Ok(()));
        let says = |sources: &[SourceConfig]| check_sources(sources).unwrap_err().to_string();
        assert!(says(&[source("a", "10.1"), source("a", "10.2")]).contains("name \"a\""));
        assert!(says(&[source("a", "10.a"), source("b", "10.A")]).contains("prefix \"10.A\""));
    }
}
