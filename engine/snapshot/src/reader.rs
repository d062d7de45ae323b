//! One layer over borrowed bytes: opens in constant time, looks up with two reads of memory.
//!
//! - Opening checks the header only. `verify` is the full check, which the publisher makes once.
//! - No lookup trusts the bytes: each offset and length is checked where it is used, and a search
//!   ends after [`PROBE_BUCKETS_MAX`](crate::format::PROBE_BUCKETS_MAX) buckets whatever they hold.
//! - The layer's [`Trust`] decides how far a lookup trusts the content of records and buckets
//!   beyond that.
//! - The staged form makes the same lookup in steps, so that a batch waits for memory once.

use crate::format::{FLAG_FOLDS, FLAG_HOMED, FLAG_WITHIN, HEADER_LEN, LayerHeader, OpenError};
use crate::homed::HomedTable;
use crate::index::{Candidate, LayerIndex};
use crate::prefetch::{prefetch, prefetch_all};
use crate::record::EncodedRecord;
use core::fmt;

/// Bytes of a record that are prefetched: most records as a whole, and the start of longer ones.
const RECORD_PREFETCH_LEN: usize = 384;

/// An opened layer. `B` holds the bytes of the whole file and must always return the same bytes.
#[derive(Clone, Debug)]
pub struct Layer<B> {
    bytes: B,
    header: LayerHeader,
    trust: Trust,
}

/// How far lookups trust the bytes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Records are used without a check, because the publisher verified them.
    Plain,
    /// A record that is found is compared with its checksum, and so is a bucket of the index before
    /// a key counts as missing. Damage is reported as [`CorruptRecord`]; everything else is as it
    /// was published.
    Checked,
    /// Every lookup that reaches this layer returns [`CorruptRecord`].
    Refused,
    /// As `Refused`, because the set is too old to be served.
    Stale,
}

/// A record or slot is damaged: the file changed after it was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptRecord {
    /// Offset in the file.
    pub at: u64,
}

impl fmt::Display for CorruptRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the record at byte {} of the layer is damaged", self.at)
    }
}

impl core::error::Error for CorruptRecord {}

/// The fields of a layer that lookups need, copied together because reading them from the layer
/// costs more than the search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerView<'a> {
    /// The file up to the end of its records, so that offsets are those of the file.
    records: &'a [u8],
    index: LayerIndex<'a>,
    /// Whether the layer has the table of homed prefixes that counts, and all its records are
    /// within it.
    vouches: bool,
    /// Whether records are compared with their checksums.
    checks: bool,
}

impl<'a> LayerView<'a> {
    /// First step of a lookup: starts loading the bucket.
    #[inline]
    pub(crate) fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Second step: reads the bucket.
    #[inline]
    pub(crate) fn probe(&self, hash: u64) -> Candidate {
        self.index.first(hash)
    }

    /// Third step: starts loading the record.
    #[inline]
    pub(crate) fn prefetch_record(&self, candidate: Candidate) {
        let Some(bytes) = self.records.get(to_usize(candidate.at)..) else { return };
        match bytes.first_chunk::<RECORD_PREFETCH_LEN>() {
            Some(bytes) => prefetch_all(bytes),
            // The record is one of the last of the file.
            None => prefetch(bytes, 0, RECORD_PREFETCH_LEN),
        }
    }

