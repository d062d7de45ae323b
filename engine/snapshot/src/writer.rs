//! Writes one layer file from records in order.

use crate::format::{
    BASE_AT, BASE_BITS, BASE_GOES_ON, BUCKET_LEN, BUCKET_SLOTS, DISTANCES_AT, FLAG_FOLDS, FLAG_HOMED,
    FLAG_WITHIN, HEADER_LEN, KEY_LEN_MAX, LAYER_LEN_MAX, LayerHeader, PROBE_BUCKETS_MAX, RECORD_ALIGN,
    SECTION_ALIGN, Sha256Sum, bucket, bucket_sum, buckets_for, fingerprint, hash_key,
};
use crate::homed::{ANCESTORS_MAX, HomedTable};
use crate::reader::CorruptRecord;
use crate::record::{EncodedRecord, RecordRefusal};
use core::fmt;
use handle_proto::{Handle, fold};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::io::{self, BufReader, BufWriter, Read as _, Seek, SeekFrom, Write};
use std::path::Path;
use std::vec::Vec;
use tempfile::SpooledTempFile;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes that are buffered before they are added to the checksum and written. Linux takes three
/// times as long to write a file of ext4 in pieces of 512 KiB and more.
pub(crate) const BUFFER_LEN: usize = 64 << 10;
/// Bytes of (hash, offset) pairs kept in memory; more go to a temporary file until the index is
/// written.
const PAIRS_LEN_MAX: usize = 1 << 20;
/// Most prefixes of records that are kept to check whether all are homed. With more, the layer does
/// not claim it.
const PREFIXES_MAX: usize = 1 << 18;

/// The properties that all layers of a set share, and the time of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerOptions {
    /// Seed of the hash. It is random, so that names that collide cannot be chosen.
    pub seed: u64,
    /// Whether local names are folded.
    pub folds: bool,
    /// Time now, Unix milliseconds.
    pub created_unix_ms: u64,
}

/// Homed prefixes: the parts after `0.NA/` in the names of their records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HomedPrefixes(BTreeSet<Vec<u8>>);

impl HomedPrefixes {
    /// Adds a prefix in any case; `false` if it is longer than a handle may be.
    pub fn add(&mut self, prefix: &[u8]) -> bool {
        let fits = prefix.len() <= KEY_LEN_MAX;
        if fits {
            self.0.insert(handle_proto::fold::folded(prefix));
        }
        fits
    }

    /// Whether a record with this key is answered from, as [`HomedTable::has_record`] decides it.
    #[must_use]
    pub fn has_record(&self, key: &[u8]) -> bool {
        let has = |prefix: &[u8]| self.0.contains(&handle_proto::fold::folded(prefix));
        let ancestors =
            std::iter::successors(Handle(key).parent_prefix_record(), |name| name.parent_prefix_record());
        has(Handle(key).naming_authority()) || ancestors.take(ANCESTORS_MAX).any(|ancestor| has(ancestor.0))
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The prefixes of a layer.
    pub(crate) fn of(table: HomedTable<'_>) -> Self {
        let mut prefixes = Self::default();
        for prefix in table {
            prefixes.add(prefix);
        }
        prefixes
    }

    /// The prefixes in ascending order, each after its length in two bytes.
    pub(crate) fn to_list(&self) -> Vec<u8> {
        let mut list = Vec::with_capacity(self.list_len());
        for prefix in &self.0 {
            let len = u16::try_from(prefix.len()).expect("checked when it was added");
            list.extend_from_slice(&len.to_le_bytes());
            list.extend_from_slice(prefix);
        }
        list
    }

    /// Bytes of [`to_list`](Self::to_list).
    pub(crate) fn list_len(&self) -> usize {
        self.0.iter().map(|prefix| 2 + prefix.len()).sum()
    }

    /// Reads what [`to_list`](Self::to_list) wrote; `None` for anything else.
    pub(crate) fn of_list(mut list: &[u8]) -> Option<Self> {
        let mut prefixes = Self::default();
        while let Some((len, rest)) = list.split_first_chunk() {
            let prefix;
            (prefix, list) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
            if !prefixes.add(prefix) {
                return None;
            }
        }
        list.is_empty().then_some(prefixes)
    }
}

/// Why a layer cannot be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A record cannot be stored.
    Record {
        /// Its handle, cut to the longest that is allowed.
        handle: Vec<u8>,
        /// Its origin.
        origin: u64,
        /// The reason.
        why: RecordRefusal,
    },
    /// Two records have the same key.
    Duplicate {
        /// The key.
        key: Vec<u8>,
        /// Their origins, in ascending order.
        origins: [u64; 2],
    },
    /// Records are not in ascending order of (hash, key).
    Order {
        /// The key that is out of order.
        key: Vec<u8>,
    },
    /// Too many handles fall into adjacent buckets of the index; with a random seed this is chance.
    Crowded,
    /// The layer would be longer than its index can address.
    Len,
    /// A layer to be merged is damaged.
    Corrupt(CorruptRecord),
    /// The progress function stopped the merge.
    Stopped,
    /// The file or a temporary file could not be written or read.
    Io(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { handle, origin, why } => {
                write!(f, "record {} (origin {origin}): {why}", Handle(handle))
            }
            Self::Duplicate { key, origins: [first, second] } => {
                write!(f, "{} occurs twice (origins {first} and {second})", Handle(key))
            }
            Self::Order { key } => write!(f, "record {} is out of order", Handle(key)),
            Self::Crowded => f.write_str("too many handles hash alike; build again with another seed"),
            Self::Len => write!(
                f,
                "the layer would be longer than {LAYER_LEN_MAX} bytes; split the records over several layers"
            ),
            Self::Corrupt(error) => write!(f, "cannot read a layer to merge: {error}"),
            Self::Stopped => f.write_str("the merge was stopped"),
            Self::Io(error) => write!(f, "cannot write the layer: {error}"),
        }
    }
}

