//! Sessions and starts of nonces in the form in which another process continues with them. Times
//! are those of this process, with which the other one goes on.

use super::{CallerIdentity, CallerSession, CallerSessions, NonceStart, ProvenKey};
use crate::proof_fields::{put_bytes, put_count, put_ms, take_bytes, take_count, take_ms};
use handle_auth::Digest;
use handle_local::callers::NONCE_START_LEN;
use handle_proto::wire::auth::{PUBLIC_KEY, SECRET_KEY};
use zeroize::Zeroizing;

/// The types of values that prove identities.
const KINDS: [&[u8]; 2] = [PUBLIC_KEY, SECRET_KEY];
/// Bytes of a start of nonces without its used nonces: itself, two times and a number.
const START_LEN: usize = NONCE_START_LEN + 2 * 8 + 4;
/// Most bytes of a session without the name of its identity: the id and the secret, the length of
/// the name and the index, six times, and the kind, the index and the digest of the key.
const SESSION_LEN: usize = 16 + 32 + 2 * 4 + 6 * 8 + (1 + 4 + 4 + 32);

impl CallerSessions {
    /// Most bytes that [`encode`](Self::encode) appends.
    pub(crate) fn encoded_len_max(&self) -> usize {
        let starts = self.starts.iter().map(|start| START_LEN + start.used.len() * NONCE_START_LEN);
        let sessions = self.sessions.values().map(|session| SESSION_LEN + session.identity.0.len());
        2 * 4 + starts.chain(sessions).sum::<usize>()
    }

    /// Appends all sessions and starts of nonces.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_count(out, self.starts.len());
        for NonceStart { bytes, issued_ms, valid_ms, used } in &self.starts {
            out.extend_from_slice(bytes);
            put_ms(out, *issued_ms);
            put_ms(out, *valid_ms);
            put_count(out, used.len());
            used.iter().for_each(|end| out.extend_from_slice(end));
        }
        put_count(out, self.sessions.len());
        for (id, session) in &self.sessions {
            out.extend_from_slice(id);
            put_bytes(out, &session.identity.0);
            out.extend_from_slice(&session.identity.1.to_be_bytes());
            out.extend_from_slice(&*session.secret);
            let times = [
                session.asked_ms,
                session.recheck_ms,
                session.started_ms,
                session.used_ms,
                session.idle_ms,
                session.age_ms,
            ];
            times.into_iter().for_each(|ms| put_ms(out, ms));
            put_key(out, session.key.as_ref());
        }
    }

    /// Adds the sessions and starts of nonces of another process; `None`, with those read so far,
    /// if they are not of this form.
    pub(crate) fn continue_with(&mut self, rest: &mut &[u8]) -> Option<()> {
        for _ in 0..take_count(rest)? {
            let bytes = take_array(rest)?;
            let (issued_ms, valid_ms) = (take_ms(rest)?, take_ms(rest)?);
            let used = (0..take_count(rest)?).map(|_| take_array(rest)).collect::<Option<_>>()?;
            self.starts.push_back(NonceStart { bytes, issued_ms, valid_ms, used });
        }
        for _ in 0..take_count(rest)? {
            let id = take_array(rest)?;
            let name = take_bytes(rest)?.to_vec();
            let identity = CallerIdentity(name, i32::from_be_bytes(take_array(rest)?));
            let secret = Zeroizing::new(take_array(rest)?);
            let (asked_ms, recheck_ms) = (take_ms(rest)?, take_ms(rest)?);
            let (started_ms, used_ms) = (take_ms(rest)?, take_ms(rest)?);
            let (idle_ms, age_ms) = (take_ms(rest)?, take_ms(rest)?);
            let key = take_key(rest)?;
            let session = CallerSession {
                identity,
                secret,
                key,
                asked_ms,
                recheck_ms,
                started_ms,
                used_ms,
                idle_ms,
                age_ms,
            };
            self.sessions.insert(id, session);
        }
        Some(())
    }
}

fn take_array<const LEN: usize>(rest: &mut &[u8]) -> Option<[u8; LEN]> {
    let (array, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*array)
}

/// Appends a key: its kind, counted from one, or zero if there is none.
fn put_key(out: &mut Vec<u8>, key: Option<&ProvenKey>) {
    let known = key.and_then(|key| Some((key, KINDS.iter().position(|kind| *kind == key.kind)?)));
    let Some((key, kind)) = known else { return out.push(0) };
    out.push(u8::try_from(kind + 1).unwrap_or_default());
    out.extend_from_slice(&key.index.to_be_bytes());
    put_bytes(out, key.digest.as_deref().unwrap_or_default());
}

fn take_key(rest: &mut &[u8]) -> Option<Option<ProvenKey>> {
    let [kind] = take_array(rest)?;
    let Some(kind) = usize::from(kind).checked_sub(1) else { return Some(None) };
    let index = i32::from_be_bytes(take_array(rest)?);
    let digest = take_bytes(rest)?;
    let digest = match digest.len() {
        0 => None,
        1..=32 => Some(Digest::from_bytes(digest)),
        _ => return None,
    };
    Some(Some(ProvenKey { kind: KINDS.get(kind)?, index, digest }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller_sessions::CallerSessionLimits;
    use crate::operation::CandidateKey;
    use handle_auth::challenge::{CoveredBytes, answer_in_session};
    use handle_proto::wire::list::Reference;

    const LIMITS: CallerSessionLimits = CallerSessionLimits {
        nonce_ms: 1000,
        sessions: 3,
        per_identity: 2,
        idle_ms: 100,
        age_ms: 250,
        recheck_ms: 50,
    };

    #[test]
    fn another_process_continues_with_sessions_and_nonces_and_stops_at_what_is_cut_off() {
        let mut table = CallerSessions::new(true);
        let identity = Reference { handle: b"0.NA/20.500.1", index: 300 };
        let key =
            ProvenKey::new(PUBLIC_KEY, &CandidateKey { index: 300, data: Zeroizing::new(b"key".to_vec()) });
        table.begin([1; 16], Zeroizing::new([1; 32]), identity, Some(key), &LIMITS, 10);
        table.begin([2; 16], Zeroizing::new([2; 32]), identity, None, &LIMITS, 20);
        table.start_nonces([5; 16], &LIMITS, 0);
        assert!(table.take(&[[5; 16], [6; 16]].concat(), &LIMITS, 0));
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        let unused = table.encoded_len_max().checked_sub(bytes.len());
        assert!(unused.is_some_and(|len| len <= 2 * (4 + 4 + 32)), "all but keys: {unused:?}");
        let mut next = CallerSessions::new(true);
        let mut rest = &bytes[..];
        next.continue_with(&mut rest).unwrap();
        assert!(rest.is_empty());
        let covered: CoveredBytes<'_> = [b"nonce", b"digest"];
        for id in [1_u8, 2] {
            let answer = answer_in_session(&covered, &[id; 16], &[id; 32]);
            assert!(next.verify(identity, &covered, &answer, 90), "session {id}");
        }
        let (proven, is_due) = next.proven_key([1; 16], 60).unwrap();
        assert!(is_due && proven.index == 300 && proven.digest.is_some());
        assert!(next.proven_key([2; 16], 60).is_none());
        assert!(!next.is_open(&[[5; 16], [6; 16]].concat(), 10), "used");
        assert!(next.is_open(&[[5; 16], [7; 16]].concat(), 10));
        for len in 0..bytes.len() {
            assert_eq!(CallerSessions::new(true).continue_with(&mut &bytes[..len]), None, "cut to {len}");
        }
    }
}
