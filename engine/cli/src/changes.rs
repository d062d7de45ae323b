//! `hdl changes`: the changes of the store of a running handle-admin.

use crate::{ExitOutcome, output};
use anyhow::{Context as _, bail};
use serde_json::{Value as Json, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval at which a wait looks for a signal.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two tries to connect again.
const RETRY: Duration = Duration::from_secs(1);

/// Print the changes of the store, one line of JSON each.
///
/// Connects to a running handle-admin with `changes.socket`. Each line has a `cursor`; a later call
/// with --after goes on exactly behind it. A line with the kind `position` or `end` has nothing but
/// a cursor. Without --after, the changes from now on are printed: without --follow, that is the
/// present cursor.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl changes                          the present cursor, for a start
  hdl changes --follow --after 1f3870be274f6c49-17 --values
  hdl changes --after 1f3870be274f6c49-17 --prefix 10.1045 | jq -r .handle

With --follow, a lost connection is opened again, and nothing is printed twice. A signal ends it
after a whole line.

Exit codes: 0 good, 6 refused, as for a cursor that the log does not reach back to.")]
pub(crate) struct Args {
    /// The cursor of the last line of an earlier call.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Wait for further changes.
    #[arg(long)]
    follow: bool,
    /// Only handles with this prefix, as 10.1045, and the prefix itself.
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Print the public values of each record, as they are when its line is made.
    #[arg(long)]
    values: bool,
    /// The socket of handle-admin for changes.
    #[arg(long, short, default_value = "/run/handle-admin/changes.sock", env = "HANDLE_ADMIN_CHANGES")]
    socket: PathBuf,
}

/// How a connection ended.
enum FeedEnd {
    /// All changes were printed, or a signal arrived.
    Over,
    /// handle-admin closed it.
    Lost,
    Refused(String),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let (mut after, mut is_first) = (args.after.clone(), true);
    loop {
        let connected = UnixStream::connect(&args.socket);
        let ended = match connected {
            Ok(stream) => {
                let ended = print(args, &stream, &mut after, is_first, &stop)?;
                is_first &= after.is_none();
                ended
            }
            Err(error) if is_first => {
                return Err(error).with_context(|| {
                    format!(
                        "cannot connect to {} (is handle-admin running with `changes.socket`, and may this user \
                         open the socket?)",
                        args.socket.display()
                    )
                });
            }
            Err(_) => FeedEnd::Lost,
        };
        match ended {
            FeedEnd::Over => return Ok(ExitOutcome::Good),
            FeedEnd::Refused(why) => {
                eprintln!("hdl: {why}");
                return Ok(ExitOutcome::Refused);
            }
            FeedEnd::Lost if !args.follow => bail!("handle-admin closed the connection before the end"),
            FeedEnd::Lost => pause(&stop),
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitOutcome::Good);
        }
    }
}

/// Waits before the next try to connect.
fn pause(stop: &AtomicBool) {
    let until = Instant::now() + RETRY;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
}

/// Prints the lines of one connection, and moves `after` with each.
fn print(
    args: &Args,
    mut stream: &UnixStream,
    after: &mut Option<String>,
    is_first: bool,
    stop: &AtomicBool,
) -> anyhow::Result<FeedEnd> {
    let Args { prefix, values, follow, .. } = args;
    let request = json!({ "after": after, "prefix": prefix, "values": values, "follow": follow });
    stream.set_read_timeout(Some(LOOK))?;
    // A process that ends does not read it.
    if writeln!(stream, "{request}").is_err() {
        return Ok(FeedEnd::Lost);
    }
    let (mut reader, mut line, mut is_begin) = (BufReader::new(stream), Vec::new(), true);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(FeedEnd::Over);
        }
        match reader.read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A line that was cut off is sent again.
            Ok(_) | Err(_) => return Ok(FeedEnd::Lost),
        }
        let json: Json =
            serde_json::from_slice(&line).context("handle-admin sent a line that is not JSON")?;
        if json.get("error").is_some() {
            return Ok(FeedEnd::Refused(json["message"].as_str().unwrap_or("refused").to_owned()));
        }
        *after = Some(json["cursor"].as_str().context("a line has no cursor")?.to_owned());
        // A later connection begins with the cursor that was printed last.
        if is_first || !is_begin {
            println!("{}", output::json_line(&json));
            output::check()?;
        }
        is_begin = false;
        if json["kind"] == "end" {
            return Ok(FeedEnd::Over);
        }
        line.clear();
    }
}
