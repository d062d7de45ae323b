//! The file in which the cache is kept over a restart.
//!
//! It has a first line and then blocks. A block has its length and the XXH3 of its bytes, and holds
//! whole entries. What is read is checked like what comes from a network: a block with a wrong sum
//! or an entry that is not one ends the reading, and what was read before stays.

use crate::entry::{LINKED, NO_HANDLE, RECORD};
use crate::linked_ttl;
use crate::table::{CachedRecordTable, EntryStamp, KEY_LEN_MAX, TableEntry, WalkStep};
use handle_proto::wire::list::Values;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Start of the first line; the version of the format follows.
const FIRST_WORDS: &[u8] = b"handle cache ";
/// The version of the format.
const VERSION: u32 = 1;
/// Most digits of a version.
const VERSION_DIGITS_MAX: usize = 9;
/// A block is written when it has so many bytes.
const BLOCK_LEN: usize = 1 << 20;
/// Most bytes of a block: those after which it is written, and one more entry.
const BLOCK_LEN_MAX: usize = BLOCK_LEN + ENTRY_HEAD_LEN + KEY_LEN_MAX + (1 << 20);
/// Bytes of an entry before its key.
const ENTRY_HEAD_LEN: usize = 20;

/// Why a file is not read, or not to its end.
#[derive(Debug)]
pub enum SavedError {
    /// A system call failed.
    Io(io::Error),
    /// The file does not begin as one of a cache.
    OtherFile,
    /// The file has this other version of the format.
    OtherVersion(u32),
    /// The file ends within a block, or a block is damaged.
    Damaged,
}

impl fmt::Display for SavedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::OtherFile => f.write_str("it is not the file of a cache"),
            Self::OtherVersion(version) => write!(
                f,
                "it has format {version}, and this program reads format {VERSION}: the cache starts empty and will \
                 replace it"
            ),
            Self::Damaged => f.write_str("it is damaged"),
        }
    }
}

impl std::error::Error for SavedError {}

impl From<io::Error> for SavedError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged,
            _ => Self::Io(error),
        }
    }
}

/// An entry of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedEntry<'b> {
    /// The key.
    pub key: &'b [u8],
    /// What is stored with the values.
    pub stamp: EntryStamp,
    /// The values, which decode and are public.
    pub values: &'b [u8],
}

impl<'b> SavedEntry<'b> {
    /// Splits an entry from the bytes that follow it; `None` if it is not valid.
    fn split(bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let (head, rest) = bytes.split_first_chunk::<ENTRY_HEAD_LEN>()?;
        let number = |at: usize| Some(u32::from_be_bytes(*head[at..].first_chunk()?));
        let [k0, k1, c0, c1, kind, flags, ..] = *head;
        let (stored_unix_s, ttl_s, values_len) = (number(8)?, number(12)?, number(16)?);
        let (key, rest) = rest.split_at_checked(u16::from_be_bytes([k0, k1]).into())?;
        let (values, rest) = rest.split_at_checked(values_len as usize)?;
        let values_count = u16::from_be_bytes([c0, c1]);
        let is_public = || {
            let values = Values::from_encoded(values_count.into(), values);
            values.is_ok_and(|values| values.iter().all(|value| value.is_public()))
        };
        let is_valid = match kind {
            RECORD => is_public(),
            NO_HANDLE => values.is_empty() && values_count == 0,
            _ => false,
        };
        let stamp = EntryStamp { stored_unix_s, ttl_s, values_count, kind, flags: flags & !LINKED };
        (is_valid && !key.is_empty()).then_some((Self { key, stamp, values }, rest))
    }

    fn encode(entry: &TableEntry<'_>, out: &mut Vec<u8>) {
        let EntryStamp { stored_unix_s, ttl_s, values_count, kind, flags } = entry.stamp;
        let (Ok(key_len), Ok(values_len)) =
            (u16::try_from(entry.key.len()), u32::try_from(entry.values.len()))
        else {
            return;
        };
        out.extend_from_slice(&key_len.to_be_bytes());
        out.extend_from_slice(&values_count.to_be_bytes());
        out.extend_from_slice(&[kind, flags & !LINKED, 0, 0]);
        [stored_unix_s, ttl_s, values_len]
            .iter()
            .for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        out.extend_from_slice(entry.key);
        let values_at = out.len();
        out.extend_from_slice(entry.values);
        if flags & LINKED != 0 {
            linked_ttl::unlink(&mut out[values_at..]);
        }
    }
}

/// Blocks that are written.
struct BlockWriter<'f, W: Write> {
    file: &'f mut W,
    /// Entries that are not written yet.
    entries: Vec<u8>,
    /// The ends of these entries.
    ends: Vec<usize>,
}

