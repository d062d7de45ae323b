//! What is compared: one run of a program, and the figures in what it prints.

use super::tree::BuiltTree;
use super::{Args, ProbeName};
use anyhow::{Context as _, ensure};
use handle_benches::comparison::{TurnFigures, counted, nanoseconds, ratios};
use serde_json::Value as Json;
use std::process::Command;

/// Answers whose instructions are counted, as in docs/performance.md; whole batches.
const COUNTED_ANSWERS: u64 = 65_536;
/// Records in the set while instructions are counted.
const COUNTED_RECORDS: u64 = 100_000;
/// The kinds of requests of `answer-loop`.
const KINDS: [&str; 5] = ["plain", "missing", "selected", "long", "digest"];

/// One part of the comparison.
pub(super) struct Probe {
    pub(super) name: ProbeName,
    /// Whether every turn gives the same figures.
    pub(super) is_exact: bool,
    pub(super) needs_rivals: bool,
    /// Takes one turn of one tree.
    pub(super) measure: fn(&BuiltTree, &Args) -> anyhow::Result<TurnFigures>,
}

/// All parts, in the order of the table.
pub(super) const PROBES: [Probe; 4] = [
    Probe { name: ProbeName::Instructions, is_exact: true, needs_rivals: false, measure: instructions },
    Probe { name: ProbeName::AnswerLoop, is_exact: false, needs_rivals: false, measure: answer_loop },
    Probe { name: ProbeName::ShareOfEcho, is_exact: false, needs_rivals: false, measure: share_of_echo },
    Probe { name: ProbeName::SideBySide, is_exact: false, needs_rivals: true, measure: side_by_side },
];

/// The standard output of a command.
fn output(mut command: Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}: {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn instructions(tree: &BuiltTree, _: &Args) -> anyhow::Result<TurnFigures> {
    let directory = tempfile::tempdir()?;
    let [records, answers] = [COUNTED_RECORDS, COUNTED_ANSWERS].map(|number| number.to_string());
    let mut figures = Vec::new();
    for kind in KINDS {
        let asked = ["answer-loop", "--records", &records, "--answers", &answers, "--ask", kind];
        let mut bench = tree.bench();
        if kind == KINDS[0] {
            // Builds the set, at full speed.
            output({
                let mut bench = tree.bench();
                bench.args(["answer-loop", "--records", &records, "--answers", "32"]);
                bench
            })?;
        }
        bench.args(asked);
        let file = directory.path().join(kind);
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--tool=callgrind", "--collect-atstart=no"]);
        valgrind.arg("--toggle-collect=*answer_all*");
        valgrind.arg(format!("--callgrind-out-file={}", file.display()));
        valgrind.arg(bench.get_program()).args(bench.get_args()).env_remove("HANDLE_BENCH_FIXTURES");
        output(valgrind)?;
        let counted = counted(&std::fs::read_to_string(file)?).context("no sum in the file of callgrind")?;
        figures.push((format!("instructions, {kind}"), counted as f64 / COUNTED_ANSWERS as f64));
    }
    Ok(figures)
}

fn answer_loop(tree: &BuiltTree, args: &Args) -> anyhow::Result<TurnFigures> {
    let mut figures = Vec::new();
    for kind in KINDS {
        let mut bench = tree.bench();
        bench.args(["answer-loop", "--records", &args.records.to_string(), "--ask", kind]);
        bench.args(["--answers", &args.answers.to_string()]);
        let text = output(bench)?;
        let each = nanoseconds(&text).with_context(|| format!("no time in {text:?}"))?;
        figures.push((format!("ns of an answer, {kind}"), each));
    }
    Ok(figures)
}

fn share_of_echo(tree: &BuiltTree, args: &Args) -> anyhow::Result<TurnFigures> {
    let mut bench = tree.bench();
    bench.args(["share-of-echo", "--json", "--rounds", "1", "--kind", "portable"]);
    bench.args(["--records", &args.records.to_string(), "--seconds", &args.seconds.to_string()]);
    let report: Json = serde_json::from_str(&output(bench)?)?;
    let of = |name: &str| report[name]["median"].as_f64().with_context(|| format!("no {name}"));
    Ok(vec![
        ("share of the echo".to_owned(), of("share")?),
        ("share of the echo, by processor time".to_owned(), of("share_by_cpu")?),
    ])
}

fn side_by_side(tree: &BuiltTree, args: &Args) -> anyhow::Result<TurnFigures> {
    let is_there = |program: &str| Command::new(program).arg("-V").output().is_ok();
    ensure!(is_there("nsd") || is_there("knotd"), "neither NSD nor Knot is installed");
    let mut rivals = tree.rivals();
    rivals.args(["side-by-side", "--json", "--rounds", "1", "--records", &args.records.to_string()]);
    rivals.args(["--seconds", &args.seconds.to_string(), "--names", &args.records.to_string()]);
    let report: Json = serde_json::from_str(&output(rivals)?)?;
    Ok(ratios(&report))
}
