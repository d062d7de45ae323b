//! Buckets of slots in order of hashes: how records and homed prefixes are found.

use crate::format::{BUCKET_LEN, BUCKET_SLOTS, PROBE_BUCKETS_MAX, bucket, fingerprint, slot_at};
use crate::prefetch::prefetch;

/// Where an index is. It may lie about the bytes around it; every read is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Index {
    /// Offset of the first bucket in the bytes given to each method.
    pub at: usize,
    /// Buckets that hashes are spread over.
    pub buckets: u64,
    /// All buckets: those, and the ones at the end that took what did not fit.
    pub buckets_all: u64,
}

/// What a fingerprint found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Where the slot points.
    pub at: u64,
    /// How many slots were looked at to find it; a search goes on from here.
    pub slots_seen: usize,
}

impl Index {
    fn bucket_at(&self, hash: u64, nth: usize) -> Option<usize> {
        let bucket = bucket(hash, self.buckets) + nth as u64;
        if nth >= PROBE_BUCKETS_MAX || bucket >= self.buckets_all {
            return None;
        }
        self.at.checked_add(usize::try_from(bucket).ok()?.checked_mul(BUCKET_LEN)?)
    }

    /// Starts loading the bucket where a search for `hash` begins.
    #[inline]
    pub(crate) fn prefetch(&self, bytes: &[u8], hash: u64) {
        if let Some(at) = self.bucket_at(hash, 0) {
            prefetch(bytes, at, 1);
        }
    }

    /// The first slot after `slots_seen` that has the fingerprint of `hash`.
    ///
    /// Looks on in the next bucket only while buckets are full, and in [`PROBE_BUCKETS_MAX`] at most.
    #[inline]
    pub(crate) fn search(&self, bytes: &[u8], hash: u64, slots_seen: usize) -> Option<Candidate> {
        let wanted = fingerprint(hash);
        let mut nth = slots_seen / BUCKET_SLOTS;
        let mut seen = slots_seen % BUCKET_SLOTS;
        loop {
            let at = self.bucket_at(hash, nth)?;
            let bucket: &[u8; BUCKET_LEN] = bytes.get(at..)?.first_chunk()?;
            let slots: [u64; BUCKET_SLOTS] = core::array::from_fn(|n| {
                u64::from_le_bytes(*bucket[n * 8..].first_chunk().expect("eight slots of eight bytes"))
            });
            // All slots, without a branch for each: which one it is cannot be predicted.
            let mut matches = 0u32;
            for (n, &slot) in slots.iter().enumerate() {
                matches |= u32::from(fingerprint(slot) == wanted) << n;
            }
            matches &= u32::MAX << seen;
            if matches != 0 {
                let n = matches.trailing_zeros() as usize;
                let slot = slots[n];
                // Slots fill from the front, so behind an empty one there is nothing.
                let candidate = Candidate { at: slot_at(slot), slots_seen: nth * BUCKET_SLOTS + n + 1 };
                return (slot != 0).then_some(candidate);
            }
            if slots[BUCKET_SLOTS - 1] == 0 {
                return None;
            }
            nth += 1;
            seen = 0;
        }
    }
}
