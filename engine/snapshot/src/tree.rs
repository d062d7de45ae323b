//! The Merkle tree over the records of a set.
//!
//! The root is a function of the records that a lookup finds, whatever layers they are in, so sets
//! with different layers can be compared. A leaf is one record; its position is the SHA-256 of its
//! key. A subtree without records is [`EMPTY`], a subtree with one record is its leaf, and every
//! other subtree has the digest of its two halves. The number of steps from the root to a leaf is
//! therefore about the binary logarithm of the number of records, and such a path proves that a
//! record is or is not in the set ([`proof`](crate::proof)).
//!
//! A publisher keeps the upper levels in memory as a [`RecordTree`], down to *buckets* of about
//! [`BUCKET_RECORDS`] records. Below them, it computes the digests again from the records of the
//! bucket, which it finds with a [`KeyIndex`] of each layer: 8 bytes for each record. A change
//! costs the hashes of one bucket and of one path.
//!
//! Alternatives: a sum of hashes for each bucket can be updated without its other records, but is
//! either forgeable (modulo 2^256) or needs two kilobytes of state and of hashing for each record.
//! Leaves in the order of the hash of the layer's index need no [`KeyIndex`], but a proof would
//! reveal the seed, which is secret. Keeping all nodes takes 64 bytes for each record.

use crate::format::{RECORD_ALIGN, Sha256Sum};
use crate::reader::{CorruptRecord, Layer};
use crate::record::EncodedRecord;
use sha2::block_api::compress256;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::vec::Vec;

/// Maximum average number of records of a bucket, from which the number of buckets follows.
pub const BUCKET_RECORDS: u64 = 32;
/// Maximum number of levels above the buckets. They take 64 MiB.
pub(crate) const BITS_MAX: u32 = 20;
/// Maximum number of missing levels; beyond it, the tree is made again.
const BITS_MISSING_MAX: u32 = 2;
/// Number of levels above the buckets from which on two threads make a tree. With fewer, it takes
/// no longer than starting a thread; sets of tests have more.
const BITS_FOR_THREADS: u32 = 2;
/// Bits of the digest of a key in an entry of a [`KeyIndex`]. The other bits are an offset.
const PREFIX_BITS: u32 = 24;
/// Bits of an offset in an entry of a [`KeyIndex`], in units of [`RECORD_ALIGN`].
const OFFSET_BITS: u32 = 40;
/// Number of hash rounds that make the blinding of private values from the seed.
const BLINDING_ROUNDS: u32 = 1 << 16;

/// Bytes of a block of SHA-256.
const SHA_BLOCK_LEN: usize = 64;
/// Most blocks of a short digest. The values of most records fit.
const SHORT_BLOCKS: usize = 8;
/// Most bytes of a short digest: a bit and the length follow them.
const SHORT_LEN_MAX: usize = SHORT_BLOCKS * SHA_BLOCK_LEN - 1 - size_of::<u64>();
/// The state with which SHA-256 starts: FIPS 180-4 section 5.3.3.
const SHA_START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The digest of a subtree without records.
pub const EMPTY: Sha256Sum = Sha256Sum([0; 32]);

/// The kind of a node, from its digest: the last bit is set in digests of leaves only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Empty,
    Leaf,
    Inner,
}

pub(crate) fn kind(node: &Sha256Sum) -> NodeKind {
    match node {
        &EMPTY => NodeKind::Empty,
        Sha256Sum([.., last]) if last & 1 == 1 => NodeKind::Leaf,
        _ => NodeKind::Inner,
    }
}

/// The SHA-256 of all parts together.
fn digest_of(parts: &[&[u8]]) -> [u8; 32] {
    let len = parts.iter().map(|part| part.len()).sum();
    if len <= SHORT_LEN_MAX { short_digest(parts, len) } else { long_digest(parts) }
}

/// As [`long_digest`], for `len` bytes, at most [`SHORT_LEN_MAX`]. A tree is made of millions of
/// short digests, of which it saves a quarter of the time: the input is padded where it is
/// gathered, and no state is kept and cleared.
fn short_digest(parts: &[&[u8]], len: usize) -> [u8; 32] {
    let mut input = [[0; SHA_BLOCK_LEN]; SHORT_BLOCKS];
    let bytes = input.as_flattened_mut();
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    // FIPS 180-4 section 5.1.1: a bit, zeros, and the number of bits at the end of a block.
    bytes[len] = 0x80;
    let blocks_count = (len + 1 + size_of::<u64>()).div_ceil(SHA_BLOCK_LEN);
    let bits_at = blocks_count * SHA_BLOCK_LEN - size_of::<u64>();
    bytes[bits_at..][..size_of::<u64>()].copy_from_slice(&(8 * len as u64).to_be_bytes());
    let mut state = SHA_START;
    compress256(&mut state, &input[..blocks_count]);
    let mut digest = [0; 32];
    for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    digest
}

