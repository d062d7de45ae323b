//! `handle-loadgen`: the command line of the load generator.

#![forbid(unsafe_code)]

mod args;

use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::{CommandFactory, Parser};
use handle_loadgen::{
    EchoOptions, Error, LimitOptions, LimitReport, Load, Names, RunOptions, Second, Verify, echo, limit, run,
    usable_cores,
};
use serde::Serialize;

use args::{Args, Command, EchoArgs, LimitArgs, RunArgs};

/// Something failed.
const FAILURE: u8 = 1;
/// The command line makes no sense.
const USAGE: u8 = 2;
/// The run does not count, or an answer was wrong.
const INVALID: u8 = 3;

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Run(args) => run_command(&args),
        Command::Echo(args) => echo_command(&args),
        Command::Limit(args) => limit_command(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "handle-loadgen", &mut io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("handle-loadgen: {error:#}");
        let is_usage = matches!(error.downcast_ref(), Some(Error::Option(_)));
        ExitCode::from(if is_usage { USAGE } else { FAILURE })
    })
}

fn run_command(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let limit = args.share_of.as_deref().map(LimitReport::read).transpose()?;
    let stop = stop_on_signal()?;
    let mut report = run(&run_options(args)?, |second| show(args.quiet, &stop, second))?;
    if let Some(limit) = &limit {
        report.share_of(limit);
    }
    print!("{}{report}", if args.quiet { "" } else { "\n" });
    write_json(args.json.as_deref(), &report)?;
    Ok(if report.is_valid() { ExitCode::SUCCESS } else { ExitCode::from(INVALID) })
}

fn run_options(args: &RunArgs) -> anyhow::Result<RunOptions> {
    let names = match (&args.handles, &args.snapshot) {
        (Some(file), _) => Names::File(file.clone()),
        (None, Some(dir)) => Names::Snapshot(dir.clone()),
        (None, None) => bail!(Error::Option("names are needed: --handles FILE or --snapshot DIR".to_owned())),
    };
    let verify = match (args.verify, &args.snapshot) {
        (false, _) => None,
        (true, Some(dir)) => Some(Verify { snapshot: dir.clone(), staleness_max: args.staleness }),
        (true, None) => bail!(Error::Option("--verify compares with a set: give --snapshot DIR".to_owned())),
    };
    Ok(RunOptions {
        handles_max: args.handles_max,
        load: args.rate.map_or(Load::Closed { window: args.window }, |rate| Load::Open { rate }),
        duration: args.duration,
        timeout: args.timeout,
        verify,
        seed: args.seed,
        threads: args.threads,
        cores: args.cores.clone(),
        datapath: args.datapath,
        ..RunOptions::new(resolve(&args.target)?, names)
    })
}

/// The first address of `host:port`.
fn resolve(target: &str) -> anyhow::Result<SocketAddr> {
    let mut addresses = target.to_socket_addrs().with_context(|| {
        format!("cannot find {target} (it should look like 127.0.0.1:2641, [::1]:2641 or name:2641)")
    })?;
    addresses.next().with_context(|| format!("{target} has no address"))
}

fn limit_command(args: &LimitArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let cores = match *args.cores {
        [load, echo] => Some((load, echo)),
        // One core each, if there are two; in a container they need not be 0 and 1.
        [] => match *usable_cores().context("cannot ask which cores may be used")? {
            [echo, load, ..] => Some((load, echo)),
            _ => None,
        },
        _ => bail!(Error::Option("--cores takes two: one that asks and one that answers".to_owned())),
    };
    let options = LimitOptions {
        request_len: args.request_len,
        answer_len: args.answer_len,
        duration: args.duration,
        window: args.window,
        datapath: args.datapath,
        cores,
    };
    let report = limit(&options, |second| show(args.quiet, &stop, second))?;
    print!("{report}");
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
    let ready = |address: SocketAddr, _, reason: &str| {
        println!("answers on {address} over UDP ({reason}); stops on Ctrl-C");
        let _ = io::stdout().flush();
    };
    let mut answered = 0;
    let counts = echo(&options, &stop, ready, |counts| {
        if counts.answered > answered {
            println!(
                "{:>10} answers in a second, {} since the start",
                counts.answered - answered,
                counts.answered
            );
            answered = counts.answered;
        }
    })?;
    let (received, drops) = (counts.received, counts.kernel_drops);
    println!(
        "{received} received, {} answered, {} failed, {drops} dropped at the socket",
        counts.answered, counts.failed
    );
    Ok(ExitCode::SUCCESS)
}

/// A flag that SIGINT and SIGTERM set; the second one ends the process as usual.
fn stop_on_signal() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn show(quiet: bool, stop: &AtomicBool, second: &Second) -> ControlFlow<()> {
    if !quiet {
        println!("{second}");
    }
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn write_json(path: Option<&Path>, report: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(report).context("cannot write the report as JSON")?;
    text.push('\n');
    let write =
        if path == Path::new("-") { io::stdout().write_all(text.as_bytes()) } else { fs::write(path, text) };
    write.with_context(|| format!("cannot write {}", path.display()))
}
