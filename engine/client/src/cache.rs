//! Answers, cached for the time to live of their values. RFC 3651 section 3.1.
//!
//! The cache is bounded in bytes, and evicts answers that were not used recently. An answer with
//! all values answers every question about its handle. Certified answers answer plain questions
//! too; plain answers never answer certified questions.
//!
//! An expired answer can be kept for some time, for callers that serve it while they renew it, or
//! when no server answers ([`Cache::get_stale`]). A value with an absolute time to live is never
//! served after that time.

mod entry;
mod table;

pub use entry::SharedAnswer;

use crate::service::keeps_s;
use crate::{ClockReading, LookupAnswer, Question};
use entry::{CacheEntry, CacheKey, EntryLifetime};
use handle_proto::limit::TTL_MAX_S;
use handle_proto::value::Ttl;
use handle_proto::{ResponseCode, fold};
use siphasher::sip128::SipHasher13;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::{CacheTable, SLOT_BYTES};

/// Bounds of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Most bytes of answers, including the table to find them.
    pub bytes_max: usize,
    /// Seconds for which a negative answer (no such handle or value) is kept.
    pub negative_ttl_s: u32,
    /// Most seconds for which any answer is kept, whatever its time to live.
    pub ttl_max_s: u32,
    /// Seconds for which [`Cache::get_stale`] returns an expired answer with values.
    pub stale_s: u32,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { bytes_max: 256 << 20, negative_ttl_s: 30, ttl_max_s: TTL_MAX_S.cast_unsigned(), stale_s: 0 }
    }
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Questions that were answered.
    pub hits: u64,
    /// Questions that were not answered.
    pub misses: u64,
    /// Misses whose answer had expired.
    pub expired: u64,
    /// Answers that were evicted.
    pub evicted: u64,
    /// Handles with at least one answer.
    pub handles: u64,
    /// Bytes that the answers take.
    pub bytes: u64,
}

/// An expired answer.
#[derive(Clone, Debug)]
pub struct StaleAnswer {
    /// The answer.
    pub answer: SharedAnswer,
    /// Milliseconds since it expired.
    pub expired_ms: u64,
}

/// Answers by question. The cache can be shared by threads.
#[derive(Debug)]
pub struct Cache {
    limits: CacheLimits,
    namer: Namer,
    shards: Vec<CachePart>,
    shard_bytes_max: usize,
}

/// Hashes handles, with a secret random key.
struct Namer(SipHasher13);

/// A shard of the cache with its own lock, aligned so that two threads on different shards share no
/// cache lines. Lock, table and counters are in one line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePart(Mutex<CacheShard>);

#[derive(Debug, Default)]
#[repr(C)]
struct CacheShard {
    /// Answers by name. The answers of one handle, one for each choice of values, have the same
    /// name.
    table: CacheTable,
    stats: CacheStats,
    /// The slot that is examined next when capacity is needed.
    hand: usize,
    inserted: u64,
}

