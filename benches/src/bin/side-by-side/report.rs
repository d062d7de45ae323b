//! The table, and the same as JSON.

use crate::Args;
use crate::scenario::Result;
use comfy_table::Table;
use handle_benches::spread::Spread;
use handle_benches::turns::{Turn, share, share_by_cpu, spread, user_us};
use handle_benches::usage;
use serde_json::{Value, json};

pub(crate) fn print(args: &Args, usual_len: usize, results: &[Result<'_>]) {
    if args.json {
        let report = json!({
            "machine": usage::machine(), "records": args.records, "answer_len": usual_len,
            "rounds": args.rounds, "seconds": args.seconds,
            "results": results.iter().map(to_json).collect::<Vec<_>>(),
        });
        println!("{report:#}");
        return;
    }
    println!("{}", usage::machine());
    println!(
        "{} records, answers of {usual_len} bytes, {} rounds of {} s; median (least to most)",
        args.records, args.rounds, args.seconds
    );
    let mut table = Table::new();
    table.set_header([
        "load",
        "server",
        "answers/s",
        "CPU us/answer",
        "user us",
        "busy",
        "answers a train",
        "share of echo",
        "by CPU",
        "lost",
    ]);
    for result in results {
        let turns = &result.turns;
        let shares = result.echo.as_ref().map(|echo| (share(turns, echo), share_by_cpu(turns, echo)));
        let text = |spread: Option<Spread>| spread.map_or_else(String::new, |spread| format!("{spread:.2}"));
        table.add_row([
            result.scenario.name.to_owned(),
            result.server.to_owned(),
            format!("{:.0}", spread(turns, Turn::rate)),
            format!("{:.3}", spread(turns, Turn::cpu_us)),
            format!("{:.3}", user_us(turns)),
            format!("{:.2}", spread(turns, Turn::busy).median),
            format!("{:.1}", spread(turns, Turn::train_len).median),
            text(shares.map(|(share, _)| share)),
            text(shares.map(|(_, by_cpu)| by_cpu)),
            lost(turns).to_string(),
        ]);
    }
    println!("{table}");
}

fn lost(turns: &[Turn]) -> u64 {
    turns.iter().map(|turn| turn.got.lost).sum()
}

fn to_json(result: &Result<'_>) -> Value {
    let turns = &result.turns;
    let of_echo =
        |what: fn(&[Turn], &[Turn]) -> Spread| result.echo.as_ref().map(|echo| what(turns, echo).to_json());
    json!({
        "load": result.scenario.name,
        "server": result.server,
        "answers_per_s": spread(turns, Turn::rate).to_json(),
        "cpu_us": spread(turns, Turn::cpu_us).to_json(),
        "user_us": user_us(turns),
        "busy": spread(turns, Turn::busy).to_json(),
        "idle": spread(turns, |turn| turn.idle).to_json(),
        "answers_per_train": spread(turns, Turn::train_len).to_json(),
        "share_of_echo": of_echo(share),
        "share_of_echo_by_cpu": of_echo(share_by_cpu),
        "lost": lost(turns),
    })
}