fn long_digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut sum = Sha256::new();
    parts.iter().for_each(|part| sum.update(part));
    sum.finalize().into()
}

/// The position of a record in the tree: the digest of its key.
#[must_use]
pub fn key_digest(key: &[u8]) -> Sha256Sum {
    Sha256Sum(digest_of(&[key]))
}

/// The digest of the public values of a record, in wire form, one after the other.
#[must_use]
pub fn public_digest(public: &[u8]) -> Sha256Sum {
    Sha256Sum(digest_of(&[public]))
}

/// The digest of a record, from those of its public and of its private values.
#[must_use]
pub fn record_digest(public: &Sha256Sum, private: &Sha256Sum) -> Sha256Sum {
    Sha256Sum(digest_of(&[&public.0, &private.0]))
}

/// The digest of a subtree with one record.
#[must_use]
pub fn leaf(key: &Sha256Sum, record: &Sha256Sum) -> Sha256Sum {
    let mut node = digest_of(&[&[0], &key.0, &record.0]);
    node[31] |= 1;
    Sha256Sum(node)
}

/// The digest of a subtree, from those of its halves.
#[must_use]
pub fn join(left: &Sha256Sum, right: &Sha256Sum) -> Sha256Sum {
    match (kind(left), kind(right)) {
        (NodeKind::Empty | NodeKind::Leaf, NodeKind::Empty) => *left,
        (NodeKind::Empty, NodeKind::Leaf) => *right,
        _ => {
            let mut node = digest_of(&[&[1], &left.0, &right.0]);
            node[31] &= 0xfe;
            Sha256Sum(node)
        }
    }
}

/// Whether the path to a key goes to the right half of the subtree at `depth`.
pub(crate) fn goes_right(key: &Sha256Sum, depth: usize) -> bool {
    key.0.get(depth / 8).is_some_and(|byte| byte >> (7 - depth % 8) & 1 == 1)
}

/// The key and the digest of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    pub key: Sha256Sum,
    pub record: Sha256Sum,
}

/// The digest of the subtree at `depth` with these entries, which are in the order of their keys.
pub(crate) fn subtree(entries: &[TreeEntry], depth: usize) -> Sha256Sum {
    match entries {
        [] => EMPTY,
        [one] => leaf(&one.key, &one.record),
        _ => {
            let (left, right) = halves(entries, depth);
            join(&subtree(left, depth + 1), &subtree(right, depth + 1))
        }
    }
}

pub(crate) fn halves(entries: &[TreeEntry], depth: usize) -> (&[TreeEntry], &[TreeEntry]) {
    entries.split_at(entries.partition_point(|entry| !goes_right(&entry.key, depth)))
}

/// Makes the digests of records of one set.
///
/// Proofs reveal digests of private values. So that the values cannot be guessed from them, these
/// digests include a secret of the set, which is made from its seed.
#[derive(Debug)]
pub(crate) struct RecordHasher {
    seed: u64,
    blinding: OnceLock<[u8; 32]>,
}

impl RecordHasher {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed, blinding: OnceLock::new() }
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// The digest of the values that are not public; zero if there are none.
    pub(crate) fn private_digest(&self, record: &EncodedRecord<'_>) -> Sha256Sum {
        if record.private_count() == 0 {
            return EMPTY;
        }
        let blinding = self.blinding.get_or_init(|| {
            let first = digest_of(&[b"handle snapshot blinding", &self.seed.to_le_bytes()]);
            (0..BLINDING_ROUNDS).fold(first, |last, _| digest_of(&[&last]))
        });
        Sha256Sum(digest_of(&[blinding, record.private().rest()]))
    }

    fn record_digest(&self, record: &EncodedRecord<'_>) -> Sha256Sum {
        record_digest(&public_digest(record.public_bytes()), &self.private_digest(record))
    }
}

/// The records of one layer, tombstones included, by the digests of their keys.
#[derive(Debug, Default)]
pub struct KeyIndex {
    /// The leading bits of the digest of the key, then the offset of the record, in ascending
    /// order.
    entries: Vec<u64>,
}

impl KeyIndex {
    /// Reads all keys of a layer.
    ///
    /// # Errors
    /// When a record is damaged.
    pub fn of<B: AsRef<[u8]>>(layer: &Layer<B>) -> Result<Self, CorruptRecord> {
        let mut records = layer.records();
        let mut keys = Self::with_capacity(records.left());
        loop {
            let at = records.at();
            let Some(record) = records.next() else { return Ok(keys.sorted()) };
            keys.push(at, record?.key());
        }
    }

