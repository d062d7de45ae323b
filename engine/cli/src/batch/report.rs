//! The results of a batch: log, counts, progress bar, and the failures with their reasons.

use super::compat::CompatLog;
use super::log::{BatchLog, LogLine, LoggedResult as Verdict};
use super::work::OperationResult;
use crate::{output, progress};
use handle_formats::batch::BatchOperation;
use indicatif::ProgressBar;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Failures printed at the end of the run; the log has all of them.
const SHOWN_MAX: usize = 20;

/// The report, shared by all connections.
pub(super) struct BatchReport {
    state: Mutex<ReportState>,
    idle: Condvar,
    begun: Instant,
}

pub(super) struct ReportState {
    log: Option<BatchLog>,
    compat: Option<CompatLog>,
    /// Operations in the whole file.
    operations_count: u64,
    bar: ProgressBar,
    /// Operations that are running or queued.
    under_way: usize,
    pub(super) counts: BatchCounts,
    shown: Vec<String>,
    /// Why the batch cannot continue.
    pub(super) broken: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchCounts {
    pub(super) done: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    /// Operations skipped because an earlier run has their result.
    pub(super) earlier: u64,
}

impl BatchReport {
    pub(super) fn new(log: Option<BatchLog>, compat: Option<CompatLog>, operations_count: u64) -> Self {
        let state = ReportState {
            log,
            compat,
            operations_count,
            bar: progress::bar("operations", Some(operations_count)),
            under_way: 0,
            counts: BatchCounts::default(),
            shown: Vec::new(),
            broken: None,
        };
        Self { state: Mutex::new(state), idle: Condvar::new(), begun: Instant::now() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ReportState> {
        // Counts stay valid after a panic of another thread.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation that is queued for a connection.
    pub(super) fn given(&self) {
        self.state().under_way += 1;
    }

    /// Counts an operation that is skipped because an earlier run has its result.
    pub(super) fn passed_over(&self) {
        let mut state = self.state();
        state.counts.earlier += 1;
        state.bar.inc(1);
    }

    /// Waits until no operation is running.
    pub(super) fn wait(&self) {
        let waits = self.idle.wait_while(self.state(), |state| state.under_way > 0);
        drop(waits.unwrap_or_else(PoisonError::into_inner));
    }

    /// Logs the start of an operation.
    pub(super) fn begins(&self, line: u64, operation: &BatchOperation) -> anyhow::Result<()> {
        let entry = entry(line, operation, None);
        match &mut self.state().log {
            Some(log) => log.write(&entry),
            None => Ok(()),
        }
    }

    /// Logs that an operation was not started, and why.
    pub(super) fn postponed(&self, line: u64, operation: &BatchOperation, why: String) -> anyhow::Result<()> {
        let result = OperationResult { verdict: Verdict::Postponed, code: None, message: Some(why) };
        match &mut self.state().log {
            Some(log) => log.write(&entry(line, operation, Some(&result))),
            None => Ok(()),
        }
    }

    /// Counts a running operation as ended without a result.
    pub(super) fn ends(&self, broken: Option<String>) {
        let mut state = self.state();
        if state.broken.is_none() {
            state.broken = broken;
        }
        state.under_way -= 1;
        if state.under_way == 0 {
            self.idle.notify_all();
        }
    }

    /// Logs the result of an operation.
    pub(super) fn add_result(
        &self,
        line: u64,
        operation: &BatchOperation,
        result: &OperationResult,
    ) -> anyhow::Result<()> {
        let mut state = self.state();
        let entry = entry(line, operation, Some(result));
        if let Some(log) = &mut state.log {
            log.write(&entry)?;
        }
        let about = operation.handle().unwrap_or_default();
        if let Some(compat) = &mut state.compat {
            compat.add_result(line, operation, result)?;
        }
        match result.verdict {
            Verdict::Done => state.counts.done += 1,
            Verdict::Refused => state.counts.refused += 1,
            Verdict::Failed => state.counts.failed += 1,
            Verdict::Postponed => {}
        }
        if result.verdict != Verdict::Done && state.shown.len() < SHOWN_MAX {
            let message = result.message.as_deref().unwrap_or_default();
            let blank = if about.is_empty() { "" } else { " " };
            state.shown.push(format!("line {line}: {}{blank}{about}: {message}", operation.word()));
        }
        state.bar.inc(1);
        Ok(())
    }

    /// Logs the result for one prefix of HOME or UNHOME.
    pub(super) fn homed(&self, line: u64, prefix: &str, result: &OperationResult) -> anyhow::Result<()> {
        self.state().compat.as_mut().map_or(Ok(()), |compat| compat.homed(line, prefix, result))
    }

    /// Logs a block that cannot be parsed.
    pub(super) fn invalid(&self, line: u64, why: &str) -> anyhow::Result<()> {
        self.state().compat.as_mut().map_or(Ok(()), |compat| compat.invalid(line, why))
    }

    /// Prints the summary.
    pub(super) fn finish(&self, is_json: bool) -> anyhow::Result<()> {
        let mut state = self.state();
        state.bar.finish_and_clear();
        let BatchCounts { done, refused, failed, earlier } = state.counts;
        // Operations that are running when a run stops have an unknown result; they count as not
        // done.
        let left = state.operations_count.saturating_sub(done + refused + failed + earlier);
        let took = self.begun.elapsed();
        if let Some(compat) = &mut state.compat {
            compat.finish(took)?;
        }
        for line in &state.shown {
            eprintln!("hdl: {line}");
        }
        let not_shown = usize::try_from(refused + failed)?.saturating_sub(state.shown.len());
        if not_shown > 0 {
            eprintln!("hdl: {} more in the log", output::count(not_shown as u64));
        }
        if is_json {
            let json = serde_json::json!({
                "done": done, "refused": refused, "failed": failed, "doneBefore": earlier, "left": left,
                "seconds": took.as_secs_f64(), "stopped": state.broken,
            });
            println!("{json}");
        } else {
            let some = |count: u64, what: &str| match count {
                0 => String::new(),
                count => format!(", {} {what}", output::count(count)),
            };
            let (before, left) = (some(earlier, "done before"), some(left, "not done"));
            println!(
                "{} done, {} refused, {} failed{before}{left}, in {:.1} s ({}/s)",
                output::count(done),
                output::count(refused),
                output::count(failed),
                took.as_secs_f64(),
                output::rate(done + refused, took)
            );
        }
        Ok(())
    }
}

fn entry(line: u64, operation: &BatchOperation, result: Option<&OperationResult>) -> LogLine {
    LogLine {
        line,
        operation: operation.word().to_owned(),
        handle: operation.handle().map(str::to_owned),
        result: result.map(|result| result.verdict),
        code: result.and_then(|result| result.code),
        message: result.and_then(|result| result.message.clone()),
    }
}
