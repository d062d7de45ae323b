//! What a service in production needs besides its own files: an owner, units for systemd, and what
//! Prometheus reads.

use super::accounts::{FileOwners, ProcessAccounts};
use super::config::{METRICS, metrics_address};
use crate::key;
use anyhow::{Context as _, ensure};
use handle_daemon::privileges::is_root;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The units of the documentation, which packages install.
const UNITS: [(&str, &str); 3] = [
    ("handled", include_str!("../../../../docs/operations/handled.service")),
    ("handle-admin", include_str!("../../../../docs/operations/handle-admin.service")),
    ("handle-gateway", include_str!("../../../../docs/operations/handle-gateway.service")),
];
/// Ports below this one need a capability, unless the host changes it.
const FIRST_FREE_PORT: u16 = 1024;
/// Where systemd looks for units of packages.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];
const ALERTS: &str = include_str!("../../../../docs/operations/alerts.yml");
const ALERTS_FILE: &str = "alerts.yml";
const SCRAPE_FILE: &str = "prometheus.yml";

/// The capability to bind ports below 1024. Children get it too, so a take-over keeps it.
const LOW_PORT: &str =
    "AmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n";

/// Options for a service in production.
#[derive(clap::Args, Debug)]
pub(super) struct ProductionArgs {
    /// One account that owns all files and runs the processes, as a name or uid:gid. Needs root.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Write units and drop-ins for systemd, with the paths of this directory. A unit that a
    /// package has installed stays, and gets the drop-in only. The audit log is then in log/.
    /// Without --user, each process has the account of its unit, and gets the files that it needs;
    /// this needs root.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "/etc/systemd/system")]
    pub(super) systemd: Option<PathBuf>,
    /// First of three ports on loopback for metrics: of handled, handle-admin and handle-gateway.
    #[arg(long, value_name = "PORT", default_value_t = 9641, value_parser = clap::value_parser!(u16).range(1..=65_533))]
    metrics_port: u16,
    /// Serve no metrics.
    #[arg(long, conflicts_with = "metrics_port")]
    no_metrics: bool,
}

/// The units that were written.
#[derive(Debug, Default)]
pub(super) struct SystemdUnits {
    pub(super) files: Vec<PathBuf>,
}

impl ProductionArgs {
    pub(super) fn metrics_port(&self) -> Option<u16> {
        (!self.no_metrics).then_some(self.metrics_port)
    }

    /// Whether the files belong to the accounts that run the processes.
    pub(super) const fn has_owner(&self) -> bool {
        self.user.is_some() || self.systemd.is_some()
    }

    /// Which accounts run the processes.
    pub(super) const fn accounts(&self) -> ProcessAccounts {
        match self.user.is_none() && self.systemd.is_some() {
            true => ProcessAccounts::Separate,
            false => ProcessAccounts::Shared,
        }
    }

    /// The option with which a process that is started as root changes to the account, with a blank
    /// before it.
    pub(super) fn user_option(&self) -> String {
        self.user.as_ref().map_or(String::new(), |user| format!(" --user {user}"))
    }

    /// The owners of the files, checked before anything is written.
    pub(super) fn owners(&self) -> anyhow::Result<Option<FileOwners>> {
        match (&self.user, self.accounts()) {
            (Some(user), _) => {
                ensure!(is_root(), "--user {user} needs root: only root may give files to another account");
                FileOwners::one(user).map(Some)
            }
            (None, ProcessAccounts::Separate) => {
                ensure!(
                    is_root(),
                    "--systemd needs root, which gives the files to the accounts of the units"
                );
                FileOwners::of_units().map(Some)
            }
            (None, ProcessAccounts::Shared) => Ok(None),
        }
    }