    /// Last step: the record, if it has the key and not only the fingerprint.
    #[inline]
    pub(crate) fn record_if(
        &self,
        candidate: Candidate,
        key: &[u8],
    ) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        let record = self.record(candidate.at)?;
        if record.key() != key {
            return Self::other_record(&record, candidate);
        }
        if self.checks && !record.is_whole() {
            return Err(CorruptRecord { at: candidate.at });
        }
        Ok(Some(record))
    }

    /// The record after a candidate that has another key. Either only the fingerprint is the same,
    /// which happens once in some thousand lookups, or the key is damaged. The check is so rare
    /// that its cost does not matter, and is made whatever the trust.
    #[cold]
    fn other_record(
        record: &EncodedRecord<'_>,
        candidate: Candidate,
    ) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        if record.is_whole() { Ok(None) } else { Err(CorruptRecord { at: candidate.at }) }
    }

    /// Continues the search where only the fingerprint was the same.
    #[cold]
    pub(crate) fn find_after(
        &self,
        mut candidate: Candidate,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        loop {
            candidate = self.index.after(hash, candidate);
            if candidate.is_none() {
                return Ok(None);
            }
            // Of the later candidates, only one with the key is compared with its checksum: a
            // forged layer could have a long record in hundreds of slots.
            if self.record(candidate.at)?.key() == key {
                return self.record_if(candidate, key);
            }
        }
    }

    /// Offset of a record that has about as many records before it as behind it, if the index is
    /// undamaged.
    #[cfg(feature = "std")]
    pub(crate) fn middle(&self) -> Option<u64> {
        self.index.middle()
    }

    /// All steps of a lookup.
    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        let candidate = self.probe(hash);
        if candidate.is_none() {
            return Ok(None);
        }
        match self.record_if(candidate, key)? {
            Some(record) => Ok(Some(record)),
            None => self.find_after(candidate, hash, key),
        }
    }

    #[inline]
    fn record(&self, at: u64) -> Result<EncodedRecord<'a>, CorruptRecord> {
        if at < HEADER_LEN as u64 {
            return Err(CorruptRecord { at });
        }
        let record = self.records.get(to_usize(at)..).and_then(EncodedRecord::split);
        record.map(|(record, _)| record.vouched_for(self.vouches)).ok_or(CorruptRecord { at })
    }
}

fn to_usize(at: u64) -> usize {
    // If the offset does not fit, no slice reaches it either, and the read is refused.
    usize::try_from(at).unwrap_or(usize::MAX)
}

impl<B: AsRef<[u8]>> Layer<B> {
    /// Opens a layer, and checks its header only.
    ///
    /// # Errors
    /// When the bytes are not a whole layer of a known version.
    pub fn open(bytes: B) -> Result<Self, OpenError> {
        let slice = bytes.as_ref();
        let header = LayerHeader::decode(slice, slice.len() as u64)?;
        let trust = if header.private_count > 0 { Trust::Checked } else { Trust::Plain };
        Ok(Self { bytes, header, trust })
    }

