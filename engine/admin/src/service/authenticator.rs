//! What authenticates requesters: open challenges, sessions of both kinds, and the limits on the
//! work that proofs cause.

use super::shared_challenges::ChallengeSharing;
use crate::caller_sessions::CallerSessions;
use crate::costly::CostlyWork;
use crate::proof_fields::{put_bytes, put_count, put_ms, take_bytes, take_count, take_ms};
use handle_auth::challenges::{Challenges, IssuedChallenge, WaitingChallenge};
use handle_auth::clock::MonotonicClock;
use handle_auth::cost::Units;
use handle_auth::source::RequestOrigin;
use handle_daemon::secret_guesses::{self, SecretGuesses};
use handle_daemon::source_rates::SourceRates;
use handle_session::SessionEndpoint;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// The version of the form of proofs.
const PROOFS_VERSION: u8 = 1;
/// At least the bytes of an open challenge without its request.
const CHALLENGE_LEN: usize = 128;
/// Bytes of the version, the time and the number of challenges.
const PROOFS_HEAD_LEN: usize = 1 + 8 + 4;

/// State of all proofs of identities.
#[derive(Debug)]
pub struct Authenticator {
    challenges: Mutex<Challenges>,
    /// Shares challenges with other processes over the same database.
    sharing: Option<ChallengeSharing>,
    sessions: Option<SessionEndpoint>,
    /// The sessions of callers of `handle-gateway`.
    caller_sessions: Mutex<CallerSessions>,
    /// The wrong secret keys of all sources.
    pub(super) secret_guesses: SecretGuesses,
    /// The signatures of nonces that sources have asked for.
    pub(super) nonce_signatures: SourceRates,
    /// The threads for costly work; without them, the thread of the request does the work.
    costly: Option<Arc<CostlyWork>>,
    clock: MonotonicClock,
    /// The time of the process with whose proofs this one continues, at its end.
    begins_at_ms: AtomicU64,
}

impl Authenticator {
    /// No proof has been made yet. Names of identities are compared as `folds` says, which is a
    /// property of the store.
    #[must_use]
    pub fn new(
        challenges: Challenges,
        sharing: Option<ChallengeSharing>,
        sessions: Option<SessionEndpoint>,
        costly: Option<Arc<CostlyWork>>,
        folds: bool,
    ) -> Self {
        Self {
            challenges: Mutex::new(challenges),
            sharing,
            sessions,
            caller_sessions: Mutex::new(CallerSessions::new(folds)),
            secret_guesses: SecretGuesses::new(secret_guesses::ENTRIES),
            nonce_signatures: SourceRates::new(secret_guesses::ENTRIES),
            costly,
            clock: MonotonicClock::start(),
            begins_at_ms: AtomicU64::new(0),
        }
    }

    /// The open challenges.
    pub fn challenges(&self) -> MutexGuard<'_, Challenges> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares challenges with other processes, if they can be over the same database.
    #[must_use]
    pub const fn sharing(&self) -> Option<&ChallengeSharing> {
        self.sharing.as_ref()
    }

    /// The session endpoint, if sessions are enabled.
    #[must_use]
    pub const fn sessions(&self) -> Option<&SessionEndpoint> {
        self.sessions.as_ref()
    }

    /// The sessions of callers of `handle-gateway`.
    pub fn caller_sessions(&self) -> MutexGuard<'_, CallerSessions> {
        self.caller_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The threads for costly work.
    #[must_use]
    pub fn costly(&self) -> Option<&CostlyWork> {
        self.costly.as_deref()
    }

