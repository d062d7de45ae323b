//! The processes of the lab: started again when they end, unless they are to be stopped.
//!
//! Each is the child of a second process of this program, [`keep`], which kills it when the lab is
//! gone.

use super::files::ReplicaLab;
use anyhow::Context as _;
use handle_cli::ExitOutcome;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval at which the lab looks what is to be stopped or started.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);
/// Pause before a process is started again that has ended by itself.
const PAUSE: Duration = Duration::from_millis(500);

/// A process of the lab.
pub(super) struct LabProgram {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
}

/// A process in the file of the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramRow {
    pub(super) name: String,
    pub(super) program: String,
    /// Its process id, if it runs.
    pub(super) pid: Option<u32>,
}

/// The processes as the lab last wrote them.
pub(super) fn read(lab: &ReplicaLab) -> anyhow::Result<Vec<ProgramRow>> {
    let state = lab.state();
    let text = fs::read(&state).with_context(|| format!("cannot read {}", state.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is damaged", state.display()))
}

struct KeptProgram {
    program: LabProgram,
    child: Option<Child>,
    started: Instant,
}

/// All processes of the lab. When it is dropped, they are killed.
pub(super) struct LabPrograms<'l> {
    lab: &'l ReplicaLab,
    kept: Vec<KeptProgram>,
    written: Vec<ProgramRow>,
}

impl<'l> LabPrograms<'l> {
    /// Starts all processes, and waits until those with a control socket answer on it.
    pub(super) fn start(lab: &'l ReplicaLab) -> anyhow::Result<Self> {
        let mut all = Self { lab, kept: Vec::new(), written: Vec::new() };
        for program in lab.programs()? {
            let child = start(lab, &program)?;
            all.kept.push(KeptProgram { program, child: Some(child), started: Instant::now() });
        }
        all.write()?;
        for row in &all.written {
            super::process_view::await_answer(lab, row)?;
        }
        all.write()?;
        Ok(all)
    }

    /// Stops and starts what is to be stopped and started.
    pub(super) fn turn(&mut self) {
        for kept in &mut self.kept {
            let has_ended = match &mut kept.child {
                Some(child) => !matches!(child.try_wait(), Ok(None)),
                None => false,
            };
            if has_ended {
                kept.child = None;
            }
            let is_stopped = self.lab.stopped(&kept.program.name).exists();
            match (&mut kept.child, is_stopped) {
                (Some(child), true) => {
                    end(child);
                    kept.child = None;
                }
                (None, false) if kept.started.elapsed() >= PAUSE => {
                    kept.started = Instant::now();
                    kept.child = start(self.lab, &kept.program).ok();
                }
                _ => {}
            }
        }
        if let Err(error) = self.write() {
            eprintln!("handle-lab: {error:#}");
        }
    }

    /// Writes the file of the lab, if it has changed.
    fn write(&mut self) -> anyhow::Result<()> {
        let rows: Vec<_> = self
            .kept
            .iter()
            .map(|kept| ProgramRow {
                name: kept.program.name.clone(),
                program: kept.program.program.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                pid: kept.child.as_ref().and_then(|_| pid(self.lab, &kept.program.name)),
            })
            .collect();
        if rows == self.written {
            return Ok(());
        }
        let state = self.lab.state();
        let next = state.with_extension("next");
        fs::write(&next, serde_json::to_vec(&rows)?)?;
        fs::rename(&next, &state).with_context(|| format!("cannot write {}", state.display()))?;
        self.written = rows;
        Ok(())
    }
}

impl Drop for LabPrograms<'_> {
    fn drop(&mut self) {
        self.kept.iter_mut().filter_map(|kept| kept.child.as_mut()).for_each(end);
    }
}

/// Kills a process: its keeper does so at the end of its standard input.
fn end(child: &mut Child) {
    drop(child.stdin.take());
    // It may have ended already.
    let _ = child.wait();
}

/// The file in which a keeper writes the id of its process.
fn pid_file(lab: &ReplicaLab, name: &str) -> PathBuf {
    lab.path("log").join(format!("{name}.pid"))
}

fn pid(lab: &ReplicaLab, name: &str) -> Option<u32> {
    fs::read_to_string(pid_file(lab, name)).ok()?.parse().ok()
}

fn start(lab: &ReplicaLab, program: &LabProgram) -> anyhow::Result<Child> {
    let pid_file = pid_file(lab, &program.name);
    // There is none at the first start.
    let _ = fs::remove_file(&pid_file);
    let log = lab.path("log").join(format!("{}.log", program.name));
    let log = File::options().create(true).append(true).open(&log)?;
    let keeper = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(keeper);
    command.arg("lab-keep").arg(pid_file).arg("--").arg(&program.program).args(&program.args);
    command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {}", program.name))
}

/// Options of the process that keeps one of the lab.
#[derive(clap::Args, Debug)]
pub(crate) struct KeptArgs {
    /// The file for the id of the process.
    pid_file: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Runs a program, and kills it at the end of standard input.
pub(crate) fn keep(args: &KeptArgs) -> anyhow::Result<ExitOutcome> {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let Some((program, arguments)) = args.command.split_first() else { return Ok(ExitOutcome::BadInput) };
    let mut child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn()?;
    if let Err(error) = fs::write(&args.pid_file, child.id().to_string()) {
        child.kill()?;
        return Err(error.into());
    }
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        IS_OVER.store(true, Ordering::Relaxed);
    });
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { ExitOutcome::Good } else { ExitOutcome::Failed });
        }
        if IS_OVER.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            return Ok(ExitOutcome::Good);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
