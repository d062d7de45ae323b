//! `hdl store move`: moves a store to another location, also while handle-admin runs.

use crate::{ExitOutcome, UsageError, control, output, progress};
use anyhow::Context as _;
use handle_store::{MoveSummary, Store, StoreConfig, StoreError, StoreMove};
use serde_json::{Value as Json, json};
use std::path::PathBuf;

/// Move a store to another file or database, with its identity, numbers, log and dates.
///
/// With --socket, a running handle-admin moves its store: it copies all of it and follows the
/// changes, compares both, holds changes back for a moment while the copy is brought level, and
/// marks the old store as moved. From then on it refuses changes, until it is restarted with the
/// new location in `store`; reading, resolution and publishing go on. Without --socket,
/// handle-admin must be stopped.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl store move store.redb postgresql://handle@db.example/handles
  hdl store move --socket run/handle-admin.sock --prepare postgresql://handle@db.example/handles
  hdl store move --socket run/handle-admin.sock postgresql://handle@db.example/handles

The new place must not have a store. A move that is interrupted leaves an unfinished copy there,
which cannot be opened; the same command goes on with it.")]
pub(super) struct Args {
    /// The store (without --socket), and the new location: each a file, or the URL of a database.
    #[arg(required = true, num_args = 1..=2, value_name = "FROM] [TO")]
    locations: Vec<PathBuf>,
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
    match (&args.socket, &*args.locations) {
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
    let working = progress::bar("copying", None);
    let command = format!("move-store {}", json!({ "to": to, "prepare": args.prepare }));
    let answer = control::converse(socket, &command, |step| {
        working.set_position(step["copied"].as_u64().or(step["behind"].as_u64()).unwrap_or_default());
    })?;
    working.finish_and_clear();
    let answer = answer
        .context("handle-admin ended before the store was moved: the same command goes on with the copy")?;
    if let Some(error) = answer["error"].as_str() {
        eprintln!("hdl: {error}");
        return Ok(ExitOutcome::Refused);
    }
    show(args, &answer["done"]);
    if !args.prepare {
        eprintln!("hdl: handle-admin refuses changes now: set `store` to {} and restart it", to.display());
    }
    Ok(ExitOutcome::Good)
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
