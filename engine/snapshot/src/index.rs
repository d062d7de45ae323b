//! The index: buckets of slots in the order of hashes, by which records and homed prefixes are
//! found.

use crate::format::{
    BASE_AT, BASE_BITS, BASE_GOES_ON, BUCKET_LEN, BUCKET_SLOTS, BUCKET_SUM_MASK, DISTANCES_AT,
    PROBE_BUCKETS_MAX, RECORD_ALIGN, bucket, bucket_sum, fingerprint,
};
use crate::prefetch::prefetch_all;

/// A borrowed index. It may be damaged, so every offset that it gives is checked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerIndex<'a> {
    /// All buckets: those that hashes are spread over, and those at the end that take what did not
    /// fit.
    buckets: &'a [[u8; BUCKET_LEN]],
    /// Number of buckets that hashes are spread over.
    spread: u64,
    /// Whether a bucket must match its checksum before a key counts as missing.
    checks: bool,
}

/// The slot that has a fingerprint, if there is one. It has plain numbers and no `Option`: it is
/// kept between the steps of a lookup, and reading as a whole what was written in parts stalls the
/// processor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Candidate {
    /// The offset in the slot; 0 if no slot matches.
    pub at: u64,
    /// Number of slots searched so far; the search continues from here.
    pub slots_seen: u32,
}

impl Candidate {
    /// No slot has the fingerprint.
    pub(crate) const NONE: Self = Self { at: 0, slots_seen: 0 };
    /// A bucket that was searched is damaged. There is no record at this offset, so reading it
    /// reports damage.
    pub(crate) const DAMAGED: Self = Self { at: Self::DAMAGED_AT, slots_seen: 0 };
    const DAMAGED_AT: u64 = 1;

    /// Whether no slot has the fingerprint.
    #[inline]
    pub(crate) const fn is_none(&self) -> bool {
        self.at == 0
    }
}

/// Number of slots after which a search ends.
const SLOTS_SEEN_MAX: usize = PROBE_BUCKETS_MAX * BUCKET_SLOTS;
const _: () = assert!(SLOTS_SEEN_MAX <= u32::MAX as usize, "counted in 32 bits");

impl<'a> LayerIndex<'a> {
    /// An index of the whole buckets in `bytes`. Searches begin in the first `spread` of them.
    pub(crate) const fn new(bytes: &'a [u8], spread: u64) -> Self {
        Self { buckets: bytes.as_chunks().0, spread, checks: false }
    }

    /// The same index, which compares buckets with their checksums before a key counts as missing.
    /// A record that is found needs no such check, because it has the key.
    pub(crate) const fn checked(self, checks: bool) -> Self {
        Self { checks, ..self }
    }

