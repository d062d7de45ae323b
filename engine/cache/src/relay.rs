//! Hands requests to the responsible service that only this service can decide, because they need
//! an identity: requests for more than public values, and changes of records. The service gets the
//! request as it came, over a new connection, and the client gets the answer. Neither is stored.
//!
//! - **Challenges are renumbered.** Servers choose the numbers of their challenges, and two of them
//!   may choose the same one. The client gets a number of this cache instead, and its answer goes
//!   to the server that made the challenge.
//! - **Wrong secrets are counted**, by source, as where they are judged: the responsible service
//!   knows only the address of this cache, which has many clients.
//! - **Answers are signed again.** The signature of the server covers its number, and clients check
//!   signatures with the key of the server that they asked. So the signature is checked and removed
//!   here, and the server part of this process signs the answer.

use crate::policy::PrefixPolicy;
use crate::state::CacheState;
use handle_auth::PublicKey;
use handle_auth::message::verify_message;
use handle_client::plan::{InterfacePurpose, ServerTarget};
use handle_client::raw_exchange::{RawExchangeError, ask_over_tcp};
use handle_daemon::secret_guesses::{GuessLimits, SecretAttempt};
use handle_proto::data::site::InterfaceKind;
use handle_proto::wire::auth::SECRET_KEY;
use handle_proto::wire::{Body, Envelope, Message, Request};
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode, Version};
use handle_resolver::RefusalReason;
use handle_session::numbers::of_handled;
use handle_worker::cache::{MissingRecord, Resolution};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a challenge can be answered; deployed servers keep theirs as long.
const CHALLENGE_TIME: Duration = Duration::from_secs(60);
/// Maximum number of challenges that wait for their answers. The client of another one gets an
/// error.
const CHALLENGES_MAX: usize = 4096;
/// Maximum number of them for one source, so that one client cannot take the places of all others.
const CHALLENGES_BY_SOURCE: usize = CHALLENGES_MAX / 16;

/// The challenges of other services, by the client that has to answer and their numbers here.
#[derive(Debug, Default)]
pub(crate) struct RelayedChallenges(Mutex<HashMap<(IpAddr, i32), RelayedChallenge>>);

/// A challenge of another service.
#[derive(Clone, Debug)]
struct RelayedChallenge {
    /// The server that made it.
    server: ServerTarget,
    /// Its number there.
    number: i32,
    /// What was asked.
    op_code: OpCode,
    handle: Vec<u8>,
    until: Instant,
}

impl RelayedChallenges {
    fn all(&self) -> MutexGuard<'_, HashMap<(IpAddr, i32), RelayedChallenge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `source` has a challenge with this number to answer.
    pub(crate) fn has(&self, source: IpAddr, number: i32) -> bool {
        self.all().contains_key(&(source, number))
    }

    /// Takes a challenge, which can be answered once.
    fn take(&self, source: IpAddr, number: i32) -> Option<RelayedChallenge> {
        self.all().remove(&(source, number)).filter(|challenge| Instant::now() < challenge.until)
    }

    /// Keeps a challenge, and returns its number here; `None` if there are too many.
    fn keep(&self, source: IpAddr, challenge: RelayedChallenge) -> Option<i32> {
        let mut all = self.all();
        let is_full = |all: &HashMap<(IpAddr, i32), _>| {
            let of_source = || all.keys().filter(|(kept, _)| *kept == source).count();
            all.len() >= CHALLENGES_MAX || of_source() >= CHALLENGES_BY_SOURCE
        };
        if is_full(&all) {
            let now = Instant::now();
            all.retain(|_, challenge| now < challenge.until);
        }
        if is_full(&all) {
            return None;
        }
        let number = || of_handled(u32::from_be_bytes(handle_auth::random()) >> 1).cast_signed();
        let number = std::iter::repeat_with(number)
            .find(|&number| number != 0 && !all.contains_key(&(source, number)))?;
        all.insert((source, number), challenge);
        Some(number)
    }
}

/// What a request is about, and who decides it.
struct RelayedRequest {
    op_code: OpCode,
    handle: Vec<u8>,
    /// The servers to try.
    servers: Vec<ServerTarget>,
    /// The number of the challenge that it answers, at the server; 0 if it answers none.
    number: i32,
}

