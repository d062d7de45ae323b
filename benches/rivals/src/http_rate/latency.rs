//! Response times at half of the highest rate of redirects, by a fixed schedule.

use super::load::{HttpLoad, LoadTurn, ratio, spread};
use super::servers::{HttpForm, HttpServers};
use super::{Args, say};
use anyhow::Context as _;
use comfy_table::Table;
use handle_loadgen::{LoadPattern, Protocol};
use serde_json::json;
use std::num::NonZeroU64;
use std::time::Duration;

pub(super) fn measure(args: &Args, servers: &HttpServers) -> anyhow::Result<serde_json::Value> {
    let of = |name, server| HttpLoad { name, server, form: HttpForm::Http1, protocol: Protocol::Redirect };
    let loads = [of("bare hyper", servers.bare(HttpForm::Http1)), of("redirect", &servers.gateway)];
    let duration = Duration::from_secs_f64(args.seconds);
    let rate = match args.rate {
        Some(rate) => rate,
        None => {
            loads[1].run(args, duration / 4)?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
            let half = (loads[1].run(args, duration)?.rate / 2.0) as u64;
            half
        }
    };
    let schedule = LoadPattern::Open { rate: NonZeroU64::new(rate).context("a rate above 0")? };
    let mut turns: [Vec<LoadTurn>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..args.rounds {
        for (load, turns) in loads.iter().zip(&mut turns) {
            turns.push(load.turn(args, duration, schedule.clone())?);
        }
    }
    let mut table = Table::new();
    table.set_header(["server", "p50 us", "p99 us", "p99.9 us", "server busy"]);
    let mut rows = Vec::new();
    for (load, turns) in loads.iter().zip(&turns) {
        let percentiles = [0, 1, 2].map(|at| spread(turns, |turn| turn.percentiles_us[at]));
        let mut row = vec![load.name.to_owned()];
        row.extend(percentiles.iter().map(|spread| format!("{spread:.0}")));
        row.push(format!("{:.2}", spread(turns, |turn| turn.busy).median));
        table.add_row(row);
        let [p50, p99, p99_9] = percentiles.map(handle_benches::spread::Spread::to_json);
        rows.push(json!({ "server": load.name, "p50_us": p50, "p99_us": p99, "p99_9_us": p99_9 }));
    }
    let [p50, p99] = [0, 1].map(|at| ratio(&turns[1], &turns[0], |turn| turn.percentiles_us[at]));
    say(args, &format!("response times of redirects at {rate} requests/s\n{table}"));
    say(args, &format!("p99 to that of bare hyper: {p99:.2}; p50: {p50:.2}"));
    Ok(json!({ "rate": rate, "servers": rows, "p99_ratio": p99.to_json(), "p50_ratio": p50.to_json() }))
}
