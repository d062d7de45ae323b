//! `handle-cache` beside `handled` with the same records, and beside resolvers of DNS that answer
//! from their caches; and its rate of names that it does not have.
//!
//! As in `side-by-side`, all servers run in separate processes on one core, the load runs on
//! another core, and the servers take turns under the same load.

mod resolvers;
mod servers;

use super::side_by_side::report::{self, ReportHead};
use super::side_by_side::scenario::{Load, Result, SCENARIOS, TurnArgs};
use super::side_by_side::{Contestant, ScenarioLoad, answer_lens, limits, run_scenario};
use anyhow::{Context as _, ensure};
use clap::Subcommand;
use handle_benches::args::BenchArgs;
use handle_benches::delayed::DelayedServer;
use handle_benches::dns::DnsResponder;
use handle_benches::flood::{Flood, Shape};
use handle_benches::records::RecordGenerator;
use handle_benches::requests::{RequestKind, Requests, request};
use handle_benches::serve::{self, Child, ServePath};
use handle_benches::sets;
use handle_benches::spread::Spread;
use handle_benches::turns::{ServerTurn, share, spread};
use handle_worker::config::ServerLimits;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Compares `handle-cache` with `handled` and with resolvers of DNS, and measures unknown names.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the cache and in the set, which is built if it is missing.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Names in the caches of the resolvers of DNS.
    #[arg(long, default_value_t = 100_000)]
    names: u64,
    #[command(flatten)]
    turns: TurnArgs,
    /// Outstanding requests in single datagrams: what fits in the default buffer of a socket.
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Outstanding requests in trains.
    #[arg(long, default_value_t = 16_384)]
    train_window: usize,
    /// Different requests, sent in a cycle.
    #[arg(long, default_value_t = 1 << 20)]
    requests: usize,
    /// Names in each round that the cache does not have; 0 to leave this part out.
    #[arg(long, default_value_t = 50_000)]
    cold_names: u64,
    /// Requests for such names outstanding.
    #[arg(long, default_value_t = 512)]
    cold_window: usize,
    /// Time after which the service answers that has these names, in milliseconds.
    #[arg(long, default_value_t = 20)]
    delay_ms: u64,
    /// Leave out the resolvers of DNS, Unbound and Knot Resolver (Debian packages `unbound`,
    /// `knot-resolver`).
    #[arg(long)]
    no_dns: bool,
    /// Measure only names that the cache does not have.
    #[arg(long)]
    only_cold: bool,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    Handled { records: u64, kind: ServePath, core: usize },
    #[command(hide = true)]
    Full { records: u64, kind: ServePath, core: usize, upstream: SocketAddr },
    #[command(hide = true)]
    Empty { kind: ServePath, core: usize, upstream: SocketAddr },
    #[command(hide = true)]
    Delayed { delay_ms: u64, core: usize },
    #[command(hide = true)]
    DnsUpstream { answer_len: usize, core: usize },
}

/// Time after which a request for an unknown name is lost: more than the cache takes at most.
const COLD_TIMEOUT: Duration = Duration::from_secs(6);
/// Limits of the servers in trains, as in the published figures of `side-by-side`.
fn train_limits() -> ServerLimits {
    let usual = ServerLimits::default();
    limits(usual.batch_datagrams, usual.batch_segments)
}

pub(crate) fn run(mut args: Args) -> anyhow::Result<()> {
    match args.role.take() {
        None => measure(&args),
        Some(Role::Handled { records, kind, core }) => serve::handled(records, kind, core, train_limits()),
        Some(Role::Full { records, kind, core, upstream }) => {
            servers::serve_full(records, kind, core, upstream, train_limits())
        }
        Some(Role::Empty { kind, core, upstream }) => servers::serve_empty(kind, core, upstream),
        Some(Role::Delayed { delay_ms, core }) => serve_delayed(delay_ms, core),
        Some(Role::DnsUpstream { answer_len, core }) => {
            let mut responder = DnsResponder::of_len(answer_len);
            serve::on_path(ServePath::Portable.kind(), Some(core), move |path| responder.turn(path))
        }
    }
}

