//! Messages in a session: checking and decrypting incoming ones, sealing and encrypting outgoing
//! ones.

use crate::facts::{PROTECTED_SINCE, SessionIdentity, SessionKeys};
use handle_auth::SignError;
use handle_proto::Version;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::list::Reference;
use handle_proto::wire::{Envelope, Message};
use zeroize::Zeroizing;

/// A session as seen by code that handles its messages, whichever process holds the table. Time is
/// in seconds by the clock of the caller; a table in another process uses its own clock.
pub trait LiveSession: std::fmt::Debug {
    /// The keys and parameters to check and seal messages.
    fn keys(&self) -> &SessionKeys;

    /// Accepts a message with this counter, whose MAC is valid, at most once.
    ///
    /// # Errors
    /// For a replay, and when the session has ended or cannot be reached elsewhere.
    fn accept(&self, counter: i32, now_s: u32) -> Result<(), MessageRejection>;

    /// Takes the counter for the next outgoing message.
    fn next_counter(&self) -> i32;

    /// The authenticated identity of the client.
    fn identity(&self) -> Option<SessionIdentity>;

    /// Records that `claimed` has been authenticated with the key in its value `index`; all further
    /// messages count as sent by it. Returns false for any identity other than the one that the
    /// session was set up for.
    fn authenticate(&self, claimed: Reference<'_>, index: i32, now_s: u32) -> bool;
}

/// Why a message in a session is not accepted. RFC 3652 section 3.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageRejection {
    /// The MAC is wrong or cannot be parsed.
    WrongMac,
    /// A message with this counter has been accepted before, or the counter is too old to tell.
    Replayed(i32),
    /// The session, which other processes share, has ended.
    Ended,
    /// The database in which other processes share the session does not answer.
    Unavailable,
}

/// Whether `version`, of a message or of the answer to it, protects less than the version of the
/// session. No client requests this; it shows that an attacker on the path has changed the version
/// to get a less protected answer.
#[must_use]
pub fn is_downgraded(session: &(impl LiveSession + ?Sized), version: Version) -> bool {
    session.keys().version >= PROTECTED_SINCE && version < PROTECTED_SINCE
}

/// Checks the decrypted message that follows `envelope`. Returns whether it has a valid MAC; a
/// message without a MAC proves nothing.
///
/// # Errors
/// When the MAC is wrong, the message is a replay, its version protects less than the version of
/// the session, or the session does not accept messages any more.
pub fn check(
    session: &(impl LiveSession + ?Sized),
    envelope: &Envelope,
    message: &Message<'_>,
    now_s: u32,
) -> Result<bool, MessageRejection> {
    if is_downgraded(session, envelope.answer_version()) {
        return Err(MessageRejection::WrongMac);
    }
    match message.decode_credential() {
        Ok(Some(credential)) if credential.is_mac() => {}
        // As in deployed servers, a signature in a session is ignored.
        Ok(_) => return Ok(false),
        Err(_) => return Err(MessageRejection::WrongMac),
    }
    if is_downgraded(session, envelope.version) {
        return Err(MessageRejection::WrongMac);
    }
    let credential = session.keys().mac.verify(envelope, message).map_err(|_| MessageRejection::WrongMac)?;
    session.accept(credential.counter, now_s).map(|()| true)
}

/// Appends a MAC to `message`, an answer with its envelope. Does not allocate if `message` has
/// enough capacity.
///
/// # Errors
/// When `message` is invalid, or its version protects less than the version of the session.
pub fn seal(session: &(impl LiveSession + ?Sized), message: &mut Vec<u8>) -> Result<(), SignError> {
    let version = Envelope::split(message).map_or(PROTECTED_SINCE, |(envelope, _)| envelope.version);
    if is_downgraded(session, version) {
        return Err(SignError::Failed);
    }
    session.keys().mac.seal(message, session.next_counter())
}

/// Decrypts the bytes that follow `envelope`, and changes the envelope to that of a decrypted
/// message. `None` when decryption fails.
#[must_use]
pub fn decrypt(
    session: &(impl LiveSession + ?Sized),
    envelope: &mut Envelope,
    bytes: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let text = session.keys().mac.key().decrypt(envelope.version, bytes)?;
    envelope.flags.0 &= !EnvelopeFlags::ENCRYPTED.0;
    envelope.message_len = u32::try_from(text.len()).ok()?;
    Some(text)
}

