//! Response-rate limiting over UDP: bounds on what is sent to unproven addresses.
//!
//! A forged sender address directs our answers at another host. A forger gains the bytes
//! of an answer beyond those of its request, so these are counted, as in the response-rate limiting
//! of DNS servers:
//!
//! - *equal answers*: one answer to one network, /24 or /56. A reflector repeats a request; a cache
//!   does not, however many different requests it has.
//! - *long answers*, of more than one datagram, to an address and its networks.
//! - *certified answers*, which also cost a signature: the same limit as for long answers, but the
//!   lowest.
//! - *datagrams* of any kind to an address and its networks; unlimited unless configured.
//!
//! Beyond a limit an answer *slips*: it is replaced by a reply of 52 bytes that only says that the
//! request failed, and that is never longer than the request. Deployed clients then go on to the
//! next site or to TCP, where the address is proven. Not limited are this host, listed peers, and
//! clients that write in a session that they set up from the same address.
//!
//! - [`Limiter`], [`EqualAnswers`]: the decisions, in fixed memory, without locks or allocation;
//!   time is an argument.
//! - [`RateLimitConfig`], [`AddressPrefix`]: the section of the configuration.
//! - [`RateLimit`]: the limits of one worker.
//!
//! **Each worker has its own tables** and enforces its share: the configured rate divided by the
//! number of workers. A forger varies its ports, so the kernel spreads its requests over the
//! workers, and all workers together allow the configured rate. A shared table would also be exact
//! for a client with one port, but answers to one client from two workers would then move cache
//! lines between cores, on a path where nothing else is shared.

mod config;
mod equal;
mod limiter;
pub mod model;
mod prefix;

pub use config::RateLimitConfig;
pub use equal::{EqualAnswers, NetworkHash};
pub use limiter::{HashSeed, IPV4_PREFIXES, IPV6_PREFIXES, Limiter, RateLimits};
pub use prefix::{AddressPrefix, AddressPrefixes, InvalidPrefix};

use crate::counters::Counters;
use handle_net::{Datagram, Peer};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header};
use handle_proto::{OpCode, OpFlags};
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// What the limits decide about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitVerdict {
    /// The answer is sent.
    Send,
    /// A short reply is sent in its place.
    Slip,
    /// Nothing is sent.
    Drop,
}

/// Bytes of the reply that is sent in place of a limited answer: envelope, header, the length of an
/// empty text and the length of no credential.
pub const SLIP_LEN: usize = 20 + 24 + 4 + 4;

/// Bytes that a request for a certified answer counts at once. The bytes beyond are counted when
/// the answer is made.
const CERTIFIED_LEN: u32 = 512;

/// The properties of an answer that the limits depend on.
#[derive(Clone, Copy, Debug)]
pub struct AnswerSize {
    /// Bytes of all its datagrams.
    pub len: usize,
    /// The number of its datagrams.
    pub datagrams: usize,
    /// A number that equal answers share.
    pub identity: u64,
}

/// The properties of a slow-path request that the limits depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowRequest {
    /// A number that requests with equal answers share.
    identity: u64,
    certifies: bool,
}

impl SlowRequest {
    /// A number that requests with equal answers share.
    pub(crate) const fn identity(&self) -> u64 {
        self.identity
    }

    /// The properties of `message`, envelope first.
    #[must_use]
    pub fn of(message: &[u8]) -> Self {
        let Ok((envelope, rest)) = Envelope::split(message) else { return Self::default() };
        if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
            return Self { identity: envelope.session_id.cast_unsigned().into(), certifies: false };
        }
        let Ok((header, body)) = Header::split(rest) else { return Self::default() };
        let identity = match header.op_code {
            OpCode::RESOLUTION => Query::decode(body).map_or(0, |query| spelling_hash(query.handle)),
            op_code => op_code.0.cast_unsigned().into(),
        };
        Self { identity, certifies: header.flags.has(OpFlags::CERTIFY) }
    }
}

/// FNV-1a of a handle, independent of upper and lower case. The table multiplies the hash by a
/// secret.
fn spelling_hash(handle: &[u8]) -> u64 {
    handle.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte.to_ascii_uppercase())).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The peer of the last answer, with the values that are the same for all answers to it: all
/// answers of a train, and most of a batch.
#[derive(Clone, Copy, Debug)]
struct LastPeer {
    bits: u128,
    is_exempt: bool,
    address: IpAddr,
    network: NetworkHash,
}