/// Without a source, because the text includes it already.
impl core::error::Error for BuildError {}

impl From<io::Error> for BuildError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<CorruptRecord> for BuildError {
    fn from(error: CorruptRecord) -> Self {
        Self::Corrupt(error)
    }
}

/// Writes a layer from records in ascending order of (hash, key).
///
/// Records go straight to the output. The entries for the index, 16 bytes for each record, wait in
/// a temporary file. Until [`finish`](Self::finish) has written the header, the output does not
/// open.
#[must_use = "without `finish` the output is not a layer"]
#[derive(Debug)]
pub struct LayerWriter<W> {
    options: LayerOptions,
    sections: Sections<W>,
    pairs: BufWriter<SpooledTempFile>,
    handles_count: u64,
    tombstones_count: u64,
    private_count: u64,
    last_hash: u64,
    last_key: Vec<u8>,
    /// The prefixes of all records; `None` once there are too many.
    prefixes: Option<HashSet<Vec<u8>>>,
}

impl<W: Write + Seek> LayerWriter<W> {
    /// Begins a layer at the start of `out`, which must be empty. Temporary files go to `temp_dir`.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn new(out: W, temp_dir: &Path, options: LayerOptions) -> Result<Self, BuildError> {
        let pairs = tempfile::spooled_tempfile_in(PAIRS_LEN_MAX, temp_dir);
        Ok(Self {
            options,
            sections: Sections::new(out)?,
            pairs: BufWriter::with_capacity(1 << 16, pairs),
            handles_count: 0,
            tombstones_count: 0,
            private_count: 0,
            last_hash: 0,
            last_key: Vec::new(),
            prefixes: Some(HashSet::new()),
        })
    }

    /// The options that [`new`](Self::new) got.
    pub const fn options(&self) -> &LayerOptions {
        &self.options
    }

    /// Number of records written.
    pub const fn records_count(&self) -> u64 {
        self.handles_count + self.tombstones_count
    }

    /// Bytes written so far.
    pub(crate) const fn len(&self) -> u64 {
        self.sections.at
    }

    /// Appends a record of another layer.
    ///
    /// # Errors
    /// When it is not in order, or the output cannot be written.
    pub fn push(&mut self, record: &EncodedRecord<'_>) -> Result<(), BuildError> {
        self.push_hashed(hash_key(self.options.seed, record.key()), record)
    }

    pub(crate) fn push_hashed(&mut self, hash: u64, record: &EncodedRecord<'_>) -> Result<(), BuildError> {
        let key = record.key();
        let is_first = self.records_count() == 0;
        if !is_first && (hash, key) <= (self.last_hash, &self.last_key) {
            return Err(BuildError::Order { key: key.into() });
        }
        self.last_hash = hash;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let at = self.sections.at;
        if at > LAYER_LEN_MAX / 2 {
            return Err(BuildError::Len);
        }
        if record.is_tombstone() {
            self.tombstones_count += 1;
        } else {
            self.handles_count += 1;
            self.private_count += record.private_count() as u64;
            self.note_prefix(key);
        }
        let mut pair = [0; 16];
        pair[..8].copy_from_slice(&hash.to_le_bytes());
        pair[8..].copy_from_slice(&at.to_le_bytes());
        self.pairs.write_all(&pair)?;
        self.sections.put(record.as_bytes())?;
        Ok(())
    }

    fn note_prefix(&mut self, key: &[u8]) {
        let Some(prefixes) = &mut self.prefixes else { return };
        let prefix = Handle(key).naming_authority();
        // Spellings that differ only in case are kept apart here, and folded at the end.
        if !prefixes.contains(prefix) {
            prefixes.insert(prefix.into());
            if prefixes.len() > PREFIXES_MAX {
                self.prefixes = None;
            }
        }
    }

    /// Whether the prefix of every record is known to be in `homed`.
    fn is_within(&self, homed: &HomedPrefixes) -> bool {
        let prefixes = self.prefixes.as_ref();
        prefixes.is_some_and(|prefixes| prefixes.iter().all(|prefix| homed.0.contains(&fold::folded(prefix))))
    }

    /// Writes homed prefixes, index and header, and returns the output and its header.
    ///
    /// With `None` the layer has no table of homed prefixes, and that of an older layer counts. The
    /// output is flushed to the operating system, not synced.
    ///
    /// # Errors
    /// When the output cannot be written or the index cannot be built.
    pub fn finish(mut self, homed: Option<&HomedPrefixes>) -> Result<(W, LayerHeader), BuildError> {
        let mut header = LayerHeader {
            seed: self.options.seed,
            created_unix_ms: self.options.created_unix_ms,
            handles_count: self.handles_count,
            tombstones_count: self.tombstones_count,
            private_count: self.private_count,
            ..LayerHeader::default()
        };
        if self.options.folds {
            header.flags |= FLAG_FOLDS;
        }
        Section { at: header.records_at, len: header.records_len, sum: header.records_sum } =
            self.sections.end()?;
        if let Some(homed) = homed {
            header.flags |= FLAG_HOMED | if self.is_within(homed) { FLAG_WITHIN } else { 0 };
            self.homed(homed, &mut header)?;
        }
        Section { at: header.homed_at, len: header.homed_len, sum: header.homed_sum } =
            self.sections.end()?;
        header.index_buckets = buckets_for(self.records_count(), header.records_len);
        self.index(header.index_buckets)?;
        Section { at: header.index_at, len: header.index_len, sum: header.index_sum } =
            self.sections.end()?;
        header.file_len = self.sections.at;
        header.content_digest = Sha256Sum(self.sections.content.finalize().into());
        let mut out = self.sections.out;
        out.seek(SeekFrom::Start(0))?;
        out.write_all(&header.encode())?;
        out.flush()?;
        Ok((out, header))
    }

    fn index(&mut self, buckets: u64) -> Result<(), BuildError> {
        let records_count = self.records_count();
        self.pairs.flush()?;
        let pairs = self.pairs.get_mut();
        pairs.rewind()?;
        let mut pairs = BufReader::with_capacity(1 << 16, pairs);
        let mut filler = Filler::new(buckets);
        for _ in 0..records_count {
            let mut pair = [0; 16];
            pairs.read_exact(&mut pair)?;
            let (words, _) = pair.as_chunks::<8>();
            let (hash, at) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
            filler.push(hash, at, &mut self.sections)?;
        }
        filler.finish(&mut self.sections)
    }

    fn homed(&mut self, homed: &HomedPrefixes, header: &mut LayerHeader) -> Result<(), BuildError> {
        let mut prefixes: Vec<(u64, &[u8])> =
            homed.0.iter().map(|prefix| (hash_key(self.options.seed, prefix), prefix.as_slice())).collect();
        prefixes.sort_unstable();
        let mut entries = Vec::new();
        let mut found: Vec<(u64, u64)> = Vec::with_capacity(prefixes.len());
        for (hash, prefix) in prefixes {
            found.push((hash, entries.len() as u64));
            let len = u16::try_from(prefix.len()).expect("checked when it was added");
            entries.extend_from_slice(&len.to_le_bytes());
            entries.extend_from_slice(prefix);
            entries.resize(entries.len().next_multiple_of(RECORD_ALIGN), 0);
        }
        let buckets = buckets_for(found.len() as u64, entries.len() as u64);
        // The entries follow the index, whose length is known only once it is filled. So it is
        // filled twice: once for its length and once for its slots.
        let fill = |entries_at: u64| {
            let mut index = Vec::new();
            let mut filler = Filler::new(buckets);
            for &(hash, at) in &found {
                filler.push(hash, entries_at + at, &mut index)?;
            }
            filler.finish(&mut index).map(|()| index)
        };
        let index_len = fill(RECORD_ALIGN as u64)?.len() as u64;
        self.sections.put(&fill(index_len)?)?;
        self.sections.put(&entries)?;
        header.homed_count = found.len() as u64;
        header.homed_buckets = buckets;
        header.homed_index_len = index_len;
        Ok(())
    }
}

