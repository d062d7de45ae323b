//! The command line and its help.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use crate::judge::assertion::{Assertion, number};
use crate::load::names::NameTemplate;
use crate::load::phases;
use crate::load::recording::Speed;
use crate::load::stream::tls::KeyPin;
use crate::{AccessOrder, IdleStrategy, QuestionForm, RunOptions, StreamTransport};
use clap::{ArgGroup, Parser, Subcommand};
use clap_complete::Shell;
use handle_net::DatapathChoice;

use super::help;

/// Send load to a handle server, account for every answer, and report measurements.
#[derive(Debug, Parser)]
#[command(name = "handle-loadgen", version, after_help = help::EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send requests to a server and report the results.
    #[command(after_help = help::RUN, after_long_help = help::run_long())]
    Run(Box<RunArgs>),
    /// Find the highest rate at which a server meets the limits for loss and response time.
    #[command(after_help = help::FIND_MAX)]
    FindMax(Box<FindMaxArgs>),
    /// Compare the reports of runs, and tell real differences from noise.
    #[command(after_help = help::COMPARE)]
    Compare(CompareArgs),
    /// Send requests again that got a wrong answer.
    #[command(after_help = help::REPLAY)]
    Replay(ReplayArgs),
    /// Send hostile requests, check the server after each, and minimise those that break it.
    #[command(after_help = help::HOSTILE)]
    Hostile(HostileArgs),
    /// Convert the JSON report of a run to a self-contained HTML page.
    #[command(after_help = help::HTML)]
    Html {
        /// Report written by `run --json`.
        #[arg(value_name = "REPORT.json")]
        report: PathBuf,
        /// Output file; - is standard output.
        #[arg(long, short, value_name = "FILE", default_value = "-")]
        output: PathBuf,
    },
    /// Answer every request immediately, to measure without a server.
    #[command(after_help = help::ECHO)]
    Echo(EchoArgs),
    /// Measure the UDP limit of this machine: `run` against `echo`, one core each.
    #[command(after_help = help::LIMIT)]
    Limit(LimitArgs),
    /// Print completions for a shell.
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// The target, the questions and the transport.
#[derive(Clone, Debug, clap::Args)]
#[command(group = ArgGroup::new("source").multiple(true).required(true)
    .args(["handles", "snapshot", "template", "generate", "replay"]))]
