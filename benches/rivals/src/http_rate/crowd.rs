//! The rate of redirects beside idle and slow clients.

use super::load::{HttpLoad, ratio, spread};
use super::servers::{HttpForm, HttpServers};
use super::{Args, say};
use anyhow::Context as _;
use handle_benches::args::CrowdArgs;
use handle_benches::tcp::ConnectionCrowd;
use handle_loadgen::Protocol;
use serde_json::json;
use std::time::Duration;

/// What a slow client sends, a byte at a time; its path does not end.
const SLOW_REQUEST: &[u8] = b"GET /10.1/0";
/// The request that precedes the wait of an idle client.
const IDLE_REQUEST: &[u8] = b"GET /10.1/00000000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// The server notices closed connections in this time.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn measure(args: &Args, servers: &HttpServers) -> anyhow::Result<serde_json::Value> {
    let server = &servers.gateway;
    let load = HttpLoad { name: "redirect", server, form: HttpForm::Http1, protocol: Protocol::Redirect };
    let duration = Duration::from_secs_f64(args.seconds);
    let CrowdArgs { idle, slow } = args.crowd;
    load.run(args, duration / 4)?;
    let (mut alone, mut crowded) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        alone.push(load.run(args, duration)?);
        let mut crowd = ConnectionCrowd::gather(server.address(), idle, slow, SLOW_REQUEST)?;
        crowd.exchange(IDLE_REQUEST).context("an idle connection was closed")?;
        crowded.push(crowd.beside(|| load.run(args, duration))?);
        crowd.exchange(IDLE_REQUEST).context("an idle connection was closed")?;
        drop(crowd);
        std::thread::sleep(PAUSE);
    }
    let (share, cpu_share) =
        (ratio(&crowded, &alone, |turn| turn.rate), ratio(&crowded, &alone, |turn| 1.0 / turn.cpu_us));
    let (alone, beside) = (spread(&alone, |turn| turn.rate), spread(&crowded, |turn| turn.rate));
    say(
        args,
        &format!("redirects beside {idle} idle and {slow} slow clients: {beside:.0}/s, alone {alone:.0}/s"),
    );
    say(args, &format!("share of the rate: {share:.3}; by CPU: {cpu_share:.3}"));
    Ok(json!({
        "idle": idle, "slow": slow, "alone": alone.to_json(), "beside": beside.to_json(),
        "share": share.to_json(), "share_by_cpu": cpu_share.to_json(),
    }))
}