/// The answer of the responsible service to a request, for the client.
pub(crate) fn resolution(state: &CacheState, missing: &MissingRecord) -> Resolution {
    match relay(state, missing) {
        Ok(message) => Resolution::Relayed(message.into()),
        Err(refused) => Resolution::Failed(refused),
    }
}

fn relay(state: &CacheState, missing: &MissingRecord) -> Result<Vec<u8>, RefusalReason> {
    let unreadable = RefusalReason::Malformed;
    let (Some(message), Some(source)) = (missing.relayed(), missing.source()) else { return Err(unreadable) };
    let (mut envelope, rest) = Envelope::split(message).map_err(|_| unreadable)?;
    let request = Message::decode(rest).map_err(|_| unreadable)?;
    let attempt = secret_attempt(state, source, &request, envelope.version);
    if let Some(attempt) = &attempt
        && state.secret_guesses.check(attempt, Instant::now(), &GuessLimits::DEFAULT).is_err()
    {
        state.counters.secret_guesses_refused.add();
        return Err(RefusalReason::TooManySecrets);
    }
    let target = target(state, missing.handle(), source, envelope.session_id, &request)?;
    envelope.session_id = target.number;
    let sent = [&envelope.to_bytes()[..], rest].concat();
    let timeout = Duration::from_millis(state.config.upstream.timeout_ms.into());
    let mut servers = target.servers.into_iter();
    let (server, answer) = loop {
        let server = servers.next().ok_or(RefusalReason::NotResolved)?;
        match ask_over_tcp(server.address, &sent, timeout) {
            Ok(answer) => break (server, answer.message),
            // Nothing has been sent.
            Err(RawExchangeError::Unconnected(_)) => {}
            // The request may have been carried out, so it is not sent again.
            Err(error) => {
                tracing::debug!(server = %server.address, %error, "a request was not answered");
                return Err(RefusalReason::NotResolved);
            }
        }
    };
    let (mut from, rest) = Envelope::split(&answer).map_err(|_| RefusalReason::NotResolved)?;
    let reply = Message::decode(rest).map_err(|_| RefusalReason::NotResolved)?;
    if !is_believed(&from, &reply, &envelope, request.header.flags, &server) {
        state.counters.uncertified.add();
        return Err(RefusalReason::NotResolved);
    }
    let code = reply.header.response_code;
    if let Some(attempt) = attempt.filter(|_| code == ResponseCode::AUTHENTICATION_FAILED) {
        state.counters.secret_guesses.add();
        state.secret_guesses.count(&attempt, Instant::now(), &GuessLimits::DEFAULT);
    }
    if code == ResponseCode::SUCCESS && target.op_code != OpCode::RESOLUTION {
        // The client sees its change.
        state.note_changed(Handle(&target.handle));
    }
    from.session_id = match code {
        ResponseCode::AUTHENTICATION_NEEDED => {
            let (op_code, handle, number) = (target.op_code, target.handle, from.session_id);
            let until = Instant::now() + CHALLENGE_TIME;
            let challenge = RelayedChallenge { server, number, op_code, handle, until };
            state.relayed.keep(source, challenge).ok_or(RefusalReason::TooManyChallenges)?
        }
        _ => 0,
    };
    Ok(without_credential(from, reply.covered))
}

/// The proof with a secret key in a request, unless those of its source are not limited.
fn secret_attempt(
    state: &CacheState,
    source: IpAddr,
    request: &Message<'_>,
    version: Version,
) -> Option<SecretAttempt> {
    if request.header.op_code != OpCode::RESPONSE_TO_CHALLENGE || state.exempt.contains(source) {
        return None;
    }
    match request.decode_body(version).ok()? {
        Body::Request(Request::AnswerChallenge(answer)) if answer.auth_type == SECRET_KEY => {
            Some(SecretAttempt::of_source(source, answer.identity.handle))
        }
        _ => None,
    }
}

