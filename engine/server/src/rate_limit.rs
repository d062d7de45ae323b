//! Response-rate limiting over UDP: how many datagrams go to a prefix of unproven source addresses.
//!
//! A forged sender address draws our answers onto somebody else. So each prefix of addresses, narrow and
//! wide, has a number of datagrams a second. Beyond it answers are dropped, but for every n-th, which
//! *slips*: a reply of 52 bytes that only says that the request failed. Deployed clients then go on to the
//! next site or to TCP, where the address is proven.
//!
//! - [`Limiter`]: the decision, in fixed memory, without locks and allocation; time is an argument.
//! - [`RateLimitConfig`], [`Prefix`]: what an operator says.
//! - [`RateLimit`]: what a worker has of it.
//!
//! **Each worker has a table of its own**, and enforces its share: the configured rate divided by the
//! workers. A forger chooses ports, so that the kernel spreads its requests over the workers, and all of
//! them together allow what was configured. A table in common would be exact for a client with one port too,
//! but answers to one client from two workers would then move cache lines between cores, on the path
//! where nothing else is shared.

mod config;
mod limiter;
pub mod model;
mod prefix;

pub use config::RateLimitConfig;
pub use limiter::{IPV4_PREFIXES, IPV6_PREFIXES, Limiter, Limits, Seed};
pub use prefix::{InvalidPrefix, Prefix, Prefixes};

use crate::counters::Counters;
use handle_net::{Datagram, Peer};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::Instant;

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes out.
    Send,
    /// A short reply goes out in its place.
    Slip,
    /// Nothing goes out.
    Drop,
}

/// Bytes of the reply that goes out in place of a limited answer: envelope, header, the lengths of an
/// empty text and of no credential.
pub const SLIP_LEN: usize = 20 + 24 + 4 + 4;

/// The limiter of one worker, and when it is.
#[derive(Debug)]
pub struct RateLimit {
    limiter: Limiter,
    exempt: Prefixes,
    dry_run: bool,
    slip: u32,
    limited_until_slip: u32,
    started: Instant,
    now_ns: u64,
}

impl RateLimit {
    /// The share of one of `workers_count` workers; none when limiting is off.
    #[must_use]
    pub fn open(config: &RateLimitConfig, workers_count: usize) -> Option<Box<Self>> {
        config.enabled.then(|| Box::new(Self::new(config, workers_count, random_seed(), Instant::now())))
    }

    fn new(config: &RateLimitConfig, workers_count: usize, seed: Seed, started: Instant) -> Self {
        Self {
            limiter: Limiter::new(&config.limits(workers_count), config.table_bytes, seed),
            exempt: Prefixes::new(&config.exempt),
            dry_run: config.dry_run,
            slip: config.slip,
            limited_until_slip: config.slip,
            started,
            now_ns: 0,
        }
    }

    /// Changes the limiter `limited`, which may be none, into what `config` asks for. What prefixes have used up stays
    /// so.
    pub fn set(limited: &mut Option<Box<Self>>, config: &RateLimitConfig, workers_count: usize) {
        match limited {
            Some(this) if config.enabled => {
                this.limiter.set(&config.limits(workers_count));
                this.exempt = Prefixes::new(&config.exempt);
                (this.dry_run, this.slip, this.limited_until_slip) =
                    (config.dry_run, config.slip, config.slip);
            }
            _ => *limited = Self::open(config, workers_count),
        }
    }

    /// Reads the clock; once for a batch.
    pub fn tick(&mut self) {
        self.now_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }

    /// What becomes of an answer of `datagrams` to `peer`, who asked in `request_len` bytes. An answer costs as
    /// much as it has datagrams.
    #[inline]
    pub fn verdict(
        &mut self,
        peer: Peer,
        datagrams: usize,
        request_len: usize,
        counters: &Counters,
    ) -> Verdict {
        let address = peer.remote().ip();
        if self.exempt.has(address) {
            counters.rate_limit_exempt.add(1);
            return Verdict::Send;
        }
        // A message has at most 534 datagrams.
        let datagrams = u32::try_from(datagrams).unwrap_or(u32::MAX);
        match self.limiter.allows(address, datagrams, self.now_ns) {
            true => Verdict::Send,
            false => self.limited(request_len, counters),
        }
    }

    #[cold]
    fn limited(&mut self, request_len: usize, counters: &Counters) -> Verdict {
        if self.dry_run {
            counters.rate_limit_dry_run.add(1);
            return Verdict::Send;
        }
        if self.slip > 0 {
            self.limited_until_slip -= 1;
            if self.limited_until_slip == 0 {
                self.limited_until_slip = self.slip;
                // Never more than came: a flood draws at most its own bytes.
                if request_len >= SLIP_LEN {
                    counters.rate_limit_slipped.add(1);
                    return Verdict::Slip;
                }
            }
        }
        counters.dropped_rate_limited.add(1);
        Verdict::Drop
    }
}

