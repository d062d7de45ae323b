//! Sessions and their messages against a plain list, and the exchange of sessions between two
//! processes.

use arbitrary::{Arbitrary, Unstructured};
use handle_auth::session::SessionKey;
use handle_auth::source::{RequestOrigin, SourceList};
use handle_proto::Version;
use handle_proto::code::Cipher;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Envelope, Header, Message};
use handle_session::facts::{IdentityClaim, PROTECTED_SINCE};
use handle_session::holder::{SharedTable, answer};
use handle_session::protocol::{LinkReply, LinkRequest};
use handle_session::traffic::{check, decrypt, encrypt, seal};
use handle_session::{
    LiveSession as _, MessageRejection, NewSession, SessionLimits, SessionRefusal, SessionTable,
    SessionsConfig,
};
use std::collections::BTreeSet;

/// Maximum number of steps of one input.
const STEPS_MAX: usize = 500;
/// Number of different identities, and of different sources.
const IDENTITIES_COUNT: u8 = 4;
/// Idle time after which an unproven session ends, in seconds.
const UNPROVEN_S: u32 = 60;

#[derive(Debug, Arbitrary)]
enum Step {
    /// A session is set up.
    Open { number: u8, source: u8, claim: Option<u8>, timeout_s: u8, minor: u8 },
    /// A message arrives in the session.
    Message { number: u8, back: u16, forward: u8, change: Option<u8>, hidden: bool },
    /// A client authenticates.
    Prove { number: u8, who: u8 },
    /// The session is ended.
    End { number: u8 },
    /// Time passes.
    Pass { s: u8 },
}

/// A session in a plain list.
struct SessionModel {
    number: u8,
    source: u8,
    claim: Option<u8>,
    /// Whether a message has arrived in it.
    is_proven: bool,
    /// Whether its client has authenticated.
    is_authenticated: bool,
    used_s: u32,
    timeout_s: u32,
    version: Version,
    seen: BTreeSet<i32>,
}

impl SessionModel {
    fn is_over(&self, now_s: u32) -> bool {
        let idle_s_max = if self.is_proven { self.timeout_s } else { self.timeout_s.min(UNPROVEN_S) };
        now_s - self.used_s > idle_s_max
    }
}

fn identity(who: u8) -> Reference<'static> {
    Reference { handle: b"10.1/admin", index: i32::from(who % IDENTITIES_COUNT) }
}

fn key(number: u8) -> SessionKey {
    SessionKey::new(Cipher::AES, vec![number; 32]).expect("the key has a valid length")
}

/// A message of the session after an envelope, without a credential.
fn message(number: u8, version: Version) -> Vec<u8> {
    let len = u32::try_from(Header::LEN).expect("a short message") + 4;
    let envelope = Envelope { version, session_id: number.into(), message_len: len, ..Envelope::request(9) };
    [&envelope.to_bytes()[..], &[0; Header::LEN + 4]].concat()
}

/// Removes from the list what the table evicts for a session of `source`: the oldest unproven
/// session of the same source or of all; if all are proven, the one that is idle for longest.
/// Proven sessions are evicted only for the same source.
fn evict_for(table: &SessionTable, plain: &mut Vec<SessionModel>, source: u8, now_s: u32) {
    while let Some(at) = plain.iter().position(|one| table.find(one.number.into(), now_s).is_none()) {
        let evicted = plain.remove(at);
        let older = &plain[..at];
        if !evicted.is_proven {
            let is_oldest = older.iter().all(|one| one.is_proven);
            let is_oldest_of_source = older.iter().all(|one| one.is_proven || one.source != evicted.source);
            assert!(
                is_oldest || is_oldest_of_source && evicted.source == source,
                "not the oldest session was evicted"
            );
            continue;
        }
        assert!(plain.iter().all(|one| one.is_proven), "a proven session was evicted before an unproven one");
        assert!(!evicted.is_authenticated || evicted.source == source);
        if !evicted.is_authenticated {
            let idle = plain.iter().filter(|one| !one.is_authenticated).map(|one| one.used_s).min();
            assert!(
                idle.is_none_or(|used_s| evicted.used_s <= used_s),
                "not the longest idle session was evicted"
            );
        }
    }
}

