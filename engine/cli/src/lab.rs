//! `hdl lab`: a small Handle System on loopback, to learn with, to test with, and to break.
//!
//! Nine servers in five sites: the global registry; a service of three sites - four servers, two servers, and a
//! mirror that lags behind - for real DOIs; and a registry of its own for the prefixes derived from 20.500, which
//! serves handles, too. Each has a key of its own and signs.

mod records;
mod topology;

use crate::ExitOutcome;
use crate::handled_process::{self, HandledProcess};
use crate::output;
use crate::style::{Paint, paint};
use anyhow::{Context as _, ensure};
use handle_server::config::Config;
use handle_snapshot::set::storage::create_directory;
use records::LabRecords;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use topology::{LabTopology, ServerPlace, SiteName};

/// A small Handle System on loopback: nine servers in five sites, with real records.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make the sites, start their servers, and say what can be tried.
    ///
    /// Runs until it is interrupted (^C), for --seconds, or until standard input ends (^D); where that is closed when the
    /// lab comes up, as in a container or a unit, its end does not count. The servers end with it, and what it wrote goes
    /// unless --dir says where it is to stay.
    #[command(after_help = "Examples:
  hdl lab up
  hdl lab up --dir /tmp/lab
  hdl lab up --records my.jsonl --json
  hdl lab up --dir /tmp/lab --seconds 600 &
  hdl resolve 10.1016/j.rcae.2013.04.001 --root /tmp/lab/bootstrap_handles --trace --certify
  hdl check 10.1016/lab-new --root /tmp/lab/bootstrap_handles")]
    Up(UpArgs),
}

#[derive(clap::Args, Debug)]
struct UpArgs {
    /// Work in this directory, which must be empty or not there, and leave everything in it.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Port of a server, in the order of the sites; may be given nine times. Others are chosen.
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,
    /// Records of the service, as the handle REST API shows them, one a line; otherwise 1,251 real DOIs.
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Say what was started as JSON, on one line: where the file of the global service is, and of each server its site,
    /// number, address, process and control socket.
    #[arg(long)]
    json: bool,
    /// End so many seconds after the lab has come up.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    seconds: Option<u64>,
}

/// Most seconds that a lab can be told to stay up: ten years.
const MAX_SECONDS: u64 = 10 * 365 * 86_400;

/// What a server process of the lab is told.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerArgs {
    #[arg(long)]
    config: PathBuf,
}

/// A server process of the lab.
pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<ExitOutcome> {
    handled_process::serve(&Config::read(&args.config)?)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    let Command::Up(args) = &args.command;
    // Before anything is written or started, so that all of it is cleared away.
    let end = LabEnd::listen()?;
    let temporary = tempfile::tempdir().context("cannot make a temporary directory")?;
    let directory = args.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    ensure!(
        std::fs::read_dir(&directory)?.next().is_none(),
        "{} is not empty: name another directory",
        directory.display()
    );
    let topology = LabTopology::new(&args.port)?;
    let records = LabRecords::new(&topology, args.records.as_deref())?;
    std::fs::write(directory.join("bootstrap_handles"), format!("{:#}", records.bootstrap()))?;
    let mut servers = vec![];
    for place in topology.places() {
        if end.has_come() {
            return Ok(ExitOutcome::Failed);
        }
        let config = make(&directory, &topology, &records, &place)?;
        let control = config.with_file_name("control.sock");
        let process =
            HandledProcess::start(["lab-server".as_ref(), "--config".as_ref(), config.as_os_str()], control)?;
        servers.push((place, process));
    }
    show(args, &directory, &servers, end.input_has_ended());
    // Nobody would know of it.
    output::check()?;
    end.wait(args.seconds.map(Duration::from_secs));
    drop(servers);
    temporary.close().context("cannot clear the temporary directory")?;
    if !args.json {
        match &args.dir {
            Some(directory) => println!("the lab is down; what it wrote is in {}", directory.display()),
            None => println!("the lab is down, and nothing of it is left"),
        }
    }
    Ok(ExitOutcome::Good)
}

/// Writes what a server needs: its share of the records, its site, its key, and its configuration.
fn make(
    directory: &Path,
    topology: &LabTopology,
    records: &LabRecords,
    place: &ServerPlace,
) -> anyhow::Result<PathBuf> {
    let own = directory.join(format!("{}-{}", place.site.name(), place.at + 1));
    let set = own.join("set");
    create_directory(&set).with_context(|| format!("cannot make {}", set.display()))?;
    records.publish(&set, topology.site(place.site), place)?;
    std::fs::write(own.join("siteinfo.json"), format!("{:#}", topology.site_json(place.site)))?;
    handle_auth::file::create_secret_file(&own.join("privkey.bin"), topology.key_file(place.site))?;
    let config = own.join("handled.toml");
    let text = format!(
        "snapshot = \"set\"\nsite = \"siteinfo.json\"\nserver_id = {}\nlisten = [\"{}\"]\nworkers = 1\npin = false\n\
         control = \"control.sock\"\nlog = \"warn\"\n\n[server_key]\nfile = \"privkey.bin\"\n\n[slow]\nidle = false\n",
        place.at + 1,
        place.address,
    );
    std::fs::write(&config, text)?;
    Ok(config)
}

