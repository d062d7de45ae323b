//! Answers, kept for the time to live of their values. RFC 3651 section 3.1.
//!
//! Bounded in bytes; what was not used lately goes first. An answer with all values answers every question about
//! its handle. Certified answers answer plain questions, too; never the other way round.

use crate::service::keeps_s;
use crate::{Answer, Now, Question};
use handle_proto::limit::TTL_MAX_S;
use handle_proto::{ResponseCode, fold};
use hashbrown::HashTable;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bounds of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Most bytes that answers take, with what it takes to find them.
    pub bytes_max: usize,
    /// How long it is remembered that there is no such handle, or no such value, in seconds.
    pub negative_ttl_s: u32,
    /// How long anything is kept, in seconds, whatever its time to live.
    pub ttl_max_s: u32,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { bytes_max: 256 << 20, negative_ttl_s: 30, ttl_max_s: TTL_MAX_S.cast_unsigned() }
    }
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Questions that it answered.
    pub hits: u64,
    /// Questions that it did not.
    pub misses: u64,
    /// Of these, those whose answer had been kept for too long.
    pub expired: u64,
    /// Handles that made room for others.
    pub evicted: u64,
    /// Handles that it has something of.
    pub handles: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

/// Answers by question; shared by threads.
#[derive(Debug)]
pub struct Cache {
    limits: CacheLimits,
    hashers: [RandomState; 2],
    shards: Vec<Mutex<Shard>>,
    shard_bytes_max: usize,
}

/// A part of the handles, behind a lock of its own.
#[derive(Debug, Default)]
struct Shard {
    /// Where in `slots` the handles are.
    places: HashTable<u32>,
    slots: Vec<Option<Slot>>,
    /// Places in `slots` that are empty.
    empty: Vec<u32>,
    /// The place that is looked at next when room is needed.
    hand: usize,
    bytes: usize,
    stats: CacheStats,
}

/// What a handle is known by: two hashes with secret keys of the thread that made the cache. Who does not know the keys
/// cannot look for two handles that have the same, and of a million handles that are there by chance none has that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name([u64; 2]);

/// All that is kept of a handle, in one line of memory: with a million handles, a hit takes as long as the lines that it
/// touches, which are this one and the answer's.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    name: Name,
    first: Entry,
    /// Other choices of values, the newest last; few handles have them.
    #[expect(clippy::box_collection, reason = "one word of the line, where a vector has three")]
    others: Option<Box<Vec<Entry>>>,
    bytes: u32,
    /// Since it was last looked at for room.
    was_used: bool,
}
const _: () = assert!(size_of::<Option<Slot>>() == 64, "one line");

#[derive(Debug)]
struct Entry {
    values_key: Box<[u8]>,
    answer: Arc<Answer>,
    expires_ms: u64,
}