/// Most choices of values that are kept for one handle; the oldest is evicted.
const ENTRIES_MAX: usize = 8;
/// Most shards; two threads rarely want the same one.
const SHARDS_MAX: usize = 256;
/// Fewest bytes of a shard, so that small caches can keep answers of all typical lengths.
const SHARD_BYTES_MIN: usize = 1 << 20;
/// Longest key that is made on the stack; most handles are far shorter.
const KEY_CAPACITY: usize = 128;

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(limits: CacheLimits) -> Self {
        let shards_count = (limits.bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        Self {
            limits,
            namer: Namer::new(),
            shards: (0..shards_count).map(|_| CachePart::default()).collect(),
            shard_bytes_max: limits.bytes_max / shards_count,
        }
    }

    /// The shard for a handle with this key, and the name of the handle in it.
    fn locked(&self, key: &[u8]) -> (MutexGuard<'_, CacheShard>, CacheKey) {
        let name = self.namer.name(key);
        // The table of the shard uses the other half, and the last byte of this one. All shards are
        // equally likely.
        let [a, b, ..] = name.0[1].to_be_bytes();
        let at = (usize::from(u16::from_be_bytes([a, b])) * self.shards.len()) >> u16::BITS;
        (self.shard(at), name)
    }

    fn shard(&self, at: usize) -> MutexGuard<'_, CacheShard> {
        self.shards[at].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached answer to `question`.
    #[must_use]
    pub fn get(&self, question: &Question, now: ClockReading) -> Option<SharedAnswer> {
        if !question.is_cacheable() {
            return None;
        }
        let values_key = question.values_key();
        let (answer, is_exact) = with_key(question, |key| {
            let (mut shard, name) = self.locked(key);
            shard.get(name, &values_key, now)
        })?;
        Some(if is_exact { answer } else { answer.selected(question).into() })
    }

    /// The expired answer to `question`, if there is one and no current one. The counters of hits
    /// and misses do not change.
    #[must_use]
    pub fn get_stale(&self, question: &Question, now: ClockReading) -> Option<StaleAnswer> {
        let stale_ms = u64::from(self.limits.stale_s) * 1000;
        if stale_ms == 0 || !question.is_cacheable() {
            return None;
        }
        let values_key = question.values_key();
        let (answer, expired_ms) = with_key(question, |key| {
            let (shard, name) = self.locked(key);
            shard.get_stale(name, &values_key, now, stale_ms)
        })?;
        Some(StaleAnswer { answer: answer.selected(question).into(), expired_ms })
    }

    /// Keeps the answer to `question` until its first value expires, if it may be kept at all.
    pub fn put(&self, question: &Question, answer: &LookupAnswer, now: ClockReading) {
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
        let lifetime = EntryLifetime { expires_ms, ends_unix_s: ends_unix_s(answer) };
        self.insert(question, answer, lifetime, now);
        if question.wants.certified {
            let mut plain = question.clone();
            plain.wants.certified = false;
            self.insert(&plain, answer, lifetime, now);
        }
    }

    fn insert(&self, question: &Question, answer: &LookupAnswer, lifetime: EntryLifetime, now: ClockReading) {
        let mut answer = answer.clone();
        (answer.cached, answer.cached_at_ms) = (true, now.ms);
        let values_key = question.values_key().into();
        with_key(question, |key| {
            let (mut shard, name) = self.locked(key);
            shard.insert(CacheEntry::new(name, values_key, answer, lifetime), self.shard_bytes_max, now);
        });
    }

    /// Drops everything about a handle, because it was changed.
    pub fn forget(&self, handle: &[u8]) {
        for certified in [false, true] {
            let mut question = Question::all(handle);
            question.wants.certified = certified;
            with_key(&question, |key| {
                let (mut shard, name) = self.locked(key);
                shard.forget(name);
            });
        }
    }

    /// Drops everything. The counters stay.
    pub fn clear(&self) {
        for at in 0..self.shards.len() {
            let mut shard = self.shard(at);
            let stats = CacheStats { handles: 0, bytes: 0, ..shard.stats };
            *shard = CacheShard { stats, ..CacheShard::default() };
        }
    }

    /// The counters, and the current size.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for at in 0..self.shards.len() {
            let shard = self.shard(at);
            sum.hits += shard.stats.hits;
            sum.misses += shard.stats.misses;
            sum.expired += shard.stats.expired;
            sum.evicted += shard.stats.evicted;
            sum.handles += shard.stats.handles;
            sum.bytes += shard.stats.bytes;
        }
        sum
    }
}

/// The end of the first value with an absolute time to live, in Unix seconds.
fn ends_unix_s(answer: &LookupAnswer) -> u32 {
    let absolute = answer.values().iter().filter(|value| value.ttl.kind != Ttl::RELATIVE);
    let ends = absolute.map(|value| u32::try_from(value.ttl.seconds).unwrap_or_default());
    ends.min().unwrap_or(u32::MAX)
}

impl Namer {
    fn new() -> Self {
        // The output of a hash with a secret key is as secret as the key.
        let [one, other] = [(); 2].map(|()| RandomState::new().hash_one(0));
        Self(SipHasher13::new_with_keys(one, other))
    }

    fn name(&self, key: &[u8]) -> CacheKey {
        let hash = self.0.hash(key);
        CacheKey([hash.h1, hash.h2])
    }
}

/// Omits the key.
impl fmt::Debug for Namer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namer").finish_non_exhaustive()
    }
}

