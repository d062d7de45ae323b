//! `handle-rivals`: measures the servers and the cache of this project beside those of others.
#![forbid(unsafe_code)]

mod cache_trace;
mod caching;
mod http_rate;
mod side_by_side;

use clap::{Parser, Subcommand};

/// Measures the figures of docs/performance.md in which others have a part.
#[derive(Parser)]
#[command(name = "handle-rivals")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    CacheTrace(cache_trace::Args),
    Caching(caching::Args),
    HttpRate(http_rate::Args),
    SideBySide(side_by_side::Args),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::CacheTrace(args) => cache_trace::run(args),
        Command::Caching(args) => caching::run(args),
        Command::HttpRate(args) => http_rate::run(args),
        Command::SideBySide(args) => side_by_side::run(args),
    }
}
