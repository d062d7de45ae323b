//! `hdl store move`: moves a store to another place, also while handle-admin runs.

use crate::{ExitOutcome, UsageError, output, progress};
use anyhow::Context as _;
use handle_store::{MoveSummary, Store, StoreConfig, StoreError, StoreMove};
use serde_json::{Value as Json, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Move a store to another file or database, with its identity, numbers, log and dates.
///
/// With --socket, a running handle-admin moves its store: it copies all of it and follows the
/// changes, compares both, holds changes back for a moment while the copy is brought level, and
/// marks the old store as moved. From then on it refuses changes, until it is restarted with the
/// new place in `store`; reading, resolution and publishing go on. Without --socket, handle-admin
/// must be stopped.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl store move store.redb postgresql://handle@db.example/handles
  hdl store move --socket run/handle-admin.sock --prepare postgresql://handle@db.example/handles
  hdl store move --socket run/handle-admin.sock postgresql://handle@db.example/handles

The new place must not have a store. A move that is interrupted leaves an unfinished copy there,
which cannot be opened; the same command goes on with it.")]
pub(super) struct Args {
    /// The store (without --socket), and the new place: each a file, or the URL of a database.
    #[arg(required = true, num_args = 1..=2, value_name = "FROM] [TO")]
    places: Vec<PathBuf>,
    /// The control socket of a running handle-admin.
    #[arg(long, short)]
    socket: Option<PathBuf>,
    /// Copy, follow and compare, and leave the copy for a later move, which is then short.
    #[arg(long)]
    prepare: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let usage = |text: &str| anyhow::Error::from(UsageError(text.to_owned()));
    match (&args.socket, &*args.places) {
        (Some(socket), [to]) => ask(args, socket, to),
        (None, [from, to]) => {
            let (from, to) = (StoreConfig::at(from), StoreConfig::at(to));
            show(args, &json!(relocate(&from, &to, args.prepare)?));
            Ok(ExitOutcome::Good)
        }
        (Some(_), _) => Err(usage("name the new place only: handle-admin knows its store")),
        (None, _) => Err(usage("name the store and the new place, or --socket and the new place")),
    }
}

/// Moves a store that no handle-admin has open.
fn relocate(from: &StoreConfig, to: &StoreConfig, prepare: bool) -> anyhow::Result<Option<MoveSummary>> {
    let store = match Store::open(from) {
        // Only the last step of a move may be missing.
        Err(StoreError::Moved) if Store::finish_move(from, to)? => return Ok(None),
        opened => opened?,
    };
    let mut moving = StoreMove::begin(&store, to)?;
    let copying = progress::bar("copying", Some(store.stats()?.records));
    moving.step(|records| {
        copying.set_position(records);
        true
    })?;
    copying.finish_and_clear();
    Ok(Some(if prepare { moving.verify()? } else { moving.finish()? }))
}

/// Has a running handle-admin move its store.
fn ask(args: &Args, socket: &std::path::Path, to: &std::path::Path) -> anyhow::Result<ExitOutcome> {
    let is_database = StoreConfig::at(to).is_in_database();
    let to = if is_database { to.to_owned() } else { std::path::absolute(to)? };
    let mut stream = UnixStream::connect(socket)
        .with_context(|| format!("cannot connect to control socket {}", socket.display()))?;
    writeln!(stream, "move-store {}", json!({ "to": to, "prepare": args.prepare }))?;
    let working = progress::bar("copying", None);
    for line in BufReader::new(stream).lines() {
        let line = line.context("cannot read the answer on the control socket")?;
        let json: Json =
            serde_json::from_str(&line).context("the answer on the control socket is not JSON")?;
        if let Some(error) = json["error"].as_str() {
            working.finish_and_clear();
            eprintln!("hdl: {error}");
            return Ok(ExitOutcome::Refused);
        }
        if json["ok"] == true {
            working.finish_and_clear();
            show(args, &json["done"]);
            if !args.prepare {
                eprintln!(
                    "hdl: handle-admin refuses changes now: set `store` to {} and restart it",
                    to.display()
                );
            }
            return Ok(ExitOutcome::Good);
        }
        working.set_position(json["copied"].as_u64().or(json["behind"].as_u64()).unwrap_or_default());
    }
    anyhow::bail!("handle-admin ended before the store was moved: the same command goes on with the copy")
}

fn show(args: &Args, summary: &Json) {
    if args.json {
        return println!("{}", output::json_line(summary));
    }
    let number = |name: &str| output::count(summary[name].as_u64().unwrap_or_default());
    match summary.is_null() {
        true => println!("the move was complete but for a mark, which is removed"),
        false => println!(
            "{} {} records, {} transactions in the log, the last is {}",
            if args.prepare { "copied" } else { "moved" },
            number("records"),
            number("log_transactions"),
            number("last_transaction"),
        ),
    }
}
