//! Rate of `handled` over TCP, and the effect of connections on its rate over UDP.
//!
//! - Pipelined requests over some connections: answers per second of one core, and processor time
//!   per answer.
//! - With `--crowd`: the rate over UDP with and without thousands of idle and slow connections.

use anyhow::{Context as _, ensure};
use clap::{Subcommand, ValueEnum};
use handle_benches::args::{BenchArgs, CrowdArgs};
use handle_benches::flood::{Flood, Shape, WINDOW, is_success};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child};
use handle_benches::sets;
use handle_benches::spread::Spread;
use handle_benches::tcp::{ConnectionCrowd, Pipeline, SLOW_MESSAGE, TcpFlood};
use handle_benches::usage::{self, Usage};
use handle_proto::ResponseCode;
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::tcp::settings::TcpSettings;
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;

/// Measures the rate of `handled` over TCP or, with `--crowd`, over UDP beside a crowd of
/// connections.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the set, which is built if it is missing.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Datapath of the server.
    #[arg(long, value_enum, default_value_t = Path::Uring)]
    kind: Path,
    /// Connections.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Outstanding requests on each connection.
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Different requests, sent in a cycle.
    #[arg(long, default_value_t = 1 << 18)]
    requests: usize,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a round.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Measure the rate over UDP beside idle and slow connections.
    #[arg(long)]
    crowd: bool,
    #[command(flatten)]
    crowd_size: CrowdArgs,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Copy, Subcommand)]