/// Encrypts the part of `message` after its envelope. `random` must be fresh for each message.
pub fn encrypt(session: &(impl LiveSession + ?Sized), random: &[u8; 16], message: &mut Vec<u8>) {
    let Ok((envelope, text)) = Envelope::split(message) else { return };
    let hidden = session.keys().mac.key().encrypt(envelope.version, random, text);
    let flags = EnvelopeFlags(envelope.flags.0 | EnvelopeFlags::ENCRYPTED.0);
    let message_len = u32::try_from(hidden.len()).expect("parts of a message are below 4 GiB");
    message.truncate(Envelope::LEN);
    message.copy_from_slice(&Envelope { flags, message_len, ..envelope }.to_bytes());
    message.extend_from_slice(&hidden);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::NewSession;
    use crate::session::Session;
    use crate::table::tests::new_session;
    use handle_proto::wire::credential::Credential;
    use handle_proto::wire::{Header, MessageBuf};
    use handle_proto::{OpCode, OpFlags, ResponseCode};

    fn message(version: Version) -> Vec<u8> {
        let envelope = Envelope { version, session_id: 5, ..Envelope::request(9) };
        let header = Header {
            op_code: OpCode::RESOLUTION,
            response_code: ResponseCode::RESERVED,
            flags: OpFlags::PLAIN_REQUEST,
            site_serial: -1,
            recursion_count: 0,
            reserved: 0,
            expiration: 0,
            body_len: 0,
        };
        MessageBuf::new(&envelope, &header, |out| out.extend_from_slice(b"body")).unsigned().unwrap()
    }

    fn session(version: Version) -> Session {
        Session::new(5, NewSession { version, ..new_session() }, 60, 0)
    }

    fn check_bytes(session: &Session, bytes: &[u8]) -> Result<bool, MessageRejection> {
        let (envelope, rest) = Envelope::split(bytes).unwrap();
        check(session, &envelope, &Message::decode(rest).unwrap(), 0)
    }

    #[test]
    fn a_sealed_message_is_accepted_once_and_a_changed_one_never() {
        for minor in 1..=11 {
            let version = Version::new(2, minor);
            let (client, server) = (session(version), session(version));
            let mut first = message(version);
            assert_eq!(check_bytes(&server, &first), Ok(false), "2.{minor}: no MAC");
            seal(&client, &mut first).unwrap();
            for at in Envelope::LEN..Envelope::LEN + Header::LEN {
                let mut changed = first.clone();
                changed[at] ^= 1;
                // A changed body length makes the credential disappear.
                let (envelope, rest) = Envelope::split(&changed).unwrap();
                let verdict = Message::decode(rest).map(|message| check(&server, &envelope, &message, 0));
                assert!(!matches!(verdict, Ok(Ok(true))), "2.{minor} byte {at}");
            }
            assert_eq!(check_bytes(&server, &first), Ok(true), "2.{minor}");
            let again = if minor < 5 { Ok(true) } else { Err(MessageRejection::Replayed(1)) };
            assert_eq!(check_bytes(&server, &first), again, "2.{minor}");
            let mut second = message(version);
            seal(&client, &mut second).unwrap();
            let elsewhere = Session::new(6, NewSession { version, ..new_session() }, 60, 0);
            assert_eq!(check_bytes(&elsewhere, &second), Ok(true), "the same key, so nothing tells");
            assert_eq!(check_bytes(&server, &second), Ok(true), "2.{minor}");
        }
    }

    #[test]
    fn a_session_has_no_messages_of_versions_that_protect_less() {
        let session = session(Version::CURRENT);
        let downgraded = Err(MessageRejection::WrongMac);
        for (minor, suggested, without_mac, with_mac) in [
            (11, 11, Ok(false), Ok(true)),
            (7, 7, Ok(false), Ok(true)),
            // Clients send this version before they know the version of a server.
            (3, 11, Ok(false), downgraded),
            (11, 6, downgraded, downgraded),
        ] {
            let case = format!("2.{minor} that suggests 2.{suggested}");
            let mut request = message(Version::new(2, minor));
            request[3] = suggested;
            assert_eq!(check_bytes(&session, &request), without_mac, "{case}");
            session.keys().mac.seal(&mut request, 100 + i32::from(minor)).unwrap();
            assert_eq!(check_bytes(&session, &request), with_mac, "{case}");
        }
        assert!(seal(&session, &mut message(Version::new(2, 6))).is_err());
        assert!(seal(&session, &mut message(Version::new(2, 7))).is_ok());
    }

    #[test]
    fn other_credentials_prove_nothing_and_broken_ones_are_refused() {
        let session = session(Version::CURRENT);
        let mut signed = message(Version::CURRENT);
        let covered_len = signed.len() - Envelope::LEN - 4;
        handle_auth::message::attach(&mut signed, covered_len, |out| {
            Credential::signed(1, b"SHA-256", b"signature").encode(out);
        });
        assert_eq!(check_bytes(&session, &signed), Ok(false));
        handle_auth::message::attach(&mut signed, covered_len, |out| out.extend_from_slice(b"what?"));
        assert_eq!(check_bytes(&session, &signed), Err(MessageRejection::WrongMac));
    }

    #[test]
    fn what_is_encrypted_decrypts_with_its_envelope() {
        for minor in [3, 4, 11] {
            let session = session(Version::new(2, minor));
            let plain = message(Version::new(2, minor));
            let mut hidden = plain.clone();
            encrypt(&session, &[9; 16], &mut hidden);
            let (mut envelope, rest) = Envelope::split(&hidden).unwrap();
            assert!(envelope.flags.has(EnvelopeFlags::ENCRYPTED));
            assert_eq!(envelope.message_len as usize, rest.len());
            let text = decrypt(&session, &mut envelope, rest).unwrap();
            assert_eq!([&envelope.to_bytes()[..], &text].concat(), plain, "2.{minor}");
            assert!(decrypt(&session, &mut envelope, &rest[1..]).is_none(), "2.{minor}");
        }
    }
}
