//! The commands of `handle-fetch` on its control socket.

use crate::state::FetchState;
use handle_daemon::control::{CommandHelp, ControlCommands};
use handle_daemon::{log, threads};
use handle_fleet::FetchCounters;
use serde_json::{Map, Value, json};

/// The commands and their help.
const COMMANDS: [CommandHelp; 4] = [
    ("status", "the set in the directory, and the last attempt"),
    ("stats", "counters"),
    ("reload", "read the configuration again; what cannot change while running is named"),
    ("drain", "exit"),
];

/// Most bytes of a line: commands are a few words.
const CONTROL_LINE_LEN_MAX: usize = 4096;

impl ControlCommands for FetchState {
    fn commands(&self) -> Vec<CommandHelp> {
        COMMANDS.to_vec()
    }

    fn run(&self, command: &str) -> Option<Value> {
        Some(match command {
            "status" => status(self),
            "stats" => stats(self),
            "reload" => self.reload(),
            "drain" => {
                self.drain();
                json!({ "ok": true })
            }
            _ => return None,
        })
    }

    fn line_len_max(&self) -> usize {
        CONTROL_LINE_LEN_MAX
    }
}

fn status(state: &FetchState) -> Value {
    let (config, status, ended) = (state.config(), state.status(), threads::ended());
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started_unix_ms": state.started_unix_ms,
        "state": match (state.shutdown.is_draining(), ended.is_empty()) {
            (true, _) => "draining",
            (false, true) => "serving",
            (false, false) => "degraded",
        },
        "threads_ended": ended,
        "log_lines_lost": log::lines_lost(),
        "url": config.url,
        "directory": config.directory,
        "set": status.set.map(|set| json!({
            "epoch": set.epoch,
            "generation": set.generation,
            "created_unix_ms": set.created_unix_ms,
            "handles": set.handles_count,
            "root": set.root,
            "layers": set.layers_count,
            "bytes": set.len,
            "signed_unix_ms": set.signed_unix_ms,
        })),
        "succeeded_unix_ms": status.succeeded_unix_ms,
        "last_error": status.last_error,
        "notices": state.notices().map(|notices| json!({
            "address": config.notify.address,
            "connected": notices.connected,
            "last_error": notices.last_error,
        })),
    })
}

fn stats(state: &FetchState) -> Value {
    let counts = FetchCounters::NAMES.iter().zip(state.counters.values());
    counts.map(|(name, count)| ((*name).to_owned(), count.into())).collect::<Map<_, Value>>().into()
}
