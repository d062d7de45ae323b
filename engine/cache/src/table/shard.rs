//! A shard: two rings, an index, and one writer at a time.

use super::entry::{EntryHead, EntryStamp, HEAD_WORDS, copy_bytes, encode};
use super::ghost::{self, Ghost};
use super::index::{BUCKET_LEN, BUCKET_SLOTS, EntryPointer, Index, NO_SLOT, RingName, Slot};
use super::ring::{OldestEntry, Ring};
use super::{CachedEntry, TableEntry, TableLookup, TableStats, WalkStep};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of memory for which there is a slot in the index. With entries of 190 bytes, six of seven
/// slots are in use; shorter ones displace each other before the rings are full.
const BYTES_PER_SLOT: usize = 192;
/// Slots for which the ghost has one place.
const SLOTS_PER_GHOST: usize = 2;
/// The small ring takes this fraction of the memory of both rings. With a tenth, as in the paper,
/// one request in two hundred more is a miss (`handle-bench cache-trace`).
const SMALL_FRACTION: usize = 30;
/// The longest entry takes this fraction of the small ring.
const ENTRY_FRACTION: usize = 2;
/// Lines of an entry that a lookup starts loading before it needs them.
const PREFETCHED_LINES: usize = 5;
/// Uses in the small ring with which an entry moves to the main ring.
const USES_TO_STAY: u8 = 1;
/// An insertion moves used entries to the head of the main ring instead of evicting them: at most
/// so many times its own words, but as many times [`MOVED_WORDS_MIN`] if it is shorter. After these
/// it evicts used entries too, which bounds the time of an insertion.
const MOVES_MAX: usize = 64;
/// The words of an entry of 512 bytes.
const MOVED_WORDS_MIN: usize = 64;
/// Buckets that a walk reads under the lock at a time. Even, because an entry may be in either of
/// two neighbours.
const BUCKETS_PER_PART: usize = 256;

/// A part of the table.
#[derive(Debug)]
pub(super) struct Shard {
    index: Index,
    small: Ring,
    main: Ring,
    writer: Mutex<ShardWriter>,
    counts: ShardCounts,
}

/// An entry that a reader may copy. The copy is whole if the position is still valid afterwards.
struct ReadableEntry<'s> {
    slot: Slot<'s>,
    ring: &'s Ring,
    position: u64,
    head: EntryHead,
    /// The words of its key and values.
    words: &'s [AtomicU64],
}

/// What only the writer of a shard needs.
#[derive(Debug)]
struct ShardWriter {
    ghost: Ghost,
    /// The words of the entry that is written.
    entry: Vec<u64>,
    /// The words of an entry that moves to the main ring.
    moved: Vec<u64>,
    /// The words of an entry that moves to the head of the main ring.
    moved_in_main: Vec<u64>,
    /// Number of entries in the main ring.
    main_entries: u32,
}

/// Changed only by the writer, read by anyone.
#[derive(Debug, Default)]
struct ShardCounts {
    entries: AtomicU64,
    bytes: AtomicU64,
    insertions: AtomicU64,
    evictions: AtomicU64,
}

fn add(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
}

fn subtract(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Ordering::Relaxed) - n as u64, Ordering::Relaxed);
}