    /// Starts loading the bucket where a search for `hash` begins.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(bucket) = self.bucket(hash, 0) {
            prefetch_all(bucket);
        }
    }

    /// The first slot that has the fingerprint of `hash`.
    #[inline]
    pub(crate) fn first(&self, hash: u64) -> Candidate {
        let Some(bucket) = self.bucket(hash, 0) else { return self.missing() };
        let slots = Slots(bucket);
        let matches = slots.matches(hash);
        if matches == 0 && (slots.goes_on() || self.checks) {
            return self.search(hash, 0, 0);
        }
        slots.candidate(matches, 0)
    }

    /// The first slot after `candidate` that has the fingerprint of `hash`.
    #[cold]
    pub(crate) fn after(&self, hash: u64, candidate: Candidate) -> Candidate {
        let slots_seen = candidate.slots_seen as usize;
        // After the last slot of a bucket, the search ends in this bucket: it may be damaged, or
        // say that no record went on.
        let nth = slots_seen.saturating_sub(1) / BUCKET_SLOTS;
        self.search(hash, nth, slots_seen - nth * BUCKET_SLOTS)
    }

    /// Searches from the slot after the first `seen` of the `nth` bucket. Continues in the next
    /// bucket only while buckets say that a record went on to a later one, and in
    /// [`PROBE_BUCKETS_MAX`] buckets at most.
    #[cold]
    fn search(&self, hash: u64, mut nth: usize, mut seen: usize) -> Candidate {
        while nth < PROBE_BUCKETS_MAX
            && let Some(bucket) = self.bucket(hash, nth)
        {
            let slots = Slots(bucket);
            let matches = slots.matches(hash) & (u32::MAX << seen);
            if matches == 0 && self.checks && !slots.are_whole() {
                return Candidate::DAMAGED;
            }
            if matches != 0 || !slots.goes_on() {
                return slots.candidate(matches, nth);
            }
            (nth, seen) = (nth + 1, 0);
        }
        self.missing()
    }

    /// The offset in the first slot in use from the middle of the index on.
    #[cfg(feature = "std")]
    pub(crate) fn middle(&self) -> Option<u64> {
        let used = self.buckets[self.buckets.len() / 2..].iter().find(|bucket| bucket[..2] != [0; 2])?;
        Some(Slots(used).candidate(1, 0).at)
    }

    /// The result when the search runs out of buckets, which a whole index never causes.
    const fn missing(&self) -> Candidate {
        if self.checks { Candidate::DAMAGED } else { Candidate::NONE }
    }

    #[inline]
    fn bucket(&self, hash: u64, nth: usize) -> Option<&'a [u8; BUCKET_LEN]> {
        self.buckets.get(usize::try_from(bucket(hash, self.spread)).ok()?.checked_add(nth)?)
    }
}

/// The slots of a bucket: fingerprints, distances from a base, and the base, in units of
/// [`RECORD_ALIGN`].
struct Slots<'a>(&'a [u8; BUCKET_LEN]);

impl Slots<'_> {
    /// A bit for each slot that has the fingerprint of `hash`.
    #[inline]
    fn matches(&self, hash: u64) -> u32 {
        let (wanted, (fingerprints, _)) = (fingerprint(hash).to_le_bytes(), self.0.as_chunks::<2>());
        // All slots are compared without a branch for each, because which slot matches is
        // unpredictable.
        let mut matches: u16 = 0;
        for (n, &one) in fingerprints[..BUCKET_SLOTS].iter().enumerate() {
            matches |= u16::from(one == wanted) << n;
        }
        matches.into()
    }

    /// The candidate of the first matching slot in the `nth` bucket of a search.
    #[inline]
    fn candidate(&self, matches: u32, nth: usize) -> Candidate {
        // Without a match the slot does not matter, because the result is masked.
        let n = matches.trailing_zeros() as usize % BUCKET_SLOTS.next_power_of_two();
        let distance = self.0[DISTANCES_AT + 2 * n..].first_chunk().map_or(0, |it| u16::from_le_bytes(*it));
        let units = (self.base() & ((1 << BASE_BITS) - 1)).wrapping_add(distance.into());
        // No record is at 0: the base and the distance are damaged.
        let at =
            if matches == 0 { 0 } else { units.wrapping_mul(RECORD_ALIGN as u64).max(Candidate::DAMAGED_AT) };
        #[expect(clippy::cast_possible_truncation, reason = "see SLOTS_SEEN_MAX")]
        let slots_seen = (nth * BUCKET_SLOTS + n + 1) as u32;
        Candidate { at, slots_seen }
    }

    #[inline]
    fn goes_on(&self) -> bool {
        self.base() & BASE_GOES_ON != 0
    }

    fn are_whole(&self) -> bool {
        (self.base() & BUCKET_SUM_MASK) >> BASE_BITS == bucket_sum(self.0)
    }

    #[inline]
    fn base(&self) -> u64 {
        u64::from_le_bytes(*self.0[BASE_AT..].first_chunk().expect("the last eight bytes of a bucket"))
    }
}
