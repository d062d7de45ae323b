//! Opening the file, with an error for every kind of damage.

use super::super::{StoreConfig, StoreError};
use super::guard::{SHORT, catch_panic};
use super::overlay::OverlayFile;
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageBackend, StorageError};
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::ops::Range;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time to wait for the lock of the file. A process that ends has it until then, and so has, for a
/// moment, each child process that a process with an open store starts: it closes the file when it
/// executes its program.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two tries to lock the file.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Opens the file that `config` names, after verifying all of it if configured.
///
/// # Errors
/// When the file does not exist, another process has it open for longer than a second, it is not
/// readable and writable, or it is damaged.
pub(super) fn database(config: &StoreConfig) -> Result<Database, StoreError> {
    let (since, bytes) = (Instant::now(), config.file.metadata().map_or(0, |file| file.len()));
    if config.verify_at_start {
        tracing::info!(file = %config.file.display(), bytes, "comparing the checksums of the store");
    }
    look_through(config, written)?;
    if config.verify_at_start {
        tracing::info!(
            bytes,
            seconds = since.elapsed().as_secs_f32(),
            "the checksums of the store are correct"
        );
    }
    let mut builder = super::builder(config);
    builder.set_repair_callback(|repair| {
        // The callback runs in this range only if the last commit is incomplete.
        if (0.1..0.5).contains(&repair.progress()) {
            tracing::warn!(
                "the last commit in the store is incomplete and was discarded: it was not acknowledged when the process was \
                 killed, or it was damaged since"
            );
        }
    });
    map_open_error(config, || builder.open(&config.file))
}

/// Like `database`, but only reads the file: writes stay in memory.
///
/// # Errors
/// As [`database`], except that the file need not be writable.
pub(super) fn unwritten(config: &StoreConfig) -> Result<Database, StoreError> {
    let open = |file: &Path| written(file).or_else(|_| File::open(file));
    look_through(config, open)?;
    map_open_error(config, || {
        let file = FileBackend::new(open(&config.file)?)?;
        super::builder(config).create_with_backend(OverlayFile::new(file)?)
    })
}

/// Opens a file for reading and writing. Where locks are those of `fcntl`, as with NFS, only such a
/// file can be locked.
fn written(file: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(file)
}

fn look_through(config: &StoreConfig, open: impl Fn(&Path) -> io::Result<File>) -> Result<(), StoreError> {
    if !config.file.exists() {
        return Err(StoreError::Missing(config.file.clone()));
    }
    check_format(&config.file)?;
    match config.verify_at_start {
        true => map_open_error(config, || verify(config, FileBackend::new(open(&config.file)?)?)),
        false => Ok(()),
    }
}

/// Refuses a file of a later format, which redb reports as damage. One slot alone may be damaged.
fn check_format(file: &Path) -> Result<(), StoreError> {
    let mut header = [0; StoreHeader::LEN];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut header));
    let header = StoreHeader(header);
    match (read, header.formats()) {
        (Ok(()), [one, other])
            if header.0.starts_with(StoreHeader::MAGIC) && one == other && one > StoreHeader::FORMAT =>
        {
            Err(StoreError::NewerFile { file: file.to_owned(), found: one, known: StoreHeader::FORMAT })
        }
        // Whatever else is wrong is found when the file is opened.
        _ => Ok(()),
    }
}

fn map_open_error<T>(
    config: &StoreConfig,
    open: impl Fn() -> Result<T, DatabaseError>,
) -> Result<T, StoreError> {
    let file = &config.file;
    let broken = |what: String| StoreError::Broken { file: file.clone(), what };
    let timeout = Instant::now() + LOCK_TIMEOUT;
    let opened = loop {
        match catch_panic(&open).map_err(broken)? {
            Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < timeout => sleep(LOCK_INTERVAL),
            opened => break opened,
        }
    };
    opened.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked(file.clone()),
        DatabaseError::Storage(StorageError::Corrupted(what)) => broken(what),
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
            broken("it is not a store".to_owned())
        }
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {
            broken(SHORT.to_owned())
        }
        error => StoreError::Unopened { file: file.clone(), error: Box::new(error.into()) },
    })
}

/// The header of a file of redb: version 3 of its format, as documented by redb.
struct StoreHeader([u8; Self::LEN]);

impl StoreHeader {
    const LEN: usize = 320;
    /// The magic number of such a file.
    const MAGIC: &[u8] = b"redb\x1a\n\xa9\r\n";
    /// The version of the format, the first byte of each slot.
    const FORMAT: u8 = 3;
    /// Offset of the flags.
    const FLAGS: usize = 9;
    /// Flag: the second slot has the last commit, not the first.
    const SECOND: u8 = 1;
    /// Flag: the file was not closed.
    const UNCLOSED: u8 = 2;
    /// Flag: the last commit was synced before its slot became the current one.
    const SYNCED_FIRST: u8 = 4;
    /// The two slots; each describes a commit and has its own checksum.
    const SLOTS: [Range<usize>; 2] = [64..192, 192..320];
    /// Position of the commit number in a slot; little-endian.
    const COMMIT: Range<usize> = 104..112;

