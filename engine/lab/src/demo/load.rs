//! The load of the demo: every answer is verified, and the results are reported.

use super::records::publish_change;
use super::{Args, ProgressPrinter, cores};
use crate::server_process::ServerProcess;
use handle_cli::output;
use handle_loadgen::{LoadPattern, NameOptions, ReferenceData, RunOptions, RunReport, SecondCounts, Verify};
use handle_snapshot::set::publisher::SetPublisher;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

/// Loads the server and publishes a change every 100 ms; also returns the number of changes.
pub(super) fn run_while_publishing(
    args: &Args,
    server: &ServerProcess,
    set: &Path,
    publisher: &mut SetPublisher,
    load: LoadPattern,
) -> anyhow::Result<(RunReport, u64)> {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run(args, &options(args, server.address, set, load)?));
        let mut changes = 0;
        // The first change is published after the load has started, the last before it ends.
        while !running.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
            changes += 1;
            publish_change(publisher, changes)?;
        }
        let report = running.join().map_err(|_| anyhow::anyhow!("the load generator panicked"))??;
        Ok((report, changes))
    })
}

/// A load of the server at `target`, with every answer verified.
pub(super) fn options(
    args: &Args,
    target: SocketAddr,
    set: &Path,
    load: LoadPattern,
) -> anyhow::Result<RunOptions> {
    let mut options = RunOptions::new(target, NameOptions::Snapshot(set.to_owned()));
    options.load = load;
    options.duration = Duration::from_secs(args.seconds);
    options.verify = Some(Verify::with(ReferenceData::Snapshot(set.to_owned())));
    options.cores = cores()?.map(|(_, load)| load).into_iter().collect();
    Ok(options)
}

/// Loads a server.
pub(super) fn run(args: &Args, options: &RunOptions) -> anyhow::Result<RunReport> {
    let report = handle_loadgen::run(options, |second: &SecondCounts| {
        if !args.json && !second.is_rest {
            println!("{second}");
        }
        match output::check() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    output::check()?;
    Ok(report)
}

/// Whether no answer was lost or wrong.
pub(super) fn is_good(report: &RunReport) -> bool {
    let accounts = &report.accounts;
    report.verification.as_ref().is_some_and(|verified| verified.mismatched == 0)
        && accounts.lost == 0
        && accounts.malformed == 0
}

/// How stale the oldest accepted answer was.
fn staleness(max_ms: f64) -> String {
    match max_ms > 0.0 {
        true => format!("answers at most {max_ms:.1} ms stale"),
        false => "no stale answers".to_owned(),
    }
}

/// Prints the results.
pub(super) fn show(printer: &ProgressPrinter, report: &RunReport) {
    let accounts = &report.accounts;
    printer.line(&format!(
        "sent {}, answered {}, late {}, lost {}; response time p50 {:.0} us, p99 {:.0} us, max {:.1} ms",
        output::count(accounts.sent),
        output::count(accounts.answered),
        accounts.late,
        accounts.lost,
        report.response_ns.p50 as f64 / 1e3,
        report.response_ns.p99 as f64 / 1e3,
        report.response_ns.max as f64 / 1e6,
    ));
    if let Some(verified) = &report.verification {
        printer.line(&format!(
            "verified {}, wrong {}, undecided {}; {} seen; {}",
            output::count(verified.verified),
            verified.mismatched,
            verified.undecided,
            output::counted(verified.generations, "generation", "generations"),
            staleness(verified.staleness_max_ms),
        ));
    }
}
