//! One request to one server: sending, repeating, reassembly of fragments, and checks of the
//! answer.
//!
//! Over UDP the same datagrams are sent three times, with waits of 0.5, 1 and 1.5 seconds for the
//! answer, as deployed clients do; over TCP they are sent once. RFC 3652 section 2.1.2. Over HTTP
//! and HTTPS the message is the body of a request, and of the response to it.

mod http;
mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;

use crate::ClockReading;
use crate::open_session::OpenSession;
use crate::plan::ServerTarget;
use handle_auth::message::verify_message;
use handle_auth::{PublicKey, VerifyError, challenge::check_request_digest};
use handle_proto::data::site::InterfaceProtocol;
use handle_proto::limit::{MESSAGE_LEN_MAX, TCP_TIMEOUT_MS, UDP_REASSEMBLY_MS, UDP_RETRY_MS};
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::message::{Body, MessageTooLong};
use handle_proto::wire::reassembly::{Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::{Envelope, Header, Message, MessageBuf, Reply, Request};
use handle_proto::{DecodeError, OpCode, OpFlags, ResponseCode, Version};
use std::fmt;
use std::sync::Arc;
use stream::ExchangeStream;

/// Timeouts for answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerTimeouts {
    /// After each time that a request is sent in datagrams, in milliseconds.
    pub udp_ms: Vec<u32>,
    /// For an answer over a connection, including connecting, in milliseconds.
    pub tcp_ms: u32,
    /// For the addresses of a name, in milliseconds.
    pub name_ms: u32,
}

impl Default for AnswerTimeouts {
    fn default() -> Self {
        Self { udp_ms: UDP_RETRY_MS.to_vec(), tcp_ms: TCP_TIMEOUT_MS, name_ms: NAME_TIMEOUT_MS }
    }
}

/// Timeout for the addresses of a name: as long as resolvers of the system wait for one server.
const NAME_TIMEOUT_MS: u32 = 5_000;

/// Why an attempt to ask a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptError {
    /// No answer arrived in time.
    Silence,
    /// Some datagrams of the answer arrived in time, but not all.
    Partial,
    /// The connection was refused, or the network does not reach the server.
    Unreachable,
    /// The connection ended before the answer was complete.
    Ended,
    /// The answer does not decode.
    Malformed(DecodeError),
    /// The answer is to another request, another operation or another handle.
    NotOurs(&'static str),
    /// The digest of the request is missing, or that of another request.
    Digest,
    /// The answer is not signed, or not by the server that was asked.
    Signature(VerifyError),
    /// The site record has no usable key, so signatures could not be checked.
    NoKey,
    /// The answer has expired.
    Expired,
    /// The server failed or is busy, or another server is responsible.
    Refused(ResponseCode),
    /// The request is longer than any message.
    TooLong,
    /// The answer is encrypted, but not with the key of the exchange's session.
    Encrypted,
    /// The answer is not HTTP, or has this status instead of success.
    Http(Option<u16>),
    /// The TLS handshake failed.
    Tls,
    /// The certificate has another key than the site record.
    Certificate,
    /// The name of the server has no reachable address.
    NoAddress,
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silence => f.write_str("no answer in time"),
            Self::Partial => f.write_str("only a part of the answer came in time"),
            Self::Unreachable => f.write_str("connection refused or network unreachable"),
            Self::Ended => f.write_str("the connection ended before the answer"),
            Self::Malformed(error) => write!(f, "the answer does not decode: {error}"),
            Self::NotOurs(what) => write!(f, "the answer is to {what}"),
            Self::Digest => f.write_str("the answer does not repeat the digest of the request"),
            Self::Signature(error) => write!(f, "the signature of the answer is invalid: {error}"),
            Self::NoKey => f.write_str("the site record has no key to check signatures with"),
            Self::Expired => f.write_str("the answer has expired (is the clock right?)"),
            Self::Refused(code) => write!(f, "the server answers {} {code}", code.0),
            Self::TooLong => f.write_str("the request is too long to be sent"),
            Self::Encrypted => f.write_str("the answer is encrypted, but in no session of this client"),
            Self::Http(None) => f.write_str("the answer is not HTTP"),
            Self::Http(Some(status)) => write!(f, "the answer over HTTP is {status} instead of 200"),
            Self::Tls => f.write_str("the TLS handshake failed"),
            Self::Certificate => f.write_str("the certificate has another key than the site record"),
            Self::NoAddress => f.write_str("the name of the server has no reachable address"),
        }
    }
}

