//! Pages of lines of a program. It is asked one question at a time, and started when there is one.

use super::RunningProgram;
use crate::config::SourceConfig;
use crate::error::SourceError;
use crate::lines::{LineSplitter, SplitLine};
use crate::listing::{ListedLine, ListedSource, PageItem, SourcePage, page_question};
use crate::stop::PullStop;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle as RuntimeHandle;

/// A program that lists its records.
#[derive(Debug)]
pub(crate) struct ProgramPages {
    command: Vec<String>,
    /// Time for the next line.
    step: Duration,
    bytes_max: usize,
    running: Option<RunningProgram>,
    next_id: u64,
    stop: PullStop,
    runtime: RuntimeHandle,
}

impl ProgramPages {
    /// The program of `config`. It is not started yet.
    pub(crate) fn new(config: &SourceConfig, stop: PullStop, runtime: RuntimeHandle) -> Self {
        Self {
            command: config.command.clone(),
            step: config.step(),
            bytes_max: config.answer_bytes,
            running: None,
            next_id: 1,
            stop,
            runtime,
        }
    }

    /// Asks the program for a page.
    fn ask(&mut self, is_listing: bool, since: Option<&str>) -> Result<ProgramPage<'_>, SourceError> {
        let (id, runtime) = (self.next_id, self.runtime.clone());
        let question = page_question(id, is_listing, since)?;
        self.next_id += 1;
        let _inside = runtime.enter();
        let program = match &mut self.running {
            Some(program) => program,
            none => none.insert(RunningProgram::start(&self.command).map_err(unreachable)?),
        };
        let asked = self.stop.wait(self.step, program.input.write_all(question.as_bytes()));
        if let Err(error) = runtime.block_on(asked).and_then(|asked| asked.map_err(unreachable)) {
            self.running = None;
            return Err(error);
        }
        let lines = LineSplitter::new(self.bytes_max);
        Ok(ProgramPage { source: self, id, lines, is_over: false })
    }
}

fn unreachable(error: std::io::Error) -> SourceError {
    SourceError::Unreachable(error.to_string())
}

impl ListedSource for ProgramPages {
    fn list<'s>(&'s mut self, after: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        Ok(Box::new(self.ask(true, after)?))
    }

    fn changes<'s>(&'s mut self, since: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        Ok(Box::new(self.ask(false, since)?))
    }
}

/// An answer of which lines are missing. Dropping it before its end kills the program, whose lines
/// would be taken for the next answer.
#[derive(Debug)]
struct ProgramPage<'s> {
    source: &'s mut ProgramPages,
    id: u64,
    lines: LineSplitter,
    is_over: bool,
}

impl ProgramPage<'_> {
    /// Receives more of the output, before `until`.
    fn receive(&mut self, until: Instant) -> Result<(), SourceError> {
        let ProgramPages { running, stop, runtime, .. } = &mut *self.source;
        let Some(program) = running else {
            return Err(SourceError::Unreachable("the program has ended".to_owned()));
        };
        let lines = &mut self.lines;
        runtime.block_on(async {
            let left = until.saturating_duration_since(Instant::now());
            let available = stop.wait(left, program.output.fill_buf()).await?.map_err(unreachable)?;
            lines.push(available);
            let len = available.len();
            program.output.consume(len);
            if len == 0 { Err(program.end().await) } else { Ok(()) }
        })
    }

    /// Checks that a line answers the question.
    fn take(&mut self, line: ListedLine) -> Result<PageItem, SourceError> {
        if line.id != Some(self.id) {
            let id = line.id.map_or("no question".to_owned(), |id| format!("the question {id}"));
            return Err(SourceError::Invalid(format!("a line about {id} in the answer to {}", self.id)));
        }
        let ends = [PageItem::Expired, PageItem::NoChanges].contains(&line.item);
        self.is_over = ends || matches!(line.item, PageItem::End(_));
        Ok(line.item)
    }
}

impl SourcePage for ProgramPage<'_> {
    fn next_item(&mut self) -> Result<PageItem, SourceError> {
        // A line without an end does not take longer, however much of it comes.
        let until = Instant::now() + self.source.step;
        loop {
            let line = match self.lines.next_line() {
                Some(SplitLine::Whole(line)) => ListedLine::parse(line),
                Some(SplitLine::TooLong(start)) => {
                    return Ok(PageItem::Unfit(ListedLine::too_long(&start)));
                }
                None => {
                    self.receive(until)?;
                    continue;
                }
            };
            return line.and_then(|line| self.take(line));
        }
    }
}

impl Drop for ProgramPage<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.source.running = None;
        }
    }
}

#[cfg(test)]
mod tests;
