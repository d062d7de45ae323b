//! Compares echoes and `handled` over both datapaths, name servers, `handled` over TCP, and signed
//! answers with the key alone.
//!
//! All servers run in separate processes on one core, and the load runs on another core. The
//! servers take turns under the same load, in alternating order. The result is one table.

mod connections;
pub(super) mod dns;
pub(super) mod report;
pub(super) mod scenario;
mod signed;

use self::dns::NameServer;
use self::report::ReportHead;
use self::scenario::{Load, Result, SCENARIOS, Scenario, TurnArgs, take_turns};
use anyhow::{Context as _, ensure};
use clap::Subcommand;
use handle_benches::answers::Answerer;
use handle_benches::args::BenchArgs;
use handle_benches::flood::{Flood, WINDOW};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child, ServePath};
use handle_benches::turns::ServerTurn;
use handle_benches::{certified, sets};
use handle_worker::config::ServerLimits;
use handle_snapshot::PublishedSet;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Compares echoes, `handled` and name servers: single datagrams, trains, TCP, signed answers.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the set, which is built if it is missing.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Names in the zone of the name servers, at most the number of records.
    #[arg(long, default_value_t = 1_000_000)]
    names: u64,
    #[command(flatten)]
    turns: TurnArgs,
    /// Outstanding requests in single datagrams.
    #[arg(long, default_value_t = WINDOW)]
    window: usize,
    /// Outstanding requests in trains.
    #[arg(long, default_value_t = 4096)]
    train_window: usize,
    /// Different requests, sent in a cycle.
    #[arg(long, default_value_t = 1 << 20)]
    requests: usize,
    /// TCP connections.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Outstanding requests on each connection.
    #[arg(long, default_value_t = 256)]
    connection_window: usize,
    /// Run only loads whose name contains this text.
    #[arg(long)]
    only: Option<String>,
    /// Leave out the name servers.
    #[arg(long)]
    no_dns: bool,
    /// Most datagrams and trains in a batch of a server.
    #[arg(long, default_value_t = ServerLimits::default().batch_datagrams)]
    batch_datagrams: usize,
    /// Most datagrams in a batch of a server, counting those in trains.
    #[arg(long, default_value_t = ServerLimits::default().batch_segments)]
    batch_segments: usize,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    Handled { records: u64, kind: ServePath, core: usize, batch_datagrams: usize, batch_segments: usize },
    #[command(hide = true)]
    Signed { records: u64, kind: ServePath, key: PathBuf, core: usize },
    #[command(hide = true)]
    Echo { kind: ServePath, core: usize, batch_datagrams: usize, batch_segments: usize },
}

/// A server that takes part in a scenario.
pub(super) struct Contestant {
    pub(super) name: String,
    /// Name of the server with which it is compared.
    pub(super) ceiling: Option<String>,
    pub(super) pid: u32,
    pub(super) address: SocketAddr,
    pub(super) speaks_dns: bool,
}

pub(crate) fn run(mut args: Args) -> anyhow::Result<()> {
    match args.role.take() {
        None => measure(&args),
        Some(Role::Signed { records, kind, key, core }) => {
            certified::serve(sets::directory(records), key, kind.datapath(), core)
        }
        Some(Role::Handled { records, kind, core, batch_datagrams, batch_segments }) => {
            serve::handled(records, kind, core, limits(batch_datagrams, batch_segments))
        }
        Some(Role::Echo { kind, core, batch_datagrams, batch_segments }) => {
            let mut echo = serve::EchoServer::of_noted_lens();
            let limits = limits(batch_datagrams, batch_segments);
            serve::on_path_with(kind.kind(), Some(core), &limits, move |path| echo.turn(path))
        }
    }
}