    /// Has `work`, which costs `cost`, done on behalf of `origin` by the threads for costly work;
    /// `None` if their queue is full.
    pub(super) fn run_costly<T: Send + 'static>(
        &self,
        origin: RequestOrigin,
        cost: Units,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        match &self.costly {
            Some(costly) => costly.run(origin, cost, work),
            None => Some(work()),
        }
    }

    /// The time since the start, in milliseconds. A process that continues with the proofs of
    /// another one continues its time.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.begins_at_ms.load(Ordering::Relaxed).saturating_add(self.clock.now_ms())
    }

    /// The open challenges and the sessions of callers, for the process that continues with them.
    /// Challenges that are shared over a database are there already.
    #[must_use]
    pub(crate) fn proofs(&self) -> Zeroizing<Vec<u8>> {
        let challenges = match self.sharing {
            Some(_) => Vec::new(),
            None => self.challenges().all_waiting(),
        };
        let len: usize = challenges.iter().map(|it| it.challenge.request.len() + CHALLENGE_LEN).sum();
        let sessions = self.caller_sessions();
        // It must not grow, because that leaves a copy of secrets in freed memory.
        let len_max = PROOFS_HEAD_LEN + len + sessions.encoded_len_max();
        let mut out = Zeroizing::new(Vec::with_capacity(len_max));
        out.push(PROOFS_VERSION);
        put_ms(&mut out, self.now_ms());
        put_count(&mut out, challenges.len());
        for WaitingChallenge { id, origin, is_in_session, challenge } in challenges {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&[origin.is_connected.into(), is_in_session.into()]);
            let ip = match origin.ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out.extend_from_slice(&ip.octets());
            let mut text = Zeroizing::new(Vec::with_capacity(challenge.request.len() + CHALLENGE_LEN));
            challenge.encode(&mut text);
            put_bytes(&mut out, &text);
        }
        sessions.encode(&mut out);
        debug_assert!(out.len() <= len_max, "it has grown");
        out
    }

    /// Continues with the proofs of another process. False if they are of another version; callers
    /// then have to prove their identities again.
    pub(crate) fn continue_with(&self, proofs: &[u8]) -> bool {
        let Some((&PROOFS_VERSION, mut rest)) = proofs.split_first() else { return false };
        let rest = &mut rest;
        let Some(begins_at_ms) = take_ms(rest) else { return false };
        self.begins_at_ms.store(begins_at_ms, Ordering::Relaxed);
        let now_ms = self.now_ms();
        let Some(count) = take_count(rest) else { return false };
        for _ in 0..count {
            let Some(waiting) = take_challenge(rest) else { return false };
            self.challenges().continue_with(waiting, now_ms);
        }
        self.caller_sessions().continue_with(rest).is_some()
    }
}

/// Takes an open challenge off `rest`.
fn take_challenge(rest: &mut &[u8]) -> Option<WaitingChallenge> {
    let (id, after) = rest.split_first_chunk()?;
    let (&[is_connected, is_in_session], after) = after.split_first_chunk()?;
    let (ip, after) = after.split_first_chunk::<16>()?;
    *rest = after;
    let origin = RequestOrigin { ip: Ipv6Addr::from(*ip).to_canonical(), is_connected: is_connected != 0 };
    let challenge = IssuedChallenge::decode(take_bytes(rest)?)?;
    Some(WaitingChallenge {
        id: i32::from_be_bytes(*id),
        origin,
        is_in_session: is_in_session != 0,
        challenge,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::Digest;
    use handle_auth::challenges::ChallengeLimits;
    use handle_auth::source::SourceList;
    use handle_proto::Version;

    fn authenticator() -> Authenticator {
        let limits = ChallengeLimits {
            challenges_max: 10,
            bytes_max: 1000,
            per_source_max: 10,
            datagrams_per_source_max: None,
            age_ms_max: 60_000,
            exempt: SourceList::default(),
        };
        Authenticator::new(Challenges::new(limits), None, None, None, true)
    }

    #[test]
    fn another_process_continues_with_the_proofs_and_refuses_those_of_another_version() {
        let old = authenticator();
        let issued = IssuedChallenge {
            version: Version::CURRENT,
            suggested: Version::CURRENT,
            nonce: [7; 16],
            digest: Digest::from_bytes(&[2; 20]),
            request: Zeroizing::new(b"a request with a secret".as_slice().into()),
        };
        for ip in ["192.0.2.1", "2001:db8::1"] {
            let origin = RequestOrigin::connection(ip.parse().unwrap());
            old.challenges()
                .issue(origin, issued.clone(), || u32::from_be_bytes(handle_auth::random()), 0)
                .unwrap();
        }
        let proofs = old.proofs();
        let next = authenticator();
        assert!(next.continue_with(&proofs));
        assert_eq!(next.challenges().all_waiting(), old.challenges().all_waiting());
        let mut other = proofs.clone();
        other[0] += 1;
        assert!(!authenticator().continue_with(&other), "another version");
        for len in 0..proofs.len() {
            assert!(!authenticator().continue_with(&proofs[..len]), "cut to {len}");
        }
    }
}
