//! Time from the acknowledgement of a change until every worker of `handled` answers with it.
//!
//! The store with its publisher, and `handled`, run in separate processes. This process loads
//! `handled` fully, in turns with and without changes, and asks every worker for the acknowledged
//! changes. Then it measures durable creations, a merge of all layers, a rebuild, and the memory of
//! the store's process.

pub(crate) mod keeper;
pub(crate) mod probe;

use self::keeper::Keeper;
use self::probe::Probe;
use anyhow::{Context as _, ensure};
use clap::Subcommand;
use handle_benches::flood::{Flood, Shape, WINDOW, is_success};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child, ServePath};
use handle_benches::turns::{ServerTurn, share, share_by_cpu, spread};
use handle_benches::usage;
use handle_worker::config::ServerLimits;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Time after which an unanswered request is lost.
const LOST_AFTER: Duration = Duration::from_millis(500);

/// Measures how soon changes are visible, and their cost.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the store.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Total number of changes.
    #[arg(long, default_value_t = 10_000)]
    changes: u64,
    /// Changes per second.
    #[arg(long, default_value_t = 300)]
    rate: u64,
    /// Turns with changes; there are as many without.
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// Records that the clients create, to measure durable creations per second.
    #[arg(long, default_value_t = 50_000)]
    creations: u64,
    /// Threads that create records.
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// Datapath of `handled`.
    #[arg(long, value_enum, default_value_t = ServePath::Uring)]
    kind: ServePath,
    /// Cores of the workers of `handled`.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    server_cores: Vec<usize>,
    /// Core of the load and of the store.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
    /// Outstanding requests.
    #[arg(long, default_value_t = WINDOW)]
    window: usize,
    /// Send trains of 16 to 64 requests, from this number of peers; by default single datagrams.
    /// Trains leave time for the store on the core of the load, so that the core of the server is
    /// the limit.
    #[arg(long)]
    peers: Option<u32>,
    /// Directory of the store and the set; by default a temporary directory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    Serve {
        directory: PathBuf,
        kind: ServePath,
        #[arg(value_delimiter = ',')]
        cores: Vec<usize>,
    },
    #[command(hide = true)]
    Keep { directory: PathBuf, records: u64, core: usize },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.role {
        None => measure(&args),
        Some(Role::Serve { directory, kind, cores }) => {
            serve::published(directory, *kind, cores.clone(), ServerLimits::default())
        }
        Some(Role::Keep { directory, records, core }) => keeper::keep(directory, *records, *core),
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.rounds > 0 && args.rate > 0 && !args.server_cores.is_empty(),
        "rounds, rate and server cores must not be zero"
    );
    let temp_dir = tempfile::tempdir()?;
    let dir = args.dir.clone().unwrap_or_else(|| temp_dir.path().to_owned());
    let mut keeper = Keeper::start(&dir, args.records, args.client_core)?;
    let imported = keeper.read_answer("imported")?;
    let published = keeper.read_answer("published")?;
    let cores = args.server_cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let set = dir.join("set").to_str().context("the path of the directory is not UTF-8")?.to_owned();
    let server = Child::start(&["serve".to_owned(), set, args.kind.name().to_owned(), cores])?;
    let requests = Requests::new(args.records, 1 << 20, RequestKind::Plain, 1)?;
    let mut probe = Probe::open(server.address, args.server_cores.len())?;
    serve::pin(Some(args.client_core));
    let shape = match args.peers {
        None => Shape::single(args.window),
        Some(peers) => Shape { peers, train_min: 16, train_max: 64, window: args.window },
    };
    let mut flood = Flood::open(&requests, shape, is_success)?.patient(LOST_AFTER);
    let core = args.server_cores[0];
    let changes_per_turn = (args.changes / args.rounds).max(1);
    let seconds = changes_per_turn as f64 / args.rate as f64;
    let mut turn = || ServerTurn::measure(&mut flood, (server.pid(), server.address), core, seconds.max(0.2));
    turn()?;
    let (mut quiet, mut changing, mut visible_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        quiet.push(turn()?);
        keeper.send(&format!("change {changes_per_turn} {}", args.rate))?;
        let (keeper, probe) = (&mut keeper, &mut probe);
        let (measured, seen) = std::thread::scope(|scope| {
            let probing = scope.spawn(move || probe.follow(keeper.records, || keeper.next_acknowledgement()));
            let measured = turn();
            let seen = probing.join().map_err(|_| anyhow::anyhow!("the probe panicked"));
            (measured, seen)
        });
        changing.push(measured?);
        visible_ns.extend(seen??);
    }
    let resident_after_changes = keeper.ask("memory")?;
    let created = keeper.ask(&format!("create {} {}", args.creations, args.clients))?;
    let merged = keeper.ask("merge")?;
    let rebuilt = keeper.ask("rebuild")?;
    let resident = keeper.ask("memory")?;
    let status = keeper.ask("status")?;
    visible_ns.sort_unstable();
    let at = |share: f64| {
        let last = visible_ns.len().saturating_sub(1);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the list")]
        let index = (last as f64 * share).round() as usize;
        visible_ns.get(index).map_or(Duration::ZERO, |&ns| Duration::from_nanos(ns)).as_secs_f64() * 1e3
    };
    let lost = |turns: &[ServerTurn]| turns.iter().map(|turn| turn.totals.lost).sum::<u64>();
    let rate = spread(&quiet, ServerTurn::rate);
    let (by_rate, by_cpu) = (share(&changing, &quiet), share_by_cpu(&changing, &quiet));
    let busy = [spread(&quiet, ServerTurn::busy), spread(&changing, ServerTurn::busy)];
    let report = json!({
        "machine": usage::machine(), "kind": args.kind.name(), "records": args.records,
        "workers": args.server_cores.len(), "changes": visible_ns.len(), "changes_per_s": args.rate,
        "visible_ms": { "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) },
        "quiet_answers_per_s": rate.to_json(), "share": by_rate.to_json(), "share_by_cpu": by_cpu.to_json(),
        "quiet_busy": busy[0].to_json(), "changing_busy": busy[1].to_json(),
        "lost_quiet": lost(&quiet), "lost_changing": lost(&changing),
        "imported": imported, "published": published, "created": created, "merged": merged, "rebuilt": rebuilt,
        "resident_after_changes": resident_after_changes, "resident": resident,
        "status": serde_json::from_str::<serde_json::Value>(&status)?,
    });
    if args.json {
        println!("{report:#}");
        return Ok(());
    }
    println!("{}", usage::machine());
    println!(
        "{} records, {} workers, {} changes at {}/s under full load",
        args.records,
        args.server_cores.len(),
        visible_ns.len(),
        args.rate
    );
    println!(
        "visible in every worker after {:.1} ms (p50), {:.1} (p90), {:.1} (p99), {:.1} (max)",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    println!(
        "answers: {rate:.0}/s without changes; with them {by_rate:.3} of that, by CPU per answer {by_cpu:.3}"
    );
    println!("core of the server busy: {:.2} without changes, {:.2} with them", busy[0], busy[1]);
    println!("answers lost: {} without changes, {} with them", lost(&quiet), lost(&changing));
    println!("store: {imported}; first set: {published}; {created}");
    println!("merge of everything: {merged}; rebuild: {rebuilt}");
    println!(
        "memory of the store's process: {resident_after_changes} after the changes, {resident} after all"
    );
    println!("publishing: {}", report["status"]["counts"]);
    Ok(())
}
