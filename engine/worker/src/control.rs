//! The commands of `handled` on its control socket.

use crate::state::ServerState;
use handle_daemon::control::{CommandHelp, ControlCommands, ControlReader};
use handle_daemon::takeover;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;

/// The commands, with their help.
const COMMANDS: [CommandHelp; 7] = [
    ("status", "the served set, the uptime and the workers"),
    ("stats", "counters and answer times, in total and for each worker, and the busiest networks"),
    ("reload", "read the configuration again, and take the published set now"),
    ("reopen-log", "open the file of the query log again, after it was renamed"),
    ("drain", "answer what has arrived, then exit"),
    ("restart", "start this program again, and let it take over without loss"),
    ("take-over", "sent by the new process to get the sockets"),
];

impl ControlCommands for ServerState {
    fn commands(&self) -> Vec<CommandHelp> {
        let added = self.hooks.extension.iter().flat_map(|extension| extension.commands());
        COMMANDS.into_iter().chain(added).collect()
    }

    fn run(&self, command: &str) -> Option<Value> {
        Some(match command {
            "status" => self.status(),
            "stats" => self.stats(),
            "reload" => self.reload(),
            "reopen-log" if self.reopen_log() => json!({ "ok": true }),
            "reopen-log" => json!({ "ok": false, "error": "there is no query log" }),
            "drain" => {
                self.drain();
                json!({ "ok": true })
            }
            "restart" => takeover::restart(self.hooks.program.as_ref(), &self.handover),
            _ => return self.hooks.extension.as_ref()?.run(command),
        })
    }

    fn converse(
        &self,
        command: &str,
        client: &UnixStream,
        reader: &mut ControlReader<'_>,
    ) -> Option<std::io::Result<()>> {
        (command == "take-over").then(|| takeover::hand_over(client, reader, self))
    }

    fn line_len_max(&self) -> usize {
        self.settings.current().config.limits.control_line_bytes
    }

    fn is_replaced(&self) -> bool {
        self.is_handed_over()
    }
}