    /// How far lookups trust the layer: at first [`Trust::Checked`] if it has private values,
    /// otherwise [`Trust::Plain`].
    #[must_use]
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// The same layer with another trust.
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Seed of [`hash_key`](crate::hash_key). It is the same in all layers of a set.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.header.seed
    }

    /// Whether keys are folded to upper case. It is the same in all layers of a set.
    #[must_use]
    pub const fn folds(&self) -> bool {
        self.header.flags & FLAG_FOLDS != 0
    }

    /// Number of records that are not tombstones.
    #[must_use]
    pub const fn handles_count(&self) -> u64 {
        self.header.handles_count
    }

    /// Number of tombstones, which hide handles of older layers.
    #[must_use]
    pub const fn tombstones_count(&self) -> u64 {
        self.header.tombstones_count
    }

    /// Number of values that are not public, over all records.
    #[must_use]
    pub const fn private_count(&self) -> u64 {
        self.header.private_count
    }

    /// Time when the layer was built, Unix milliseconds.
    #[must_use]
    pub const fn created_unix_ms(&self) -> u64 {
        self.header.created_unix_ms
    }

    /// All fields of the header.
    #[must_use]
    pub const fn header(&self) -> &LayerHeader {
        &self.header
    }

    /// The bytes of the file.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The owner of the bytes.
    pub const fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Looks a key up; `hash` is its [`hash_key`](crate::hash_key). The record may be a tombstone.
    ///
    /// # Errors
    /// When the index points to something that is not a record.
    pub fn find(&self, hash: u64, key: &[u8]) -> Result<Option<EncodedRecord<'_>>, CorruptRecord> {
        self.view(false).find(hash, key)
    }

    /// `vouches`: whether all records are within the table of homed prefixes that counts, which
    /// this layer has.
    pub(crate) fn view(&self, vouches: bool) -> LayerView<'_> {
        let (bytes, checks) = (self.as_bytes(), self.trust != Trust::Plain);
        if matches!(self.trust, Trust::Refused | Trust::Stale) {
            // An empty index, in which every search reports damage.
            return LayerView { index: LayerIndex::new(&[], 1).checked(true), ..LayerView::default() };
        }
        let index = bytes.get(to_usize(self.header.index_at)..).unwrap_or_default();
        LayerView {
            records: bytes.get(..to_usize(self.header.homed_at)).unwrap_or_default(),
            index: LayerIndex::new(index, self.header.index_buckets).checked(checks),
            vouches,
            checks,
        }
    }

    /// Whether the layer has a table of homed prefixes.
    #[must_use]
    pub const fn has_homed(&self) -> bool {
        self.header.flags & FLAG_HOMED != 0
    }

    /// Whether the prefix of every record is in the layer's own table.
    #[must_use]
    pub const fn is_within(&self) -> bool {
        self.header.flags & FLAG_WITHIN != 0
    }

    /// The homed prefixes; `None` if the layer has no table.
    #[must_use]
    pub fn homed(&self) -> Option<HomedTable<'_>> {
        let header = &self.header;
        if !self.has_homed() {
            return None;
        }
        let section = to_usize(header.homed_at)..to_usize(header.index_at);
        let section = self.as_bytes().get(section).unwrap_or_default();
        let index = section.get(..to_usize(header.homed_index_len)).unwrap_or_default();
        Some(HomedTable {
            section,
            index: LayerIndex::new(index, header.homed_buckets),
            entries_at: to_usize(header.homed_index_len),
            count: header.homed_count,
            seed: header.seed,
        })
    }

    /// Starts loading the record at an offset of the file.
    #[cfg(feature = "build")]
    pub(crate) fn prefetch_record(&self, at: u64) {
        prefetch(self.as_bytes(), to_usize(at), RECORD_PREFETCH_LEN);
    }

    /// The record at an offset of the file, if it is whole.
    #[cfg(feature = "build")]
    pub(crate) fn record_at(&self, at: u64) -> Result<EncodedRecord<'_>, CorruptRecord> {
        let records = self.as_bytes().get(..to_usize(self.header.homed_at)).unwrap_or_default();
        let record = records.get(to_usize(at)..).and_then(EncodedRecord::split).map(|(record, _)| record);
        record.filter(EncodedRecord::is_whole).ok_or(CorruptRecord { at })
    }

    /// All records, including tombstones, in ascending order of (hash, key).
    #[must_use]
    pub fn records(&self) -> LayerRecords<'_> {
        let header = &self.header;
        let section = to_usize(header.records_at)..to_usize(header.homed_at);
        LayerRecords {
            at: header.records_at,
            left: header.handles_count + header.tombstones_count,
            rest: self.as_bytes().get(section).unwrap_or_default(),
        }
    }
}

/// All records of a layer in order. See [`Layer::records`].
#[derive(Clone, Debug)]
pub struct LayerRecords<'a> {
    at: u64,
    left: u64,
    rest: &'a [u8],
}

impl<'a> LayerRecords<'a> {
    /// The records that `bytes` consist of, with offsets in them; `None` if their lengths
    /// contradict each other.
    #[cfg(feature = "build")]
    pub(crate) fn of_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (mut left, mut rest) = (0, bytes);
        while !rest.is_empty() {
            (_, rest) = EncodedRecord::split(rest)?;
            left += 1;
        }
        Some(Self { at: 0, left, rest: bytes })
    }

    /// Offset of the next record in the file.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// Number of records left.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// The bytes not read yet; at the end of an undamaged layer, padding.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for LayerRecords<'a> {
    type Item = Result<EncodedRecord<'a>, CorruptRecord>;

    /// The next record. After an error the iterator ends.
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let Some((record, rest)) = EncodedRecord::split(self.rest) else {
            self.left = 0;
            return Some(Err(CorruptRecord { at: self.at }));
        };
        self.at += record.as_bytes().len() as u64;
        self.rest = rest;
        Some(Ok(record))
    }
}
