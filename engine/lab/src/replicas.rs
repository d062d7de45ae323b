//! `handle-lab replicas`: a primary, a mirror of it, and a fleet of two machines, each process of
//! its own, to be broken on purpose by other commands of `handle-lab`.
//!
//! - [`files`]: the directory, with the configuration of each process.
//! - [`programs`]: the processes; a file for each one that is to be stopped.
//! - [`process_view`]: what each process serves.

mod files;
mod process_view;
mod programs;

use crate::end::{LabEnd, SECONDS_MAX};
use anyhow::{Context as _, bail, ensure};
use files::ReplicaLab;
use handle_cli::style::{Paint, paint};
use handle_cli::{ExitOutcome, output};
use handle_snapshot::set::read_manifest;
use programs::{LabPrograms, ProgramRow};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use programs::{KeptArgs, keep};

/// The handle that `handle-lab change` changes.
const HANDLE: &str = "10.1045/LAB";
/// Time in which a process of the lab stops or starts.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(clap::Args, Debug)]
pub(crate) struct ReplicasArgs {
    /// Work in this directory, which must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Print the processes as one line of JSON once they run.
    #[arg(long)]
    json: bool,
    /// Stop this many seconds after the start.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ProcessArgs {
    /// The process, by the name that `handle-lab look` shows.
    name: String,
    /// The directory of the lab.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct DirectoryArgs {
    /// The directory of the lab.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ChangeArgs {
    /// The text to store.
    text: String,
    /// The directory of the lab.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct LookArgs {
    /// The directory of the lab.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ReplicasArgs) -> anyhow::Result<ExitOutcome> {
    let end = LabEnd::listen()?;
    let lab = ReplicaLab::create(&args.dir)?;
    let mut programs = LabPrograms::start(&lab)?;
    lab.change("first")?;
    let is_input_closed = end.input_has_ended();
    show(args, &lab, is_input_closed)?;
    output::check()?;
    let at_most = args.seconds.map(Duration::from_secs);
    end.wait_and(is_input_closed, at_most, programs::INTERVAL, || programs.turn());
    drop(programs);
    if !args.json {
        println!("the lab has stopped; its files are in {}", args.dir.display());
    }
    Ok(ExitOutcome::Good)
}

fn show(args: &ReplicasArgs, lab: &ReplicaLab, is_input_closed: bool) -> anyhow::Result<()> {
    let rows = programs::read(lab)?;
    if args.json {
        println!("{}", json!({ "processes": rows }));
        return Ok(());
    }
    println!("{}", paint(Paint::Good, format_args!("the lab is running in {}", args.dir.display())));
    println!();
    println!("try, in another terminal:");
    let dir = format!("--dir {}", args.dir.display());
    for (command, why) in [
        (format!("handle-lab look {dir}"), "shows what each process serves"),
        (format!("handle-lab change hello {dir}"), "changes a record at the primary"),
        (format!("handle-lab stop mirror {dir}"), "kills a process; `start` starts it again"),
        (format!("handle-lab damage {dir}"), "damages the newest layer in the place of the fleet"),
        (
            format!("hdl mirror compare -s {}/mirror/run/handle-admin.sock", args.dir.display()),
            "compares all records",
        ),
    ] {
        println!("  {command:<52} {}", paint(Paint::Dim, format_args!("# {why}")));
    }
    println!();
    println!("{} stops the lab", if is_input_closed { "SIGTERM or ^C" } else { "^C or ^D" });
    Ok(())
}

/// Kills a process, which stays stopped.
pub(crate) fn stop(args: &ProcessArgs) -> anyhow::Result<ExitOutcome> {
    let lab = ReplicaLab::open(&args.dir)?;
    named(&lab, &args.name)?;
    fs::write(lab.stopped(&args.name), "")?;
    until(&lab, &args.name, "does not stop", |row| row.pid.is_none())?;
    println!("{} is stopped", args.name);
    Ok(ExitOutcome::Good)
}