/// Calls `with` with the key of the handle of `question`, as [`Question::handle_key`] makes it.
/// Short keys are made without allocation.
fn with_key<T>(question: &Question, with: impl FnOnce(&[u8]) -> T) -> T {
    let name = &question.handle;
    let mut buffer = [0; KEY_CAPACITY];
    match buffer.get_mut(..=name.len()) {
        Some(key) => {
            key[..name.len()].copy_from_slice(name);
            fold::fold(&mut key[..question.handle().folds_len()]);
            key[name.len()] = u8::from(question.wants.certified);
            with(key)
        }
        None => with(&question.handle_key()),
    }
}

impl CacheShard {
    fn get(&mut self, name: CacheKey, values_key: &[u8], now: ClockReading) -> Option<(SharedAnswer, bool)> {
        let exact = self.table.find(name, |kept| kept.is_to(values_key));
        let alive = exact.filter(|kept| kept.is_alive(now));
        let found = match (alive, values_key) {
            (None, [_, ..]) => self.table.find(name, |kept| kept.is_for_all() && kept.is_alive(now)),
            _ => alive,
        };
        let Some(found) = found else {
            self.stats.expired += u64::from(exact.is_some());
            self.stats.misses += 1;
            return None;
        };
        let answer = SharedAnswer::of(Arc::clone(found));
        found.note_used();
        self.stats.hits += 1;
        Some((answer, alive.is_some()))
    }

    fn get_stale(
        &self,
        name: CacheKey,
        values_key: &[u8],
        now: ClockReading,
        stale_ms: u64,
    ) -> Option<(SharedAnswer, u64)> {
        let answers = || self.table.of(name).map(|(_, kept)| kept);
        let answers = || answers().filter(|kept| kept.is_to(values_key) || kept.is_for_all());
        if answers().any(|kept| kept.is_alive(now)) {
            return None;
        }
        let stale = answers().filter_map(|kept| Some((kept.stale_ms(now, stale_ms)?, kept)));
        let (expired_ms, kept) = stale.min_by_key(|(expired_ms, _)| *expired_ms)?;
        Some((SharedAnswer::of(Arc::clone(kept)), expired_ms))
    }

    fn insert(&mut self, mut kept: CacheEntry, bytes_max: usize, now: ClockReading) {
        let needed = SLOT_BYTES + kept.memory();
        if needed > bytes_max {
            return;
        }
        self.inserted += 1;
        kept.number = self.inserted;
        let name = kept.name;
        let same = self.table.of(name).find(|(_, known)| known.is_to(kept.values_key()));
        if let Some(slot) = same.map(|(slot, _)| slot) {
            self.remove(slot);
            // It is used again after it has expired.
            kept.note_used();
        } else if self.table.of(name).count() == ENTRIES_MAX
            && let Some((oldest, _)) = self.table.of(name).min_by_key(|(_, known)| known.number)
        {
            self.remove(oldest);
        }
        self.evict_to(bytes_max - needed, now);
        let is_first = self.table.of(name).next().is_none();
        self.stats.handles += u64::from(is_first);
        self.stats.bytes += needed as u64;
        self.table.insert(Arc::new(kept));
    }

