//! A program that answers on its standard output: a line of JSON for each question on its standard
//! input, in any order.
//!
//! - The program is started at once, and again after a pause whenever it ends. The pause grows from
//!   a tenth of a second to five seconds. Questions fail at once in between.
//! - It is killed, with all processes of its group, when it breaks the contract: a line that is too
//!   long, is no answer, or answers no question; and when it hangs, which means that a question has
//!   waited for `timeout_ms` while no line has come at all.
//! - What it writes to its standard error goes to that of this process.

mod pages;

pub(crate) use pages::ProgramPages;

use crate::RecordSource;
use crate::config::SourceConfig;
use crate::contract::{ProgramAnswer, ProgramOutcome, question_line, read_record};
use crate::error::SourceError;
use crate::guarded::SourceAnswer;
use handle_daemon::threads;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle as RuntimeHandle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// The first pause before a program is started again.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Time in which a program ends after it has closed its output.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A question for the program.
#[derive(Debug)]
struct ProgramCall {
    key: Vec<u8>,
    answer: oneshot::Sender<SourceAnswer>,
}

/// A program as a source.
#[derive(Debug)]
pub(crate) struct ProgramSource {
    calls: mpsc::Sender<ProgramCall>,
    timeout: Duration,
    runtime: RuntimeHandle,
}

impl ProgramSource {
    /// Starts the program of `config`, and keeps it running on `runtime`.
    pub(crate) fn start(config: &SourceConfig, folds: bool, runtime: RuntimeHandle) -> Self {
        let (calls, received) = mpsc::channel(config.outstanding);
        let keeper = ProgramKeeper {
            name: config.name.clone(),
            command: config.command.clone(),
            timeout: config.timeout(),
            pause_max: config.pause().max(PAUSE_MIN),
            bytes_max: config.answer_bytes,
            folds,
            calls: received,
        };
        runtime.spawn(threads::watch("source program", keeper.run()));
        Self { calls, timeout: config.timeout(), runtime }
    }
}

impl RecordSource for ProgramSource {
    fn record(&self, key: &[u8]) -> SourceAnswer {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            let call = ProgramCall { key: key.to_vec(), answer };
            let gone = || Err(SourceError::Unreachable("the program is not kept any more".to_owned()));
            match self.calls.send(call).await {
                Ok(()) => answered.await.unwrap_or_else(|_| gone()),
                Err(_) => gone(),
            }
        };
        let asked = async { tokio::time::timeout(self.timeout, asked).await };
        self.runtime.block_on(asked).unwrap_or(Err(SourceError::Late))
    }
}

/// The task that keeps a program running and passes questions to it. It ends with the source.
struct ProgramKeeper {
    name: String,
    command: Vec<String>,
    timeout: Duration,
    pause_max: Duration,
    bytes_max: usize,
    folds: bool,
    calls: mpsc::Receiver<ProgramCall>,
}

/// Why a conversation with a program ends.
enum ConversationEnd {
    /// The source was dropped.
    Closed,
    /// The program has to be started again.
    Failed(SourceError),
}

impl ProgramKeeper {
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let started = Instant::now();
            let end = match RunningProgram::start(&self.command) {
                Ok(program) => self.converse(program).await,
                Err(error) => ConversationEnd::Failed(SourceError::Unreachable(error.to_string())),
            };
            let ConversationEnd::Failed(error) = end else { return };
            if started.elapsed() > self.pause_max {
                pause = PAUSE_MIN;
            }
            let (source, again_ms) = (&self.name, pause.as_millis());
            tracing::warn!(source, %error, again_ms, "a program that is a source of records has ended");
            let until = Instant::now() + pause;
            loop {
                tokio::select! {
                    call = self.calls.recv() => match call {
                        Some(call) => _ = call.answer.send(Err(unreachable(&error))),
                        None => return,
                    },
                    () = sleep_until(until) => break,
                }
            }
            pause = (pause * 2).min(self.pause_max);
        }
    }

    /// Passes questions and answers until the program ends or has to be ended.
    async fn converse(&mut self, mut program: RunningProgram) -> ConversationEnd {
        let mut talk = Conversation {
            questions: BTreeMap::new(),
            next_id: 1,
            outbox: Vec::new(),
            last_line: Instant::now(),
            folds: self.folds,
        };
        let (mut line, mut is_writing) = (Vec::new(), true);
        let end = loop {
            let overdue = talk.questions.values().next().map(|question| question.asked + self.timeout);
            tokio::select! {
                call = self.calls.recv() => match call {
                    Some(call) => talk.ask(call),
                    None => break ConversationEnd::Closed,
                },
                read = read_line(&mut program.output, &mut line, self.bytes_max) => match read {
                    Ok(true) => match talk.take_line(&line) {
                        Ok(()) => line.clear(),
                        Err(error) => break ConversationEnd::Failed(error),
                    },
                    Ok(false) => break ConversationEnd::Failed(program.end().await),
                    Err(error) => break ConversationEnd::Failed(error),
                },
                written = program.input.write(&talk.outbox), if is_writing && !talk.outbox.is_empty() => {
                    match written {
                        Ok(len) => drop(talk.outbox.drain(..len)),
                        // Its output may have answers still, and says how it ended.
                        Err(_) => is_writing = false,
                    }
                },
                () = sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => {
                    if talk.drop_overdue(self.timeout) {
                        break ConversationEnd::Failed(SourceError::Late);
                    }
                },
            }
        };
        if let ConversationEnd::Failed(error) = &end {
            talk.fail_all(error);
        }
        end
    }
}

