//! `hdl demo`: the whole system in one command, on loopback, with real records.

use crate::{Outcome, control, output, resolve, snapshot};
use anyhow::{Context as _, bail, ensure};
use handle_loadgen::{Load, Names, Report, RunOptions, Second, Verify};
use handle_proto::json::RecordLine;
use handle_proto::{Handle, Value, Values};
use handle_server::Server;
use handle_server::config::{Config, Datapath};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::Publisher;
use handle_snapshot::writer::{BuildError, HomedPrefixes, LayerOptions};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Real records: DOIs of 2013 with their titles and journals.
const RECORDS: &str = include_str!("../../../tests/vectors/dois.jsonl");
/// Shown one by one, besides being loaded.
const SHOWN: [&str; 2] = [CHANGED, "10.1016/J.RCAE.2013.04.001"];

/// The whole system in one command, on loopback and in a temporary directory.
///
/// Builds a snapshot of 1,251 real DOI records, starts handled as a process of its own, resolves some
/// handles, loads it with every answer verified against the snapshot, publishes changes while the
/// load runs, and says what was measured. Nothing remains but what --keep asks for.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Seconds of load at a fixed rate, and again as fast as answers come.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Requests a second at the fixed rate.
    #[arg(long, default_value_t = 20_000)]
    rate: u64,
    /// How handled moves datagrams.
    #[arg(long, value_enum, default_value_t = Datapath::Auto)]
    datapath: Datapath,
    /// Work in this directory and leave everything there.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print only what was measured, as JSON.
    #[arg(long)]
    json: bool,
}

/// What the server process of the demo is told.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerArgs {
    #[arg(long)]
    snapshot: PathBuf,
    #[arg(long)]
    control: PathBuf,
    #[arg(long, value_enum)]
    datapath: Datapath,
}

/// The server process: says where it listens, and ends when its standard input does.
pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<Outcome> {
    let config = Config {
        snapshot: args.snapshot.clone(),
        control: Some(args.control.clone()),
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        cores: vec![0],
        pin: cores_count() > 1,
        datapath: args.datapath,
        ..Config::default()
    };
    let server = Server::start(&config)?;
    println!("{}", server.addresses()[0]);
    std::io::stdout().flush()?;
    std::thread::spawn({
        let shared = std::sync::Arc::clone(server.shared());
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            shared.drain();
        }
    });
    while !server.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    server.stop()?;
    Ok(Outcome::Good)
}

/// The server process, ended when it is dropped.
struct ServerProcess {
    child: Child,
    address: SocketAddr,
    control: PathBuf,
}

impl ServerProcess {
    fn start(args: &Args, set: &Path, control: PathBuf) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find the program that runs")?;
        let mut child = Command::new(program)
            .arg("demo-server")
            .args(["--snapshot".as_ref(), set.as_os_str(), "--control".as_ref(), control.as_os_str()])
            .args(["--datapath", datapath_name(args.datapath)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server process")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the server process has an output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let Ok(address) = line.trim().parse() else {
            let status = child.wait()?;
            bail!("the server process did not start ({status}); it says why above");
        };
        Ok(Self { child, address, control })
    }

    fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "the server process ended with {status}");
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(3);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn datapath_name(datapath: Datapath) -> &'static str {
    match datapath {
        Datapath::Auto => "auto",
        Datapath::Uring => "uring",
        Datapath::Portable => "portable",
    }
}

fn cores_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// Prints unless only JSON is wanted.
struct Teller {
    json: bool,
}

impl Teller {
    fn step(&self, what: &str) {
        self.line(&format!("\n== {what}"));
    }