    const fn has(&self, flag: u8) -> bool {
        self.0[Self::FLAGS] & flag != 0
    }

    /// The current slot, and the other one.
    const fn slots(&self) -> [Range<usize>; 2] {
        let [first, second] = Self::SLOTS;
        if self.has(Self::SECOND) { [second, first] } else { [first, second] }
    }

    fn commit(&self, slot: Range<usize>) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&self.0[slot][Self::COMMIT]);
        u64::from_le_bytes(number)
    }

    /// The versions of the format in the slots.
    fn formats(&self) -> [u8; 2] {
        Self::SLOTS.map(|slot| self.0[slot.start])
    }

    /// Makes redb verify the last commit, without another commit to fall back to.
    fn demand_repair(&mut self) {
        self.0[Self::FLAGS] = self.0[Self::FLAGS] & !Self::SYNCED_FIRST | Self::UNCLOSED;
        let [counts, other] = self.slots();
        self.0.copy_within(counts, other.start);
    }
}

/// Verifies the checksums of all pages in use. Writes nothing.
///
/// redb does so only when it repairs a file, and then falls back to the previous commit if the last
/// one is damaged. So redb gets a file that needs repair, has no other commit, and keeps writes in
/// memory. redb verifies the checksum of a page before it follows the references in it, so no
/// content of a damaged page is trusted.
pub(super) fn verify(config: &StoreConfig, file: impl StorageBackend) -> Result<(), DatabaseError> {
    let mut header = StoreHeader([0; StoreHeader::LEN]);
    if file.len()? >= StoreHeader::LEN as u64 {
        file.read(0, &mut header.0)?;
    }
    if !header.0.starts_with(StoreHeader::MAGIC) {
        // In a file of another kind, or a shorter one, these bytes are not flags and numbers.
        return Err(StorageError::Io(ErrorKind::InvalidData.into()).into());
    }
    if header.has(StoreHeader::UNCLOSED) && !header.has(StoreHeader::SYNCED_FIRST) {
        // Opening repairs the file: its last commit may be incomplete, since it was not
        // acknowledged.
        return Ok(());
    }
    let [last, before] = header.slots().map(|slot| header.commit(slot));
    let is_older = !header.has(StoreHeader::UNCLOSED) && last < before;
    header.demand_repair();
    let file = OverlayFile::new(file)?;
    file.write(0, &header.0)?;
    let mut builder = super::builder(config);
    // All checksums are right at this point. redb would go on to read everything again, to find the
    // free pages.
    builder.set_repair_callback(|repair| {
        if repair.progress() > 0.5 {
            repair.abort();
        }
    });
    match builder.create_with_backend(file).map(drop) {
        Ok(()) | Err(DatabaseError::RepairAborted) => {}
        Err(error) => return Err(error),
    }
    match is_older {
        true => {
            Err(StorageError::Corrupted("the header names an older commit as the last".to_owned()).into())
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::tests::{COMMIT_KINDS, CommitKind, QUICK, SYNCED_ONCE, SYNCED_TWICE, committing};
    use redb::backends::InMemoryBackend;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The bytes of a store that was closed, or of one that was not.
    fn file(kind: CommitKind, is_closed: bool) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("store");
        let config = committing(kind, &file);
        let store = Store::create(&config, true).unwrap();
        (0..3).for_each(|nth| assert!(store.home(format!("10.{nth}").as_bytes()).unwrap()));
        if is_closed {
            drop(store);
            return std::fs::read(&file).unwrap();
        }
        std::fs::read(&file).unwrap()
    }

    fn verified(bytes: &[u8]) -> Result<(), DatabaseError> {
        let file = InMemoryBackend::new();
        file.set_len(bytes.len() as u64).unwrap();
        file.write(0, bytes).unwrap();
        verify(&StoreConfig { cache_bytes: 1 << 20, ..StoreConfig::default() }, file)
    }

    #[test]
    fn an_intact_store_opens_after_any_end() {
        for (kind, is_closed) in COMMIT_KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
            let what = format!("{kind:?}, closed: {is_closed}");
            let bytes = file(kind, is_closed);
            verified(&bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut header = StoreHeader([0; 320]);
            header.0.copy_from_slice(&bytes[..320]);
            assert_eq!(header.has(StoreHeader::UNCLOSED), !is_closed, "{what}");
            assert_eq!(header.has(StoreHeader::SYNCED_FIRST), kind != SYNCED_ONCE || is_closed, "{what}");
            let [last, before] = header.slots().map(|slot| header.commit(slot));
            assert!(last == before + 1, "{what}: {last} after {before}");
        }
    }

    #[test]
    fn reading_does_not_change_a_store() {
        let ends = [(QUICK, true), (QUICK, false), (SYNCED_TWICE, false), (SYNCED_ONCE, false)];
        for (kind, is_closed) in ends {
            let bytes = file(kind, is_closed);
            let directory = tempfile::tempdir().unwrap();
            let config = committing(kind, &directory.path().join("store"));
            std::fs::write(&config.file, &bytes).unwrap();
            let store = Store::open_to_read(&config).unwrap();
            assert_eq!(store.snapshot().unwrap().homed().unwrap().len(), 3);
            assert!(matches!(Store::open(&config), Err(StoreError::Locked(_))));
            assert!(store.home(b"10.9").unwrap());
            drop(store);
            assert!(std::fs::read(&config.file).unwrap() == bytes, "closed: {is_closed}");
            assert_eq!(Store::open(&config).unwrap().stats().unwrap().homed_prefixes, 3);
        }
    }

    #[test]
    fn a_store_is_opened_when_another_process_ends_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig::at(&directory.path().join("store"));
        drop(Store::create(&config, true).unwrap());
        for verify_at_start in [true, false] {
            let config = StoreConfig { verify_at_start, ..config.clone() };
            // Another process has the lock of redb.
            let other = File::open(&config.file).unwrap();
            other.lock().unwrap();
            let has_ended = Arc::new(AtomicBool::new(false));
            let ending = Arc::clone(&has_ended);
            let ends = std::thread::spawn(move || {
                sleep(LOCK_INTERVAL * 5);
                ending.store(true, Ordering::SeqCst);
                drop(other);
            });
            let store = Store::open(&config).unwrap();
            assert!(has_ended.load(Ordering::SeqCst), "opened beside the other process");
            // Now it is this store that has the lock.
            assert!(matches!(Store::open(&config), Err(StoreError::Locked(_))));
            drop(store);
            ends.join().unwrap();
        }
    }

    #[test]
    fn a_foreign_file_is_not_reported_as_a_damaged_store() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("siteinfo.json");
        std::fs::write(&other, "{\"version\": 1}\n".repeat(100)).unwrap();
        for len in [1500, 320, 319, 9, 3, 0] {
            File::options().write(true).open(&other).unwrap().set_len(len).unwrap();
            for verify_at_start in [true, false] {
                let config = StoreConfig { verify_at_start, ..StoreConfig::at(&other) };
                for error in [Store::open(&config).unwrap_err(), Store::open_to_read(&config).unwrap_err()] {
                    assert!(error.to_string().contains("is not a store"), "{len} bytes: {error}");
                }
            }
        }
    }

    #[test]
    fn a_file_of_a_later_format_is_not_reported_as_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let later = directory.path().join("store");
        let mut bytes = file(QUICK, true);
        for verify_at_start in [true, false] {
            let config = StoreConfig { verify_at_start, ..StoreConfig::at(&later) };
            for slot in StoreHeader::SLOTS {
                bytes[slot.start] = StoreHeader::FORMAT + 1;
            }
            std::fs::write(&later, &bytes).unwrap();
            for error in [Store::open(&config).unwrap_err(), Store::open_to_read(&config).unwrap_err()] {
                let text = error.to_string();
                assert!(text.contains("has format 4, and this program reads format 3"), "{text}");
                assert!(!text.contains("damaged"), "{text}");
            }
            // In one slot alone it is damage.
            bytes[StoreHeader::SLOTS[0].start] = StoreHeader::FORMAT;
            std::fs::write(&later, &bytes).unwrap();
            let error = Store::open(&config).unwrap_err();
            assert!(matches!(error, StoreError::Broken { .. }), "{error}");
        }
    }

    #[test]
    fn an_older_commit_is_not_accepted_as_the_last() {
        let mut bytes = file(QUICK, true);
        bytes[StoreHeader::FLAGS] ^= StoreHeader::SECOND;
        let error = verified(&bytes).unwrap_err();
        assert!(error.to_string().contains("older commit"), "{error}");
        // The same holds if the last commit is damaged.
        let mut bytes = file(QUICK, true);
        let at = StoreHeader::SLOTS[usize::from(bytes[StoreHeader::FLAGS] & StoreHeader::SECOND)].start;
        bytes[at + 20] ^= 1;
        let error = verified(&bytes).unwrap_err();
        assert!(matches!(error, DatabaseError::Storage(StorageError::Corrupted(_))), "{error}");
    }
}
