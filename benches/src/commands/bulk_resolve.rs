//! Handles per second of `hdl resolve --file` in a lab on loopback, starting from the global
//! registry, and the processor time of the client per handle.
//!
//! Each run begins with an empty cache, so there are one or two requests for each prefix besides
//! one for each handle. Client and servers share the cores of the machine. The processor time is
//! that of the client alone, so handles per second of it are the rate of one core if the servers
//! run elsewhere.

use anyhow::{Context as _, ensure};
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Measures bulk resolution in a lab. Build `hdl` and `handle-lab` first, with the same profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File with the records of the lab, one per line.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/dois.jsonl"))]
    records: PathBuf,
    /// Numbers of handles resolved at the same time; each is measured.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    jobs: Vec<u16>,
    /// Runs of each number.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Request signatures and verify them.
    #[arg(long)]
    certify: bool,
    /// Path of `hdl`, with `handle-lab` beside it; by default the program beside this one.
    #[arg(long)]
    hdl: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A running lab. Dropping it stops it.
struct Lab {
    child: Child,
    root: PathBuf,
}

impl Lab {
    fn up(program: &Path, records: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["up", "--json", "--records"]).arg(records);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("standard output was piped")?).read_line(&mut line)?;
        let reply: Value = serde_json::from_str(&line).context("the lab did not come up")?;
        let root = reply["root"].as_str().context("the file of the global service")?.into();
        Ok(Self { child, root })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Result of one run.
struct Run {
    elapsed: Duration,
    used: Usage,
}

fn resolve(args: &Args, hdl: &Path, lab: &Lab, list: &Path, jobs: u16, count: usize) -> anyhow::Result<Run> {
    let mut command = Command::new(hdl);
    command.args(["resolve", "--url", "--jobs", &jobs.to_string(), "--file"]).arg(list);
    command.args(args.certify.then_some("--certify"));
    command.env("HDL_ROOT", &lab.root).stdin(Stdio::null()).stdout(Stdio::piped());
    let began = Instant::now();
    let mut child = command.spawn()?;
    let mut output = String::new();
    child.stdout.take().context("standard output was piped")?.read_to_string(&mut output)?;
    let elapsed = began.elapsed();
    // The usage is complete when the process has ended, and gone when it has been waited for.
    let pid = Pid::from_child(&child);
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let used = Usage::of(child.id())?;
    ensure!(child.wait()?.success(), "not every handle was found");
    ensure!(output.lines().count() == count, "{} of {count} handles were found", output.lines().count());
    Ok(Run { elapsed, used })
}

fn handles(path: &Path) -> anyhow::Result<(String, usize)> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut list, mut prefixes, mut count) = (String::new(), BTreeSet::new(), 0);
    for line in text.lines() {
        let record: Value = serde_json::from_str(line)?;
        let handle = record["handle"].as_str().context("a handle")?;
        prefixes.insert(handle.split('/').next().unwrap_or_default().to_owned());
        list.push_str(handle);
        list.push('\n');
        count += 1;
    }
    eprintln!("{count} handles under {} prefixes", prefixes.len());
    Ok((list, count))
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let default_hdl = std::env::current_exe()?.with_file_name("hdl");
    let hdl = args.hdl.clone().unwrap_or(default_hdl);
    let program = hdl.with_file_name("handle-lab");
    for path in [&hdl, &program] {
        let build = "cargo build --release -p handle-cli -p handle-lab";
        ensure!(path.exists(), "there is no {}: {build}", path.display());
    }
    let directory = tempfile::tempdir()?;
    let (list, count) = handles(&args.records)?;
    let path = directory.path().join("handles.txt");
    fs::write(&path, list)?;
    let lab = Lab::up(&program, &args.records)?;
    // The first run only maps the pages of the servers.
    resolve(&args, &hdl, &lab, &path, 8, count)?;
    println!("{}", usage::machine());
    for &jobs in &args.jobs {
        let (mut rates, mut by_core, mut in_kernel) = (vec![], vec![], vec![]);
        for _ in 0..args.rounds {
            let Run { elapsed, used } = resolve(&args, &hdl, &lab, &path, jobs, count)?;
            rates.push(count as f64 / elapsed.as_secs_f64());
            by_core.push(count as f64 / used.total().as_secs_f64());
            in_kernel.push(used.system.as_secs_f64() / used.total().as_secs_f64());
        }
        let [rate, by_core, in_kernel] = [rates, by_core, in_kernel].map(Spread::of);
        if args.json {
            let figures = json!({
                "machine": usage::machine(), "handles": count, "jobs": jobs, "handles_per_s": rate.median,
                "handles_per_core_s": by_core.median, "share_in_kernel": in_kernel.median,
            });
            println!("{figures}");
            continue;
        }
        println!(
            "{jobs:>4} jobs   {rate:.0} handles/s   {by_core:.0} handles/s a core   {in_kernel:.2} of it in the kernel"
        );
    }
    Ok(())
}