    /// An empty index with capacity for `count` keys.
    pub(crate) fn with_capacity(count: u64) -> Self {
        Self { entries: Vec::with_capacity(usize::try_from(count).unwrap_or(0).min(1 << 28)) }
    }

    /// Adds the key of the record at an offset. After the last one, the index must be
    /// [`sorted`](Self::sorted).
    pub(crate) fn push(&mut self, at: u64, key: &[u8]) {
        let prefix = u64::from(prefix(&key_digest(key)));
        self.entries.push((prefix << OFFSET_BITS) | (at / RECORD_ALIGN as u64));
    }

    pub(crate) fn sorted(mut self) -> Self {
        self.entries.sort_unstable();
        self
    }

    /// Offsets of the records of a bucket, if there are `1 << bits` buckets.
    pub(crate) fn bucket(&self, bucket: u32, bits: u32) -> impl Iterator<Item = u64> {
        let shift = OFFSET_BITS + PREFIX_BITS - bits;
        let start = u64::from(bucket).checked_shl(shift).unwrap_or(0);
        let is_in = move |entry: &u64| entry.checked_shr(shift).unwrap_or(0) == u64::from(bucket);
        let from = self.entries.partition_point(|&entry| entry < start);
        let offset = |entry: u64| (entry & ((1 << OFFSET_BITS) - 1)) * RECORD_ALIGN as u64;
        self.entries[from..].iter().copied().take_while(is_in).map(offset)
    }
}

/// The leading [`PREFIX_BITS`] bits of a digest.
pub(crate) fn prefix(key: &Sha256Sum) -> u32 {
    let [first, second, third, ..] = key.0;
    u32::from_be_bytes([0, first, second, third])
}

/// A layer and the index of its keys.
#[derive(Debug)]
pub(crate) struct IndexedLayer<'a, B> {
    pub layer: &'a Layer<B>,
    pub keys: &'a KeyIndex,
}

/// The layers of a set, newest first, from which the entries of buckets are read.
#[derive(Debug)]
pub(crate) struct TreeSource<'a, B> {
    pub layers: Vec<IndexedLayer<'a, B>>,
    pub hasher: &'a RecordHasher,
}

impl<B: AsRef<[u8]>> TreeSource<'_, B> {
    /// The entries of a bucket, in the order of their keys.
    pub(crate) fn entries(&self, bucket: u32, bits: u32) -> Result<Vec<TreeEntry>, CorruptRecord> {
        let mut found: BTreeMap<Sha256Sum, Option<Sha256Sum>> = BTreeMap::new();
        for IndexedLayer { layer, keys } in &self.layers {
            for at in keys.bucket(bucket, bits) {
                let record = layer.record_at(at)?;
                // The newest layer that has the key decides.
                found
                    .entry(key_digest(record.key()))
                    .or_insert_with(|| (!record.is_tombstone()).then(|| self.hasher.record_digest(&record)));
            }
        }
        Ok(found
            .into_iter()
            .filter_map(|(key, record)| record.map(|record| TreeEntry { key, record }))
            .collect())
    }

    /// Starts loading the records of a bucket, which are scattered over the layers.
    fn prefetch(&self, bucket: u32, bits: u32) {
        for IndexedLayer { layer, keys } in &self.layers {
            keys.bucket(bucket, bits).for_each(|at| layer.prefetch_record(at));
        }
    }

    fn node(&self, bucket: u32, bits: u32) -> Result<Sha256Sum, CorruptRecord> {
        Ok(subtree(&self.entries(bucket, bits)?, bits as usize))
    }

    /// Number of records of all layers.
    fn records_count(&self) -> u64 {
        self.layers.iter().map(|it| it.keys.entries.len() as u64).sum()
    }
}

/// The upper levels of the tree of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordTree {
    bits: u32,
    /// The root is at 1; the halves of the subtree at *n* are at 2*n* and 2*n* + 1.
    nodes: Vec<Sha256Sum>,
}

/// Nodes of a [`RecordTree`] that have changed.
pub(crate) type ChangedNodes = BTreeMap<usize, Sha256Sum>;

