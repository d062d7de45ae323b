//! What a service in production needs besides its own files: an owner, units for systemd, and what
//! Prometheus reads.

use super::config::{METRICS, metrics_address};
use crate::key;
use anyhow::{Context as _, ensure};
use handle_daemon::privileges::{is_root, owner_ids};
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
/// The account of these units.
const UNIT_USER: &str = "handled";
/// Where systemd looks for units of packages.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];
const ALERTS: &str = include_str!("../../../../docs/operations/alerts.yml");
const ALERTS_FILE: &str = "alerts.yml";
const SCRAPE_FILE: &str = "prometheus.yml";

/// Options for a service in production.
#[derive(clap::Args, Debug)]
pub(super) struct ProductionArgs {
    /// Account that owns all files and runs the processes, as a name or uid:gid. Needs root.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Write units and drop-ins for systemd, with the paths of this directory. A unit that a
    /// package has installed stays, and gets the drop-in only. The audit log is then in log/.
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

/// The numbers of the account that gets the files.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileOwner {
    uid: u32,
    gid: u32,
}

impl ProductionArgs {
    pub(super) fn metrics_port(&self) -> Option<u16> {
        (!self.no_metrics).then_some(self.metrics_port)
    }

    /// Whether the files belong to the account that runs the processes.
    pub(super) const fn has_owner(&self) -> bool {
        self.user.is_some()
    }

    /// The option with which a process that is started as root changes to the account, with a blank
    /// before it.
    pub(super) fn user_option(&self) -> String {
        self.user.as_ref().map_or(String::new(), |user| format!(" --user {user}"))
    }

    /// The account, checked before anything is written.
    pub(super) fn account(&self) -> anyhow::Result<Option<FileOwner>> {
        let Some(user) = &self.user else { return Ok(None) };
        ensure!(is_root(), "--user {user} needs root: only root may give files to another account");
        let (uid, gid) = owner_ids(user).with_context(|| {
            let make = "useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin";
            format!("cannot use the account {user} (make it: {make} {user})")
        })?;
        Ok(Some(FileOwner { uid, gid }))
    }

    /// Writes the units, and gives the directory to the account.
    pub(super) fn finish(&self, directory: &Path, owner: Option<FileOwner>) -> anyhow::Result<SystemdUnits> {
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
                let user = self.user.as_deref().filter(|user| *user != UNIT_USER);
                units.write(
                    &to.join(format!("{name}.service.d/service.conf")),
                    &drop_in(name, unit, &here, user),
                )?;
            }
        }
        if let Some(owner) = owner {
            give(directory, owner)?;
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

/// What differs from the unit for a service in `directory`.
fn drop_in(name: &str, unit: &str, directory: &Path, user: Option<&str>) -> String {
    let here = directory.display();
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")?.split(' ').next());
    let program = program.unwrap_or(name);
    // handle-admin writes the store, the set and the audit log; the others only their sockets.
    let written = if name == "handle-admin" { String::new() } else { "/run".to_owned() };
    let mut text = format!(
        "# Written by hdl init for the service in {here}.\n[Service]\nExecStart=\n\
         ExecStart={program} --config \"{here}/{name}.toml\"\nExecReload=\n\
         ExecReload=/usr/bin/hdl control reload --socket \"{here}/run/{name}.sock\"\n\
         ReadWritePaths=\"{here}{written}\"\n"
    );
    if let Some(user) = user {
        // `uid:gid` is two settings of a unit.
        let (user, group) = user.split_once(':').unwrap_or((user, ""));
        let _ = writeln!(text, "User={user}\nGroup={group}");
    }
    text
}

fn make_log_directory(path: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o750)));
    made.with_context(|| format!("cannot create {}", path.display()))
}

/// Gives a directory, and all that is in it, to an account.
fn give(path: &Path, owner: FileOwner) -> anyhow::Result<()> {
    let failed = || format!("cannot give {} to {}:{}", path.display(), owner.uid, owner.gid);
    std::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid)).with_context(failed)?;
    if path.symlink_metadata().with_context(failed)?.is_dir() {
        for entry in path.read_dir().with_context(failed)? {
            give(&entry.with_context(failed)?.path(), owner)?;
        }
    }
    Ok(())
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
        assert!(
            text.contains("ExecStart=/usr/bin/handled --config \"/srv/my handle/handled.toml\"\n"),
            "{text}"
        );
        assert!(
            text.contains("ReadWritePaths=\"/srv/my handle/run\"\n") && !text.contains("User="),
            "{text}"
        );
        let (name, unit) = UNITS[1];
        let text = drop_in(name, unit, directory, Some("library"));
        assert!(text.contains("ReadWritePaths=\"/srv/my handle\"\n"), "{text}");
        assert!(text.ends_with("User=library\nGroup=\n"), "{text}");
    }
}
