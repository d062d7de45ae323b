//! Costs of a snapshot: building, opening, size, and lookups.

use anyhow::{Context as _, ensure};
use clap::Subcommand;
use comfy_table::Table;
use handle_benches::lookups::{self, BATCH_LEN, LookupKeys};
use handle_benches::records::{RecordBuffer, RecordGenerator};
use handle_benches::spread::Spread;
use handle_benches::usage::{self, Usage};
use handle_benches::{serve, sets};
use handle_snapshot::{LoadMode, PublishedSet};
use serde_json::{Value, json};
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Records of the smaller set, with which lookups are compared.
const FEW: u64 = 100_000;
/// More keys than fit into any processor cache.
const KEYS_COUNT: usize = 1 << 21;
const OPENS_COUNT: usize = 50;

/// Measures building, opening, size and lookups of a snapshot.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Records in the set, which is built if it is missing.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Measurements of each kind of lookup.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Lookups of one measurement.
    #[arg(long, default_value_t = KEYS_COUNT)]
    lookups: usize,
    /// Do not measure building, which takes longest.
    #[arg(long)]
    no_build: bool,
    /// Look up in a copy in memory instead of the mapped file.
    #[arg(long)]
    copy_to_memory: bool,
    /// Core of the measurements.
    #[arg(long, default_value_t = 0)]
    core: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Role of a child process; not shown in the help.
#[derive(Clone, Copy, Subcommand)]
enum Role {
    #[command(hide = true)]
    Build { records: u64 },
}

/// One figure.
struct Figure {
    name: String,
    target: &'static str,
    value: Spread,
    unit: &'static str,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "at least one round");
    serve::pin(Some(args.core));
    if let Some(Role::Build { records }) = args.role {
        println!("{}", build(records)?);
        return Ok(());
    }
    let mut figures = Vec::new();
    if !args.no_build {
        build_figures(args.records, &mut figures)?;
    }
    let set = sets::open(args.records)?;
    figures.push(figure("opening", "< 10", open_ms(&set)?, "ms"));
    let layer = set.layers().first().context("a layer")?.header();
    let per_handle = |len: u64| Spread::of([len as f64 / layer.handles_count as f64]);
    figures.push(figure("index", "<= 12", per_handle(layer.index_len), "bytes a handle"));
    figures.push(figure("records", "", per_handle(layer.records_len), "bytes a handle"));
    drop(set);
    let (one, batch) = lookup_ns(args.records, &args)?;
    let (one_few, batch_few) = lookup_ns(FEW, &args)?;
    let (many, few) = (sets::size_name(args.records), sets::size_name(FEW));
    figures.push(figure(&format!("lookup among {many}, one at a time"), "", one, "ns"));
    figures.push(figure(&format!("lookup among {many}, batches of {BATCH_LEN}"), "<= 80", batch, "ns"));
    figures.push(figure(&format!("lookup among {few}, one at a time"), "", one_few, "ns"));
    figures.push(figure(&format!("lookup among {few}, batches of {BATCH_LEN}"), "", batch_few, "ns"));
    let ratio = Spread {
        median: batch.median / batch_few.median,
        min: batch.min / batch_few.max,
        max: batch.max / batch_few.min,
    };
    figures.push(figure(&format!("lookup in batches, {many} to {few}"), "<= 2.5", ratio, "times"));
    show(&args, &figures);
    Ok(())
}

fn figure(name: &str, target: &'static str, value: Spread, unit: &'static str) -> Figure {
    Figure { name: name.to_owned(), target, value, unit }
}

fn show(args: &Args, figures: &[Figure]) {
    if args.json {
        let figures: Vec<Value> = figures
            .iter()
            .map(|figure| {
                json!({
                    "figure": figure.name, "target": figure.target, "unit": figure.unit,
                    "measured": figure.value.to_json(),
                })
            })
            .collect();
        let report = json!({ "machine": usage::machine(), "records": args.records, "figures": figures });
        println!("{report:#}");
        return;
    }
    println!("{}", usage::machine());
    let mut table = Table::new();
    table.set_header(["figure", "target", "measured: median (min to max)", "unit"]);
    for Figure { name, target, value, unit } in figures {
        table.add_row([name.as_str(), target, &format!("{value:.2}"), unit]);
    }
    println!("{table}");
}

