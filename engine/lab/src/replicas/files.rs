//! The directory of the lab: a primary and a mirror as `hdl init` makes them, the place of the
//! fleet, and its machines.

use super::HANDLE;
use super::programs::LabProgram;
use crate::up::topology::addresses;
use anyhow::{Context as _, ensure};
use serde_json::Value as Json;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file with the processes, also of which directory is one of a lab.
const STATE: &str = "lab.json";
/// The identity that administers the records of the primary.
const ADMINISTRATOR: &str = "300:10.1045/ADMIN";
/// Machines of the fleet.
const MACHINES: [&str; 2] = ["1", "2"];

/// The directory of a lab.
pub(super) struct ReplicaLab {
    directory: PathBuf,
}

impl ReplicaLab {
    /// The directory of a running lab.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Self> {
        ensure!(
            directory.join(STATE).exists(),
            "{} is not the directory of a lab that `handle-lab replicas` has started",
            directory.display()
        );
        Ok(Self { directory: fs::canonicalize(directory)? })
    }

    /// Creates the files of all processes in a new or empty directory.
    pub(super) fn create(directory: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let directory = fs::canonicalize(directory)?;
        ensure!(
            fs::read_dir(&directory)?.next().is_none(),
            "{} is not empty: choose an empty or new directory",
            directory.display()
        );
        let lab = Self { directory };
        for name in ["stopped", "log", "place"] {
            fs::create_dir(lab.path(name))?;
        }
        let addresses = addresses(&[], 4 + MACHINES.len())?;
        lab.init("primary", addresses[0], addresses[1])?;
        lab.init("mirror", addresses[2], addresses[3])?;
        lab.follow()?;
        for (machine, address) in MACHINES.iter().zip(&addresses[4..]) {
            lab.make_machine(machine, *address)?;
        }
        Ok(lab)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The file with the processes.
    pub(super) fn state(&self) -> PathBuf {
        self.path(STATE)
    }

    /// The place of the sets of the fleet.
    pub(super) fn fleet_directory(&self) -> PathBuf {
        self.path("place")
    }

    /// The file that is there while a process is to be stopped.
    pub(super) fn stopped(&self, name: &str) -> PathBuf {
        self.path("stopped").join(name)
    }

    fn init(&self, name: &str, queries: SocketAddr, administration: SocketAddr) -> anyhow::Result<()> {
        let (port, admin_port) = (queries.port().to_string(), administration.port().to_string());
        let mut command = hdl()?;
        command.args([
            "init",
            "--prefix",
            "10.1045",
            "--address",
            "127.0.0.1",
            "--bind",
            "127.0.0.1",
            "--plain",
            // Two services on one host.
            "--no-metrics",
        ]);
        command.args(["--port", &port, "--admin-port", &admin_port]).arg(self.path(name));
        succeed(command, "hdl init")
    }

    /// Makes the second service a mirror of the first.
    fn follow(&self) -> anyhow::Result<()> {
        let site = self.path("mirror/siteinfo.json");
        let mut json: Json = serde_json::from_slice(&fs::read(&site)?)?;
        json["primarySite"] = false.into();
        fs::write(&site, format!("{json:#}\n"))?;
        let config = self.path("mirror/handle-admin.toml");
        let section = format!(
            "\n[mirror]\ninterval_ms = 200\n\n[[mirror.primary]]\n\
             name = \"primary\"\nsite = \"../primary/siteinfo.json\"\nidentity = \"{ADMINISTRATOR}\"\n\
             key_file = \"../primary/admin-private.bin\"\n"
        );
        let text = fs::read_to_string(&config)? + &section;
        Ok(fs::write(&config, text)?)
    }

    /// A machine of the fleet, whose first set is fetched at once, so that it can serve.
    fn make_machine(&self, machine: &str, address: SocketAddr) -> anyhow::Result<()> {
        let own = self.path(&format!("machine-{machine}"));
        fs::create_dir(&own)?;
        let url = format!("file://{}", self.fleet_directory().display());
        fs::write(
            own.join("handle-fetch.toml"),
            format!("url = \"{url}\"\ndirectory = \"set\"\ncontrol = \"fetch.sock\"\ninterval_ms = 200\n"),
        )?;
        fs::write(
            own.join("handled.toml"),
            format!(
                "snapshot = \"set\"\nlisten = [\"{address}\"]\ncontrol = \"handled.sock\"\nworkers = 1\npin = false\n"
            ),
        )?;
        let mut ship = hdl()?;
        ship.arg("ship").arg(self.path("primary/snapshot")).arg(&url);
        succeed(ship, "hdl ship")?;
        let mut fetch = Command::new(program("handle-fetch")?);
        fetch.args(["--once", "--allow-root", "--config"]).arg(own.join("handle-fetch.toml"));
        succeed(fetch, "handle-fetch --once")
    }

    /// The processes, in the order in which they are started.
    pub(super) fn programs(&self) -> anyhow::Result<Vec<LabProgram>> {
        let mut all = Vec::new();
        for name in ["primary", "mirror"] {
            all.push(self.program(name, "handle-admin", &format!("{name}/handle-admin.toml"))?);
            all.push(self.program(&format!("{name}-server"), "handled", &format!("{name}/handled.toml"))?);
        }
        let fleet_directory = format!("file://{}", self.fleet_directory().display());
        // With a short grace time, a lost layer is noticed within a second. Without steps, a
        // machine downloads each layer, also one that was damaged on purpose.
        let options = ["ship", "--follow", "--grace", "4", "--steps-len", "0"];
        let mut args: Vec<OsString> = options.map(OsString::from).into();
        args.extend([self.path("primary/snapshot").into_os_string(), fleet_directory.into()]);
        all.push(LabProgram { name: "ship".to_owned(), program: program("hdl")?, args });
        for machine in MACHINES {
            let own = format!("machine-{machine}");
            all.push(self.program(
                &format!("fetch-{machine}"),
                "handle-fetch",
                &format!("{own}/handle-fetch.toml"),
            )?);
            all.push(self.program(
                &format!("server-{machine}"),
                "handled",
                &format!("{own}/handled.toml"),
            )?);
        }
        Ok(all)
    }

    fn program(&self, name: &str, of: &str, config: &str) -> anyhow::Result<LabProgram> {
        let config = self.path(config).into_os_string();
        let args: [OsString; 3] = ["--config".into(), config, "--allow-root".into()];
        Ok(LabProgram { name: name.to_owned(), program: program(of)?, args: args.to_vec() })
    }

    /// Stores a text in the record of the lab at the primary.
    pub(super) fn change(&self, text: &str) -> anyhow::Result<()> {
        let mut command = hdl()?;
        command.args(["handle", "create", HANDLE, &format!("1:DESC={text}"), "--overwrite"]);
        command.args(["--server", &self.listens("primary/handle-admin.toml")?, "--auth", ADMINISTRATOR]);
        command.arg("--key").arg(self.path("primary/admin-private.bin"));
        succeed(command, "hdl handle create")
    }

    /// The first address in a configuration.
    pub(super) fn listens(&self, config: &str) -> anyhow::Result<String> {
        let text = fs::read_to_string(self.path(config))?;
        let line = text.lines().find_map(|line| line.strip_prefix("listen = [\""));
        let address = line.and_then(|line| line.split('"').next());
        Ok(address.with_context(|| format!("{config} has no address"))?.to_owned())
    }
}

fn hdl() -> anyhow::Result<Command> {
    Ok(Command::new(program("hdl")?))
}

/// A program that is installed beside this one.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().context("cannot find the path of this program")?.with_file_name(name);
    ensure!(path.exists(), "{} is missing: the lab needs it beside handle-lab", path.display());
    Ok(path)
}

fn succeed(mut command: Command, what: &str) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {what}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what} failed ({}): {}", output.status, error.trim());
    Ok(())
}