    /// Writes the units, and gives the directory to its owners. `listens` tells on which ports a
    /// process listens, besides that of its metrics.
    pub(super) fn finish(
        &self,
        directory: &Path,
        owners: Option<FileOwners>,
        listens: impl Fn(&str) -> Vec<u16>,
    ) -> anyhow::Result<SystemdUnits> {
        let mut units = SystemdUnits::default();
        if let Some(to) = &self.systemd {
            make_log_directory(&directory.join("log"))?;
            let here =
                directory.canonicalize().with_context(|| format!("cannot find {}", directory.display()))?;
            for (name, unit) in UNITS {
                let is_packaged = PACKAGED
                    .iter()
                    .any(|packages| Path::new(packages).join(format!("{name}.service")).exists());
                if !is_packaged {
                    units.write(&to.join(format!("{name}.service")), unit)?;
                }
                let metrics = self.metrics_port().map(|first| metrics_address(name, first).port());
                let has_low_port =
                    listens(name).into_iter().chain(metrics).any(|port| port < FIRST_FREE_PORT);
                let mut text = drop_in(name, unit, &here, self.user.as_deref());
                if has_low_port {
                    text.push_str(LOW_PORT);
                }
                units.write(&to.join(format!("{name}.service.d/service.conf")), &text)?;
            }
        }
        if let Some(owners) = owners {
            owners.give(directory)?;
        }
        Ok(units)
    }
}

impl SystemdUnits {
    fn write(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}", path.display());
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(failed)?;
        std::fs::write(path, text).with_context(failed)?;
        self.files.push(path.to_owned());
        Ok(())
    }
}

/// What differs from the unit for a service in `directory`, of one account `user` or of those of
/// the units.
fn drop_in(name: &str, unit: &str, directory: &Path, user: Option<&str>) -> String {
    let here = directory.display();
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")?.split(' ').next());
    let program = program.unwrap_or(name);
    let mut text = format!(
        "# Written by hdl init for the service in {here}.\n[Service]\nExecStart=\n\
         ExecStart={program} --config \"{here}/{name}.toml\"\n"
    );
    // handle-admin writes the store, the set and the audit log; the others only their sockets.
    match (name, user) {
        ("handle-admin", _) => {
            let _ = writeln!(text, "ReadWritePaths=\"{here}\"");
        }
        (_, Some(_)) => {
            let _ = writeln!(text, "ReadWritePaths=\"{here}/run\"");
        }
        (_, None) => {}
    }
    if let Some(user) = user {
        // `uid:gid` is two settings of a unit.
        let (user, group) = user.split_once(':').unwrap_or((user, ""));
        let _ = writeln!(
            text,
            "ExecReload=\nExecReload=/usr/bin/hdl control reload --socket \"{here}/run/{name}.sock\"\n\
             User={user}\nGroup={group}"
        );
    }
    text
}

fn make_log_directory(path: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o750)));
    made.with_context(|| format!("cannot create {}", path.display()))
}

/// Writes what Prometheus reads: scrape jobs with the names that the alerts use, and the alerts.
pub(super) fn write_monitoring(directory: &Path, first_port: u16) -> anyhow::Result<()> {
    let mut scrape = "# For Prometheus on this host: add the jobs to its own file, or use this one.\n\
                      rule_files: [alerts.yml]\nscrape_configs:\n"
        .to_owned();
    for process in METRICS {
        let target = metrics_address(process, first_port);
        let _ =
            writeln!(scrape, "  - job_name: {process}\n    static_configs: [{{ targets: [\"{target}\"] }}]");
    }
    key::create(&directory.join(ALERTS_FILE), ALERTS.as_bytes())?;
    key::create(&directory.join(SCRAPE_FILE), scrape.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_has_the_paths_of_the_directory_and_the_program_of_the_unit() {
        let directory = Path::new("/srv/my handle");
        let (name, unit) = UNITS[0];
        let text = drop_in(name, unit, directory, None);
        let start = "ExecStart=\nExecStart=/usr/bin/handled --config \"/srv/my handle/handled.toml\"\n";
        assert!(text.ends_with(start), "its sockets, user and reload are those of the unit: {text}");
        let text = drop_in(name, unit, directory, Some("handled"));
        assert!(text.contains("ReadWritePaths=\"/srv/my handle/run\"\n"), "{text}");
        assert!(text.contains(" --socket \"/srv/my handle/run/handled.sock\"\n"), "{text}");
        let (name, unit) = UNITS[1];
        let text = drop_in(name, unit, directory, Some("library"));
        assert!(text.contains("ReadWritePaths=\"/srv/my handle\"\n"), "{text}");
        assert!(text.ends_with("User=library\nGroup=\n"), "{text}");
    }
}