fn serve_delayed(delay_ms: u64, core: usize) -> anyhow::Result<()> {
    let server = DelayedServer::open(Duration::from_millis(delay_ms))?;
    let (address, stop) = (server.address()?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            serve::pin(Some(core));
            server.serve(&stop)
        });
        serve::announce(address)?;
        serve::wait_for_end();
        stop.store(true, Ordering::Relaxed);
        serving.join().map_err(|_| anyhow::anyhow!("the server panicked"))?
    })
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(args.turns.rounds > 0, "at least one round");
    let hits = if args.only_cold { None } else { Some(measure_hits(args)?) };
    let cold = if args.cold_names == 0 { Vec::new() } else { measure_cold(args)? };
    if args.common.json {
        let hits = hits.as_ref().map(|hits| hits.to_json(args));
        println!(
            "{:#}",
            json!({ "hits": hits, "unknown_names": cold.iter().map(ColdResult::to_json).collect::<Vec<_>>() })
        );
        return Ok(());
    }
    if let Some(hits) = &hits {
        hits.print(args);
    }
    if !cold.is_empty() {
        println!(
            "unknown names, answered by another service after {} ms, {} outstanding, {} rounds of {} names:",
            args.delay_ms, args.cold_window, args.turns.rounds, args.cold_names
        );
    }
    for ColdResult { name, turns } in &cold {
        println!(
            "{name}: {:.0} names/s, {:.1} us of processor time each, {} lost",
            spread(turns, ServerTurn::rate),
            spread(turns, ServerTurn::cpu_us),
            lost(turns)
        );
    }
    Ok(())
}

/// The datapaths that the kernel has.
fn paths() -> impl Iterator<Item = ServePath> {
    [ServePath::Uring, ServePath::Portable].into_iter().filter(|path| {
        let opened = serve::open_loopback(path.kind());
        opened.inspect_err(|error| eprintln!("{}: left out, not available: {error}", path.name())).is_ok()
    })
}

/// Rates of records that the servers have.
struct HitResults {
    answer_len: usize,
    results: Vec<Result>,
}

fn measure_hits(args: &Args) -> anyhow::Result<HitResults> {
    let set = sets::open(args.records)?;
    let requests = Requests::new(args.records, args.requests, RequestKind::Plain, 1)?;
    let lens = answer_lens(&set, &requests);
    let answer_len = lens.iter().sum::<usize>() / lens.len().max(1);
    drop(set);
    let core = args.common.server_core;
    let (mut children, mut contestants) = (Vec::new(), Vec::new());
    for path in paths() {
        let [records, core, kind] = [args.records.to_string(), core.to_string(), path.name().to_owned()];
        let handled = format!("handled, {kind}");
        let own = Child::start(&["handled".to_owned(), records.clone(), kind.clone(), core.clone()])
            .with_context(|| format!("cannot start {handled}"))?;
        eprintln!("handle-cache, {kind}: filling its cache with {records} records");
        let cache = Child::start(&["full".to_owned(), records, kind.clone(), core, own.address.to_string()])
            .with_context(|| format!("cannot start handle-cache, {kind}"))?;
        for (child, name, ceiling) in
            [(own, handled.clone(), None), (cache, format!("handle-cache, {kind}"), Some(handled))]
        {
            let (pid, address) = (child.pid(), child.address);
            contestants.push(Contestant { name, ceiling, pid, address, speaks_dns: false });
            children.push(child);
        }
    }
    let mut resolvers = Vec::new();
    if !args.no_dns {
        let [len, client] = [answer_len, args.common.client_core].map(|number| number.to_string());
        let upstream = Child::start(&["dns-upstream".to_owned(), len, client])?;
        for program in resolvers::PROGRAMS {
            resolvers.push(resolvers::start(program, args.names, upstream.address, core)?);
        }
        children.push(upstream);
    }
    contestants.extend(resolvers.iter().map(|server| Contestant {
        name: server.name.to_owned(),
        ceiling: None,
        pid: server.pid(),
        address: server.address,
        speaks_dns: true,
    }));
    let queries = resolvers::queries(args.names, args.requests);
    serve::pin(Some(args.common.client_core));
    let load = ScenarioLoad {
        turns: &args.turns,
        window: args.window,
        train_window: args.train_window,
        server_core: core,
    };
    let mut results = Vec::new();
    for scenario in SCENARIOS.iter().filter(|scenario| matches!(scenario.load, Load::AnyLength)) {
        results.extend(run_scenario(&load, scenario, &contestants, &requests, &queries)?);
    }
    drop((children, resolvers));
    Ok(HitResults { answer_len, results })
}