/// Fills buckets in the order of hashes. Entries that do not fit go to the next bucket.
struct Filler {
    buckets: u64,
    current: u64,
    used: usize,
    /// Offset of the first record of the bucket, in units of [`RECORD_ALIGN`].
    base: u64,
    bytes: [u8; BUCKET_LEN],
}

impl Filler {
    const fn new(buckets: u64) -> Self {
        Self { buckets, current: 0, used: 0, base: 0, bytes: [0; BUCKET_LEN] }
    }

    /// Adds the entry at byte `at`, which is a multiple of [`RECORD_ALIGN`], not zero, and ascends
    /// with the hashes.
    fn push(&mut self, hash: u64, at: u64, out: &mut impl ByteSink) -> Result<(), BuildError> {
        let (home, units) = (bucket(hash, self.buckets), at / RECORD_ALIGN as u64);
        while self.current < home {
            self.next(false, out)?;
        }
        let distance = loop {
            if self.used == 0 {
                self.base = units;
            }
            match u16::try_from(units - self.base) {
                Ok(distance) if self.used < BUCKET_SLOTS => break distance,
                _ => self.next(true, out)?,
            }
        };
        if self.current - home >= PROBE_BUCKETS_MAX as u64 {
            return Err(BuildError::Crowded);
        }
        let mut put = |at: usize, number: u16| self.bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
        put(2 * self.used, fingerprint(hash));
        put(DISTANCES_AT + 2 * self.used, distance);
        self.used += 1;
        Ok(())
    }