impl std::error::Error for AttemptError {}

impl AttemptError {
    /// Whether this error of an answer in a session can mean that the server uses the number for
    /// another session. A message that was encrypted with another key decodes to garbage if its
    /// padding happens to fit.
    pub(crate) const fn may_be_of_another_session(self) -> bool {
        matches!(self, Self::Encrypted | Self::Signature(_) | Self::NotOurs(_) | Self::Malformed(_))
    }
}

impl From<DecodeError> for AttemptError {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

impl From<MessageTooLong> for AttemptError {
    fn from(_: MessageTooLong) -> Self {
        Self::TooLong
    }
}

/// The parts of a request besides its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead {
    /// Its flags.
    pub flags: OpFlags,
    /// Number of indirections that led to it.
    pub recursion_count: u8,
    /// The number of the session, or of the answered challenge; 0 for neither.
    pub session_id: i32,
    /// The request id, which must be unpredictable.
    pub request_id: i32,
    /// The operation of the expected answer: that of the challenged request where a challenge is
    /// answered.
    pub answered_as: OpCode,
}

impl RequestHead {
    /// The head of a resolution without indirections.
    #[must_use]
    pub const fn resolution(flags: OpFlags, request_id: i32) -> Self {
        Self { flags, recursion_count: 0, session_id: 0, request_id, answered_as: OpCode::RESOLUTION }
    }
}

/// A positive request id, as deployed clients choose them, from random bits.
#[must_use]
pub const fn request_id(random: u32) -> i32 {
    match (random >> 1).cast_signed() {
        0 => 1,
        id => id,
    }
}

/// One request to one server.
#[derive(Debug)]
pub struct Exchange {
    target: ServerTarget,
    head: RequestHead,
    handle: Vec<u8>,
    message: Vec<u8>,
    covered_len: usize,
    /// Header and body of the challenged request, if this answers a challenge.
    challenged: Option<Vec<u8>>,
    /// The session of the exchange.
    session: Option<Arc<OpenSession>>,
    timeout: AnswerTimeouts,
    began_ms: u64,
    /// Number of times that it was sent.
    sent_count: usize,
    to_send: bool,
    deadline_ms: u64,
    incoming: IncomingAnswer,
}

/// The partial answer.
#[derive(Debug)]
enum IncomingAnswer {
    Datagrams(Reassembly<()>),
    Connection(ExchangeStream),
}

/// Bytes to send now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The server and the protocol.
    pub target: ServerTarget,
    /// The datagrams; for a connection the message as one.
    pub datagrams: Vec<Vec<u8>>,
    /// The number of this attempt, from 1; 0 if the bytes continue an earlier one.
    pub try_number: usize,
}

/// A whole answer that passed all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedAnswer {
    envelope: Envelope,
    message: Vec<u8>,
    /// Time from the first attempt to the answer, in milliseconds.
    pub took_ms: u32,
    /// Whether a signature was requested and is valid.
    pub certified: bool,
    /// Number of datagrams of the answer; 0 over a connection.
    pub datagrams_count: usize,
}

impl ReceivedAnswer {
    /// The envelope.
    #[must_use]
    pub const fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The message, envelope first.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.message
    }

    /// Its header and the decoded reply.
    #[must_use]
    pub fn reply(&self) -> (Header, Reply<'_>) {
        let (_, body) = Envelope::split(&self.message).expect("decoded when it was received");
        let message = Message::decode(body).expect("decoded when it was received");
        match message.decode_body(self.envelope.version) {
            Ok(Body::Reply(reply)) => (message.header, reply),
            _ => unreachable!("a reply when it was received"),
        }
    }
}

