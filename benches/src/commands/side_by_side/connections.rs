//! Pipelined requests over connections. There is no echo to compare with: what takes part is `handled` by both datapaths.

use super::scenario::{Result, take_turns};
use super::{Args, Contestant};
use anyhow::Context as _;
use handle_benches::requests::Requests;
use handle_benches::tcp::{Pipeline, TcpFlood};
use handle_benches::turns::ServerTurn;
use handle_proto::ResponseCode;
use std::time::Duration;

/// As it is called in the table.
pub(crate) const NAME: &str = "TCP, pipelined";

/// All rounds.
pub(crate) fn run(
    args: &Args,
    contestants: &[Contestant],
    requests: &Requests,
) -> anyhow::Result<Vec<Result>> {
    let pipeline = Pipeline::of(requests);
    let taking_part: Vec<_> = contestants.iter().filter(|contestant| contestant.echo.is_some()).collect();
    let turns = take_turns(args, taking_part.len(), |at, seconds| {
        let Contestant { name, pid, address, .. } = taking_part[at];
        let (connections, window) = (args.connections, args.connection_window);
        // Connected anew for each turn, so that nobody has answers to read while others have theirs.
        let mut flood = TcpFlood::connect(&pipeline, *address, connections, window, ResponseCode::SUCCESS.0)?;
        ServerTurn::of(*pid, args.server_core, || flood.run(Duration::from_secs_f64(seconds)))
            .with_context(|| format!("{NAME}: {name}"))
    })?;
    let results = taking_part.iter().zip(turns).map(|(contestant, turns)| Result {
        load: NAME,
        server: contestant.name.clone(),
        turns,
        ceiling: None,
    });
    Ok(results.collect())
}
