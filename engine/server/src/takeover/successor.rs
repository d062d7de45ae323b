//! This program once more, as the process that takes over.

use crate::server::ServerState;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the new process may take until it serves; copying a set to memory takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How this program was started.
#[derive(Clone, Debug)]
pub struct SuccessorProgram {
    /// The file, as it was called at the start: an update that replaced it is what is started.
    pub path: PathBuf,
    /// The arguments that make it serve as this process does, and take over.
    pub arguments: Vec<OsString>,
}

/// Starts the program once more, and waits until it has taken over.
pub(crate) fn restart(shared: &ServerState) -> Value {
    let refuse = |why: String| json!({ "ok": false, "error": why });
    let Some(program) = &shared.hooks.program else {
        return refuse("this process cannot start itself once more".to_owned());
    };
    let mut command = Command::new(&program.path);
    // The watchdog of the service manager is told the new process by its number.
    command.args(&program.arguments).stdin(Stdio::null()).env_remove("WATCHDOG_PID");
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return refuse(format!("cannot start {}: {error}", program.path.display())),
    };
    let deadline = Instant::now() + PATIENCE;
    while !shared.handover.is_done() {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_INTERVAL),
            Ok(Some(status)) => {
                return refuse(format!(
                    "the new process ended ({status}); the log says why. This one goes on"
                ));
            }
            Ok(None) | Err(_) => {
                // It may have ended by itself.
                let _ = (child.kill(), child.wait());
                return refuse("the new process did not come to serve; this one goes on".to_owned());
            }
        }
    }
    json!({ "ok": true, "pid": child.id() })
}
