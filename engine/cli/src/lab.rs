//! `hdl lab`: a small Handle System on loopback, for learning and testing.
//!
//! Nine servers in five sites: the global registry; a service for real DOIs with three sites (four
//! servers, two servers, and an outdated mirror); and a registry of its own for the prefixes
//! derived from 20.500, which also serves handles. Each site has its own key, and each server
//! signs. A gateway resolves handles of all of them over HTTP, and a caching server answers for
//! them.
//!
//! [`replicas`] is another lab: a primary, its mirror and a fleet, to be broken on purpose.

mod records;
pub(crate) mod replicas;
mod topology;

use crate::ExitOutcome;
use crate::output;
use crate::server_process::{self, ServerProcess};
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

/// Run a small Handle System on loopback: nine servers in five sites, a gateway and a cache, with
/// real records; or a primary with a mirror and a fleet.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create the sites, start their servers, and print commands to try.
    ///
    /// Runs until it is interrupted (^C), until --seconds have passed, or until standard input ends
    /// (^D). If standard input is closed from the start, as in a container or a unit, it is
    /// ignored. Stops the servers at the end, and removes all files unless --dir is given.
    #[command(after_help = "Examples:
  hdl lab up
  hdl lab up --dir /tmp/lab
  hdl lab up --records my.jsonl --json
  hdl lab up --dir /tmp/lab --seconds 600 &
  hdl resolve 10.1016/j.rcae.2013.04.001 --root /tmp/lab/bootstrap_handles --trace --certify
  hdl check 10.1016/lab-new --root /tmp/lab/bootstrap_handles")]
    Up(UpArgs),
    /// Run a primary, a mirror of it and a fleet of two machines, to break them on purpose.
    ///
    /// Each process is one that operators run: handle-admin, handled, handle-fetch and
    /// hdl ship --follow, which have to be installed beside hdl. Runs until it is interrupted (^C),
    /// until --seconds have passed, or until standard input ends (^D); a standard input that is
    /// closed from the start is ignored. A process that ends is started again, unless it was
    /// stopped with `hdl lab stop`.
    #[command(after_help = "Examples:
  hdl lab replicas --dir /tmp/replicas
  hdl lab look --dir /tmp/replicas
  hdl lab stop mirror --dir /tmp/replicas")]
    Replicas(replicas::ReplicasArgs),
    /// Show what each process of `hdl lab replicas` serves, and its error.
    #[command(after_help = "Example:
  hdl lab look --dir /tmp/replicas

Exit codes: 0 all servers give the same text, 1 they do not.")]
    Look(replicas::LookArgs),
    /// Change the record of `hdl lab replicas` at its primary.
    #[command(after_help = "Example:
  hdl lab change hello --dir /tmp/replicas")]
    Change(replicas::ChangeArgs),
    /// Kill a process of `hdl lab replicas`, which stays stopped.
    #[command(after_help = "Example:
  hdl lab stop primary --dir /tmp/replicas")]
    Stop(replicas::ProcessArgs),
    /// Start a process of `hdl lab replicas` that was stopped.
    #[command(after_help = "Example:
  hdl lab start primary --dir /tmp/replicas")]
    Start(replicas::ProcessArgs),
    /// Change a byte of the newest layer in the place of the fleet.
    #[command(after_help = "Example:
  hdl lab damage --dir /tmp/replicas")]
    Damage(replicas::PlaceArgs),
    /// Remove the newest layer from the place of the fleet, so that it is shipped again.
    #[command(after_help = "Example:
  hdl lab repair --dir /tmp/replicas")]
    Repair(replicas::PlaceArgs),
}

#[derive(clap::Args, Debug)]
struct UpArgs {
    /// Work in this directory, which must be empty or not exist, and keep all files.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Port of a server, in the order of the sites; may be given up to nine times. Default: free
    /// ports.
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,
    /// Port of the gateway, for HTTP. Default: a free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    gateway_port: u16,
    /// Port of the caching server. Default: a free port.
    #[arg(long, value_name = "PORT")]
    cache_port: Option<u16>,
    /// Records of the DOI service, in the format of the handle REST API, one per line. Default:
    /// 1,251 real DOIs.
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Print the result as one line of JSON: the bootstrap file, and for each server its site,
    /// number, address, process and control socket.
    #[arg(long)]
    json: bool,
    /// Stop this many seconds after the start.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    seconds: Option<u64>,
}

/// Longest run time of a lab in seconds: ten years.
const MAX_SECONDS: u64 = 10 * 365 * 86_400;

/// Options of a server process of the lab.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerArgs {
    #[arg(long)]
    config: PathBuf,
}

