//! What sources have said, for a short time and within a number of bytes.

use handle_store::RecordBuf;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Bytes that an entry takes besides its name and its values.
const ENTRY_LEN: usize = 128;

/// Answers by handle. The oldest make room for new ones.
#[derive(Debug)]
pub(crate) struct AnswerCache {
    bytes_max: usize,
    found: Duration,
    absent: Duration,
    entries: HashMap<Box<[u8]>, CachedAnswer>,
    /// Every insertion, in order, with what it counts. An entry that was replaced counts until its
    /// insertion leaves the queue.
    queue: VecDeque<(Box<[u8]>, u64, usize)>,
    bytes: usize,
    next_number: u64,
}

#[derive(Debug)]
struct CachedAnswer {
    record: Option<RecordBuf>,
    expires: Instant,
    number: u64,
}

impl AnswerCache {
    /// A cache of `bytes_max` bytes, in which records live for `found`, and the answer that there
    /// is none for `absent`.
    pub(crate) fn new(bytes_max: usize, found: Duration, absent: Duration) -> Self {
        Self {
            bytes_max,
            found,
            absent,
            entries: HashMap::new(),
            queue: VecDeque::new(),
            bytes: 0,
            next_number: 0,
        }
    }

    /// The answer about `key`, if it is known and still counts.
    pub(crate) fn get(&self, key: &[u8], now: Instant) -> Option<Option<RecordBuf>> {
        let entry = self.entries.get(key)?;
        (now < entry.expires).then(|| entry.record.clone())
    }

    /// Keeps the answer `record` about `key`.
    pub(crate) fn insert(&mut self, key: &[u8], record: Option<RecordBuf>, now: Instant) {
        let lives = if record.is_some() { self.found } else { self.absent };
        let len = 2 * key.len() + record.as_ref().map_or(0, RecordBuf::len) + ENTRY_LEN;
        if lives.is_zero() || len > self.bytes_max {
            self.remove(key);
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.entries.insert(key.into(), CachedAnswer { record, expires: now + lives, number });
        self.queue.push_back((key.into(), number, len));
        self.bytes += len;
        while self.bytes > self.bytes_max {
            self.drop_oldest();
        }
        while self.queue.front().is_some_and(|(key, number, _)| self.is_over(key, *number, now)) {
            self.drop_oldest();
        }
    }

    /// Forgets what is known about `key`.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    /// Number of bytes that count.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the insertion `number` of `key` has expired or was replaced.
    fn is_over(&self, key: &[u8], number: u64, now: Instant) -> bool {
        self.entries.get(key).is_none_or(|entry| entry.number != number || entry.expires <= now)
    }

    fn drop_oldest(&mut self) {
        let Some((key, number, len)) = self.queue.pop_front() else { return };
        self.bytes -= len;
        if self.entries.get(&key).is_some_and(|entry| entry.number == number) {
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::Values;

    fn record() -> Option<RecordBuf> {
        Some(RecordBuf::unlogged(Values::EMPTY))
    }

    #[test]
    fn answers_expire_each_after_its_time() {
        let (s, start) = (Duration::from_secs, Instant::now());
        let mut cache = AnswerCache::new(1 << 20, s(10), s(2));
        cache.insert(b"10.1/A", record(), start);
        cache.insert(b"10.1/B", None, start);
        assert_eq!(cache.get(b"10.1/A", start + s(9)), Some(record()));
        assert_eq!(cache.get(b"10.1/A", start + s(10)), None);
        assert_eq!(cache.get(b"10.1/B", start + s(1)), Some(None));
        assert_eq!(cache.get(b"10.1/B", start + s(2)), None);
        cache.remove(b"10.1/A");
        assert_eq!(cache.get(b"10.1/A", start), None);
        cache.insert(b"10.1/C", None, start + s(10));
        assert_eq!((cache.queue.len(), cache.entries.len()), (1, 1), "what is over leaves");
        let mut none = AnswerCache::new(1 << 20, s(0), s(0));
        none.insert(b"10.1/A", record(), start);
        assert_eq!((none.bytes(), none.get(b"10.1/A", start)), (0, None));
    }

    #[test]
    fn bytes_stay_within_their_bound() {
        let (s, start) = (Duration::from_secs, Instant::now());
        let most = 10 * (ENTRY_LEN + 64);
        let mut cache = AnswerCache::new(most, s(10), s(10));
        for at in 0..10_000 {
            let key = format!("10.1/{}", if at % 3 == 0 { 7 } else { at });
            cache.insert(key.as_bytes(), record(), start);
            assert!(cache.bytes() <= most && cache.queue.len() <= 20, "{at}");
            assert!(cache.get(key.as_bytes(), start).is_some(), "{at}");
        }
        cache.insert(&[b'a'; 2048], record(), start);
        assert_eq!(cache.get(&[b'a'; 2048], start), None, "longer than the cache");
    }
}
