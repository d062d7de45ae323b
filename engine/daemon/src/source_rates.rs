//! Rates of events by source, in bounded memory.
//!
//! Each source has a token bucket. The table of buckets has a fixed size; a new source replaces the
//! one that has used least.

use handle_auth::source::Network;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Number of buckets in which a source can be.
const WAYS: usize = 8;
/// Locks over which the table is divided.
const SHARDS: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// The bucket of a source.
#[derive(Clone, Copy, Debug, Default)]
struct SourceBucket {
    /// A hash of the source; 0 for an unused bucket.
    source: u64,
    /// When the bucket is full again, in nanoseconds after the start.
    full_at_ns: u64,
}

/// The buckets of all sources.
#[derive(Debug)]
pub struct SourceRates {
    shards: Vec<Mutex<Vec<[SourceBucket; WAYS]>>>,
    hasher: RandomState,
    started: Instant,
}

/// The time after which an event of a source is within the limit again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    /// Seconds, at least 1.
    pub seconds: u32,
}

/// A limit on events of each source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRate {
    /// Time between two events, in nanoseconds on average.
    pub interval_ns: u64,
    /// Events that a source may cause at once.
    pub burst: u32,
    /// Length of the prefix of an IPv4 address that identifies a source, in bits.
    pub ipv4_bits: u8,
    /// Length of the prefix of an IPv6 address that identifies a source, in bits.
    pub ipv6_bits: u8,
}

impl SourceRates {
    /// A table for this number of sources.
    #[must_use]
    pub fn new(sources: usize) -> Self {
        let sets = sources.div_ceil(WAYS * SHARDS);
        let shard = || Mutex::new(vec![[SourceBucket::default(); WAYS]; sets]);
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Self { shards, hasher: RandomState::new(), started: Instant::now() }
    }

    /// Counts an event of `address` at `now`.
    ///
    /// # Errors
    /// When it exceeds the limit; it is then not counted.
    pub fn admit_at_rate(&self, address: IpAddr, now: Instant, rate: SourceRate) -> Result<(), RetryAfter> {
        let bits = if address.is_ipv4() { rate.ipv4_bits } else { rate.ipv6_bits };
        self.admit_key(Network::new(address, bits), now, rate)
    }

    /// Counts events of `address` that have happened, also beyond the limit: those that follow wait
    /// for them, too.
    pub fn charge_at_rate(&self, address: IpAddr, now: Instant, rate: SourceRate, events: u32) {
        let bits = if address.is_ipv4() { rate.ipv4_bits } else { rate.ipv6_bits };
        self.charge_key(Network::new(address, bits), now, rate, events);
    }

    /// The same for the source that is identified by `key`.
    pub fn charge_key(&self, key: impl Hash, now: Instant, rate: SourceRate, events: u32) {
        self.with_buckets(key, |buckets, source| {
            let bucket = &mut buckets[bucket_of(buckets, source)];
            let after_ns = rate.interval_ns.saturating_mul(events.into());
            bucket.full_at_ns = bucket.full_at_ns.max(self.nanoseconds(now)).saturating_add(after_ns);
        });
    }

    /// Counts an event of the source that is identified by `key`.
    ///
    /// # Errors
    /// When it exceeds the limit; it is then not counted.
    pub fn admit_key(&self, key: impl Hash, now: Instant, rate: SourceRate) -> Result<(), RetryAfter> {
        self.with_buckets(key, |buckets, source| take(buckets, source, self.nanoseconds(now), rate))
    }

    /// Whether an event of the source that is identified by `key` is within the limit. Counts
    /// nothing.
    ///
    /// # Errors
    /// When it exceeds the limit.
    pub fn check_key(&self, key: impl Hash, now: Instant, rate: SourceRate) -> Result<(), RetryAfter> {
        self.with_buckets(key, |buckets, source| {
            // A copy, which takes the event.
            take(&mut buckets.clone(), source, self.nanoseconds(now), rate)
        })
    }

    /// Calls `act` with the buckets in which that of `key` can be, and with the hash of it.
    fn with_buckets<T>(&self, key: impl Hash, act: impl FnOnce(&mut [SourceBucket; WAYS], u64) -> T) -> T {
        // The lowest bit distinguishes a source from an unused bucket.
        let source = self.hasher.hash_one(key) | 1;
        let (shard, set) = (source >> 58, (source >> 1) & 0xffff_ffff);
        let shard = &self.shards[usize::try_from(shard).unwrap_or(0) % SHARDS];
        let mut sets = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let set = usize::try_from(set).unwrap_or(0) % sets.len();
        act(&mut sets[set], source)
    }