impl Exchange {
    /// Starts an exchange. The next [`poll_transmit`](Self::poll_transmit) sends the request.
    ///
    /// # Errors
    /// When the request is too long to be a message, or the server has no key and one is needed to
    /// verify the answer.
    pub fn new(
        target: ServerTarget,
        head: RequestHead,
        request: &Request<'_>,
        timeout: &AnswerTimeouts,
        now: ClockReading,
    ) -> Result<Self, AttemptError> {
        let envelope = Envelope {
            version: target.version,
            suggested: Version::CURRENT,
            session_id: head.session_id,
            ..Envelope::request(head.request_id)
        };
        let header = Header {
            site_serial: target.site_serial,
            recursion_count: head.recursion_count,
            ..Header::request(request.op_code(), head.flags, now.unix_s)
        };
        let message = MessageBuf::request(&envelope, &header, request);
        let covered_len = message.covered().len();
        let message = message.unsigned()?;
        let handle = request.handle().unwrap_or_default();
        let incoming = match target.protocol {
            InterfaceProtocol::UDP => IncomingAnswer::Datagrams(Reassembly::new(ReassemblyLimits {
                messages_max: 1,
                messages_per_sender_max: 1,
                bytes_max: MESSAGE_LEN_MAX as usize,
                age_ms_max: UDP_REASSEMBLY_MS.into(),
            })),
            _ => IncomingAnswer::Connection(ExchangeStream::new(&target, handle, &message)?),
        };
        Ok(Self {
            handle: handle.to_vec(),
            timeout: timeout.clone(),
            target,
            head,
            message,
            covered_len,
            challenged: None,
            session: None,
            began_ms: now.ms,
            sent_count: 0,
            to_send: true,
            deadline_ms: u64::MAX,
            incoming,
        })
    }

    /// Makes this an answer to a challenge: the reply is about `handle`, and has the digest of this
    /// request or of the challenged one, whose header and body are `challenged`.
    #[must_use]
    pub fn answering(mut self, handle: &[u8], challenged: &[u8]) -> Self {
        handle.clone_into(&mut self.handle);
        self.challenged = Some(challenged.to_vec());
        self
    }

    /// Puts the request into a session whose id and version it already has. It gets a MAC, unless
    /// it answers a challenge, which is a proof itself.
    ///
    /// # Errors
    /// When the request is then too long.
    pub(crate) fn in_session(mut self, session: Arc<OpenSession>) -> Result<Self, AttemptError> {
        self.session = Some(session);
        if let IncomingAnswer::Connection(stream) = &mut self.incoming
            && self.challenged.is_none()
        {
            let sealed = self.session.as_ref().expect("just now").sealed(self.message.clone())?;
            *stream = ExchangeStream::new(&self.target, &self.handle, &sealed)?;
        }
        Ok(self)
    }

    /// The session of the exchange.
    pub(crate) const fn session(&self) -> Option<&Arc<OpenSession>> {
        self.session.as_ref()
    }

    /// The datagrams of the request. In a session each attempt has a new counter and MAC, because
    /// servers refuse a counter that they have seen.
    fn datagrams(&self) -> Vec<Vec<u8>> {
        let sealed = match &self.session {
            Some(session) if self.challenged.is_none() => session.sealed(self.message.clone()).ok(),
            _ => None,
        };
        let message = sealed.as_ref().unwrap_or(&self.message);
        let (envelope, data) = Envelope::split(message).expect("a message of ours");
        cut(&envelope).map(|fragment| [&fragment.envelope, &data[fragment.range]].concat()).collect()
    }

    /// The server.
    #[must_use]
    pub const fn target(&self) -> &ServerTarget {
        &self.target
    }

