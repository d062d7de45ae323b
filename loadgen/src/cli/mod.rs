//! The commands of `handle-loadgen`: they turn arguments into library options, and write the
//! reports.

mod args;
mod files;
mod help;
mod run;
mod text;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hostile::{HostileOptions, hostile};
use crate::judge::comparison::{ComparisonSide, compare};
use crate::judge::replay;
use crate::judge::replay::ReplayReport;
use crate::read::{REPORT_LEN_MAX, whole};
use crate::show::html;
use crate::{EchoOptions, Error, LimitOptions, echo, limit, usable_cores};
use anyhow::{Context, bail};
use clap::{CommandFactory, Parser};
use handle_proto::printable::{Printable, PrintableLines};

use args::{Args, Command, CompareArgs, EchoArgs, HostileArgs, LimitArgs, ReplayArgs};
use files::{check_files, write_json, write_text};
use text::TextOutput;

/// An assertion does not hold.
const BROKEN: u8 = 1;
/// The command line is invalid.
const USAGE: u8 = 2;
/// The run is invalid, an answer was wrong, or something failed.
const INVALID: u8 = 3;

/// The command line, for manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        // Help and version texts, which are from this program.
        Err(error) if !error.use_stderr() => error.exit(),
        // A usage error quotes arguments, which may come from elsewhere.
        Err(error) => {
            say(PrintableLines(error.render()));
            return ExitCode::from(USAGE);
        }
    };
    let result = match args.command {
        Command::Run(args) => run::run_command(&args),
        Command::FindMax(args) => run::find_max_command(&args),
        Command::Compare(args) => compare_command(&args),
        Command::Replay(args) => replay_command(&args),
        Command::Hostile(args) => hostile_command(&args),
        Command::Html { report, output } => html_command(&report, &output),
        Command::Echo(args) => echo_command(&args),
        Command::Limit(args) => limit_command(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "handle-loadgen", &mut script);
            let written = io::Write::write_all(&mut io::stdout(), &script);
            written.map(|()| ExitCode::SUCCESS).map_err(anyhow::Error::from)
        }
    };
    result.unwrap_or_else(|error| {
        say(format_args!("handle-loadgen: {}\n", Printable(format_args!("{error:#}"))));
        let is_usage = matches!(error.downcast_ref(), Some(Error::Option(_)));
        ExitCode::from(if is_usage { USAGE } else { INVALID })
    })
}

/// Prints to standard error. Unlike `eprint!`, it does not panic where nothing can be written: the
/// exit code says the outcome as well.
fn say(text: impl fmt::Display) {
    let _ = io::Write::write_all(&mut io::stderr(), text.to_string().as_bytes());
}

/// The first address of `host:port`.
fn resolve(target: &str) -> anyhow::Result<SocketAddr> {
    let mut addresses = match target.to_socket_addrs() {
        // A text without a valid port has no addresses.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let form = "expected HOST:PORT, as 127.0.0.1:2641, [::1]:2641 or name:2641";
            bail!(Error::Option(format!("invalid target {target}: {form}")))
        }
        found => found.with_context(|| format!("cannot resolve the address of {target}"))?,
    };
    addresses.next().with_context(|| format!("{target} has no address"))
}

fn compare_command(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let side = |first: &Path, more: &[_]| {
        let paths: Vec<_> = std::iter::once(first.to_owned()).chain(more.iter().cloned()).collect();
        ComparisonSide::read(&paths)
    };
    let comparison = compare(&side(&args.a, &args.more_a)?, &side(&args.b, &args.more_b)?, args.seed);
    TextOutput::beside(&[args.json.as_deref()]).put(&comparison);
    write_json(args.json.as_deref(), &comparison)?;
    Ok(ExitCode::SUCCESS)
}

fn replay_command(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let text = TextOutput::beside(&[args.json.as_deref()]);
    check_files(&[args.json.as_deref()])?;
    let mismatches = replay::read(&args.file)?;
    let target = resolve(&args.target)?;
    let requests = replay::replay(&mismatches, target, args.tcp, args.timeout)?;
    let report = ReplayReport::new(target, args.tcp, requests);
    text.put(&report);
    write_json(args.json.as_deref(), &report)?;
    Ok(if report.is_right() { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) })
}

