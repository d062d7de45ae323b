//! Programs under strace: their system calls, and their end at one of them.

use crate::needs::{TestNeed, has};
use crate::process::until;
use std::path::Path;
use std::process::Command;

/// Whether strace is there. A test without it returns.
#[must_use]
pub fn has_strace() -> bool {
    has(TestNeed::Strace, Command::new("strace").arg("-V").output().is_ok())
}

/// The command and its threads under strace with these options, which writes what it shows to the
/// file `log`. The program stays the child that is started, so that its id and its end are its own.
#[must_use]
pub fn traced(command: &Command, options: &[&str], log: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-o"]).arg(log).args(options);
    strace.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        strace.current_dir(directory);
    }
    strace
}

/// Waits until the log of a program that has succeeded is complete, and returns it. The tracer is
/// no child of the test, and writes the end of each thread.
///
/// # Panics
/// If it is not complete in time.
#[must_use]
pub fn complete_log(log: &Path) -> String {
    let mut text = String::new();
    until("the tracer has ended", || {
        text = std::fs::read_to_string(log).unwrap_or_default();
        text.trim_end().ends_with("exited with 0 +++")
    });
    text
}