    /// Header and body of the request, which digests of it cover.
    #[must_use]
    pub fn covered(&self) -> &[u8] {
        &self.message[Envelope::LEN..][..self.covered_len]
    }

    const fn is_over_datagrams(&self) -> bool {
        matches!(self.incoming, IncomingAnswer::Datagrams(_))
    }

    /// The bytes to send now.
    pub fn poll_transmit(&mut self, now: ClockReading) -> Option<Transmit> {
        if !std::mem::take(&mut self.to_send) {
            return None;
        }
        let datagrams = match &mut self.incoming {
            IncomingAnswer::Datagrams(_) => self.datagrams(),
            IncomingAnswer::Connection(stream) => vec![stream.outgoing()],
        };
        let goes_on = !self.is_over_datagrams() && self.sent_count > 0;
        if !goes_on {
            let wait_ms = match self.is_over_datagrams() {
                true => self.timeout.udp_ms.get(self.sent_count).copied().unwrap_or_default(),
                false => self.timeout.tcp_ms,
            };
            self.deadline_ms = now.ms.saturating_add(wait_ms.into());
            self.sent_count += 1;
        }
        let try_number = if goes_on { 0 } else { self.sent_count };
        Some(Transmit { target: self.target.clone(), datagrams, try_number })
    }

    /// The time at which to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub const fn poll_timeout(&self) -> u64 {
        self.deadline_ms
    }

    /// Handles a timeout: sends the request again, or gives up.
    ///
    /// # Errors
    /// [`AttemptError::Silence`] or [`AttemptError::Partial`] after the last attempt.
    pub fn handle_timeout(&mut self, now: ClockReading) -> Result<(), AttemptError> {
        if now.ms < self.deadline_ms {
            return Ok(());
        }
        if self.is_over_datagrams() && self.sent_count < self.timeout.udp_ms.len() {
            self.to_send = true;
            return Ok(());
        }
        match &self.incoming {
            IncomingAnswer::Datagrams(fragments) if !fragments.is_empty() => Err(AttemptError::Partial),
            _ => Err(AttemptError::Silence),
        }
    }

    /// Time waited so far, in milliseconds.
    #[must_use]
    pub fn waited_ms(&self, now: ClockReading) -> u32 {
        u32::try_from(now.ms.saturating_sub(self.began_ms)).unwrap_or(u32::MAX)
    }

    /// Handles a datagram from the server. Returns `None` while the answer is incomplete, and for
    /// datagrams that are not part of it.
    ///
    /// # Errors
    /// When the answer is complete but fails a check.
    pub fn handle_datagram(
        &mut self,
        now: ClockReading,
        datagram: &[u8],
    ) -> Result<Option<ReceivedAnswer>, AttemptError> {
        let Ok((envelope, _)) = Envelope::split(datagram) else { return Ok(None) };
        // Only the request id shows that a datagram belongs to this request. A datagram with
        // another id could be forged, or answer an earlier request from the same port. On a
        // connection that cannot happen.
        if envelope.request_id != self.head.request_id {
            return Ok(None);
        }
        let IncomingAnswer::Datagrams(fragments) = &mut self.incoming else { return Ok(None) };
        let message = match fragments.accept((), datagram, now.ms) {
            Ok(ReassemblyOutcome::Whole(message)) => message.to_vec(),
            Ok(ReassemblyOutcome::Complete(message)) => message,
            // A datagram that cannot be a fragment of the answer is ignored.
            Ok(ReassemblyOutcome::Incomplete) | Err(_) => return Ok(None),
        };
        let datagrams_count = cut(&envelope).len();
        self.check(now, message, datagrams_count).map(Some)
    }

    /// Handles bytes from the connection. Returns `None` while the answer is incomplete.
    ///
    /// # Errors
    /// When the answer is complete but fails a check, or the bytes do not begin a message.
    pub fn handle_stream(
        &mut self,
        now: ClockReading,
        bytes: &[u8],
    ) -> Result<Option<ReceivedAnswer>, AttemptError> {
        let IncomingAnswer::Connection(stream) = &mut self.incoming else { return Ok(None) };
        let Some(message) = stream.receive(bytes)? else {
            // TLS may have bytes to send.
            self.to_send |= stream.has_outgoing();
            return Ok(None);
        };
        let (envelope, _) = Envelope::split(&message)?;
        if !self.is_to_us(&envelope) {
            return Err(AttemptError::NotOurs("another request"));
        }
        self.check(now, message, 0).map(Some)
    }

    fn is_to_us(&self, envelope: &Envelope) -> bool {
        envelope.request_id == self.head.request_id || envelope.request_id == NO_REQUEST
    }

    /// Checks the answer. The order of checks makes the first failure the cause.
    fn check(
        &self,
        now: ClockReading,
        bytes: Vec<u8>,
        datagrams_count: usize,
    ) -> Result<ReceivedAnswer, AttemptError> {
        let bytes = self.opened(bytes)?;
        let (envelope, body) = Envelope::split(&bytes)?;
        let message = Message::decode(body)?;
        let Body::Reply(reply) = message.decode_body(envelope.version)? else {
            return Err(AttemptError::NotOurs("nothing: it is a request"));
        };
        let code = reply.code.read_in(envelope.version);
        if envelope.request_id == NO_REQUEST {
            // The server could not read the request, so its reply has nothing about the handle.
            return Err(AttemptError::Refused(code));
        }
        let certify = self.head.flags.has(OpFlags::CERTIFY);
        if certify {
            self.verify(&envelope, &message)?;
        }
        if message.header.op_code != self.head.answered_as {
            return Err(AttemptError::NotOurs("another operation"));
        }
        if self.head.flags.has(OpFlags::REQUEST_DIGEST) {
            match &reply.digest {
                Some(digest) => {
                    let is_of = |covered: &[u8]| check_request_digest(digest, covered).is_ok();
                    if !is_of(self.covered()) && !self.challenged.as_deref().is_some_and(is_of) {
                        return Err(AttemptError::Digest);
                    }
                }
                // Older versions have none. A signature proves nothing without the digest of the
                // request.
                None if certify || envelope.version >= Version::LOWEST => return Err(AttemptError::Digest),
                None => {}
            }
        }
        if message.header.expiration < now.unix_s {
            return Err(AttemptError::Expired);
        }
        if let handle_proto::wire::Response::Answer(answer) = &reply.response {
            let handle = handle_proto::Handle(&self.handle);
            if answer.handle != handle.0 && answer.handle != handle.looked_up() {
                return Err(AttemptError::NotOurs("a question about another handle"));
            }
        }
        let took_ms = self.waited_ms(now);
        Ok(ReceivedAnswer { envelope, took_ms, certified: certify, datagrams_count, message: bytes })
    }
}

