//! The registration agency of a prefix: `/doiRA/...`, in the format of doi.org.

use crate::record::HttpQuestion;
use crate::reply::{BodyTag, CacheableBody, Freshness, GatewayResponse, RequestHeaders};
use crate::route::HttpPeer;
use crate::server::GatewayState;
use crate::target;
use anyhow::Context as _;
use handle_client::Question;
use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use handle_proto::ResponseCode;
use handle_proto::limit::HANDLE_LEN_MAX;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

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

/// Maximum length of the file.
const FILE_LEN_MAX: u64 = 64 << 20;

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
fn entry_of(entry: &str) -> Option<(String, &str)> {
    let (prefix, name) = entry.trim().split_once([' ', '\t'])?;
    let name = name.trim();
    (!name.is_empty() && !prefix.contains('/')).then(|| (prefix.to_ascii_uppercase(), name))
}

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

/// The answer to a request for the agencies of names, separated by commas; `None` for other paths.
pub(crate) async fn answer(
    state: &GatewayState,
    peer: HttpPeer,
    request_headers: RequestHeaders<'_>,
    path: &str,
) -> Option<GatewayResponse> {
    let (settings, rules) = (state.settings.current_shared(), state.rules.load_full());
    let names = path.strip_prefix('/')?.strip_prefix(settings.agencies.path.as_str())?.strip_prefix('/')?;
    if rules.agencies.is_empty() {
        return None;
    }
    let mut answers = Vec::new();
    // For all names together: one client can ask for many that are far away.
    let deadline = Instant::now() + Duration::from_millis(settings.upstream.timeout_ms.into());
    for name in names.split(',').take(settings.agencies.names) {
        answers.push(agency_of(state, peer, &rules.agencies, name, deadline).await);
    }
    let bytes = serde_json::to_vec(&answers).unwrap_or_default().into();
    let freshness = Freshness::Seconds(settings.caching.negative_s);
    let body = CacheableBody {
        content_type: "application/json;charset=utf-8",
        bytes,
        freshness,
        tag: BodyTag::Bytes,
    };
    Some(body.respond(StatusCode::OK, request_headers, &settings))
}

/// The entry about one percent-encoded name: a prefix, or a handle that must exist. Other services
/// are waited for until `deadline`.
async fn agency_of(
    state: &GatewayState,
    peer: HttpPeer,
    agencies: &AgencyTable,
    name: &str,
    deadline: Instant,
) -> Value {
    let Ok(name) = target::decode(name) else {
        return json!({ "DOI": name, "status": "Invalid DOI" });
    };
    let name = name.trim();
    let (prefix, suffix) = name.split_once('/').map_or((name, None), |(prefix, rest)| (prefix, Some(rest)));
    if prefix.is_empty() || suffix.is_some_and(str::is_empty) || name.len() > HANDLE_LEN_MAX {
        return json!({ "DOI": name, "status": "Invalid DOI" });
    }
    let Some(agency) = agencies.of(prefix) else {
        return json!({ "DOI": name, "status": "Unknown prefix" });
    };
    if suffix.is_some() {
        let question = Question::all(name.as_bytes());
        let http_question = HttpQuestion::new(question, peer.address);
        let code = timeout_at(deadline, state.answer(&http_question, |answer| answer.code)).await;
        // A service that does not answer in time says nothing about the handle.
        if code == Ok(Ok(ResponseCode::HANDLE_NOT_FOUND)) {
            return json!({ "DOI": name, "status": "DOI does not exist" });
        }
    }
    json!({ "DOI": name, "RA": agency })
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
        let config =
            AgenciesConfig { prefixes, file: Some(file.path().to_owned()), ..AgenciesConfig::default() };
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
            ("path = 'api'", false),
            ("path = 'a/b'", false),
            ("path = 'ra'", true),
        ] {
            assert_eq!(
                toml::from_str::<AgenciesConfig>(setting).unwrap().check().is_ok(),
                is_good,
                "{setting}"
            );
        }
    }
}