enum Role {
    #[command(hide = true)]
    Serve { records: u64, kind: Path, core: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Path {
    Uring,
    Portable,
}

impl Path {
    const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Portable => "portable",
        }
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.role {
        Some(Role::Serve { records, kind, core }) => serve(records, kind, core),
        None if args.crowd => beside_a_crowd(&args),
        None => pipelined(&args),
    }
}

fn serve(records: u64, kind: Path, core: usize) -> anyhow::Result<()> {
    let config = Config {
        snapshot: sets::directory(records),
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        workers: 1,
        cores: vec![core],
        datapath: match kind {
            Path::Uring => Datapath::Uring,
            Path::Portable => Datapath::Portable,
        },
        tcp: TcpSettings { connections: 20_000, connections_per_source: 20_000, ..TcpSettings::default() },
        ..Config::default()
    };
    let server = Server::start(&config)?;
    sets::warm(&server.shared().live.current());
    serve::announce(*server.addresses().first().context("an address")?)?;
    serve::wait_for_end();
    server.stop()
}

fn start(args: &Args) -> anyhow::Result<Child> {
    drop(sets::open(args.records)?);
    let arguments =
        ["serve", &args.records.to_string(), args.kind.name(), &args.common.server_core.to_string()]
            .map(str::to_owned);
    Child::start(&arguments)
}

/// One round: answers per second, processor time of the server per answer, and per second.
struct RateRound {
    rate: f64,
    cpu_us: f64,
    busy: f64,
}

fn round(
    server: &Child,
    run: impl FnOnce() -> anyhow::Result<handle_benches::flood::FloodTotals>,
) -> anyhow::Result<RateRound> {
    let before = Usage::of(server.pid())?;
    let totals = run()?;
    let used = (Usage::of(server.pid())? - before).total().as_secs_f64();
    ensure!(totals.answers > 0, "{} does not answer", server.address);
    ensure!(totals.wrong == 0, "{} of {} answers are wrong", totals.wrong, totals.answers);
    Ok(RateRound {
        rate: totals.rate(),
        cpu_us: used * 1e6 / totals.answers as f64,
        busy: used / totals.seconds,
    })
}

fn spread(rounds: &[RateRound], figure: fn(&RateRound) -> f64) -> Spread {
    Spread::of(rounds.iter().map(figure))
}

fn pipelined(args: &Args) -> anyhow::Result<()> {
    let server = start(args)?;
    serve::pin(Some(args.common.client_core));
    let requests = Requests::new(args.records, args.requests, RequestKind::Plain, 1)?;
    let pipeline = Pipeline::of(&requests);
    let code = ResponseCode::SUCCESS.0;
    let mut flood = TcpFlood::connect(&pipeline, server.address, args.connections, args.window, code)?;
    flood.run(Duration::from_secs_f64((args.seconds / 4.0).max(0.2)))?;
    let duration = Duration::from_secs_f64(args.seconds);
    let rounds: Vec<_> =
        (0..args.rounds).map(|_| round(&server, || flood.run(duration))).collect::<anyhow::Result<_>>()?;
    let (rate, cpu, busy) =
        (spread(&rounds, |r| r.rate), spread(&rounds, |r| r.cpu_us), spread(&rounds, |r| r.busy));
    let per_core = Spread::of(rounds.iter().map(|round| 1e6 / round.cpu_us));
    if args.common.json {
        let report = json!({
            "machine": usage::machine(), "kind": args.kind.name(), "records": args.records,
            "connections": args.connections, "window": args.window, "answers_per_s": rate.to_json(),
            "answers_per_core_s": per_core.to_json(), "cpu_us": cpu.to_json(), "busy": busy.to_json(),
        });
        println!("{report:#}");
        return Ok(());
    }
    println!("{}", usage::machine());
    println!(
        "TCP, {}, {} records, {} connections, {} requests outstanding on each, {} rounds of {} s; median (min to max)",
        args.kind.name(),
        args.records,
        args.connections,
        args.window,
        args.rounds,
        args.seconds
    );
    println!("{rate:.0} answers/s, server busy {busy:.2}");
    println!("{cpu:.3} us CPU per answer: {per_core:.0} answers per second of a core");
    Ok(())
}

fn beside_a_crowd(args: &Args) -> anyhow::Result<()> {
    let server = start(args)?;
    serve::pin(Some(args.common.client_core));
    let requests = Requests::new(args.records, args.requests, RequestKind::Plain, 1)?;
    let CrowdArgs { idle, slow } = args.crowd_size;
    let mut flood = Flood::open(&requests, Shape::single(WINDOW), is_success)?;
    let duration = Duration::from_secs_f64(args.seconds);
    flood.run(server.address, duration / 4)?;
    let (mut alone, mut crowded) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        alone.push(round(&server, || Ok(flood.run(server.address, duration)?))?);
        let mut crowd = ConnectionCrowd::gather(server.address, idle, slow, SLOW_MESSAGE)?;
        crowded.push(crowd.beside(|| round(&server, || Ok(flood.run(server.address, duration)?)))?);
        drop(crowd);
        // The server notices the closed connections meanwhile.
        std::thread::sleep(Duration::from_millis(300));
    }
    let share = Spread::of(alone.iter().zip(&crowded).map(|(alone, crowded)| crowded.rate / alone.rate));
    let cpu_share =
        Spread::of(alone.iter().zip(&crowded).map(|(alone, crowded)| alone.cpu_us / crowded.cpu_us));
    let (alone, crowded) = (spread(&alone, |r| r.rate), spread(&crowded, |r| r.rate));
    if args.common.json {
        let report = json!({
            "machine": usage::machine(), "kind": args.kind.name(), "records": args.records,
            "idle": idle, "slow": slow, "alone": alone.to_json(), "beside": crowded.to_json(),
            "share": share.to_json(), "share_by_cpu": cpu_share.to_json(),
        });
        println!("{report:#}");
        return Ok(());
    }
    println!("{}", usage::machine());
    println!(
        "datagrams, {}, {} records, beside {} idle and {} slow connections, {} rounds of {} s; median (min to max)",
        args.kind.name(),
        args.records,
        idle,
        slow,
        args.rounds,
        args.seconds
    );
    println!("alone {alone:.0} answers/s, beside the crowd {crowded:.0}");
    println!("share of the rate: {share:.3}; by CPU per answer: {cpu_share:.3}");
    Ok(())
}