impl Shard {
    /// A shard that takes `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Self {
        // Even, so that every bucket has a neighbour.
        let buckets_count = (bytes / BYTES_PER_SLOT / BUCKET_SLOTS / 2).max(1) * 2;
        let ghost_slots = buckets_count * BUCKET_SLOTS / SLOTS_PER_GHOST;
        let index_len = buckets_count * BUCKET_LEN + ghost_slots * ghost::SLOT_LEN;
        let words = (bytes - index_len) / size_of::<u64>();
        let small = words / SMALL_FRACTION;
        Self {
            index: Index::new(buckets_count),
            small: Ring::new(small),
            main: Ring::new(words - small),
            writer: Mutex::new(ShardWriter {
                ghost: Ghost::new(ghost_slots),
                entry: Vec::new(),
                moved: Vec::new(),
                moved_in_main: Vec::new(),
                main_entries: 0,
            }),
            counts: ShardCounts::default(),
        }
    }

    /// Most words of an entry.
    const fn entry_words_max(&self) -> usize {
        self.small.len() / ENTRY_FRACTION
    }

    pub(super) const fn entry_len_max(&self) -> usize {
        (self.entry_words_max() - HEAD_WORDS) * size_of::<u64>()
    }

    fn writer(&self) -> MutexGuard<'_, ShardWriter> {
        // A panic while writing would leave at worst an entry without a slot.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn ring(&self, name: RingName) -> &Ring {
        match name {
            RingName::Small => &self.small,
            RingName::Main => &self.main,
        }
    }

    #[inline]
    pub(super) fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    #[inline]
    pub(super) fn probe(&self, hash: u64) -> usize {
        self.index.candidates(hash).next().unwrap_or(NO_SLOT)
    }

    #[inline]
    pub(super) fn prefetch_entry(&self, hash: u64, slot: usize) {
        if let Some((_, pointer)) = self.index.candidate(slot, hash) {
            self.ring(pointer.ring).prefetch(pointer.position, PREFETCHED_LINES);
        }
    }

    #[inline]
    pub(super) fn find<'r>(
        &self,
        hash: u64,
        first: usize,
        key_len: usize,
        is_key: impl FnOnce(&[u8]) -> bool,
        buffer: impl FnOnce(usize) -> Option<&'r mut [u8]>,
    ) -> TableLookup<'r> {
        let at_first = self.readable(hash, first, key_len);
        let Some(entry) = at_first.or_else(|| self.search(hash, key_len)) else {
            return TableLookup::Missing;
        };
        let ReadableEntry { slot, ring, position, head, words } = entry;
        let Some(copy) = buffer(head.payload_len()) else { return TableLookup::NoCapacity };
        if !copy_bytes(words, copy) || !ring.is_valid(position) {
            return TableLookup::Missing;
        }
        let (copied_key, values) = copy.split_at_mut(head.key_len);
        if !is_key(copied_key) {
            return TableLookup::Missing;
        }
        TableLookup::Found(CachedEntry { stamp: head.stamp, values, uses: slot.count_use() })
    }

    /// The entry in slot `number`, if it has this hash and a key of so many bytes.
    #[inline]
    fn readable(&self, hash: u64, number: usize, key_len: usize) -> Option<ReadableEntry<'_>> {
        let (slot, EntryPointer { ring, position }) = self.index.candidate(number, hash)?;
        let ring = self.ring(ring);
        let (head, words) = ring.head_at(position, hash)?;
        // The lengths count only if the entry is still valid.
        (head.key_len == key_len && ring.is_valid(position)).then_some(ReadableEntry {
            slot,
            ring,
            position,
            head,
            words,
        })
    }

    /// The entry in any slot. A function of its own, because lookups in stages seldom need it.
    #[cold]
    #[inline(never)]
    fn search(&self, hash: u64, key_len: usize) -> Option<ReadableEntry<'_>> {
        self.index.candidates(hash).find_map(|number| self.readable(hash, number, key_len))
    }

    /// Inserts an entry. If `replaces` is false and there is one already, that one stays.
    pub(super) fn insert(
        &self,
        hash: u64,
        key: &[u8],
        stamp: EntryStamp,
        values: &[u8],
        replaces: bool,
    ) -> bool {
        let mut writer = self.writer();
        let writer = &mut *writer;
        if !replaces && self.slot_of(hash, key).is_some() {
            return false;
        }
        let head = EntryHead::new(hash, key, stamp, values);
        let Some(head) = head.filter(|head| head.words() <= self.entry_words_max()) else {
            self.slot_of(hash, key).inspect(|&(slot, pointer)| self.forget(writer, slot, pointer));
            return false;
        };
        // An entry that is replaced keeps its ring, and its uses but for one: so the uses of an
        // entry that is renewed again and again tell how often it is asked for meanwhile.
        let ring = match self.slot_of(hash, key) {
            Some((_, pointer)) => pointer.ring,
            None if writer.ghost.take(hash, writer.main_entries) => RingName::Main,
            None => RingName::Small,
        };
        self.evict_until_fits(writer, ring, head.words());
        encode(&mut writer.entry, &head, key, values);
        let pointer = EntryPointer { ring, position: self.ring(ring).push(&writer.entry) };
        // Making room may have moved or evicted the entry that is replaced. Until its slot is set
        // to the new place, readers find it.
        let (slot, uses) = match self.slot_of(hash, key) {
            Some((slot, old)) => {
                self.discount(writer, old.ring, &self.head_at(old));
                (slot, slot.uses().saturating_sub(1))
            }
            None => (self.free_slot(writer, hash), 0),
        };
        slot.set(hash, pointer, uses);
        writer.main_entries += u32::from(ring == RingName::Main);
        add(&self.counts.entries, 1);
        add(&self.counts.bytes, head.payload_len());
        add(&self.counts.insertions, 1);
        true
    }

    /// The slot and place of the entry of `key`. Only for the writer.
    fn slot_of(&self, hash: u64, key: &[u8]) -> Option<(Slot<'_>, EntryPointer)> {
        let mut candidates =
            self.index.candidates(hash).filter_map(|number| self.index.candidate(number, hash));
        candidates.find(|&(_, pointer)| {
            let Some((head, words)) = self.ring(pointer.ring).head_at(pointer.position, hash) else {
                return false;
            };
            let mut copy = vec![0; head.key_len];
            head.key_len == key.len() && copy_bytes(words, &mut copy) && copy == key
        })
    }

    /// A slot for the entry with `hash`. If there is none, evicts an entry.
    fn free_slot(&self, writer: &mut ShardWriter, hash: u64) -> Slot<'_> {
        let (slot, displaced) = self.index.slot_for(hash);
        if let Some(displaced) = displaced {
            self.forget(writer, slot, displaced);
            add(&self.counts.evictions, 1);
        }
        slot
    }

    /// Frees the slot of the entry at `pointer`. Its words stay until they are overwritten.
    fn forget(&self, writer: &mut ShardWriter, slot: Slot<'_>, pointer: EntryPointer) {
        slot.clear();
        self.discount(writer, pointer.ring, &self.head_at(pointer));
    }

    /// Takes an entry of `ring` out of the counts.
    fn discount(&self, writer: &mut ShardWriter, ring: RingName, head: &EntryHead) {
        writer.main_entries -= u32::from(ring == RingName::Main);
        subtract(&self.counts.entries, 1);
        subtract(&self.counts.bytes, head.payload_len());
    }

    /// The head of the entry at `pointer`. Only for the writer.
    fn head_at(&self, pointer: EntryPointer) -> EntryHead {
        let head = self.ring(pointer.ring).words_at(pointer.position).and_then(EntryHead::decode);
        head.expect("the index has only valid positions")
    }

    /// Evicts the oldest entries of `ring` until an entry of `words` words fits.
    fn evict_until_fits(&self, writer: &mut ShardWriter, ring: RingName, words: usize) {
        let mut moves_left = MOVES_MAX * words.max(MOVED_WORDS_MIN);
        while !self.ring(ring).has_capacity(words) {
            let Some(oldest) = self.ring(ring).oldest() else { return };
            match ring {
                RingName::Small => self.leave_small(writer, &oldest),
                RingName::Main => self.leave_main(writer, &oldest, &mut moves_left),
            }
        }
    }

    /// Takes the oldest entry out of the small ring, to the main ring if it was used.
    fn leave_small(&self, writer: &mut ShardWriter, oldest: &OldestEntry) {
        let (hash, pointer) =
            (oldest.head.hash, EntryPointer { ring: RingName::Small, position: oldest.position });
        let Some(slot) = self.index.slot_of(hash, pointer) else { return self.small.pop(oldest) };
        // Until the main ring is full for the first time, all entries move there.
        if slot.uses() < USES_TO_STAY && !self.main.has_capacity(oldest.head.words()) {
            self.forget(writer, slot, pointer);
            self.small.pop(oldest);
            writer.ghost.insert(hash);
            add(&self.counts.evictions, 1);
            return;
        }
        let mut moved = std::mem::take(&mut writer.moved);
        self.small.copy(oldest, &mut moved);
        self.evict_until_fits(writer, RingName::Main, moved.len());
        let position = self.main.push(&moved);
        slot.set(hash, EntryPointer { ring: RingName::Main, position }, 0);
        writer.main_entries += 1;
        self.small.pop(oldest);
        writer.moved = moved;
    }

    /// Takes the oldest entry out of the main ring. While words are left that may be moved, an
    /// entry that was used goes back to the head of the ring, with one use less.
    fn leave_main(&self, writer: &mut ShardWriter, oldest: &OldestEntry, moves_left: &mut usize) {
        let (hash, pointer) =
            (oldest.head.hash, EntryPointer { ring: RingName::Main, position: oldest.position });
        let Some(slot) = self.index.slot_of(hash, pointer) else { return self.main.pop(oldest) };
        if slot.uses() == 0 || *moves_left < oldest.head.words() {
            self.forget(writer, slot, pointer);
            self.main.pop(oldest);
            add(&self.counts.evictions, 1);
            return;
        }
        *moves_left -= oldest.head.words();
        let mut moved = std::mem::take(&mut writer.moved_in_main);
        self.main.copy(oldest, &mut moved);
        self.main.pop(oldest);
        if self.main.has_capacity(moved.len()) {
            let position = self.main.push(&moved);
            slot.set(hash, EntryPointer { ring: RingName::Main, position }, slot.uses() - 1);
        } else {
            // It would not fit before the end of the ring, which happens at most once a lap.
            slot.clear();
            self.discount(writer, RingName::Main, &oldest.head);
            add(&self.counts.evictions, 1);
        }
        writer.moved_in_main = moved;
    }

    pub(super) fn remove(&self, hash: u64, key: &[u8]) -> bool {
        let mut writer = self.writer();
        let found = self.slot_of(hash, key);
        found.inspect(|&(slot, pointer)| self.forget(&mut writer, slot, pointer)).is_some()
    }

    pub(super) fn remove_if(&self, is_removed: &mut dyn FnMut(&[u8], EntryStamp) -> bool) -> usize {
        let (mut count, mut bytes) = (0, Vec::new());
        for part in self.index.parts(BUCKETS_PER_PART) {
            let mut writer = self.writer();
            for (slot, pointer) in part {
                let Some(head) = self.read(pointer, &mut bytes) else { continue };
                if is_removed(&bytes[..head.key_len], head.stamp) {
                    self.forget(&mut writer, slot, pointer);
                    count += 1;
                }
            }
        }
        count
    }

    pub(super) fn clear(&self) {
        self.remove_if(&mut |_, _| true);
    }

    pub(super) fn walk(&self, sink: &mut dyn FnMut(WalkStep<'_>)) {
        let mut bytes = Vec::new();
        for part in self.index.parts(BUCKETS_PER_PART) {
            let writer = self.writer();
            for (slot, pointer) in part {
                let Some(head) = self.read(pointer, &mut bytes) else { continue };
                let (key, values) = bytes.split_at(head.key_len);
                sink(WalkStep::Entry(TableEntry { key, stamp: head.stamp, values, uses: slot.uses() }));
            }
            drop(writer);
            sink(WalkStep::Pause);
        }
    }

    /// Copies the key and values of the entry at `pointer`. Only for the writer.
    fn read(&self, pointer: EntryPointer, bytes: &mut Vec<u8>) -> Option<EntryHead> {
        let words = self.ring(pointer.ring).words_at(pointer.position)?;
        let head = EntryHead::decode(words)?;
        bytes.resize(head.payload_len(), 0);
        copy_bytes(words.get(HEAD_WORDS..)?, bytes).then_some(head)
    }

    #[expect(clippy::cast_possible_truncation, reason = "numbers of things in memory")]
    pub(super) fn add_stats(&self, stats: &mut TableStats) {
        let ShardCounts { entries, bytes, insertions, evictions } = &self.counts;
        stats.entries += entries.load(Ordering::Relaxed) as usize;
        stats.bytes += bytes.load(Ordering::Relaxed) as usize;
        stats.insertions += insertions.load(Ordering::Relaxed);
        stats.evictions += evictions.load(Ordering::Relaxed);
    }
}