/// Returns the usual limits with capacity for the answers of a batch.
pub(super) fn limits(batch_datagrams: usize, batch_segments: usize) -> ServerLimits {
    let usual = ServerLimits::default();
    let outbox_datagrams = usual.outbox_datagrams.max(2 * batch_segments);
    let outbox_bytes = usual.outbox_bytes.max(512 * batch_segments);
    ServerLimits { batch_datagrams, batch_segments, outbox_datagrams, outbox_bytes, ..usual }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(args.turns.rounds > 0, "at least one round");
    ensure!(args.requests <= 1 << 20, "at most 1048576 requests: their number shares 32 bits with a length");
    let set = sets::open(args.records)?;
    let mut requests = Requests::new(args.records, args.requests, RequestKind::Plain, 1)?;
    let lens = answer_lens(&set, &requests);
    let usual_len = lens.iter().sum::<usize>() / lens.len().max(1);
    requests.note_answer_lens(&lens);
    let one_len = requests.most_frequent_lens(&lens);
    drop(set);

    let (children, mut contestants) = start_ours(args)?;
    let names = args.names.min(args.records);
    let name_servers = if args.no_dns { Vec::new() } else { start_name_servers(args, names, usual_len) };
    contestants.extend(name_servers.iter().map(|server| Contestant {
        name: server.name.to_owned(),
        ceiling: None,
        pid: server.pid(),
        address: server.address,
        speaks_dns: true,
    }));
    let is_wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let signers = is_wanted(signed::NAME).then(|| signed::start(args)).transpose()?;
    let queries = dns::queries(names, args.requests);
    serve::pin(Some(args.common.client_core));
    let load = ScenarioLoad {
        turns: &args.turns,
        window: args.window,
        train_window: args.train_window,
        server_core: args.common.server_core,
    };
    let mut results = Vec::new();
    for scenario in SCENARIOS.iter().filter(|scenario| is_wanted(scenario.name)) {
        let requests = match scenario.load {
            Load::OneLength => &one_len,
            Load::AnyLength => &requests,
        };
        results.extend(run_scenario(&load, scenario, &contestants, requests, &queries)?);
    }
    if is_wanted(connections::NAME) {
        results.extend(connections::run(args, &contestants, &requests)?);
    }
    drop((children, name_servers));
    if let Some(signers) = signers {
        results.extend(signed::run(args, &signers)?);
    }
    let head = ReportHead {
        records: args.records,
        answer_len: usual_len,
        turns: &args.turns,
        ceiling: "the echo of the same datapath; of signed answers, the key alone on the same core",
    };
    match args.common.json {
        true => println!("{:#}", report::to_json(&head, &results)),
        false => report::print(&head, &results),
    }
    Ok(())
}

/// Returns the lengths of the answers to `requests` from `set`.
pub(super) fn answer_lens(set: &PublishedSet, requests: &Requests) -> Vec<usize> {
    let mut answerer = Answerer::new(set);
    (0..requests.len()).map(|at| answerer.one(requests, at)).collect()
}

fn start_ours(args: &Args) -> anyhow::Result<(Vec<Child>, Vec<Contestant>)> {
    let tail =
        [args.common.server_core, args.batch_datagrams, args.batch_segments].map(|number| number.to_string());
    let (mut children, mut contestants) = (Vec::new(), Vec::new());
    for path in [ServePath::Uring, ServePath::Portable] {
        let kind = path.name().to_owned();
        if let Err(error) = serve::open_loopback(path.kind()) {
            eprintln!("{kind}: left out, not available: {error}");
            continue;
        }
        let echo = format!("echo, {kind}");
        for (name, echo_of, role) in [
            (echo.clone(), None, vec!["echo".to_owned()]),
            (format!("handled, {kind}"), Some(echo), vec!["handled".to_owned(), args.records.to_string()]),
        ] {
            let child = Child::start(&[role, vec![kind.clone()], tail.to_vec()].concat())
                .with_context(|| format!("cannot start {name}"))?;
            let (pid, address) = (child.pid(), child.address);
            contestants.push(Contestant { name, ceiling: echo_of, pid, address, speaks_dns: false });
            children.push(child);
        }
    }
    Ok((children, contestants))
}

fn start_name_servers(args: &Args, names: u64, answer_len: usize) -> Vec<NameServer> {
    let mut servers = Vec::new();
    for program in dns::PROGRAMS {
        match dns::start_authoritative(program, names, answer_len, args.common.server_core) {
            Ok(server) => servers.push(server),
            Err(error) => eprintln!("{}: left out: {error:#}", program.name),
        }
    }
    servers
}

/// The load of all scenarios.
#[derive(Clone, Copy)]
pub(super) struct ScenarioLoad<'a> {
    pub(super) turns: &'a TurnArgs,
    /// Outstanding requests in single datagrams.
    pub(super) window: usize,
    /// Outstanding requests in trains.
    pub(super) train_window: usize,
    pub(super) server_core: usize,
}

/// Runs all rounds of one scenario.
pub(super) fn run_scenario(
    args: &ScenarioLoad<'_>,
    scenario: &Scenario,
    contestants: &[Contestant],
    requests: &Requests,
    queries: &Requests,
) -> anyhow::Result<Vec<Result>> {
    let shape = scenario.shape(args.window, args.train_window);
    let mut floods = [
        Flood::open(requests, shape, handle_benches::flood::is_success)?,
        Flood::open(queries, shape, handle_benches::dns::is_success)?,
    ];
    let participants: Vec<_> =
        contestants.iter().filter(|contestant| scenario.with_dns || !contestant.speaks_dns).collect();
    let turns = take_turns(args.turns, participants.len(), |at, seconds| {
        let contestant = participants[at];
        let flood = &mut floods[usize::from(contestant.speaks_dns)];
        ServerTurn::measure(flood, (contestant.pid, contestant.address), args.server_core, seconds)
            .with_context(|| format!("{}: {}", scenario.name, contestant.name))
    })?;
    let position = |name: &str| participants.iter().position(|contestant| contestant.name == name);
    let results = participants.iter().enumerate().map(|(at, contestant)| Result {
        load: scenario.name,
        server: contestant.name.clone(),
        turns: turns[at].clone(),
        ceiling: contestant.ceiling.as_deref().and_then(position).map(|at| turns[at].clone()),
    });
    Ok(results.collect())
}
