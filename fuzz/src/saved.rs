//! The file in which `handle-cache` keeps its entries over a restart.

use handle_cache::saved::{read, write};
use handle_cache::table::{CachedRecordTable, EntryStamp};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// The entries of a block are public and decode; written again and read, they are the same. A block
/// that is no list of entries is refused, and never read beyond its end.
///
/// Input: a block without its length and its sum.
pub fn saved_cache(block: &[u8]) {
    let mut file = b"handle cache 1\n".to_vec();
    for block in [block, b""] {
        let Ok(len) = u32::try_from(block.len()) else { return };
        file.extend_from_slice(&len.to_be_bytes());
        file.extend_from_slice(&xxh3_64(block).to_be_bytes());
        file.extend_from_slice(block);
        if block.is_empty() {
            break;
        }
    }
    let (entries, is_whole) = entries(&file);
    let table = CachedRecordTable::new(CachedRecordTable::BYTES_MIN);
    let stored =
        entries.iter().filter(|(key, (stamp, values))| table.insert(xxh3_64(key), key, *stamp, values));
    let stored: BTreeMap<_, _> = stored.map(|(key, entry)| (key.clone(), entry.clone())).collect();
    if table.stats().evictions == 0 {
        let mut again = Vec::new();
        assert_eq!(write(&table, &mut again).expect("memory does not fail"), stored.len());
        assert_eq!(self::entries(&again), (stored, true));
    }
    // What is cut off is noticed.
    assert!(!is_whole || !self::entries(&file[..file.len() - 1]).1);
}

type Entries = BTreeMap<Vec<u8>, (EntryStamp, Vec<u8>)>;

/// The entries of a file, the last one of each key, and whether all of it was read.
fn entries(mut file: &[u8]) -> (Entries, bool) {
    let mut entries = Entries::new();
    let outcome = read(&mut file, &mut |entry| {
        entries.insert(entry.key.to_vec(), (entry.stamp, entry.values.to_vec()));
    });
    (entries, outcome.is_ok())
}