fn show(args: &UpArgs, directory: &Path, servers: &[(ServerPlace, HandledProcess)], is_input_closed: bool) {
    let root = directory.join("bootstrap_handles");
    if args.json {
        let list: Vec<_> = servers
            .iter()
            .map(|(place, process)| {
                json!({
                    "site": place.site.name(), "server": place.at + 1, "address": process.address.to_string(),
                    "pid": process.id(), "control": process.control,
                })
            })
            .collect();
        println!("{}", json!({ "root": root, "servers": list }));
        return;
    }
    println!("{}", paint(Paint::Good, format_args!("the lab is up, in {}", directory.display())));
    println!();
    let mut table = output::table(&["site", "server", "address", "process", "what it has"]);
    for (place, process) in servers {
        let what = if place.at == 0 { place.site.content() } else { "" };
        table.add_row([
            place.site.name().to_owned(),
            (place.at + 1).to_string(),
            process.address.to_string(),
            process.id().to_string(),
            what.to_owned(),
        ]);
    }
    output::lines(&table);
    println!();
    println!("try, in another terminal:");
    println!("  export HDL_ROOT={}", root.display());
    let stop = servers
        .iter()
        .find(|(place, _)| place.site == SiteName::Mirror)
        .map_or(0, |(_, process)| process.id());
    for (command, why) in [
        ("hdl resolve hdl:20.500.LAB/hello --trace --certify".to_owned(), "every step"),
        ("hdl site 10.1016".to_owned(), "which server has it"),
        ("hdl check 10.1016/lab-new".to_owned(), "the mirror lags behind"),
        (format!("kill -STOP {stop}"), "the mirror falls silent, and handles still resolve"),
    ] {
        println!("  {command:<52} {}", paint(Paint::Dim, format_args!("# {why}")));
    }
    println!();
    let how = if is_input_closed { "SIGTERM or ^C" } else { "^C or ^D" };
    match args.seconds {
        Some(seconds) => println!("the lab ends after {seconds} s; {how} ends it before"),
        None => println!("{how} ends the lab"),
    }
}

/// What ends the lab: a signal, the end of standard input, or the end of its time.
struct LabEnd {
    is_signalled: Arc<AtomicBool>,
    is_input_over: Arc<AtomicBool>,
    causes: mpsc::Receiver<EndCause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndCause {
    Signal,
    Input,
}

impl LabEnd {
    fn listen() -> anyhow::Result<Self> {
        let (send, causes) = mpsc::channel();
        let is_signalled = Arc::new(AtomicBool::new(false));
        let is_input_over = Arc::new(AtomicBool::new(false));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen to signals")?;
        std::thread::spawn({
            let (send, is_signalled) = (send.clone(), Arc::clone(&is_signalled));
            move || {
                for _ in &mut signals {
                    is_signalled.store(true, Ordering::Relaxed);
                    let _ = send.send(EndCause::Signal);
                }
            }
        });
        std::thread::spawn({
            let is_input_over = Arc::clone(&is_input_over);
            move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                is_input_over.store(true, Ordering::Relaxed);
                send.send(EndCause::Input)
            }
        });
        Ok(Self { is_signalled, is_input_over, causes })
    }

    /// Whether a signal has come before the lab was up.
    fn has_come(&self) -> bool {
        self.is_signalled.load(Ordering::Relaxed)
    }

    /// Whether standard input is at its end, and was not ended by somebody at a terminal.
    fn input_has_ended(&self) -> bool {
        self.is_input_over.load(Ordering::Relaxed) && !std::io::stdin().is_terminal()
    }

    /// Waits for the end. Standard input that is over by now was closed from the beginning, and its end means nothing.
    fn wait(&self, at_most: Option<Duration>) {
        let deadline = at_most.map(|at_most| Instant::now() + at_most);
        let mut input_counts = !self.input_has_ended();
        loop {
            let cause = match deadline {
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let Ok(cause) = self.causes.recv_timeout(left) else { return };
                    cause
                }
                // A channel whose senders are gone has nobody to wait for.
                None => self.causes.recv().unwrap_or(EndCause::Signal),
            };
            if cause == EndCause::Signal || input_counts {
                return;
            }
            input_counts = true;
        }
    }
}

/// Names of the sites, in the order of their servers.
impl SiteName {
    fn name(self) -> &'static str {
        match self {
            Self::Registry => "registry",
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::Mirror => "mirror",
            Self::Derived => "derived",
        }
    }

    fn content(self) -> &'static str {
        match self {
            Self::Registry => "records of prefixes: the global service",
            Self::Primary => "handles, a share on each server",
            Self::Secondary => "the same handles, in two shares",
            Self::Mirror => "the same, without 10.1016/lab-new",
            Self::Derived => "prefixes derived from 20.500, and 20.500.LAB",
        }
    }
}
