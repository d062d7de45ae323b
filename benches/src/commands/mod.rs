//! The commands of `handle-bench`: one file for each figure or group of figures.

mod against_dnsperf;
mod answer_loop;
mod bulk_resolve;
mod cache_memory;
mod capacity;
mod certified_share;
mod compare;
mod http_cache;
mod import_rate;
mod latency;
mod mirror;
mod share_of_echo;
mod snapshot_figures;
mod tcp_rate;
mod visible;

use clap::{Parser, Subcommand};

/// Measures the figures of docs/performance.md, which describes the commands.
#[derive(Parser)]
#[command(name = "handle-bench")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    AgainstDnsperf(against_dnsperf::Args),
    AnswerLoop(answer_loop::Args),
    BulkResolve(bulk_resolve::Args),
    CacheMemory(cache_memory::Args),
    Capacity(capacity::Args),
    CertifiedShare(certified_share::Args),
    Compare(compare::Args),
    HttpCache(http_cache::Args),
    ImportRate(import_rate::Args),
    Latency(latency::Args),
    Mirrored(mirror::Args),
    ShareOfEcho(share_of_echo::Args),
    SnapshotFigures(snapshot_figures::Args),
    TcpRate(tcp_rate::Args),
    Visible(visible::Args),
}

pub(crate) fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::AgainstDnsperf(args) => against_dnsperf::run(args),
        Command::AnswerLoop(args) => answer_loop::run(args),
        Command::BulkResolve(args) => bulk_resolve::run(args),
        Command::CacheMemory(args) => cache_memory::run(args),
        Command::Capacity(args) => capacity::run(args),
        Command::CertifiedShare(args) => certified_share::run(args),
        Command::Compare(args) => compare::run(args),
        Command::HttpCache(args) => http_cache::run(args),
        Command::ImportRate(args) => import_rate::run(args),
        Command::Latency(args) => latency::run(args),
        Command::Mirrored(args) => mirror::run(args),
        Command::ShareOfEcho(args) => share_of_echo::run(args),
        Command::SnapshotFigures(args) => snapshot_figures::run(args),
        Command::TcpRate(args) => tcp_rate::run(args),
        Command::Visible(args) => visible::run(args),
    }
}