/// A server process of the lab.
pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<ExitOutcome> {
    server_process::serve(&Config::read(&args.config)?)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    match &args.command {
        Command::Up(args) => up(args),
        Command::Replicas(args) => replicas::run(args),
        Command::Look(args) => replicas::look(args),
        Command::Change(args) => replicas::change(args),
        Command::Stop(args) => replicas::stop(args),
        Command::Start(args) => replicas::start(args),
        Command::Damage(args) => replicas::damage(args),
        Command::Repair(args) => replicas::repair(args),
    }
}

fn up(args: &UpArgs) -> anyhow::Result<ExitOutcome> {
    // Before any file is written or process started, so that all of it is cleaned up.
    let end = LabEnd::listen()?;
    let temporary = tempfile::tempdir().context("cannot create a temporary directory")?;
    let directory = args.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    ensure!(
        std::fs::read_dir(&directory)?.next().is_none(),
        "{} is not empty: choose an empty or new directory",
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
            ServerProcess::start(["lab-server".as_ref(), "--config".as_ref(), config.as_os_str()], control)?;
        servers.push((place, process));
    }
    let gateway = start_gateway(&directory, args.gateway_port)?;
    let cache = start_cache(&directory, args.cache_port)?;
    let processes = LabProcesses { servers: &servers, gateway: &gateway, cache: &cache };
    let is_input_closed = end.input_has_ended();
    show(args, &directory, &processes, is_input_closed);
    // Nobody would know of it.
    output::check()?;
    end.wait(is_input_closed, args.seconds.map(Duration::from_secs));
    drop((cache, gateway, servers));
    temporary.close().context("cannot remove the temporary directory")?;
    if !args.json {
        match &args.dir {
            Some(directory) => println!("the lab has stopped; its files are in {}", directory.display()),
            None => println!("the lab has stopped and removed its files"),
        }
    }
    Ok(ExitOutcome::Good)
}