    fn line(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let temporary = tempfile::tempdir().context("cannot make a temporary directory")?;
    let directory = args.keep.as_deref().unwrap_or(temporary.path());
    let set = directory.join("set");
    std::fs::create_dir_all(&set).with_context(|| format!("cannot make {}", set.display()))?;
    let tell = Teller { json: args.json };

    tell.step("build and publish a snapshot of real DOI records");
    let mut publisher = Publisher::open(&set)?;
    let built = Instant::now();
    publish_records(&mut publisher)?;
    let build_s = built.elapsed().as_secs_f64();
    let handles = publisher.manifest().map_or(0, |manifest| manifest.handles_count);
    tell.line(&format!(
        "{handles} handles, {}, built, checked and published in {:.0} ms",
        output::bytes(publisher.manifest().map_or(0, |manifest| manifest.layers[0].len)),
        build_s * 1e3
    ));

    tell.step("start handled on loopback");
    let server = ServerProcess::start(args, &set, directory.join("control.sock"))?;
    let status = control::ask(&server.control, "status")?;
    let worker = &status["workers"][0];
    tell.line(&format!(
        "process {} answers on {} with {} ({})",
        status["pid"],
        server.address,
        worker["datapath"].as_str().unwrap_or("?"),
        worker["reason"].as_str().unwrap_or("?"),
    ));

    tell.step("resolve some handles");
    if !args.json {
        let address = server.address.to_string();
        for handle in SHOWN {
            println!("$ hdl resolve {handle} --server {address}");
            resolve::run(&resolve::Args::plain(handle, &address))?;
        }
        println!("$ hdl resolve 10.1016/no-such-thing --server {address}");
        resolve::run(&resolve::Args::plain("10.1016/no-such-thing", &address))?;
    }

    tell.step(&format!(
        "load: {} requests a second for {} s, every answer verified, a change published every 100 ms",
        output::count(args.rate),
        args.seconds
    ));
    let rate = NonZeroU64::new(args.rate).context("--rate must be above 0")?;
    let (fixed, changes) = load_while_publishing(args, &server, &set, &mut publisher, Load::Open { rate })?;
    show_load(&tell, &fixed);
    tell.line(&format!("{changes} changes were published meanwhile; the last is live:"));
    if !args.json {
        let address = server.address.to_string();
        resolve::run(&resolve::Args::plain(CHANGED, &address))?;
    }

    tell.step(&format!("load: as fast as answers come for {} s, every answer verified", args.seconds));
    let load = Load::Closed { window: RunOptions::WINDOW };
    let fastest = load_once(args, &server, &set, load)?;
    show_load(&tell, &fastest);

    let stats = control::ask(&server.control, "stats")?;
    server.stop()?;
    let good = [&fixed, &fastest].iter().all(|report| is_good(report));
    let json = json!({
        "handles": handles, "build_s": build_s, "changes_published": changes,
        "fixed_rate": fixed, "fastest": fastest, "server": stats["total"], "good": good,
    });
    if args.json {
        println!("{json}");
    } else {
        show_end(args, &set, &fixed, &fastest, changes, good);
    }
    Ok(if good { Outcome::Good } else { Outcome::Failed })
}

/// The record that is changed while the load runs.
const CHANGED: &str = "10.1016/j.rcae.2013.04.001";

fn publish_records(publisher: &mut Publisher) -> anyhow::Result<()> {
    let now = snapshot::now_unix_ms();
    let options = LayerOptions { seed: rand::random(), folds: true, created_unix_ms: now };
    let mut values = Vec::new();
    let mut homed = HomedPrefixes::default();
    let mut records = Vec::new();
    for line in RECORDS.lines() {
        let at = values.len();
        let record = RecordLine::parse(line, &mut values)?;
        homed.add(Handle(record.handle.as_bytes()).naming_authority());
        records.push((record, at..values.len()));
    }
    publisher.publish_base(now, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (origin, (record, range)) in records.iter().enumerate() {
            let views = Values::from_encoded(record.values_count, &values[range.clone()])
                .map_err(|error| BuildError::from(std::io::Error::other(error)))?;
            builder.add(origin as u64, record.handle.as_bytes(), views)?;
        }
        builder.finish(file)
    })?;
    Ok(())
}