/// Bytes of the shortest datagram of a train: its last may be shorter than the others.
#[inline]
#[must_use]
pub fn shortest_len(datagram: &Datagram<'_>) -> usize {
    match datagram.bytes.len().checked_rem(datagram.segment_len) {
        None | Some(0) => datagram.segment_len.min(datagram.bytes.len()),
        Some(last) => last,
    }
}

/// A seed that nobody outside can know, from the keys that the standard library draws for its maps.
fn random_seed() -> Seed {
    let random = RandomState::new();
    Seed(std::array::from_fn(|at| random.hash_one(at)))
}

/// `address` as 128 bits; IPv4 in its mapped form.
fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_limit(config: &RateLimitConfig) -> RateLimit {
        RateLimit::new(config, 1, Seed([7; 7]), Instant::now())
    }

    fn limited(rate_limit: &mut RateLimit, request_len: usize, counters: &Counters) -> Verdict {
        rate_limit.limited(request_len, counters)
    }

    #[test]
    fn is_there_only_when_it_is_on() {
        assert!(RateLimit::open(&RateLimitConfig::default(), 1).is_none());
        assert!(RateLimit::open(&RateLimitConfig { enabled: true, ..Default::default() }, 1).is_some());
    }

    #[test]
    fn every_nth_limited_answer_slips() {
        for (slip, expected) in [(0, [0; 6]), (1, [1; 6]), (2, [0, 1, 0, 1, 0, 1]), (3, [0, 0, 1, 0, 0, 1])] {
            let counters = Counters::default();
            let mut rate_limit = rate_limit(&RateLimitConfig { slip, ..Default::default() });
            let slipped =
                expected.map(|_| u8::from(limited(&mut rate_limit, 64, &counters) == Verdict::Slip));
            assert_eq!(slipped, expected, "slip {slip}");
            let count: u64 = expected.iter().map(|&one| u64::from(one)).sum();
            assert_eq!(counters.rate_limit_slipped.get(), count);
            assert_eq!(counters.dropped_rate_limited.get(), 6 - count);
        }
    }

    #[test]
    fn what_slips_is_never_longer_than_what_came() {
        let counters = Counters::default();
        let mut rate_limit = rate_limit(&RateLimitConfig { slip: 1, ..Default::default() });
        assert_eq!(limited(&mut rate_limit, SLIP_LEN - 1, &counters), Verdict::Drop);
        assert_eq!(limited(&mut rate_limit, SLIP_LEN, &counters), Verdict::Slip);
    }

    #[test]
    fn a_dry_run_only_counts() {
        let counters = Counters::default();
        let mut rate_limit = rate_limit(&RateLimitConfig { dry_run: true, slip: 1, ..Default::default() });
        assert_eq!(limited(&mut rate_limit, 64, &counters), Verdict::Send);
        assert_eq!(counters.rate_limit_dry_run.get(), 1);
        assert_eq!(counters.rate_limit_slipped.get() + counters.dropped_rate_limited.get(), 0);
    }

    #[test]
    fn other_settings_keep_what_was_counted() {
        let counters = Counters::default();
        let strict = RateLimitConfig { enabled: true, ipv4_32_per_s: 1, slip: 0, ..Default::default() };
        let mut limited = RateLimit::open(&strict, 1);
        let mut change = |config: RateLimitConfig, expected| {
            RateLimit::set(&mut limited, &config, 1);
            let verdict =
                |it: &mut Box<RateLimit>| it.verdict(Peer::to(([127, 0, 0, 1], 1).into()), 1, 64, &counters);
            assert_eq!(limited.as_mut().map(verdict), expected, "{config:?}");
        };
        change(strict.clone(), Some(Verdict::Send));
        change(strict.clone(), Some(Verdict::Drop));
        change(RateLimitConfig { ipv4_32_per_s: 100, ..strict.clone() }, Some(Verdict::Drop));
        change(RateLimitConfig { slip: 1, ..strict.clone() }, Some(Verdict::Slip));
        let exempt = vec!["127.0.0.0/8".parse().unwrap()];
        change(RateLimitConfig { exempt, ..strict.clone() }, Some(Verdict::Send));
        change(strict.clone(), Some(Verdict::Drop));
        change(RateLimitConfig { enabled: false, ..strict.clone() }, None);
        change(strict, Some(Verdict::Send));
    }

    #[test]
    fn of_a_train_the_shortest_counts() {
        for (len, segment_len, expected) in
            [(0, 0, 0), (60, 60, 60), (60, 100, 60), (120, 60, 60), (130, 60, 10), (60, 0, 0)]
        {
            let peer = Peer::to(([127, 0, 0, 1], 1).into());
            let datagram = Datagram { bytes: &vec![0; len], peer, segment_len, truncated: false };
            assert_eq!(shortest_len(&datagram), expected, "{len} in {segment_len}");
        }
    }

    #[test]
    fn no_two_servers_share_a_seed() {
        let (one, other) = (random_seed(), random_seed());
        assert_ne!(one.0, other.0);
        assert_ne!(one.0[0], one.0[1]);
    }
}
