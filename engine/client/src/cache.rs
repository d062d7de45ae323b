//! Answers, kept for the time to live of their values. RFC 3651 section 3.1.
//!
//! Bounded in bytes; what was not used lately goes first. An answer with all values answers every question about
//! its handle. Certified answers answer plain questions, too; never the other way round.

use crate::service::keeps_s;
use crate::{Answer, Now, Question};
use handle_proto::ResponseCode;
use handle_proto::limit::TTL_MAX_S;
use std::collections::{HashMap, VecDeque};
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
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
}

#[derive(Debug, Default)]
struct Shard {
    handles: HashMap<Arc<[u8]>, Slot>,
    /// The handles, in the order in which they are looked at when room is needed; each once.
    order: VecDeque<Arc<[u8]>>,
    bytes: usize,
    stats: CacheStats,
}

/// All that is kept of a handle.
#[derive(Debug, Default)]
struct Slot {
    entries: Vec<Entry>,
    bytes: usize,
    /// Since it was last looked at for room.
    was_used: bool,
}

#[derive(Debug)]
struct Entry {
    values_key: Vec<u8>,
    answer: Arc<Answer>,
    expires_ms: u64,
}

/// Choices of values that are kept of one handle; the oldest makes room.
const ENTRIES_MAX: usize = 8;
const SHARDS: usize = 16;
/// What the tables take for each handle, roughly: key twice, slot, places in table and queue.
const SLOT_BYTES: usize = 160;

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(limits: CacheLimits) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { limits, hasher: RandomState::new(), shards }
    }

    fn shard(&self, handle_key: &[u8]) -> MutexGuard<'_, Shard> {
        // The remainder is less than the number of shards.
        let at = usize::try_from(self.hasher.hash_one(handle_key) >> 32).unwrap_or_default() % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to `question`, if it is known.
    #[must_use]
    pub fn get(&self, question: &Question, now: Now) -> Option<Arc<Answer>> {
        if !question.is_cacheable() {
            return None;
        }
        let (handle_key, values_key) = (question.handle_key(), question.values_key());
        let mut shard = self.shard(&handle_key);
        let shard = &mut *shard;
        let found = shard.handles.get_mut(&*handle_key).and_then(|slot| {
            let exact = slot.entries.iter().find(|entry| entry.values_key == values_key);
            let entry = exact.filter(|entry| now.ms < entry.expires_ms).or_else(|| {
                slot.entries.iter().find(|entry| entry.values_key.is_empty() && now.ms < entry.expires_ms)
            });
            match entry {
                Some(entry) => {
                    slot.was_used = true;
                    Some((Arc::clone(&entry.answer), entry.values_key == values_key))
                }
                None => {
                    shard.stats.expired += u64::from(exact.is_some());
                    None
                }
            }
        });
        match found {
            Some((answer, is_exact)) => {
                shard.stats.hits += 1;
                Some(if is_exact { answer } else { Arc::new(answer.selected(question)) })
            }
            None => {
                shard.stats.misses += 1;
                None
            }
        }
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
        self.insert(question, Arc::clone(&answer), expires_ms);
        if question.wants.certified {
            let mut plain = question.clone();
            plain.wants.certified = false;
            self.insert(&plain, answer, expires_ms);
        }
    }

    fn insert(&self, question: &Question, answer: Arc<Answer>, expires_ms: u64) {
        let bytes_max = self.limits.bytes_max / SHARDS;
        let entry = Entry { values_key: question.values_key(), answer, expires_ms };
        let handle_key = question.handle_key();
        if SLOT_BYTES + 2 * handle_key.len() + entry.memory() > bytes_max {
            return;
        }
        let mut shard = self.shard(&handle_key);
        shard.insert(handle_key, entry);
        shard.make_room(bytes_max);
    }

    /// Forgets all that is known of a handle: it was changed.
    pub fn forget(&self, handle: &[u8]) {
        for certified in [false, true] {
            let mut question = Question::all(handle);
            question.wants.certified = certified;
            let key = question.handle_key();
            self.shard(&key).forget(&key);
        }
    }

    /// What it has done so far, and has now.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            sum.hits += shard.stats.hits;
            sum.misses += shard.stats.misses;
            sum.expired += shard.stats.expired;
            sum.evicted += shard.stats.evicted;
            sum.handles += shard.handles.len() as u64;
            sum.bytes += shard.bytes as u64;
        }
        sum
    }
}

impl Entry {
    fn memory(&self) -> usize {
        size_of::<Self>() + self.values_key.len() + self.answer.memory()
    }
}

impl Shard {
    fn insert(&mut self, handle_key: Vec<u8>, entry: Entry) {
        let key: Arc<[u8]> = handle_key.into();
        if !self.handles.contains_key(&key) {
            self.order.push_back(Arc::clone(&key));
            self.bytes += SLOT_BYTES + 2 * key.len();
        }
        let slot = self.handles.entry(key).or_default();
        self.bytes -= slot.bytes;
        slot.entries.retain(|known| known.values_key != entry.values_key);
        if slot.entries.len() == ENTRIES_MAX {
            slot.entries.remove(0);
        }
        slot.entries.push(entry);
        slot.bytes = slot.entries.iter().map(Entry::memory).sum();
        self.bytes += slot.bytes;
    }

    /// Looks at handles in turn: what was used since the last time stays for one more round.
    fn make_room(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let Some(key) = self.order.pop_front() else { break };
            match self.handles.get_mut(&key) {
                Some(slot) if slot.was_used => {
                    slot.was_used = false;
                    self.order.push_back(key);
                }
                _ => {
                    self.drop_slot(&key);
                    self.stats.evicted += 1;
                }
            }
        }
    }

    fn drop_slot(&mut self, key: &[u8]) {
        if let Some(slot) = self.handles.remove(key) {
            self.bytes -= slot.bytes + SLOT_BYTES + 2 * key.len();
        }
    }

    fn forget(&mut self, key: &[u8]) {
        // The place in the order goes with it, so that each handle has one; changes are rare.
        if self.handles.contains_key(key) {
            self.order.retain(|known| **known != *key);
            self.drop_slot(key);
        }
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
        let huge = Answer::new(b"a/huge", ResponseCode::SUCCESS, [Value::new(1, b"URL", &[0; 8192])]);
        cache.put(&Question::all(b"a/huge"), &huge, now(0));
        assert!(cache.get(&Question::all(b"a/huge"), now(0)).is_none(), "larger than its share");
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
