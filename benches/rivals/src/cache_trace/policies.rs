//! The caches that replay a trace.

use super::{OVERHEAD, record_len};
use handle_cache::table::{CachedRecordTable, EntryStamp, TableLookup};
use handle_snapshot::hash_key;
use std::io::Write as _;

/// A cache under test.
pub(super) trait CachePolicy {
    /// The name in the report.
    fn name(&self) -> &'static str;

    /// Requests `name`, and inserts it if it is missing. Returns whether it was there.
    fn request(&mut self, name: u32) -> bool;

    /// Number of entries.
    fn entries(&self) -> usize;
}

/// The table of `handle-cache`, with whole records.
pub(super) struct OwnTable {
    table: CachedRecordTable,
    record: Vec<u8>,
    buffer: Vec<u8>,
    key: Vec<u8>,
}

impl OwnTable {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            table: CachedRecordTable::new(bytes),
            record: vec![7; 600],
            buffer: vec![0; 1024],
            key: Vec::new(),
        }
    }
}

/// Bytes of a key, which belong to the record.
const KEY_LEN: usize = 18;

impl CachePolicy for OwnTable {
    fn name(&self) -> &'static str {
        "handle-cache"
    }

    fn request(&mut self, name: u32) -> bool {
        self.key.clear();
        write!(self.key, "10.5555/{name:010}").expect("a vector");
        let hash = hash_key(42, &self.key);
        if let TableLookup::Found(_) = self.table.find(hash, &self.key, |len| self.buffer.get_mut(..len)) {
            return true;
        }
        let values = &self.record[..record_len(name) as usize - KEY_LEN];
        self.table.insert(hash, &self.key, EntryStamp::default(), values);
        false
    }

    fn entries(&self) -> usize {
        self.table.stats().entries
    }
}

fn weight(name: u32) -> u32 {
    record_len(name) + OVERHEAD
}

#[derive(Clone)]
struct NameWeighter;

impl quick_cache::Weighter<u32, ()> for NameWeighter {
    fn weight(&self, name: &u32, (): &()) -> u64 {
        weight(*name).into()
    }
}

pub(super) struct QuickCache(quick_cache::sync::Cache<u32, (), NameWeighter>);

impl QuickCache {
    pub(super) fn new(bytes: usize) -> Self {
        let entries = bytes / 364;
        Self(quick_cache::sync::Cache::with_weighter(entries, bytes as u64, NameWeighter))
    }
}

impl CachePolicy for QuickCache {
    fn name(&self) -> &'static str {
        "quick_cache"
    }

    fn request(&mut self, name: u32) -> bool {
        if self.0.get(&name).is_some() {
            return true;
        }
        self.0.insert(name, ());
        false
    }

    fn entries(&self) -> usize {
        self.0.len()
    }
}

pub(super) struct MokaCache(moka::sync::Cache<u32, ()>);

impl MokaCache {
    pub(super) fn new(bytes: usize) -> Self {
        let cache = moka::sync::Cache::builder().max_capacity(bytes as u64);
        Self(cache.weigher(|name: &u32, (): &()| weight(*name)).build())
    }
}

impl CachePolicy for MokaCache {
    fn name(&self) -> &'static str {
        "moka"
    }

    fn request(&mut self, name: u32) -> bool {
        if self.0.get(&name).is_some() {
            return true;
        }
        self.0.insert(name, ());
        false
    }

    #[expect(clippy::cast_possible_truncation, reason = "entries in memory")]
    fn entries(&self) -> usize {
        self.0.run_pending_tasks();
        self.0.entry_count() as usize
    }
}

/// Least recently used, as a list through an array of all names.
pub(super) struct Lru {
    /// The newer and the older neighbour of each name; [`ABSENT`] for names without an entry.
    links: Vec<[u32; 2]>,
    newest: u32,
    oldest: u32,
    bytes_left: i64,
    count: usize,
}

const ABSENT: u32 = u32::MAX;
const END: u32 = u32::MAX - 1;

impl Lru {
    pub(super) fn new(bytes: usize, names: u32) -> Self {
        Self {
            links: vec![[ABSENT; 2]; names as usize + 101],
            newest: END,
            oldest: END,
            bytes_left: i64::try_from(bytes).unwrap_or(i64::MAX),
            count: 0,
        }
    }

    fn link(&mut self, name: u32) {
        self.links[name as usize] = [END, self.newest];
        match self.newest {
            END => self.oldest = name,
            newest => self.links[newest as usize][0] = name,
        }
        self.newest = name;
        self.count += 1;
        self.bytes_left -= i64::from(weight(name));
    }

    fn unlink(&mut self, name: u32) {
        let [newer, older] = std::mem::replace(&mut self.links[name as usize], [ABSENT; 2]);
        match newer {
            END => self.newest = older,
            newer => self.links[newer as usize][1] = older,
        }
        match older {
            END => self.oldest = newer,
            older => self.links[older as usize][0] = newer,
        }
        self.count -= 1;
        self.bytes_left += i64::from(weight(name));
    }
}

impl CachePolicy for Lru {
    fn name(&self) -> &'static str {
        "LRU"
    }

    fn request(&mut self, name: u32) -> bool {
        let is_there = self.links[name as usize][0] != ABSENT;
        if is_there {
            self.unlink(name);
        }
        self.link(name);
        while self.bytes_left < 0 {
            self.unlink(self.oldest);
        }
        is_there
    }

    fn entries(&self) -> usize {
        self.count
    }
}
