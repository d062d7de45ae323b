//! Buckets of slots in order of hashes: how records and homed prefixes are found.

use crate::format::{
    BASE_AT, BASE_BITS, BASE_GOES_ON, BUCKET_LEN, BUCKET_SLOTS, BUCKET_SUM_MASK, DISTANCES_AT,
    PROBE_BUCKETS_MAX, RECORD_ALIGN, bucket, bucket_sum, fingerprint,
};
use crate::prefetch::prefetch_all;

/// An index, borrowed. It may lie about the bytes around it; every read is checked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerIndex<'a> {
    /// All buckets: those that hashes are spread over, and the ones at the end that took what did not fit.
    buckets: &'a [[u8; BUCKET_LEN]],
    /// Buckets that hashes are spread over.
    spread: u64,
    /// Whether a bucket must match its checksum before it is believed that something is not in it.
    checks: bool,
}

/// What a fingerprint found, if anything. Numbers and no `Option`: this is kept between the steps of a lookup, and
/// what is written in pieces and read as a whole makes the processor wait for all that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Candidate {
    /// Where the slot points; 0 for nothing.
    pub at: u64,
    /// How many slots were looked at to find it; a search goes on from here.
    pub slots_seen: u32,
}

impl Candidate {
    /// Nothing has the fingerprint.
    pub(crate) const NONE: Self = Self { at: 0, slots_seen: 0 };
    /// A bucket on the way is damaged. There is no record at this offset, so whoever reads it finds damage.
    pub(crate) const DAMAGED: Self = Self { at: 1, slots_seen: 0 };

    /// Whether nothing has it.
    #[inline]
    pub(crate) const fn is_none(&self) -> bool {
        self.at == 0
    }
}

/// Slots looked at once a search has seen all it may.
const SLOTS_SEEN_MAX: usize = PROBE_BUCKETS_MAX * BUCKET_SLOTS;
const _: () = assert!(SLOTS_SEEN_MAX <= u32::MAX as usize, "counted in 32 bits");

impl<'a> LayerIndex<'a> {
    /// An index of the whole buckets in `bytes`, `spread` of which are where searches begin.
    pub(crate) const fn new(bytes: &'a [u8], spread: u64) -> Self {
        Self { buckets: bytes.as_chunks().0, spread, checks: false }
    }

    /// The same, that compares buckets with their checksums before it says that something is not there. What is
    /// found needs no such check: it has the key.
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
            return self.search(hash, 0);
        }
        slots.candidate(matches, 0)
    }

    /// The first slot after `candidate` that has the fingerprint of `hash`.
    #[cold]
    pub(crate) fn after(&self, hash: u64, candidate: Candidate) -> Candidate {
        self.search(hash, candidate.slots_seen as usize)
    }

    /// Looks on in the next bucket only while buckets say that something is there, and in [`PROBE_BUCKETS_MAX`] at most.
    #[cold]
    fn search(&self, hash: u64, slots_seen: usize) -> Candidate {
        let (mut nth, mut seen) = (slots_seen / BUCKET_SLOTS, slots_seen % BUCKET_SLOTS);
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

    /// There is no such bucket, or none that may be looked at: never in an index that is whole.
    const fn missing(&self) -> Candidate {
        if self.checks { Candidate::DAMAGED } else { Candidate::NONE }
    }

    #[inline]
    fn bucket(&self, hash: u64, nth: usize) -> Option<&'a [u8; BUCKET_LEN]> {
        self.buckets.get(usize::try_from(bucket(hash, self.spread)).ok()?.checked_add(nth)?)
    }
}

/// The slots of a bucket: fingerprints, distances from a base, and the base, in units of [`RECORD_ALIGN`].
struct Slots<'a>(&'a [u8; BUCKET_LEN]);

impl Slots<'_> {
    /// A bit for each slot with the fingerprint of `hash`.
    #[inline]
    fn matches(&self, hash: u64) -> u32 {
        let (wanted, (fingerprints, _)) = (fingerprint(hash).to_le_bytes(), self.0.as_chunks::<2>());
        // All slots, without a branch for each: which one it is cannot be foretold.
        let mut matches: u16 = 0;
        for (n, &one) in fingerprints[..BUCKET_SLOTS].iter().enumerate() {
            matches |= u16::from(one == wanted) << n;
        }
        matches.into()
    }

    /// What the first of the matching slots of the `nth` bucket of a search points to.
    #[inline]
    fn candidate(&self, matches: u32, nth: usize) -> Candidate {
        // Without a match, any slot will do, and is masked.
        let n = matches.trailing_zeros() as usize % BUCKET_SLOTS.next_power_of_two();
        let distance = self.0[DISTANCES_AT + 2 * n..].first_chunk().map_or(0, |it| u16::from_le_bytes(*it));
        let units = (self.base() & ((1 << BASE_BITS) - 1)).wrapping_add(distance.into());
        let at = if matches == 0 { 0 } else { units.wrapping_mul(RECORD_ALIGN as u64) };
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