/// The servers that decide a request.
fn target(
    state: &CacheState,
    handle: Handle<'_>,
    source: IpAddr,
    number: i32,
    request: &Message<'_>,
) -> Result<RelayedRequest, RefusalReason> {
    let op_code = request.header.op_code;
    if op_code == OpCode::RESPONSE_TO_CHALLENGE {
        let challenge = state.relayed.take(source, number).ok_or(RefusalReason::NoChallenge)?;
        let RelayedChallenge { server, number, op_code, handle, .. } = challenge;
        return Ok(RelayedRequest { op_code, handle, servers: vec![server], number });
    }
    // A denied prefix is not asked about. The servers of a forwarding rule may be caches, which do
    // not decide. The alias of a handle is another handle, and a signed request cannot be changed
    // to it.
    if let Some(PrefixPolicy::Deny | PrefixPolicy::Forward(_) | PrefixPolicy::Alias(_)) =
        state.upstream.policy(handle)
    {
        return Err(RefusalReason::NotHomed);
    }
    let purpose = match op_code {
        OpCode::RESOLUTION => InterfacePurpose {
            kind: InterfaceKind::QUERY,
            primary_only: request.header.flags.has(OpFlags::AUTHORITATIVE),
        },
        _ => InterfacePurpose { kind: InterfaceKind::ADMIN, primary_only: true },
    };
    let certified = state.upstream.certifies(handle);
    match state.upstream.blocking_driver().servers(handle.0, purpose, certified) {
        Ok(servers) => Ok(RelayedRequest { op_code, handle: handle.0.to_vec(), servers, number: 0 }),
        Err(error) => {
            tracing::debug!(?handle, %error, "no service for a request");
            Err(RefusalReason::NotResolved)
        }
    }
}

/// Whether an answer is to the request, whole, and signed by the server if the client wants that.
fn is_believed(
    from: &Envelope,
    reply: &Message<'_>,
    request: &Envelope,
    flags: OpFlags,
    server: &ServerTarget,
) -> bool {
    // The client would wait for more messages.
    from.request_id == request.request_id
        && !reply.header.flags.has(OpFlags::CONTINUOUS)
        && (!flags.has(OpFlags::CERTIFY)
            || PublicKey::from_record(&server.public_key)
                .is_ok_and(|key| verify_message(from, reply, &key).is_ok()))
}

/// A message without its credential.
fn without_credential(envelope: Envelope, covered: &[u8]) -> Vec<u8> {
    let credential_len = [0; 4];
    let len = u32::try_from(covered.len() + credential_len.len()).expect("no longer than it was received");
    let envelope = Envelope { message_len: len, ..envelope };
    [&envelope.to_bytes()[..], covered, &credential_len].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::data::site::InterfaceProtocol;

    fn challenge(until: Instant) -> RelayedChallenge {
        let server = ServerTarget::at(([192, 0, 2, 1], 2641).into(), InterfaceProtocol::TCP);
        RelayedChallenge { server, number: 7, op_code: OpCode::RESOLUTION, handle: b"10.1/x".to_vec(), until }
    }

    #[test]
    fn a_challenge_is_answered_once_in_time_and_by_its_client() {
        let (all, one, other) = (RelayedChallenges::default(), [127, 0, 0, 1].into(), [127, 0, 0, 2].into());
        let later = Instant::now() + CHALLENGE_TIME;
        let number = all.keep(one, challenge(later)).unwrap();
        assert!(number > 0 && all.has(one, number) && !all.has(other, number));
        assert!(all.take(other, number).is_none());
        assert_eq!(all.take(one, number).unwrap().number, 7);
        assert!(all.take(one, number).is_none(), "once");
        let number = all.keep(one, challenge(Instant::now())).unwrap();
        assert!(all.take(one, number).is_none(), "late");
    }

    #[test]
    fn challenges_are_bounded_and_those_that_have_expired_go_first() {
        let (all, later) = (RelayedChallenges::default(), Instant::now() + CHALLENGE_TIME);
        let source = |nth: usize| IpAddr::from([10, 0, 0, u8::try_from(nth).unwrap()]);
        all.keep(source(0), challenge(Instant::now())).unwrap();
        (1..CHALLENGES_BY_SOURCE).for_each(|_| assert!(all.keep(source(0), challenge(later)).is_some()));
        assert!(all.keep(source(0), challenge(later)).is_some(), "in place of the expired one");
        assert!(all.keep(source(0), challenge(later)).is_none(), "one source has its share");
        for nth in CHALLENGES_BY_SOURCE..CHALLENGES_MAX {
            assert!(all.keep(source(nth / CHALLENGES_BY_SOURCE), challenge(later)).is_some());
        }
        assert_eq!(all.all().len(), CHALLENGES_MAX);
        assert!(all.keep(source(99), challenge(later)).is_none(), "all places are taken");
    }
}
