//! The key of a record, and its hash for the lookup.

use crate::service::AnswerContext;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::{Handle, fold};
use handle_snapshot::hash_key;

/// The key of a record and its hash, for the lookup.
pub(crate) struct RecordLookup<'k> {
    key: &'k [u8],
    pub(crate) hash: u64,
}

impl<'k> RecordLookup<'k> {
    pub(crate) fn new<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>, key: &'k [u8]) -> Self {
        Self { key, hash: hash_key(context.records.seed(), key) }
    }

    pub(crate) const fn hashed(key: &'k [u8], hash: u64) -> Self {
        Self { key, hash }
    }

    #[inline]
    pub(crate) const fn key(&self) -> &'k [u8] {
        self.key
    }
}

/// Bytes of a key that are folded together.
const FOLDED_BLOCK_LEN: usize = 16;

/// A buffer for the key of one record.
///
/// A handle that is longer than any stored handle is not found, whatever its key.
pub(crate) struct KeyBuf<const N: usize = { HANDLE_LEN_MAX + PREFIX_RECORDS.len() }> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> KeyBuf<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the key of `handle`. Returns false if there is no capacity for it.
    #[inline]
    pub(crate) fn write(&mut self, handle: Handle<'_>, folds: bool) -> bool {
        if handle.slash_at().is_none() {
            return self.write_prefix_record(handle);
        }
        let Some(buffer) = self.bytes.get_mut(..handle.0.len()) else { return false };
        buffer.copy_from_slice(handle.0);
        self.len = handle.0.len();
        if folds {
            self.fold();
        }
        true
    }

    /// Folds the key in whole blocks, with the unused bytes behind it: a loop over the last bytes
    /// of the key takes more instructions than the blocks.
    #[inline]
    fn fold(&mut self) {
        let (blocks, rest) = self.bytes.as_chunks_mut::<FOLDED_BLOCK_LEN>();
        let count = self.len.div_ceil(FOLDED_BLOCK_LEN).min(blocks.len());
        blocks[..count].iter_mut().for_each(|block| fold::fold(block));
        fold::fold(rest);
    }

    /// Writes the key of a name without a slash: `0.NA/` and the folded name.
    #[cold]
    fn write_prefix_record(&mut self, name: Handle<'_>) -> bool {
        let len = PREFIX_RECORDS.len() + name.0.len();
        let Some(buffer) = self.bytes.get_mut(..len) else { return false };
        let (lead, rest) = buffer.split_at_mut(PREFIX_RECORDS.len());
        lead.copy_from_slice(PREFIX_RECORDS);
        rest.copy_from_slice(name.0);
        fold::fold(rest);
        self.len = len;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
    use std::{vec, vec::Vec};

    /// Writes the keys of names of every length that a buffer takes, with other bytes behind them.
    fn keys_are_folded<const N: usize>() {
        let mut key = KeyBuf::<N>::new();
        key.bytes.fill(b'z');
        for len in 1..=N {
            let mut name: Vec<u8> =
                b"10.a/".iter().chain(b"xyZ~{@`\xe4").copied().cycle().take(len).collect();
            *name.last_mut().unwrap() = b'/';
            assert!(key.write(Handle(&name), true));
            assert_eq!(key.as_bytes(), name.to_ascii_uppercase(), "{len} bytes");
            assert!(key.write(Handle(&name), false));
            assert_eq!(key.as_bytes(), name, "{len} bytes");
        }
        assert!(!key.write(Handle(&vec![b'/'; N + 1]), true));
    }

    #[test]
    fn keys_of_every_length_are_folded() {
        keys_are_folded::<UDP_MESSAGE_LEN_MAX>();
        keys_are_folded::<{ HANDLE_LEN_MAX + PREFIX_RECORDS.len() }>();
        keys_are_folded::<7>();
    }
}