#[command(group = ArgGroup::new("truth").args(["verify", "records", "first_pass"]))]
#[command(group = ArgGroup::new("trust").args(["insecure", "ca", "pin"]))]
pub(crate) struct AskArgs {
    /// The server, as host:port.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: String,
    /// Transport: udp, udp-trains, tcp, http, http-json or http-redirect.
    #[arg(long, value_name = "NAME", default_value = "udp")]
    pub(crate) transport: StreamTransport,
    /// Maximum number of connections of each thread, for connection transports [default: 16].
    #[arg(long, value_name = "N")]
    pub(crate) connections: Option<usize>,
    /// Maximum number of pending requests on a connection; with HTTP/2, of streams [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) pipeline: Option<usize>,
    /// Maximum number of requests on a connection before it is closed, 0 for no limit [default: 0].
    /// With 1, each request has its own connection.
    #[arg(long, value_name = "N")]
    pub(crate) per_connection: Option<u32>,
    /// HTTP/2 instead of HTTP/1.1, for transports over HTTP. Without TLS, the server has to expect
    /// it.
    #[arg(long)]
    pub(crate) http2: bool,
    /// TLS, for transports over HTTP: accept any certificate.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// TLS, for transports over HTTP: the certificate must have been issued for the host of
    /// --target by one in this file (PEM).
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// TLS, for transports over HTTP: the certificate must have the key with this digest, written
    /// as sha256//BASE64.
    #[arg(long, value_name = "DIGEST")]
    pub(crate) pin: Option<KeyPin>,
    /// Handles to ask for: one per line, or JSON records with a field "handle".
    #[arg(long, value_name = "FILE")]
    pub(crate) handles: Option<PathBuf>,
    /// Directory of a published set: source of handles, unless others are given, and of values for
    /// --verify.
    #[arg(long, value_name = "DIR")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Handles from a template with number ranges, like 10.5072/test-{1..5000}.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["handles", "generate", "replay"])]
    pub(crate) template: Option<NameTemplate>,
    /// Number of generated handles, with the lengths and characters of real ones.
    #[arg(long, value_name = "N", value_parser = parse_rate, conflicts_with_all = ["handles", "replay"])]
    pub(crate) generate: Option<NonZeroU64>,
    /// Requests of a capture (pcap or pcapng), or handles of an access log, in their order.
    #[arg(long, value_name = "FILE", conflicts_with = "handles")]
    pub(crate) replay: Option<PathBuf>,
    /// UDP port of the requests in a capture, with --replay. Default: the port of the target.
    #[arg(long, value_name = "PORT", requires = "replay", conflicts_with_all = ["handles", "template", "generate"])]
    pub(crate) replay_port: Option<u16>,
    /// Maximum number of handles to choose from; a larger source is sampled at random.
    #[arg(long, value_name = "N", default_value_t = RunOptions::HANDLES_MAX, conflicts_with = "replay")]
    pub(crate) handles_max: usize,
    /// Order of handles: uniform, zipf, zipf:EXPONENT, sequential, scan:PERCENT or churn:REQUESTS.
    #[arg(long, value_name = "NAME", default_value_t = AccessOrder::Uniform, conflicts_with = "replay")]
    pub(crate) pattern: AccessOrder,
    /// Form of requests: WEIGHT=ATTRIBUTE+ATTRIBUTE, like 90=plain; repeat it for a mix.
    #[arg(long = "mix", value_name = "FORM")]
    pub(crate) forms: Vec<QuestionForm>,
    /// Time after which an answer counts as late.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "1s")]
    pub(crate) timeout: Duration,
    /// Compare answers with the set in --snapshot, also while new sets are published.
    #[arg(long, requires = "snapshot")]
    pub(crate) verify: bool,
    /// Compare answers with these records, one line of JSON each.
    #[arg(long, value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
    /// Ask for each handle once before the run, and compare later answers with those.
    #[arg(long)]
    pub(crate) first_pass: bool,
    /// With --verify: how long after its replacement a set is still accepted.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "100ms", requires = "verify")]
    pub(crate) staleness: Duration,
    /// With --verify, --records or --first-pass: compare one of N answers.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "truth")]
    pub(crate) verify_every: u32,
    /// Public key of the server (pubkey.bin): compared answers to certified requests (--mix
    /// certify) must be signed with it.
    #[arg(long, value_name = "FILE", requires = "truth")]
    pub(crate) server_key: Option<PathBuf>,
    /// Take the public key from the site record that the server returns. This proves only that the
    /// server signs with the key that it names itself.
    #[arg(long, conflicts_with = "server_key", requires = "truth")]
    pub(crate) ask_server_key: bool,
    /// Seed for the choice of handles; the same seed gives the same handles.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of threads, each with its own socket.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// On loopback: number of source addresses, from 127.0.0.2 on.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) sources: u16,
    /// Cores to run on, assigned to threads in turn, like 1,2.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// How datagrams are moved: `io_uring` (uring), `recvmmsg` and `sendmmsg` (portable), or the
    /// first of these that works (auto). In an open loop, auto is portable, which keeps the
    /// schedule better.
    #[arg(long, value_name = "auto|uring|portable", default_value_t = DatapathChoice::Auto)]
    pub(crate) datapath: DatapathChoice,
    /// How to wait for the next request: spin uses a whole core and is most exact, sleep leaves the
    /// core to others, auto sleeps until shortly before.
    #[arg(long, value_name = "auto|spin|sleep", default_value_t = IdleStrategy::Auto)]
    pub(crate) pacing: IdleStrategy,
}

