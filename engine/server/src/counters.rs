//! What happened to every datagram, by reason: plain numbers, one set for each worker.
//!
//! A set has one writer, so counting is a load and a store; readers add the sets up.
//!
//! Every datagram is in exactly one of: `requests_answered`, `fragments_kept`, `dropped_error_reply`,
//! the four of dropped fragments, and `dropped_bug`. Their sum is `datagrams_received`.

use crossbeam_utils::CachePadded;
use handle_proto::ResponseCode;
use handle_resolver::Refused;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread counts and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owner of the set may.
    pub fn add(&self, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    /// Replaces the number by one that was counted elsewhere.
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Everything a worker counts.
        #[derive(Debug)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Errors, by reason in the order of [`Refused::ALL`].
            refused: [Counter; Refused::ALL.len()],
            /// Replies, by response code in the order of [`ResponseCode::KNOWN`].
            replies: [Counter; ResponseCode::KNOWN.len()],
        }

        impl Default for Counters {
            fn default() -> Self {
                Self {
                    $($name: Counter::default(),)*
                    refused: std::array::from_fn(|_| Counter::default()),
                    replies: std::array::from_fn(|_| Counter::default()),
                }
            }
        }

        impl Counters {
            fn add_to(&self, sums: &mut Map<String, Value>) {
                $(add(sums, stringify!($name), self.$name.get());)*
                let codes = ResponseCode::KNOWN.iter().map(|code| code.0.to_string());
                add_named(sums, "replies", codes.zip(&self.replies));
                let reasons = Refused::ALL.iter().map(|refused| refused.name().to_owned());
                add_named(sums, "refused", reasons.zip(&self.refused));
            }
        }
    };
}

counters! {
    /// Datagrams received.
    datagrams_received,
    /// Bytes received.
    bytes_received,
    /// Datagrams that were, or completed, a request that was answered.
    requests_answered,
    /// Datagrams handed to the kernel.
    datagrams_sent,
    /// Bytes of answers, with their envelopes.
    bytes_sent,
    /// Batches that held at least one datagram.
    batches,
    /// Fragments kept until the rest of their message comes.
    fragments_kept,
    /// Messages in fragments given up because the rest did not come in time.
    fragmented_expired,
    /// Datagrams dropped: somebody's reply to something unreadable.
    dropped_error_reply,
    /// Fragments dropped: their numbers or lengths make no sense.
    dropped_fragment_invalid,
    /// Fragments dropped: of a message that is longer than a request may be.
    dropped_fragment_too_long,
    /// Fragments dropped: no room for another message in fragments.
    dropped_fragment_no_room,
    /// Fragments dropped: a copy of one that is there.
    dropped_fragment_repeated,
    /// Datagrams dropped: answering them failed inside, which is a bug.
    dropped_bug,
    /// Answer datagrams dropped: the kernel refused to send them.
    dropped_send_refused,
    /// Answer datagrams dropped: the send queue stayed full.
    dropped_send_full,
    /// Datagrams that the kernel dropped because we were too slow.
    dropped_by_kernel,
}

/// Adds what has been counted to the object `group`.
fn add_named<'c>(
    sums: &mut Map<String, Value>,
    group: &str,
    counters: impl Iterator<Item = (String, &'c Counter)>,
) {
    let group = sums.entry(group).or_insert_with(|| json!({}));
    let Value::Object(group) = group else { return };
    for (name, counter) in counters.filter(|(_, counter)| counter.get() > 0) {
        add(group, &name, counter.get());
    }
}

fn add(sums: &mut Map<String, Value>, name: &str, count: u64) {
    let sum = sums.get(name).and_then(Value::as_u64).unwrap_or(0) + count;
    sums.insert(name.to_owned(), sum.into());
}

impl Counters {
    /// Counts a reply by its code, and an error by its reason.
    pub fn count_reply(&self, code: ResponseCode, refused: Option<Refused>) {
        if let Some(at) = CODE_AT.get(usize::try_from(code.0).unwrap_or(usize::MAX)).copied() {
            self.replies[usize::from(at)].add(1);
        }
        if let Some(refused) = refused {
            self.refused[refused as usize].add(1);
        }
    }
}

/// Position in [`ResponseCode::KNOWN`] of each code; 0 for those without a name.
const CODE_AT: [u8; 512] = {
    let mut at = [0; 512];
    let mut i = 0;
    while i < ResponseCode::KNOWN.len() {
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "codes are 0 to 505")]
        {
            at[ResponseCode::KNOWN[i].0 as usize] = i as u8;
        }
        i += 1;
    }
    at
};

/// The sets of all workers.
#[derive(Clone, Debug)]
pub struct Shards(Arc<[CachePadded<Counters>]>);

impl Shards {
    /// Sets for `workers_count` workers, all zero.
    #[must_use]
    pub fn new(workers_count: usize) -> Self {
        Self((0..workers_count).map(|_| CachePadded::default()).collect())
    }

    /// The set of worker number `at`.
    #[must_use]
    pub fn shard(&self, at: usize) -> &Counters {
        &self.0[at]
    }

    /// Totals and each worker's numbers.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut total = Map::new();
        let mut shards = Vec::new();
        for counters in self.0.iter() {
            counters.add_to(&mut total);
            let mut shard = Map::new();
            counters.add_to(&mut shard);
            shards.push(Value::Object(shard));
        }
        json!({ "total": total, "shards": shards })
    }

    /// The sum of one counter over all workers.
    pub fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.0.iter().map(|counters| counter(counters).get()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_with_a_name_has_a_counter_of_its_own() {
        let shards = Shards::new(2);
        for (at, &code) in ResponseCode::KNOWN.iter().enumerate() {
            shards.shard(at % 2).count_reply(code, Some(Refused::ALL[at % Refused::ALL.len()]));
        }
        let json = shards.to_json();
        for code in ResponseCode::KNOWN {
            assert_eq!(json["total"]["replies"][code.0.to_string()], 1, "{code}");
        }
        for refused in Refused::ALL {
            assert!(json["total"]["refused"][refused.name()].as_u64() >= Some(1), "{refused:?}");
        }
    }
}
