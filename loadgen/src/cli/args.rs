//! What can be said on the command line, and the help that explains it.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Parser, Subcommand};
use clap_complete::Shell;
use handle_loadgen::assertion::{Assertion, number};
use handle_loadgen::names::NameTemplate;
use handle_loadgen::recording::Speed;
use handle_loadgen::{AccessOrder, Idle, QuestionForm, RunOptions, StreamTransport, phases};
use handle_net::DatapathChoice;

use super::help;

/// Asks a handle server many questions, counts every answer, and says what was measured.
#[derive(Debug, Parser)]
#[command(name = "handle-loadgen", version, after_help = help::EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sends requests to a server and reports what became of them.
    #[command(after_help = help::RUN, after_long_help = help::run_long())]
    Run(Box<RunArgs>),
    /// Finds the highest rate at which a server loses little and answers soon.
    #[command(after_help = help::FIND_MAX)]
    FindMax(Box<FindMaxArgs>),
    /// Compares the reports of runs: what differs, and what may as well be chance.
    #[command(after_help = help::COMPARE)]
    Compare(CompareArgs),
    /// Sends requests again whose answers were wrong.
    #[command(after_help = help::REPLAY)]
    Replay(ReplayArgs),
    /// Sends hostile requests, looks whether the server is alive after each, and minimises what breaks it.
    #[command(after_help = help::HOSTILE)]
    Hostile(HostileArgs),
    /// Makes a page of the JSON of a run, which needs nothing else.
    #[command(after_help = help::HTML)]
    Html {
        /// What `run --json` wrote.
        #[arg(value_name = "REPORT.json")]
        report: PathBuf,
        /// The page; - is standard output.
        #[arg(long, short, value_name = "FILE", default_value = "-")]
        output: PathBuf,
    },
    /// Answers everything at once, to see what is left without a server.
    #[command(after_help = help::ECHO)]
    Echo(EchoArgs),
    /// Measures what this machine's UDP stack can do: `run` against `echo`, one core each.
    #[command(after_help = help::LIMIT)]
    Limit(LimitArgs),
    /// Writes completions for a shell to standard output.
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Writes manual pages, one for each command.
    #[command(after_help = help::MAN)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
}

/// Whom to ask, for what, and how.
#[derive(Clone, Debug, clap::Args)]
#[command(group = ArgGroup::new("source").multiple(true).required(true)
    .args(["handles", "snapshot", "template", "generate", "replay"]))]
