//! The report, as a table or as JSON.

use super::scenario::{Result, TurnArgs};
use comfy_table::Table;
use handle_benches::spread::Spread;
use handle_benches::turns::{ServerTurn, share, share_by_cpu, spread, user_us};
use handle_benches::usage;
use serde_json::{Value, json};

/// What all results of a report have in common.
#[derive(Debug)]
pub(crate) struct ReportHead<'a> {
    /// Records in the set.
    pub(crate) records: u64,
    /// Mean length of an answer.
    pub(crate) answer_len: usize,
    pub(crate) turns: &'a TurnArgs,
    /// What the ceiling is, in words.
    pub(crate) ceiling: &'a str,
}

/// Returns the report as JSON.
pub(crate) fn to_json(head: &ReportHead<'_>, results: &[Result]) -> Value {
    json!({
        "machine": usage::machine(), "records": head.records, "answer_len": head.answer_len,
        "signatures_by": handle_auth::BACKEND,
        "rounds": head.turns.rounds, "seconds": head.turns.seconds,
        "results": results.iter().map(result_to_json).collect::<Vec<_>>(),
    })
}

/// Prints the report as a table.
pub(crate) fn print(head: &ReportHead<'_>, results: &[Result]) {
    println!("{}", usage::machine());
    println!(
        "{} records, answers of {} bytes, {} rounds of {} s; median (min to max); signatures by {}",
        head.records,
        head.answer_len,
        head.turns.rounds,
        head.turns.seconds,
        handle_auth::BACKEND
    );
    println!("the ceiling is {}", head.ceiling);
    let mut table = Table::new();
    table.set_header([
        "load",
        "server",
        "answers/s",
        "CPU us/answer",
        "user us",
        "busy",
        "answers a train",
        "of the ceiling",
        "by CPU",
        "lost",
    ]);
    for result in results {
        let turns = &result.turns;
        let shares =
            result.ceiling.as_ref().map(|ceiling| (share(turns, ceiling), share_by_cpu(turns, ceiling)));
        let text = |spread: Option<Spread>| spread.map_or_else(String::new, |spread| format!("{spread:.2}"));
        table.add_row([
            result.load.to_owned(),
            result.server.clone(),
            format!("{:.0}", spread(turns, ServerTurn::rate)),
            format!("{:.3}", spread(turns, ServerTurn::cpu_us)),
            format!("{:.3}", user_us(turns)),
            format!("{:.2}", spread(turns, ServerTurn::busy).median),
            train_len(turns).map_or_else(String::new, |spread| format!("{:.1}", spread.median)),
            text(shares.map(|(share, _)| share)),
            text(shares.map(|(_, by_cpu)| by_cpu)),
            lost(turns).to_string(),
        ]);
    }
    println!("{table}");
}

/// Returns the answers per train; `None` without trains.
fn train_len(turns: &[ServerTurn]) -> Option<Spread> {
    let lens: Option<Vec<f64>> = turns.iter().map(ServerTurn::train_len).collect();
    lens.map(Spread::of)
}

fn lost(turns: &[ServerTurn]) -> u64 {
    turns.iter().map(|turn| turn.totals.lost).sum()
}

fn result_to_json(result: &Result) -> Value {
    let turns = &result.turns;
    let of_ceiling = |ratio: fn(&[ServerTurn], &[ServerTurn]) -> Spread| {
        result.ceiling.as_ref().map(|ceiling| ratio(turns, ceiling).to_json())
    };
    json!({
        "load": result.load,
        "server": result.server,
        "answers_per_s": spread(turns, ServerTurn::rate).to_json(),
        "cpu_us": spread(turns, ServerTurn::cpu_us).to_json(),
        "user_us": user_us(turns),
        "busy": spread(turns, ServerTurn::busy).to_json(),
        "idle": spread(turns, |turn| turn.idle).to_json(),
        "answers_per_train": train_len(turns).map(|spread| spread.to_json()),
        "share_of_ceiling": of_ceiling(share),
        "share_of_ceiling_by_cpu": of_ceiling(share_by_cpu),
        "lost": lost(turns),
    })
}
