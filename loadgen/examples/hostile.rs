//! Sends hostile requests to a server for ten seconds, and prints the findings.
//!
//! ```sh
//! cargo run -p handle-loadgen --example hostile -- 127.0.0.1:2641 10.1045/july95-arms
//! ```
//!
//! After each case, the server must still answer a plain question about the handle. A case that
//! breaks it is cut down to its smallest form and printed in hexadecimal. The command
//! `handle-loadgen hostile` does the same with all options; `docs/fuzzing.md` has targets that need
//! no network.

use handle_loadgen::hostile::{HostileOptions, hostile};
use std::error::Error;
use std::ops::ControlFlow;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, handle] = &args[..] else {
        return Err("usage: hostile ADDRESS:PORT HANDLE".into());
    };
    // Only loopback and private addresses are accepted unless `is_allowed` is set.
    let options = HostileOptions {
        duration: Duration::from_secs(10),
        ..HostileOptions::new(server.parse()?, handle.as_bytes().to_vec())
    };
    let report = hostile(&options, |progress| {
        println!("{} cases, {} findings", progress.cases, progress.findings);
        ControlFlow::Continue(())
    })?;
    for finding in &report.findings {
        let datagrams = finding.minimal_hex.as_ref().unwrap_or(&finding.datagrams_hex);
        println!("case {}: {:?} after {:?}: {datagrams:?}", finding.case, finding.fault, finding.kind);
    }
    if report.findings.is_empty() { Ok(()) } else { Err("the server has defects".into()) }
}
