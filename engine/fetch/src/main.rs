//! `handle-fetch`: fetches published sets for the processes of its machine.

use handle_daemon::program::run;
use handle_fetch::program::FetchProgram;
use std::process::ExitCode;

fn main() -> ExitCode {
    run::<FetchProgram>()
}