/// Choices of values that are kept of one handle; the oldest makes room.
const ENTRIES_MAX: usize = 8;
/// Most parts; two threads want the same one seldom.
const SHARDS_MAX: usize = 64;
/// Least bytes of a part, so that small caches keep answers of every length that is usual.
const SHARD_BYTES_MIN: usize = 1 << 20;
/// What the tables take for each handle: they double when they are full, so that half of them may be empty.
const SLOT_BYTES: usize = 2 * (size_of::<Option<Slot>>() + 2 * size_of::<u32>());
/// The tables are packed where they have this many times the places that are taken, and so many more: so seldom that it
/// costs nothing for each handle.
const SPARSE: usize = 4;
const SPARSE_MIN: usize = 64;
/// Longest key that is made on the stack; most handles are far shorter.
const KEY_ROOM: usize = 128;

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(limits: CacheLimits) -> Self {
        let shards_count = (limits.bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        Self {
            limits,
            hashers: [RandomState::new(), RandomState::new()],
            shards: (0..shards_count).map(|_| Mutex::default()).collect(),
            shard_bytes_max: limits.bytes_max / shards_count,
        }
    }

    /// The part that is for a handle with this key, and what the handle is known by there.
    fn locked(&self, key: &[u8]) -> (MutexGuard<'_, Shard>, Name) {
        let name = Name(self.hashers.each_ref().map(|hasher| hasher.hash_one(key)));
        // The table of the part takes the other half. The remainder is less than the number of parts.
        let at = usize::from(name.0[1].to_be_bytes()[0]) % self.shards.len();
        (self.shard(at), name)
    }

    fn shard(&self, at: usize) -> MutexGuard<'_, Shard> {
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to `question`, if it is known.
    #[must_use]
    pub fn get(&self, question: &Question, now: Now) -> Option<Arc<Answer>> {
        if !question.is_cacheable() {
            return None;
        }
        let values_key = question.values_key();
        let (answer, is_exact) = with_key(question, |key| {
            let (mut shard, name) = self.locked(key);
            shard.get(name, &values_key, now)
        })?;
        Some(if is_exact { answer } else { Arc::new(answer.selected(question)) })
    }

    /// Keeps the answer to `question` for as long as all its values live, or not at all.
    pub fn put(&self, question: &Question, answer: &Answer, now: Now) {
        let keeps_s = match answer.code {
            ResponseCode::SUCCESS => {
                let values = answer.values().iter();
                values.map(|value| keeps_s(value.ttl, now.unix_s)).min().unwrap_or_default()
            }
            ResponseCode::HANDLE_NOT_FOUND | ResponseCode::VALUES_NOT_FOUND => self.limits.negative_ttl_s,
            _ => 0,
        };
        let keeps_s = keeps_s.min(self.limits.ttl_max_s);
        if keeps_s == 0 || !question.is_cacheable() {
            return;
        }
        let expires_ms = now.ms.saturating_add(u64::from(keeps_s) * 1000);
        let mut answer = answer.clone();
        answer.cached = true;
        let answer = Arc::new(answer);
        self.insert(question, Arc::clone(&answer), expires_ms, now);
        if question.wants.certified {
            let mut plain = question.clone();
            plain.wants.certified = false;
            self.insert(&plain, answer, expires_ms, now);
        }
    }

    fn insert(&self, question: &Question, answer: Arc<Answer>, expires_ms: u64, now: Now) {
        let entry = Entry { values_key: question.values_key().into(), answer, expires_ms };
        with_key(question, |key| {
            let (mut shard, name) = self.locked(key);
            shard.insert(name, entry, self.shard_bytes_max, now);
        });
    }

    /// Forgets all that is known of a handle: it was changed.
    pub fn forget(&self, handle: &[u8]) {
        for certified in [false, true] {
            let mut question = Question::all(handle);
            question.wants.certified = certified;
            with_key(&question, |key| {
                let (mut shard, name) = self.locked(key);
                if let Some(place) = shard.find(name) {
                    shard.drop_slot(place);
                }
            });
        }
    }

    /// What it has done so far, and has now.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for at in 0..self.shards.len() {
            let shard = self.shard(at);
            sum.hits += shard.stats.hits;
            sum.misses += shard.stats.misses;
            sum.expired += shard.stats.expired;
            sum.evicted += shard.stats.evicted;
            sum.handles += shard.places.len() as u64;
            sum.bytes += shard.bytes as u64;
        }
        sum
    }
}

/// Bytes of all that is kept of one handle.
fn bytes_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("so many messages are far from 4 GiB")
}

/// Calls `with` with what the handle of `question` is known by, as [`Question::handle_key`] has it, without asking for
/// memory where it is short.
fn with_key<T>(question: &Question, with: impl FnOnce(&[u8]) -> T) -> T {
    let name = &question.handle;
    let mut room = [0; KEY_ROOM];
    match room.get_mut(..=name.len()) {
        Some(key) => {
            key[..name.len()].copy_from_slice(name);
            fold::fold(&mut key[..question.handle().folds_len()]);
            key[name.len()] = u8::from(question.wants.certified);
            with(key)
        }
        None => with(&question.handle_key()),
    }
}

impl Entry {
    fn memory(&self) -> usize {
        size_of::<Self>() + self.values_key.len() + self.answer.memory()
    }

    const fn is_alive(&self, now: Now) -> bool {
        now.ms < self.expires_ms
    }
}

