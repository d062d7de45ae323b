//! `hdl mirror compare`: has a mirror compare its published set with the records of its primaries.

use crate::style::{Paint, paint};
use crate::{ExitOutcome, control, output, progress};
use anyhow::{Context as _, bail};
use serde_json::Value as Json;
use std::path::PathBuf;

/// Differences that are printed for each primary.
const SHOWN_MAX: usize = 100;

/// Compare all records of a mirror with those of its primaries.
///
/// The running handle-admin of the mirror asks each primary for a dump, and compares all records of
/// its published set, with the values that are not public. What is changed meanwhile is not counted
/// as different.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl mirror compare --socket /srv/handle/run/handle-admin.sock
  hdl mirror compare --wait 60 --json

Exit codes: 0 the mirror has what its primaries have, 1 it differs, or cannot be compared.")]
pub(super) struct CompareArgs {
    /// The control socket of handle-admin.
    #[arg(long, short, default_value = "/run/handle-admin/control.sock")]
    socket: PathBuf,
    /// Seconds in which differences may still arrive at the mirror.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u32,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &CompareArgs) -> anyhow::Result<ExitOutcome> {
    let working = progress::bar("comparing", None);
    let answer = control::converse(&args.socket, &format!("compare-mirror {}", args.wait), |step| {
        working.set_position(step["compared"].as_u64().unwrap_or_default());
    });
    working.finish_and_clear();
    let answer = answer?.context("handle-admin ended before the comparison did")?;
    let Some(compared) = answer["done"].as_array() else {
        bail!("{}", answer["error"].as_str().unwrap_or("handle-admin does not know this command"));
    };
    if args.json {
        output::print_json(&answer["done"]);
    } else {
        compared.iter().for_each(show);
    }
    let is_equal = compared.iter().all(|one| one["agree"] == true);
    Ok(if is_equal { ExitOutcome::Good } else { ExitOutcome::Failed })
}

fn show(one: &Json) {
    let number = |name: &str| one[name].as_u64().unwrap_or_default();
    let primary = one["primary"].as_str().unwrap_or_default();
    let records = output::counted(number("records"), "record", "records");
    println!("{primary}: {records} up to its transaction {}", number("transaction"));
    let differences = one["differences"].as_array().map_or(&[][..], Vec::as_slice);
    for difference in differences.iter().take(SHOWN_MAX) {
        let what = difference["difference"].as_str().unwrap_or_default();
        match difference["homed"].as_str() {
            Some(prefix) => println!("  {what}: homed prefix {prefix}"),
            None => println!("  {what}: {}", difference["handle"].as_str().unwrap_or_default()),
        }
    }
    let more = number("more_differences") + differences.len().saturating_sub(SHOWN_MAX) as u64;
    if more > 0 {
        println!("  and {}", output::counted(more, "more difference", "more differences"));
    }
    if number("left_out") > 0 {
        println!("  left out, because they exceed a limit: {}", output::count(number("left_out")));
    }
    if number("changed_meanwhile") > 0 {
        println!("  changed meanwhile, and not compared: {}", output::count(number("changed_meanwhile")));
    }
    let (of, verdict) = match one["agree"] == true {
        true => (Paint::Good, "the mirror has what the primary has"),
        false => (Paint::Bad, "the mirror differs"),
    };
    println!("  {}", paint(of, verdict));
}
