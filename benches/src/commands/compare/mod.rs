//! Compares this tree with another commit: the ratios of the front page, both in turn on one
//! machine.
//!
//! The other commit is built in a worktree below `target/compare`, with its own target directory
//! and its own sets, and stays there for the next time. The programs of both take turns in
//! alternating order, so that slow changes of the machine fall on both alike.

mod probes;
mod tree;

use anyhow::ensure;
use clap::ValueEnum;
use comfy_table::Table;
use handle_benches::comparison::{ComparedFigure, TurnFigures, joined};
use handle_benches::spread::Spread;
use handle_benches::usage;
use probes::{PROBES, Probe};
use serde_json::json;
use tree::BuiltTree;

/// Compares this tree with another commit, both in turn.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The commit to compare with.
    #[arg(long, value_name = "COMMIT")]
    base: String,
    /// Turns of each tree.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Records in the sets, which are built if they are missing.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Length of a turn under load, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Answers of a turn without a socket.
    #[arg(long, default_value_t = 5_000_000)]
    answers: usize,
    /// Measure only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<ProbeName>,
    /// Profile of cargo with which both are built.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProbeName {
    /// Instructions of each kind of answer, counted by callgrind, which is exact: one turn.
    Instructions,
    /// Time of an answer without a socket.
    AnswerLoop,
    /// Rate as a share of that of an echo.
    ShareOfEcho,
    /// Rate beside name servers, if NSD or Knot is installed.
    SideBySide,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "at least one round");
    let wanted: Vec<&Probe> =
        PROBES.iter().filter(|probe| args.only.is_empty() || args.only.contains(&probe.name)).collect();
    let has_rivals = wanted.iter().any(|probe| probe.needs_rivals);
    let current = BuiltTree::current(&args.profile, has_rivals)?;
    let base = BuiltTree::of_commit(&args.base, &args.profile, has_rivals)?;
    let (mut figures, mut left_out) = (Vec::new(), Vec::new());
    for probe in wanted {
        match compare(probe, &base, &current, &args) {
            Ok(found) => figures.extend(found),
            Err(error) => left_out.push(format!("{:?}: {error:#}", probe.name)),
        }
    }
    report(&args, [&base, &current], &figures, &left_out);
    Ok(())
}

/// Takes all turns of one probe.
fn compare(
    probe: &Probe,
    base: &BuiltTree,
    current: &BuiltTree,
    args: &Args,
) -> anyhow::Result<Vec<ComparedFigure>> {
    let rounds = if probe.is_exact { 1 } else { args.rounds };
    let (mut of_base, mut of_current): (Vec<TurnFigures>, Vec<TurnFigures>) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for is_base in [round % 2 == 0, round % 2 == 1] {
            let (tree, turns) = if is_base { (base, &mut of_base) } else { (current, &mut of_current) };
            eprintln!("{:?}, turn {} of {rounds}: {}", probe.name, round + 1, tree.name);
            turns.push((probe.measure)(tree, args)?);
        }
    }
    Ok(joined(&of_base, &of_current))
}

fn report(args: &Args, [base, current]: [&BuiltTree; 2], figures: &[ComparedFigure], left_out: &[String]) {
    if args.json {
        let report = json!({
            "machine": usage::machine(), "base": base.commit, "current": current.commit,
            "profile": args.profile, "records": args.records, "rounds": args.rounds,
            "figures": figures.iter().map(ComparedFigure::to_json).collect::<Vec<_>>(),
            "left_out": left_out,
        });
        println!("{report:#}");
        return;
    }
    println!("{}", usage::machine());
    println!(
        "base {}, current {}, {} records, {} rounds; median (min to max)",
        base.commit, current.commit, args.records, args.rounds
    );
    let mut table = Table::new();
    table.set_header(["figure", "base", "current", "current / base"]);
    for figure in figures {
        let [base, current] = [&figure.base, &figure.current].map(|turns| Spread::of(turns.iter().copied()));
        let ratio = figure.ratio();
        table.add_row([
            figure.name.clone(),
            format!("{base:.2}"),
            format!("{current:.2}"),
            format!("{ratio:.3}"),
        ]);
    }
    println!("{table}");
    left_out.iter().for_each(|why| println!("left out: {why}"));
}
