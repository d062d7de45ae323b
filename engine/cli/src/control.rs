//! `hdl control`: ask a running handled or handle-admin for its state, or tell it something.

use crate::ExitOutcome;
use anyhow::Context as _;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Ask a running handled or handle-admin for its state, or tell it something.
///
/// Talks to the control socket that handled opens with --control, and handle-admin likewise.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl control status --socket /run/handled/control.sock
  hdl control reload --json | jq .generation
  hdl control roll-back 1234 --socket /run/handle-admin/control.sock")]
pub(crate) struct Args {
    /// What to ask or tell.
    #[arg(value_enum)]
    command: Command,
    /// Of hold, the reason; of roll-back, the generation, the newest other one if none is given.
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
    /// What is served since when, by which workers.
    Status,
    /// Counters and times, in all and for each worker, and who asks most.
    Stats,
    /// Read the configuration again, as far as it can change while serving, and take the published set now.
    Reload,
    /// Open the file of the query log or the audit log again, after it was renamed.
    ReopenLog,
    /// Answer what has arrived, then exit.
    Drain,
    /// Start its program once more, as it is on disk now, and let that take over without losing a request.
    Restart,
    /// Of handle-admin: publish nothing more, also after a restart.
    Hold,
    /// Of handle-admin: publish again, beginning with what has changed meanwhile.
    Resume,
    /// Of handle-admin: publish a kept generation again, and hold there.
    RollBack,
    /// Of handle-admin: build the published set from all records.
    Rebuild,
    /// Of handle-admin: merge all layers of the published set into one.
    Merge,
    /// Of handle-admin: keep the published set, to go back to.
    Keep,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    // As it is typed.
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
pub(crate) fn ask(socket: &std::path::Path, command: &str) -> anyhow::Result<Value> {
    let mut stream = UnixStream::connect(socket).with_context(|| {
        format!("cannot reach {} (is handled running with --control, and may you open it?)", socket.display())
    })?;
    // A new process may copy its set into memory before it serves.
    let patience = if command == "restart" { 150 } else { 10 };
    stream.set_read_timeout(Some(Duration::from_secs(patience)))?;
    writeln!(stream, "{command}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("no answer on the control socket")?;
    serde_json::from_str(&line).context("the answer on the control socket is not JSON")
}

/// Objects as indented lines of name and value.
fn print_indented(value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if member.is_object() || member.as_array().is_some_and(|items| !items.is_empty()) {
                    println!("{indent}{name}:");
                    print_indented(member, depth + 1);
                } else {
                    println!("{indent}{name}: {}", plain(member));
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

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}
