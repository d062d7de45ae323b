//! `hdl store`, `hdl import` and `hdl export`: the records themselves, in and out, while no handle-admin has them open.

pub(crate) mod export;
mod foreign;
pub(crate) mod import;
mod remote;

use crate::{ExitOutcome, output};
use handle_admin::store::{Store, StoreConfig, StoreStats};
use serde_json::json;
use std::path::PathBuf;

/// Look after the store of handle-admin.
///
/// Only one process can have a store open: stop handle-admin first.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make a new, empty store.
    #[command(after_help = "Example:
  hdl store create store.redb")]
    Create(CreateArgs),
    /// Read everything, and say what does not fit.
    #[command(after_help = "Example:
  hdl store check store.redb

Exit codes: 0 whole, 1 damaged or not there.")]
    Check(StoreArgs),
    /// Say how much is in it.
    #[command(after_help = "Example:
  hdl store stats store.redb --json")]
    Stats(StoreArgs),
    /// Write all records as lines of JSON; the same as `hdl export`.
    Export(export::Args),
    /// Take records in; the same as `hdl import`.
    Import(Box<import::Args>),
}

#[derive(clap::Args, Debug)]
struct CreateArgs {
    /// The file of the store.
    store: PathBuf,
    /// Local names are told apart by case, for good. As a rule they are not.
    #[arg(long)]
    case_sensitive: bool,
}

#[derive(clap::Args, Debug)]
struct StoreArgs {
    /// The file of the store.
    store: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    match &args.command {
        Command::Create(args) => {
            Store::create(&StoreConfig::at(&args.store), !args.case_sensitive)?;
            println!("made {}", args.store.display());
            Ok(ExitOutcome::Good)
        }
        Command::Check(args) => check(args),
        Command::Stats(args) => {
            let stats = Store::open_to_read(&StoreConfig::at(&args.store))?.stats()?;
            show(&stats, args.json, None);
            Ok(ExitOutcome::Good)
        }
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
    }
}

fn check(args: &StoreArgs) -> anyhow::Result<ExitOutcome> {
    /// Findings that are told one by one.
    const TOLD_MAX: u64 = 100;
    let (mut damage, mut unusual) = (0, 0);
    let stats = Store::open_to_read(&StoreConfig::at(&args.store))?.check(|finding| {
        let count = if finding.is_damage() { &mut damage } else { &mut unusual };
        *count += 1;
        if *count <= TOLD_MAX {
            eprintln!("hdl: {}: {finding}", args.store.display());
        }
    })?;
    show(&stats, args.json, Some((damage, unusual)));
    Ok(if damage == 0 { ExitOutcome::Good } else { ExitOutcome::Failed })
}

/// Prints what is in a store; what a check has found, too.
fn show(stats: &StoreStats, is_json: bool, found: Option<(u64, u64)>) {
    if is_json {
        let mut json = json!({
            "records": stats.records,
            "values": stats.values,
            "bytes": stats.bytes,
            "homed_prefixes": stats.homed_prefixes,
            "last_transaction": stats.last_transaction,
            "log_transactions": stats.log_transactions,
        });
        if let Some((damage, unusual)) = found {
            json["damage"] = damage.into();
            json["unusual"] = unusual.into();
        }
        println!("{json}");
        return;
    }
    println!(
        "{} records with {} values, {}, under {} homed prefixes",
        output::count(stats.records),
        output::count(stats.values),
        output::bytes(stats.bytes),
        output::count(stats.homed_prefixes)
    );
    println!(
        "last transaction {}, {} in the log",
        output::count(stats.last_transaction),
        output::count(stats.log_transactions)
    );
    if let Some((damage, unusual)) = found {
        println!("{} damaged, {} unusual", output::count(damage), output::count(unusual));
    }
}
