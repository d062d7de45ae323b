//! `hdl cache`: what a running handle-cache has, and removing entries.

use crate::ExitOutcome;
use crate::control::{ask, print_indented};
use anyhow::ensure;
use serde_json::Value;
use std::path::PathBuf;

/// Show and remove what a running handle-cache knows.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  hdl cache get 10.1000/1
  hdl cache purge 10.1000/1
  hdl cache purge 10.1000/
  hdl cache purge --all --socket /run/handle-cache/control.sock
  hdl cache stats --json | jq .hits")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// The control socket of handle-cache.
    #[arg(
        long,
        short,
        global = true,
        default_value = "/run/handle-cache/control.sock",
        env = "HANDLE_CACHE_CONTROL"
    )]
    socket: PathBuf,
    /// Print the answer as one line of JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show what is known about a handle, in any spelling.
    #[command(after_help = "Example:\n  hdl cache get 10.1000/1")]
    Get {
        /// The handle.
        handle: String,
    },
    /// Remove what is known about a handle, in any spelling, or about all handles of a prefix.
    #[command(
        after_help = "Examples:\n  hdl cache purge 10.1000/1\n  hdl cache purge 10.1000/\n  hdl cache purge --all"
    )]
    Purge {
        /// The handle, or a prefix with a slash.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        handle: Option<String>,
        /// Remove everything.
        #[arg(long)]
        all: bool,
    },
    /// Show the size and the counters of the cache.
    #[command(after_help = "Example:\n  hdl cache stats --json | jq .hits")]
    Stats,
    /// Show the names that are asked for most, from a sample of the answers.
    #[command(after_help = "Example:\n  hdl cache top --count 5")]
    Top {
        /// How many of them.
        #[arg(long, default_value_t = 20)]
        count: usize,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let line = match &args.command {
        Command::Get { handle } => format!("cache-get {handle}"),
        Command::Purge { handle: Some(handle), .. } => format!("cache-purge {handle}"),
        Command::Purge { handle: None, .. } => "cache-purge-all".to_owned(),
        Command::Stats => "cache-stats".to_owned(),
        Command::Top { count } => format!("cache-top {count}"),
    };
    ensure!(!line.contains('\n'), "a handle with a line break cannot be named here");
    let answer = ask(&args.socket, &line)?;
    match args.json {
        true => println!("{answer}"),
        false => print_indented(&answer, 0),
    }
    let refused = answer.get("error").is_some() || answer.get("ok") == Some(&Value::Bool(false));
    Ok(if refused { ExitOutcome::Refused } else { ExitOutcome::Good })
}