impl Slot {
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::once(&self.first).chain(self.others.iter().flat_map(|others| others.iter()))
    }

    fn memory(&self) -> usize {
        SLOT_BYTES + self.entries().map(Entry::memory).sum::<usize>()
    }

    /// The answer to a choice of values, and whether it is one to just this choice.
    fn answer(&self, values_key: &[u8], now: Now) -> Option<(&Arc<Answer>, bool)> {
        let is_alive = |entry: &&Entry| entry.is_alive(now);
        let exact = self.entries().find(|entry| *entry.values_key == *values_key).filter(is_alive);
        let found =
            exact.or_else(|| self.entries().filter(is_alive).find(|entry| entry.values_key.is_empty()))?;
        Some((&found.answer, exact.is_some()))
    }

    fn keep(&mut self, entry: Entry) {
        if self.first.values_key == entry.values_key {
            self.first = entry;
            return;
        }
        let others = self.others.get_or_insert_default();
        others.retain(|known| known.values_key != entry.values_key);
        if others.len() + 1 == ENTRIES_MAX {
            self.first = others.remove(0);
        }
        others.push(entry);
    }
}

impl Shard {
    fn find(&self, name: Name) -> Option<u32> {
        let is_it = |place: &u32| self.slot(*place).is_some_and(|slot| slot.name == name);
        self.places.find(name.0[0], is_it).copied()
    }

    fn slot(&self, place: u32) -> Option<&Slot> {
        self.slots.get(place as usize)?.as_ref()
    }

    fn slot_mut(&mut self, place: u32) -> Option<&mut Slot> {
        self.slots.get_mut(place as usize)?.as_mut()
    }

    fn get(&mut self, name: Name, values_key: &[u8], now: Now) -> Option<(Arc<Answer>, bool)> {
        let place = self.find(name);
        let Some(slot) = place.and_then(|place| self.slot_mut(place)) else {
            self.stats.misses += 1;
            return None;
        };
        let found = slot.answer(values_key, now).map(|(answer, is_exact)| (Arc::clone(answer), is_exact));
        match &found {
            Some(_) => {
                slot.was_used = true;
                self.stats.hits += 1;
            }
            None => {
                let was_known = slot.entries().any(|entry| *entry.values_key == *values_key);
                self.stats.expired += u64::from(was_known);
                self.stats.misses += 1;
            }
        }
        found
    }

