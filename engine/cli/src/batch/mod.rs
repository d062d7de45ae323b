//! `hdl batch`: carries out the operations of a batch file, in order or several at once, and
//! resumes interrupted runs.

mod compat;
mod log;
mod report;
mod work;

use crate::server::{CommonSessions, ServerArgs, ServerClients};
use crate::{ExitOutcome, UsageError, advice, output};
use anyhow::{Context as _, bail};
use compat::CompatLog;
use crossbeam_channel::{Receiver, Sender, bounded};
use handle_client::administration::{AskError, ClientIdentity};
use handle_formats::batch::{BatchBlock, BatchOperation, BatchValue, HomeBlock};
use handle_formats::input::{InputStream, OperationReader};
use handle_proto::data::DataFormat;
use handle_proto::fold;
use log::{BatchLog, EarlierResults, LoggedResult as Verdict};
use report::BatchReport;
use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read, Seek as _, Write as _};
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use work::{OperationResult, ServerUnavailable};

/// Operations queued for each connection.
const QUEUE: usize = 64;
/// Invalid operations after which a file is no batch file, and is not read on.
const INVALID_MAX: usize = 10_000;

/// Run the operations of a batch file.
///
/// Records as lines of JSON or as CSV are read as well, and created; lines of JSON may name another
/// operation, as those of POST /api/batch. Every form may be compressed.
///
/// The operations go to the server given with --server, or each to the server responsible for its
/// handle.
///
/// The file is checked first: if a line of it or a file that it names cannot be read, no operation
/// is run. The result of each operation is written to a log, one line of JSON each. --resume
/// continues an interrupted run from that log, with the same result as a run without interruption.
/// If the server does not answer, is too busy or accepts no changes, the batch stops and can be
/// resumed later.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl batch changes.txt --server 127.0.0.1
  hdl batch changes.txt --server 127.0.0.1 --resume
  hdl batch changes.txt --server 127.0.0.1 --parallel 8 --rate 1000
  hdl batch changes.txt --dry-run

Creations of records without keys and groups run several at once, because no operation between them
depends on their order. With --parallel, all operations do: those on one handle keep their order, and
those on prefixes, identities and homing wait for all earlier ones. --stop-on-error alone runs all
operations in order.

Exit codes:
  0 all done        1 some refused or failed, or stopped        2 invalid batch file")]
pub(crate) struct Args {
    /// The batch file, or a pipe; `-` is standard input.
    file: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// The log. Default: FILE.log; none for standard input and pipes.
    #[arg(long, value_name = "LOG")]
    log: Option<PathBuf>,
    /// Continue an interrupted run from its log.
    #[arg(long)]
    resume: bool,
    /// Check the file and exit.
    #[arg(long)]
    dry_run: bool,
    /// Skip invalid operations instead of refusing the whole file.
    #[arg(long)]
    keep_going: bool,
    /// Stop at the first operation that is refused or fails.
    #[arg(long)]
    stop_on_error: bool,
    /// Number of operations at once, each on its own connection. Default: up to 64 creations in a
    /// session, 8 without one, and everything else one after the other.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: Option<u16>,
    /// Maximum number of operations per second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Also write a log in the format of the reference tools.
    #[arg(long, value_name = "FILE")]
    compat_log: Option<PathBuf>,
    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,
}

/// Connections for creations, if the number is not given: changes that arrive together share the
/// time of the disk. Without a session, each of them is signed, and two cores sign for 8.
const CREATING_CONNECTIONS: u16 = 8;
const CREATING_CONNECTIONS_IN_SESSION: u16 = 64;

/// Operations without a session from which on the way to one is shown.
const ADVISED_COUNT: u64 = 1000;

impl Args {
    fn connections(&self) -> u16 {
        let default = match self.server.may_use_sessions() {
            _ if self.stop_on_error => 1,
            true => CREATING_CONNECTIONS_IN_SESSION,
            false => CREATING_CONNECTIONS,
        };
        self.parallel.unwrap_or(default)
    }

    /// Whether operations before and after this one are not to run at the same time.
    fn runs_alone(&self, operation: &BatchOperation) -> bool {
        // Prefix records hold the administrators of the handles below them.
        let handle = operation.handle().unwrap_or_default().as_bytes();
        let is_prefix = handle.len() > 5 && fold::eq(&handle[..5], b"0.NA/");
        is_prefix || (self.parallel.is_none() && !is_plain_creation(operation))
    }
}

/// Whether a record is created without a value that gives a right.
fn is_plain_creation(operation: &BatchOperation) -> bool {
    let has_rights = |value: &BatchValue| {
        let format = DataFormat::of(value.kind.as_bytes());
        matches!(format, DataFormat::PublicKey | DataFormat::SecretKey | DataFormat::Vlist)
    };
    matches!(operation, BatchOperation::Create(_, values) if !values.iter().any(has_rights))
}

