//! Certified answers over both datapaths, compared with the signing rate of the key alone on the
//! same core.

use super::Args;
use super::scenario::{Result, take_turns};
use anyhow::Context as _;
use handle_benches::certified;
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::serve::{self, Child, ServePath};
use handle_benches::turns::ServerTurn;
use std::time::Duration;
use tempfile::TempDir;

/// Name of the load in the table.
pub(crate) const NAME: &str = "certified, RSA-2048";
/// Different requests. Few are enough for some thousand signatures per second.
const REQUESTS: usize = 1 << 14;

/// Signing servers, and the directory of their key file.
pub(crate) struct Signers {
    servers: Vec<(String, Child)>,
    _directory: TempDir,
}

/// Starts the signing servers, with workers and slow threads on the core of the servers. The
/// calling thread must not be pinned, because children inherit its core.
pub(crate) fn start(args: &Args) -> anyhow::Result<Signers> {
    let directory = tempfile::tempdir()?;
    let key = certified::key_file(directory.path())?;
    let mut servers = Vec::new();
    for path in [ServePath::Uring, ServePath::Portable] {
        if serve::open_loopback(path.kind()).is_err() {
            continue;
        }
        let [records, core] = [args.records.to_string(), args.common.server_core.to_string()];
        let key = key.display().to_string();
        let role = ["signed".to_owned(), records, path.name().to_owned(), key, core];
        let child = Child::start(&role).with_context(|| format!("cannot start handled, {}", path.name()))?;
        servers.push((format!("handled, {}", path.name()), child));
    }
    Ok(Signers { servers, _directory: directory })
}

/// Runs all rounds.
pub(crate) fn run(args: &Args, signers: &Signers) -> anyhow::Result<Vec<Result>> {
    let servers = &signers.servers;
    let requests = Requests::new(args.records, REQUESTS, RequestKind::Certified, 1)?;
    let mut turns = take_turns(&args.turns, servers.len() + 1, |at, seconds| {
        let duration = Duration::from_secs_f64(seconds);
        match at.checked_sub(1).map(|at| &servers[at]) {
            None => {
                let sign = || Ok(certified::sign(args.common.server_core, duration)?.totals());
                // Includes the servers that this process started, which are idle.
                ServerTurn::of(std::process::id(), args.common.server_core, sign)
            }
            Some((name, child)) => {
                // `ServerTurn::of` measures the processor time.
                let used = || Ok(Duration::ZERO);
                let ask = || certified::ask(child.address, &requests, &certified::SIGNED, duration, used);
                ServerTurn::of(child.pid(), args.common.server_core, || Ok(ask()?.totals()))
                    .with_context(|| format!("{NAME}: {name}"))
            }
        }
    })?;
    let alone = turns.remove(0);
    let signed = servers.iter().zip(turns).map(|((server, _), turns)| Result {
        load: NAME,
        server: server.clone(),
        turns,
        ceiling: Some(alone.clone()),
    });
    let signed: Vec<Result> = signed.collect();
    let alone = Result { load: NAME, server: "the key alone".to_owned(), turns: alone, ceiling: None };
    Ok([alone].into_iter().chain(signed).collect())
}
