//! Lookups of keys, as a resolver makes them.

use crate::records::{BenchRandom, RecordGenerator};
use handle_snapshot::{RecordSet, StagedLookup, fold_key, hash_key};

/// Lookups that are in progress together.
pub const BATCH_LEN: usize = 32;

/// Keys of existing records, in random order.
///
/// A caller asks for more keys than fit into the processor cache, so that no cached data is reused
/// when the order starts again.
#[derive(Debug)]
pub struct LookupKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    at: usize,
}

impl LookupKeys {
    /// Makes `count` keys of a set of `records` generated records.
    ///
    /// # Errors
    /// When the models of the records cannot be read.
    pub fn new(records: u64, count: usize, seed: u64) -> anyhow::Result<Self> {
        let (generator, mut random) = (RecordGenerator::new()?, BenchRandom(seed));
        Ok(Self::of(count, |out| generator.handle(random.below(records), out)))
    }

    /// Makes `count` keys of the handles that `append` appends one at a time.
    pub fn of(count: usize, mut append: impl FnMut(&mut Vec<u8>)) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(count));
        for _ in 0..count {
            let start = bytes.len();
            append(&mut bytes);
            fold_key(&mut bytes[start..], true);
            ends.push(bytes.len());
        }
        Self { bytes, ends, at: 0 }
    }

    /// Returns the next key; the first follows the last.
    #[inline]
    fn next(&mut self) -> &[u8] {
        let at = if self.at < self.ends.len() { self.at } else { 0 };
        self.at = at + 1;
        self.get(at)
    }

    #[inline]
    fn get(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }

    /// Returns where the next `BATCH_LEN` keys begin.
    fn next_batch(&mut self) -> usize {
        if self.at + BATCH_LEN > self.ends.len() {
            self.at = 0;
        }
        let at = self.at;
        self.at += BATCH_LEN;
        at
    }
}

/// Reads all cache lines of a record, as an answer does.
#[inline]
fn read(public: &[u8]) -> u64 {
    public.iter().step_by(64).map(|&byte| u64::from(byte)).sum()
}

/// Looks up the next key and reads its record.
///
/// # Panics
/// When the record is missing.
#[inline]
pub fn one<B: AsRef<[u8]>>(records: &RecordSet<'_, B>, keys: &mut LookupKeys) -> u64 {
    let seed = records.seed();
    let key = keys.next();
    let record = records.find(hash_key(seed, key), key).ok().flatten().expect("the record was generated");
    read(record.public_bytes())
}

/// Looks up the next [`BATCH_LEN`] keys in stages and reads their records.
///
/// # Panics
/// When a record is missing.
#[inline]
pub fn batch<B: AsRef<[u8]>>(records: &RecordSet<'_, B>, keys: &mut LookupKeys) -> u64 {
    let (seed, first) = (records.seed(), keys.next_batch());
    let mut hashes = [0; BATCH_LEN];
    let mut staged = [StagedLookup::default(); BATCH_LEN];
    for (n, hash) in hashes.iter_mut().enumerate() {
        *hash = hash_key(seed, keys.get(first + n));
        records.prefetch_index(*hash);
    }
    for (staged, &hash) in staged.iter_mut().zip(&hashes) {
        *staged = records.probe(hash);
        records.prefetch_record(*staged);
    }
    let mut sum = 0;
    for n in 0..BATCH_LEN {
        let record = records.resolve(staged[n], hashes[n], keys.get(first + n)).ok().flatten();
        sum += read(record.expect("the record was generated").public_bytes());
    }
    sum
}
