//! The file in which the cache is kept over a restart.
//!
//! It has a first line and then blocks. A block has its length and the XXH3 of its bytes, and holds
//! whole entries. What is read is checked like what comes from a network: a block with a wrong sum
//! or an entry that is not one ends the reading, and what was read before stays.

use crate::entry::{NO_HANDLE, RECORD};
use crate::table::{EntryStamp, KEY_LEN_MAX, RecordTable, TableEntry};
use handle_proto::wire::list::Values;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The first line; the number is the version of the format.
const FIRST_LINE: &[u8] = b"handle cache 1\n";
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
    /// The first line is another one.
    OtherFormat,
    /// The file ends within a block, or a block is damaged.
    Damaged,
}

impl fmt::Display for SavedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::OtherFormat => f.write_str("it is no file of a cache, or of another version"),
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
        let stamp = EntryStamp { stored_unix_s, ttl_s, values_count, kind, flags };
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
        out.extend_from_slice(&[kind, flags, 0, 0]);
        [stored_unix_s, ttl_s, values_len]
            .iter()
            .for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        out.extend_from_slice(entry.key);
        out.extend_from_slice(entry.values);
    }
}

/// Writes the entries of `table` to `file`.
///
/// # Errors
/// Those of the file.
pub fn write(table: &RecordTable, file: &mut impl Write) -> io::Result<usize> {
    file.write_all(FIRST_LINE)?;
    let (mut block, mut count) = (Vec::with_capacity(BLOCK_LEN), 0);
    let mut written: io::Result<()> = Ok(());
    let mut flush = |block: &mut Vec<u8>| -> io::Result<()> {
        let len = u32::try_from(block.len()).expect("blocks are short");
        file.write_all(&len.to_be_bytes())?;
        file.write_all(&xxh3_64(block).to_be_bytes())?;
        file.write_all(block)?;
        block.clear();
        Ok(())
    };
    table.for_each(&mut |entry| {
        if written.is_ok() {
            SavedEntry::encode(&entry, &mut block);
            count += 1;
            if block.len() >= BLOCK_LEN {
                written = flush(&mut block);
            }
        }
    });
    written?;
    // An empty block is the end: without it, the file is cut off.
    if !block.is_empty() {
        flush(&mut block)?;
    }
    flush(&mut block)?;
    Ok(count)
}

/// Passes the entries of `file` to `sink`.
///
/// # Errors
/// When the file is damaged or of another format; entries before the damage have been passed on.
pub fn read(file: &mut impl Read, sink: &mut dyn FnMut(SavedEntry<'_>)) -> Result<(), SavedError> {
    let mut first = [0; FIRST_LINE.len()];
    file.read_exact(&mut first)?;
    if first != FIRST_LINE {
        return Err(SavedError::OtherFormat);
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

/// Writes the entries of `table` to the file at `path`, in place of the one that is there. Returns
/// their number.
///
/// # Errors
/// Those of the files; the old one then stays.
pub fn save(table: &RecordTable, path: &Path) -> io::Result<usize> {
    let new: PathBuf = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let count = write(table, &mut file)?;
    file.sync_data()?;
    std::fs::rename(&new, path)?;
    Ok(count)
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
        let table = RecordTable::new(1 << 20);
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
    fn damage_is_noticed_wherever_it_is() {
        let public = values(Permissions::DEFAULT);
        let whole = file(&[("10.1/A", STAMP, &public), ("10.1/B", STAMP, &public)]);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(keys(&damaged).1.is_some(), "bit of byte {at}");
            assert!(keys(&whole[..at]).1.is_some(), "cut at {at}");
        }
        assert!(matches!(keys(b"handle cache 2\n").1, Some(SavedError::OtherFormat)));
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
        let table = RecordTable::new(16 << 20);
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
