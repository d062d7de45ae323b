//! Starts this program again as the process that takes over.

use super::Handover;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the new process to serve; copying a set to memory takes seconds.
const TIMEOUT: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How this program was started.
#[derive(Clone, Debug)]
pub struct SuccessorProgram {
    /// The path of the program at the start. If an update has replaced the file, the new one is
    /// started.
    pub path: PathBuf,
    /// The arguments that make the new process serve as this one does, and take over.
    pub arguments: Vec<OsString>,
}

impl SuccessorProgram {
    /// The command line of this process, with `--take-over`.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let take_over = OsString::from("--take-over");
        let mut arguments: Vec<OsString> =
            std::env::args_os().skip(1).filter(|it| *it != take_over).collect();
        arguments.push(take_over);
        // Read now: after the file is replaced, the kernel reports the path as deleted.
        Some(Self { path: std::env::current_exe().ok()?, arguments })
    }
}

/// Starts the program again, and waits until it has taken over. Returns a report of the result.
pub fn restart(program: Option<&SuccessorProgram>, handover: &Handover) -> Value {
    let refuse = |why: String| json!({ "ok": false, "error": why });
    let Some(program) = program else {
        return refuse("this process cannot start itself once more".to_owned());
    };
    let mut command = Command::new(&program.path);
    // `WATCHDOG_PID` names this process. The service manager is told the number of the new process.
    command.args(&program.arguments).stdin(Stdio::null()).env_remove("WATCHDOG_PID");
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return refuse(format!("cannot start {}: {error}", program.path.display())),
    };
    let deadline = Instant::now() + TIMEOUT;
    while !handover.is_done() {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_INTERVAL),
            Ok(Some(status)) => {
                return refuse(format!(
                    "the new process ended ({status}), for the reason in the log; this process continues"
                ));
            }
            Ok(None) | Err(_) => {
                // The new process may have ended by itself.
                let _ = (child.kill(), child.wait());
                return refuse(
                    "the new process did not begin to serve in time; this process continues".to_owned(),
                );
            }
        }
    }
    json!({ "ok": true, "pid": child.id() })
}
