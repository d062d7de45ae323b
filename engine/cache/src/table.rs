//! The cached records: bounded in bytes, shared by all workers, read without a lock.
//!
//! # Design
//!
//! - **Entries are bytes in rings, not objects.** An entry is three words, its key and its values,
//!   one after the other in a ring of words. It is found through a bucket of one cache line, which
//!   holds seven slots of eight bytes and the number of uses of each. An entry of 200 to 600 bytes
//!   costs at most 64 bytes more than its key and values, and the memory never exceeds the bound,
//!   because all of it is reserved at the start.
//! - **Readers copy, then check.** Positions in a ring only grow. A reader copies an entry and then
//!   compares its position with the oldest position that is still valid. Writers move that position
//!   forward before they overwrite anything, so a copy that passes the comparison is whole. All
//!   words are atomics, so this needs no unsafe code, and a reader never waits for a writer.
//! - **S3-FIFO decides what stays** (Yang et al., SOSP 2023): a new entry enters a small ring, a
//!   thirtieth of the memory. It moves to the main ring if it was used while it was there;
//!   otherwise it is dropped and remembered by its hash, and enters the main ring directly when it
//!   comes back soon. So a scan displaces little. In both rings, eviction is in the order of
//!   arrival, which is what makes readers free of locks: a use only increments a byte.
//! - **Shards bound the wait of writers.** Each shard has its rings, its buckets and one lock for
//!   writers.
//! - **Memory is in huge pages** where the system has them: a lookup reads the index at one random
//!   position and a ring at another.

mod entry;
mod ghost;
mod index;
mod ring;
mod shard;
#[cfg(test)]
mod tests;

use entry::stored_hash;
pub use entry::{EntryStamp, KEY_LEN_MAX, VALUES_LEN_MAX};
pub use index::NO_SLOT;
use shard::Shard;

/// Bytes of memory for which the table creates one shard, as far as [`SHARDS_MAX`] allows. The
/// index of a shard is a few huge pages long then, and lookups seldom wait for page tables.
const SHARD_BYTES: usize = 512 << 20;
/// Most shards.
const SHARDS_MAX: usize = 64;

/// Cached records by key.
#[derive(Debug)]
pub struct CachedRecordTable {
    shards: Box<[Shard]>,
    bytes_max: usize,
}

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub enum TableLookup<'r> {
    /// There is no entry.
    Missing,
    /// There is an entry, and no capacity to copy it.
    NoCapacity,
    /// A copy of the entry.
    Found(CachedEntry<'r>),
}

/// A copy of an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct CachedEntry<'r> {
    /// What is stored with the values.
    pub stamp: EntryStamp,
    /// The values, as they were inserted.
    pub values: &'r mut [u8],
    /// Number of recent uses before this one, 0 to 3.
    pub uses: u8,
}

/// An entry of a walk through the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry<'e> {
    /// The key.
    pub key: &'e [u8],
    /// What is stored with the values.
    pub stamp: EntryStamp,
    /// The values.
    pub values: &'e [u8],
    /// Number of recent uses, 0 to 3.
    pub uses: u8,
}

/// A step of a walk through the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep<'e> {
    /// An entry. The writers of its shard wait meanwhile; readers do not.
    Entry(TableEntry<'e>),
    /// No request waits for this, so it may take long.
    Pause,
}

/// The state of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Number of entries.
    pub entries: usize,
    /// Bytes of their keys and values.
    pub bytes: usize,
    /// Bytes of memory that the table takes.
    pub bytes_max: usize,
    /// Entries inserted since the start.
    pub insertions: u64,
    /// Entries dropped for lack of capacity since the start.
    pub evictions: u64,
}