    /// Nanoseconds from the start to `now`.
    fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The position of the bucket of `source`, which replaces the one that has used least if it is new.
fn bucket_of(buckets: &mut [SourceBucket; WAYS], source: u64) -> usize {
    buckets.iter().position(|bucket| bucket.source == source).unwrap_or_else(|| {
        let least = (0..WAYS).min_by_key(|&at| buckets[at].full_at_ns).unwrap_or(0);
        buckets[least] = SourceBucket { source, full_at_ns: 0 };
        least
    })
}

/// Takes an event from the bucket of `source`.
fn take(
    buckets: &mut [SourceBucket; WAYS],
    source: u64,
    now_ns: u64,
    rate: SourceRate,
) -> Result<(), RetryAfter> {
    let at = bucket_of(buckets, source);
    let full_at_ns = buckets[at].full_at_ns.max(now_ns) + rate.interval_ns;
    let wait_ns = (full_at_ns - now_ns).saturating_sub(rate.interval_ns * u64::from(rate.burst));
    if wait_ns > 0 {
        let seconds = u32::try_from(wait_ns.div_ceil(SECOND_NS)).unwrap_or(u32::MAX);
        return Err(RetryAfter { seconds });
    }
    buckets[at].full_at_ns = full_at_ns;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rate(events_per_s: u64, burst: u32) -> SourceRate {
        SourceRate { interval_ns: SECOND_NS / events_per_s, burst, ipv4_bits: 32, ipv6_bits: 64 }
    }

    fn v4(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn a_source_has_its_burst_and_then_its_rate() {
        let rates = SourceRates::new(1024);
        let (ten, start) = (rate(10, 3), rates.started);
        let admitted = |at_ms| rates.admit_at_rate(v4(1), start + Duration::from_millis(at_ms), ten);
        assert_eq!((0..3).filter(|_| admitted(0).is_ok()).count(), 3);
        assert_eq!(admitted(0), Err(RetryAfter { seconds: 1 }));
        assert_eq!(admitted(99), Err(RetryAfter { seconds: 1 }));
        assert!(admitted(100).is_ok() && admitted(100).is_err());
        assert!(rates.admit_at_rate(v4(2), start, ten).is_ok(), "another source");
        assert_eq!((0..9).filter(|_| admitted(10_000).is_ok()).count(), 3, "no more than the burst");
        let minute = start + Duration::from_secs(60);
        assert_eq!((0..99).filter(|_| rates.admit_at_rate(v4(3), minute, rate(1, 60)).is_ok()).count(), 60);
    }

    #[test]
    fn what_has_happened_beyond_the_limit_is_waited_for() {
        let rates = SourceRates::new(1024);
        let (ten, start) = (rate(10, 3), rates.started);
        let admitted = |at_ms| rates.admit_at_rate(v4(1), start + Duration::from_millis(at_ms), ten).is_ok();
        assert!(admitted(0));
        rates.charge_at_rate(v4(1), start, ten, 7);
        assert!(!admitted(500), "six of eight are beyond the burst and the rate");
        assert!(admitted(600) && !admitted(600));
        rates.charge_at_rate(v4(2), start, ten, u32::MAX);
        assert!(rates.admit_at_rate(v4(2), start, rate(10, 3)).is_err());
    }

    #[test]
    fn prefixes_are_sources() {
        let rates = SourceRates::new(1024);
        let v6 = |network: u16, host: u16| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
        let admit = |address, rate| rates.admit_at_rate(address, rates.started, rate);
        assert!(admit(v6(1, 1), rate(1, 1)).is_ok() && admit(v6(1, 2), rate(1, 1)).is_err());
        assert!(admit(v6(2, 1), rate(1, 1)).is_ok());
        let wide = SourceRate { ipv4_bits: 24, ..rate(1, 1) };
        assert!(admit(v4(1), wide).is_ok() && admit(v4(2), wide).is_err());
    }

    #[test]
    fn many_sources_take_no_more_memory_and_do_not_free_the_busiest() {
        let rates = SourceRates::new(1024);
        let (hundred, now) = (rate(1, 100), rates.started);
        for _ in 0..100 {
            assert!(rates.admit_at_rate(v4(1), now, hundred).is_ok());
        }
        for source in 0..100_000_u32 {
            let address = IpAddr::from((10 << 24 | source).to_be_bytes());
            assert!(rates.admit_at_rate(address, now, hundred).is_ok());
        }
        assert!(rates.admit_at_rate(v4(1), now, hundred).is_err(), "still known");
        let buckets: usize = rates.shards.iter().map(|shard| shard.lock().unwrap().len() * WAYS).sum();
        assert_eq!(buckets, 1024);
    }
}
