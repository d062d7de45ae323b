//! `hdl changes`: the changes of the store of a running handle-admin.

use crate::{ExitOutcome, output};
use anyhow::{Context as _, bail};
use handle_local::client::LocalClient;
use handle_local::frame;
use handle_local::kind::LocalKind;
use handle_local::refusal::LocalRefusal;
use serde_json::{Value as Json, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, ErrorKind, Read};
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
/// Connects to a running handle-admin with `local.socket`. Each line has a `cursor`; a later call
/// with --after goes on exactly behind it. A line with the kind `position` or `end` has nothing but
/// a cursor. Without --after, the changes from now on are printed: without --follow, that is the
/// present cursor.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl changes                          the present cursor, for a start
  hdl changes --follow --after 1f3870be274f6c49-17 --values
  hdl changes --after 1f3870be274f6c49-17 --prefix 10.1045 | jq -r .handle

With --follow, a connection that is lost after its first line is opened again, and nothing is printed
twice. A signal ends it after a whole line.

Exit codes: 0 good, 6 refused, as for a user that may not follow changes, and for a cursor that the
log does not reach back to.")]
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
    /// The local socket of handle-admin.
    #[arg(long, short, default_value = "/run/handle-admin/admin.socket", env = "HANDLE_ADMIN_SOCKET")]
    socket: PathBuf,
}

/// How a connection ended.
enum FeedEnd {
    /// All changes were printed, or a signal arrived.
    Over,
    /// handle-admin closed it, or has too many connections.
    Lost(io::Error),
    Refused(String),
}

impl FeedEnd {
    /// The end of a connection that failed.
    fn of(error: io::Error) -> Self {
        match LocalRefusal::of(&error) {
            None | Some(LocalRefusal::Busy) => Self::Lost(error),
            Some(refusal) => Self::Refused(refusal.to_string()),
        }
    }
}

/// What was received on all connections.
struct FeedProgress {
    /// The cursor after which the next connection begins.
    after: Option<String>,
    /// Whether the first line of a connection is printed: it has the cursor of a start.
    prints_first: bool,
    /// Whether any line has arrived.
    has_line: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut progress = FeedProgress { after: args.after.clone(), prints_first: true, has_line: false };
    loop {
        let connected = LocalClient::connect(&args.socket, LocalKind::Changes, LOOK);
        let ended = match connected {
            Ok(client) => {
                let ended = print(args, client, &mut progress, &stop)?;
                progress.prints_first &= progress.after.is_none();
                ended
            }
            Err(error) if !progress.has_line => {
                return Err(error).with_context(|| {
                    format!(
                        "cannot connect to {} (is handle-admin running with `local.socket`, and does its \
                         `local.changes_users` name this user?)",
                        args.socket.display()
                    )
                });
            }
            Err(error) => FeedEnd::Lost(error),
        };
        match ended {
            FeedEnd::Over => return Ok(ExitOutcome::Good),
            FeedEnd::Refused(why) => {
                eprintln!("hdl: {why}");
                return Ok(ExitOutcome::Refused);
            }
            FeedEnd::Lost(error) if !progress.has_line => {
                return Err(error).context("the connection to handle-admin ended before its first line");
            }
            FeedEnd::Lost(_) if !args.follow => bail!("handle-admin closed the connection before the end"),
            FeedEnd::Lost(_) => pause(&stop),
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

/// A connection that is read until a signal arrives.
struct StoppableReader<'a> {
    stream: &'a UnixStream,
    stop: &'a AtomicBool,
}

impl Read for StoppableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(error);
                    }
                }
                read => return read,
            }
        }
    }
}

/// Prints the lines of one connection, and moves `after` with each.
fn print(
    args: &Args,
    mut client: LocalClient,
    progress: &mut FeedProgress,
    stop: &AtomicBool,
) -> anyhow::Result<FeedEnd> {
    let (Args { prefix, values, follow, .. }, after) = (args, &progress.after);
    let request = json!({ "after": after, "prefix": prefix, "values": values, "follow": follow }).to_string();
    // A process that ends does not read it, nor one that refuses this user.
    if let Err(error) = client.send(request.len(), |content| content.extend_from_slice(request.as_bytes())) {
        return Ok(FeedEnd::of(error));
    }
    let mut reader = StoppableReader { stream: client.stream(), stop };
    let (mut lines, mut is_begin) = (Vec::new(), true);
    loop {
        let received = frame::read(&mut reader, LocalKind::Changes, LocalKind::Changes.reply_len_max());
        if stop.load(Ordering::Relaxed) {
            return Ok(FeedEnd::Over);
        }
        // A line that was cut off is sent again.
        let part = match received {
            Ok(part) => part,
            Err(error) => return Ok(FeedEnd::of(error)),
        };
        lines.extend_from_slice(&part);
        let Some(end) = lines.iter().rposition(|&byte| byte == b'\n') else { continue };
        let rest = lines.split_off(end + 1);
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            let json: Json =
                serde_json::from_slice(line).context("handle-admin sent a line that is not JSON")?;
            if json.get("error").is_some() {
                return Ok(FeedEnd::Refused(json["message"].as_str().unwrap_or("refused").to_owned()));
            }
            progress.has_line = true;
            progress.after = Some(json["cursor"].as_str().context("a line has no cursor")?.to_owned());
            // A later connection begins with the cursor that was printed last.
            if progress.prints_first || !is_begin {
                println!("{}", output::json_line(&json));
                output::check()?;
            }
            is_begin = false;
            if json["kind"] == "end" {
                return Ok(FeedEnd::Over);
            }
        }
        lines = rest;
    }
}