#[derive(Clone, Debug, clap::Args)]
#[command(group = ArgGroup::new("load").required(true)
    .args(["rate", "ramp", "steps", "schedule", "speed", "max"]))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Open loop: requests per second over all threads, like 20000, 20k or 1.5M.
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: Option<NonZeroU64>,
    /// Open loop: rate that changes linearly, like 1k..50k.
    #[arg(long, value_name = "RATE..RATE", value_parser = parse_ramp)]
    pub(crate) ramp: Option<(f64, f64)>,
    /// Open loop: these rates one after another for equal times, like 10k,20k,40k.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = phases::rate)]
    pub(crate) steps: Vec<f64>,
    /// Open loop: phases from a file, each a line of TIME RATE or TIME RATE RATE.
    #[arg(long, value_name = "FILE")]
    pub(crate) schedule: Option<PathBuf>,
    /// With --replay: speed of the recording; x1 keeps its times, x10 is ten times as fast, max
    /// sends as fast as answers arrive.
    #[arg(long, value_name = "xN|max", requires = "replay")]
    pub(crate) speed: Option<Speed>,
    /// Closed loop: send as fast as answers arrive.
    #[arg(long)]
    pub(crate) max: bool,
    /// With --max: number of pending requests of each thread.
    #[arg(long, value_name = "N", default_value_t = RunOptions::WINDOW,
        conflicts_with_all = ["rate", "ramp", "steps", "schedule", "speed"])]
    pub(crate) window: usize,
    /// Send the requests of an open loop at random times (Poisson process) instead of equal
    /// intervals.
    #[arg(long, conflicts_with_all = ["max", "speed"])]
    pub(crate) poisson: bool,
    /// Duration, like 500ms, 10s or 5m; schedules and recordings have their own end.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10s",
        conflicts_with_all = ["schedule", "speed"])]
    pub(crate) duration: Duration,
    /// Run for five seconds in total: 4 s of load, with a timeout of 400 ms.
    #[arg(long, conflicts_with_all = ["duration", "timeout", "schedule", "speed"])]
    pub(crate) quick: bool,
    /// Fail unless this holds, like p99<5ms, loss<0.01% or answered>=20k; may be given more than
    /// once.
    #[arg(long = "assert", value_name = "ASSERTION")]
    pub(crate) assertions: Vec<Assertion>,
    /// Write the report as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the results of each second as CSV; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the report as a self-contained HTML page; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write response times by second as an HdrHistogram log; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) histogram_log: Option<PathBuf>,
    /// Serve metrics for Prometheus on this address during the run.
    #[arg(long, value_name = "ADDR")]
    pub(crate) prometheus: Option<SocketAddr>,
    /// Write the first wrong answers with their requests, for `handle-loadgen replay`; - is
    /// standard output.
    #[arg(long, value_name = "FILE", requires = "truth")]
    pub(crate) mismatches: Option<PathBuf>,
    /// Maximum number of wrong answers that are kept.
    #[arg(long, value_name = "N", default_value_t = crate::judge::verify::MISMATCHES_MAX, requires = "truth")]
    pub(crate) keep_mismatches: usize,
    /// Report the result as a share of a measured limit: the JSON of `handle-loadgen limit`.
    #[arg(long, value_name = "FILE")]
    pub(crate) share_of: Option<PathBuf>,
    /// Print one line per second also on a terminal, instead of the live view.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Print neither lines nor the live view during the run.
    #[arg(long, short, conflicts_with = "plain")]
    pub(crate) quiet: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FindMaxArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Maximum share of requests without an answer in time.
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "0.1%")]
    pub(crate) loss: f64,
    /// Maximum 99th percentile of response times.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10ms")]
    pub(crate) p99: Duration,
    /// Lowest rate of the search.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "1k")]
    pub(crate) from: NonZeroU64,
    /// Highest rate of the search.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "100M")]
    pub(crate) to: NonZeroU64,
    /// Precision: the gap to a rate that is too high, as a share.
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "2%")]
    pub(crate) precision: f64,
    /// Duration of a trial.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "2s")]
    pub(crate) trial: Duration,
    /// Duration of a warm-up run, which does not count; 0s for none.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "2s")]
    pub(crate) warm_up: Duration,
    /// Duration of each confirmation run.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10s")]
    pub(crate) confirm: Duration,
    /// Number of confirmation runs.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) repeat: u32,
    /// Write the result as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print no line for each trial.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// JSON report of a run.
    #[arg(value_name = "A.json")]
    pub(crate) a: PathBuf,
    /// JSON report of another run.
    #[arg(value_name = "B.json")]
    pub(crate) b: PathBuf,
    /// Further runs of side A.
    #[arg(long, value_name = "FILE")]
    pub(crate) more_a: Vec<PathBuf>,
    /// Further runs of side B.
    #[arg(long, value_name = "FILE")]
    pub(crate) more_b: Vec<PathBuf>,
    /// Seed for the resampling; the same seed gives the same intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the comparison as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// File written by `run --mismatches`.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The server, as host:port.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: String,
    /// Use connections instead of datagrams.
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Time limit for each answer.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "1s")]
    pub(crate) timeout: Duration,
    /// Write the results as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HostileArgs {
    /// The server, as host:port.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: String,
    /// Use connections instead of datagrams.
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Handle of the plain question between two cases.
    #[arg(long, value_name = "HANDLE")]
    pub(crate) probe: String,
    /// Duration.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "60s")]
    pub(crate) duration: Duration,
    /// Maximum number of cases; 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cases: u64,
    /// Maximum number of cases per second.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) rate: u32,
    /// Time limit for the answer to the plain question, which is asked up to three times.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "500ms")]
    pub(crate) timeout: Duration,
    /// Time limit for the recovery of a broken server.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10s")]
    pub(crate) recovery: Duration,
    /// Stop after this many findings.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) findings: usize,
    /// Seed for the cases; the same seed gives the same cases.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Confirm that the operator of the target agrees, if its address is neither loopback nor
    /// private.
    #[arg(long)]
    pub(crate) i_am_allowed_to: bool,
    /// Write the report as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Print no line per second.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EchoArgs {
    /// Address to listen on; with port 0 the system chooses one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2641")]
    pub(crate) listen: SocketAddr,
    /// Length of each answer in bytes.
    #[arg(long, value_name = "N")]
    pub(crate) answer_len: Option<usize>,
    /// How datagrams are moved: `io_uring` (uring), `recvmmsg` and `sendmmsg` (portable), or the
    /// first of these that works (auto).
    #[arg(long, value_name = "auto|uring|portable", default_value_t = DatapathChoice::Auto)]
    pub(crate) datapath: DatapathChoice,
    /// Core to run on.
    #[arg(long, value_name = "N")]
    pub(crate) core: Option<usize>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Length of each request in bytes.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) request_len: usize,
    /// Length of each answer in bytes.
    #[arg(long, value_name = "N", default_value_t = 180)]
    pub(crate) answer_len: usize,
    /// Duration.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "3s")]
    pub(crate) duration: Duration,
    /// Number of pending requests.
    #[arg(long, value_name = "N", default_value_t = RunOptions::WINDOW)]
    pub(crate) window: usize,
    /// How datagrams are moved: `io_uring` (uring), `recvmmsg` and `sendmmsg` (portable), or the
    /// first of these that works (auto).
    #[arg(long, value_name = "auto|uring|portable", default_value_t = DatapathChoice::Auto)]
    pub(crate) datapath: DatapathChoice,
    /// Core of the client and core of the server. Default: the first two usable cores, if there are
    /// two.
    #[arg(long, value_name = "ASK,ANSWER", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Write the result as JSON, for `run --share-of`; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print no line per second.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    let rate = phases::rate(text)?;
    if rate.fract() != 0.0 {
        return Err("expected a whole number".to_owned());
    }
    NonZeroU64::new(rate as u64).ok_or_else(|| "must be greater than 0".to_owned())
}