/// The limits of one worker.
#[derive(Debug)]
pub struct RateLimit {
    equal: EqualAnswers,
    long: Limiter,
    certified: Limiter,
    /// The limiter of datagrams of any kind; `None` when they are not limited.
    datagrams: Option<Limiter>,
    exempt: AddressPrefixes,
    last: LastPeer,
    dry_run: bool,
    /// Whether answers are equal if the handles of their requests are.
    by_request: bool,
    slip: u32,
    limited_until_slip: u32,
    started: Instant,
    now_ns: u64,
    seed: HashSeed,
}

impl RateLimit {
    /// Creates the share of one of `workers_count` workers. Returns `None` when limiting is off.
    #[must_use]
    pub fn open(config: &RateLimitConfig, workers_count: usize) -> Option<Box<Self>> {
        config.enabled.then(|| Box::new(Self::new(config, workers_count, random_seed(), Instant::now())))
    }

    fn new(config: &RateLimitConfig, workers_count: usize, seed: HashSeed, started: Instant) -> Self {
        let (burst_ns, table_bytes) = (config.burst_ns(), config.table_bytes);
        let byte_ns = config.equal_byte_ns(workers_count);
        let equal = EqualAnswers::new(byte_ns, burst_ns, table_bytes, seed);
        let limiter = |limits: &RateLimits| Limiter::new(limits, table_bytes / 4, seed);
        Self {
            last: LastPeer {
                bits: LOOPBACK[0],
                is_exempt: true,
                address: Ipv4Addr::LOCALHOST.into(),
                network: equal.network(Ipv4Addr::LOCALHOST.into()),
            },
            equal,
            long: limiter(&config.long_limits(workers_count)),
            certified: limiter(&config.certified_limits(workers_count)),
            datagrams: config.limits_datagrams().then(|| limiter(&config.limits(workers_count))),
            exempt: AddressPrefixes::new(&config.exempt),
            dry_run: config.dry_run,
            by_request: false,
            slip: config.slip,
            limited_until_slip: config.slip,
            started,
            now_ns: 0,
            seed,
        }
    }

    /// Changes `limited` to what `config` says. Prefixes keep what they have used up.
    pub fn set(limited: &mut Option<Box<Self>>, config: &RateLimitConfig, workers_count: usize) {
        let Some(this) = limited.as_mut().filter(|_| config.enabled) else {
            *limited = Self::open(config, workers_count);
            return;
        };
        this.equal.set(config.equal_byte_ns(workers_count), config.burst_ns());
        this.long.set(&config.long_limits(workers_count));
        this.certified.set(&config.certified_limits(workers_count));
        let limits = config.limits(workers_count);
        match (&mut this.datagrams, config.limits_datagrams()) {
            (Some(limiter), true) => limiter.set(&limits),
            (none, true) => *none = Some(Limiter::new(&limits, config.table_bytes / 4, this.seed)),
            (some, false) => *some = None,
        }
        this.exempt = AddressPrefixes::new(&config.exempt);
        this.look_up(LOOPBACK[0]);
        (this.dry_run, this.slip, this.limited_until_slip) = (config.dry_run, config.slip, config.slip);
    }

    /// Sets the current time. Called once for each batch.
    pub fn set_time(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.started);
        self.now_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Whether `peer` is exempt from limits: it is this host, or listed.
    #[inline]
    pub fn exempts(&mut self, peer: Peer) -> bool {
        let bits = peer.remote_bits();
        if bits != self.last.bits {
            self.look_up(bits);
        }
        self.last.is_exempt
    }

    fn look_up(&mut self, bits: u128) {
        let address = Ipv6Addr::from_bits(bits).to_canonical();
        self.last = LastPeer {
            bits,
            // Of the loopback network, only the address that no other sender can have is exempt.
            // Tests may forge the others, and containers may use them.
            is_exempt: LOOPBACK.contains(&bits) || self.exempt.has(address),
            address,
            network: self.equal.network(address),
        };
    }

    /// Sets whether answers are equal if the handles of their requests are, because their values
    /// have no address of their own.
    pub(crate) const fn identify_by_request(&mut self, is_so: bool) {
        self.by_request = is_so;
    }

    /// Whether answers are equal if the handles of their requests are.
    pub(crate) const fn identifies_by_request(&self) -> bool {
        self.by_request
    }

