//! `handled`: serves a published set of handle records over UDP and TCP.

use handle_daemon::program::run;
use handle_server::program::HandledProgram;
use std::process::ExitCode;

fn main() -> ExitCode {
    run::<HandledProgram>()
}
