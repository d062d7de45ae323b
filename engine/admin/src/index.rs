//! The index of public values: its build, and searches on the control socket.

pub mod config;

use crate::maintenance::count_bug;
use crate::service::HandleSearch;
use crate::state::AdminState;
use data_encoding::BASE64URL_NOPAD;
use handle_store::StoreError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Time after which the index is looked at again: another process may have emptied it.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which a step is repeated that found the queue of changes full.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
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
