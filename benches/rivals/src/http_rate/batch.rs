//! The time of a request for many records.

use super::servers::HttpServers;
use super::{Args, say};
use handle_benches::batch::BatchClient;
use handle_benches::spread::Spread;
use serde_json::json;

/// Names in a request.
const NAMES: u64 = 1000;
/// Requests in each round.
const REQUESTS: u64 = 20;

pub(super) fn measure(args: &Args, servers: &HttpServers) -> anyhow::Result<serde_json::Value> {
    let names: Vec<String> =
        (0..NAMES).map(|number| format!("10.1/{:08}", number * 7919 % args.records)).collect();
    let mut client = BatchClient::connect(servers.gateway.address())?;
    // The first request reads the records into memory.
    client.resolve(&names)?;
    let mut times_ms = Vec::new();
    for _ in 0..args.rounds as u64 * REQUESTS {
        times_ms.push(client.resolve(&names)?.as_secs_f64() * 1e3);
    }
    let times_ms = Spread::of(times_ms);
    say(args, &format!("POST /api/resolve with {NAMES} names of the set: {times_ms:.2} ms"));
    Ok(json!({ "names": NAMES, "ms": times_ms.to_json() }))
}
