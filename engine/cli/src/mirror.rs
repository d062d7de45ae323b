//! `hdl mirror`: the progress of a mirror, its comparison with its primaries, and its promotion.

mod compare;

use crate::{ExitOutcome, control, output};
use anyhow::bail;
use handle_daemon::clock::now_unix_ms;
use handle_proto::limit::CLOCK_AHEAD_MS_MAX;
use serde_json::Value as Json;
use std::io;
use std::path::PathBuf;

/// Show the progress of a mirror, compare it with its primaries, or make it the primary.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show how far a mirror is behind each primary, and the last errors.
    #[command(after_help = "Example:
  hdl mirror status --socket /srv/handle/run/handle-admin.sock

Exit codes: 0 every primary is followed, 1 a primary is not followed or has other homed prefixes, this
is not a mirror, or its site record cannot be changed, as a promotion would.")]
    Status(StatusArgs),
    Compare(compare::CompareArgs),
    /// Make a mirror the primary: it accepts changes from now on.
    ///
    /// The site record becomes that of a primary site, with the next serial number. Transactions
    /// get numbers above those of the lost primary. Do this only if the primary is lost or stopped:
    /// what two primaries accept is never joined.
    #[command(after_help = "Examples:
  hdl mirror promote --socket /srv/handle/run/handle-admin.sock
  handle-admin promote --config /srv/handle/handle-admin.toml    while handle-admin is stopped")]
    Promote(PromoteArgs),
}

/// Difference between two clocks from which on one of them is called wrong.
const CLOCK_SECONDS_MAX: f64 = CLOCK_AHEAD_MS_MAX as f64 / 1000.0;

#[derive(clap::Args, Debug)]
struct StatusArgs {
    /// The control socket of handle-admin.
    #[arg(long, short, default_value = "/run/handle-admin/control.sock")]
    socket: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct PromoteArgs {
    /// The control socket of handle-admin.
    #[arg(long, short, default_value = "/run/handle-admin/control.sock")]
    socket: PathBuf,
    /// Promote even before the end of a dump, although some records are missing, or older than
    /// others.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    match &args.command {
        Command::Status(args) => output::or_as_json(status(args), args.json),
        Command::Compare(args) => output::or_as_json(compare::run(args), args.json),
        Command::Promote(args) => output::or_as_json(promotion(args), args.json),
    }
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitOutcome> {
    let status = control::ask(&args.socket, "status")?;
    let Some(primaries) = status.get("mirror").and_then(Json::as_array) else {
        bail!("the handle-admin at {} is not a mirror: `mirror.primary` is not set", args.socket.display());
    };
    let is_followed = |one: &Json| one["activity"] == "following" || one["activity"] == "promoted";
    if args.json {
        println!("{}", Json::from(primaries.clone()));
    } else {
        primaries.iter().for_each(show);
    }
    let refusal = status["promotion_refusal"].as_str();
    if let Some(refusal) = refusal {
        eprintln!("hdl: a promotion would be refused: {refusal}");
    }
    let is_equal = |one: &Json| one["homed_differences"].as_u64().unwrap_or(0) == 0;
    let is_good = refusal.is_none() && primaries.iter().all(|one| is_followed(one) && is_equal(one));
    Ok(if is_good { ExitOutcome::Good } else { ExitOutcome::Failed })
}

fn show(one: &Json) {
    let text = |name: &str| one[name].as_str().unwrap_or("-").to_owned();
    let number = |name: &str| one[name].as_u64().unwrap_or(0);
    println!("{} at {}: {}", text("name"), text("address"), text("activity"));
    let lag = one["lag_seconds"].as_f64().map_or_else(|| "unknown".to_owned(), |lag| format!("{lag:.1} s"));
    // Without an answer, the primary may have any number of further transactions.
    let least = if one["activity"] == "following" { "" } else { "at least " };
    let transactions = output::counted(number("lag_transactions"), "transaction", "transactions");
    println!("  behind: {lag}, {least}{transactions}");
    println!("  last transaction: {}", number("last_transaction"));
    if let Some(records) = one["dump_records"].as_u64() {
        let step = if one["dump_received"] == true { ", removing what it did not name" } else { "" };
        println!("  dump: {} so far{step}", output::counted(records, "record", "records"));
    }
    if one["lag_seconds"].is_null() && one["activity"] != "promoted" {
        println!("  not complete: nothing is published before all records of the primary are here");
    } else if one["is_partial"] == true {
        println!("  catching up: nothing is published before the end of a stream of transactions");
    }
    let ago = |name: &str| {
        let ms = one[name].as_u64().map(|at| now_unix_ms().saturating_sub(at));
        ms.map_or_else(|| "never".to_owned(), |ms| format!("{} s ago", ms / 1000))
    };
    match one["homed_differences"].as_u64() {
        Some(0) => println!("  homed prefixes: equal to those of the primary"),
        Some(count) => {
            let named = one["homed_different"].as_array().into_iter().flatten().filter_map(Json::as_str);
            let named = named.collect::<Vec<_>>().join(", ");
            println!("  homed prefixes: {count} homed here or at the primary, and not at both: {named}");
        }
        None => println!("  homed prefixes: not compared yet"),
    }
    if let Some(ahead) = one["clock_ahead_seconds"].as_f64().filter(|ahead| ahead.abs() > CLOCK_SECONDS_MAX) {
        let side = if ahead > 0.0 { "ahead of" } else { "behind" };
        println!(
            "  clocks: that of the primary is {:.0} s {side} the one here: set one of them",
            ahead.abs()
        );
    }
    println!("  last success: {}", ago("last_success_unix_ms"));
    if let Some(error) = one["last_error"].as_str() {
        println!("  last error: {} ({error})", ago("last_error_unix_ms"));
    }
    if let Some(record) = one["last_left_out"].as_str() {
        println!("  left out: {}, the last one {record}", number_in(one, "left_out"));
    }
}

fn number_in(one: &Json, name: &str) -> u64 {
    one["counts"][name].as_u64().unwrap_or(0)
}

fn promotion(args: &PromoteArgs) -> anyhow::Result<ExitOutcome> {
    let command = if args.force { "promote force" } else { "promote" };
    let answer = control::ask(&args.socket, command).map_err(|error| match is_unanswered(&error) {
        true => error.context(
            "if handle-admin is stopped, `handle-admin promote --config FILE` promotes it with its configuration",
        ),
        false => error,
    })?;
    if answer["ok"] != true {
        bail!("{}", answer["error"].as_str().unwrap_or("handle-admin does not know this command"));
    }
    if args.json {
        println!("{}", answer["promotion"]);
    } else {
        let lines = answer["lines"].as_array().into_iter().flatten().filter_map(Json::as_str);
        lines.for_each(|line| println!("{line}"));
    }
    Ok(ExitOutcome::Good)
}

/// Whether the error is that no process has the socket.
fn is_unanswered(error: &anyhow::Error) -> bool {
    let kind = error.root_cause().downcast_ref().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused))
}
