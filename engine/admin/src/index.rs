//! The index of public values: its settings, its build, and searches on the control socket.

use crate::maintenance::count_bug;
use crate::service::HandleSearch;
use crate::state::AdminState;
use data_encoding::BASE64URL_NOPAD;
use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use handle_store::{INDEX_TYPE_LEN_MAX, SearchBounds, StoreError, is_index_type};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Most types with an index.
const TYPES_MAX: usize = 16;
/// Time after which the index is looked at again: another process may have emptied it.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which a step is repeated that found the queue of changes full.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of handles at which an answer ends.
const FOUND_BYTES: usize = 256 << 10;

const _: () = assert!(INDEX_TYPE_LEN_MAX == 64 && TYPES_MAX == 16, "as the rule says");

/// The types of an index.
const INDEX_TYPES: SettingRule<Vec<String>> = SettingRule {
    words: "at most 16 types, of 1 to 64 visible characters of ASCII",
    check: |types| {
        if types.len() > TYPES_MAX {
            return Err(format!("has {} types: it may have {TYPES_MAX}", types.len()));
        }
        for (at, kind) in types.iter().enumerate() {
            if !is_index_type(kind) {
                return Err(format!("has {kind:?}: a type has 1 to 64 visible characters of ASCII"));
            }
            if types[..at].iter().any(|other| other.eq_ignore_ascii_case(kind)) {
                return Err(format!("has {kind:?} twice"));
            }
        }
        Ok(())
    },
};

settings! {
    /// Finding handles by their values
    /// ([administration.md](../administration.md#finding-handles-by-their-values)).
    pub struct IndexConfig {
        /// Types whose public values are indexed, in any case, as `["URL"]`. The index of a type
        /// that is added is built while the server runs; that of a type that is taken out is
        /// dropped.
        restart types: Vec<String> = Vec::new(), INDEX_TYPES;
        /// Records that one step of the build reads, in one commit.
        restart step_records: usize = 2000, 1..=1 << 20;
        /// Let everybody search, for all handles. Otherwise callers authenticate, and find handles
        /// under the prefixes whose handles they may list.
        live open: bool = false;
        /// Maximum number of handles in one answer.
        live results: usize = 1000, 1..=10_000;
        /// Maximum number of indexed values that are looked at for one answer; the next one goes
        /// on from there.
        live values: usize = 10_000, 1..=1 << 30;
        /// Maximum number of prefixes whose rights are looked up for one answer.
        live prefixes: usize = 100, 1..=1 << 20;
    }
}

impl IndexConfig {
    /// The bounds of an answer with at most `handles` handles.
    #[must_use]
    pub fn bounds(&self, handles: usize) -> SearchBounds {
        SearchBounds { handles: handles.clamp(1, self.results), bytes: FOUND_BYTES, rows: self.values }
    }
}

/// Builds and drops indexes until they are those of the settings, and looks again from time to
/// time.
pub async fn keep_index(state: Arc<AdminState>) {
    let mut stopping = state.stopping();
    let config = state.config().index.clone();
    loop {
        let (building, types) = (Arc::clone(&state), config.types.clone());
        let step = move || building.service.store.index_step(&types, config.step_records);
        let turn = tokio::task::spawn_blocking(step).await;
        count_bug(&state, &turn);
        let pause = match turn {
            Ok(Ok(true)) => Duration::ZERO,
            Ok(Ok(false)) => LOOK_INTERVAL,
            Ok(Err(StoreError::Busy)) => BUSY_INTERVAL,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot build the index of values");
                LOOK_INTERVAL
            }
            Err(_) => LOOK_INTERVAL,
        };
        if *stopping.borrow() || tokio::time::timeout(pause, stopping.wait_for(|&stops| stops)).await.is_ok()
        {
            return;
        }
    }
}

/// A search on the control socket.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchCommand {
    /// Types and patterns.
    #[serde(rename = "where")]
    conditions: Vec<(String, String)>,
    prefix: Option<String>,
    /// `next` of the answer before.
    after: Option<String>,
    limit: Option<usize>,
}

/// Answers the command `find`, whose argument is JSON. The owner of the socket finds all handles.
pub(crate) fn find(state: &AdminState, argument: &str) -> Value {
    let refused = |error: String| json!({ "ok": false, "error": error });
    let command: SearchCommand = match serde_json::from_str(argument) {
        Ok(command) => command,
        Err(error) => {
            return refused(format!("{error}: write find {{\"where\":[[\"URL\",\"https://*\"]]}}"));
        }
    };
    let Ok(after) = command.after.map(|text| BASE64URL_NOPAD.decode(text.as_bytes())).transpose() else {
        return refused("`after` is not the `next` of an answer".to_owned());
    };
    let config = state.config();
    let search = HandleSearch {
        conditions: command.conditions.iter().map(|(kind, it)| (kind.as_bytes(), it.as_bytes())).collect(),
        prefix: command.prefix.as_deref().unwrap_or_default().as_bytes(),
        after: after.as_deref().unwrap_or_default(),
        handles: command.limit.unwrap_or(config.index.results),
    };
    match state.service.find_all(&search, &config.index) {
        Ok(found) => {
            let handles: Vec<_> = found.handles.iter().map(|it| String::from_utf8_lossy(it)).collect();
            let next = found.next.map(|next| BASE64URL_NOPAD.encode(&next));
            json!({ "ok": true, "handles": handles, "next": next })
        }
        Err(refusal) => refused(refusal.text.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn types_that_cannot_be_indexed_are_refused() {
        let check = |types: &[&str]| {
            let types = types.iter().map(|&kind| kind.to_owned()).collect();
            IndexConfig { types, ..IndexConfig::default() }.check_within("index").map_err(|it| it.to_string())
        };
        let (longest, longer) = ("x".repeat(64), "x".repeat(65));
        assert_eq!(check(&["URL", "10320/loc", &longest]), Ok(()));
        for (types, part) in [
            (&["URL", "url"][..], "has \"url\" twice"),
            (&[""], "1 to 64 visible"),
            (&[&longer], "1 to 64 visible"),
            (&["a b"], "1 to 64 visible"),
            (&["x"; 17], "17 types: it may have 16"),
        ] {
            let error = check(types).unwrap_err();
            assert!(error.contains("index.types") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn an_answer_has_the_handles_that_are_asked_for_up_to_the_bound() {
        let config = IndexConfig { results: 10, ..IndexConfig::default() };
        assert_eq!([0, 1, 10, 11].map(|handles| config.bounds(handles).handles), [1, 1, 10, 10]);
    }
}