/// A failure of the program, for questions that it was not asked.
fn unreachable(error: &SourceError) -> SourceError {
    SourceError::Unreachable(format!("the program is started again: {error}"))
}

/// The questions that a program has been asked.
struct Conversation {
    /// By number, so the first is the oldest.
    questions: BTreeMap<u64, ProgramQuestion>,
    next_id: u64,
    /// Bytes that the program has not read.
    outbox: Vec<u8>,
    /// When the last line came, or the program was started.
    last_line: Instant,
    folds: bool,
}

struct ProgramQuestion {
    call: ProgramCall,
    asked: Instant,
}

impl Conversation {
    fn ask(&mut self, call: ProgramCall) {
        match question_line(self.next_id, &call.key) {
            Ok(line) => {
                self.outbox.extend_from_slice(line.as_bytes());
                self.questions.insert(self.next_id, ProgramQuestion { call, asked: Instant::now() });
                self.next_id += 1;
            }
            // No record has such a name.
            Err(_) => _ = call.answer.send(Ok(None)),
        }
    }

    /// Takes an answer. One that comes too late for its question is ignored.
    fn take_line(&mut self, line: &[u8]) -> Result<(), SourceError> {
        self.last_line = Instant::now();
        let ProgramAnswer { id, outcome } = ProgramAnswer::parse(line)?;
        if id == 0 || id >= self.next_id {
            return Err(SourceError::Invalid(format!("an answer to the question {id}, which was not asked")));
        }
        let Some(ProgramQuestion { call, .. }) = self.questions.remove(&id) else { return Ok(()) };
        let answer = match outcome {
            ProgramOutcome::Record(line) => read_record(line, &call.key, self.folds).map(Some),
            ProgramOutcome::NoHandle => Ok(None),
            ProgramOutcome::Failure(why) => Err(SourceError::Refused(why)),
        };
        let _ = call.answer.send(answer);
        Ok(())
    }

    /// Drops questions that have waited for `timeout`; true if no line has come since the oldest of
    /// them was asked.
    fn drop_overdue(&mut self, timeout: Duration) -> bool {
        let mut hangs = false;
        while let Some(question) = self.questions.first_entry()
            && question.get().asked.elapsed() >= timeout
        {
            let ProgramQuestion { call, asked } = question.remove();
            hangs |= self.last_line <= asked;
            let _ = call.answer.send(Err(SourceError::Late));
        }
        hangs
    }

    fn fail_all(&mut self, error: &SourceError) {
        for (_, question) in std::mem::take(&mut self.questions) {
            let _ = question.call.answer.send(Err(error.clone()));
        }
    }
}

/// Reads on until the end of a line, which is in `line` then, without its end; false at the end of
/// the output. What was read before stays in `line` if this is cancelled.
async fn read_line(
    output: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<bool, SourceError> {
    loop {
        let available =
            output.fill_buf().await.map_err(|error| SourceError::Unreachable(error.to_string()))?;
        if available.is_empty() {
            return Ok(false);
        }
        let end = available.iter().position(|&byte| byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        if line.len() + part.len() > bytes_max {
            return Err(SourceError::TooLong);
        }
        line.extend_from_slice(part);
        let used = part.len() + usize::from(end.is_some());
        output.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// A program with its pipes. Dropping it kills its process group.
#[derive(Debug)]
struct RunningProgram {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    group: Option<Pid>,
}

impl RunningProgram {
    fn start(command: &[String]) -> std::io::Result<Self> {
        let missing = || std::io::Error::other("it has no pipes");
        let (program, arguments) = command.split_first().ok_or_else(missing)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).process_group(0).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.ok_or_else(missing)?, output.ok_or_else(missing)?);
        Ok(Self { child, input, output: BufReader::new(output), group })
    }

    /// How the program ended, which has closed its output.
    async fn end(&mut self) -> SourceError {
        let how = match tokio::time::timeout(END_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) => format!("the program ended: {status}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the program closed its output".to_owned(),
        };
        SourceError::Unreachable(how)
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // The leader of the group may have been waited for, but then its number is not used again
        // while processes are left in the group.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests;
