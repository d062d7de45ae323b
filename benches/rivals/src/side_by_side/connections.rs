//! Pipelined requests over connections to `handled`, with both datapaths. There is no echo for
//! comparison.

use super::scenario::{Result, take_turns};
use super::{Args, Contestant};
use anyhow::Context as _;
use handle_benches::requests::Requests;
use handle_benches::tcp::{Pipeline, TcpFlood};
use handle_benches::turns::ServerTurn;
use handle_proto::ResponseCode;
use std::time::Duration;

/// Name of the load in the table.
pub(crate) const NAME: &str = "TCP, pipelined";

/// Runs all rounds.
pub(crate) fn run(
    args: &Args,
    contestants: &[Contestant],
    requests: &Requests,
) -> anyhow::Result<Vec<Result>> {
    let pipeline = Pipeline::of(requests);
    let participants: Vec<_> = contestants.iter().filter(|contestant| contestant.ceiling.is_some()).collect();
    let turns = take_turns(&args.turns, participants.len(), |at, seconds| {
        let Contestant { name, pid, address, .. } = participants[at];
        let (connections, window) = (args.connections, args.connection_window);
        // New connections for each turn, so that no answers of one server wait in the turn of
        // another.
        let mut flood = TcpFlood::connect(&pipeline, *address, connections, window, ResponseCode::SUCCESS.0)?;
        ServerTurn::of(*pid, args.common.server_core, || flood.run(Duration::from_secs_f64(seconds)))
            .with_context(|| format!("{NAME}: {name}"))
    })?;
    let results = participants.iter().zip(turns).map(|(contestant, turns)| Result {
        load: NAME,
        server: contestant.name.clone(),
        turns,
        ceiling: None,
    });
    Ok(results.collect())
}
