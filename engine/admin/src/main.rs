//! `handle-admin`: keeps the records of a service, and changes them for their administrators.

use handle_admin::program::AdminProgram;
use handle_daemon::program::run;
use std::process::ExitCode;

fn main() -> ExitCode {
    run::<AdminProgram>()
}
