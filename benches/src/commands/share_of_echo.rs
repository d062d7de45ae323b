//! Rate of `handled` as a share of the rate of an echo over the same datapath.
//!
//! `handled` and an echo with the same sizes run on one core in separate processes, and take turns
//! under the same load from another core.

use anyhow::ensure;
use clap::Subcommand;
use comfy_table::Table;
use handle_benches::answers::Answerer;
use handle_benches::args::BenchArgs;
use handle_benches::flood::{Flood, Shape, WINDOW, is_success};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child, EchoServer, ServePath};
use handle_benches::turns::{ServerTurn, share, share_by_cpu, spread, user_us};
use handle_benches::usage;
use handle_benches::{answers, sets};
use handle_worker::config::ServerLimits;
use serde_json::json;

/// Measures the rate of `handled` as a share of the rate of an echo, and its user time.
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
    /// Outstanding requests.
    #[arg(long, default_value_t = WINDOW)]
    window: usize,
    /// Different requests, sent in a cycle.
    #[arg(long, default_value_t = 1 << 20)]
    requests: usize,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Copy, Subcommand)]
enum Role {
    #[command(hide = true)]
    ServeHandled { records: u64, kind: ServePath, core: usize },
    #[command(hide = true)]
    ServeEcho { answer_len: usize, kind: ServePath, core: usize },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.role {
        None => measure(&args),
        Some(Role::ServeHandled { records, kind, core }) => {
            serve::handled(records, kind, core, ServerLimits::default())
        }
        Some(Role::ServeEcho { answer_len, kind, core }) => {
            let mut echo = EchoServer::of_len(answer_len);
            serve::on_path(kind.kind(), Some(core), move |path| echo.turn(path))
        }
    }
}

fn turn(flood: &mut Flood<'_>, server: &Child, args: &Args, seconds: f64) -> anyhow::Result<ServerTurn> {
    ServerTurn::measure(flood, (server.pid(), server.address), args.common.server_core, seconds)
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "at least one round");
    let set = sets::open(args.records)?;
    let requests = Requests::new(args.records, args.requests, RequestKind::Plain, 1)?;
    let answer_len = usual_answer_len(&set, &requests);
    drop(set);
    let (kind, core) = (args.kind.name().to_owned(), args.common.server_core.to_string());
    let start =
        |role: &str, number: String| Child::start(&[role.to_owned(), number, kind.clone(), core.clone()]);
    let handled = start("serve-handled", args.records.to_string())?;
    let echo = start("serve-echo", answer_len.to_string())?;
    serve::pin(Some(args.common.client_core));
    let mut flood = Flood::open(&requests, Shape::single(args.window), is_success)?;
    let (mut handled_turns, mut echo_turns) = (Vec::new(), Vec::new());
    for server in [&handled, &echo] {
        turn(&mut flood, server, args, (args.seconds / 4.0).max(0.2))?;
    }
    for round in 0..args.rounds {
        // Alternating cancels slow changes of the machine.
        for is_echo in [round % 2 == 0, round % 2 == 1] {
            let (server, turns) =
                if is_echo { (&echo, &mut echo_turns) } else { (&handled, &mut handled_turns) };
            turns.push(turn(&mut flood, server, args, args.seconds)?);
        }
    }
    drop((handled, echo));
    report(args, answer_len, &handled_turns, &echo_turns);
    Ok(())
}

/// Returns the mean length of an answer.
fn usual_answer_len(set: &handle_snapshot::PublishedSet, requests: &Requests) -> usize {
    let mut answerer = Answerer::new(set);
    let batches = 128;
    let len: usize = (0..batches).map(|n| answerer.batch(requests, n * answers::BATCH_LEN)).sum();
    len / (batches * answers::BATCH_LEN)
}

fn report(args: &Args, answer_len: usize, handled: &[ServerTurn], echo: &[ServerTurn]) {
    let (share, cpu_share) = (share(handled, echo), share_by_cpu(handled, echo));
    let rows = [("handled", handled), ("echo", echo)].map(|(name, turns)| {
        let rate = spread(turns, ServerTurn::rate);
        let lost: u64 = turns.iter().map(|turn| turn.totals.lost).sum();
        let (busy, idle) = (spread(turns, ServerTurn::busy), spread(turns, |turn| turn.idle));
        (name, rate, spread(turns, ServerTurn::cpu_us), user_us(turns), busy, idle, lost)
    });
    if args.common.json {
        let servers = rows.map(|(name, rate, cpu, user, busy, idle, lost)| {
            json!({
                "server": name, "answers_per_s": rate.to_json(), "cpu_us": cpu.to_json(), "user_us": user,
                "busy": busy.to_json(), "idle": idle.to_json(), "lost": lost,
            })
        });
        let report = json!({
            "machine": usage::machine(), "kind": args.kind.name(), "records": args.records,
            "answer_len": answer_len, "rounds": args.rounds, "seconds": args.seconds,
            "share": share.to_json(), "share_by_cpu": cpu_share.to_json(), "servers": servers,
        });
        println!("{report:#}");
        return;
    }
    println!("{}", usage::machine());
    println!(
        "{}, {} records, answers of {answer_len} bytes, {} rounds of {} s; median (min to max)",
        args.kind.name(),
        args.records,
        args.rounds,
        args.seconds
    );
    let mut table = Table::new();
    table.set_header([
        "server",
        "answers/s",
        "CPU us/answer",
        "user us/answer",
        "server busy",
        "core idle",
        "lost",
    ]);
    for (name, rate, cpu, user, busy, idle, lost) in rows {
        table.add_row([
            name.to_owned(),
            format!("{rate:.0}"),
            format!("{cpu:.3}"),
            format!("{user:.3}"),
            format!("{busy:.2}"),
            format!("{idle:.2}"),
            lost.to_string(),
        ]);
    }
    println!("{table}");
    println!("share of the echo rate: {share:.3}; by CPU per answer: {cpu_share:.3}");
}
