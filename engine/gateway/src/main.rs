//! `handle-gateway`: answers HTTP: the JSON API, the proxy, and the handle protocol over HTTP.

use handle_daemon::program::run;
use handle_gateway::program::GatewayProgram;
use std::process::ExitCode;

fn main() -> ExitCode {
    run::<GatewayProgram>()
}