impl Exchange {
    /// Decrypts the message, if it is encrypted in the session.
    fn opened(&self, bytes: Vec<u8>) -> Result<Vec<u8>, AttemptError> {
        if !Envelope::split(&bytes)?.0.flags.has(EnvelopeFlags::ENCRYPTED) {
            return Ok(bytes);
        }
        let plain = self.session.as_ref().and_then(|session| session.decrypted(&bytes));
        plain.ok_or(AttemptError::Encrypted)
    }

    /// Checks that the asked server made the message: with the key of the session, or with its own
    /// key.
    fn verify(&self, envelope: &Envelope, message: &Message<'_>) -> Result<(), AttemptError> {
        let is_mac = message.decode_credential()?.is_some_and(|credential| credential.is_mac());
        if let Some(session) = self.session.as_ref().filter(|_| is_mac) {
            return match session.is_new(envelope, message).map_err(AttemptError::Signature)? {
                true => Ok(()),
                false => Err(AttemptError::NotOurs("a request that was answered before")),
            };
        }
        let key = PublicKey::from_record(&self.target.public_key).map_err(|_| AttemptError::NoKey)?;
        verify_message(envelope, message, &key).map_err(AttemptError::Signature)?;
        Ok(())
    }
}

/// Request id of replies to messages that the server could not read.
const NO_REQUEST: i32 = -1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Question;
    use crate::lookup::world::{keys, server_key};
    use handle_auth::message::sign_message;
    use handle_proto::wire::digest::RequestDigest;
    use handle_proto::wire::failure::Failure;
    use handle_proto::wire::{Credential, Response};

    #[test]
    fn a_datagram_counts_only_with_the_id_of_the_request() {
        let now = ClockReading { ms: 0, unix_s: 0 };
        let target = ServerTarget::at("192.0.2.1:2641".parse().unwrap(), InterfaceProtocol::UDP);
        let question = Question::all(b"10.a/x");
        let head = RequestHead::resolution(question.flags(), 7);
        let timeout = AnswerTimeouts::default();
        let exchange = question
            .with_query(|query| Exchange::new(target, head, &Request::Resolution(query), &timeout, now));
        let mut exchange = exchange.unwrap();
        let sent = exchange.poll_transmit(now).unwrap().datagrams;
        let mut echo = sent[0].clone();
        for id in [NO_REQUEST, 8] {
            echo[8..12].copy_from_slice(&id.to_be_bytes());
            assert_eq!(exchange.handle_datagram(now, &echo), Ok(None), "{id}");
        }
        assert!(exchange.handle_datagram(now, &sent[0]).is_err(), "a request is no answer");
    }

    const NOW: ClockReading = ClockReading { ms: 0, unix_s: 1_000 };

    /// An exchange over `protocol` with request id 7, whose request has been sent.
    fn sent(protocol: InterfaceProtocol, flags: OpFlags) -> Exchange {
        let target = ServerTarget {
            public_key: server_key().into(),
            ..ServerTarget::at("192.0.2.1:2641".parse().unwrap(), protocol)
        };
        let head = RequestHead::resolution(flags, 7);
        let timeout = AnswerTimeouts::default();
        let exchange = Question::all(b"10.a/x")
            .with_query(|query| Exchange::new(target, head, &Request::Resolution(query), &timeout, NOW));
        let mut exchange = exchange.unwrap();
        exchange.poll_transmit(NOW).unwrap();
        exchange
    }

    /// What a test changes in the reply to an exchange.
    struct TestReply {
        request_id: i32,
        version: Version,
        expiration: u32,
        has_digest: bool,
        /// Whether the digest is that of the request.
        is_own_digest: bool,
        op_code: OpCode,
    }

    const GOOD: TestReply = TestReply {
        request_id: 7,
        version: Version::CURRENT,
        expiration: 1_000,
        has_digest: true,
        is_own_digest: true,
        op_code: OpCode::RESOLUTION,
    };

    /// The reply of the server, signed if that was asked for.
    fn reply_to(exchange: &Exchange, change: &TestReply) -> Vec<u8> {
        let &TestReply { request_id, version, expiration, has_digest, is_own_digest, op_code } = change;
        let envelope = Envelope { version, ..Envelope::request(request_id) };
        let flags = exchange.head.flags;
        let code = ResponseCode::HANDLE_NOT_FOUND;
        let header =
            Header { response_code: code, expiration, ..Header::request(op_code, flags, NOW.unix_s) };
        let covered = if is_own_digest { exchange.covered() } else { &b"another request"[..] };
        let made = handle_auth::challenge::request_digest(version, covered);
        let algorithm = handle_proto::code::DigestAlgorithm::for_response(version);
        let digest = has_digest.then_some(RequestDigest { algorithm, digest: &made });
        let response = Response::Failure(Failure { message: b"" });
        let message = MessageBuf::reply(&envelope, &header, &Reply { code, digest, response });
        if !flags.has(OpFlags::CERTIFY) {
            return message.unsigned().unwrap();
        }
        let credential = sign_message(&envelope, 0, message.covered(), &keys()[0]).unwrap();
        message.signed(&Credential::decode(&credential).unwrap()).unwrap()
    }

    #[test]
    fn an_answer_counts_until_it_expires() {
        for protocol in [InterfaceProtocol::UDP, InterfaceProtocol::TCP] {
            for (expiration, is_valid) in [(1_001, true), (1_000, true), (999, false), (0, false)] {
                let mut exchange = sent(protocol, OpFlags::PLAIN_REQUEST);
                let reply = reply_to(&exchange, &TestReply { expiration, ..GOOD });
                let answer = match protocol {
                    InterfaceProtocol::UDP => exchange.handle_datagram(NOW, &reply),
                    _ => exchange.handle_stream(NOW, &reply),
                };
                let refused = (!is_valid).then_some(AttemptError::Expired);
                assert_eq!(answer.err(), refused, "{protocol:?}, until {expiration}");
            }
        }
    }

    /// A signature over an answer without the digest of the request would also be valid for the
    /// answer to another request. Versions below 2.1 have answers without one.
    #[test]
    fn a_certified_answer_without_the_digest_of_the_request_does_not_count() {
        let certify = OpFlags::PLAIN_REQUEST.with(OpFlags::CERTIFY).with(OpFlags::REQUEST_DIGEST);
        let plain = OpFlags::PLAIN_REQUEST.with(OpFlags::REQUEST_DIGEST);
        let old = Version::new(2, 0);
        for (flags, version, has_digest, expected) in [
            (certify, Version::CURRENT, true, None),
            (certify, Version::CURRENT, false, Some(AttemptError::Digest)),
            (certify, old, false, Some(AttemptError::Digest)),
            (plain, Version::CURRENT, false, Some(AttemptError::Digest)),
            (plain, old, false, None),
        ] {
            let mut exchange = sent(InterfaceProtocol::TCP, flags);
            let reply = reply_to(&exchange, &TestReply { version, has_digest, ..GOOD });
            let answer = exchange.handle_stream(NOW, &reply);
            assert_eq!(answer.err(), expected, "{flags:?} {version:?} {has_digest}");
        }
    }

    /// A request over a connection cannot be seen by others, but a server may answer another
    /// request.
    #[test]
    fn an_answer_to_another_operation_or_another_request_does_not_count() {
        let (plain, digest) = (OpFlags::PLAIN_REQUEST, OpFlags::PLAIN_REQUEST.with(OpFlags::REQUEST_DIGEST));
        let other = OpCode::DELETE_HANDLE;
        for (flags, op_code, is_own_digest, expected) in [
            (plain, OpCode::RESOLUTION, false, None),
            (digest, OpCode::RESOLUTION, true, None),
            (digest, OpCode::RESOLUTION, false, Some(AttemptError::Digest)),
            (plain, other, true, Some(AttemptError::NotOurs("another operation"))),
        ] {
            let mut exchange = sent(InterfaceProtocol::TCP, flags);
            let reply = reply_to(&exchange, &TestReply { op_code, is_own_digest, ..GOOD });
            let answer = exchange.handle_stream(NOW, &reply);
            assert_eq!(answer.err(), expected, "{flags:?} {op_code:?} {is_own_digest}");
        }
    }

    #[test]
    fn a_stream_answers_the_request_that_was_sent_on_it() {
        for (request_id, expected) in [
            (7, None),
            (8, Some(AttemptError::NotOurs("another request"))),
            (0, Some(AttemptError::NotOurs("another request"))),
            (NO_REQUEST, Some(AttemptError::Refused(ResponseCode::HANDLE_NOT_FOUND))),
        ] {
            let mut exchange = sent(InterfaceProtocol::TCP, OpFlags::PLAIN_REQUEST);
            let reply = reply_to(&exchange, &TestReply { request_id, ..GOOD });
            assert_eq!(exchange.handle_stream(NOW, &reply).err(), expected, "{request_id}");
        }
    }
}