/// In a child: builds one layer and returns time and memory as JSON.
fn build(records: u64) -> anyhow::Result<Value> {
    let generator = RecordGenerator::new()?;
    let temp_dir = sets::directory(records).parent().context("a directory")?.to_owned();
    std::fs::create_dir_all(&temp_dir)?;
    let (pid, start, used) = (std::process::id(), Instant::now(), Usage::of(std::process::id())?);
    let mut builder = sets::builder(&generator, &temp_dir);
    sets::add_all(&mut builder, &generator, records)?;
    let (file, header) = builder.finish(tempfile::tempfile_in(&temp_dir)?)?;
    let (elapsed, used) = (start.elapsed(), Usage::of(pid)? - used);
    drop(file);
    ensure!(header.handles_count == records, "{} of {records} records", header.handles_count);
    let resident = usage::resident_len_max()?;
    // The build includes generating the records, which is measured alone here.
    let (start, mut buffer) = (Instant::now(), RecordBuffer::default());
    for n in 0..records {
        black_box(generator.record(n, &mut buffer));
    }
    Ok(json!({
        "seconds": elapsed.as_secs_f64(),
        "cpu_seconds": used.total().as_secs_f64(),
        "records_seconds": start.elapsed().as_secs_f64(),
        "resident_len_max": resident,
    }))
}

fn build_figures(records: u64, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let [program, command] = serve::this_command()?;
    let mut child = Command::new(program);
    child.arg(command).args(["build", &records.to_string()]).stderr(Stdio::inherit());
    let output = child.output()?;
    ensure!(output.status.success(), "the build failed: {}", output.status);
    let built: Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| built[name].as_f64().with_context(|| format!("{name} in {built}"));
    let rate = |seconds: f64| Spread::of([records as f64 / seconds / 1e3]);
    let name = sets::size_name(records);
    figures.push(figure(&format!("build of {name}"), ">= 500", rate(number("seconds")?), "k records/s"));
    figures.push(figure("the same by CPU time", "", rate(number("cpu_seconds")?), "k records/s"));
    let making = Spread::of([number("records_seconds")? / number("seconds")?]);
    figures.push(figure("of that, making the records", "", making, "of the time"));
    let resident = Spread::of([number("resident_len_max")? / f64::from(1 << 20)]);
    figures.push(figure("most memory of the build", "< 1024", resident, "MiB"));
    Ok(())
}

/// Measures opening the set as a server does, in milliseconds.
fn open_ms(set: &PublishedSet) -> anyhow::Result<Spread> {
    let mut all = Vec::new();
    for _ in 0..OPENS_COUNT {
        let start = Instant::now();
        let opened = PublishedSet::open(set.dir(), LoadMode::Map)?;
        all.push(start.elapsed().as_secs_f64() * 1e3);
        drop(opened);
    }
    Ok(Spread::of(all))
}

/// Measures the processor time of a lookup in nanoseconds, one at a time and in batches.
fn lookup_ns(records: u64, args: &Args) -> anyhow::Result<(Spread, Spread)> {
    let load_mode = if args.copy_to_memory { LoadMode::CopyToMemory } else { LoadMode::Map };
    let set = PublishedSet::open(sets::open(records)?.dir(), load_mode)?;
    sets::warm(&set);
    let (records, mut keys) = (set.records(), LookupKeys::new(records, KEYS_COUNT, 1)?);
    let each = |used: Duration| used.as_secs_f64() * 1e9 / args.lookups as f64;
    let (mut one, mut batch) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let start = usage::thread_time();
        for _ in 0..args.lookups {
            black_box(lookups::one(&records, &mut keys));
        }
        one.push(each(usage::thread_time() - start));
        let start = usage::thread_time();
        for _ in 0..args.lookups.div_ceil(BATCH_LEN) {
            black_box(lookups::batch(&records, &mut keys));
        }
        batch.push(each(usage::thread_time() - start));
    }
    Ok((Spread::of(one), Spread::of(batch)))
}
