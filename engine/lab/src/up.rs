//! `handle-lab up`: a small Handle System on loopback, for learning and testing.
//!
//! Nine servers in five sites: the global registry; a service for real DOIs with three sites (four
//! servers, two servers, and an outdated mirror); and a registry of its own for the prefixes
//! derived from 20.500, which also serves handles. Each site has its own key, and each server
//! signs. A gateway resolves handles of all of them over HTTP, and a caching server answers for
//! them.

mod records;
pub(crate) mod topology;

use crate::end::{LabEnd, SECONDS_MAX};
use crate::server_process::{self, ServerProcess};
use anyhow::{Context as _, ensure};
use handle_cli::ExitOutcome;
use handle_cli::output;
use handle_cli::style::{Paint, paint};
use handle_snapshot::set::storage::create_directory;
use handle_worker::config::Config;
use records::LabRecords;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;
use topology::{LabTopology, ServerSlot, SiteName};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,
}

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
    for slot in topology.slots() {
        if end.has_come() {
            return Ok(ExitOutcome::Failed);
        }
        let config = make(&directory, &topology, &records, &slot)?;
        let control = config.with_file_name("control.sock");
        let process =
            ServerProcess::start(["lab-server".as_ref(), "--config".as_ref(), config.as_os_str()], control)?;
        servers.push((slot, process));
    }
    let gateway = start_gateway(&directory, args.gateway_port)?;
    let cache = start_cache(&directory, args.cache_port)?;
    let processes = LabProcesses { servers: &servers, gateway: &gateway, cache: &cache };
    let is_input_closed = end.input_has_ended();
    show(args, &directory, &processes, is_input_closed);
    // A lab whose addresses could not be printed is of no use.
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
    slot: &ServerSlot,
) -> anyhow::Result<PathBuf> {
    let own = directory.join(format!("{}-{}", slot.site.name(), slot.at + 1));
    let set = own.join("set");
    create_directory(&set).with_context(|| format!("cannot create {}", set.display()))?;
    records.publish(&set, topology.site(slot.site), slot)?;
    std::fs::write(own.join("siteinfo.json"), format!("{:#}", topology.site_json(slot.site)))?;
    handle_auth::file::create_secret_file(&own.join("privkey.bin"), topology.key_file(slot.site))?;
    let config = own.join("handled.toml");
    let text = format!(
        "snapshot = \"set\"\nsite = \"siteinfo.json\"\nserver_id = {}\nlisten = [\"{}\"]\nworkers = 1\npin = false\n\
         control = \"control.sock\"\nlog = \"warn\"\n\n[server_key]\nfile = \"privkey.bin\"\n\n[slow]\nidle = false\n",
        slot.at + 1,
        slot.address,
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
    servers: &'a [(ServerSlot, ServerProcess)],
    gateway: &'a ServerProcess,
    cache: &'a ServerProcess,
}

impl LabProcesses<'_> {
    /// The name of the site of each, its number there, what it has, and the process.
    fn all(&self) -> impl Iterator<Item = (&'static str, usize, &'static str, &ServerProcess)> {
        let servers = self.servers.iter().map(|(slot, process)| {
            let content = if slot.at == 0 { slot.site.content() } else { "" };
            (slot.site.name(), slot.at + 1, content, process)
        });
        servers.chain([
            (GATEWAY, 1, "all handles, over HTTP", self.gateway),
            (CACHE, 1, "records of all services, once they were asked for", self.cache),
        ])
    }
}

fn show(args: &Args, directory: &Path, processes: &LabProcesses<'_>, is_input_closed: bool) {
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
        .find(|(slot, _)| slot.site == SiteName::Mirror)
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