    /// Decides about `answer` to `peer`, whose request had `request_len` bytes.
    pub fn verdict(
        &mut self,
        peer: Peer,
        answer: AnswerSize,
        request_len: usize,
        counters: &Counters,
    ) -> LimitVerdict {
        if self.exempts(peer) {
            counters.rate_limit_exempt.add(1);
            return LimitVerdict::Send;
        }
        let beyond = bytes_beyond(answer.len, request_len);
        let (LastPeer { address, network, .. }, now_ns) = (self.last, self.now_ns);
        let is_long = answer.datagrams > 1;
        // A message has at most 534 datagrams.
        let datagrams = u32::try_from(answer.datagrams).unwrap_or(u32::MAX);
        let is_over = self.datagrams.as_mut().is_some_and(|limiter| limiter.is_over(address, now_ns))
            || is_long && self.long.is_over(address, now_ns)
            // An answer that is not longer than its request gains a forger nothing.
            || beyond > 0 && !self.equal.allows(network, answer.identity, beyond, now_ns);
        if is_over {
            return self.limited(request_len, counters);
        }
        if is_long {
            self.long.count(address, beyond, now_ns);
        }
        if let Some(limiter) = &mut self.datagrams {
            limiter.count(address, datagrams, now_ns);
        }
        LimitVerdict::Send
    }

    /// Decides about `request` of `request_len` bytes from `peer`, which the slow path answers. The
    /// answer is counted by [`count_slow`](Self::count_slow), because its length is not known yet.
    pub fn verdict_slow(
        &mut self,
        peer: Peer,
        request: SlowRequest,
        request_len: usize,
        counters: &Counters,
    ) -> LimitVerdict {
        if self.exempts(peer) {
            counters.rate_limit_exempt.add(1);
            return LimitVerdict::Send;
        }
        let (LastPeer { address, network, .. }, now_ns) = (self.last, self.now_ns);
        let is_over = self.datagrams.as_mut().is_some_and(|limiter| limiter.is_over(address, now_ns))
            || self.long.is_over(address, now_ns)
            || match request.certifies {
                true => self.certified.is_over(address, now_ns),
                false => self.equal.is_over(network, request.identity, now_ns),
            };
        if is_over {
            return self.limited(request_len, counters);
        }
        if request.certifies {
            // Counted at once, so that the many requests of one batch do not all find the limit
            // unused.
            self.certified.count(address, CERTIFIED_LEN, now_ns);
        }
        LimitVerdict::Send
    }

    /// Counts an answer from the slow path to `peer`, of `answer_len` bytes in `datagrams`.
    /// `request` had `request_len` bytes.
    pub fn count_slow(
        &mut self,
        peer: Peer,
        request: SlowRequest,
        request_len: usize,
        answer_len: usize,
        datagrams: usize,
    ) {
        if self.exempts(peer) {
            return;
        }
        let beyond = bytes_beyond(answer_len, request_len);
        let (LastPeer { address, network, .. }, now_ns) = (self.last, self.now_ns);
        match request.certifies {
            true => self.certified.count(address, beyond.saturating_sub(CERTIFIED_LEN), now_ns),
            false => self.equal.count(network, request.identity, beyond, now_ns),
        }
        if datagrams > 1 {
            self.long.count(address, beyond, now_ns);
        }
        if let Some(limiter) = &mut self.datagrams {
            limiter.count(address, u32::try_from(datagrams).unwrap_or(u32::MAX), now_ns);
        }
    }

    #[cold]
    fn limited(&mut self, request_len: usize, counters: &Counters) -> LimitVerdict {
        if self.dry_run {
            counters.rate_limit_dry_run.add(1);
            return LimitVerdict::Send;
        }
        if self.slip > 0 {
            self.limited_until_slip -= 1;
            if self.limited_until_slip == 0 {
                self.limited_until_slip = self.slip;
                // A slip is never longer than its request, so a flood draws at most its own bytes.
                if request_len >= SLIP_LEN {
                    counters.rate_limit_slipped.add(1);
                    return LimitVerdict::Slip;
                }
            }
        }
        counters.dropped_rate_limited.add(1);
        LimitVerdict::Drop
    }
}

/// The addresses of this host that have no limit: 127.0.0.1 and ::1.
const LOOPBACK: [u128; 2] = [Ipv4Addr::LOCALHOST.to_ipv6_mapped().to_bits(), Ipv6Addr::LOCALHOST.to_bits()];

/// Bytes of an answer beyond those of its question.
fn bytes_beyond(answer_len: usize, request_len: usize) -> u32 {
    u32::try_from(answer_len.saturating_sub(request_len)).unwrap_or(u32::MAX)
}

