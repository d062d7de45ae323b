//! A file with the statement about the newest set that a process has served. After a restart, the
//! process thereby refuses an older set.

use super::manifest::Manifest;
use super::statement::{STATEMENT_LEN_MAX, SetStatement, SignedStatement};
use super::{SetError, SetErrorKind, read_small};
use std::borrow::ToOwned as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two writes, so that frequent publications do not cause as many syncs.
const WRITE_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Mode of the file.
const FILE_MODE: u32 = 0o640;

/// The file, and what is in it.
#[derive(Debug)]
pub struct LastServedFile {
    path: PathBuf,
    state: Mutex<LastServedState>,
}

#[derive(Debug)]
struct LastServedState {
    stored: Option<SetStatement>,
    written_at: Option<Instant>,
    is_failing: bool,
}

/// The order of sets: by epoch, then by generation.
const fn order(statement: &SetStatement) -> (u64, u64) {
    (statement.epoch, statement.generation)
}

impl LastServedFile {
    /// Reads the file, if it exists.
    ///
    /// # Errors
    /// When it cannot be read, or has something else in it.
    pub fn open(path: &Path) -> Result<Self, SetError> {
        let stored = match read_small(path, STATEMENT_LEN_MAX) {
            Ok(bytes) => {
                let refused = || match SignedStatement::later_version(&bytes) {
                    Some(version) => SetErrorKind::LaterStatement(version),
                    None => SetErrorKind::NotAStatement,
                };
                let signed = SignedStatement::parse(&bytes);
                Some(signed.ok_or_else(|| SetError::new(path, refused()))?.statement)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(SetError::io(path, "read", error)),
        };
        let state = LastServedState { stored, written_at: None, is_failing: false };
        Ok(Self { path: path.to_owned(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, LastServedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the set of `manifest`, at `path`, is not older than the one in the file.
    ///
    /// # Errors
    /// When it is.
    pub fn check(&self, path: &Path, manifest: &Manifest) -> Result<(), SetError> {
        match &self.state().stored {
            Some(stored) if (manifest.epoch, manifest.generation) < order(stored) => {
                let found = (manifest.epoch, manifest.generation);
                let kind =
                    SetErrorKind::OlderThanStored { found, stored: order(stored), file: self.path.clone() };
                Err(SetError::new(path, kind))
            }
            _ => Ok(()),
        }
    }

    /// Writes the statement of `manifest` to the file if it is about a later set, at most once a
    /// second. Call it again later: what is left out for this reason is then written.
    ///
    /// # Errors
    /// When it cannot be written and the last attempt could, so that a full disk is reported once.
    pub fn store(&self, manifest: &Manifest) -> Result<(), SetError> {
        let Some(signed) = manifest.statement() else { return Ok(()) };
        let mut state = self.state();
        let is_new = state.stored.as_ref().is_none_or(|stored| order(stored) < order(&signed.statement));
        let is_soon = state.written_at.is_some_and(|at| at.elapsed() < WRITE_INTERVAL_MIN);
        if !is_new || is_soon {
            return Ok(());
        }
        state.written_at = Some(Instant::now());
        match self.replace(&signed.encode()) {
            Ok(()) => {
                state.stored = Some(signed.statement);
                state.is_failing = false;
                Ok(())
            }
            Err(error) if !std::mem::replace(&mut state.is_failing, true) => {
                Err(SetError::io(&self.path, "write", error))
            }
            Err(_) => Ok(()),
        }
    }

    /// Replaces the file in one step, durably.
    fn replace(&self, text: &str) -> io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        // A process that takes over runs beside the old one for a moment.
        name.push(std::format!(".{}.tmp", std::process::id()));
        let written = self.path.with_file_name(name);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(&written)?;
        let replaced = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&written, &self.path));
        if replaced.is_err() {
            // Only saves space.
            let _ = std::fs::remove_file(&written);
        }
        replaced?;
        let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Sha256Sum;
    use crate::names::NameRule;
    use crate::set::manifest::ManifestSeal;
    use std::vec;
    use std::vec::Vec;

    fn manifest(epoch: u64, generation: u64) -> Manifest {
        let seal = ManifestSeal { signer: Sha256Sum([1; 32]), signature: vec![7; 16], signed_unix_ms: 5 };
        Manifest {
            epoch,
            generation,
            seal: Some(seal),
            layers: Vec::new(),
            created_unix_ms: 1,
            handles_count: 0,
            names: Some(NameRule::Folded),
            root: Sha256Sum([9; 32]),
            source: None,
        }
    }

    #[test]
    fn older_sets_are_refused_after_the_file_was_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("last-set");
        let set = Path::new("/set");
        let file = LastServedFile::open(&path).unwrap();
        file.check(set, &manifest(0, 0)).unwrap();
        file.store(&manifest(2, 7)).unwrap();
        let again = || LastServedFile::open(&path).unwrap();
        for (epoch, generation, is_older) in
            [(2, 7, false), (2, 8, false), (3, 1, false), (2, 6, true), (1, 9, true)]
        {
            let checked = again().check(set, &manifest(epoch, generation));
            assert_eq!(checked.is_err(), is_older, "{epoch} {generation}");
            if let Err(error) = checked {
                let expected = ((epoch, generation), (2, 7));
                assert!(
                    matches!(&error.kind, SetErrorKind::OlderThanStored { found, stored, file }
                        if (*found, *stored) == expected && *file == path),
                    "{:?}",
                    error.kind
                );
                let text = std::string::ToString::to_string(&error);
                assert!(text.contains("last-set") && text.contains("remove"), "{text}");
            }
        }
        // An older set does not replace what is stored.
        let refused = |found: (u64, u64), stored: (u64, u64)| {
            let kind = again().check(set, &manifest(found.0, found.1)).unwrap_err().kind;
            let expected = (found, stored);
            matches!(kind, SetErrorKind::OlderThanStored { found, stored, .. } if (found, stored) == expected)
        };
        again().store(&manifest(2, 6)).unwrap();
        assert!(refused((2, 6), (2, 7)));
        again().store(&manifest(3, 1)).unwrap();
        assert!(refused((2, 8), (3, 1)), "an older epoch with a later generation");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_file_with_something_else_is_an_error_and_a_failed_write_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("last-set");
        for content in [&b""[..], b"generation 7\n", &[b'x'; STATEMENT_LEN_MAX + 1]] {
            std::fs::write(&path, content).unwrap();
            let kind = LastServedFile::open(&path).unwrap_err().kind;
            assert!(matches!(kind, SetErrorKind::NotAStatement), "{kind:?}");
        }
        std::fs::write(&path, "handle snapshot statement 3\nepoch 1\n").unwrap();
        let later = std::string::ToString::to_string(&LastServedFile::open(&path).unwrap_err());
        assert!(later.contains("format 3") && later.contains("formats 1 and 2: update"), "{later}");
        let file = LastServedFile::open(&dir.path().join("none/last-set")).unwrap();
        assert!(file.store(&manifest(0, 1)).is_err());
        file.state().written_at = None;
        file.store(&manifest(0, 2)).unwrap();
        std::fs::create_dir(dir.path().join("none")).unwrap();
        file.state().written_at = None;
        file.store(&manifest(0, 2)).unwrap();
        assert!(dir.path().join("none/last-set").exists());
    }
}
