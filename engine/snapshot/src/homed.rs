//! The table of homed prefixes of a layer.

use crate::CorruptRecord;
use crate::format::{KEY_LEN_MAX, RECORD_ALIGN, fingerprint, hash_key};
use crate::index::LayerIndex;
use handle_proto::{Handle, fold};

/// Bytes of a prefix that can be folded without clearing a large buffer first.
const USUAL_LEN: usize = 96;

/// Most ancestors of a prefix that are tried for one name. A name full of dots would have
/// thousands.
pub const ANCESTORS_MAX: usize = 16;

/// The table of homed prefixes of one layer, borrowed from it.
///
/// A prefix is what follows `0.NA/` in the name of its record: `10.5072`, `0.NA`, or `0.NA/10` for
/// all prefixes derived from `10`.
#[derive(Clone, Copy, Debug)]
pub struct HomedTable<'a> {
    pub(crate) section: &'a [u8],
    pub(crate) index: LayerIndex<'a>,
    pub(crate) entries_at: usize,
    pub(crate) count: u64,
    pub(crate) seed: u64,
}

impl<'a> HomedTable<'a> {
    /// Whether the prefix, in any case, is homed.
    #[must_use]
    pub fn has(&self, prefix: &[u8]) -> bool {
        if prefix.len() <= USUAL_LEN {
            self.has_within::<USUAL_LEN>(prefix)
        } else if prefix.len() <= KEY_LEN_MAX {
            self.has_within::<KEY_LEN_MAX>(prefix)
        } else {
            false
        }
    }

    fn has_within<const LEN_MAX: usize>(&self, prefix: &[u8]) -> bool {
        let mut folded = [0; LEN_MAX];
        let folded = &mut folded[..prefix.len()];
        folded.copy_from_slice(prefix);
        fold::fold(folded);
        self.has_folded(folded)
    }

    /// Whether a folded prefix is homed.
    #[inline]
    #[must_use]
    pub fn has_folded(&self, folded: &[u8]) -> bool {
        let hash = hash_key(self.seed, folded);
        let mut candidate = self.index.first(hash);
        while !candidate.is_none() {
            let entry = usize::try_from(candidate.at).ok().and_then(|at| self.section.get(at..));
            if entry.and_then(split).is_some_and(|(prefix, _)| prefix == folded) {
                return true;
            }
            candidate = self.index.after(hash, candidate);
        }
        false
    }

    /// Whether a record with this key is answered from: its prefix is homed or, for the record of a
    /// derived prefix, the records of all prefixes derived from an ancestor are: `0.NA/a.b` is
    /// homed where `0.NA/0.NA/a` is. `is_folded` is whether keys are folded.
    #[inline]
    #[must_use]
    pub fn has_record(&self, key: &[u8], is_folded: bool) -> bool {
        let prefix = Handle(key).naming_authority();
        let is_here = if is_folded { self.has_folded(prefix) } else { self.has(prefix) };
        is_here || (Handle(key).is_derived_prefix_record() && self.has_ancestor(key))
    }

    #[cold]
    fn has_ancestor(&self, key: &[u8]) -> bool {
        ancestors(key).any(|ancestor| self.has(ancestor.0))
    }

    /// What [`has_record`](Self::has_record) says, but that a prefix is missing counts only where
    /// the buckets and the entries that say so are undamaged. For keys that are not found: the
    /// layer may have been damaged after it was verified.
    ///
    /// # Errors
    /// When what was read is damaged. Damage that gives another prefix of the same fingerprint, one
    /// in 65,536, is not noticed.
    #[cold]
    pub fn find_record(&self, key: &[u8]) -> Result<bool, CorruptRecord> {
        if self.find(Handle(key).naming_authority())? {
            return Ok(true);
        }
        if !Handle(key).is_derived_prefix_record() {
            return Ok(false);
        }
        for ancestor in ancestors(key) {
            if self.find(ancestor.0)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Like [`find_record`](Self::find_record), for one prefix in any case.
    ///
    /// # Errors
    /// When what was read is damaged.
    #[cold]
    pub fn find(&self, prefix: &[u8]) -> Result<bool, CorruptRecord> {
        // The index of an empty table has no bucket.
        if self.count == 0 || prefix.len() > KEY_LEN_MAX {
            Ok(false)
        } else if prefix.len() > USUAL_LEN {
            self.find_within::<KEY_LEN_MAX>(prefix)
        } else {
            self.find_within::<USUAL_LEN>(prefix)
        }
    }

    fn find_within<const LEN_MAX: usize>(&self, prefix: &[u8]) -> Result<bool, CorruptRecord> {
        let mut folded = [0; LEN_MAX];
        let folded = &mut folded[..prefix.len()];
        folded.copy_from_slice(prefix);
        fold::fold(folded);
        let (hash, index) = (hash_key(self.seed, folded), self.index.checked(true));
        let mut candidate = index.first(hash);
        while !candidate.is_none() {
            let damaged = CorruptRecord { at: candidate.at };
            let at = usize::try_from(candidate.at).ok().filter(|&at| at >= self.entries_at);
            let entry = at.and_then(|at| self.section.get(at..)).and_then(split);
            let (found, _) = entry.ok_or(damaged)?;
            if found == folded {
                return Ok(true);
            }
            // Either only the fingerprint is the same, or the slot or its entry is damaged.
            if fingerprint(hash_key(self.seed, found)) != fingerprint(hash) {
                return Err(damaged);
            }
            candidate = index.after(hash, candidate);
        }
        Ok(false)
    }

    /// The prefixes, folded, in ascending order of (hash, prefix). Ends early where the bytes are
    /// damaged.
    #[must_use]
    pub fn iter(&self) -> PrefixIterator<'a> {
        PrefixIterator { left: self.count, entries: self.section.get(self.entries_at..).unwrap_or_default() }
    }

    /// Number of prefixes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are no prefixes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The records of the prefixes from which that of `key` is derived, as far as they are tried.
fn ancestors(key: &[u8]) -> impl Iterator<Item = Handle<'_>> {
    core::iter::successors(Handle(key).parent_prefix_record(), |name| name.parent_prefix_record())
        .take(ANCESTORS_MAX)
}

impl<'a> IntoIterator for HomedTable<'a> {
    type Item = &'a [u8];
    type IntoIter = PrefixIterator<'a>;

    fn into_iter(self) -> PrefixIterator<'a> {
        self.iter()
    }
}

/// Homed prefixes in ascending order of (hash, prefix). See [`HomedTable::iter`].
#[derive(Clone, Copy, Debug)]
pub struct PrefixIterator<'a> {
    left: u64,
    entries: &'a [u8],
}

impl<'a> PrefixIterator<'a> {
    /// The bytes not yet read; at the end of an undamaged table, padding.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.entries
    }
}

impl<'a> Iterator for PrefixIterator<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (prefix, rest) = split(self.entries)?;
        self.entries = rest;
        Some(prefix)
    }
}

/// Splits an entry: two bytes of length, the prefix, zeros up to the next multiple of
/// [`RECORD_ALIGN`].
fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, _) = entry.split_first_chunk()?;
    let len = usize::from(u16::from_le_bytes(*len));
    let (entry, rest) = entry.split_at_checked((2 + len).next_multiple_of(RECORD_ALIGN))?;
    Some((&entry[2..2 + len], rest))
}
