//! `hdl store`, `hdl import` and `hdl export`: access to the records while no handle-admin has the
//! store open.

pub(crate) mod export;
pub(crate) mod files;
mod foreign;
pub(crate) mod import;
mod relocate;
pub(crate) mod remote;

use crate::{ExitOutcome, output};
use handle_store::{Store, StoreConfig, StoreFinding, StoreStats};
use serde_json::json;
use std::path::PathBuf;

/// Manage the store of handle-admin.
///
/// Only one process can have a store open: stop handle-admin first.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create a new, empty store.
    #[command(after_help = "Example:
  hdl store create store.redb")]
    Create(CreateArgs),
    /// Read everything, and report inconsistencies.
    #[command(after_help = "Example:
  hdl store check store.redb

Exit codes: 0 intact, 1 damaged or missing.")]
    Check(StoreArgs),
    /// Show the size of its contents.
    #[command(after_help = "Example:
  hdl store stats store.redb --json")]
    Stats(StoreArgs),
    /// Move it to another file or database, also while handle-admin runs.
    Move(relocate::Args),
    /// Export all records as lines of JSON; the same as `hdl export`.
    Export(export::Args),
    /// Import records; the same as `hdl import`.
    Import(Box<import::Args>),
}

#[derive(clap::Args, Debug)]
struct CreateArgs {
    /// The store: a file, or the URL of a database of PostgreSQL.
    store: PathBuf,
    /// Distinguish the case of local names. This cannot be changed later.
    #[arg(long)]
    case_sensitive: bool,
}

#[derive(clap::Args, Debug)]
struct StoreArgs {
    /// The store: a file, or the URL of a database of PostgreSQL.
    store: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    match &args.command {
        Command::Create(args) => {
            Store::create(&StoreConfig::at(&args.store), !args.case_sensitive)?;
            println!("created {}", args.store.display());
            Ok(ExitOutcome::Good)
        }
        Command::Check(args) => check(args),
        Command::Stats(args) => {
            let stats = Store::open_to_read(&StoreConfig::at(&args.store))?.stats()?;
            show(&stats, args.json, None);
            Ok(ExitOutcome::Good)
        }
        Command::Move(args) => relocate::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
    }
}

fn check(args: &StoreArgs) -> anyhow::Result<ExitOutcome> {
    /// Maximum number of findings that are printed.
    const SHOWN_MAX: u64 = 100;
    let (mut damage, mut unusual, mut not_homed) = (0, 0, 0);
    let stats = Store::open_to_read(&StoreConfig::at(&args.store))?.check(|finding| {
        if let StoreFinding::NotHomed(_) | StoreFinding::CopyOfPrefixRecord(_) = finding {
            not_homed += 1;
        }
        if let StoreFinding::CopyOfPrefixRecord(_) = finding {
            return;
        }
        let count = if finding.is_damage() { &mut damage } else { &mut unusual };
        *count += 1;
        if *count <= SHOWN_MAX {
            eprintln!("hdl: {}: {finding}", args.store.display());
        }
    })?;
    show(&stats, args.json, Some(CheckCounts { damage, unusual, not_homed }));
    Ok(if damage == 0 { ExitOutcome::Good } else { ExitOutcome::Failed })
}

/// Number of findings of a check.
struct CheckCounts {
    damage: u64,
    unusual: u64,
    /// Records that are not served, because their prefix is not homed.
    not_homed: u64,
}

/// Prints statistics of a store, and the results of a check.
fn show(stats: &StoreStats, is_json: bool, found: Option<CheckCounts>) {
    if is_json {
        let mut json = json!({
            "records": stats.records,
            "values": stats.values,
            "bytes": stats.bytes,
            "homed_prefixes": stats.homed_prefixes,
            "last_transaction": stats.last_transaction,
            "log_transactions": stats.log_transactions,
        });
        if let Some(CheckCounts { damage, unusual, not_homed }) = found {
            json["damage"] = damage.into();
            json["unusual"] = unusual.into();
            json["not_homed"] = not_homed.into();
        }
        println!("{json}");
        return;
    }
    println!(
        "{} with {}, {}, under {}",
        output::counted(stats.records, "record", "records"),
        output::counted(stats.values, "value", "values"),
        output::bytes(stats.bytes),
        output::counted(stats.homed_prefixes, "homed prefix", "homed prefixes")
    );
    println!(
        "last transaction {}, {} in the log",
        output::count(stats.last_transaction),
        output::count(stats.log_transactions)
    );
    if let Some(CheckCounts { damage, unusual, not_homed }) = found {
        println!(
            "{} damaged, {} unusual, {} not homed",
            output::count(damage),
            output::count(unusual),
            output::count(not_homed)
        );
    }
}