    fn next(&mut self, goes_on: bool, out: &mut impl ByteSink) -> Result<(), BuildError> {
        let base = self.base | if goes_on { BASE_GOES_ON } else { 0 };
        self.bytes[BASE_AT..].copy_from_slice(&base.to_le_bytes());
        let base = base | bucket_sum(&self.bytes) << BASE_BITS;
        self.bytes[BASE_AT..].copy_from_slice(&base.to_le_bytes());
        out.put(&self.bytes)?;
        *self = Self { current: self.current + 1, ..Self::new(self.buckets) };
        Ok(())
    }

    fn finish(mut self, out: &mut impl ByteSink) -> Result<(), BuildError> {
        while self.current < self.buckets || self.used > 0 {
            self.next(false, out)?;
        }
        Ok(())
    }
}

trait ByteSink {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl ByteSink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// The file behind the header, with a running checksum of the section being written and a running
/// digest of all sections.
#[derive(Debug)]
struct Sections<W> {
    out: W,
    buffer: Vec<u8>,
    sum: SectionSum,
    content: Sha256,
    start: u64,
    at: u64,
}

struct SectionSum(Xxh3Default);

impl fmt::Debug for SectionSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0.digest())
    }
}

impl<W: Write> Sections<W> {
    fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[0; HEADER_LEN])?;
        let at = HEADER_LEN as u64;
        Ok(Self {
            out,
            buffer: Vec::new(),
            sum: SectionSum(Xxh3Default::new()),
            content: Sha256::new(),
            start: at,
            at,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sum.0.update(&self.buffer);
        self.content.update(&self.buffer);
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Ends a section.
    fn end(&mut self) -> io::Result<Section> {
        let padding = self.at.next_multiple_of(SECTION_ALIGN as u64) - self.at;
        for _ in 0..padding {
            self.put(&[0])?;
        }
        self.flush()?;
        let section = Section { at: self.start, len: self.at - self.start, sum: self.sum.0.digest() };
        self.sum.0.reset();
        self.start = self.at;
        Ok(section)
    }
}

/// Where a section is, and its checksum.
struct Section {
    at: u64,
    len: u64,
    sum: u64,
}

impl<W: Write> ByteSink for Sections<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_LEN {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// The digest that names a layer in a manifest: that of its header, which has the digest of
/// everything behind it.
#[must_use]
pub fn layer_digest(header: &LayerHeader) -> Sha256Sum {
    Sha256Sum(Sha256::digest(header.encode()).into())
}