/// Sessions are set up, used, expired and refused as in a plain list. No limit is exceeded, and a
/// message is accepted once, unchanged, and only in its session.
///
/// Input: any bytes, parsed as limits and steps by the crate `arbitrary`.
pub fn session_table(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let Ok((sessions_max, per_source)) = input.arbitrary::<(u8, u8)>() else { return };
    let limits = SessionLimits {
        sessions_max: usize::from(sessions_max % 6) + 1,
        per_source_max: 1000,
        unproven_per_source_max: usize::from(per_source % 6) + 1,
        datagrams_per_source_max: None,
        unproven_s: UNPROVEN_S,
        exempt: SourceList::default(),
    };
    let (table, mut plain, mut now_s) = (SessionTable::new(limits.clone()), Vec::<SessionModel>::new(), 0);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let Ok(step) = input.arbitrary() else { break };
        match step {
            Step::Open { number, source, claim, timeout_s, minor } => {
                let version = Version::new(2, minor % 11 + 1);
                let new = NewSession {
                    key: key(number),
                    version,
                    claim: claim.map(|who| IdentityClaim::of(identity(who))),
                    timeout_s: timeout_s.into(),
                    origin: RequestOrigin::connection([192, 0, 2, source % IDENTITIES_COUNT].into()),
                };
                // Among several expired sessions it is unknown which one was evicted.
                table.expire(now_s);
                plain.retain(|one| !one.is_over(now_s));
                let opened = table.open(new, || number.into(), |number| number == 13, now_s);
                let source = source % IDENTITIES_COUNT;
                let is_taken = number == 0 || number == 13 || plain.iter().any(|one| one.number == number);
                let stays = |one: &SessionModel| one.is_authenticated && one.source != source;
                let expected = if is_taken {
                    Err(SessionRefusal::NoNumber)
                } else if plain.len() >= limits.sessions_max && plain.iter().all(stays) {
                    Err(SessionRefusal::Full)
                } else {
                    Ok(i32::from(number))
                };
                assert_eq!(opened.map(|session| session.keys().id), expected);
                if expected.is_err() {
                    continue;
                }
                evict_for(&table, &mut plain, source, now_s);
                plain.push(SessionModel {
                    number,
                    source,
                    claim: claim.map(|who| who % IDENTITIES_COUNT),
                    is_proven: false,
                    is_authenticated: false,
                    used_s: now_s,
                    timeout_s: timeout_s.into(),
                    version,
                    seen: BTreeSet::new(),
                });
                let unproven = plain.iter().filter(|one| one.source == source && !one.is_proven).count();
                assert!(unproven <= limits.unproven_per_source_max);
            }
            Step::Message { number, back, forward, change, hidden } => {
                let found = table.find(number.into(), now_s);
                let known = plain.iter_mut().find(|one| one.number == number && !one.is_over(now_s));
                assert_eq!(found.is_some(), known.is_some());
                let (Some(session), Some(known)) = (found, known) else { continue };
                let highest = known.seen.last().copied().unwrap_or(0);
                let counter = (highest + i32::from(forward)).saturating_sub(i32::from(back));
                let mut sent = message(number, known.version);
                session.keys().mac.seal(&mut sent, counter).expect("a message");
                if let Some(at) = change {
                    let at = Envelope::LEN + usize::from(at) % Header::LEN;
                    sent[at] ^= 1;
                }
                if hidden {
                    encrypt(&*session, &[number; 16], &mut sent);
                }
                let (mut envelope, rest) = Envelope::split(&sent).expect("an envelope");
                let text = match hidden {
                    true => decrypt(&*session, &mut envelope, rest).expect("encrypted with its key").to_vec(),
                    false => rest.to_vec(),
                };
                // A changed length of the body may hide the credential.
                let Ok(opened_message) = Message::decode(&text) else { continue };
                let verdict = check(&*session, &envelope, &opened_message, now_s);
                if change.is_some() {
                    assert_ne!(verdict, Ok(true), "a changed message was accepted");
                    continue;
                }
                let counts = known.version >= Version::new(2, 5);
                let too_old = counter < 1 || counter + 200 < highest;
                let is_new = !counts || !too_old && !known.seen.contains(&counter);
                assert_eq!(verdict, if is_new { Ok(true) } else { Err(MessageRejection::Replayed(counter)) });
                if is_new {
                    if known.version >= PROTECTED_SINCE || !known.is_proven {
                        known.used_s = now_s;
                    }
                    known.is_proven = true;
                    if counts {
                        known.seen.insert(counter);
                    }
                }
                let before = session.next_counter();
                seal(&*session, &mut message(number, known.version)).expect("a message");
                assert_eq!(session.next_counter(), before + 2);
            }
            Step::Prove { number, who } => {
                let Some(session) = table.find(number.into(), now_s) else { continue };
                let known = plain.iter_mut().find(|one| one.number == number);
                let known = known.expect("the list has the session that the table found");
                let is_right = session.authenticate(identity(who), 300, now_s);
                assert_eq!(is_right, known.claim == Some(who % IDENTITIES_COUNT));
                if is_right {
                    (known.is_proven, known.is_authenticated, known.used_s) = (true, true, now_s);
                }
                assert_eq!(session.identity().is_some(), known.is_authenticated);
            }
            Step::End { number } => {
                let at = plain.iter().position(|one| one.number == number);
                assert_eq!(table.end(number.into()), at.map(|at| plain.remove(at)).is_some());
            }
            Step::Pass { s } => {
                now_s += u32::from(s);
                table.expire(now_s);
                plain.retain(|one| !one.is_over(now_s));
            }
        }
        assert_eq!(table.len(), plain.len());
        assert!(table.len() <= limits.sessions_max);
    }
}

/// A process with a few sessions.
struct ModelProcess(SessionTable);

impl SharedTable for ModelProcess {
    fn sessions(&self) -> Option<&SessionTable> {
        Some(&self.0)
    }

    fn now_s(&self) -> u32 {
        5
    }

    fn random(&self) -> u32 {
        self.0.counts().opened.try_into().unwrap_or(u32::MAX)
    }

    fn is_taken(&self, number: i32) -> bool {
        number == 3
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

/// A request from one process to another decodes to a value that encodes to the same bytes. Every
/// request has a reply, for which the same is true.
///
/// Input: frames, each after its length in one byte.
pub fn session_socket(bytes: &[u8]) {
    let process = ModelProcess(SessionTable::new(SessionLimits {
        sessions_max: 3,
        ..SessionsConfig::default().limits()
    }));
    let mut rest = bytes;
    while let Some((&len, after)) = rest.split_first() {
        let (frame, after) = after.split_at(after.len().min(len.into()));
        rest = after;
        if let Some(reply) = LinkReply::decode(frame) {
            assert_eq!(encoded(|out| reply.encode(out)), frame, "{reply:?}");
        }
        let Some(request) = LinkRequest::decode(frame) else { continue };
        assert_eq!(encoded(|out| request.encode(out)).len(), frame.len(), "{request:?}");
        let reply_frame = encoded(|out| answer(&process, request).encode(out));
        let again = LinkReply::decode(&reply_frame).expect("the encoded reply decodes");
        assert_eq!(encoded(|out| again.encode(out)), reply_frame, "{again:?}");
        assert!(process.0.len() <= 3);
    }
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}
