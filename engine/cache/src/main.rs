//! `handle-cache`: answers handle requests for a community from a cache.

use handle_cache::program::CacheProgram;
use handle_daemon::program::run;
use std::process::ExitCode;

fn main() -> ExitCode {
    run::<CacheProgram>()
}
