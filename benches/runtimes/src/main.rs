//! Compares four ways of moving datagrams, with the same resolver, set and load.
//!
//! The servers run in separate processes on one core and the load on another. They take turns in
//! each round.

mod servers;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use comfy_table::Table;
use handle_benches::flood::{Flood, Shape, is_success};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child};
use handle_benches::sets;
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use serde_json::json;
use std::time::Duration;

/// Measures the resolver behind io_uring, recvmmsg, tokio-uring and glommio.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the set, which is built if it is missing.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Turns of each runtime.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Outstanding requests. They fit into a receive queue of the default size, which not every
    /// runtime can change.
    #[arg(long, default_value_t = 128)]
    window: usize,
    /// Core of the servers.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the load.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Copy, Subcommand)]
#[command(hide = true)]
enum Role {
    #[command(hide = true)]
    Serve { runtime: Runtime, records: u64, core: usize },
}

/// A way of moving datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runtime {
    /// `handle-net` over io_uring.
    Uring,
    /// `handle-net` over recvmmsg and sendmmsg, with which the others are compared.
    Portable,
    /// tokio-uring, with a task for each outstanding datagram.
    TokioUring,
    /// glommio, with a task for each outstanding datagram.
    Glommio,
}

impl Runtime {
    const ALL: [Self; 4] = [Self::Uring, Self::Portable, Self::TokioUring, Self::Glommio];

    const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Portable => "portable",
            Self::TokioUring => "tokio-uring",
            Self::Glommio => "glommio",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Uring => "io_uring, handle-net",
            Self::Portable => "recvmmsg, handle-net",
            Self::TokioUring => "tokio-uring 0.5",
            Self::Glommio => "glommio 0.9",
        }
    }
}

/// One turn of one server.
struct RuntimeTurn {
    rate: f64,
    cpu_us: f64,
    /// Processor time of the server per second.
    busy: f64,
    lost: u64,
}

/// A runtime and its results.
struct Row {
    runtime: Runtime,
    server: Result<Child, String>,
    turns: Vec<RuntimeTurn>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(Role::Serve { runtime, records, core }) = args.role {
        let served = sets::open(records).and_then(|set| {
            sets::warm(&set);
            servers::serve(runtime, &set, core)
        });
        // The parent reads the reason in place of the address.
        return served.inspect_err(|error| println!("{error:#}"));
    }
    ensure!(args.rounds > 0, "at least one round");
    drop(sets::open(args.records)?);
    let requests = Requests::new(args.records, 1 << 20, RequestKind::Plain, 1)?;
    let mut rows: Vec<Row> = Runtime::ALL.into_iter().map(|runtime| start(runtime, &args)).collect();
    serve::pin(Some(args.client_core));
    let mut flood = Flood::open(&requests, Shape::single(args.window), is_success)?;
    // The first round only warms up.
    for round in 0..=args.rounds {
        for row in &mut rows {
            let Ok(server) = &row.server else { continue };
            match turn(&mut flood, server, &args) {
                Ok(_) if round == 0 => {}
                Ok(turn) => row.turns.push(turn),
                Err(error) => row.server = Err(format!("{error:#}")),
            }
        }
    }
    show(&args, &rows)
}

/// Starts a server. One that does not start is shown in the table and does not stop the others.
fn start(runtime: Runtime, args: &Args) -> Row {
    let (records, core) = (args.records.to_string(), args.server_core.to_string());
    let child = Child::start(&["serve".to_owned(), runtime.name().to_owned(), records, core]);
    Row { runtime, server: child.map_err(|error| format!("{error:#}")), turns: Vec::new() }
}

fn turn(flood: &mut Flood<'_>, server: &Child, args: &Args) -> anyhow::Result<RuntimeTurn> {
    let used = Usage::of(server.pid())?;
    let totals = flood.run(server.address, Duration::from_secs_f64(args.seconds))?;
    let used = (Usage::of(server.pid())? - used).total().as_secs_f64();
    ensure!(totals.answers > 0, "no answers");
    ensure!(totals.wrong == 0, "{} of {} answers are wrong", totals.wrong, totals.answers);
    Ok(RuntimeTurn {
        rate: totals.rate(),
        cpu_us: used * 1e6 / totals.answers as f64,
        busy: used / totals.seconds,
        lost: totals.lost,
    })
}

fn show(args: &Args, rows: &[Row]) -> anyhow::Result<()> {
    let spread = |row: &Row, figure: fn(&RuntimeTurn) -> f64| Spread::of(row.turns.iter().map(figure));
    let base = rows.iter().find(|row| row.runtime == Runtime::Portable && !row.turns.is_empty());
    let base = base.context("the portable datapath, with which the others are compared, does not work")?;
    let ratio = |row: &Row, ratio: fn(&RuntimeTurn, &RuntimeTurn) -> f64| {
        Spread::of(row.turns.iter().zip(&base.turns).map(|(turn, base)| ratio(turn, base)))
    };
    let mut table = Table::new();
    table.set_header([
        "runtime",
        "answers/s",
        "CPU us/answer",
        "rate ratio",
        "CPU ratio",
        "server busy",
        "lost",
    ]);
    let mut report = Vec::new();
    for row in rows {
        let (name, description) = (row.runtime.name(), row.runtime.description());
        if let Err(reason) = &row.server {
            table.add_row([description, &format!("not available: {reason}")]);
            report.push(json!({ "runtime": name, "not_available": reason }));
            continue;
        }
        let (rate, cpu) = (spread(row, |turn| turn.rate), spread(row, |turn| turn.cpu_us));
        let by_rate = ratio(row, |turn, base| turn.rate / base.rate);
        let by_cpu = ratio(row, |turn, base| turn.cpu_us / base.cpu_us);
        let (busy, lost) =
            (spread(row, |turn| turn.busy), row.turns.iter().map(|turn| turn.lost).sum::<u64>());
        table.add_row([
            description.to_owned(),
            format!("{rate:.0}"),
            format!("{cpu:.2}"),
            format!("{by_rate:.2}"),
            format!("{by_cpu:.2}"),
            format!("{busy:.2}"),
            lost.to_string(),
        ]);
        report.push(json!({
            "runtime": name, "answers_per_s": rate.to_json(), "cpu_us": cpu.to_json(),
            "rate_ratio": by_rate.to_json(), "cpu_ratio": by_cpu.to_json(), "busy": busy.to_json(), "lost": lost,
        }));
    }
    let machine = usage::machine();
    if args.json {
        let report = json!({
            "machine": machine, "records": args.records, "rounds": args.rounds, "seconds": args.seconds,
            "runtimes": report,
        });
        println!("{report:#}");
    } else {
        println!("{machine}");
        println!(
            "{} records, {} rounds of {} s; ratios are to recvmmsg; median (min to max)",
            args.records, args.rounds, args.seconds
        );
        println!("{table}");
    }
    Ok(())
}
