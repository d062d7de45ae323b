//! `handle-loadgen`: see the library `handle_loadgen`.

use std::process::ExitCode;

fn main() -> ExitCode {
    handle_loadgen::cli::main()
}
