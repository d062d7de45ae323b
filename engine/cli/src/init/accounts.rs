//! The accounts that run the processes, and what depends on them: where sockets are, and who owns
//! which file.

use super::certificate::KEY_FILE;
pub(super) use crate::key::{HANDLED_KEY_FILE, SERVER_KEY_FILE};
use anyhow::{Context as _, ensure};
use handle_daemon::privileges::{group_id, owner_ids};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::Path;

/// The group that may read sets and connect to the socket of `handle-admin`, in units and packages.
const SET_GROUP: &str = "handle-sets";
/// The site record.
pub(super) const SITE_FILE: &str = "siteinfo.json";
/// The directory of the site record, if `handle-admin` may write to no other.
pub(super) const SITE_DIRECTORY: &str = "site";
/// Mode of the set: its group, which new layers get too, reads it.
const SET_MODE: u32 = 0o2750;
/// Mode of the directory, and of the files in it that no account owns.
const DIRECTORY_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

/// Which accounts run the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessAccounts {
    /// One account for all. Sockets are in `run/` of the directory.
    #[default]
    Shared,
    /// The accounts of the units, one for each process. Sockets are in the directories that the
    /// units make in `/run`.
    Separate,
}

impl ProcessAccounts {
    /// The control socket of a process.
    pub(super) fn control(self, process: &str) -> String {
        match self {
            Self::Shared => format!("run/{process}.sock"),
            Self::Separate => format!("/run/{process}/control.sock"),
        }
    }

    /// The socket of `handle-admin` for the other processes.
    pub(super) const fn local(self) -> &'static str {
        match self {
            Self::Shared => "run/admin.socket",
            Self::Separate => "/run/handle-admin/admin.socket",
        }
    }

    /// The socket of `handled` for sessions.
    pub(super) const fn sessions(self) -> &'static str {
        match self {
            Self::Shared => "run/sessions",
            Self::Separate => "/run/handled/sessions",
        }
    }

    /// Users for the lists of the local socket: those of `handled` and of `handle-gateway`.
    pub(super) const fn local_users(self) -> Option<[(&'static str, &'static str); 2]> {
        match self {
            Self::Shared => None,
            Self::Separate => {
                Some([("local.handled_users", "handled"), ("local.gateway_users", "handle-gateway")])
            }
        }
    }
}

/// Who gets the files, as numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileOwners {
    /// One account gets all.
    One { uid: u32, gid: u32 },
    /// Each account gets what it alone reads or writes; the group of sets reads the rest.
    Each { handled: u32, admin: u32, gateway: u32, sets: u32 },
}

impl FileOwners {
    /// One account for all files.
    pub(super) fn one(user: &str) -> anyhow::Result<Self> {
        let (uid, gid) = owner_ids(user).with_context(|| {
            let make = "useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin";
            format!("cannot use the account {user} (make it: {make} {user})")
        })?;
        Ok(Self::One { uid, gid })
    }

    /// The accounts of the units.
    pub(super) fn of_units() -> anyhow::Result<Self> {
        let advice = "packages make them; or: systemd-sysusers packaging/sysusers.conf; or give --user";
        let uid = |user: &str| {
            let ids = owner_ids(user).with_context(|| format!("cannot use the account {user} ({advice})"));
            ids.map(|(uid, _)| uid)
        };
        let (handled, admin, gateway) = (uid("handled")?, uid("handle-admin")?, uid("handle-gateway")?);
        let sets = group_id(SET_GROUP).context("cannot read /etc/group")?;
        ensure!(
            handled != admin && handled != gateway && admin != gateway,
            "handled, handle-admin and handle-gateway are not three accounts: give --user for one"
        );
        let sets = sets.with_context(|| format!("there is no group {SET_GROUP} ({advice})"))?;
        Ok(Self::Each { handled, admin, gateway, sets })
    }

    /// Gives `directory`, and all that is in it.
    pub(super) fn give(self, directory: &Path) -> anyhow::Result<()> {
        match self {
            Self::One { uid, gid } => give_all(directory, uid, gid),
            Self::Each { handled, admin, gateway, sets } => {
                give_one(directory, 0, sets, Some(DIRECTORY_MODE))?;
                let entries = directory.read_dir();
                for entry in entries.with_context(|| format!("cannot read {}", directory.display()))? {
                    let path = entry.with_context(|| format!("cannot read {}", directory.display()))?.path();
                    match path.file_name().and_then(|name| name.to_str()).unwrap_or_default() {
                        "snapshot" => {
                            give_all(&path, admin, sets)?;
                            give_one(&path, admin, sets, Some(SET_MODE))?;
                        }
                        SITE_DIRECTORY => {
                            give_one(&path, admin, sets, Some(DIRECTORY_MODE))?;
                            give_one(&path.join(SITE_FILE), admin, sets, Some(FILE_MODE))?;
                        }
                        "log" => give_all(&path, admin, sets)?,
                        "store.redb" | SERVER_KEY_FILE => give_one(&path, admin, sets, None)?,
                        HANDLED_KEY_FILE => give_one(&path, handled, sets, None)?,
                        KEY_FILE => give_one(&path, gateway, sets, None)?,
                        // They stay those of root; the latter is a link.
                        "admin-private.bin" | SITE_FILE => {}
                        _ => give_one(&path, 0, sets, Some(FILE_MODE))?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// Gives a file, or a directory without what is in it, and changes its mode.
fn give_one(path: &Path, uid: u32, gid: u32, mode: Option<u32>) -> anyhow::Result<()> {
    let given = lchown(path, Some(uid), Some(gid)).and_then(|()| match mode {
        Some(mode) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        None => Ok(()),
    });
    given.with_context(|| format!("cannot give {} to {uid}:{gid}", path.display()))
}

/// Gives a directory, and all that is in it.
fn give_all(path: &Path, uid: u32, gid: u32) -> anyhow::Result<()> {
    give_one(path, uid, gid, None)?;
    let failed = || format!("cannot read {}", path.display());
    if path.symlink_metadata().with_context(failed)?.is_dir() {
        for entry in path.read_dir().with_context(failed)? {
            give_all(&entry.with_context(failed)?.path(), uid, gid)?;
        }
    }
    Ok(())
}
