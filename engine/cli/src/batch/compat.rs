//! The log that `hdl-genericbatch` writes, for programs that read it.
//!
//! The counts follow the reference tools: each operation on a handle and each homed or released
//! prefix is one entry; AUTHENTICATE and SESSIONSETUP are not entries. Line numbers are those of
//! the batch file.

use super::log::{LoggedResult as Verdict, MODE};
use super::work::OperationResult;
use crate::output::unix_time;
use anyhow::Context as _;
use handle_daemon::clock::now_unix_ms;
use handle_formats::batch::BatchOperation;
use handle_proto::ResponseCode;
use handle_proto::printable::Printable;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

/// The log, open for appending.
pub(super) struct CompatLog {
    file: File,
    done: u64,
    entries: u64,
}

impl CompatLog {
    /// Starts a new log and discards what the file held.
    pub(super) fn begin(path: &Path) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(MODE).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let mut log = Self { file, done: 0, entries: 0 };
        log.line(&format!("Start Time: {}", now()))?;
        Ok(log)
    }

    fn line(&mut self, text: &str) -> anyhow::Result<()> {
        writeln!(self.file, "{}", Printable(text)).context("cannot write the log of --compat-log")
    }

    /// Records the result of an operation other than HOME and UNHOME.
    pub(super) fn add_result(
        &mut self,
        line: u64,
        operation: &BatchOperation,
        result: &OperationResult,
    ) -> anyhow::Result<()> {
        let words = match operation {
            BatchOperation::Create(..) | BatchOperation::Replace(..) => "create",
            BatchOperation::Add(..) => "add values",
            BatchOperation::Modify(..) => "modify values",
            BatchOperation::Remove(..) => "remove values",
            BatchOperation::Delete(_) => "delete",
            BatchOperation::Authenticate(_) if result.verdict != Verdict::Done => {
                let why = result.message.as_deref().unwrap_or_default();
                return self.invalid(line, &format!("error in authentication: {why}"));
            }
            // Each prefix has its own line.
            BatchOperation::Home(_) | BatchOperation::Authenticate(_) | BatchOperation::Session(_) => {
                return Ok(());
            }
        };
        self.entry(line, words, operation.handle().unwrap_or_default(), result)
    }

    /// Records the result for one prefix.
    pub(super) fn homed(&mut self, line: u64, prefix: &str, result: &OperationResult) -> anyhow::Result<()> {
        self.entry(line, "home/unhome", prefix, result)
    }

    fn entry(&mut self, line: u64, words: &str, about: &str, result: &OperationResult) -> anyhow::Result<()> {
        self.entries += 1;
        if result.verdict == Verdict::Done {
            self.done += 1;
            return self.line(&format!("==>SUCCESS[{line}]: {words}:{about}"));
        }
        let why = error_text(result);
        self.line(&format!("==>FAILURE[{line}]: {words}:{about}: {why}"))
    }

    /// Records a block that cannot be parsed.
    pub(super) fn invalid(&mut self, line: u64, why: &str) -> anyhow::Result<()> {
        self.line(&format!("==>INVALID[{line}]: {why}"))
    }

    /// Writes the last lines.
    pub(super) fn finish(&mut self, took: Duration) -> anyhow::Result<()> {
        self.line(&format!("Successes/Total Entries: {}/{}", self.done, self.entries))?;
        self.line(&format!("Finish Time: {}", now()))?;
        let (seconds, rate) = (took.as_secs(), self.entries as f64 / took.as_secs_f64());
        self.line(&format!(
            "This batch took {seconds} seconds to complete at an average speed of {rate:.1} operations/second"
        ))
    }
}

fn now() -> String {
    unix_time(i64::try_from(now_unix_ms() / 1000).unwrap_or(i64::MAX))
}

/// `Error(101): HANDLE ALREADY EXISTS: text of the server`, or the text of any other error.
fn error_text(result: &OperationResult) -> String {
    let message = result.message.as_deref().unwrap_or_default();
    let Some(code) = result.code else { return message.to_owned() };
    let name = ResponseCode(code).to_string();
    // The message about a prefix begins with the name of the prefix.
    let (_, detail) = message.split_once(name.as_str()).unwrap_or(("", message));
    format!("Error({code}): {}{detail}", name.to_uppercase())
}