/// A job for a connection.
enum BatchJob {
    Ask {
        block: BatchBlock,
        was_begun: bool,
    },
    Identify(Option<Arc<ClientIdentity>>),
    /// How sessions are used for the operations that follow; the seconds are those of
    /// [`use_sessions`](handle_client::administration::Administrator::use_sessions).
    UseSessions(Option<i32>),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let (mut file, checked) = open(&args.file)?;
    for (_, text) in &checked.invalid {
        eprintln!("hdl: {}: {text}", args.file.display());
    }
    let is_bad = !checked.invalid.is_empty();
    if args.dry_run {
        println!(
            "{}, {} invalid",
            output::counted(checked.operations, "operation", "operations"),
            checked.invalid.len()
        );
    }
    if args.dry_run || is_bad && !args.keep_going {
        return Ok(if is_bad { ExitOutcome::BadInput } else { ExitOutcome::Good });
    }
    // Before the log is created: a wrong command line is not a run that can be resumed.
    let identity = args.server.identity.read()?;
    if identity.is_some() && checked.operations >= ADVISED_COUNT && !args.server.may_use_sessions() {
        eprintln!(
            "hdl: each operation is signed for itself; with --server-key FILE, the public key of the server, one \
             session serves for all and takes a fraction of the time"
        );
    }
    let clients = clients(args, identity.as_ref())?;
    let log_path = args.log.clone().or_else(|| log_beside(&args.file));
    let (log, earlier) = match (&log_path, args.resume) {
        (Some(path), true) => BatchLog::resume(path, &mut file).map(|(log, earlier)| (Some(log), earlier))?,
        (Some(path), false) => (Some(BatchLog::begin(path, &mut file)?), EarlierResults::new()),
        (None, true) => {
            bail!(UsageError("--resume needs the log of the interrupted run: name it with --log".to_owned()))
        }
        (None, false) => (None, EarlierResults::new()),
    };
    let compat = args.compat_log.as_deref().map(CompatLog::begin).transpose()?;
    let report = BatchReport::new(log, compat, checked.operations);
    checked.invalid.iter().try_for_each(|(line, text)| report.invalid(*line, text))?;
    carry_out(args, clients, identity, &mut file, &earlier, &report)?;
    report.finish(args.json)?;
    let state = report.state();
    if let Some(why) = &state.broken {
        let go_on = if log_path.is_some() { "; continue with --resume" } else { "" };
        eprintln!("hdl: stopped: {why}{go_on}");
        return Ok(ExitOutcome::Failed);
    }
    Ok(match (is_bad, state.counts.refused + state.counts.failed) {
        (true, _) => ExitOutcome::BadInput,
        (false, 0) => ExitOutcome::Good,
        (false, _) => ExitOutcome::Failed,
    })
}

/// The log of a file; none of standard input, pipes and devices.
fn log_beside(path: &Path) -> Option<PathBuf> {
    let mut name = path.file_name().filter(|_| path.is_file() && !path.starts_with("/dev"))?.to_owned();
    name.push(".log");
    Some(path.with_file_name(name))
}

/// The batch after a check, in a file that can be read again: what comes from a pipe is copied
/// while it is checked, so that what is no batch is not copied without end.
fn open(path: &Path) -> anyhow::Result<(File, CheckSummary)> {
    let shown = path.display();
    let cannot_read = || format!("cannot read {shown}");
    let source = crate::input::open_bytes(path)?;
    let (file, checked) = if path.is_file() {
        let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
        let checked = check(&file).with_context(cannot_read)?;
        (file, checked)
    } else {
        let copy =
            tempfile::tempfile().with_context(|| format!("cannot copy {shown} to a temporary file"))?;
        let checked = check(CopyingReader { source, copy: &copy }).with_context(cannot_read)?;
        (copy, checked)
    };
    let mut file = file;
    file.rewind()?;
    Ok((file, checked))
}

/// Writes what is read to a file as well.
struct CopyingReader<'f, R> {
    source: R,
    copy: &'f File,
}

impl<R: Read> Read for CopyingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        self.copy.write_all(&buffer[..len])?;
        Ok(len)
    }
}

struct CheckSummary {
    operations: u64,
    /// What cannot be read, by line: blocks, and files that blocks name.
    invalid: Vec<(u64, String)>,
}