#[command(group = ArgGroup::new("truth").args(["verify", "records", "first_pass"]))]
pub(crate) struct AskArgs {
    /// The server, as host:port.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: String,
    /// How requests travel: udp, udp-trains, tcp, http or http-json.
    #[arg(long, value_name = "NAME", default_value = "udp")]
    pub(crate) transport: StreamTransport,
    /// Over connections: how many of them each thread has, at most [default: 16].
    #[arg(long, value_name = "N")]
    pub(crate) connections: Option<usize>,
    /// Over connections: requests that wait on one of them, at most [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) pipeline: Option<usize>,
    /// Over connections: requests of one of them in all, 0 for no end [default: 0]. With 1, each has a connection of
    /// its own.
    #[arg(long, value_name = "N")]
    pub(crate) per_connection: Option<u32>,
    /// Handles to ask for: one in each line, or JSON records with a member "handle".
    #[arg(long, value_name = "FILE")]
    pub(crate) handles: Option<PathBuf>,
    /// The directory of a published set: names, unless others are given, and values for --verify.
    #[arg(long, value_name = "DIR")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Names that differ in a number, like 10.5072/test-{1..5000}.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["handles", "generate", "replay"])]
    pub(crate) template: Option<NameTemplate>,
    /// So many made-up names, with the lengths and characters of real ones.
    #[arg(long, value_name = "N", value_parser = parse_rate, conflicts_with_all = ["handles", "replay"])]
    pub(crate) generate: Option<NonZeroU64>,
    /// Requests of a capture (pcap or pcapng), or names of an access log, in their order.
    #[arg(long, value_name = "FILE", conflicts_with = "handles")]
    pub(crate) replay: Option<PathBuf>,
    /// With --replay of a capture: the UDP port to which its requests went, unless it is that of the target.
    #[arg(long, value_name = "PORT", requires = "replay", conflicts_with_all = ["handles", "template", "generate"])]
    pub(crate) replay_port: Option<u16>,
    /// Most handles to choose from; of more, a fair sample is taken.
    #[arg(long, value_name = "N", default_value_t = RunOptions::HANDLES_MAX, conflicts_with = "replay")]
    pub(crate) handles_max: usize,
    /// Which is asked for next: uniform, zipf, zipf:EXPONENT or sequential.
    #[arg(long, value_name = "NAME", default_value_t = AccessOrder::Uniform, conflicts_with = "replay")]
    pub(crate) pattern: AccessOrder,
    /// How is asked: WEIGHT=ATTRIBUTE+ATTRIBUTE, like 90=plain; again for a mix.
    #[arg(long = "mix", value_name = "FORM")]
    pub(crate) forms: Vec<QuestionForm>,
    /// After which an answer is late.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "1s")]
    pub(crate) timeout: Duration,
    /// Compares answers with the set in --snapshot, also while new sets are published.
    #[arg(long, requires = "snapshot")]
    pub(crate) verify: bool,
    /// Compares answers with these records, a line of JSON each.
    #[arg(long, value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
    /// Asks for each handle once before the run, and compares answers with what came then.
    #[arg(long)]
    pub(crate) first_pass: bool,
    /// With --verify: how long after a set was replaced the server may still answer from it.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "100ms", requires = "verify")]
    pub(crate) staleness: Duration,
    /// With --verify, --records or --first-pass: compares one answer of so many.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "truth")]
    pub(crate) verify_every: u32,
    /// The public key of the server (pubkey.bin): answers that are asked to be certified (--mix certify), and are compared,
    /// must be signed with it.
    #[arg(long, value_name = "FILE", requires = "truth")]
    pub(crate) server_key: Option<PathBuf>,
    /// Asks the server for its site record, and takes the key in it: shows that it signs with the key it names itself.
    #[arg(long, conflicts_with = "server_key", requires = "truth")]
    pub(crate) ask_server_key: bool,
    /// Chooses the handles; the same seed asks for the same ones.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads, each with a socket of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// On the loopback: requests leave, and connections begin, from so many addresses, 127.0.0.2 and following.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) sources: u16,
    /// Cores to run on, given to threads in turn, like 1,2.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// How datagrams are sent and received: over `io_uring` (uring), with `recvmmsg` and `sendmmsg`
    /// (portable), or the first of these that works (auto); in an open loop auto is portable, which is more on time.
    #[arg(long, value_name = "auto|uring|portable", default_value_t = DatapathChoice::Auto)]
    pub(crate) datapath: DatapathChoice,
    /// How the time until the next request is spent: looking at the clock (spin) takes a whole core and is most
    /// exact, sleeping leaves the core to others, and auto sleeps until shortly before.
    #[arg(long, value_name = "auto|spin|sleep", default_value_t = Idle::Auto)]
    pub(crate) pacing: Idle,
}