impl CachedRecordTable {
    /// A table that takes `bytes` bytes of memory, at least [`BYTES_MIN`](Self::BYTES_MIN). The
    /// system provides the memory when it is first used.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.max(Self::BYTES_MIN);
        let count = (bytes / SHARD_BYTES).max(1).ilog2();
        let count = (1 << count).min(SHARDS_MAX);
        let shards = (0..count).map(|_| Shard::new(bytes / count)).collect();
        Self { shards, bytes_max: bytes }
    }

    /// The smallest table in bytes.
    pub const BYTES_MIN: usize = 1 << 20;

    /// The shard for `hash`, and the hash in the form in which entries store it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of shards")]
    fn shard(&self, hash: u64) -> (&Shard, u64) {
        // There are at most 64 shards; the buckets and the tags use the lower bits.
        let at = hash >> (u64::BITS - SHARDS_MAX.ilog2());
        (&self.shards[at as usize & (self.shards.len() - 1)], stored_hash(hash))
    }

    /// First step of a lookup: starts loading the buckets, and does not wait.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (shard, hash) = self.shard(hash);
        shard.prefetch_index(hash);
    }

    /// Second step of a lookup: reads the buckets. Returns the number of the slot in which the
    /// entry may be, or [`NO_SLOT`].
    #[inline]
    pub fn probe(&self, hash: u64) -> usize {
        let (shard, hash) = self.shard(hash);
        shard.probe(hash)
    }

    /// Third step of a lookup: starts loading the entry.
    #[inline]
    pub fn prefetch_entry(&self, hash: u64, slot: usize) {
        let (shard, hash) = self.shard(hash);
        shard.prefetch_entry(hash, slot);
    }

    /// Copies the entry of `key` into the bytes that `buffer` returns for the length that it is
    /// given, and counts a use of the entry. While the entry is moved by a writer, it may be
    /// reported as missing.
    pub fn find<'r>(
        &self,
        hash: u64,
        key: &[u8],
        buffer: impl FnOnce(usize) -> Option<&'r mut [u8]>,
    ) -> TableLookup<'r> {
        self.find_at(hash, NO_SLOT, key.len(), |found: &[u8]| found == key, buffer)
    }

    /// Last step of a lookup: as [`find`](Self::find), for a key of so many bytes that is compared
    /// by `is_key`, and looks into the slot of the second step first.
    #[inline]
    pub fn find_at<'r>(
        &self,
        hash: u64,
        slot: usize,
        key_len: usize,
        is_key: impl FnOnce(&[u8]) -> bool,
        buffer: impl FnOnce(usize) -> Option<&'r mut [u8]>,
    ) -> TableLookup<'r> {
        let (shard, hash) = self.shard(hash);
        shard.find(hash, slot, key_len, is_key, buffer)
    }

    /// Inserts an entry, in place of the one with the same key. Returns false, and removes that
    /// one, when the entry is longer than [`entry_len_max`](Self::entry_len_max).
    pub fn insert(&self, hash: u64, key: &[u8], stamp: EntryStamp, values: &[u8]) -> bool {
        let (shard, hash) = self.shard(hash);
        shard.insert(hash, key, stamp, values, true)
    }

    /// Inserts an entry, unless there is one with the same key.
    pub fn insert_if_absent(&self, hash: u64, key: &[u8], stamp: EntryStamp, values: &[u8]) -> bool {
        let (shard, hash) = self.shard(hash);
        shard.insert(hash, key, stamp, values, false)
    }

    /// The most bytes of a key and its values together. Besides, a key has at most [`KEY_LEN_MAX`]
    /// and the values have at most [`VALUES_LEN_MAX`] bytes.
    #[must_use]
    pub fn entry_len_max(&self) -> usize {
        self.shards[0].entry_len_max()
    }

    /// Removes the entry of `key`. Returns whether there was one.
    pub fn remove(&self, hash: u64, key: &[u8]) -> bool {
        let (shard, hash) = self.shard(hash);
        shard.remove(hash, key)
    }

    /// Removes all entries for which `is_removed` returns true, and returns their number. A part of
    /// a shard is locked at a time; readers continue.
    pub fn remove_if(&self, is_removed: &mut dyn FnMut(&[u8], EntryStamp) -> bool) -> usize {
        self.shards.iter().map(|shard| shard.remove_if(is_removed)).sum()
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.shards.iter().for_each(Shard::clear);
    }

    /// Passes each entry to `sink`, and lets it pause every thousand entries or so. Entries that
    /// come or go meanwhile may be left out.
    pub fn walk(&self, sink: &mut dyn FnMut(WalkStep<'_>)) {
        self.shards.iter().for_each(|shard| shard.walk(sink));
    }

    /// Passes each entry to `sink`, which must be quick: writers of the shard wait.
    pub fn for_each(&self, sink: &mut dyn FnMut(TableEntry<'_>)) {
        self.walk(&mut |step| {
            if let WalkStep::Entry(entry) = step {
                sink(entry);
            }
        });
    }

    /// The current numbers.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let mut stats = TableStats { bytes_max: self.bytes_max, ..TableStats::default() };
        self.shards.iter().for_each(|shard| shard.add_stats(&mut stats));
        stats
    }
}
