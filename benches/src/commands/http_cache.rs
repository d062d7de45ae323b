//! What `handle-gateway` needs for cached answers of other services: memory, and the time of a
//! request for many of them.
//!
//! A `handled` in another process has the records, and is the one server that the gateway asks.

use anyhow::{Context as _, ensure};
use clap::Subcommand;
use handle_benches::args::BenchArgs;
use handle_benches::batch::BatchClient;
use handle_benches::records::RecordGenerator;
use handle_benches::serve::{self, Child, ServePath};
use handle_benches::spread::Spread;
use handle_benches::{sets, usage};
use handle_gateway::{Config, Gateway};
use handle_worker::config::ServerLimits;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// Measures the memory of `handle-gateway` with answers of another server in its cache, and the
/// time of a request for 1,000 of them.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Answers in the cache, and records in the set of the other server, which is built if it is
    /// missing.
    #[arg(long, default_value_t = 1_000_000)]
    answers: u64,
    /// Bytes that the cache may have.
    #[arg(long, default_value_t = 4 << 30)]
    cache_bytes: usize,
    /// Requests for cached answers whose time is measured.
    #[arg(long, default_value_t = 200)]
    requests: u64,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    ServeHandled { records: u64, core: usize },
    #[command(hide = true)]
    ServeGateway { site: PathBuf, cache_bytes: usize, core: usize },
}

/// Names in a request, the default limit of the gateway.
const NAMES: u64 = 1000;
/// Questions of one request at a time to the other server: its share of `upstream.questions`.
const QUESTIONS: usize = 256;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.role {
        None => measure(&args),
        Some(Role::ServeHandled { records, core }) => {
            serve::handled(*records, ServePath::Portable, *core, ServerLimits::default())
        }
        Some(Role::ServeGateway { site, cache_bytes, core }) => {
            serve::pin(Some(*core));
            let listen = vec![([127, 0, 0, 1], 0).into()];
            let mut config = Config { listen, workers: 1, ..Config::default() };
            config.upstream.resolver_site = Some(site.clone());
            config.upstream.cache_bytes = *cache_bytes;
            config.upstream.questions = 32 * QUESTIONS;
            let gateway = Gateway::start(&config)?;
            serve::announce(*gateway.addresses().first().context("an address")?)?;
            serve::wait_for_end();
            gateway.stop()
        }
    }
}

/// The site record of the server at `child`, as a file.
fn site_of(child: &Child, directory: &std::path::Path) -> anyhow::Result<PathBuf> {
    let (ip, port) = (child.address.ip().to_string(), child.address.port());
    let interface = |protocol| json!({ "query": true, "admin": false, "protocol": protocol, "port": port });
    let site = json!({
        "version": 1, "protocolVersion": "2.11", "serialNumber": 1, "primarySite": true,
        "multiPrimary": false, "attributes": [],
        "servers": [{ "serverId": 1, "address": ip, "interfaces": [interface("UDP"), interface("TCP")] }],
    });
    let path = directory.join("site.json");
    std::fs::write(&path, site.to_string())?;
    Ok(path)
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(args.answers >= NAMES, "at least {NAMES} answers");
    drop(sets::open(args.answers)?);
    let directory = tempfile::tempdir()?;
    let strings = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
    let handled = Child::start(&strings(&[
        "serve-handled",
        &args.answers.to_string(),
        &args.common.client_core.to_string(),
    ]))?;
    let site = site_of(&handled, directory.path())?.display().to_string();
    let gateway = Child::start(&strings(&[
        "serve-gateway",
        &site,
        &args.cache_bytes.to_string(),
        &args.common.server_core.to_string(),
    ]))?;
    serve::pin(Some(args.common.client_core));
    let generator = RecordGenerator::new()?;
    let names = |batch: u64| -> Vec<String> {
        let name = |number| {
            let mut handle = Vec::new();
            generator.handle(number, &mut handle);
            String::from_utf8_lossy(&handle).into_owned()
        };
        (batch * NAMES..(batch + 1) * NAMES).map(name).collect()
    };
    let batches = args.answers / NAMES;
    let mut client = BatchClient::connect(gateway.address)?;
    let before = usage::resident_len(gateway.pid())?;
    let begun = Instant::now();
    for batch in 0..batches {
        client.resolve(&names(batch))?;
    }
    let (cold_s, resident) = (begun.elapsed().as_secs_f64(), usage::resident_len(gateway.pid())? - before);
    let mut times_ms = Vec::new();
    for number in 0..args.requests {
        // Spread over all answers, so that most of them are not in the caches of the processor.
        let batch = batches - 1 - number * 7919 % batches;
        times_ms.push(client.resolve(&names(batch))?.as_secs_f64() * 1e3);
    }
    let (answers, warm) = (batches * NAMES, Spread::of(times_ms));
    report(args, answers, resident, cold_s, warm);
    Ok(())
}

fn report(args: &Args, answers: u64, resident: u64, cold_s: f64, warm: Spread) {
    let (each, rate) = (resident as f64 / answers as f64, answers as f64 / cold_s);
    if args.common.json {
        let report = json!({
            "machine": usage::machine(), "answers": answers, "resident": resident, "bytes_each": each,
            "asked_per_s": rate, "batch_ms": warm.to_json(),
        });
        println!("{report:#}");
        return;
    }
    println!("{}", usage::machine());
    println!("{answers} answers of another server: {resident} bytes resident, {each:.0} for each");
    println!("asked for: {rate:.0} per second, {NAMES} in a request");
    println!("POST /api/resolve with {NAMES} cached names: {warm:.2} ms, median (min to max)");
}
