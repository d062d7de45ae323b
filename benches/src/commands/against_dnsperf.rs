//! Compares the highest rates of `handle-loadgen` and dnsperf against equal servers.
//!
//! An echo of the handle protocol and one of DNS run on one core over the same datapath, with
//! requests and answers of the same lengths. dnsperf and `handle-loadgen` take turns on another
//! core and send single datagrams. Each runs with the number of outstanding requests that gives it
//! the highest rate with almost no loss. If the core of the servers is the limit, compare the
//! processor time per answer instead of the rates.

use anyhow::{Context as _, bail, ensure};
use clap::Subcommand;
use comfy_table::Table;
use handle_benches::args::BenchArgs;
use handle_benches::dns::{self, DnsResponder};
use handle_benches::serve::{self, Child, EchoServer, ServePath};
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use handle_loadgen::load::workload::REQUEST_OVERHEAD_LEN;
use handle_loadgen::{DatapathChoice, LoadPattern, NameOptions, RunOptions};
use serde_json::json;
use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Duration;
use tempfile::NamedTempFile;

/// Compares the highest rates of `handle-loadgen` and dnsperf against equal servers.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Datapath of the servers.
    #[arg(long, value_enum, default_value_t = ServePath::Uring)]
    kind: ServePath,
    /// Datapath of `handle-loadgen`: auto, uring or portable.
    #[arg(long, default_value_t = DatapathChoice::Auto)]
    datapath: DatapathChoice,
    /// Turns of each generator.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Numbers of outstanding requests to try; each generator runs with its fastest one.
    #[arg(long, value_delimiter = ',', default_value = "100,256,512,1024")]
    windows: Vec<usize>,
    /// Length of a request, in bytes.
    #[arg(long, default_value_t = 80)]
    request_len: usize,
    /// Length of an answer, in bytes.
    #[arg(long, default_value_t = 180)]
    answer_len: usize,
    #[command(flatten)]
    common: BenchArgs,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Copy, Subcommand)]
enum Role {
    #[command(hide = true)]
    ServeHandles { kind: ServePath, core: usize, answer_len: usize },
    #[command(hide = true)]
    ServeDns { kind: ServePath, core: usize, answer_len: usize },
}

/// A load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generator {
    Ours,
    Dnsperf,
}

/// One turn of one generator.
#[derive(Clone, Copy, Debug)]
struct GeneratorTurn {
    answers_per_s: f64,
    answers: u64,
    lost: u64,
    /// Processor time of the generator.
    generator: Usage,
    /// Processor time of the server.
    server: Usage,
    seconds: u64,
}

impl GeneratorTurn {
    fn cpu_us(&self) -> f64 {
        self.generator.total().as_secs_f64() * 1e6 / self.answers as f64
    }

    fn user_us(&self) -> f64 {
        self.generator.user.as_secs_f64() * 1e6 / self.answers as f64
    }

    /// Returns the processor time of the server per second. Near 1, the server is the limit and not
    /// the generator.
    fn server_busy(&self) -> f64 {
        self.server.total().as_secs_f64() / self.seconds as f64
    }
}

/// Answers that a generator received, and requests without one.
struct GeneratorTotals {
    answers_per_s: f64,
    answers: u64,
    lost: u64,
}

/// Largest acceptable share of lost requests.
const LOSS_MAX: f64 = 0.001;

/// Different names in the queries.
const NAMES: usize = 1000;
/// Digits of each name.
const DIGITS: usize = 9;
const ZONE: &str = "bench";

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.role {
        None => measure(&args),
        Some(Role::ServeHandles { kind, core, answer_len }) => {
            let mut echo = EchoServer::of_len(answer_len);
            serve::on_path(kind.kind(), Some(core), move |path| echo.turn(path))
        }
        Some(Role::ServeDns { kind, core, answer_len }) => {
            let mut responder = DnsResponder::of_len(answer_len);
            serve::on_path(kind.kind(), Some(core), move |path| responder.turn(path))
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0 && args.seconds > 0, "at least one round, and one second");
    ensure!(!args.windows.is_empty(), "at least one number of outstanding requests");
    let Some(version) = version() else {
        println!("skipped: dnsperf is not installed (Debian package dnsperf)");
        return Ok(());
    };
    let comparison = Comparison::open(args)?;
    let generators = [Generator::Ours, Generator::Dnsperf];
    let mut windows = [0; 2];
    for (generator, best) in generators.into_iter().zip(&mut windows) {
        let mut rate = 0.0;
        // The first number is the choice if all of them lose too much.
        for &window in &args.windows {
            let turn = comparison.turn(generator, window, 1)?;
            let is_sound = turn.lost as f64 <= LOSS_MAX * turn.answers as f64;
            if *best == 0 {
                *best = window;
            }
            if is_sound && turn.answers_per_s > rate {
                (rate, *best) = (turn.answers_per_s, window);
            }
        }
    }
    let mut turns = [Vec::new(), Vec::new()];
    for round in 0..args.rounds {
        // Alternating cancels slow changes of the machine.
        for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            turns[at].push(comparison.turn(generators[at], windows[at], args.seconds)?);
        }
    }
    report(args, &version, windows, &turns);
    Ok(())
}

