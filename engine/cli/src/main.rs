//! `hdl`: see the library `handle_cli`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    handle_cli::main()
}