/// Writes the files of a server: its share of the records, its site, its key, and its
/// configuration.
fn make(
    directory: &Path,
    topology: &LabTopology,
    records: &LabRecords,
    place: &ServerPlace,
) -> anyhow::Result<PathBuf> {
    let own = directory.join(format!("{}-{}", place.site.name(), place.at + 1));
    let set = own.join("set");
    create_directory(&set).with_context(|| format!("cannot create {}", set.display()))?;
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

/// Starts the gateway, which finds every handle from the global registry.
fn start_gateway(directory: &Path, port: u16) -> anyhow::Result<ServerProcess> {
    let own = directory.join(GATEWAY);
    std::fs::create_dir(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let config = own.join("handle-gateway.toml");
    let text = format!(
        "listen = [\"127.0.0.1:{port}\"]\nworkers = 1\ncontrol = \"control.sock\"\nlog = \"warn\"\n\n\
         [upstream]\nroot = \"../bootstrap_handles\"\nforbidden_networks = []\n"
    );
    std::fs::write(&config, text)?;
    ServerProcess::start_gateway(&config, None, own.join("control.sock"))
}

/// Starts the caching server, which resolves from the global registry down what it does not have.
fn start_cache(directory: &Path, port: Option<u16>) -> anyhow::Result<ServerProcess> {
    let own = directory.join(CACHE);
    std::fs::create_dir(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let config = own.join("handle-cache.toml");
    let listen = topology::addresses(port.as_slice(), 1)?[0];
    let text = format!(
        "listen = [\"{listen}\"]\nworkers = 1\npin = false\ncontrol = \"control.sock\"\nlog = \"warn\"\n\n\
         [cache]\nbytes = 16777216\n\n[upstream]\nroot = \"../bootstrap_handles\"\nforbidden_networks = []\n"
    );
    std::fs::write(&config, text)?;
    let args = ["cache-server".as_ref(), "--config".as_ref(), config.as_os_str()];
    ServerProcess::start(args, own.join("control.sock"))
}

/// The directory of the gateway, and its name among the sites.
const GATEWAY: &str = "gateway";
/// The directory of the caching server, and its name among the sites.
const CACHE: &str = "cache";

/// All processes of the lab.
struct LabProcesses<'a> {
    servers: &'a [(ServerPlace, ServerProcess)],
    gateway: &'a ServerProcess,
    cache: &'a ServerProcess,
}

impl LabProcesses<'_> {
    /// The name of the site of each, its number there, what it has, and the process.
    fn all(&self) -> impl Iterator<Item = (&'static str, usize, &'static str, &ServerProcess)> {
        let servers = self.servers.iter().map(|(place, process)| {
            let content = if place.at == 0 { place.site.content() } else { "" };
            (place.site.name(), place.at + 1, content, process)
        });
        servers.chain([
            (GATEWAY, 1, "all handles, over HTTP", self.gateway),
            (CACHE, 1, "records of all services, once they were asked for", self.cache),
        ])
    }
}

fn show(args: &UpArgs, directory: &Path, processes: &LabProcesses<'_>, is_input_closed: bool) {
    let root = directory.join("bootstrap_handles");
    if args.json {
        let list: Vec<_> = processes
            .all()
            .map(|(site, server, _, process)| {
                json!({
                    "site": site, "server": server, "address": process.address.to_string(),
                    "pid": process.id(), "control": process.control,
                })
            })
            .collect();
        println!("{}", json!({ "root": root, "servers": list }));
        return;
    }
    println!("{}", paint(Paint::Good, format_args!("the lab is running in {}", directory.display())));
    println!();
    let mut table = output::table(&["site", "server", "address", "process", "content"]);
    for (site, server, content, process) in processes.all() {
        table.add_row([
            site.to_owned(),
            server.to_string(),
            process.address.to_string(),
            process.id().to_string(),
            content.to_owned(),
        ]);
    }
    output::lines(&table);
    println!();
    println!("try, in another terminal:");
    println!("  export HDL_ROOT={}", root.display());
    println!("  export HANDLE_CACHE_CONTROL={}", processes.cache.control.display());
    let stop = processes
        .servers
        .iter()
        .find(|(place, _)| place.site == SiteName::Mirror)
        .map_or(0, |(_, process)| process.id());
    let LabProcesses { gateway, cache, .. } = processes;
    for (command, why) in [
        ("hdl resolve hdl:20.500.LAB/hello --trace --certify".to_owned(), "shows every step"),
        ("hdl site 10.1016".to_owned(), "shows which server is responsible"),
        ("hdl check 10.1016/lab-new".to_owned(), "shows that the mirror is outdated"),
        (format!("curl -i http://{}/20.500.LAB/hello", gateway.address), "redirects"),
        (format!("hdl resolve 20.500.LAB/hello --server {}", cache.address), "asks the cache"),
        ("hdl cache get 20.500.LAB/hello".to_owned(), "shows what the cache has"),
        (format!("kill -STOP {stop}"), "stops the mirror; handles still resolve"),
    ] {
        println!("  {command:<54} {}", paint(Paint::Dim, format_args!("# {why}")));
    }
    println!();
    let how = if is_input_closed { "SIGTERM or ^C" } else { "^C or ^D" };
    match args.seconds {
        Some(seconds) => println!("the lab stops after {seconds} s; {how} stops it earlier"),
        None => println!("{how} stops the lab"),
    }
}

/// What stops the lab: a signal, the end of standard input, or the end of its time.
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
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
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

    /// Whether a signal arrived before the lab was ready.
    fn has_come(&self) -> bool {
        self.is_signalled.load(Ordering::Relaxed)
    }

    /// Whether standard input is at its end, and is not a terminal. Read once, before the user is
    /// told what stops the lab: an end after that stops it.
    fn input_has_ended(&self) -> bool {
        self.is_input_over.load(Ordering::Relaxed) && !std::io::stdin().is_terminal()
    }

    /// Waits for the end. The end of a standard input that was closed from the start is ignored.
    fn wait(&self, is_input_closed: bool, at_most: Option<Duration>) {
        self.wait_and(is_input_closed, at_most, Duration::from_secs(60), || ());
    }

    /// As [`wait`](Self::wait), and meanwhile does `work` at this interval.
    fn wait_and(
        &self,
        is_input_closed: bool,
        at_most: Option<Duration>,
        interval: Duration,
        mut work: impl FnMut(),
    ) {
        let deadline = at_most.map(|at_most| Instant::now() + at_most);
        let mut input_counts = !is_input_closed;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            match self.causes.recv_timeout(left.map_or(interval, |left| left.min(interval))) {
                Ok(EndCause::Input) if !input_counts => input_counts = true,
                Ok(EndCause::Signal | EndCause::Input) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => work(),
                // Without senders nothing else could stop the lab.
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the end of standard input, which has arrived, stops a lab.
    fn stops(is_input_closed: bool) -> bool {
        let (send, causes) = mpsc::channel();
        send.send(EndCause::Input).unwrap();
        let end =
            LabEnd { is_signalled: Arc::default(), is_input_over: Arc::new(AtomicBool::new(true)), causes };
        let turns = std::cell::Cell::new(0);
        // The sender lives on, so that nothing else stops the lab before its time.
        end.wait_and(is_input_closed, Some(Duration::from_millis(20)), Duration::from_millis(1), || {
            turns.set(turns.get() + 1);
        });
        drop(send);
        turns.get() == 0
    }

    #[test]
    fn the_end_of_an_input_that_was_open_stops_the_lab() {
        assert!(stops(false), "the input ended after the user was told that this stops the lab");
        assert!(!stops(true), "the input was closed from the start");
    }
}
