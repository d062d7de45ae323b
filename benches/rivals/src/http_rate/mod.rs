//! HTTP answers of `handle-gateway` on one core, compared with a bare hyper server and with nginx,
//! which answer with a constant redirect.
//!
//! Each server is a process on one core, and the engine of `handle-loadgen` loads it from another
//! core. Servers take turns, so that ratios are of the same round.

mod batch;
mod bulk;
mod crowd;
mod instructions;
mod latency;
mod load;
mod rates;
mod servers;

use self::servers::{HttpServers, Role};
use anyhow::ensure;
use clap::ValueEnum;
use handle_benches::args::{BenchArgs, CrowdArgs};
use handle_benches::usage;
use handle_proto::Value;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions};
use serde_json::{Map, json};
use std::path::{Path, PathBuf};

/// Measures `handle-gateway`: rates over HTTP/1.1, HTTP/2 and TLS, response times, batches of
/// names, the effect of idle and slow clients, and records created in one request.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the set.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Connections over HTTP/1.1, each with one request at a time, and all requests at a time over
    /// HTTP/2.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Connections over HTTP/2, over which the requests are distributed.
    #[arg(long, default_value_t = 8)]
    http2_connections: usize,
    /// Rounds of each kind.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Measure only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Count instructions for each answer instead, under `valgrind --tool=callgrind`.
    #[arg(long)]
    instructions: bool,
    /// Records in a request of the part `bulk`.
    #[arg(long, default_value_t = 20_000)]
    lines: usize,
    /// Requests per second in the part `latency`; by default half of the highest rate of redirects.
    #[arg(long)]
    rate: Option<u64>,
    #[command(flatten)]
    crowd: CrowdArgs,
    #[command(flatten)]
    common: BenchArgs,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Answers per second.
    Rates,
    /// Response times at half of the highest rate.
    Latency,
    /// A request for 1,000 records.
    Batch,
    /// The rate beside idle and slow clients.
    ConnectionCrowd,
    /// Records created in one request. Build `hdl`, `handle-admin` and `handle-gateway` first, with
    /// the same profile.
    Bulk,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if let Some(role) = args.role {
        return servers::serve(role);
    }
    ensure!(args.rounds > 0 && args.connections > 0 && args.http2_connections > 0, "at least one of each");
    ensure!(args.connections >= args.http2_connections, "a connection needs a request");
    ensure!(args.lines > 0, "at least one record");
    let directory = tempfile::tempdir()?;
    if args.instructions {
        prepare(&args, directory.path())?;
        return instructions::count(&args, directory.path());
    }
    let is_asked = |part| args.only.is_empty() || args.only.contains(&part);
    let mut report = Map::new();
    report.insert("machine".to_owned(), usage::machine().into());
    report.insert("setting".to_owned(), setting(&args));
    say(&args, &usage::machine());
    if [Part::Rates, Part::Latency, Part::Batch, Part::ConnectionCrowd].into_iter().any(is_asked) {
        prepare(&args, directory.path())?;
        measure_answers(&args, directory.path(), is_asked, &mut report)?;
    }
    if is_asked(Part::Bulk) {
        report.insert("bulk".to_owned(), bulk::measure(&args)?);
    }
    if args.common.json {
        println!("{:#}", serde_json::Value::Object(report));
    }
    Ok(())
}

/// Writes the set and the certificate of the servers.
fn prepare(args: &Args, directory: &Path) -> anyhow::Result<()> {
    servers::write_tls(directory)?;
    publish(&set_of(directory), args.records)
}

/// Measures answers from a set.
fn measure_answers(
    args: &Args,
    directory: &Path,
    is_asked: impl Fn(Part) -> bool,
    report: &mut Map<String, serde_json::Value>,
) -> anyhow::Result<()> {
    let servers = HttpServers::start(args, directory)?;
    handle_benches::serve::pin(Some(args.common.client_core));
    let shape = format!(
        "{} records, {} requests at a time, {} rounds of {} s; median (min to max)",
        args.records, args.connections, args.rounds, args.seconds
    );
    say(args, &shape);
    if is_asked(Part::Rates) {
        report.insert("rates".to_owned(), rates::measure(args, &servers)?);
    }
    if is_asked(Part::Latency) {
        report.insert("latency".to_owned(), latency::measure(args, &servers)?);
    }
    if is_asked(Part::Batch) {
        report.insert("batch".to_owned(), batch::measure(args, &servers)?);
    }
    if is_asked(Part::ConnectionCrowd) {
        report.insert("crowd".to_owned(), crowd::measure(args, &servers)?);
    }
    Ok(())
}

fn setting(args: &Args) -> serde_json::Value {
    json!({
        "records": args.records, "connections": args.connections, "rounds": args.rounds,
        "http2_connections": args.http2_connections, "seconds": args.seconds,
    })
}

/// Prints a line for people.
fn say(args: &Args, line: &str) {
    if !args.common.json {
        println!("{line}");
    }
}

/// The directory of the set.
fn set_of(directory: &Path) -> PathBuf {
    directory.join("set")
}

/// Publishes records with a URL and an administrator.
fn publish(directory: &Path, records: u64) -> anyhow::Result<()> {
    std::fs::create_dir(directory)?;
    let mut publisher = SetPublisher::open(directory)?;
    let mut homed = HomedPrefixes::default();
    homed.add(b"10.1");
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for number in 0..records {
            let (handle, url) =
                (format!("10.1/{number:08}"), format!("https://www.example.org/items/{number:08}"));
            let admin =
                [b"\x0f\xf3".as_slice(), &7_u32.to_be_bytes(), b"0.NA/10", &200_u32.to_be_bytes()].concat();
            let values = [Value::new(1, b"URL", url.as_bytes()), Value::new(100, b"HS_ADMIN", &admin)];
            builder.add(number, handle.as_bytes(), values)?;
        }
        builder.finish(file)
    })?;
    Ok(())
}