/// Bytes of the shortest datagram of a train, whose last datagram may be shorter than the others.
#[inline]
#[must_use]
pub fn shortest_len(datagram: &Datagram<'_>) -> usize {
    match datagram.bytes.len().checked_rem(datagram.segment_len) {
        None | Some(0) => datagram.segment_len.min(datagram.bytes.len()),
        Some(last) => last,
    }
}

/// A seed that is secret to outsiders, from the keys that the standard library draws for its maps.
fn random_seed() -> HashSeed {
    let random = RandomState::new();
    HashSeed(std::array::from_fn(|at| random.hash_one(at)))
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
    use super::limiter::tests::SEED;
    use super::*;

    fn rate_limit(config: &RateLimitConfig) -> RateLimit {
        RateLimit::new(config, 1, SEED, Instant::now())
    }

    fn limited(rate_limit: &mut RateLimit, request_len: usize, counters: &Counters) -> LimitVerdict {
        rate_limit.limited(request_len, counters)
    }

    #[test]
    fn is_there_unless_it_is_off() {
        assert!(RateLimit::open(&RateLimitConfig::default(), 1).is_some());
        assert!(RateLimit::open(&RateLimitConfig { enabled: false, ..Default::default() }, 1).is_none());
    }

    fn peer(address: &str) -> Peer {
        Peer::to((address.parse::<IpAddr>().unwrap(), 1).into())
    }

    /// An answer of `len` bytes to a question of 80.
    fn verdict(rate_limit: &mut RateLimit, from: &str, len: usize, identity: u64) -> LimitVerdict {
        let answer = AnswerSize { len, datagrams: len.div_ceil(512), identity };
        rate_limit.verdict(peer(from), answer, 80, &Counters::default())
    }

    #[test]
    fn only_this_host_and_listed_peers_are_exempt() {
        let exempt = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let mut rate_limit = rate_limit(&RateLimitConfig { exempt, ..Default::default() });
        for (address, expected) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.7", true),
            ("2001:db8::1", true),
            ("127.0.0.2", false),
            ("::2", false),
            ("192.0.3.7", false),
            ("127.0.0.1", true),
        ] {
            assert_eq!(rate_limit.exempts(peer(address)), expected, "{address}");
            let answered =
                (0..10_000).all(|_| verdict(&mut rate_limit, address, 400, 1) == LimitVerdict::Send);
            assert_eq!(answered, expected, "{address}");
        }
    }

    #[test]
    fn equal_answers_are_limited_and_different_ones_are_not() {
        let mut rate_limit = rate_limit(&RateLimitConfig::default());
        let mut sent = |from: &str, identity: fn(usize) -> u64| {
            (0..10_000)
                .filter(|&at| verdict(&mut rate_limit, from, 400, identity(at)) == LimitVerdict::Send)
                .count()
        };
        assert_eq!(sent("192.0.2.1", |_| 7), 52, "16 KiB of 320 bytes");
        assert_eq!(sent("192.0.2.2", |_| 7), 0, "nor to the network");
        assert_eq!(sent("192.0.3.1", |_| 7), 52, "but to another");
        assert_eq!(sent("192.0.2.1", |at| at as u64 * 272), 10_000, "a cache asks for what is different");
    }

    #[test]
    fn long_answers_are_limited_however_different_they_are() {
        let mut rate_limit = rate_limit(&RateLimitConfig::default());
        let mut sent = |from: &str, len: usize| {
            (0..1000)
                .filter(|&at| verdict(&mut rate_limit, from, len, at * 272) == LimitVerdict::Send)
                .count()
        };
        assert_eq!(sent("192.0.2.1", 2048), 67, "128 KiB of 1,968 bytes");
        assert_eq!(sent("192.0.2.1", 512), 1000, "short ones are not");
        assert_eq!(sent("192.0.2.2", 2048), 67, "to another address");
    }

    #[test]
    fn answers_no_longer_than_their_questions_are_free() {
        let mut rate_limit = rate_limit(&RateLimitConfig::default());
        assert!((0..100_000).all(|_| verdict(&mut rate_limit, "192.0.2.1", 80, 7) == LimitVerdict::Send));
    }

    #[test]
    fn certified_answers_are_limited_first() {
        let counters = Counters::default();
        let mut rate_limit = rate_limit(&RateLimitConfig::default());
        let mut sent = |certifies| {
            let verdicts = (0..1000).map(|identity| {
                let request = SlowRequest { identity: identity * 272, certifies };
                let verdict = rate_limit.verdict_slow(peer("192.0.2.1"), request, 80, &counters);
                if verdict == LimitVerdict::Send {
                    rate_limit.count_slow(peer("192.0.2.1"), request, 80, 900, 2);
                }
                verdict
            });
            verdicts.filter(|&verdict| verdict == LimitVerdict::Send).count()
        };
        assert_eq!(sent(true), 40, "32 KiB of 820 bytes");
        assert_eq!(sent(false), 160 - 40, "128 KiB of 820 bytes, of which the certified ones are some");
    }

    #[test]
    fn a_slow_request_has_the_identity_of_its_handle_however_it_is_spelt() {
        let request = |handle: &str, flags: OpFlags| {
            let query = Query {
                handle: handle.as_bytes(),
                indexes: handle_proto::wire::list::Indexes::EMPTY,
                types: handle_proto::wire::list::Strings::EMPTY,
            };
            let header = Header::request(OpCode::RESOLUTION, flags, 0);
            let request = handle_proto::wire::Request::Resolution(query);
            let message =
                handle_proto::wire::MessageBuf::request(&Envelope::request(1), &header, &request).unsigned();
            SlowRequest::of(&message.unwrap())
        };
        let (plain, signed) = (OpFlags::PLAIN_REQUEST, OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY));
        assert_eq!(request("10.1/a", plain), request("10.1/A", plain));
        assert_ne!(request("10.1/a", plain), request("10.1/b", plain));
        assert!(request("10.1/a", signed).certifies && !request("10.1/a", plain).certifies);
        for len in 0..60 {
            let _ = SlowRequest::of(&vec![0xff; len]);
        }
    }

    #[test]
    fn every_nth_limited_answer_slips() {
        for (slip, expected) in [(0, [0; 6]), (1, [1; 6]), (2, [0, 1, 0, 1, 0, 1]), (3, [0, 0, 1, 0, 0, 1])] {
            let counters = Counters::default();
            let mut rate_limit = rate_limit(&RateLimitConfig { slip, ..Default::default() });
            let slipped =
                expected.map(|_| u8::from(limited(&mut rate_limit, 64, &counters) == LimitVerdict::Slip));
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
        assert_eq!(limited(&mut rate_limit, SLIP_LEN - 1, &counters), LimitVerdict::Drop);
        assert_eq!(limited(&mut rate_limit, SLIP_LEN, &counters), LimitVerdict::Slip);
    }

    #[test]
    fn a_dry_run_only_counts() {
        let counters = Counters::default();
        let mut rate_limit = rate_limit(&RateLimitConfig { dry_run: true, slip: 1, ..Default::default() });
        assert_eq!(limited(&mut rate_limit, 64, &counters), LimitVerdict::Send);
        assert_eq!(counters.rate_limit_dry_run.get(), 1);
        assert_eq!(counters.rate_limit_slipped.get() + counters.dropped_rate_limited.get(), 0);
    }

    #[test]
    fn other_settings_keep_what_was_counted() {
        let counters = Counters::default();
        let strict = RateLimitConfig { address_per_s: 1, slip: 0, ..Default::default() };
        let mut limited = RateLimit::open(&strict, 1);
        let mut change = |config: RateLimitConfig, expected| {
            RateLimit::set(&mut limited, &config, 1);
            let answer = AnswerSize { len: 64, datagrams: 1, identity: 1 };
            let verdict = |it: &mut Box<RateLimit>| it.verdict(peer("127.0.0.2"), answer, 64, &counters);
            assert_eq!(limited.as_mut().map(verdict), expected, "{config:?}");
        };
        change(strict.clone(), Some(LimitVerdict::Send));
        change(strict.clone(), Some(LimitVerdict::Drop));
        change(RateLimitConfig { address_per_s: 100, ..strict.clone() }, Some(LimitVerdict::Drop));
        change(RateLimitConfig { slip: 1, ..strict.clone() }, Some(LimitVerdict::Slip));
        let exempt = vec!["127.0.0.0/8".parse().unwrap()];
        change(RateLimitConfig { exempt, ..strict.clone() }, Some(LimitVerdict::Send));
        change(strict.clone(), Some(LimitVerdict::Drop));
        change(RateLimitConfig { address_per_s: 0, ..strict.clone() }, Some(LimitVerdict::Send));
        change(RateLimitConfig { enabled: false, ..strict.clone() }, None);
        change(strict, Some(LimitVerdict::Send));
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