impl<W: Write> BlockWriter<'_, W> {
    fn add(&mut self, entry: &TableEntry<'_>) {
        SavedEntry::encode(entry, &mut self.entries);
        self.ends.push(self.entries.len());
    }

    /// Writes the entries as whole blocks; with `is_last` also those that do not fill one.
    fn write(&mut self, is_last: bool) -> io::Result<()> {
        let mut begin = 0;
        for &end in &self.ends {
            if end - begin >= BLOCK_LEN {
                write_block(self.file, &self.entries[begin..end])?;
                begin = end;
            }
        }
        if is_last && begin < self.entries.len() {
            write_block(self.file, &self.entries[begin..])?;
            begin = self.entries.len();
        }
        self.entries.drain(..begin);
        self.ends.retain(|&end| end > begin);
        self.ends.iter_mut().for_each(|end| *end -= begin);
        Ok(())
    }
}

fn write_block(file: &mut impl Write, block: &[u8]) -> io::Result<()> {
    let len = u32::try_from(block.len()).expect("blocks are short");
    file.write_all(&len.to_be_bytes())?;
    file.write_all(&xxh3_64(block).to_be_bytes())?;
    file.write_all(block)
}

/// Writes the entries of `table` to `file`. No lock of the table is held while a block is written.
///
/// # Errors
/// Those of the file.
pub fn write(table: &CachedRecordTable, file: &mut impl Write) -> io::Result<usize> {
    file.write_all(FIRST_WORDS)?;
    writeln!(file, "{VERSION}")?;
    let (mut count, mut written) = (0, Ok(()));
    let mut blocks = BlockWriter { file, entries: Vec::with_capacity(BLOCK_LEN), ends: Vec::new() };
    table.walk(&mut |step| match step {
        _ if written.is_err() => {}
        WalkStep::Entry(entry) => {
            blocks.add(&entry);
            count += 1;
        }
        WalkStep::Pause => written = blocks.write(false),
    });
    written?;
    blocks.write(true)?;
    // An empty block is the end: without it, the file is cut off.
    write_block(file, &[])?;
    Ok(count)
}

/// Reads the first line, and returns the version of the format.
fn read_version(file: &mut impl Read) -> Result<u32, SavedError> {
    let mut words = [0; FIRST_WORDS.len()];
    file.read_exact(&mut words)?;
    if words != FIRST_WORDS {
        return Err(SavedError::OtherFile);
    }
    let mut digits = Vec::new();
    loop {
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => break,
            [byte] if byte.is_ascii_digit() && digits.len() < VERSION_DIGITS_MAX => digits.push(byte),
            _ => return Err(SavedError::OtherFile),
        }
    }
    let version = std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    version.ok_or(SavedError::OtherFile)
}

