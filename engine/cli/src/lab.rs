//! `hdl lab`: a small Handle System on loopback, to learn with, to test with, and to break.
//!
//! Nine servers in five sites: the global registry; a service of three sites - four servers, two servers, and a
//! mirror that lags behind - for real DOIs; and a registry of its own for the prefixes derived from 20.500, which
//! serves handles, too. Each has a key of its own and signs.

mod records;
mod topology;

use crate::Outcome;
use crate::served::{self, Process};
use anyhow::{Context as _, ensure};
use handle_server::config::Config;
use records::Records;
use serde_json::json;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
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
    /// Runs until standard input ends (^D) or it is interrupted; the servers end with it.
    #[command(after_help = "Example:
  hdl lab up --dir /tmp/lab
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
    /// Say what was started as JSON, on one line.
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
    let temporary = tempfile::tempdir().context("cannot make a temporary directory")?;
    let directory = args.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    ensure!(
        std::fs::read_dir(&directory)?.next().is_none(),
        "{} is not empty: name another directory",
        directory.display()
    );
    let topology = Topology::new(&args.port)?;
    let records = Records::new(&topology)?;
    std::fs::write(directory.join("bootstrap_handles"), format!("{:#}", records.bootstrap()))?;
    let mut servers = vec![];
    for place in topology.places() {
        let config = make(&directory, &topology, &records, &place)?;
        let control = config.with_file_name("control.sock");
        let process =
            Process::start(["lab-server".as_ref(), "--config".as_ref(), config.as_os_str()], control)?;
        servers.push((place, process));
    }
    show(args, &directory, &servers);
    wait();
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
         control = \"control.sock\"\nlog = \"warn\"\n\n[server_key]\nfile = \"privkey.bin\"\n",
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
    println!("the lab is up, in {}\n", directory.display());
    for (place, process) in servers {
        println!("  {:<10} server {} at {}", place.site.name(), place.at + 1, process.address);
    }
    println!("\ntry, in another terminal:");
    println!("  export HDL_ROOT={}", root.display());
    for line in [
        "hdl resolve 10.1016/j.rcae.2013.04.001 --trace --certify",
        "hdl resolve hdl:20.500.LAB/hello --trace",
        "hdl site 10.1016",
        "hdl check 10.1016/lab-new        # the mirror lags behind",
    ] {
        println!("  {line}");
    }
    println!("\nkill any of the servers, and see that handles still resolve; ^D ends the lab");
}

/// Waits until standard input ends. Where it is nothing at all, the lab would end at once.
fn wait() {
    let mut input = std::io::stdin();
    let began = std::time::Instant::now();
    let _ = input.read_to_end(&mut Vec::new());
    if began.elapsed() < std::time::Duration::from_millis(100) && !input.is_terminal() {
        eprintln!(
            "hdl: standard input has ended, and so does the lab: keep it open, as in `sleep 600 | hdl lab up`"
        );
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
}
