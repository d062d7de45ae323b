//! The optimum: a cache that knows all future requests, and evicts the entry whose next request is
//! the latest (Belady 1966). With entries of different lengths this is close to the optimum.

use super::{OVERHEAD, Trace, record_len};
use std::collections::BTreeSet;

/// There is no further request for the name.
const NEVER: u32 = u32::MAX;

/// The share of the requests of `trace` that the optimum answers with `bytes` bytes of memory.
pub(super) fn hit_ratio(trace: Trace, bytes: u64) -> f64 {
    let requests: Vec<u32> = trace.collect();
    let names = requests.iter().max().map_or(0, |&name| name as usize + 1);
    let count = requests.len();
    let mut next = vec![NEVER; count];
    let mut seen = vec![NEVER; names];
    let mut later = u32::try_from(count).expect("requests are numbered by a u32");
    for (next, &name) in next.iter_mut().zip(&requests).rev() {
        later -= 1;
        *next = std::mem::replace(&mut seen[name as usize], later);
    }
    drop(seen);
    // Entries by the time of their next request.
    let mut entries: BTreeSet<(u32, u32)> = BTreeSet::new();
    let (mut used, mut hits) = (0, 0_u64);
    let weight = |name: u32| u64::from(record_len(name) + OVERHEAD);
    for ((at, name), next) in (0_u32..).zip(requests).zip(next) {
        if entries.remove(&(at, name)) {
            hits += 1;
            used -= weight(name);
        }
        if next == NEVER {
            continue;
        }
        entries.insert((next, name));
        used += weight(name);
        while used > bytes {
            let Some((_, evicted)) = entries.pop_last() else { break };
            used -= weight(evicted);
        }
    }
    hits as f64 / count as f64
}