/// Returns the version of dnsperf, if it is installed.
fn version() -> Option<String> {
    let output = Command::new("dnsperf").arg("-h").output().ok()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Version "))?;
    Some(line.trim().to_owned())
}

/// Both servers with their questions.
struct Comparison<'a> {
    args: &'a Args,
    handles: Child,
    dns: Child,
    names: NameOptions,
    questions: NamedTempFile,
}

impl<'a> Comparison<'a> {
    fn open(args: &'a Args) -> anyhow::Result<Self> {
        let start = |role: &str| {
            let options = [
                args.kind.name().to_owned(),
                args.common.server_core.to_string(),
                args.answer_len.to_string(),
            ];
            Child::start(&[vec![role.to_owned()], options.to_vec()].concat())
        };
        let handle_len = args.request_len.checked_sub(REQUEST_OVERHEAD_LEN + "10.5072/".len());
        let handle_len = handle_len.filter(|len| *len >= DIGITS).context("--request-len is too short")?;
        let handle = |n: usize| format!("10.5072/{n:0handle_len$}").into_bytes();
        let pad_len = args.request_len.checked_sub(dns::query(&[&name(0), "", ZONE], 0).len());
        let pad = "x"
            .repeat(pad_len.filter(|len| (1..=63).contains(len)).context("--request-len must be 35 to 97")?);
        let mut questions = NamedTempFile::new()?;
        for n in 0..NAMES {
            writeln!(questions, "{}.{pad}.{ZONE} TXT", name(n))?;
        }
        let comparison = Self {
            args,
            handles: start("serve-handles")?,
            dns: start("serve-dns")?,
            names: NameOptions::List((0..NAMES).map(handle).collect()),
            questions,
        };
        comparison.check(&dns::query(&[&name(0), &pad, ZONE], 1))?;
        Ok(comparison)
    }