impl RecordTree {
    /// Makes the tree of a set from all its records, with two threads if there are many.
    pub(crate) fn of<B: AsRef<[u8]> + Sync>(source: &TreeSource<'_, B>) -> Result<Self, CorruptRecord> {
        let bits = bits_for(source.records_count());
        let mut nodes = std::vec![EMPTY; 2 << bits];
        let fill = |buckets: &mut [Sha256Sum], first: u32| -> Result<(), CorruptRecord> {
            source.prefetch(first, bits);
            (first..).zip(buckets).try_for_each(|(bucket, node)| {
                source.prefetch(bucket + 1, bits);
                *node = source.node(bucket, bits)?;
                Ok(())
            })
        };
        let half = 1 << bits.saturating_sub(1);
        let (left, right) = nodes[1 << bits..].split_at_mut(half as usize);
        if bits < BITS_FOR_THREADS {
            fill(left, 0)?;
            fill(right, half)?;
        } else {
            std::thread::scope(|scope| {
                let left = scope.spawn(|| fill(left, 0));
                let right = fill(right, half);
                left.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(right)
            })?;
        }
        for at in (1..1 << bits).rev() {
            nodes[at] = join(&nodes[2 * at], &nodes[2 * at + 1]);
        }
        Ok(Self { bits, nodes })
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> Sha256Sum {
        self.nodes[1]
    }

    /// Number of levels above the buckets.
    #[must_use]
    pub const fn bits(&self) -> u32 {
        self.bits
    }

    /// Whether buckets have become so large that the tree should be made again.
    pub(crate) fn is_small<B: AsRef<[u8]>>(&self, source: &TreeSource<'_, B>) -> bool {
        bits_for(source.records_count()) > self.bits + BITS_MISSING_MAX
    }

    pub(crate) fn node(&self, at: usize) -> Sha256Sum {
        self.nodes.get(at).copied().unwrap_or(EMPTY)
    }

    /// Computes the digests of the buckets of keys with these prefixes again.
    pub(crate) fn renew_buckets<B: AsRef<[u8]>>(
        &self,
        prefixes: &[u32],
        source: &TreeSource<'_, B>,
        changed: &mut ChangedNodes,
    ) -> Result<(), CorruptRecord> {
        let mut buckets: Vec<u32> =
            prefixes.iter().map(|prefix| prefix >> (PREFIX_BITS - self.bits)).collect();
        buckets.sort_unstable();
        buckets.dedup();
        for bucket in buckets {
            changed.insert((1 << self.bits) + bucket as usize, source.node(bucket, self.bits)?);
        }
        Ok(())
    }

    /// Adds all nodes above changed buckets, and returns the new root.
    pub(crate) fn renew_paths(&self, changed: &mut ChangedNodes) -> Sha256Sum {
        let mut level: Vec<usize> = changed.keys().copied().collect();
        for _ in 0..self.bits {
            level.iter_mut().for_each(|at| *at /= 2);
            level.dedup();
            for &at in &level {
                let node = |at| changed.get(&at).copied().unwrap_or_else(|| self.node(at));
                let joined = join(&node(2 * at), &node(2 * at + 1));
                changed.insert(at, joined);
            }
        }
        changed.get(&1).copied().unwrap_or_else(|| self.root())
    }

    pub(crate) fn apply(&mut self, changed: &ChangedNodes) {
        for (&at, &node) in changed {
            self.nodes[at] = node;
        }
    }
}

/// Number of levels above the buckets of a set with this many records.
pub(crate) fn bits_for(records_count: u64) -> u32 {
    let buckets = records_count.div_ceil(BUCKET_RECORDS).max(1);
    buckets.next_power_of_two().trailing_zeros().min(BITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with hashlib of Python: a leaf has the prefix 0 and the last bit 1, the digest of
    /// two halves has the prefix 1 and the last bit 0.
    #[test]
    fn nodes_are_those_of_another_implementation() {
        let sum = |byte| Sha256Sum([byte; 32]);
        let (first, second) = (leaf(&sum(1), &sum(2)), leaf(&sum(3), &sum(4)));
        assert_eq!(
            std::string::ToString::to_string(&first),
            "32fb2d4416067c5bff06423e18714ad3884365d7b816d34a77b33527d8438625"
        );
        assert_eq!(
            std::string::ToString::to_string(&join(&first, &second)),
            "877de086cce9698c27e26a5f8dd825069c0e3fee0664ecb8c1227c2e92cb2cf6"
        );
    }

    #[test]
    fn short_digests_are_those_of_sha_256() {
        let bytes: Vec<u8> = (0..=255).cycle().take(SHORT_LEN_MAX).collect();
        for len in 0..=SHORT_LEN_MAX {
            let (first, second) = bytes[..len].split_at(len / 3);
            let parts = [first, &[], second];
            assert_eq!(short_digest(&parts, len), long_digest(&parts), "{len} bytes");
        }
    }
}