#[derive(Clone, Debug, clap::Args)]
#[command(group = ArgGroup::new("load").required(true)
    .args(["rate", "ramp", "steps", "schedule", "speed", "max"]))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Open loop: requests a second over all threads, like 20000, 20k or 1.5M.
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: Option<NonZeroU64>,
    /// Open loop: from one rate evenly to another, like 1k..50k.
    #[arg(long, value_name = "RATE..RATE", value_parser = parse_ramp)]
    pub(crate) ramp: Option<(f64, f64)>,
    /// Open loop: these rates one after the other, each for its share of the time, like 10k,20k,40k.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = phases::rate)]
    pub(crate) steps: Vec<f64>,
    /// Open loop: phases of a file, each a line of TIME RATE or TIME RATE RATE.
    #[arg(long, value_name = "FILE")]
    pub(crate) schedule: Option<PathBuf>,
    /// With --replay: the times of the recording, x1, or so many times as fast, x10, or as fast as answers come,
    /// max.
    #[arg(long, value_name = "xN|max", requires = "replay")]
    pub(crate) speed: Option<Speed>,
    /// Closed loop: as fast as answers come.
    #[arg(long)]
    pub(crate) max: bool,
    /// With --max: requests waiting at a time, for each thread.
    #[arg(long, value_name = "N", default_value_t = RunOptions::WINDOW,
        conflicts_with_all = ["rate", "ramp", "steps", "schedule", "speed"])]
    pub(crate) window: usize,
    /// Requests of an open loop come at random (a Poisson process) instead of at equal distances.
    #[arg(long, conflicts_with_all = ["max", "speed"])]
    pub(crate) poisson: bool,
    /// For how long, like 500ms, 10s or 5m; a schedule and a recording have an end of their own.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10s",
        conflicts_with_all = ["schedule", "speed"])]
    pub(crate) duration: Duration,
    /// Five seconds from start to end: 4 s of load, answers late after 400 ms.
    #[arg(long, conflicts_with_all = ["duration", "timeout", "schedule", "speed"])]
    pub(crate) quick: bool,
    /// Fails unless this holds, like p99<5ms, loss<0.01% or answered>=20k; may be given several times.
    #[arg(long = "assert", value_name = "PROMISE")]
    pub(crate) assertions: Vec<Assertion>,
    /// Writes the report as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Writes what each second saw as CSV; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Writes the report as a page that needs nothing else; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Writes response times by second as a log of HdrHistogram; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) histogram_log: Option<PathBuf>,
    /// Answers Prometheus here while the run goes on.
    #[arg(long, value_name = "ADDR")]
    pub(crate) prometheus: Option<SocketAddr>,
    /// Writes the first wrong answers with their requests, for `handle-loadgen replay`; - is standard output.
    #[arg(long, value_name = "FILE", requires = "truth")]
    pub(crate) mismatches: Option<PathBuf>,
    /// Most wrong answers that are kept.
    #[arg(long, value_name = "N", default_value_t = handle_loadgen::verify::MISMATCHES_MAX, requires = "truth")]
    pub(crate) keep_mismatches: usize,
    /// Says which share of a measured limit was reached: the JSON of `handle-loadgen limit`.
    #[arg(long, value_name = "FILE")]
    pub(crate) share_of: Option<PathBuf>,
    /// A line a second also on a terminal, instead of the live view.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Neither a line a second nor the live view.
    #[arg(long, short, conflicts_with = "plain")]
    pub(crate) quiet: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FindMaxArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Requests without an answer in time, as a share of those sent, at most.
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "0.1%")]
    pub(crate) loss: f64,
    /// 99th percentile of response times, at most.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10ms")]
    pub(crate) p99: Duration,
    /// Where to begin.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "1k")]
    pub(crate) from: NonZeroU64,
    /// Where to end, if all is good.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "100M")]
    pub(crate) to: NonZeroU64,
    /// How near to a rate that is too high the result must be.
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "2%")]
    pub(crate) precision: f64,
    /// Length of a trial.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "2s")]
    pub(crate) trial: Duration,
    /// A run before all others whose result does not count; 0s for none.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "2s")]
    pub(crate) warm_up: Duration,
    /// Length of each run that confirms the result.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10s")]
    pub(crate) confirm: Duration,
    /// How many runs confirm it.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) repeat: u32,
    /// Writes the result as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// No line for each trial.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// The JSON of a run.
    #[arg(value_name = "A.json")]
    pub(crate) a: PathBuf,
    /// The JSON of another.
    #[arg(value_name = "B.json")]
    pub(crate) b: PathBuf,
    /// Further runs like A.
    #[arg(long, value_name = "FILE")]
    pub(crate) more_a: Vec<PathBuf>,
    /// Further runs like B.
    #[arg(long, value_name = "FILE")]
    pub(crate) more_b: Vec<PathBuf>,
    /// Draws the samples; the same seed gives the same intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Writes the comparison as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// What `run --mismatches` wrote.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The server, as host:port.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: String,
    /// Over connections instead of datagrams.
    #[arg(long)]
    pub(crate) tcp: bool,
    /// How long to wait for each answer.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "1s")]
    pub(crate) timeout: Duration,
    /// Writes what became of each as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HostileArgs {
    /// The server, as host:port.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: String,
    /// Over connections instead of datagrams.
    #[arg(long)]
    pub(crate) tcp: bool,
    /// The handle of the plain question between two cases.
    #[arg(long, value_name = "HANDLE")]
    pub(crate) probe: String,
    /// For how long.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "60s")]
    pub(crate) duration: Duration,
    /// Most cases; 0 for no end.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cases: u64,
    /// Most cases a second.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) rate: u32,
    /// How long the answer to the plain question may take; it is asked three times.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "500ms")]
    pub(crate) timeout: Duration,
    /// How long the server may take to come back after it broke.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "10s")]
    pub(crate) recovery: Duration,
    /// Ends after so many findings.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) findings: usize,
    /// Makes the cases; the same seed makes the same ones.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The target is neither a loopback nor a private address, and its operator agrees.
    #[arg(long)]
    pub(crate) i_am_allowed_to: bool,
    /// Writes the verdict as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Writes the verdict as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// No line a second.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EchoArgs {
    /// Where to listen; with port 0 the system chooses one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2641")]
    pub(crate) listen: SocketAddr,
    /// Bytes of each answer.
    #[arg(long, value_name = "N")]
    pub(crate) answer_len: Option<usize>,
    /// How datagrams are sent and received: over `io_uring` (uring), with `recvmmsg` and `sendmmsg`
    /// (portable), or the first of these that works (auto).
    #[arg(long, value_name = "auto|uring|portable", default_value_t = DatapathChoice::Auto)]
    pub(crate) datapath: DatapathChoice,
    /// The core to run on.
    #[arg(long, value_name = "N")]
    pub(crate) core: Option<usize>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Bytes of each request.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) request_len: usize,
    /// Bytes of each answer.
    #[arg(long, value_name = "N", default_value_t = 180)]
    pub(crate) answer_len: usize,
    /// For how long.
    #[arg(long, value_name = "TIME", value_parser = phases::duration, default_value = "3s")]
    pub(crate) duration: Duration,
    /// Requests waiting at a time.
    #[arg(long, value_name = "N", default_value_t = RunOptions::WINDOW)]
    pub(crate) window: usize,
    /// How datagrams are sent and received: over `io_uring` (uring), with `recvmmsg` and `sendmmsg`
    /// (portable), or the first of these that works (auto).
    #[arg(long, value_name = "auto|uring|portable", default_value_t = DatapathChoice::Auto)]
    pub(crate) datapath: DatapathChoice,
    /// The core that asks and the one that answers; the first two that may be used, if there are two.
    #[arg(long, value_name = "ASK,ANSWER", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Writes the result as JSON, for `run --share-of`; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// No line a second.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    let rate = phases::rate(text)?;
    if rate.fract() != 0.0 {
        return Err("only whole numbers".to_owned());
    }
    NonZeroU64::new(rate as u64).ok_or_else(|| "must be above 0".to_owned())
}

fn parse_ramp(text: &str) -> Result<(f64, f64), String> {
    let (from, to) = text.split_once("..").ok_or("write two rates, as in 1k..50k")?;
    Ok((phases::rate(from)?, phases::rate(to)?))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = number(text, &[("", 1.0), ("%", 0.01)]).filter(|share| *share <= 1.0);
    share.ok_or_else(|| "write a share, as 0.1% or 0.001".to_owned())
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
            // What would have no effect, and above all what would not be checked.
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
