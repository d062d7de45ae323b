//! Moving the store to another location while the server runs: a conversation on the control
//! socket.
//!
//! The client sends one line and reads lines with the progress until the last one, which has `ok`.
//! When it closes the connection, or the server stops, the copy stays for another move.

use crate::progress::ProgressLines;
use crate::state::AdminState;
use handle_store::{MoveSummary, StoreConfig, StoreError, StoreMove};
use serde::Deserialize;
use serde_json::json;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The command, before its argument.
pub(crate) const COMMAND: &str = "move-store ";
/// Transactions that the copy may lag behind when it is compared.
const BEHIND_MAX: u64 = 100;

/// A move.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveCommand {
    /// The file, or the URL of a database.
    to: String,
    /// Whether to stop when the copy is level, without moving the store.
    #[serde(default)]
    prepare: bool,
}

/// Moves the store as the line `argument` says.
pub(crate) fn converse(state: &AdminState, argument: &str, client: &UnixStream) -> io::Result<()> {
    let progress = ProgressLines::new(client, state);
    let moved = match serde_json::from_str::<MoveCommand>(argument) {
        Ok(command) => relocate(state, &command, &progress),
        Err(error) => Err(format!("{error}: write move-store {{\"to\":\"PATH OR URL\"}}")),
    };
    let line = match moved {
        Ok(summary) => json!({ "ok": true, "done": summary }),
        Err(error) => json!({ "ok": false, "error": error }),
    };
    progress.send(&line)
}

fn relocate(
    state: &AdminState,
    command: &MoveCommand,
    progress: &ProgressLines<'_>,
) -> Result<MoveSummary, String> {
    let store = &state.service.store;
    // Only one at a time can open the copy for writing, and the second would not know of the first.
    let Ok(_only) = state.moving.try_lock() else {
        return Err("the store is being moved already".to_owned());
    };
    let text = |error: StoreError| error.to_string();
    let mut moving = StoreMove::begin(store, &target_config(state, &command.to)).map_err(text)?;
    loop {
        let behind = moving.step(|records| progress.report("copied", records)).map_err(text)?;
        let Some(behind) = behind.filter(|_| progress.report("behind", behind.unwrap_or(0))) else {
            return Err("the move was interrupted; another one goes on with the copy".to_owned());
        };
        if behind <= BEHIND_MAX {
            break;
        }
    }
    match command.prepare {
        true => moving.verify().map_err(text),
        false => {
            let summary = moving.finish().map_err(text)?;
            tracing::warn!(
                to = command.to,
                records = summary.records,
                log_transactions = summary.log_transactions,
                last_transaction = summary.last_transaction,
                "the store was moved: changes are refused until this process starts with the new store"
            );
            Ok(summary)
        }
    }
}

/// The settings of the new location: those of this store, but for the location.
fn target_config(state: &AdminState, to: &str) -> StoreConfig {
    let (mut config, named) = (state.config().store.clone(), StoreConfig::at(Path::new(to)));
    config.postgres.url = named.postgres.url;
    config.file = named.file;
    config
}
