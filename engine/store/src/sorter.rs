//! Sorts any number of records in bounded memory: sorted runs in temporary files, then one merge
//! pass.

use super::StoreError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Read-ahead of one run, in bytes.
const READ_AHEAD: usize = 256 << 10;
/// Bytes of one write. Linux takes three times as long to write a file of ext4 in pieces of 512 KiB
/// and more.
const WRITE_LEN: usize = 64 << 10;

/// Entries by key, not sorted yet.
#[derive(Debug)]
pub struct Sorter {
    temp_dir: PathBuf,
    memory_bytes: usize,
    /// Keys and values that are not in a run yet, one after the other.
    bytes: Vec<u8>,
    entries: Vec<SorterEntry>,
    runs: Vec<File>,
}

/// The position of an entry in `bytes`.
#[derive(Clone, Copy, Debug)]
struct SorterEntry {
    at: usize,
    key_len: u32,
    value_len: u32,
}

impl SorterEntry {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at..][..self.key_len as usize]
    }

    fn value(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at + self.key_len as usize..][..self.value_len as usize]
    }
}

impl Sorter {
    /// Keeps up to about `memory_bytes` in memory, and the rest in unnamed files in `temp_dir`.
    #[must_use]
    pub fn new(temp_dir: &Path, memory_bytes: usize) -> Self {
        Self {
            temp_dir: temp_dir.to_owned(),
            memory_bytes,
            bytes: Vec::new(),
            entries: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Adds an entry. Of equal keys, the last one added counts.
    ///
    /// # Errors
    /// When a temporary file cannot be written.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let used = self.bytes.len() + self.entries.len() * size_of::<SorterEntry>();
        if used + key.len() + value.len() > self.memory_bytes && !self.entries.is_empty() {
            self.spill()?;
        }
        let too_long = |_| StoreError::from(std::io::Error::other("a record is longer than 4 GiB"));
        let entry = SorterEntry {
            at: self.bytes.len(),
            key_len: u32::try_from(key.len()).map_err(too_long)?,
            value_len: u32::try_from(value.len()).map_err(too_long)?,
        };
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.entries.push(entry);
        Ok(())
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        // A stable sort, so that equal keys keep their order.
        self.entries.sort_by(|a, b| a.key(bytes).cmp(b.key(bytes)));
    }

    fn spill(&mut self) -> Result<(), StoreError> {
        self.sort();
        let mut out = BufWriter::with_capacity(WRITE_LEN, self.new_file()?);
        for entry in &self.entries {
            out.write_all(&entry.key_len.to_be_bytes())?;
            out.write_all(&entry.value_len.to_be_bytes())?;
            out.write_all(entry.key(&self.bytes))?;
            out.write_all(entry.value(&self.bytes))?;
        }
        let mut file = out.into_inner().map_err(|error| StoreError::from(error.into_error()))?;
        file.rewind()?;
        self.runs.push(file);
        self.bytes.clear();
        self.entries.clear();
        Ok(())
    }

    /// A file that is deleted when it is closed.
    fn new_file(&self) -> std::io::Result<File> {
        let path = self.temp_dir.join(format!(".import-{}-{}", std::process::id(), self.runs.len()));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    /// Yields every key once, in ascending order.
    ///
    /// # Errors
    /// When a temporary file cannot be read; and those of `give`.
    pub fn finish(
        mut self,
        mut give: impl FnMut(&[u8], &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.runs.is_empty() {
            self.sort();
            for (at, entry) in self.entries.iter().enumerate() {
                let key = entry.key(&self.bytes);
                if self.entries.get(at + 1).is_none_or(|next| next.key(&self.bytes) != key) {
                    give(key, entry.value(&self.bytes))?;
                }
            }
            return Ok(());
        }
        if !self.entries.is_empty() {
            self.spill()?;
        }
        (self.bytes, self.entries) = (Vec::new(), Vec::new());
        let mut runs: Vec<SorterRun> = self.runs.into_iter().map(SorterRun::new).collect();
        // The smallest key comes first; among equal keys, that of the latest run. Within a run, the
        // last entry of a key has been kept.
        let mut heads = BinaryHeap::new();
        for (at, run) in runs.iter_mut().enumerate() {
            heads.extend(run.next()?.map(|(key, value)| Reverse((key, Reverse(at), value))));
        }
        let mut given: Option<Vec<u8>> = None;
        while let Some(Reverse((key, Reverse(at), value))) = heads.pop() {
            heads.extend(runs[at].next()?.map(|(key, value)| Reverse((key, Reverse(at), value))));
            if given.as_ref() != Some(&key) {
                give(&key, &value)?;
                given = Some(key);
            }
        }
        Ok(())
    }
}

/// A key and its value.
type SorterPair = (Vec<u8>, Vec<u8>);

/// A sorted run being read.
struct SorterRun {
    input: BufReader<File>,
    ahead: Option<SorterPair>,
}

impl SorterRun {
    fn new(file: File) -> Self {
        Self { input: BufReader::with_capacity(READ_AHEAD, file), ahead: None }
    }

    /// The next key with its last value.
    fn next(&mut self) -> Result<Option<SorterPair>, StoreError> {
        let Some(mut entry) = self.ahead.take().map_or_else(|| self.read(), |ahead| Ok(Some(ahead)))? else {
            return Ok(None);
        };
        while let Some(ahead) = self.read()? {
            if ahead.0 != entry.0 {
                self.ahead = Some(ahead);
                break;
            }
            entry = ahead;
        }
        Ok(Some(entry))
    }

    fn read(&mut self) -> Result<Option<SorterPair>, StoreError> {
        let mut lens = [0; 8];
        let Some(_) = self.read_or_end(&mut lens)? else { return Ok(None) };
        let [k0, k1, k2, k3, v0, v1, v2, v3] = lens;
        let mut key = vec![0; u32::from_be_bytes([k0, k1, k2, k3]) as usize];
        let mut value = vec![0; u32::from_be_bytes([v0, v1, v2, v3]) as usize];
        self.input.read_exact(&mut key)?;
        self.input.read_exact(&mut value)?;
        Ok(Some((key, value)))
    }

    fn read_or_end(&mut self, buffer: &mut [u8]) -> Result<Option<()>, StoreError> {
        match self.input.read(&mut buffer[..1])? {
            0 => Ok(None),
            _ => Ok(Some(self.input.read_exact(&mut buffer[1..])?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn each_key_is_returned_once_in_order_with_its_last_value(
            entries in proptest::collection::vec(("[a-c]{0,2}", any::<u16>()), 0..60),
            memory_bytes in 1_usize..400,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let mut sorter = Sorter::new(directory.path(), memory_bytes);
            let mut expected = BTreeMap::new();
            for (key, value) in &entries {
                sorter.add(key.as_bytes(), &value.to_be_bytes()).unwrap();
                expected.insert(key.as_bytes().to_vec(), value.to_be_bytes().to_vec());
            }
            let mut given = Vec::new();
            sorter.finish(|key, value| { given.push((key.to_vec(), value.to_vec())); Ok(()) }).unwrap();
            prop_assert_eq!(given, expected.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }
}