    fn forget(&mut self, name: CacheKey) {
        let slots: Vec<usize> = self.table.of(name).map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.remove(slot));
        self.table.pack();
    }

    /// Examines answers in turn until at most `bytes_max` are taken. An answer that has not expired
    /// is passed over once, and once more if it was used.
    fn evict_to(&mut self, bytes_max: usize, now: ClockReading) {
        while self.stats.bytes > bytes_max as u64 && self.table.len() > 0 {
            self.hand = if self.hand < self.table.slots_count() { self.hand } else { 0 };
            let slot = self.hand;
            self.hand += 1;
            if self.table.at(slot).is_some_and(|kept| !kept.is_passed_by(now)) {
                self.remove(slot);
                self.stats.evicted += 1;
            }
        }
        self.table.pack();
    }

    fn remove(&mut self, slot: usize) {
        let Some(kept) = self.table.remove(slot) else { return };
        self.stats.bytes -= (SLOT_BYTES + kept.memory()) as u64;
        let is_last = self.table.of(kept.name).next().is_none();
        self.stats.handles -= u64::from(is_last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Value;
    use handle_proto::value::Ttl;

    fn now(ms: u64) -> ClockReading {
        ClockReading { ms, unix_s: 1_700_000_000 }
    }

    fn value(index: i32, kind: &'static [u8], ttl_s: i32) -> Value<'static> {
        Value { ttl: Ttl::relative(ttl_s), ..Value::new(index, kind, b"data") }
    }

    fn answer(handle: &str, values: &[Value<'static>]) -> LookupAnswer {
        LookupAnswer::new(handle.as_bytes(), ResponseCode::SUCCESS, values.iter().copied())
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
    fn a_value_with_an_absolute_time_ends_at_its_instant() {
        let limits = CacheLimits { stale_s: 600, ..CacheLimits::default() };
        let (cache, question) = (Cache::new(limits), Question::all(b"a/b"));
        let absolute = Value { ttl: Ttl::absolute(1_700_000_010), ..Value::new(1, b"URL", b"data") };
        let at = |ms: u64| ClockReading { ms, unix_s: 1_700_000_000 + u32::try_from(ms / 1000).unwrap() };
        // Within a second, the clock of the second shows less time than there is.
        cache.put(&question, &answer("a/b", &[value(2, b"URL", 86_400), absolute]), at(900));
        assert!(cache.get(&question, at(9_999)).is_some());
        assert!(cache.get(&question, at(10_000)).is_none());
        assert!(cache.get_stale(&question, at(10_000)).is_none(), "and is not served as a stale one");
        cache.put(&question, &answer("a/b", &[absolute]), at(10_000));
        assert!(cache.get(&question, at(10_000)).is_none());
    }

    #[test]
    fn expired_answers_are_stale_within_their_bound() {
        let limits = CacheLimits { stale_s: 5, ..CacheLimits::default() };
        let (cache, question) = (Cache::new(limits), Question::all(b"a/b"));
        let values = [value(1, b"URL", 7), value(2, b"EMAIL", 7)];
        cache.put(&question, &answer("a/b", &values), now(0));
        let url = Question::of_types(b"A/b", &[b"URL"]);
        let stale = |question: &Question, ms| Some(cache.get_stale(question, now(ms))?.expired_ms);
        assert_eq!(stale(&question, 6_999), None, "still fresh");
        assert_eq!((stale(&question, 7_000), stale(&url, 11_999)), (Some(0), Some(4_999)));
        assert_eq!(stale(&question, 12_000), None);
        let found = cache.get_stale(&url, now(8_000)).unwrap().answer;
        assert_eq!(found.values().iter().map(|value| value.index).collect::<Vec<_>>(), [1]);
        let mut certified = question.clone();
        certified.wants.certified = true;
        assert_eq!(stale(&certified, 8_000), None, "a plain answer never answers a certified question");
        cache.put(&url, &answer("a/b", &values[..1]), now(8_000));
        assert_eq!(stale(&url, 9_000), None, "there is a current one");
        let missing = Question::all(b"a/none");
        cache.put(&missing, &LookupAnswer::new(b"a/none", ResponseCode::HANDLE_NOT_FOUND, []), now(0));
        assert_eq!(stale(&missing, 30_001), None, "only values are served after their time");
        assert_eq!((cache.stats().hits, cache.stats().misses), (0, 0));
    }

    #[test]
    fn nothing_is_kept_for_longer_than_the_limit() {
        let cache = Cache::new(CacheLimits { ttl_max_s: 5, ..CacheLimits::default() });
        let none = LookupAnswer::new(b"a/c", ResponseCode::HANDLE_NOT_FOUND, []);
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
        // Answers to some values do not answer for all.
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
    fn negative_answers_are_cached_for_a_while() {
        let (cache, question) = (cache(1 << 20), Question::all(b"a/b"));
        let none = |code| LookupAnswer::new(b"a/b", code, []);
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
    fn bytes_are_bounded_and_used_answers_stay() {
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
        let huge =
            LookupAnswer::new(b"a/huge", ResponseCode::SUCCESS, [Value::new(1, b"URL", &[0; 64 << 10])]);
        cache.put(&Question::all(b"a/huge"), &huge, now(0));
        assert!(cache.get(&Question::all(b"a/huge"), now(0)).is_none(), "larger than all of it");
        assert!(cache.get(&used, now(1)).is_some(), "and nothing went for it");
    }

    #[test]
    fn tables_for_many_short_answers_make_room_for_long_ones() {
        let cache = cache(256 << 10);
        let put = |handle: String, data: &[u8]| {
            let value = Value { ttl: Ttl::relative(60), ..Value::new(1, b"URL", data) };
            let answer = LookupAnswer::new(handle.as_bytes(), ResponseCode::SUCCESS, [value]);
            cache.put(&Question::all(handle.as_bytes()), &answer, now(0));
        };
        (0..1_000).for_each(|number| put(format!("a/{number}"), b""));
        (0..100).for_each(|number| put(format!("b/{number}"), &[0; 32 << 10]));
        let handles = usize::try_from(cache.stats().handles).unwrap();
        let (memory, memory_max) = cache.shard(0).table.memory();
        assert!(handles < 10 && memory <= memory_max, "{handles}, {memory} bytes");
        let is_known =
            |number: &usize| cache.get(&Question::all(format!("b/{number}").as_bytes()), now(1)).is_some();
        assert_eq!((0..100).filter(is_known).count(), handles);
    }

    #[test]
    fn tables_take_no_more_memory_than_is_counted() {
        let cache = cache(1 << 20);
        let question = |number| Question::all(format!("a/{number}").into_bytes());
        for number in 0..5_000 {
            cache.put(&question(number), &answer("a/0", &[value(1, b"URL", 60)]), now(0));
            let (memory, memory_max) = cache.shard(0).table.memory();
            assert!(memory <= memory_max, "after {number}: {memory} bytes");
        }
        assert!(cache.stats().evicted > 0);
        (0..5_000).for_each(|number| cache.forget(&question(number).handle));
        let stats = cache.stats();
        assert_eq!((stats.handles, stats.bytes), (0, 0));
        let (memory, memory_max) = cache.shard(0).table.memory();
        assert!(memory <= memory_max && memory_max < 4 << 10, "{memory} bytes");
    }

    #[test]
    fn used_answers_outlive_a_sweep() {
        let cache = cache(64 << 10);
        let put = |number: u32| {
            let handle = format!("a/{number:05}");
            cache.put(&Question::all(handle.as_bytes()), &answer(&handle, &[value(1, b"URL", 60)]), now(0));
        };
        let is_known = |number: u32| cache.get(&Question::all(format!("a/{number:05}")), now(1)).is_some();
        let fit = (0..).find(|&number| {
            put(number);
            cache.stats().evicted > 0
        });
        let fit = fit.expect("it is full some time");
        // The first round, in which all answers are equally new, is over. Then some are used, and
        // those stay.
        let used: Vec<u32> = (0..fit).filter(|number| number % 8 == 0 && is_known(*number)).collect();
        (fit + 1..=fit + fit / 4).for_each(put);
        assert!(cache.stats().evicted > u64::from(fit / 4));
        assert!(used.into_iter().all(is_known));
    }

    #[test]
    fn an_evicted_answer_stays_valid_for_its_holder() {
        let (cache, question) = (cache(1 << 20), Question::all(b"a/b"));
        cache.put(&question, &answer("a/b", &[value(1, b"URL", 60)]), now(0));
        let (one, other) = (cache.get(&question, now(1)).unwrap(), cache.get(&question, now(1)).unwrap());
        assert!(std::ptr::eq(&raw const *one, &raw const *other), "nothing is copied");
        cache.put(&question, &answer("a/b", &[value(2, b"URL", 60)]), now(2));
        cache.forget(b"a/b");
        assert_eq!(one.values().iter().next().unwrap().index, 1);
        assert!(one.cached && one == other);
    }

    #[test]
    fn hashes_and_keys_differ_between_caches() {
        let (one, other) = (Namer::new(), Namer::new());
        assert_eq!(one.name(b"a/b"), one.name(b"a/b"));
        assert_ne!(one.name(b"a/b"), one.name(b"a/c"));
        assert_ne!(one.name(b"a/b"), other.name(b"a/b"));
        assert_eq!(format!("{one:?}"), "Namer { .. }", "the key is secret");
    }

    #[test]
    fn nothing_is_left_after_clearing() {
        let cache = cache(3 << 20);
        let names: Vec<String> = (0..1000).map(|number| format!("a/{number}")).collect();
        let put = || {
            for name in &names {
                let question = Question::all(name.as_bytes());
                cache.put(&question, &answer(name, &[value(1, b"URL", 60)]), now(0));
                assert!(cache.get(&question, now(0)).is_some(), "{name}");
            }
        };
        put();
        cache.clear();
        assert_eq!((cache.stats().handles, cache.stats().bytes, cache.stats().hits), (0, 0, 1000));
        assert!(names.iter().all(|name| cache.get(&Question::all(name.as_bytes()), now(0)).is_none()));
        put();
    }

    #[test]
    fn shards_are_filled_evenly() {
        let cache = cache(200 << 20);
        assert_eq!(cache.shards.len(), 200);
        for number in 0..20_000 {
            let handle = format!("a/{number}");
            cache.put(&Question::all(handle.as_bytes()), &answer(&handle, &[value(1, b"URL", 60)]), now(0));
        }
        // A hundred in each, within bounds that ten thousand caches in a row met.
        let handles = (0..cache.shards.len()).map(|at| cache.shard(at).stats.handles);
        let (least, most) = handles.fold((u64::MAX, 0), |(least, most), it| (least.min(it), most.max(it)));
        assert!(least >= 30 && most <= 180, "{least} to {most}");
    }

    #[test]
    fn all_shards_are_bounded_together() {
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
    fn expired_answers_are_evicted_first() {
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
        // All others are passed over once, and that round has only come to the answer that had
        // expired.
        let is_kept = |number: &usize| cache.get(&Question::all(format!("a/{number}")), now(1_000)).is_some();
        assert_eq!((0..number).filter(is_kept).count(), number);
        assert!(cache.get(&new, now(1_000)).is_some());
    }

    #[test]
    fn long_names_are_found_like_short_names() {
        let cache = cache(1 << 20);
        for len in [KEY_CAPACITY - 2, KEY_CAPACITY - 1, KEY_CAPACITY, 4 * KEY_CAPACITY] {
            let spelt = |prefix: &str| format!("{prefix}/{}", "x".repeat(len - 2));
            let (known, other) = (spelt("a"), spelt("A"));
            cache.put(&Question::all(known.as_bytes()), &answer(&known, &[value(1, b"URL", 60)]), now(0));
            assert!(cache.get(&Question::all(other.as_bytes()), now(1)).is_some(), "{len} bytes");
            with_key(&Question::all(other.as_bytes()), |key| {
                assert_eq!(key, Question::all(known.as_bytes()).handle_key(), "{len} bytes");
            });
        }
    }

    #[test]
    fn a_changed_handle_is_forgotten_in_every_spelling() {
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
    fn the_number_of_selections_of_a_handle_is_bounded() {
        let cache = cache(1 << 20);
        let question = |index| Question { indexes: vec![index], ..Question::all(b"a/b") };
        (1..=9).for_each(|index| {
            cache.put(&question(index), &answer("a/b", &[value(index, b"URL", 60)]), now(0));
        });
        assert!(cache.get(&question(1), now(1)).is_none());
        assert!((2..=9).all(|index| cache.get(&question(index), now(1)).is_some()));
        let stats = cache.stats();
        assert_eq!((stats.handles, stats.evicted), (1, 0));
        // A replaced answer is the newest, and does not count twice.
        cache.put(&question(2), &answer("a/b", &[value(2, b"URL", 60)]), now(1));
        cache.put(&question(1), &answer("a/b", &[value(1, b"URL", 60)]), now(1));
        let is_known = |index: &i32| cache.get(&question(*index), now(1)).is_some();
        assert_eq!((1..=9).filter(is_known).collect::<Vec<_>>(), [1, 2, 4, 5, 6, 7, 8, 9]);
        cache.forget(b"a/b");
        assert_eq!((cache.stats().handles, cache.stats().bytes), (0, 0));
    }
}
