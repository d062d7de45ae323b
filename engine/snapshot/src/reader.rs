//! One layer over borrowed bytes: open in constant time, look up in two reads.
//!
//! - Opening checks the header and nothing else; `verify` is the full check, made once by the publisher.
//! - No lookup trusts the bytes: each offset and length is checked where it is used, and a search ends
//!   after [`PROBE_BUCKETS_MAX`](crate::format::PROBE_BUCKETS_MAX) buckets whatever they hold.
//! - How far a lookup trusts what records and buckets say beyond that is the layer's [`Trust`].
//! - The staged form is the same lookup in steps, so that a batch can wait for memory once.

use crate::format::{FLAG_FOLDS, FLAG_HOMED, FLAG_WITHIN, HEADER_LEN, LayerHeader, OpenError};
use crate::homed::HomedTable;
use crate::index::{Candidate, LayerIndex};
use crate::prefetch::{prefetch, prefetch_all};
use crate::record::EncodedRecord;
use core::fmt;

/// Bytes of a record that are loaded ahead: most whole records, and the front of the others.
const RECORD_PREFETCH_LEN: usize = 384;

/// An opened layer. `B` holds the bytes of the whole file and always the same ones.
#[derive(Clone, Debug)]
pub struct Layer<B> {
    bytes: B,
    header: LayerHeader,
    trust: Trust,
}

/// How far lookups trust the bytes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Records are taken as they are: whoever published them has verified them.
    Plain,
    /// A record that is found is compared with its checksum, and so is a bucket of the index before a key counts
    /// as missing. What is damaged is [`CorruptRecord`], all else is what was published.
    Checked,
    /// Every lookup that comes to this layer is [`CorruptRecord`].
    Refused,
}

/// A record or slot contradicts itself: the file was damaged after it was verified.
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

/// What lookups need of a layer, at hand: to ask the layer costs more than to look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerView<'a> {
    /// The file up to the end of its records, so that offsets are those of the file.
    records: &'a [u8],
    index: LayerIndex<'a>,
    /// Whether the layer has the table of homed prefixes that counts, and all its records are within.
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
            // One of the last records of the file.
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

    /// A record with another key: only the fingerprint is the same, which happens once in some thousand lookups, or
    /// the key is damaged. So this check costs nothing that matters, and is made in any case.
    #[cold]
    fn other_record(
        record: &EncodedRecord<'_>,
        candidate: Candidate,
    ) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
        if record.is_whole() { Ok(None) } else { Err(CorruptRecord { at: candidate.at }) }
    }

    /// Goes on where only the fingerprint was the same.
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
            // Of those behind the first, only one with the key is compared with its checksum: a layer made to do harm
            // could have a long record in hundreds of slots.
            if self.record(candidate.at)?.key() == key {
                return self.record_if(candidate, key);
            }
        }
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
    // Where it does not fit, no slice reaches either, and the read that follows is refused.
    usize::try_from(at).unwrap_or(usize::MAX)
}

impl<B: AsRef<[u8]>> Layer<B> {
    /// Opens a layer, checking its header only.
    ///
    /// # Errors
    /// When the bytes are not a whole layer of a version we know.
    pub fn open(bytes: B) -> Result<Self, OpenError> {
        let slice = bytes.as_ref();
        let header = LayerHeader::decode(slice, slice.len() as u64)?;
        let trust = if header.private_count > 0 { Trust::Checked } else { Trust::Plain };
        Ok(Self { bytes, header, trust })
    }

    /// How far lookups trust it: [`Trust::Checked`] at first where it has private values, [`Trust::Plain`] where not.
    #[must_use]
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// The same layer, trusted as far as `trust` says.
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Seed of [`hash_key`](crate::hash_key); the same in all layers of a set.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.header.seed
    }

    /// Whether keys are upper case throughout; the same in all layers of a set.
    #[must_use]
    pub const fn folds(&self) -> bool {
        self.header.flags & FLAG_FOLDS != 0
    }

    /// Records that are not tombstones.
    #[must_use]
    pub const fn handles_count(&self) -> u64 {
        self.header.handles_count
    }

    /// Records that hide a handle of older layers.
    #[must_use]
    pub const fn tombstones_count(&self) -> u64 {
        self.header.tombstones_count
    }

    /// Values that not everyone may read, of all records.
    #[must_use]
    pub const fn private_count(&self) -> u64 {
        self.header.private_count
    }

    /// When the layer was built, Unix milliseconds.
    #[must_use]
    pub const fn created_unix_ms(&self) -> u64 {
        self.header.created_unix_ms
    }

    /// When the layer was built, Unix seconds.
    #[must_use]
    pub const fn created_unix_s(&self) -> u64 {
        self.header.created_unix_ms / 1000
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

    /// What holds the bytes.
    pub const fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Looks a key up; `hash` is its [`hash_key`](crate::hash_key). The record may be a tombstone.
    ///
    /// # Errors
    /// When the index leads to something that is not a record.
    pub fn find(&self, hash: u64, key: &[u8]) -> Result<Option<EncodedRecord<'_>>, CorruptRecord> {
        self.view(false).find(hash, key)
    }

    /// `vouches`: whether this is the layer that does.
    pub(crate) fn view(&self, vouches: bool) -> LayerView<'_> {
        let (bytes, checks) = (self.as_bytes(), self.trust != Trust::Plain);
        if self.trust == Trust::Refused {
            // No bucket is there, so every search ends in damage.
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

    /// Whether every record is under a prefix of the layer's own table.
    #[must_use]
    pub const fn is_within(&self) -> bool {
        self.header.flags & FLAG_WITHIN != 0
    }

    /// The homed prefixes; `None` when older layers say what they are.
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

    /// All records, tombstones among them, in ascending order of (hash, key).
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
    /// Offset of the next record in the file.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// How many are left.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// The bytes not yet read; at the end of an undamaged layer, padding.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for LayerRecords<'a> {
    type Item = Result<EncodedRecord<'a>, CorruptRecord>;

    /// The next record. After an error there is none.
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
