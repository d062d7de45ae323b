//! `handle-lab demo`: the whole system in one command, on loopback, with real records.

mod gateway;
mod load;
mod records;
mod server;

use crate::server_process::ServerProcess;
use anyhow::Context as _;
use handle_cli::{ExitOutcome, control, output, resolve};
use handle_daemon::privileges::is_root;
use handle_loadgen::{DatapathChoice, LoadPattern, RunOptions, RunReport, usable_cores};
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::set::storage::create_directory;
use records::CHANGED;
pub(crate) use records::RECORDS;
use serde_json::json;
pub(crate) use server::{ServerArgs, serve};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Handles that are resolved and printed, in addition to the load.
const SHOWN: [&str; 2] = [CHANGED, "10.1016/J.RCAE.2013.04.001"];

/// Run the whole system on loopback, in a temporary directory.
///
/// Builds a snapshot of 1,251 real DOI records, starts handled as a separate process, resolves some
/// handles, loads the server with every answer verified against the snapshot, and publishes changes
/// during the load. Then starts handle-gateway over the same snapshot, asks it over HTTP, and loads
/// it with verified redirects. Prints the measurements, and removes all files afterwards, unless
/// --keep is given.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  handle-lab demo
  handle-lab demo --keep ./demo-files    keep the snapshot for further use
  handle-lab demo --seconds 10 --rate 100000 --json")]
pub(crate) struct Args {
    /// Duration of each load in seconds: one at a fixed rate, one as fast as answers arrive.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Requests per second at the fixed rate.
    #[arg(long, default_value = "20000")]
    rate: NonZeroU64,
    /// How handled moves datagrams: io_uring (uring), recvmmsg and sendmmsg (portable), or the
    /// first of these that works (auto).
    #[arg(long, value_name = "auto|uring|portable", default_value_t = DatapathChoice::Auto)]
    datapath: DatapathChoice,
    /// Work in this directory and keep all files.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print only the measurements, as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints text, unless only JSON is wanted.
struct ProgressPrinter {
    json: bool,
}

impl ProgressPrinter {
    fn step(&self, what: &str) {
        self.line(&format!("\n== {what}"));
    }