impl HitResults {
    fn head<'a>(&self, args: &'a Args) -> ReportHead<'a> {
        ReportHead {
            records: args.records,
            answer_len: self.answer_len,
            turns: &args.turns,
            ceiling: "handled with the same records over the same datapath",
        }
    }

    /// The rates of the caches as multiples of those of the resolvers of DNS.
    fn multiples(&self) -> Vec<(String, Spread)> {
        let is_resolver =
            |result: &&Result| resolvers::PROGRAMS.iter().any(|program| program.name == result.server);
        let mut multiples = Vec::new();
        for cache in self.results.iter().filter(|result| result.ceiling.is_some()) {
            for resolver in self.results.iter().filter(is_resolver).filter(|other| other.load == cache.load) {
                let text = format!("{}: {} beside {}", cache.load, cache.server, resolver.server);
                multiples.push((text, share(&cache.turns, &resolver.turns)));
            }
        }
        multiples
    }

    fn print(&self, args: &Args) {
        report::print(&self.head(args), &self.results);
        for (text, multiple) in self.multiples() {
            println!("{text}: {multiple:.2} times");
        }
    }

    fn to_json(&self, args: &Args) -> Value {
        let multiples = self.multiples();
        let multiples: Vec<Value> = multiples
            .iter()
            .map(|(text, multiple)| json!({ "compared": text, "times": multiple.to_json() }))
            .collect();
        json!({ "report": report::to_json(&self.head(args), &self.results), "multiples": multiples })
    }
}

/// Rates of names that the cache does not have.
struct ColdResult {
    name: String,
    turns: Vec<ServerTurn>,
}

impl ColdResult {
    fn to_json(&self) -> Value {
        json!({
            "server": self.name,
            "names_per_s": spread(&self.turns, ServerTurn::rate).to_json(),
            "cpu_us": spread(&self.turns, ServerTurn::cpu_us).to_json(),
            "lost": lost(&self.turns),
        })
    }
}

fn lost(turns: &[ServerTurn]) -> u64 {
    turns.iter().map(|turn| turn.totals.lost).sum()
}

fn measure_cold(args: &Args) -> anyhow::Result<Vec<ColdResult>> {
    let (core, client) = (args.common.server_core, args.common.client_core);
    let generator = RecordGenerator::new()?;
    let mut results = Vec::new();
    for path in paths() {
        let delay = Child::start(&["delayed".to_owned(), args.delay_ms.to_string(), client.to_string()])?;
        let kind = path.name().to_owned();
        let name = format!("handle-cache, {kind}");
        let role = ["empty".to_owned(), kind, core.to_string(), delay.address.to_string()];
        let cache = Child::start(&role).with_context(|| format!("cannot start {name}"))?;
        let mut turns = Vec::new();
        let mut next = 0;
        for _ in 0..args.turns.rounds {
            // More than are answered, so that no name is asked for twice.
            let count = args.cold_names + 2 * args.cold_window as u64;
            let names = (next..next + count).map(|number| {
                let mut handle = Vec::new();
                generator.handle(number, &mut handle);
                request(&handle, RequestKind::Plain, i32::try_from(number).unwrap_or(i32::MAX))
            });
            let requests = Requests::from_datagrams(names);
            next += count;
            let flood =
                Flood::open(&requests, Shape::single(args.cold_window), handle_benches::flood::is_success)?;
            let mut flood = flood.patient(COLD_TIMEOUT);
            turns.push(ServerTurn::of(cache.pid(), core, || {
                serve::pin(Some(client));
                Ok(flood.run_for_answers(cache.address, args.cold_names)?)
            })?);
        }
        results.push(ColdResult { name, turns });
    }
    Ok(results)
}
