//! The tables `[[sources]]` of the configuration.

use handle_daemon::settings;
use handle_daemon::settings::{DAY_MS, SettingError, SettingRule, SettingType};
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
    /// A DSpace, which answers for its handles over HTTP in a form of its own.
    Dspace,
    /// A program that answers on its standard output.
    Program,
    /// A query to a database of PostgreSQL.
    Sql,
    /// The tables of a reference server in a database of PostgreSQL.
    Tables,
}

impl SettingType for SourceKind {
    fn type_name() -> String {
        "`http`, `dspace`, `program`, `sql`, `tables`".to_owned()
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
    /// A source of records outside of the store, each in a table `[[sources]]`
    /// ([sources.md](../sources.md)). It is asked about handles of its prefixes that the store
    /// lacks or, with `[sources.pull]`, its records are copied into the store.
    pub struct SourceConfig where is_complete {
        /// Set this when a table `[[sources]]` is written: its name in metrics and logs.
        restart name: String = String::new(), NAME;
        /// Set this when a table `[[sources]]` is written: prefixes whose handles it has, without
        /// `0.NA/`, which are homed at the start.
        restart prefixes: Vec<String> = Vec::new(), PREFIXES;
        /// Set this when something else than a server over HTTP (`url`) answers: a DSpace (`url`),
        /// a program (`command`), a query to a database (`database`, `query`), or the tables of a
        /// reference server (`database`).
        restart kind: SourceKind = SourceKind::Http;
        /// Set this when the kind is `http` or `dspace`: URL to which a slash and the
        /// percent-encoded handle are appended; of a DSpace, the one before `/resolve/` and
        /// `/listhandles/`.
        restart url: String = String::new(), URL;
        /// Set this when a server over HTTP asks for a token, sent as `Authorization: Bearer`: file
        /// with it.
        restart token_file: Option<PathBuf> = None;
        /// Set this when a server or database has a certificate of your own authority: file with
        /// the authorities (PEM); those that the host trusts if not set.
        restart ca_file: Option<PathBuf> = None;
        /// Set this when the kind is `sql` or `tables`: URL of a PostgreSQL database, as of `psql`.
        /// Servers on other machines are asked over TLS, unless it has `sslmode=disable`.
        restart database: String = String::new(), DATABASE_URL;
        /// Set this when the database asks for a password: file with it; the environment variable
        /// `PGPASSWORD` if not set.
        restart password_file: Option<PathBuf> = None;
        /// Set this when the kind is `sql`: a SELECT that yields the values of the handle `$1`, one
        /// a row.
        restart query: String = String::new();
        /// Set this when administrators change the records of `tables` here: make their changes in
        /// the tables.
        restart writable: bool = false;
        /// Set this when the kind is `program`: the program, as an absolute path, and its
        /// arguments.
        restart command: Vec<String> = Vec::new();
        /// Set this when the source needs longer, or requests should wait for less: time for an
        /// answer; of a database, each for connecting, preparing and answering. The next part of a
        /// listing may take 15 times as long.
        restart timeout_ms: u32 = 2000, 10..=120_000;
        /// Set this when the source can answer more requests at a time, or must get fewer:
        /// requests, with those that wait for another's answer about the same handle; one more gets
        /// RC 3. A source that hangs keeps as many threads waiting, and `handled` forwards eight
        /// requests at a time.
        restart outstanding: usize = 4, 1..=256;
        /// Set this when changes in the source should be visible sooner, or it should be asked
        /// less: time for which a record is kept; 0 to ask each time. The answer that a handle does
        /// not exist is kept for a fifth of it.
        restart cache_s: u32 = 5, 0..=86_400;
        section pull: Option<PullConfig>;
    } constants {
        /// Most bytes of an answer, several times the longest record that can be stored.
        answer_bytes: usize = 1 << 20;
        /// Requests in a row without an answer after which the source is paused: more than a
        /// restart of it loses.
        failures: u32 = 5;
        /// Time for which a paused source is not asked. After it, one request at a time is tried. A
        /// program that ends is restarted after at most this time.
        pause_ms: u32 = 5000;
        /// Bytes of answers that are kept here: those of some ten thousand handles.
        cache_bytes: usize = 16 << 20;
    }
}

settings! {
    /// Copies the records of the source above into the store, which publishes them, instead of
    /// asking for each ([sources.md](../sources.md#copying-records-into-the-store)). An empty table
    /// is enough.
    pub struct PullConfig {
        /// Set this when changes should arrive sooner, or the source should be asked less: time
        /// between two requests for changes, if it reports them.
        restart poll_ms: u32 = 10_000, 10..=DAY_MS;
        /// Set this when the source does not report all changes: time between two comparisons of
        /// all records.
        restart compare_s: u32 = 86_400, 1..=31_536_000;
        /// Set this when the source has more records, or memory is short: most records of a
        /// listing. A comparison needs 8 to 16 bytes of memory for each.
        restart records: usize = 10_000_000, 1..=1 << 32;
        /// Set this when the kind is `sql`: a SELECT that yields all records, with the columns of
        /// `query` and `handle`, or all handles, with the column `handle` only.
        restart list_query: String = String::new();
        /// Set this when a database of the kind `sql` reports changes: a SELECT that yields the
        /// handles that were changed or deleted after the cursor `$1`, in order, with the columns
        /// `handle` and `cursor`.
        restart changes_query: String = String::new();
        /// Set this when `changes_query` is: a SELECT that yields the present cursor, in one row
        /// with one column.
        restart cursor_query: String = String::new();
    } constants {
        /// Time for a whole listing. One that takes longer is given up: the source hangs, or lists
        /// fewer records per second than a comparison is good for.
        listing_s: u32 = 21_600;
        /// Most handles that a comparison deletes, in percent of those that were in the store
        /// before it. More are deleted only when an operator accepts it, since a source that lost
        /// its records looks the same.
        delete_percent: u32 = 10;
        /// Records in one transaction of the store: other changes wait for it for some ten
        /// milliseconds.
        commit_records: usize = 500;
        /// Bytes of records in one transaction, which may be exceeded by one record.
        commit_bytes: usize = 1 << 20;
    }
}

impl PullConfig {
    /// Time for a whole listing.
    #[must_use]
    pub fn listing(&self) -> Duration {
        Duration::from_secs(self.listing_s.into())
    }