    /// Checks the length of an answer to `query`, so that both servers send answers of the same
    /// length.
    fn check(&self, query: &[u8]) -> anyhow::Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.send_to(query, self.dns.address)?;
        let mut buffer = [0; 2048];
        let len = socket.recv(&mut buffer).context("the DNS responder does not answer")?;
        ensure!(dns::is_success(&buffer[..len]), "the DNS responder answers with an error");
        ensure!(query.len() == self.args.request_len, "questions have {} bytes", query.len());
        ensure!(len == self.args.answer_len, "answers have {len} bytes: --answer-len is too short");
        Ok(())
    }

    fn turn(&self, generator: Generator, window: usize, seconds: u64) -> anyhow::Result<GeneratorTurn> {
        let (server, usage_of_generator): (_, fn() -> anyhow::Result<Usage>) = match generator {
            Generator::Ours => (&self.handles, || Usage::of(std::process::id())),
            Generator::Dnsperf => (&self.dns, Usage::of_ended_children),
        };
        let before = (usage_of_generator()?, Usage::of(server.pid())?);
        let totals = match generator {
            Generator::Ours => self.turn_of_ours(window, seconds)?,
            Generator::Dnsperf => self.turn_of_dnsperf(window, seconds)?,
        };
        let GeneratorTotals { answers_per_s, answers, lost } = totals;
        let (generator, server) = (usage_of_generator()? - before.0, Usage::of(server.pid())? - before.1);
        Ok(GeneratorTurn { answers_per_s, answers, lost, generator, server, seconds })
    }

    fn turn_of_ours(&self, window: usize, seconds: u64) -> anyhow::Result<GeneratorTotals> {
        let options = RunOptions {
            load: LoadPattern::Closed { window },
            duration: Duration::from_secs(seconds),
            cores: vec![self.args.common.client_core],
            datapath: self.args.datapath,
            ..RunOptions::new(self.handles.address, self.names.clone())
        };
        let report = handle_loadgen::run(&options, |_| ControlFlow::Continue(()))?;
        ensure!(report.accounts.answered > 0, "the echo does not answer");
        let (answers_per_s, answers) = (report.answered_per_s, report.accounts.answered);
        Ok(GeneratorTotals { answers_per_s, answers, lost: report.accounts.sent - answers })
    }

    fn turn_of_dnsperf(&self, window: usize, seconds: u64) -> anyhow::Result<GeneratorTotals> {
        let SocketAddr::V4(address) = self.dns.address else { bail!("the responder listens on IPv4") };
        let mut command = Command::new("dnsperf");
        command.args(["-s", &address.ip().to_string(), "-p", &address.port().to_string(), "-t", "1"]);
        // Large buffers prevent losses while dnsperf does not read.
        command.args(["-l", &seconds.to_string(), "-q", &window.to_string(), "-b", "4096"]);
        command.arg("-d").arg(self.questions.path());
        // A child inherits the core of the thread that starts it.
        let core = self.args.common.client_core;
        let output = std::thread::scope(|scope| {
            let started = scope.spawn(|| {
                serve::pin(Some(core));
                command.output()
            });
            started.join().map_err(|_| anyhow::anyhow!("the thread that starts dnsperf panicked"))
        })??;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let numbers = ["Queries per second:", "Queries completed:", "Queries lost:"].map(number);
        let [Some(answers_per_s), Some(answers), Some(lost)] = numbers else {
            bail!("dnsperf ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "they are counts")]
        Ok(GeneratorTotals { answers_per_s, answers: answers as u64, lost: lost as u64 })
    }
}

fn name(n: usize) -> String {
    format!("{n:0DIGITS$}")
}

fn report(args: &Args, version: &str, windows: [usize; 2], turns: &[Vec<GeneratorTurn>; 2]) {
    let [ours, theirs] = turns;
    let compare = |ratio: fn(&GeneratorTurn, &GeneratorTurn) -> f64| {
        Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| ratio(ours, theirs)))
    };
    let by_rate = compare(|ours, theirs| ours.answers_per_s / theirs.answers_per_s);
    let by_cpu = compare(|ours, theirs| theirs.cpu_us() / ours.cpu_us());
    let names = ["handle-loadgen".to_owned(), format!("dnsperf {version}")];
    let rows = names.into_iter().zip(windows).zip(turns).map(|((name, window), turns)| {
        let spread = |figure: fn(&GeneratorTurn) -> f64| Spread::of(turns.iter().map(figure));
        let lost: u64 = turns.iter().map(|turn| turn.lost).sum();
        let times = [GeneratorTurn::cpu_us, GeneratorTurn::user_us, GeneratorTurn::server_busy].map(spread);
        (name, window, spread(|turn| turn.answers_per_s), times, lost)
    });
    let (kind, rounds, seconds) = (args.kind.name(), args.rounds, args.seconds);
    let (request_len, answer_len) = (args.request_len, args.answer_len);
    if args.common.json {
        let generators = rows.map(|(name, window, rate, [cpu, user, busy], lost)| {
            json!({
                "generator": name, "window": window, "answers_per_s": rate.to_json(), "cpu_us": cpu.to_json(),
                "user_us": user.to_json(), "server_busy": busy.to_json(), "lost": lost,
            })
        });
        let report = json!({
            "machine": usage::machine(), "servers": kind, "request_len": request_len, "answer_len": answer_len,
            "rounds": rounds, "seconds": seconds, "server_core": args.common.server_core,
            "client_core": args.common.client_core, "by_rate": by_rate.to_json(), "by_cpu": by_cpu.to_json(),
            "generators": generators.collect::<Vec<_>>(),
        });
        println!("{report:#}");
        return;
    }
    println!("{}", usage::machine());
    println!(
        "servers: {kind}, requests of {request_len} bytes, answers of {answer_len}, {rounds} rounds of {seconds} s; \
         median (min to max)"
    );
    let mut table = Table::new();
    table.set_header([
        "generator",
        "outstanding",
        "answers/s",
        "CPU us/answer",
        "user us",
        "server busy",
        "lost",
    ]);
    for (name, window, rate, times, lost) in rows {
        let [cpu, user, busy] = times.map(|spread| format!("{spread:.2}"));
        table.add_row([name, window.to_string(), format!("{rate:.0}"), cpu, user, busy, lost.to_string()]);
    }
    println!(
        "{table}\nhandle-loadgen is {by_rate:.2} times as fast, and an answer costs dnsperf {by_cpu:.2} times as much"
    );
}
