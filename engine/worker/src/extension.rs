//! What a process adds to those of `handled`: threads, commands, status and metrics. `handled` adds
//! nothing.

use anyhow::Result;
use handle_daemon::control::CommandHelp;
use handle_daemon::metrics::MetricsText;
use serde_json::Value;
use std::fmt;
use std::thread::JoinHandle;

/// A part of a process beside its workers, as the thread of a caching server that asks others.
pub trait ProcessExtension: fmt::Debug + Send + Sync {
    /// The name of its part in the output of `status` and `stats`.
    fn name(&self) -> &'static str;

    /// Starts its threads. Called once, after the process has become its user.
    ///
    /// # Errors
    /// When a thread cannot be started.
    fn start(&self) -> Result<Vec<JoinHandle<()>>>;

    /// Asks these threads to stop.
    fn stop(&self);

    /// Its commands at the control socket.
    fn commands(&self) -> Vec<CommandHelp>;

    /// Runs one of these commands; `None` if `command` is none of them.
    fn run(&self, command: &str) -> Option<Value>;

    /// Applies what the program has read for a reload, and adds the outcome to `report`.
    fn reload(&self, report: &mut Value);

    /// Its part in the output of `status`.
    fn status(&self) -> Value;

    /// Its counters.
    fn stats(&self) -> Value;

    /// Adds its metrics.
    fn add_metrics(&self, text: &mut MetricsText);
}
