//! Files of keys that are replaced in two steps.

use anyhow::Context as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// The end of the name of a file that will take the place of another one.
pub(super) const NEXT: &str = "-next";
/// The end of the name of a file whose place another one has taken.
pub(super) const OLD: &str = "-old";

/// The file beside `path` whose name has `end` before its extension.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(end);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Writes or replaces a file at once, durably, with the owner and the mode of `like`, because
/// another account than that of the command may have to read it.
pub(super) fn write_like(path: &Path, like: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(failed),
        // Left by a command that was interrupted.
        _ => {}
    }
    // It may be a secret, so the mode of `like` comes after its owner.
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).with_context(failed)?;
    let given = file.write_all(bytes).with_context(failed).and_then(|()| give_like(&file, &new, like));
    if let Err(error) = given {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    file.sync_all().and_then(|()| fs::rename(&new, path)).with_context(failed)?;
    sync_directory_of(path)
}

/// Puts a file in the place of another one, with its owner and its mode.
pub(super) fn take_place(path: &Path, of: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    give_like(&file, path, of)?;
    fs::rename(path, of).with_context(|| format!("cannot replace {}", of.display()))?;
    sync_directory_of(of)
}

/// Gives an open file to the owner of another one, with its mode. The owner of the directory may
/// have put another file at its path, which must not get them.
fn give_like(file: &File, path: &Path, like: &Path) -> anyhow::Result<()> {
    let read = |path: &Path| format!("cannot read {}", path.display());
    let has = file.metadata().with_context(|| read(path))?;
    let wanted = like.metadata().with_context(|| read(like))?;
    let (uid, gid) = (wanted.uid(), wanted.gid());
    if (has.uid(), has.gid()) != (uid, gid) {
        fchown(file, Some(uid), Some(gid)).with_context(|| {
            format!(
                "cannot give {} to {uid}:{gid}, who owns {}: run it as root",
                path.display(),
                like.display()
            )
        })?;
    }
    file.set_permissions(Permissions::from_mode(wanted.mode() & 0o777))
        .with_context(|| format!("cannot change the mode of {}", path.display()))
}

fn sync_directory_of(path: &Path) -> anyhow::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .with_context(|| format!("cannot sync {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_extension() {
        assert_eq!(beside(Path::new("/srv/a-private.bin"), NEXT), Path::new("/srv/a-private-next.bin"));
        assert_eq!(beside(Path::new("key"), OLD), Path::new("key-old"));
    }

    #[test]
    fn a_new_file_has_the_mode_of_the_other_one_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for mode in [0o400, 0o600, 0o640] {
            fs::write(path("like"), b"old").unwrap();
            fs::set_permissions(path("like"), Permissions::from_mode(mode)).unwrap();
            // As after a kill.
            fs::write(path("new.new"), b"partial").unwrap();
            write_like(&path("new"), &path("like"), b"new").unwrap();
            assert_eq!(path("new").metadata().unwrap().mode() & 0o7777, mode);
            fs::set_permissions(path("new"), Permissions::from_mode(0o644)).unwrap();
            take_place(&path("new"), &path("like")).unwrap();
            assert_eq!(fs::read(path("like")).unwrap(), b"new");
            assert_eq!(path("like").metadata().unwrap().mode() & 0o7777, mode);
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
            fs::remove_file(path("like")).unwrap();
        }
        write_like(&path("new"), &path("no"), b"new").unwrap_err();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