/// Publishes a delta in which one record has another URL, and merges deltas when there are several.
fn publish_change(publisher: &mut Publisher, number: u64) -> anyhow::Result<()> {
    const LAYERS_BEFORE_MERGE: usize = 8;
    let now = snapshot::now_unix_ms();
    let options = publisher.options(now).context("a set is published")?;
    let line = RECORDS.lines().find(|line| line.contains(CHANGED)).context("the record is bundled")?;
    let mut values = Vec::new();
    let record = RecordLine::parse(line, &mut values)?;
    let values = Values::from_encoded(record.values_count, &values)?;
    let url = format!("https://elsevier-bv.example/{CHANGED}?revision={number}");
    let changed = values.iter().map(|value| match value.kind {
        b"URL" => {
            Value { timestamp: u32::try_from(now / 1000).unwrap_or(u32::MAX), data: url.as_bytes(), ..value }
        }
        _ => value,
    });
    publisher.publish_delta(now, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options);
        builder.add(number, CHANGED.as_bytes(), changed)?;
        builder.finish(file)
    })?;
    let manifest = publisher.manifest().cloned().context("a set is published")?;
    if manifest.layers.len() >= LAYERS_BEFORE_MERGE {
        let merged = publisher.stager().stage_merge(&manifest, manifest.layers.len() - 1, now, |_| {})?;
        publisher.publish(merged, snapshot::now_unix_ms())?;
        publisher.prune(std::time::SystemTime::now(), Duration::from_secs(2))?;
    }
    Ok(())
}

fn load_while_publishing(
    args: &Args,
    server: &ServerProcess,
    set: &Path,
    publisher: &mut Publisher,
    load: Load,
) -> anyhow::Result<(Report, u64)> {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| load_once(args, server, set, load));
        let mut changes = 0;
        // The first changes come when the load runs, the last before it ends.
        while !running.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
            changes += 1;
            publish_change(publisher, changes)?;
        }
        let report = running.join().map_err(|_| anyhow::anyhow!("the load ended with a bug"))??;
        Ok((report, changes))
    })
}

fn load_once(args: &Args, server: &ServerProcess, set: &Path, load: Load) -> anyhow::Result<Report> {
    let mut options = RunOptions::new(server.address, Names::Snapshot(set.to_owned()));
    options.load = load;
    options.duration = Duration::from_secs(args.seconds);
    options.verify = Some(Verify { snapshot: set.to_owned(), staleness_max: RunOptions::STALENESS_MAX });
    if cores_count() > 1 {
        options.cores = vec![1];
    }
    let report = handle_loadgen::run(&options, |second: &Second| {
        if !args.json {
            println!("{second}");
        }
        ControlFlow::Continue(())
    })?;
    Ok(report)
}

fn is_good(report: &Report) -> bool {
    let accounts = &report.accounts;
    report.verification.as_ref().is_some_and(|verified| verified.mismatched == 0)
        && accounts.lost == 0
        && accounts.malformed == 0
}

fn show_load(tell: &Teller, report: &Report) {
    let accounts = &report.accounts;
    tell.line(&format!(
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
        tell.line(&format!(
            "verified {}, wrong {}, undecided {}; {} generations seen, none answered from more than {:.1} ms after its end",
            output::count(verified.verified),
            verified.mismatched,
            verified.undecided,
            verified.generations,
            verified.staleness_max_ms,
        ));
    }
}

fn show_end(args: &Args, set: &Path, fixed: &Report, fastest: &Report, changes: u64, good: bool) {
    println!("\n== what was measured");
    let mut table = output::table(&["", "at a fixed rate", "as fast as answers come"]);
    let row = |name: &str, value: &dyn Fn(&Report) -> String| [name.to_owned(), value(fixed), value(fastest)];
    table.add_row(row("answers a second", &|report| {
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
    println!("{table}");
    println!(
        "one worker on one core, the load on {}; {changes} changes published under load; {}",
        if cores_count() > 1 { "another" } else { "the same" },
        if good { "no answer lost or wrong" } else { "SOMETHING WAS LOST OR WRONG" },
    );
    println!("\n== what to try next");
    let directory = match &args.keep {
        Some(_) => set.display().to_string(),
        None => "./set".to_owned(),
    };
    println!("hdl snapshot publish {directory} records.jsonl        publish your own records");
    println!("handled --snapshot {directory} --listen 127.0.0.1:2641");
    println!("hdl resolve 10.1016/j.rcae.2013.04.001 --server 127.0.0.1");
    println!("handle-loadgen run --target 127.0.0.1:2641 --snapshot {directory} --rate 50000 --verify");
    println!("handle-loadgen limit                       what this machine's UDP can do at all");
}