    /// Time between two requests for changes.
    #[must_use]
    pub fn poll(&self) -> Duration {
        Duration::from_millis(self.poll_ms.into())
    }

    /// Checks that a source of this kind can be copied with these settings.
    fn check_kind(&self, config: &SourceConfig) -> Result<(), String> {
        let queries = [&self.list_query, &self.changes_query, &self.cursor_query];
        let [lists, changes, cursor] = queries.map(|query| !query.is_empty());
        let is_query = config.kind == SourceKind::Sql;
        if !is_query && (lists || changes || cursor) {
            return Err("has queries in `pull`, which belong to another kind".to_owned());
        }
        if is_query && !lists {
            return Err("has no `pull.list_query`".to_owned());
        }
        if changes != cursor {
            return Err("has only one of `pull.changes_query` and `pull.cursor_query`".to_owned());
        }
        if config.writable {
            return Err("is `writable` and has `pull`: its copies would not be changed".to_owned());
        }
        match config.prefixes.iter().any(|prefix| fold::folded(prefix.as_bytes()) == b"0.NA") {
            true => Err("has `pull` and the prefix `0.NA`: prefix records belong to the store".to_owned()),
            false => Ok(()),
        }
    }
}

/// Checks that a source has what its kind needs, and nothing of other kinds.
fn is_complete(config: &SourceConfig) -> Result<(), SettingError> {
    let is_path = config.command.first().is_some_and(|program| program.starts_with('/'));
    // Each setting, whether it is there, and the kinds that need it.
    let settings: [(&str, bool, &[SourceKind]); 4] = [
        ("url", !config.url.is_empty(), &[SourceKind::Http, SourceKind::Dspace]),
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
    config.pull.as_ref().map_or(Ok(()), |pull| pull.check_kind(config)).or_else(refuse)
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

    /// Time for the next line or the next rows of a listing: 15 times that of an answer, since a
    /// database may sort all rows before it tells the first one.
    #[must_use]
    pub fn step(&self) -> Duration {
        Duration::from_millis(self.step_ms().into())
    }

    /// The same in milliseconds.
    #[must_use]
    pub(crate) const fn step_ms(&self) -> u32 {
        self.timeout_ms * 15
    }

    /// Time for which the answer that there is no such handle is kept: a fifth of that of a record,
    /// since it may be asked for just before it is created.
    #[must_use]
    pub const fn negative_s(&self) -> u32 {
        self.cache_s.div_ceil(5)
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

    /// Checks a source with the settings `text`: whether it is accepted, or what the error says.
    fn check_parsed(text: &str, expected: Option<&str>) {
        let parsed = parse(&format!("name = \"a\"\nprefixes = [\"10.1\"]\n{text}"));
        match expected {
            None => assert!(parsed.is_ok(), "{text}: {parsed:?}"),
            Some(part) => assert!(parsed.clone().unwrap_err().contains(part), "{text}: {parsed:?}"),
        }
    }

    #[test]
    fn each_kind_needs_its_settings_and_no_others() {
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
            ("url = \"http://a\"\npull = {}", None),
            ("url = \"http://a\"\npull = { records = 0 }", Some("`sources[0].pull.records`")),
            ("url = \"http://a\"\npull = { list_query = \"SELECT\" }", Some("another kind")),
            ("kind = \"tables\"\ndatabase = \"postgresql://u@h/d\"\npull = {}", None),
            (
                "kind = \"tables\"\ndatabase = \"postgresql://u@h/d\"\nwritable = true\npull = {}",
                Some("`writable` and has `pull`"),
            ),
        ] {
            check_parsed(text, expected);
        }
    }

    #[test]
    fn queries_for_copies_belong_to_one_kind() {
        let query = "kind = \"sql\"\ndatabase = \"postgresql://u@h/d\"\nquery = \"SELECT\"\n[pull]\n";
        for (text, expected) in [
            ("list_query = \"SELECT\"", None),
            ("", Some("no `pull.list_query`")),
            ("list_query = \"SELECT\"\nchanges_query = \"SELECT\"", Some("only one of")),
            ("list_query = \"SELECT\"\nchanges_query = \"SELECT\"\ncursor_query = \"SELECT\"", None),
        ] {
            check_parsed(&format!("{query}{text}"), expected);
        }
    }

    #[test]
    fn names_and_prefixes_have_a_form() {
        for (start, part) in [
            ("name = \"\"\nprefixes = [\"10.1\"]\n", "`sources[0].name`"),
            ("name = \"a b\"\nprefixes = [\"10.1\"]\n", "`sources[0].name`"),
            ("name = \"a\"\n", "`sources[0].prefixes` has 0"),
            ("name = \"a\"\nprefixes = [\"0.NA/10.1\"]\n", "without `0.NA/`"),
            ("pull = {}\nname = \"a\"\nprefixes = [\"0.na\"]\n", "prefix records belong to the store"),
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
