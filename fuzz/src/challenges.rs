//! The table of challenges against a plain list.

use arbitrary::{Arbitrary, Unstructured};
use handle_auth::challenges::{
    ChallengeCounts, ChallengeLimits, ChallengeRefusal, Challenges, IssuedChallenge,
};
use handle_auth::digest::Digest;
use handle_auth::source::{RequestOrigin, SourceList};
use handle_proto::Version;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most numbers tried for a new challenge.
const TRIES: usize = 8;
/// Maximum number of steps of one input; a small table needs few.
const STEPS_MAX: usize = 2000;

#[derive(Debug, Arbitrary)]
struct LimitsSpec {
    challenges: u8,
    bytes: u8,
    per_source: u8,
    age_ms: u8,
}

#[derive(Debug, Arbitrary)]
enum Step {
    /// A request of `len` bytes from one of a few sources gets a challenge.
    Issue { source: u8, len: u8, number: u32, step: u8 },
    /// An answer to one of the challenges so far, or to one that does not exist.
    Take { number: u32 },
    /// An answer to the `at`-th pending challenge.
    TakePending { at: u8 },
    /// Time passes.
    Pass { ms: u8 },
}

/// The plain model of the table.
struct ChallengeModel {
    limits: ChallengeLimits,
    /// Pending challenges; the oldest comes first.
    pending: Vec<ModelChallenge>,
    now_ms: u64,
}

struct ModelChallenge {
    id: i32,
    source: u8,
    len: usize,
    expires_ms: u64,
}

/// A few sources, some of them equivalent: two addresses of one IPv6 network, one IPv4 address in
/// two forms.
fn address(source: u8) -> IpAddr {
    let host = source / 4 % 4;
    let v4 = Ipv4Addr::new(192, 0, 2, host);
    match source % 4 {
        0 => IpAddr::V4(v4),
        1 => IpAddr::V6(v4.to_ipv6_mapped()),
        _ => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, host.into(), 0, 0, 0, (source % 4).into())),
    }
}

/// Returns the same number for equivalent sources.
fn group(source: u8) -> u8 {
    source / 4 % 4 * 2 + u8::from(source % 4 >= 2)
}

impl ChallengeModel {
    fn expire(&mut self) -> u64 {
        let before = self.pending.len();
        self.pending.retain(|challenge| challenge.expires_ms > self.now_ms);
        (before - self.pending.len()) as u64
    }

    fn bytes(&self) -> usize {
        self.pending.iter().map(|challenge| challenge.len).sum()
    }

    /// Returns the number of the challenge, and how many challenges were evicted for it.
    fn issue(&mut self, source: u8, len: usize, numbers: &[u32]) -> (Result<i32, ChallengeRefusal>, u64) {
        let limits = &self.limits;
        if limits.challenges_max == 0 || len > limits.bytes_max {
            return (Err(ChallengeRefusal::TooLong), 0);
        }
        let ids = numbers.iter().map(|number| i32::try_from(number % (1 << 31)).expect("31 bits"));
        let free =
            ids.take(TRIES).find(|&id| id != 0 && self.pending.iter().all(|challenge| challenge.id != id));
        let Some(id) = free else { return (Err(ChallengeRefusal::NoNumber), 0) };
        let mut displaced = 0;
        let of_source = |challenge: &ModelChallenge| group(challenge.source) == group(source);
        while self.pending.iter().filter(|challenge| of_source(challenge)).count() >= limits.per_source_max {
            let oldest = self.pending.iter().position(of_source).expect("the source has a challenge");
            self.pending.remove(oldest);
            displaced += 1;
        }
        while self.pending.len() >= limits.challenges_max || self.bytes() + len > limits.bytes_max {
            self.pending.remove(0);
            displaced += 1;
        }
        self.pending.push(ModelChallenge { id, source, len, expires_ms: self.now_ms + limits.age_ms_max });
        (Ok(id), displaced)
    }
}

/// Challenges are created, taken, expired and refused as by a linear search in a list. None is
/// taken twice or late, no limit is exceeded, and everything is counted.
///
/// Input: any bytes, parsed as limits and steps by the crate `arbitrary`.
pub fn challenges(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let Ok(LimitsSpec { challenges, bytes, per_source, age_ms }) = input.arbitrary() else { return };
    let limits = ChallengeLimits {
        challenges_max: (challenges % 20).into(),
        bytes_max: bytes.into(),
        per_source_max: usize::from(per_source % 10).max(1),
        datagrams_per_source_max: None,
        age_ms_max: age_ms.into(),
        exempt: SourceList::default(),
    };
    let mut table = Challenges::new(limits.clone());
    let mut model = ChallengeModel { limits, pending: vec![], now_ms: 0 };
    let mut expected = table.counts();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let Ok(step) = input.arbitrary() else { break };
        match step {
            Step::Issue { source, len, number, step } => {
                expected.expired += model.expire();
                let numbers: Vec<u32> = (0..9u32).map(|n| number.wrapping_add(n * u32::from(step))).collect();
                let (issued, displaced) = model.issue(source, len.into(), &numbers);
                expected.displaced += displaced;
                expected.issued += u64::from(issued.is_ok());
                let mut numbers_left = numbers.iter().copied();
                let numbers = || numbers_left.next().expect("no more numbers are tried");
                let challenge = challenge(issued.unwrap_or(0), len.into());
                assert_eq!(
                    table.issue(RequestOrigin::datagram(address(source)), challenge, numbers, model.now_ms),
                    issued
                );
            }
            Step::Take { number } => take(&mut table, &mut model, number.cast_signed(), &mut expected),
            Step::TakePending { at } => {
                let id = model
                    .pending
                    .get(usize::from(at) % model.pending.len().max(1))
                    .map(|challenge| challenge.id);
                take(&mut table, &mut model, id.unwrap_or(-1), &mut expected);
            }
            Step::Pass { ms } => {
                model.now_ms += u64::from(ms);
                table.expire(model.now_ms);
                expected.expired += model.expire();
            }
        }
        assert_eq!((table.len(), table.bytes()), (model.pending.len(), model.bytes()));
        let ChallengeLimits { challenges_max, bytes_max, .. } = model.limits;
        assert!(table.len() <= challenges_max && table.bytes() <= bytes_max);
        assert_eq!(table.counts(), expected);
        assert_eq!(table.is_empty(), model.pending.is_empty());
    }
}

/// Creates a challenge that can be recognised by its nonce.
fn challenge(id: i32, len: usize) -> IssuedChallenge {
    let mut nonce = [0; 16];
    nonce[..4].copy_from_slice(&id.to_be_bytes());
    IssuedChallenge {
        version: Version::CURRENT,
        suggested: Version::CURRENT,
        nonce,
        digest: Digest::from_bytes(&nonce),
        request: vec![0; len].into_boxed_slice().into(),
    }
}

fn take(table: &mut Challenges, model: &mut ChallengeModel, id: i32, expected: &mut ChallengeCounts) {
    expected.expired += model.expire();
    let at = model.pending.iter().position(|challenge| challenge.id == id);
    let taken = at.map(|at| model.pending.remove(at));
    expected.taken += u64::from(taken.is_some());
    let taken = taken.map(|taken| challenge(taken.id, taken.len));
    assert_eq!(table.take(id, model.now_ms), taken);
    assert_eq!(table.take(id, model.now_ms), None, "the challenge was taken twice");
}
