//! The words of an entry: three words, then the bytes of its key and of its values.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words before the key.
pub(super) const HEAD_WORDS: usize = 3;
/// Bytes of a word.
const WORD_LEN: usize = size_of::<u64>();

/// Most bytes of a key.
pub const KEY_LEN_MAX: usize = (1 << 16) - 1;
/// Most bytes of the values of an entry.
pub const VALUES_LEN_MAX: usize = (1 << 20) - 1;
/// The greatest kind of an entry.
const KIND_MAX: u8 = 0xf;

/// What the table stores with the values of an entry. It has no meaning to the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryStamp {
    /// When the entry was stored, in seconds since 1970.
    pub stored_unix_s: u32,
    /// How long the entry may be used, in seconds.
    pub ttl_s: u32,
    /// Number of values.
    pub values_count: u16,
    /// Kind of the entry, 0 to 15. Higher bits are not stored.
    pub kind: u8,
    /// Any flags.
    pub flags: u8,
}

/// The head of an entry, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryHead {
    /// The hash of the key as it is stored.
    pub(super) hash: u64,
    pub(super) key_len: usize,
    pub(super) values_len: usize,
    pub(super) stamp: EntryStamp,
}

/// The form in which entries store `hash`, which is never 0: a word 0 says that the rest of a lap
/// is unused.
pub(super) const fn stored_hash(hash: u64) -> u64 {
    hash | 1
}

impl EntryHead {
    /// The head of an entry; `None` if a length is too great.
    pub(super) fn new(hash: u64, key: &[u8], stamp: EntryStamp, values: &[u8]) -> Option<Self> {
        let fits = key.len() <= KEY_LEN_MAX && values.len() <= VALUES_LEN_MAX;
        fits.then_some(Self { hash, key_len: key.len(), values_len: values.len(), stamp })
    }

    /// Bytes of key and values.
    pub(super) const fn payload_len(&self) -> usize {
        self.key_len + self.values_len
    }

    /// Words of the whole entry.
    pub(super) const fn words(&self) -> usize {
        HEAD_WORDS + self.payload_len().div_ceil(WORD_LEN)
    }

    const fn encode(&self) -> [u64; HEAD_WORDS] {
        let EntryStamp { stored_unix_s, ttl_s, values_count, kind, flags } = self.stamp;
        let lens = self.key_len as u64
            | (self.values_len as u64) << 16
            | (values_count as u64) << 36
            | ((kind & KIND_MAX) as u64) << 52
            | (flags as u64) << 56;
        [self.hash, lens, stored_unix_s as u64 | (ttl_s as u64) << 32]
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fields of words")]
    pub(super) fn decode(words: &[AtomicU64]) -> Option<Self> {
        let [hash, lens, times] = words.first_chunk::<HEAD_WORDS>()?;
        let [hash, lens, times] = [hash, lens, times].map(|word| word.load(Ordering::Relaxed));
        Some(Self {
            hash,
            key_len: lens as usize & KEY_LEN_MAX,
            values_len: (lens >> 16) as usize & VALUES_LEN_MAX,
            stamp: EntryStamp {
                stored_unix_s: times as u32,
                ttl_s: (times >> 32) as u32,
                values_count: (lens >> 36) as u16,
                kind: (lens >> 52) as u8 & KIND_MAX,
                flags: (lens >> 56) as u8,
            },
        })
    }
}

/// Writes the words of an entry to `words`, which is cleared before.
pub(super) fn encode(words: &mut Vec<u64>, head: &EntryHead, key: &[u8], values: &[u8]) {
    words.clear();
    words.extend(head.encode());
    // The last bytes of the key share a word with the first of the values.
    let (whole, rest) = key.as_chunks::<WORD_LEN>();
    words.extend(whole.iter().map(|&word| u64::from_le_bytes(word)));
    let mut shared = [0; WORD_LEN];
    let (first, values) = values.split_at(values.len().min((WORD_LEN - rest.len()) % WORD_LEN));
    shared.iter_mut().zip(rest.iter().chain(first)).for_each(|(to, &byte)| *to = byte);
    if !rest.is_empty() {
        words.push(u64::from_le_bytes(shared));
    }
    let (whole, rest) = values.as_chunks::<WORD_LEN>();
    words.extend(whole.iter().map(|&word| u64::from_le_bytes(word)));
    if !rest.is_empty() {
        let mut last = [0; WORD_LEN];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u64::from_le_bytes(last));
    }
}

/// Copies the bytes of `words` to `to`. Returns false when `words` are fewer.
#[inline]
pub(super) fn copy_bytes(words: &[AtomicU64], to: &mut [u8]) -> bool {
    if words.len() * WORD_LEN < to.len() {
        return false;
    }
    let (whole, rest) = to.as_chunks_mut::<WORD_LEN>();
    let (first, last) = words.split_at(whole.len());
    for (to, word) in whole.iter_mut().zip(first) {
        *to = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if let Some(word) = last.first() {
        let bytes = word.load(Ordering::Relaxed).to_le_bytes();
        rest.copy_from_slice(&bytes[..rest.len()]);
    }
    true
}