fn parse_ramp(text: &str) -> Result<(f64, f64), String> {
    let (from, to) = text.split_once("..").ok_or("expected two rates, as in 1k..50k")?;
    Ok((phases::rate(from)?, phases::rate(to)?))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = number(text, &[("", 1.0), ("%", 0.01)]).filter(|share| *share <= 1.0);
    share.ok_or_else(|| "expected a share, as 0.1% or 0.001".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn rates_and_shares_have_units() {
        for (text, rate) in [("1", 1), ("20000", 20_000), ("20k", 20_000), ("1.5M", 1_500_000), ("0.1k", 100)]
        {
            assert_eq!(parse_rate(text).unwrap().get(), rate, "{text}");
        }
        for text in ["", "0", "1.5", "k", "-5", "1m", "inf", "nan"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        assert_eq!(parse_ramp("0..1.5k"), Ok((0.0, 1500.0)));
        assert!(parse_ramp("5").is_err() && parse_ramp("5..").is_err());
        assert_eq!(parse_share("1%"), Ok(0.01));
        assert!(parse_share("101%").is_err() && parse_share("x").is_err());
    }

    #[test]
    fn run_needs_names_and_a_load() {
        let parse =
            |args: &str| Args::try_parse_from(args.split(' ')).map(|_| ()).map_err(|error| error.exit_code());
        let run = "handle-loadgen run --target 127.0.0.1:2641";
        for rest in [
            "--handles f --rate 5",
            "--snapshot d --max --verify --window 9",
            "--template 10.1/{1..9} --ramp 1..5k --poisson --assert p99<5ms",
            "--generate 100k --steps 1k,2k,3k --mix 9=plain --mix 1=miss+case --first-pass",
            "--replay f.pcap --speed x10",
            "--replay f.pcap --rate 100",
            "--handles f --schedule s --transport tcp --pipeline 4",
            "--replay f.pcap --replay-port 2641 --max",
            "--handles f --rate 5 --records r --verify-every 9 --server-key k --mix certify --mismatches m",
            "--handles f --rate 5 --quick",
        ] {
            assert_eq!(parse(&format!("{run} {rest}")), Ok(()), "{rest}");
        }
        for rest in [
            "--max",
            "--handles f",
            "--handles f --max --rate 5",
            "--handles f --rate 5 --window 9",
            "--handles f --max --verify",
            "--handles f --max --poisson",
            "--replay f --speed x1 --poisson",
            "--handles f --rate 5 --ramp 1..2",
            "--handles f --rate 5 --mix 1=nonsense",
            "--handles f --rate 5 --assert nonsense",
            "--handles f --rate 5 --quick --duration 1s",
            "--handles f --template 10.1/a --rate 5",
            // Options that would have no effect, above all those that would leave something
            // unchecked.
            "--handles f --rate 5 --server-key k",
            "--handles f --rate 5 --ask-server-key",
            "--handles f --rate 5 --verify-every 2",
            "--handles f --rate 5 --mismatches m",
            "--handles f --rate 5 --records r --staleness 1s",
            "--handles f --rate 5 --records r --first-pass",
            "--handles f --schedule s --duration 5s",
            "--replay f --speed x1 --duration 5s",
            "--replay f --rate 5 --pattern zipf",
            "--replay f --rate 5 --handles-max 5",
            "--handles f --rate 5 --replay-port 5",
        ] {
            assert_eq!(parse(&format!("{run} {rest}")), Err(2), "{rest}");
        }
    }
}
