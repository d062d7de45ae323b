//! What can be said on the command line, and the help that explains it.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use handle_loadgen::RunOptions;
use handle_net::Choice;

const EXIT_CODES: &str = "\
Exit codes:
  0  good
  1  something failed: a file, a socket, the network
  2  the command line makes no sense
  3  the run does not count, or an answer was wrong; the report says why";

/// Asks a handle server many questions, counts every answer, and says what was measured.
#[derive(Debug, Parser)]
#[command(name = "handle-loadgen", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sends requests to a server over UDP and reports what became of them.
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Answers everything at once, to see what is left without a server.
    #[command(after_help = ECHO_HELP)]
    Echo(EchoArgs),
    /// Measures what this machine's UDP stack can do: `run` against `echo`, one core each.
    #[command(after_help = LIMIT_HELP)]
    Limit(LimitArgs),
    /// Writes completions for a shell to standard output.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

const RUN_HELP: &str = "\
With --rate, request i is due at start + i/rate whatever happened to earlier ones (open loop).
Response time counts from then, service time from when it was really sent. Requests that could
not be sent in time are counted as not sent, and more than 0.1 % of them make the run invalid.
With --max each thread keeps a window of requests waiting (closed loop): that finds the highest
rate, but its times say little, as a slow server is asked less.

Examples:
  handle-loadgen run --target 127.0.0.1:2641 --handles names.txt --rate 50k --duration 30s
  handle-loadgen run --target [::1]:2641 --snapshot /var/lib/handle --rate 10000 --verify
  handle-loadgen run --target 10.0.0.5:2641 --handles names.txt --max --threads 2 --cores 2,3
  handle-loadgen limit --json limit.json
  handle-loadgen run --target 127.0.0.1:2641 --snapshot set --max --share-of limit.json

Exit codes:
  0  good
  1  something failed: a file, a socket, the network
  2  the command line makes no sense
  3  the run does not count (not sent, behind schedule, no answer, own drops), or an answer is wrong";

const LIMIT_HELP: &str = "\
Use the sizes of the real traffic: a request is 60 bytes and its handle. The result is an upper
bound for a server on one core that sends and receives single datagrams.

Examples:
  handle-loadgen limit
  handle-loadgen limit --answer-len 400 --datapath portable --json limit.json";

const ECHO_HELP: &str = "\
Without --answer-len each request comes back as it is. With it, the answer has that many bytes and
is a successful one without meaning.

Examples:
  handle-loadgen echo --listen 127.0.0.1:2641 --answer-len 180 --core 0
  handle-loadgen run --target 127.0.0.1:2641 --handles names.txt --max --cores 1";

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The server, as host:port.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: String,
    /// Handles to ask for: one in each line, or JSON records with a member "handle".
    #[arg(long, value_name = "FILE", required_unless_present = "snapshot")]
    pub(crate) handles: Option<PathBuf>,
    /// The directory of a published set: names, unless --handles is given, and values for --verify.
    #[arg(long, value_name = "DIR")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Most handles to choose from; of more, a fair sample is taken.
    #[arg(long, value_name = "N", default_value_t = RunOptions::HANDLES_MAX)]
    pub(crate) handles_max: usize,
    /// Open loop: requests a second over all threads, like 20000, 20k or 1.5M.
    #[arg(long, value_name = "N", value_parser = parse_rate, required_unless_present = "max")]
    pub(crate) rate: Option<NonZeroU64>,
    /// Closed loop: as fast as answers come.
    #[arg(long, conflicts_with = "rate")]
    pub(crate) max: bool,
    /// With --max: requests waiting at a time, for each thread.
    #[arg(long, value_name = "N", default_value_t = RunOptions::WINDOW, conflicts_with = "rate")]
    pub(crate) window: usize,
    /// For how long, like 500ms, 10s or 5m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    pub(crate) duration: Duration,
    /// After which an answer is late.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub(crate) timeout: Duration,
    /// Compares every answer with the set in --snapshot, also while new sets are published.
    #[arg(long, requires = "snapshot")]
    pub(crate) verify: bool,
    /// With --verify: how long after a set was replaced the server may still answer from it.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "100ms")]
    pub(crate) staleness: Duration,
    /// Chooses the handles; the same seed asks for the same ones.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads, each with a socket of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Cores to run on, given to threads in turn, like 1,2.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// How datagrams are sent and received: over `io_uring` (uring), with `recvmmsg` and `sendmmsg`
    /// (portable), or the first of these that works (auto).
    #[arg(long, value_name = "auto|uring|portable", default_value_t = Choice::Auto)]
    pub(crate) datapath: Choice,
    /// Writes the report as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Says which share of a measured limit was reached: the JSON of `handle-loadgen limit`.
    #[arg(long, value_name = "FILE")]
    pub(crate) share_of: Option<PathBuf>,
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
    #[arg(long, value_name = "auto|uring|portable", default_value_t = Choice::Auto)]
    pub(crate) datapath: Choice,
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
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "3s")]
    pub(crate) duration: Duration,
    /// Requests waiting at a time.
    #[arg(long, value_name = "N", default_value_t = RunOptions::WINDOW)]
    pub(crate) window: usize,
    /// How datagrams are sent and received: over `io_uring` (uring), with `recvmmsg` and `sendmmsg`
    /// (portable), or the first of these that works (auto).
    #[arg(long, value_name = "auto|uring|portable", default_value_t = Choice::Auto)]
    pub(crate) datapath: Choice,
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

/// A number and its unit, which must be one of `units`.
fn parse_with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.parse().ok()?;
    Some(number * scale).filter(|number| number.is_finite())
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("m", 60.0), ("h", 3600.0)];
    let seconds = parse_with_unit(text, &units).ok_or("write a number and its unit: 500ms, 10s, 5m, 1h")?;
    // To the nanosecond: 0.1 s is no exact number.
    Duration::try_from_secs_f64((seconds * 1e9).round() / 1e9).map_err(|error| error.to_string())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    let units = [("", 1.0), ("k", 1e3), ("M", 1e6)];
    let rate = parse_with_unit(text, &units).ok_or("write requests a second: 20000, 20k or 1.5M")?;
    if rate.fract() != 0.0 {
        return Err("only whole requests a second".to_owned());
    }
    NonZeroU64::new(rate as u64).ok_or_else(|| "must be above 0".to_owned())
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
    fn times_and_rates_have_units() {
        for (text, ms) in [("10s", 10_000), ("500ms", 500), ("0.5s", 500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1 s", "1d", "1..5s", "9e9s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for (text, rate) in [("1", 1), ("20000", 20_000), ("20k", 20_000), ("1.5M", 1_500_000), ("0.1k", 100)]
        {
            assert_eq!(parse_rate(text).unwrap().get(), rate, "{text}");
        }
        for text in ["", "0", "1.5", "k", "-5", "1m", "inf", "nan"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn run_needs_names_and_a_load() {
        let parse =
            |args: &str| Args::try_parse_from(args.split(' ')).map(|_| ()).map_err(|error| error.exit_code());
        let run = "handle-loadgen run --target 127.0.0.1:2641";
        assert_eq!(parse(&format!("{run} --handles f --rate 5")), Ok(()));
        assert_eq!(parse(&format!("{run} --snapshot d --max --verify --window 9")), Ok(()));
        for rest in [
            "--max",
            "--handles f",
            "--handles f --max --rate 5",
            "--handles f --rate 5 --window 9",
            "--handles f --max --verify",
        ] {
            assert_eq!(parse(&format!("{run} {rest}")), Err(2), "{rest}");
        }
    }
}
