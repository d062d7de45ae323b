//! `hdl lab`: a small Handle System on loopback, to learn with, to test with, and to break.
//!
//! Nine servers in five sites: the global registry; a service of three sites - four servers, two servers, and a
//! mirror that lags behind - for real DOIs; and a registry of its own for the prefixes derived from 20.500, which
//! serves handles, too. Each has a key of its own and signs.

mod records;
mod topology;

use crate::Outcome;
use crate::output;
use crate::served::{self, Process};
use crate::style::{Paint, paint};
use anyhow::{Context as _, ensure};
use handle_server::config::Config;
use records::Records;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use topology::{Place, SiteName, Topology};

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
    /// Runs until standard input ends (^D) or it is interrupted (^C); the servers end with it, and what it wrote goes
    /// unless --dir says where it is to stay.
    #[command(after_help = "Examples:
  hdl lab up
  hdl lab up --dir /tmp/lab
  hdl lab up --records my.jsonl --json
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
}

/// What a server process of the lab is told.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerArgs {
    #[arg(long)]
    config: PathBuf,
}

/// A server process of the lab.
pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<Outcome> {
    served::serve(&Config::read(&args.config)?)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let Command::Up(args) = &args.command;
    // Before anything is written or started, so that all of it is cleared away.
    let end = End::listen()?;
    let temporary = tempfile::tempdir().context("cannot make a temporary directory")?;
    let directory = args.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    ensure!(
        std::fs::read_dir(&directory)?.next().is_none(),
        "{} is not empty: name another directory",
        directory.display()
    );
    let topology = Topology::new(&args.port)?;
    let records = Records::new(&topology, args.records.as_deref())?;
    std::fs::write(directory.join("bootstrap_handles"), format!("{:#}", records.bootstrap()))?;
    let mut servers = vec![];
    for place in topology.places() {
        if end.has_come() {
            return Ok(Outcome::Failed);
        }
        let config = make(&directory, &topology, &records, &place)?;
        let control = config.with_file_name("control.sock");
        let process =
            Process::start(["lab-server".as_ref(), "--config".as_ref(), config.as_os_str()], control)?;
        servers.push((place, process));
    }
    show(args, &directory, &servers);
    // Nobody would know of it.
    output::check()?;
    end.wait();
    drop(servers);
    temporary.close().context("cannot clear the temporary directory")?;
    if !args.json {
        match &args.dir {
            Some(directory) => println!("the lab is down; what it wrote is in {}", directory.display()),
            None => println!("the lab is down, and nothing of it is left"),
        }
    }
    Ok(Outcome::Good)
}

/// Writes what a server needs: its share of the records, its site, its key, and its configuration.
fn make(directory: &Path, topology: &Topology, records: &Records, place: &Place) -> anyhow::Result<PathBuf> {
    let own = directory.join(format!("{}-{}", place.site.name(), place.at + 1));
    let set = own.join("set");
    std::fs::create_dir_all(&set).with_context(|| format!("cannot make {}", set.display()))?;
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

fn show(args: &UpArgs, directory: &Path, servers: &[(Place, Process)]) {
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
    println!("{}\n", paint(Paint::Good, format_args!("the lab is up, in {}", directory.display())));
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
    println!("{table}\n\ntry, in another terminal:");
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
    println!("\n^C or ^D ends the lab");
}

/// What ends the lab: a signal, or the end of standard input.
struct End {
    is_signalled: Arc<AtomicBool>,
    hear: mpsc::Receiver<Cause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Signal,
    Input,
}

impl End {
    fn listen() -> anyhow::Result<Self> {
        let (say, hear) = mpsc::channel();
        let is_signalled = Arc::new(AtomicBool::new(false));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen to signals")?;
        std::thread::spawn({
            let (say, is_signalled) = (say.clone(), Arc::clone(&is_signalled));
            move || {
                for _ in &mut signals {
                    is_signalled.store(true, Ordering::Relaxed);
                    let _ = say.send(Cause::Signal);
                }
            }
        });
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            say.send(Cause::Input)
        });
        Ok(Self { is_signalled, hear })
    }

    /// Whether somebody has not waited for the lab to be up.
    fn has_come(&self) -> bool {
        self.is_signalled.load(Ordering::Relaxed)
    }

    /// Waits for it. Where standard input is nothing at all, it comes at once.
    fn wait(&self) {
        let began = Instant::now();
        let cause = self.hear.recv();
        let is_at_once = began.elapsed() < Duration::from_millis(100);
        if cause == Ok(Cause::Input) && is_at_once && !std::io::stdin().is_terminal() {
            eprintln!(
                "hdl: standard input has ended, and so does the lab: keep it open, as in `sleep 600 | hdl lab up`"
            );
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