fn check(input: impl Read) -> anyhow::Result<CheckSummary> {
    let mut checked = CheckSummary { operations: 0, invalid: Vec::new() };
    let mut files = HashSet::new();
    for block in OperationReader::new(InputStream::new(input)?)? {
        match block? {
            Ok(BatchBlock { line, operation }) => {
                checked.operations += 1;
                if let Err(error) = work::check_files(&operation, &mut files) {
                    checked.invalid.push((line, format!("line {line}: {error:#}")));
                }
            }
            Err(invalid) => checked.invalid.push((invalid.line, invalid.to_string())),
        }
        if checked.invalid.len() > INVALID_MAX {
            let (_, first) = &checked.invalid[0];
            bail!("more than {INVALID_MAX} invalid operations; the first is on {first}");
        }
    }
    Ok(checked)
}

/// One for each connection; findings of one connection are shared with all.
fn clients<'a>(
    args: &'a Args,
    identity: Option<&Arc<ClientIdentity>>,
) -> anyhow::Result<Vec<ServerClients<'a>>> {
    let (finder, shared) = (args.server.finder()?, CommonSessions::default());
    let one = |_| {
        let mut clients = ServerClients::new(&args.server, finder.clone())?;
        clients.share_sessions(shared.clone());
        clients.identify(identity.cloned());
        Ok(clients)
    };
    (0..args.connections()).map(one).collect()
}

fn carry_out(
    args: &Args,
    clients: Vec<ServerClients<'_>>,
    identity: Option<Arc<ClientIdentity>>,
    file: &mut File,
    earlier: &EarlierResults,
    report: &BatchReport,
) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    std::thread::scope(|scope| {
        let queues = clients.into_iter().map(|clients| {
            let (queue, jobs) = bounded(QUEUE);
            let stop = &stop;
            scope.spawn(move || serve(clients, &jobs, report, stop, args.stop_on_error));
            queue
        });
        let mut hand_out = OperationQueue { args, queues: queues.collect(), report, stop: &stop, identity };
        hand_out.all(file, earlier)
    })
}

/// Runs the jobs of the queue until its end. Once `stop` is set, the remaining jobs are not run.
fn serve(
    mut clients: ServerClients<'_>,
    jobs: &Receiver<BatchJob>,
    report: &BatchReport,
    stop: &AtomicBool,
    stops_on_error: bool,
) {
    for job in jobs {
        let (block, was_begun) = match job {
            BatchJob::Identify(identity) => {
                clients.identify(identity);
                continue;
            }
            BatchJob::UseSessions(timeout_s) => {
                clients.use_sessions(timeout_s);
                continue;
            }
            BatchJob::Ask { block, was_begun } => (block, was_begun),
        };
        if stop.load(Ordering::Relaxed) {
            report.ends(None);
            continue;
        }
        let (line, operation) = (block.line, &block.operation);
        let done = report.begins(line, operation).and_then(|()| {
            let result = match work::ask(&mut clients, operation, was_begun) {
                Ok(result) => result,
                Err(error) => {
                    // An operation that an earlier run began may still have been done.
                    if work::was_not_begun(&error) && !was_begun {
                        report.postponed(line, operation, advice::line(&error))?;
                    }
                    return Err(error.context(format!("line {line}")));
                }
            };
            report.add_result(line, operation, &result)?;
            Ok(result.verdict)
        });
        let is_over = done.as_ref().map_or(true, |verdict| stops_on_error && *verdict != Verdict::Done);
        if is_over {
            stop.store(true, Ordering::Relaxed);
        }
        report.ends(done.err().map(|error| advice::line(&error)));
    }
}

/// Distributes operations to connections, in an order that respects their dependencies.
struct OperationQueue<'a> {
    args: &'a Args,
    queues: Vec<Sender<BatchJob>>,
    report: &'a BatchReport,
    stop: &'a AtomicBool,
    identity: Option<Arc<ClientIdentity>>,
}