    fn line(&self, text: &str) {
        if !self.json {
            output::lines(text);
        }
    }
}

/// One core for the server and one for the load; `None` if there is only one.
fn cores() -> anyhow::Result<Option<(usize, usize)>> {
    let usable = usable_cores().context("cannot determine the usable cores")?;
    Ok(match *usable {
        [server, load, ..] => Some((server, load)),
        _ => None,
    })
}

/// The measurements.
struct DemoFigures {
    fixed: RunReport,
    fastest: RunReport,
    /// Redirects of the gateway.
    redirects: RunReport,
    changes_count: u64,
}

impl DemoFigures {
    fn is_good(&self) -> bool {
        [&self.fixed, &self.fastest, &self.redirects].into_iter().all(load::is_good)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let temporary = tempfile::tempdir().context("cannot make a temporary directory")?;
    let directory = args.keep.as_deref().unwrap_or(temporary.path());
    let set = directory.join("set");
    create_directory(&set).with_context(|| format!("cannot make {}", set.display()))?;
    let printer = ProgressPrinter { json: args.json };
    let mut publisher = SetPublisher::open(&set)?;
    let build_s = publish(&printer, &mut publisher)?;
    let handles = publisher.manifest().map_or(0, |manifest| manifest.handles_count);
    let server = start(&printer, args, &set, directory.join("control.sock"))?;
    if !args.json {
        printer.step("resolve some handles");
        for handle in SHOWN.into_iter().chain(["10.1016/no-such-thing"]) {
            show_resolving(&server, handle)?;
        }
        output::check()?;
    }
    let measured = measure(&printer, args, &server, &set, &mut publisher)?;
    let stats = control::ask(&server.control, "stats")?;
    server.stop()?;
    let good = measured.is_good();
    if args.json {
        let DemoFigures { fixed, fastest, redirects, changes_count } = &measured;
        let json = json!({
            "handles": handles, "build_s": build_s, "changes_published": changes_count,
            "fixed_rate": fixed, "fastest": fastest, "redirects": redirects, "server": stats["total"], "good": good,
        });
        println!("{json}");
    } else {
        show_measured(&measured)?;
        show_what_next(args);
    }
    Ok(if good { ExitOutcome::Good } else { ExitOutcome::Failed })
}

/// Publishes the records and returns the time this took in seconds.
fn publish(printer: &ProgressPrinter, publisher: &mut SetPublisher) -> anyhow::Result<f64> {
    printer.step("build and publish a snapshot of real DOI records");
    let built = Instant::now();
    records::publish_all(publisher)?;
    let build_s = built.elapsed().as_secs_f64();
    let manifest = publisher.manifest().context("a set was just published")?;
    printer.line(&format!(
        "{} handles, {}, built, verified and published in {:.0} ms",
        manifest.handles_count,
        output::bytes(manifest.layers[0].len),
        build_s * 1e3
    ));
    Ok(build_s)
}

fn start(
    printer: &ProgressPrinter,
    args: &Args,
    set: &Path,
    control: PathBuf,
) -> anyhow::Result<ServerProcess> {
    printer.step("start handled on loopback");
    let server = server::start(args, set, control)?;
    let status = control::ask(&server.control, "status")?;
    let worker = &status["workers"][0];
    printer.line(&format!(
        "process {} answers on {} with {} ({})",
        status["pid"],
        server.address,
        worker["datapath"].as_str().unwrap_or("?"),
        worker["reason"].as_str().unwrap_or("?"),
    ));
    Ok(server)
}

fn show_resolving(server: &ServerProcess, handle: &str) -> anyhow::Result<()> {
    let address = server.address.to_string();
    println!("$ hdl resolve {handle} --server {address}");
    resolve::show_from(handle, &address)?;
    Ok(())
}

fn measure(
    printer: &ProgressPrinter,
    args: &Args,
    server: &ServerProcess,
    set: &Path,
    publisher: &mut SetPublisher,
) -> anyhow::Result<DemoFigures> {
    printer.step(&format!(
        "load: {} requests per second for {} s, every answer verified, a change published every 100 ms",
        output::count(args.rate.get()),
        args.seconds
    ));
    let load = LoadPattern::Open { rate: args.rate };
    let (fixed, changes_count) = load::run_while_publishing(args, server, set, publisher, load)?;
    load::show(printer, &fixed);
    printer.line(&format!(
        "{} published during the load; the last one is live:",
        output::counted(changes_count, "change", "changes")
    ));
    if !args.json {
        show_resolving(server, CHANGED)?;
    }
    printer.step(&format!("load: as fast as answers arrive for {} s, every answer verified", args.seconds));
    let options =
        load::options(args, server.address, set, LoadPattern::Closed { window: RunOptions::WINDOW })?;
    let fastest = load::run(args, &options)?;
    load::show(printer, &fastest);
    let redirects = gateway::measure(printer, args, set)?;
    Ok(DemoFigures { fixed, fastest, redirects, changes_count })
}

fn show_measured(measured: &DemoFigures) -> anyhow::Result<()> {
    let DemoFigures { fixed, fastest, redirects, changes_count } = measured;
    println!();
    println!("== measurements");
    let mut table =
        output::table(&["", "at a fixed rate", "as fast as answers arrive", "redirects over HTTP"]);
    let row = |name: &str, value: &dyn Fn(&RunReport) -> String| {
        [name.to_owned(), value(fixed), value(fastest), value(redirects)]
    };
    table.add_row(row("answers per second", &|report| {
        indicatif::HumanFloatCount(report.answered_per_s.round()).to_string()
    }));
    table.add_row(row("response time, median", &|report| {
        format!("{:.0} us", report.response_ns.p50 as f64 / 1e3)
    }));
    table.add_row(row("response time, 99 %", &|report| {
        format!("{:.0} us", report.response_ns.p99 as f64 / 1e3)
    }));
    table.add_row(row("lost", &|report| report.accounts.lost.to_string()));
    table.add_row(row("wrong", &|report| {
        report.verification.as_ref().map_or_else(String::new, |verified| verified.mismatched.to_string())
    }));
    output::lines(&table);
    println!(
        "one worker on one core, the load on {}; {} published under load; {}",
        if cores()?.is_some() { "another" } else { "the same" },
        output::counted(*changes_count, "change", "changes"),
        if measured.is_good() { "no answer lost or wrong" } else { "ANSWERS WERE LOST OR WRONG" },
    );
    Ok(())
}

/// The beginning of a command that runs `program`: by cargo with the profile that built this
/// program, or by its name if this program, at `own`, is installed.
fn command(program: &str, own: Option<&Path>) -> String {
    // target/<profile>/handle-lab, as cargo builds it.
    let profile = own.and_then(Path::parent).filter(|profile| profile.join("deps").is_dir());
    let options = match profile.and_then(Path::file_name).map(|name| name.to_string_lossy()).as_deref() {
        Some("debug") => "",
        Some("demo") => "--profile demo ",
        Some(_) => "--release ",
        None => return program.to_owned(),
    };
    format!("cargo run {options}--bin {program} --")
}

/// A record to add, below a prefix of the demo.
const OWN_RECORD: &str =
    r#"{"handle":"10.1016/mine","values":[{"index":1,"type":"URL","data":"https://example.org/"}]}"#;

/// Prints commands to try for a user who has built only this program.
fn show_what_next(args: &Args) {
    println!();
    println!("== what to try next");
    let directory = args.keep.as_deref().unwrap_or(Path::new("./demo-files"));
    let (set, own) = (directory.join("set"), std::env::current_exe().ok());
    let set = set.display();
    let [lab, hdl, handled, loadgen, gateway] =
        ["handle-lab", "hdl", "handled", "handle-loadgen", "handle-gateway"]
            .map(|program| command(program, own.as_deref()));
    if args.keep.is_none() {
        println!("{lab} demo --keep {}    # keep the files", directory.display());
    }
    let root = if is_root() { " --allow-root" } else { "" };
    println!("{handled} --snapshot {set} --listen 127.0.0.1:2641{root}    # serve them, until Ctrl-C");
    println!("{hdl} resolve {CHANGED} --server 127.0.0.1    # in another terminal");
    println!("{loadgen} run --target 127.0.0.1:2641 --snapshot {set} --rate 50k --verify");
    println!("{gateway} --snapshot {set} --listen 127.0.0.1:8000{root}    # the same over HTTP");
    println!("curl -i http://127.0.0.1:8000/{CHANGED}");
    println!("echo '{OWN_RECORD}' | {hdl} snapshot publish {set} - --delta    # add records of your own");
    println!("{loadgen} limit    # the UDP limit of this machine");
}