fn hostile_command(args: &HostileArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let options = HostileOptions {
        over_tcp: args.tcp,
        cases: args.cases,
        duration: args.duration,
        rate: args.rate,
        timeout: args.timeout,
        recovery: args.recovery,
        seed: args.seed,
        findings_max: args.findings,
        is_allowed: args.i_am_allowed_to,
        ..HostileOptions::new(resolve(&args.target)?, args.probe.clone().into_bytes())
    };
    let files = [args.json.as_deref(), args.junit.as_deref()];
    let text = TextOutput::beside(&files);
    check_files(&files)?;
    let report = hostile(&options, |progress| {
        if !args.quiet {
            let (cases, answered, findings) = (progress.cases, progress.answered, progress.findings);
            text.line(format_args!("{cases:>9} cases  {answered:>9} answered  {findings} findings"));
        }
        go_on(&stop)
    })?;
    text.put(&report);
    let written = write_json(args.json.as_deref(), &report);
    if let Some(path) = &args.junit {
        write_text(path, &report.junit())?;
    }
    written?;
    Ok(match (report.findings.is_empty(), report.is_stopped) {
        (false, _) => ExitCode::from(BROKEN),
        (true, true) => ExitCode::from(INVALID),
        (true, false) => ExitCode::SUCCESS,
    })
}

fn html_command(report: &Path, output: &Path) -> anyhow::Result<ExitCode> {
    let text = whole(report, REPORT_LEN_MAX)?;
    let json = serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", report.display()))?;
    let page =
        html::page(&json).map_err(|reason| Error::Option(format!("{}: {reason}", report.display())))?;
    write_text(output, &page)?;
    Ok(ExitCode::SUCCESS)
}

fn limit_command(args: &LimitArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let cores = match *args.cores {
        [load, echo] => Some((load, echo)),
        // One core each, if there are two; in a container they may not be 0 and 1.
        [] => match *usable_cores().context("cannot ask which cores may be used")? {
            [echo, load, ..] => Some((load, echo)),
            _ => None,
        },
        _ => bail!(Error::Option(
            "--cores takes two cores: one for the client and one for the server".to_owned()
        )),
    };
    let options = LimitOptions {
        request_len: args.request_len,
        answer_len: args.answer_len,
        duration: args.duration,
        window: args.window,
        datapath: args.datapath,
        cores,
    };
    let text = TextOutput::beside(&[args.json.as_deref()]);
    check_files(&[args.json.as_deref()])?;
    let report = limit(&options, |second| {
        if !args.quiet && !second.is_rest {
            text.line(second);
        }
        go_on(&stop)
    })?;
    text.put(&report);
    write_json(args.json.as_deref(), &report)?;
    Ok(ExitCode::SUCCESS)
}

fn echo_command(args: &EchoArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let options = EchoOptions {
        listen: args.listen,
        answer_len: args.answer_len,
        datapath: args.datapath,
        core: args.core,
    };
    let text = TextOutput::beside(&[]);
    let ready = |address: SocketAddr, _, reason: &str| {
        text.line(format_args!("answers on {address} over UDP ({reason}); stops on Ctrl-C"));
    };
    let mut answered = 0;
    let counts = echo(&options, &stop, ready, |counts| {
        if counts.answered > answered {
            let new = counts.answered - answered;
            text.line(format_args!(
                "{new:>10} answers in the last second, {} since the start",
                counts.answered
            ));
            answered = counts.answered;
        }
    })?;
    let (received, drops) = (counts.received, counts.kernel_drops);
    let (answered, failed) = (counts.answered, counts.failed);
    text.line(format_args!(
        "{received} received, {answered} answered, {failed} failed, {drops} dropped by the kernel"
    ));
    Ok(ExitCode::SUCCESS)
}

/// A flag set by SIGINT and SIGTERM; the second signal ends the process as usual.
fn stop_on_signal() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn go_on(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