/// Passes the entries of `file` to `sink`.
///
/// # Errors
/// When the file is damaged or of another format; entries before the damage have been passed on.
pub fn read(file: &mut impl Read, sink: &mut dyn FnMut(SavedEntry<'_>)) -> Result<(), SavedError> {
    match read_version(file)? {
        VERSION => {}
        version => return Err(SavedError::OtherVersion(version)),
    }
    let mut block = Vec::new();
    loop {
        let (mut len, mut sum) = ([0; 4], [0; 8]);
        file.read_exact(&mut len)?;
        file.read_exact(&mut sum)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > BLOCK_LEN_MAX {
            return Err(SavedError::Damaged);
        }
        block.resize(len, 0);
        file.read_exact(&mut block)?;
        if xxh3_64(&block) != u64::from_be_bytes(sum) {
            return Err(SavedError::Damaged);
        }
        if block.is_empty() {
            return Ok(());
        }
        let mut rest = &block[..];
        while !rest.is_empty() {
            let (entry, after) = SavedEntry::split(rest).ok_or(SavedError::Damaged)?;
            sink(entry);
            rest = after;
        }
    }
}

/// Time after which a file that was begun belongs to a process that was killed.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);
/// The end of the names of files that are being written.
const NEW_SUFFIX: &str = ".new";

/// A name beside `path` that no other process uses, and no other thread.
fn new_path(path: &Path) -> PathBuf {
    let unique = u64::from_be_bytes(handle_auth::random());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{unique:016x}{NEW_SUFFIX}", std::process::id()));
    path.with_file_name(name)
}

/// Removes what killed processes have left beside `path`.
fn remove_abandoned(path: &Path) {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
    let Ok(files) = std::fs::read_dir(directory.unwrap_or(Path::new("."))) else { return };
    for file in files.flatten() {
        let is_new = file.file_name().to_str().is_some_and(|other| {
            other.strip_prefix(name).is_some_and(|rest| rest.starts_with('.') && rest.ends_with(NEW_SUFFIX))
        });
        let age = || file.metadata().ok()?.modified().ok()?.elapsed().ok();
        if is_new && age().is_some_and(|age| age > ABANDONED_AFTER) {
            // It is tried again with the next save.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Writes the entries of `table` to the file at `path`, in place of the one that is there. Returns
/// their number. Two processes may do this at the same time; one of the files stays.
///
/// # Errors
/// Those of the files; the old one then stays.
pub fn save(table: &CachedRecordTable, path: &Path) -> io::Result<usize> {
    remove_abandoned(path);
    let new = new_path(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = write(table, &mut file)
        .and_then(|count| file.sync_data().map(|()| count))
        .and_then(|count| std::fs::rename(&new, path).map(|()| count));
    if written.is_err() {
        // The error of the write is the one to report.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Passes the entries of the file at `path` to `sink`.
///
/// # Errors
/// Those of [`read`].
pub fn load(path: &Path, sink: &mut dyn FnMut(SavedEntry<'_>)) -> Result<(), SavedError> {
    read(&mut BufReader::with_capacity(1 << 18, File::open(path)?), sink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::{Permissions, Value};

    const STAMP: EntryStamp =
        EntryStamp { stored_unix_s: 1_700_000_000, ttl_s: 60, values_count: 1, kind: RECORD, flags: 0 };

    fn values(permissions: Permissions) -> Vec<u8> {
        let mut values = Vec::new();
        Value { permissions, ..Value::new(1, b"URL", b"https://example.org/") }.encode(&mut values);
        values
    }

    fn file(entries: &[(&str, EntryStamp, &[u8])]) -> Vec<u8> {
        let table = CachedRecordTable::new(1 << 20);
        for (at, (key, stamp, values)) in entries.iter().enumerate() {
            assert!(table.insert(at as u64 * 0x9e37_79b9_7f4a_7c15, key.as_bytes(), *stamp, values));
        }
        let mut file = Vec::new();
        assert_eq!(write(&table, &mut file).unwrap(), entries.len());
        file
    }

    fn keys(mut file: &[u8]) -> (Vec<Vec<u8>>, Option<SavedError>) {
        let mut keys = Vec::new();
        let error = read(&mut file, &mut |entry| keys.push(entry.key.to_vec())).err();
        keys.sort();
        (keys, error)
    }

    #[test]
    fn what_is_written_is_read() {
        let public = values(Permissions::DEFAULT);
        let negative = EntryStamp { values_count: 0, kind: NO_HANDLE, ..STAMP };
        let file = file(&[("10.1/A", STAMP, &public), ("10.1/B", negative, &[])]);
        let mut seen = Vec::new();
        read(&mut &file[..], &mut |entry| {
            seen.push((entry.key.to_vec(), entry.stamp, entry.values.to_vec()))
        })
        .unwrap();
        seen.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [(b"10.1/A".to_vec(), STAMP, public), (b"10.1/B".to_vec(), negative, vec![])];
        assert_eq!(seen, expected);
    }

    #[test]
    fn processes_that_save_at_the_same_time_leave_a_whole_file_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache");
        let (table, public) = (CachedRecordTable::new(1 << 20), values(Permissions::DEFAULT));
        for n in 0..1000_u64 {
            table.insert(
                n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                format!("10.1/{n}").as_bytes(),
                STAMP,
                &public,
            );
        }
        // A file that a killed process has left, and one that another process writes.
        for (name, age) in [("cache.1-0.new", ABANDONED_AFTER * 2), ("cache.2-0.new", Duration::ZERO)] {
            let file = File::create(directory.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| assert_eq!(save(&table, &path).unwrap(), 1000)));
            }
        });
        let mut count = 0;
        load(&path, &mut |_| count += 1).unwrap();
        assert_eq!(count, 1000);
        let mut names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["cache", "cache.2-0.new"]);
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let public = values(Permissions::DEFAULT);
        let whole = file(&[("10.1/A", STAMP, &public), ("10.1/B", STAMP, &public)]);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(keys(&damaged).1.is_some(), "bit of byte {at}");
            assert!(keys(&whole[..at]).1.is_some(), "cut at {at}");
        }
        for (text, version) in [("handle cache 2\n", 2), ("handle cache 12\nanything", 12)] {
            let error = keys(text.as_bytes()).1.unwrap();
            assert!(matches!(error, SavedError::OtherVersion(found) if found == version), "{error}");
            assert!(error.to_string().contains("reads format 1"), "{error}");
        }
        for text in
            ["handle cache \n", "handle cache 1234567890\n", "handle cache x\n", "another file of text"]
        {
            assert!(matches!(keys(text.as_bytes()).1, Some(SavedError::OtherFile)), "{text}");
        }
    }

    #[test]
    fn private_values_and_entries_of_other_kinds_are_not_read() {
        let private = values(Permissions::ADMIN_READ);
        assert!(keys(&file(&[("10.1/A", STAMP, &private)])).1.is_some());
        let public = values(Permissions::DEFAULT);
        for stamp in [
            EntryStamp { kind: 7, ..STAMP },
            EntryStamp { values_count: 2, ..STAMP },
            EntryStamp { kind: NO_HANDLE, ..STAMP },
        ] {
            assert!(keys(&file(&[("10.1/A", stamp, &public)])).1.is_some(), "{stamp:?}");
        }
    }

    #[test]
    fn many_entries_take_several_blocks() {
        let table = CachedRecordTable::new(16 << 20);
        let long = values(Permissions::DEFAULT);
        for n in 0..40_000_u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert!(table.insert(hash, format!("10.1/{n}").as_bytes(), STAMP, &long));
        }
        let mut file = Vec::new();
        let count = write(&table, &mut file).unwrap();
        assert!(
            file.len() > BLOCK_LEN + BLOCK_LEN / 8 && count > 10_000,
            "{} bytes, {count} entries",
            file.len()
        );
        let (keys, error) = keys(&file);
        assert!(keys.len() == count && error.is_none());
    }
}
