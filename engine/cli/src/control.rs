//! `hdl control`: query or control a running process.

use crate::ExitOutcome;
use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Query or control a running process.
///
/// Connects to the control socket that each process opens with --control.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl control status --socket /run/handled/control.sock
  hdl control reload --json | jq .generation
  hdl control restart --socket /run/handle-admin/control.sock
  hdl control roll-back 1234 --socket /run/handle-admin/control.sock")]
pub(crate) struct Args {
    /// The command to send.
    #[arg(value_enum)]
    command: Command,
    /// For hold: the reason. For roll-back: the generation; default: the newest other one. For pull
    /// and accept-deletions: the name of the source.
    detail: Option<String>,
    /// The control socket.
    #[arg(long, short, default_value = "/run/handled/control.sock", env = "HANDLED_CONTROL")]
    socket: PathBuf,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Command {
    /// Show the published set, when it was loaded, and the workers.
    Status,
    /// Show counters and times, in total and for each worker, and the busiest sources.
    Stats,
    /// Reload the settings that can change while serving, and load the current published set.
    Reload,
    /// Reopen the query log, the audit log or the request log after it was renamed.
    ReopenLog,
    /// Answer pending requests, then exit.
    Drain,
    /// Replace the process by the program now on disk, without losing a request or refusing a
    /// change. If it cannot start, the process continues.
    Restart,
    /// handle-gateway: order a certificate by ACME now.
    RenewCertificate,
    /// handle-admin: stop publishing, also after a restart.
    Hold,
    /// handle-admin: resume publishing, starting with all changes since the hold.
    Resume,
    /// handle-admin: publish a kept generation again, and hold it.
    RollBack,
    /// handle-admin: rebuild the published set from all records.
    Rebuild,
    /// handle-admin: merge all layers of the published set into one.
    Merge,
    /// handle-admin: keep the published set for a later roll-back.
    Keep,
    /// handle-admin: compare all records of a source that is copied now.
    Pull,
    /// handle-admin: let the next comparison of a copied source delete what the last one did not.
    AcceptDeletions,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    // The name as it is typed.
    let name = clap::ValueEnum::to_possible_value(&args.command).context("each command has a name")?;
    let line = match &args.detail {
        Some(detail) => format!("{} {detail}", name.get_name()),
        None => name.get_name().to_owned(),
    };
    let answer = ask(&args.socket, &line)?;
    if args.json {
        println!("{answer}");
    } else {
        print_indented(&answer, 0);
    }
    let refused = answer.get("error").is_some() || answer.get("ok") == Some(&Value::Bool(false));
    Ok(if refused { ExitOutcome::Refused } else { ExitOutcome::Good })
}

/// Sends one command and reads its answer.
///
/// # Errors
/// When nothing answers, or not with JSON.
pub fn ask(socket: &Path, command: &str) -> anyhow::Result<Value> {
    let mut stream = connect(socket)?;
    let timeout = match command {
        // A new process may copy its set into memory before it serves, for at most 120 s; if it
        // fails, handle-admin has 60 s to serve again.
        "restart" => 200,
        // It writes the store.
        _ if command.starts_with("promote") => 150,
        _ => 10,
    };
    stream.set_read_timeout(Some(Duration::from_secs(timeout)))?;
    writeln!(stream, "{command}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context(UNREAD)?;
    parse(&line)
}

/// Sends a command whose answer has several lines, and passes those with the progress to `report`.
/// Returns the last one, which has `ok`; `None` if the connection ends before.
///
/// # Errors
/// When nothing answers, or not with JSON.
pub(crate) fn converse(
    socket: &Path,
    command: &str,
    mut report: impl FnMut(&Value),
) -> anyhow::Result<Option<Value>> {
    let mut stream = connect(socket)?;
    writeln!(stream, "{command}")?;
    for line in BufReader::new(stream).lines() {
        let answer = parse(&line.context(UNREAD)?)?;
        if answer.get("ok").is_some() || answer.get("error").is_some() {
            return Ok(Some(answer));
        }
        report(&answer);
    }
    Ok(None)
}

const UNREAD: &str = "cannot read the answer on the control socket";

fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    UnixStream::connect(socket).with_context(|| {
        format!(
            "cannot connect to control socket {} (is the process running with --control, and may this user open the \
             socket?)",
            socket.display()
        )
    })
}

fn parse(line: &str) -> anyhow::Result<Value> {
    serde_json::from_str(line).context("the answer on the control socket is not JSON")
}

/// Prints objects as indented lines of name and value.
pub(crate) fn print_indented(value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if member.is_object() || member.as_array().is_some_and(|items| !items.is_empty()) {
                    println!("{indent}{name}:");
                    print_indented(member, depth + 1);
                } else {
                    println!("{indent}{name}: {}", named(name, member));
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                println!("{indent}- {at}");
                print_indented(item, depth + 1);
            }
        }
        other => println!("{indent}{}", plain(other)),
    }
}

/// A value as text; a time since 1970 also as a date.
fn named(name: &str, value: &Value) -> String {
    let per_second = match name {
        _ if name.ends_with("_unix_ms") => 1000,
        _ if name.ends_with("_unix_s") => 1,
        _ => return plain(value),
    };
    let time = value.as_i64().filter(|&time| time > 0).and_then(|time| match per_second {
        1 => Timestamp::from_second(time).ok(),
        _ => Timestamp::from_millisecond(time).ok(),
    });
    match time {
        Some(time) => format!("{} ({})", plain(value), time.strftime("%Y-%m-%d %H:%M:%S UTC")),
        None => plain(value),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates_too() {
        assert_eq!(
            named("started_unix_ms", &1_700_000_000_123_i64.into()),
            "1700000000123 (2023-11-14 22:13:20 UTC)"
        );
        assert_eq!(named("expires_unix_s", &1_700_000_000.into()), "1700000000 (2023-11-14 22:13:20 UTC)");
        assert_eq!(named("expires_unix_s", &Value::Null), "-");
        assert_eq!(named("succeeded_unix_ms", &0.into()), "0");
        assert_eq!(named("pid", &1_700_000_000.into()), "1700000000");
    }
}