/// Starts a process that was stopped.
pub(crate) fn start(args: &ProcessArgs) -> anyhow::Result<ExitOutcome> {
    let lab = ReplicaLab::open(&args.dir)?;
    named(&lab, &args.name)?;
    match fs::remove_file(lab.stopped(&args.name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    until(&lab, &args.name, "does not start", |row| row.pid.is_some())?;
    println!("{} runs", args.name);
    Ok(ExitOutcome::Good)
}

fn named(lab: &ReplicaLab, name: &str) -> anyhow::Result<ProgramRow> {
    let rows = programs::read(lab)?;
    let names: Vec<_> = rows.iter().map(|row| row.name.clone()).collect();
    let row = rows.into_iter().find(|row| row.name == name);
    row.with_context(|| format!("there is no process {name:?}; there are {}", names.join(", ")))
}

fn until(
    lab: &ReplicaLab,
    name: &str,
    failure: &str,
    is_done: impl Fn(&ProgramRow) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !is_done(&named(lab, name)?) {
        ensure!(Instant::now() < deadline, "{name} {failure}: is the lab running?");
        std::thread::sleep(programs::INTERVAL);
    }
    Ok(())
}

/// Changes a record at the primary.
pub(crate) fn change(args: &ChangeArgs) -> anyhow::Result<ExitOutcome> {
    ReplicaLab::open(&args.dir)?.change(&args.text)?;
    println!("{HANDLE} is {:?} at the primary", args.text);
    Ok(ExitOutcome::Good)
}

/// Changes a byte of the newest layer in the place of the fleet.
pub(crate) fn damage(args: &DirectoryArgs) -> anyhow::Result<ExitOutcome> {
    let lab = ReplicaLab::open(&args.dir)?;
    let layer = newest_layer(&lab)?;
    let mut bytes = fs::read(&layer).with_context(|| format!("cannot read {}", layer.display()))?;
    let middle = bytes.len() / 2;
    let Some(byte) = bytes.get_mut(middle) else { bail!("{} is empty", layer.display()) };
    *byte ^= 1;
    // A new file, since machines may have the old one open.
    let other = layer.with_extension("damaged");
    fs::write(&other, bytes)?;
    fs::rename(&other, &layer)?;
    println!("{} is damaged", layer.display());
    Ok(ExitOutcome::Good)
}

/// Removes the newest layer from the place of the fleet, to which the publisher uploads it again.
pub(crate) fn repair(args: &DirectoryArgs) -> anyhow::Result<ExitOutcome> {
    let lab = ReplicaLab::open(&args.dir)?;
    let layer = newest_layer(&lab)?;
    fs::remove_file(&layer).with_context(|| format!("cannot remove {}", layer.display()))?;
    let deadline = Instant::now() + TIMEOUT;
    while !layer.exists() && newest_layer(&lab)? == layer {
        ensure!(Instant::now() < deadline, "the publisher does not upload it again: does `ship` run?");
        std::thread::sleep(programs::INTERVAL);
    }
    println!("{} was uploaded again", layer.display());
    Ok(ExitOutcome::Good)
}

fn newest_layer(lab: &ReplicaLab) -> anyhow::Result<PathBuf> {
    let manifest = read_manifest(&lab.fleet_directory())?;
    let newest = manifest.layers.first().context("the set has no layer")?;
    Ok(lab.fleet_directory().join(&newest.file))
}

/// Shows what each process serves.
pub(crate) fn look(args: &LookArgs) -> anyhow::Result<ExitOutcome> {
    output::or_as_json(look_at(&args.dir, args.json), args.json)
}

fn look_at(dir: &Path, is_json: bool) -> anyhow::Result<ExitOutcome> {
    let lab = ReplicaLab::open(dir)?;
    let seen: Vec<_> = programs::read(&lab)?.iter().map(|row| process_view::look(&lab, row)).collect();
    let mut texts = seen.iter().filter(|one| one.serves).map(|one| one.text.as_ref());
    let first = texts.next().flatten();
    let agree = first.is_some() && texts.all(|text| text == first);
    if is_json {
        output::print_json(&json!({ "agree": agree, "processes": seen }));
    } else {
        let mut table = output::table(&["process", "program", "id", "what is seen"]);
        for one in &seen {
            let (of, id) = match one.pid {
                Some(pid) => (Paint::Plain, pid.to_string()),
                None => (Paint::Bad, "stopped".to_owned()),
            };
            table.add_painted(of, [one.name.clone(), one.program.clone(), id, one.sentence()]);
        }
        output::lines(&table);
        let (of, verdict) = match agree {
            true => (Paint::Good, "all servers give the same text"),
            false => (Paint::Bad, "the servers give different texts"),
        };
        println!("{}", paint(of, verdict));
    }
    Ok(if agree { ExitOutcome::Good } else { ExitOutcome::Failed })
}
