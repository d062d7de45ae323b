//! Rate and peak memory of `hdl import` into a new store.

use anyhow::{Context as _, ensure};
use handle_benches::records::{RecordBuffer, RecordGenerator};
use handle_benches::usage;
use handle_proto::json::{record_to_json, text};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Measures an import of lines of JSON into a new store. Build `hdl` first, with the same profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Records to import.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Import into this empty database of PostgreSQL instead of a file, given by its URL.
    #[arg(long)]
    database: Option<String>,
    /// Path of `hdl`; by default the program beside this one.
    #[arg(long)]
    hdl: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let default_hdl = std::env::current_exe()?.with_file_name("hdl");
    let hdl = args.hdl.unwrap_or(default_hdl);
    ensure!(hdl.exists(), "there is no {}: cargo build --release -p handle-cli", hdl.display());
    let directory = tempfile::tempdir()?;
    let (lines, file) = (directory.path().join("records.jsonl"), directory.path().join("store.redb"));
    let store = args.database.map_or_else(|| file.clone(), PathBuf::from);
    write_lines(&lines, args.records)?;
    let mut command = Command::new(hdl);
    command.arg("import").arg(&store).arg(&lines).args(["--create", "--home", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let memory = watch(&mut child)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "hdl import: {}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let seconds = report["seconds"].as_f64().context("the duration of the import")?;
    let rate = args.records as f64 / seconds;
    // A database does not tell the space that it takes.
    let (lines_len, store_len) = (fs::metadata(&lines)?.len(), fs::metadata(&file).map_or(0, |it| it.len()));
    if args.json {
        let figures = json!({
            "records": args.records, "seconds": seconds, "records_per_s": rate, "memory_bytes": memory,
            "lines_bytes": lines_len, "store_bytes": store_len, "machine": usage::machine(),
        });
        println!("{figures}");
        return Ok(());
    }
    println!("{}", usage::machine());
    println!("{} records in {seconds:.1} s: {rate:.0}/s, at most {} MiB", args.records, memory >> 20);
    println!("{} MiB of JSON, {} MiB of store", lines_len >> 20, store_len >> 20);
    Ok(())
}

fn write_lines(path: &Path, records: u64) -> anyhow::Result<()> {
    let (generator, mut buffer) = (RecordGenerator::new()?, RecordBuffer::default());
    let mut out = BufWriter::new(File::create(path)?);
    for n in 0..records {
        let record = generator.record(n, &mut buffer);
        writeln!(out, "{}", text(&record_to_json(record.handle, record.values)))?;
    }
    Ok(out.flush()?)
}

/// Waits for the end of a process and returns its peak memory, in bytes.
fn watch(child: &mut Child) -> anyhow::Result<u64> {
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        // The status disappears with the process, so the last read may fail.
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) << 10);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(peak)
}