    fn insert(&mut self, name: Name, entry: Entry, bytes_max: usize, now: Now) {
        let needed = SLOT_BYTES + entry.memory();
        if needed > bytes_max {
            return;
        }
        if let Some(slot) = self.find(name).and_then(|place| self.slot_mut(place)) {
            let before = slot.bytes;
            slot.keep(entry);
            let after = slot.memory();
            (slot.bytes, slot.was_used) = (bytes_u32(after), true);
            self.bytes = self.bytes - before as usize + after;
            self.make_room(bytes_max, now);
            return;
        }
        // First the room: what makes place is behind the hand then, and what is new comes there.
        self.make_room(bytes_max - needed, now);
        let slot = Slot { name, first: entry, others: None, bytes: bytes_u32(needed), was_used: false };
        let place = self.empty.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("each takes more bytes than an address has bits")
        });
        self.slots[place as usize] = Some(slot);
        self.bytes += needed;
        let slots = &self.slots;
        let hash_of = |place: &u32| slots[*place as usize].as_ref().map_or(0, |slot| slot.name.0[0]);
        self.places.insert_unique(name.0[0], place, hash_of);
    }

    /// Looks at handles in turn until no more than `bytes_max` are taken: what was used since the last time, and has
    /// not expired, stays for one more round.
    fn make_room(&mut self, bytes_max: usize, now: Now) {
        while self.bytes > bytes_max {
            self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
            let place = self.hand;
            self.hand += 1;
            match &mut self.slots[place] {
                Some(slot) if slot.was_used && slot.entries().any(|entry| entry.is_alive(now)) => {
                    slot.was_used = false;
                }
                Some(_) => {
                    self.drop_slot(u32::try_from(place).expect("a place of a slot"));
                    self.stats.evicted += 1;
                }
                None => {}
            }
        }
        // Few long answers may have taken the place of many short ones.
        if self.slots.len() > SPARSE * self.places.len() + SPARSE_MIN {
            self.pack();
        }
    }

    /// Gives back what the tables took for handles that are gone.
    fn pack(&mut self) {
        self.slots.retain(Option::is_some);
        self.slots.shrink_to_fit();
        (self.empty, self.hand) = (vec![], 0);
        self.places = HashTable::with_capacity(self.slots.len());
        let slots = &self.slots;
        let hash_of = |place: &u32| slots[*place as usize].as_ref().map_or(0, |slot| slot.name.0[0]);
        for place in (0_u32..).take(slots.len()) {
            self.places.insert_unique(hash_of(&place), place, hash_of);
        }
    }

    fn drop_slot(&mut self, place: u32) {
        let Some(slot) = self.slots.get_mut(place as usize).and_then(Option::take) else { return };
        if let Ok(found) = self.places.find_entry(slot.name.0[0], |&known| known == place) {
            found.remove();
        }
        self.bytes -= slot.bytes as usize;
        self.empty.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Value;
    use handle_proto::value::Ttl;

    fn now(ms: u64) -> Now {
        Now { ms, unix_s: 1_700_000_000 }
    }

    fn value(index: i32, kind: &'static [u8], ttl_s: i32) -> Value<'static> {
        Value { ttl: Ttl::relative(ttl_s), ..Value::new(index, kind, b"data") }
    }

    fn answer(handle: &str, values: &[Value<'static>]) -> Answer {
        Answer::new(handle.as_bytes(), ResponseCode::SUCCESS, values.iter().copied())
    }

    fn cache(bytes_max: usize) -> Cache {
        Cache::new(CacheLimits { bytes_max, ..CacheLimits::default() })
    }

    #[test]
    fn an_answer_lives_as_long_as_its_shortest_value_to_the_millisecond() {
        let (cache, question) = (cache(1 << 20), Question::all(b"a/b"));
        cache.put(&question, &answer("a/b", &[value(1, b"URL", 60), value(2, b"URL", 7)]), now(500));
        assert!(cache.get(&question, now(7_499)).is_some());
        assert!(cache.get(&question, now(7_500)).is_none());
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.expired, stats.handles), (1, 1, 1, 1));
        cache.put(&question, &answer("a/b", &[value(1, b"URL", 0)]), now(8_000));
        assert!(cache.get(&question, now(8_000)).is_none(), "a time of 0 is not kept");
    }

    #[test]
    fn nothing_is_kept_for_longer_than_the_limit() {
        let cache = Cache::new(CacheLimits { ttl_max_s: 5, ..CacheLimits::default() });
        let none = Answer::new(b"a/c", ResponseCode::HANDLE_NOT_FOUND, []);
        for (handle, answer) in [("a/b", answer("a/b", &[value(1, b"URL", 60)])), ("a/c", none)] {
            let question = Question::all(handle.as_bytes());
            cache.put(&question, &answer, now(0));
            assert!(cache.get(&question, now(4_999)).is_some(), "{handle}");
            assert!(cache.get(&question, now(5_000)).is_none(), "{handle}");
        }
    }

    #[test]
    fn all_values_answer_every_question_about_the_handle() {
        let cache = cache(1 << 20);
        cache.put(
            &Question::all(b"a/b"),
            &answer("a/b", &[value(1, b"URL", 60), value(2, b"EMAIL", 60)]),
            now(0),
        );
        let found = cache.get(&Question::of_types(b"A/b", &[b"email"]), now(1)).unwrap();
        assert_eq!(found.values().iter().map(|value| value.index).collect::<Vec<_>>(), [2]);
        let none = cache.get(&Question::of_types(b"a/b", &[b"DESC"]), now(1)).unwrap();
        assert_eq!(none.code, ResponseCode::VALUES_NOT_FOUND);
        assert!(cache.get(&Question::all(b"a/B"), now(1)).is_none(), "local names may be told apart");
        // Some do not answer for all.
        cache.put(&Question::of_types(b"a/c", &[b"URL"]), &answer("a/c", &[value(1, b"URL", 60)]), now(0));
        assert!(cache.get(&Question::all(b"a/c"), now(1)).is_none());
        assert!(cache.get(&Question::of_types(b"a/c", &[b"url"]), now(1)).is_some());
    }

    #[test]
    fn plain_answers_do_not_answer_certified_questions() {
        let cache = cache(1 << 20);
        let plain = Question::all(b"a/b");
        let mut certified = plain.clone();
        certified.wants.certified = true;
        cache.put(&plain, &answer("a/b", &[value(1, b"URL", 60)]), now(0));
        assert!(cache.get(&certified, now(1)).is_none());
        cache.put(&certified, &answer("a/b", &[value(2, b"URL", 60)]), now(1));
        assert_eq!(cache.get(&plain, now(2)).unwrap().values().iter().next().unwrap().index, 2);
    }

    #[test]
    fn what_is_not_there_is_remembered_for_a_while() {
        let (cache, question) = (cache(1 << 20), Question::all(b"a/b"));
        let none = |code| Answer::new(b"a/b", code, []);
        cache.put(&question, &none(ResponseCode::HANDLE_NOT_FOUND), now(0));
        assert_eq!(cache.get(&question, now(29_999)).unwrap().code, ResponseCode::HANDLE_NOT_FOUND);
        assert!(cache.get(&question, now(30_000)).is_none());
        cache.put(&question, &none(ResponseCode::ERROR), now(40_000));
        assert!(cache.get(&question, now(40_000)).is_none());
    }

    #[test]
    fn authoritative_and_private_answers_are_not_kept() {
        let cache = cache(1 << 20);
        for wants in [(true, true), (false, false)] {
            let mut question = Question::all(b"a/b");
            (question.wants.authoritative, question.wants.public_only) = wants;
            cache.put(&question, &answer("a/b", &[value(1, b"URL", 60)]), now(0));
            assert!(cache.get(&question, now(1)).is_none());
        }
        assert_eq!(cache.stats().handles, 0);
    }

    #[test]
    fn bytes_are_bounded_and_what_is_used_stays() {
        let bytes_max = 64 << 10;
        let cache = cache(bytes_max);
        let used = Question::all(b"a/used");
        cache.put(&used, &answer("a/used", &[value(1, b"URL", 60)]), now(0));
        for number in 0..10_000 {
            let handle = format!("a/{number}");
            cache.put(&Question::all(handle.as_bytes()), &answer(&handle, &[value(1, b"URL", 60)]), now(0));
            assert!(cache.get(&used, now(1)).is_some(), "after {number}");
            assert!(cache.stats().bytes <= bytes_max as u64, "after {number}");
        }
        let stats = cache.stats();
        assert_eq!(stats.evicted + stats.handles, 10_001);
        assert!(stats.handles > 50, "{stats:?}");
        let huge = Answer::new(b"a/huge", ResponseCode::SUCCESS, [Value::new(1, b"URL", &[0; 64 << 10])]);
        cache.put(&Question::all(b"a/huge"), &huge, now(0));
        assert!(cache.get(&Question::all(b"a/huge"), now(0)).is_none(), "larger than all of it");
        assert!(cache.get(&used, now(1)).is_some(), "and nothing went for it");
    }

    #[test]
    fn tables_for_many_short_answers_make_room_for_long_ones() {
        let cache = cache(256 << 10);
        let put = |handle: String, data: &[u8]| {
            let value = Value { ttl: Ttl::relative(60), ..Value::new(1, b"URL", data) };
            let answer = Answer::new(handle.as_bytes(), ResponseCode::SUCCESS, [value]);
            cache.put(&Question::all(handle.as_bytes()), &answer, now(0));
        };
        (0..1_000).for_each(|number| put(format!("a/{number}"), b""));
        (0..100).for_each(|number| put(format!("b/{number}"), &[0; 32 << 10]));
        let handles = usize::try_from(cache.stats().handles).unwrap();
        let shard = cache.shard(0);
        assert!(handles < 10 && shard.slots.len() <= SPARSE * handles + SPARSE_MIN, "{handles}");
        assert!(shard.places.capacity() < 256, "{}", shard.places.capacity());
        drop(shard);
        let is_known =
            |number: &usize| cache.get(&Question::all(format!("b/{number}").as_bytes()), now(1)).is_some();
        assert_eq!((0..100).filter(is_known).count(), handles);
    }

    #[test]
    fn many_parts_are_bounded_together() {
        let bytes_max = 3 << 20;
        let cache = cache(bytes_max);
        assert_eq!(cache.shards.len(), 3);
        for number in 0..20_000 {
            let handle = format!("a/{number}");
            cache.put(&Question::all(handle.as_bytes()), &answer(&handle, &[value(1, b"URL", 60)]), now(0));
        }
        let stats = cache.stats();
        assert!(stats.bytes <= bytes_max as u64 && stats.bytes > 2 << 20, "{stats:?}");
        assert_eq!(stats.evicted + stats.handles, 20_000);
    }

    #[test]
    fn what_has_expired_goes_first_however_much_it_was_used() {
        let cache = cache(64 << 10);
        let (old, new) = (Question::all(b"a/old"), Question::all(b"a/new"));
        cache.put(&old, &answer("a/old", &[value(1, b"URL", 1)]), now(0));
        cache.put(&new, &answer("a/new", &[value(1, b"URL", 60)]), now(0));
        assert!(cache.get(&old, now(999)).is_some() && cache.get(&new, now(999)).is_some());
        let mut number = 0_usize;
        while cache.stats().evicted == 0 {
            let handle = format!("a/{number}");
            cache.put(
                &Question::all(handle.as_bytes()),
                &answer(&handle, &[value(1, b"URL", 60)]),
                now(1_000),
            );
            number += 1;
        }
        // As nobody else was used, the hand has gone no further than to the one that had expired.
        let is_kept = |number: &usize| cache.get(&Question::all(format!("a/{number}")), now(1_000)).is_some();
        assert_eq!((0..number).filter(is_kept).count(), number);
        assert!(cache.get(&new, now(1_000)).is_some());
    }

    #[test]
    fn long_names_are_known_as_short_ones_are() {
        let cache = cache(1 << 20);
        for len in [KEY_ROOM - 2, KEY_ROOM - 1, KEY_ROOM, 4 * KEY_ROOM] {
            let spelt = |prefix: &str| format!("{prefix}/{}", "x".repeat(len - 2));
            let (known, asked) = (spelt("a"), spelt("A"));
            cache.put(&Question::all(known.as_bytes()), &answer(&known, &[value(1, b"URL", 60)]), now(0));
            assert!(cache.get(&Question::all(asked.as_bytes()), now(1)).is_some(), "{len} bytes");
            with_key(&Question::all(asked.as_bytes()), |key| {
                assert_eq!(key, Question::all(known.as_bytes()).handle_key(), "{len} bytes");
            });
        }
    }

    #[test]
    fn a_changed_handle_is_forgotten_in_every_form() {
        let cache = cache(1 << 20);
        let mut question = Question::of_types(b"a/b", &[b"URL"]);
        for certified in [false, true] {
            question.wants.certified = certified;
            cache.put(&question, &answer("a/b", &[value(1, b"URL", 60)]), now(0));
        }
        cache.forget(b"A/b");
        assert!(cache.get(&question, now(1)).is_none());
        let stats = cache.stats();
        assert_eq!((stats.handles, stats.bytes), (0, 0));
    }

    #[test]
    fn so_many_choices_of_values_are_kept_of_a_handle() {
        let cache = cache(1 << 20);
        let question = |index| Question { indexes: vec![index], ..Question::all(b"a/b") };
        (1..=9).for_each(|index| {
            cache.put(&question(index), &answer("a/b", &[value(index, b"URL", 60)]), now(0));
        });
        assert!(cache.get(&question(1), now(1)).is_none());
        assert!((2..=9).all(|index| cache.get(&question(index), now(1)).is_some()));
    }
}