impl OperationQueue<'_> {
    fn all(&mut self, file: &mut File, earlier: &EarlierResults) -> anyhow::Result<()> {
        let pause = self.args.rate.map(|rate| Duration::from_secs(1) / rate);
        let mut next_at = Instant::now();
        for block in OperationReader::new(InputStream::new(file)?)? {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            // Invalid operations have been reported already.
            let Ok(block) = block? else { continue };
            let before = earlier.get(&block.line);
            let is_local =
                matches!(block.operation, BatchOperation::Authenticate(_) | BatchOperation::Session(_));
            if let (Some(Some(_)), false) = (before, is_local) {
                self.report.passed_over();
                continue;
            }
            if let Some(pause) = pause {
                std::thread::sleep(next_at.saturating_duration_since(Instant::now()));
                next_at = next_at.max(Instant::now()) + pause;
            }
            self.one(block, before.is_some())?;
        }
        self.report.wait();
        if self.stop.load(Ordering::Relaxed) {
            let mut state = self.report.state();
            let reason = if state.counts.refused + state.counts.failed > 0 && self.args.stop_on_error {
                "an operation was not done"
            } else {
                "interrupted"
            };
            state.broken.get_or_insert_with(|| reason.to_owned());
        }
        Ok(())
    }

    fn one(&mut self, block: BatchBlock, was_begun: bool) -> anyhow::Result<()> {
        match &block.operation {
            BatchOperation::Home(home) => {
                self.report.wait();
                self.home(&block, home, was_begun)
            }
            BatchOperation::Authenticate(authentication) => {
                self.report.wait();
                let result = match work::identity(authentication) {
                    Ok(identity) => {
                        self.identity = Some(identity);
                        OperationResult::DONE
                    }
                    // As in deployed software, the previous identity stays.
                    Err(error) => OperationResult::failed(&error),
                };
                for queue in &self.queues {
                    send(queue, BatchJob::Identify(self.identity.clone()))?;
                }
                self.local(&block, &result)
            }
            BatchOperation::Session(session) => {
                self.report.wait();
                let hours = session.timeout_hours.unwrap_or(0);
                let timeout_s = i32::try_from(hours.saturating_mul(3600)).unwrap_or(i32::MAX);
                for queue in &self.queues {
                    send(queue, BatchJob::UseSessions(session.is_used.then_some(timeout_s)))?;
                }
                self.local(&block, &OperationResult::DONE)
            }
            operation => {
                let handle = operation.handle().context("an operation on a handle")?.as_bytes();
                let runs_alone = self.args.runs_alone(operation);
                let mut hasher = DefaultHasher::new();
                handle.iter().for_each(|byte| byte.to_ascii_uppercase().hash(&mut hasher));
                // Operations that run alone share one connection: others would stay idle.
                let at = match runs_alone {
                    true => 0,
                    false => usize::try_from(hasher.finish() % self.queues.len() as u64)?,
                };
                if runs_alone {
                    self.report.wait();
                }
                self.report.given();
                send(&self.queues[at], BatchJob::Ask { block, was_begun })?;
                if runs_alone {
                    self.report.wait();
                }
                Ok(())
            }
        }
    }

    /// A directive of the batch that needs no request.
    fn local(&self, block: &BatchBlock, result: &OperationResult) -> anyhow::Result<()> {
        if result.verdict != Verdict::Done && self.args.stop_on_error {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.report.add_result(block.line, &block.operation, result)
    }

    /// Homing goes to the server that the batch names, over TCP whatever protocol the batch gives.
    fn home(&self, block: &BatchBlock, home: &HomeBlock, was_begun: bool) -> anyhow::Result<()> {
        self.report.begins(block.line, &block.operation)?;
        let (mut answered, mut refused) = (0, Vec::new());
        let result = match self.ask_home(block.line, home, &mut answered, &mut refused) {
            Ok(()) => refused.into_iter().reduce(OperationResult::and).unwrap_or(OperationResult::DONE),
            // The result for this prefix is unknown; earlier prefixes may have been changed.
            Err(error) if error.is::<AskError>() || error.is::<ServerUnavailable>() => {
                if work::was_not_begun(&error) && !was_begun && answered == 0 {
                    self.report.postponed(block.line, &block.operation, advice::line(&error))?;
                }
                self.stop.store(true, Ordering::Relaxed);
                self.report.state().broken = Some(format!("line {}: {}", block.line, advice::line(&error)));
                return Ok(());
            }
            Err(error) => OperationResult::failed(&error),
        };
        self.local(block, &result)
    }

    /// Requests all prefixes, even if some are refused. Returns the refusals and the number of
    /// answers.
    fn ask_home(
        &self,
        line: u64,
        home: &HomeBlock,
        answered: &mut usize,
        refused: &mut Vec<OperationResult>,
    ) -> anyhow::Result<()> {
        let mut addresses =
            (home.address.as_str(), home.port).to_socket_addrs().with_context(|| home.address.clone())?;
        let address = addresses.next().with_context(|| format!("{} has no address", home.address))?;
        let mut client = self.args.server.anonymous(address)?;
        client.identify(self.identity.clone());
        for prefix in &home.prefixes {
            let result = work::home(&mut client, home.is_release, prefix)?;
            *answered += 1;
            self.report.homed(line, prefix, &result)?;
            if result.verdict != Verdict::Done {
                refused.push(result);
            }
        }
        Ok(())
    }
}

fn send(queue: &Sender<BatchJob>, job: BatchJob) -> anyhow::Result<()> {
    queue.send(job).ok().context("a connection thread ended unexpectedly")
}
