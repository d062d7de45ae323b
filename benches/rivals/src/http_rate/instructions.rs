//! Instructions of the server for each answer, which do not depend on other load.
//!
//! The server runs under valgrind, which counts the instructions of all its threads in user mode.
//! Of two runs of different length, the difference leaves out its start.

use super::load::HttpLoad;
use super::servers::{HttpForm, HttpServer, bare_role, find, gateway_role};
use super::{Args, say};
use anyhow::{Context as _, ensure};
use comfy_table::Table;
use handle_loadgen::Protocol;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

pub(super) fn count(args: &Args, directory: &Path) -> anyhow::Result<()> {
    ensure!(find("valgrind").is_some(), "valgrind is not installed (Debian package valgrind)");
    let mut table = Table::new();
    table.set_header(["over", "server", "instructions"]);
    let mut rows = Vec::new();
    for form in [HttpForm::Http1, HttpForm::Http2] {
        let (bare, gateway) = (bare_role(args, directory, form), gateway_role(args, directory));
        for (name, role, protocol) in [
            ("bare hyper", &bare, Protocol::Redirect),
            ("redirect", &gateway, Protocol::Redirect),
            ("JSON", &gateway, Protocol::Json),
        ] {
            let run = |seconds| run(args, directory, role, (name, form, protocol), seconds);
            let (short, long) = (run(args.seconds / 2.0)?, run(args.seconds * 2.0)?);
            ensure!(long.answers > short.answers, "{name}: the longer run has no more answers");
            let each = (long.instructions as f64 - short.instructions as f64)
                / (long.answers - short.answers) as f64;
            table.add_row([form.name().to_owned(), name.to_owned(), format!("{each:.0}")]);
            rows.push(json!({ "over": form.name(), "server": name, "instructions": each }));
        }
    }
    say(args, &table.to_string());
    if args.common.json {
        println!("{:#}", json!({ "instructions": rows }));
    }
    Ok(())
}

/// The totals of one run.
struct CountedRun {
    answers: u64,
    instructions: u64,
}

fn run(
    args: &Args,
    directory: &Path,
    role: &[String],
    (name, form, protocol): (&'static str, HttpForm, Protocol),
    seconds: f64,
) -> anyhow::Result<CountedRun> {
    let file = directory.join("callgrind.out");
    let out = format!("--callgrind-out-file={}", file.display());
    let valgrind = ["valgrind", "--quiet", "--tool=callgrind", &out].map(str::to_owned);
    let server = HttpServer::start(&valgrind, role)?;
    let load = HttpLoad { name, server: &server, form, protocol };
    let answers = load.run(args, Duration::from_secs_f64(seconds))?.answers;
    // Its end writes the file.
    drop(server);
    let counted = std::fs::read_to_string(&file).context("valgrind wrote no counts")?;
    let total = counted.lines().find_map(|line| line.strip_prefix("summary: "));
    let total = total.context("the counts have no summary")?;
    let instructions = total.trim().parse().with_context(|| format!("unexpected counts: {total}"))?;
    std::fs::remove_file(&file)?;
    Ok(CountedRun { answers, instructions })
}
