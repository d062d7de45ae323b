//! Response times at half of the highest rate: `handled` compared with an echo, and while it signs.

use anyhow::{Context as _, ensure};
use clap::Subcommand;
use comfy_table::Table;
use handle_benches::args::BenchArgs;
use handle_benches::certified;
use handle_benches::flood::{Flood, Shape, WINDOW, is_success};
use handle_benches::paced::{BackgroundLoad, PacedClient, PacedTimes};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child, EchoServer, ServePath};
use handle_benches::spread::Spread;
use handle_benches::{sets, usage};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Length of an answer of the echo, that of a usual answer.
const ANSWER_LEN: usize = 287;
/// Reported percentiles.
const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// Measures the time from the schedule of a request to its answer, at half of the highest rate.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the set, which is built if it is missing.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Datapath of the servers.
    #[arg(long, value_enum, default_value_t = ServePath::Uring)]
    kind: ServePath,
    /// Turns of each server.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Requests per second; by default half of the highest rate of `handled`.
    #[arg(long)]
    rate: Option<f64>,
    /// Requests per second for signed answers, more than the server can sign.
    #[arg(long, default_value_t = 5000.0)]
    certified_rate: f64,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    ServeHandled { records: u64, key: PathBuf, kind: ServePath, core: usize },
    #[command(hide = true)]
    ServeEcho { kind: ServePath, core: usize },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.role {
        None => measure(&args),
        Some(Role::ServeHandled { records, key, kind, core }) => {
            let server = certified::start(sets::directory(*records), key.clone(), kind.datapath(), *core)?;
            serve::announce(*server.addresses().first().context("an address")?)?;
            serve::wait_for_end();
            server.stop()
        }
        Some(Role::ServeEcho { kind, core }) => {
            let mut echo = EchoServer::of_len(ANSWER_LEN);
            serve::on_path(kind.kind(), Some(*core), move |path| echo.turn(path))
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "at least one round");
    drop(sets::open(args.records)?);
    let directory = tempfile::tempdir()?;
    let key = certified::key_file(directory.path())?.display().to_string();
    let (kind, core) = (args.kind.name().to_owned(), args.common.server_core.to_string());
    let arguments = ["serve-handled".to_owned(), args.records.to_string(), key, kind.clone(), core.clone()];
    let handled = Child::start(&arguments)?;
    let echo = Child::start(&["serve-echo".to_owned(), kind, core])?;
    let plain = Requests::new(args.records, 1 << 20, RequestKind::Plain, 1)?;
    let certified = Requests::new(args.records, 1 << 14, RequestKind::Certified, 1)?;
    serve::pin(Some(args.common.client_core));
    let rate = match args.rate {
        Some(rate) => rate,
        None => {
            let mut flood = Flood::open(&plain, Shape::single(WINDOW), is_success)?;
            flood.run(handled.address, Duration::from_secs(1))?;
            flood.run(handled.address, Duration::from_secs(2))?.rate() / 2.0
        }
    };
    let duration = Duration::from_secs_f64(args.seconds);
    let mut paced = PacedClient::open(&plain)?;
    let mut turns: [Vec<PacedTimes>; 3] = [vec![], vec![], vec![]];
    for _ in 0..args.rounds {
        turns[0].push(paced.run(echo.address, rate, duration, None)?);
        turns[1].push(paced.run(handled.address, rate, duration, None)?);
        let background = BackgroundLoad { requests: &certified, rate: args.certified_rate };
        let times = paced.run(handled.address, rate, duration, Some(background))?;
        ensure!(times.background > 0, "nothing was signed");
        turns[2].push(times);
        // Requests still waiting for a signature must not count in the next turn.
        std::thread::sleep(Duration::from_millis(500));
    }
    report(args, rate, &turns);
    Ok(())
}

fn report(args: &Args, rate: f64, turns: &[Vec<PacedTimes>; 3]) {
    let names = ["echo", "handled", "handled, signing"];
    let at = |server: usize, percentile: f64| -> Vec<f64> {
        turns[server].iter().map(|times| times.percentile_us(percentile)).collect()
    };
    // Round by round, because the load of the machine changes both.
    let ratio = |server: usize, base: usize, percentile: f64| {
        let pairs = at(server, percentile).into_iter().zip(at(base, percentile));
        Spread::of(pairs.map(|(server, base)| server / base).collect::<Vec<_>>())
    };
    let (tail, signing) = (ratio(1, 0, 99.9), ratio(2, 1, 99.0));
    if args.common.json {
        let servers: Vec<_> = (0..3)
            .map(|server| {
                let us: Vec<_> =
                    PERCENTILES.map(|percentile| Spread::of(at(server, percentile)).to_json()).into();
                let lost: u64 = turns[server].iter().map(|times| times.lost).sum();
                json!({ "server": names[server], "percentiles": PERCENTILES, "us": us, "lost": lost })
            })
            .collect();
        let report = json!({
            "machine": usage::machine(), "kind": args.kind.name(), "records": args.records, "rate": rate,
            "servers": servers, "p999_to_echo": tail.to_json(), "p99_signing_to_not": signing.to_json(),
        });
        println!("{report:#}");
        return;
    }
    println!("{}", usage::machine());
    println!(
        "{}, {} records, {rate:.0} requests/s, {} rounds of {} s; microseconds, median (min to max)",
        args.kind.name(),
        args.records,
        args.rounds,
        args.seconds
    );
    let mut table = Table::new();
    table.set_header(["server", "p50", "p90", "p99", "p99.9", "lost", "sent", "signed or refused"]);
    for (server, name) in names.iter().enumerate() {
        let mut row = vec![(*name).to_owned()];
        row.extend(PERCENTILES.map(|percentile| format!("{:.1}", Spread::of(at(server, percentile)))));
        for count in [
            |times: &PacedTimes| times.lost,
            |times: &PacedTimes| times.sent,
            |times: &PacedTimes| times.background,
        ] {
            row.push(turns[server].iter().map(count).sum::<u64>().to_string());
        }
        table.add_row(row);
    }
    println!("{table}");
    println!("p99.9 of handled to that of the echo: {tail:.2}");
    println!("p99 while signing to that without: {signing:.2}");
}
