//! Costs of sets and stores of many short records, by their number.

mod picture;
mod records;
mod set;
mod store;

use anyhow::{Context as _, ensure};
use clap::{Subcommand, ValueEnum};
use comfy_table::Table;
use handle_benches::{serve, usage};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Interval between two readings of the memory of this process.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Measures sets or stores of many short records: a handle of 16 bytes with one URL.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// What is measured.
    #[arg(long, value_enum, default_value = "set")]
    what: Subject,
    /// Numbers of records. Each is measured in a process of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000, 10_000_000])]
    records: Vec<u64>,
    /// Directory for the files, which are removed afterwards; by default a temporary directory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Draw how the costs of sets change with their size, as SVG in this file.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Subject {
    /// A published set: building, opening, lookups, publishing changes, merging.
    Set,
    /// A store in a file: importing, reading, the set that is published from it.
    Store,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Subcommand)]
enum Role {
    #[command(hide = true)]
    Measure { what: Subject, records: u64, dir: PathBuf },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if let Some(Role::Measure { what, records, dir }) = args.role {
        let figures = match what {
            Subject::Set => set::measure(&dir, records)?,
            Subject::Store => store::measure(&dir, records)?,
        };
        println!("{}", figures.0);
        return Ok(());
    }
    ensure!(!args.records.is_empty() && !args.records.contains(&0), "numbers of records from 1 on");
    let parent = args.dir.unwrap_or_else(std::env::temp_dir);
    let mut columns = Vec::new();
    for &records in &args.records {
        let dir = tempfile::tempdir_in(&parent).with_context(|| format!("in {}", parent.display()))?;
        columns.push(in_child(args.what, records, dir.path())?);
    }
    if let Some(file) = args.picture {
        std::fs::write(&file, picture::draw(&args.records, &columns))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    show(&args.records, &columns, args.json);
    Ok(())
}

/// Measures in another process, so that memory of one size is not counted for the next.
fn in_child(what: Subject, records: u64, dir: &Path) -> anyhow::Result<Map<String, Value>> {
    let [program, command] = serve::this_command()?;
    let what = what.to_possible_value().context("a name")?;
    let mut child = Command::new(program);
    child.arg(command).args(["measure", what.get_name(), &records.to_string()]).arg(dir);
    let output = child.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the measurement failed: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn show(sizes: &[u64], columns: &[Map<String, Value>], is_json: bool) {
    if is_json {
        let sizes = sizes.iter().zip(columns).map(|(n, it)| json!({ "records": n, "figures": it }));
        let sizes: Vec<_> = sizes.collect();
        println!("{:#}", json!({ "machine": usage::machine(), "sizes": sizes }));
        return;
    }
    println!("{}", usage::machine());
    let mut table = Table::new();
    let heads = sizes.iter().map(|&records| handle_benches::sets::size_name(records));
    table.set_header(std::iter::once("figure".to_owned()).chain(heads));
    for name in columns.first().into_iter().flat_map(Map::keys) {
        let cells =
            columns.iter().map(|it| it[name].as_f64().map_or_else(String::new, |n| format!("{n:.2}")));
        table.add_row(std::iter::once(name.clone()).chain(cells));
    }
    println!("{table}");
}

/// Figures by name, in their order.
#[derive(Default)]
struct Figures(Value);

impl Figures {
    fn add(&mut self, name: &str, value: f64) {
        eprintln!("{name}: {value:.2}");
        self.0[name] = json!(value);
    }
}

/// The largest private memory of this process since the last reading. Pages of mapped files are not
/// counted: the kernel takes them back when it needs memory.
struct PrivateMemory {
    peak: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl PrivateMemory {
    fn watch() -> Self {
        let watch = Self { peak: Arc::default(), ended: Arc::default() };
        let (peak, ended) = (watch.peak.clone(), watch.ended.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                peak.fetch_max(usage::private_len().unwrap_or_default(), Ordering::Relaxed);
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        watch
    }

    /// The peak in MiB; the next one begins.
    fn take_mib(&self) -> f64 {
        self.peak.swap(0, Ordering::Relaxed) as f64 / f64::from(1 << 20)
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
