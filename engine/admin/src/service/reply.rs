//! Encodes answers as messages: envelope, header, digest of the request, body, signature.
//!
//! Answers in a session get their MAC and are encrypted here.

use super::open::{OpenedRequest, UNREADABLE_REQUEST_ID};
use crate::costly::CostlyWork;
use crate::operation::{OperationAnswer, OperationRefusal};
use handle_auth::challenge::request_digest;
use handle_auth::challenges::SessionChallenge;
use handle_auth::cost;
use handle_auth::message::sign_message;
use handle_auth::source::RequestOrigin;
use handle_auth::{Digest, PrivateKey};
use handle_daemon::site::SiteRecord;
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit::MESSAGE_EXPIRATION_S;
use handle_proto::wire::admin::{CommittedChange, CreatedHandle, Listing, StorePosition};
use handle_proto::wire::auth::{Challenge, VerificationAnswer};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::failure::Failure;
use handle_proto::wire::list::Handles;
use handle_proto::wire::query;
use handle_proto::wire::referral::Referral;
use handle_proto::wire::replication::TransactionsFollow;
use handle_proto::wire::session::SessionAnswer;
use handle_proto::wire::{Credential, Envelope, Header, MessageBuf, Reply, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode, Values, Version};
use handle_session::AnswerSealer;
use std::sync::Arc;

/// The answer in place of one whose signature has no permit in the queue for costly work.
const TOO_MANY_SIGNATURES: OperationRefusal =
    OperationRefusal::new(ResponseCode::SERVER_BUSY, "Too many signatures are requested; ask again later.");

/// The fields of a request that its reply repeats.
#[derive(Clone, Debug)]
pub struct ReplyTarget {
    version: Version,
    suggested: Version,
    session_id: i32,
    request_id: i32,
    op_code: OpCode,
    flags: OpFlags,
    recursion_count: u8,
    digest: Digest,
    /// Seals the answer in its session, if there is one.
    session: Option<AnswerSealer>,
    /// The sender of the request, to whom the work of a signature counts.
    origin: RequestOrigin,
    /// A state of the store that includes the requested change, if the request asks for it.
    position: Option<StorePosition>,
}

impl ReplyTarget {
    /// A reply to `opened`, which came from `origin`.
    #[must_use]
    pub fn new(opened: &OpenedRequest<'_>, origin: RequestOrigin) -> Self {
        Self {
            version: opened.version,
            suggested: Version::CURRENT,
            session_id: opened.session_id,
            request_id: opened.request_id,
            op_code: opened.op_code(),
            flags: opened.flags(),
            recursion_count: opened.message.header.recursion_count,
            digest: request_digest(opened.version, opened.message.covered),
            session: None,
            origin,
            position: None,
        }
    }

    /// Like `to`, but in the session if there is one. The answer that sets up a session or changes
    /// its key is not sealed, even if it is sent under the number of an old session.
    #[must_use]
    pub fn in_session(self, session: Option<AnswerSealer>) -> Self {
        let sets_up = matches!(self.op_code, OpCode::SESSION_SETUP | OpCode::SESSION_EXCHANGE_KEY);
        Self { session: session.filter(|_| !sets_up), ..self }
    }

    /// A reply to the sender of `answer`, about `original`, the request whose challenge it has
    /// answered; in `session`, if the answer came in one.
    #[must_use]
    pub fn about(
        original: &OpenedRequest<'_>,
        answer: &OpenedRequest<'_>,
        session: Option<AnswerSealer>,
        origin: RequestOrigin,
    ) -> Self {
        let version = answer.version;
        let digest = request_digest(version, original.message.covered);
        let session_id = if session.is_some() { answer.session_id } else { 0 };
        let request_id = answer.request_id;
        Self { version, request_id, session_id, digest, session, ..Self::new(original, origin) }
    }

    /// Adds the current `position` of the store if this answers a change whose request asks for it.
    #[must_use]
    pub fn showing(self, position: impl FnOnce() -> StorePosition) -> Self {
        let is_asked = self.flags.has(OpFlags::SHOW_TRANSACTION) && self.op_code.changes_records();
        Self { position: is_asked.then(position), ..self }
    }

    /// The digest of the request, which a challenge covers.
    #[must_use]
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The protocol version of the reply.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The session of the reply; 0 for none.
    #[must_use]
    pub const fn session_id(&self) -> i32 {
        self.session_id
    }

    /// Where the request came from.
    pub(super) const fn origin(&self) -> RequestOrigin {
        self.origin
    }
}

/// Turns answers into messages.
#[derive(Debug)]
pub struct ReplySealer {
    /// The signing key; without it, nothing is signed.
    key: Option<Arc<PrivateKey>>,
    /// The threads that sign; without them, the thread of the request does.
    costly: Option<Arc<CostlyWork>>,
}

impl ReplySealer {
    /// Signs with `key`, without which nothing is signed, on the threads of `costly` if there are
    /// any.
    #[must_use]
    pub fn new(key: Option<PrivateKey>, costly: Option<Arc<CostlyWork>>) -> Self {
        Self { key: key.map(Arc::new), costly }
    }

    /// The signing key, if answers are signed.
    #[must_use]
    pub fn key(&self) -> Option<&PrivateKey> {
        self.key.as_deref()
    }

    /// The signing key, for use on another thread.
    #[must_use]
    pub fn shared_key(&self) -> Option<Arc<PrivateKey>> {
        self.key.clone()
    }

    /// Encodes `answer` as a message.
    #[must_use]
    pub fn answer(
        &self,
        to: &ReplyTarget,
        site: &SiteRecord,
        answer: &OperationAnswer,
        now_unix_s: u32,
    ) -> Vec<u8> {
        let values = |count: usize, bytes| Values::from_encoded(count, bytes).unwrap_or(Values::EMPTY);
        let success = ResponseCode::SUCCESS;
        let (code, response) = match answer {
            OperationAnswer::Done(_) => (success, to.changed(None)),
            OperationAnswer::Created(handle, _) => (success, to.changed(Some(handle))),
            OperationAnswer::Values(handle, count, bytes) => {
                (success, Response::Answer(query::QueryAnswer { handle, values: values(*count, bytes) }))
            }
            OperationAnswer::Site => (success, Response::SiteInfo(site.as_bytes())),
            OperationAnswer::Verdict(is_valid) => {
                (success, Response::Verdict(VerificationAnswer { is_valid: *is_valid }))
            }
            OperationAnswer::Referral(count, bytes) => {
                let referral = Referral { handle: b"", values: Some(values(*count, bytes)) };
                (ResponseCode::PREFIX_REFERRAL, Response::Referral(referral))
            }
            OperationAnswer::Refused(refused) => (refused.code, failure(refused)),
        };
        // As deployed servers do: `administration/create_overwrite` shows the flag for a record
        // that was replaced.
        let flags = match answer.effect().replaced {
            true => to.flags,
            false => to.flags.without(OpFlags::OVERWRITE),
        };
        // The requester has to learn that the store has changed.
        let signing = if answer.effect().changed { SigningLane::Reserved } else { SigningLane::Queued };
        self.seal(to, to.header(site, code, flags, now_unix_s), response, flags, signing)
    }

    /// Encodes one page of a listing; `has_more` if other pages follow.
    #[must_use]
    pub fn page(
        &self,
        to: &ReplyTarget,
        site: &SiteRecord,
        names: &[Vec<u8>],
        has_more: bool,
        now_unix_s: u32,
    ) -> Vec<u8> {
        let mut storage = Vec::new();
        let handles = Handles::build(names.iter().map(Vec::as_slice), &mut storage);
        let flags = match has_more {
            true => to.flags.with(OpFlags::CONTINUOUS),
            false => to.flags.without(OpFlags::CONTINUOUS),
        }
        .without(OpFlags::OVERWRITE);
        let header = to.header(site, ResponseCode::SUCCESS, flags, now_unix_s);
        self.seal(to, header, Response::Listing(Listing { handles }), flags, SigningLane::Reserved)
    }

    /// Encodes the answer before a stream for a mirror.
    #[must_use]
    pub fn stream(&self, to: &ReplyTarget, site: &SiteRecord, now_unix_s: u32) -> Vec<u8> {
        let response = match to.op_code {
            // The connection is closed after the stream, as by deployed servers.
            OpCode::RETRIEVE_TXN_LOG => {
                Response::TransactionsFollow(TransactionsFollow { keep_alive: false })
            }
            _ => Response::Done,
        };
        let flags = to.flags.without(OpFlags::OVERWRITE);
        let header = to.header(site, ResponseCode::SUCCESS, flags, now_unix_s);
        self.seal(to, header, response, flags, SigningLane::Reserved)
    }

    /// Encodes the challenge with the number `id`.
    #[must_use]
    pub fn challenge(
        &self,
        to: &ReplyTarget,
        site: &SiteRecord,
        id: i32,
        pending: &SessionChallenge,
        now_unix_s: u32,
    ) -> Vec<u8> {
        // A challenge carries the digest even if the request did not ask for it; the flags
        // OVERWRITE and MINT_SUFFIX are not repeated.
        let flags =
            to.flags.with(OpFlags::REQUEST_DIGEST).without(OpFlags::MINT_SUFFIX).without(OpFlags::OVERWRITE);
        let to = ReplyTarget { session_id: id, suggested: pending.suggested, ..to.clone() };
        let response = Response::Challenge(Challenge { nonce: &pending.nonce });
        let code = ResponseCode::AUTHENTICATION_NEEDED;
        let header = to.header(site, code, flags, now_unix_s);
        self.seal(&to, header, response, flags, SigningLane::Queued)
    }

    /// Encodes the answer that announces the new session `id`. This answer is not sealed in the
    /// session.
    #[must_use]
    pub fn session(
        &self,
        to: &ReplyTarget,
        site: &SiteRecord,
        id: i32,
        answer: SessionAnswer<'_>,
        now_unix_s: u32,
    ) -> Vec<u8> {
        let to = ReplyTarget { session_id: id, session: None, ..to.clone() };
        let (code, response) = (ResponseCode::SUCCESS, Response::Session(answer));
        let header = to.header(site, code, to.flags, now_unix_s);
        self.seal(&to, header, response, to.flags, SigningLane::Queued)
    }

    fn seal(
        &self,
        to: &ReplyTarget,
        mut header: Header,
        response: Response<'_>,
        flags: OpFlags,
        signing: SigningLane,
    ) -> Vec<u8> {
        let (envelope, code) = (to.envelope(), header.response_code);
        if matches!(response, Response::Changed(_)) {
            header.flags = header.flags.with(OpFlags::SHOW_TRANSACTION);
        }
        let algorithm = DigestAlgorithm::for_response(to.version);
        let digest = RequestDigest { algorithm, digest: &to.digest };
        let digest = flags.has(OpFlags::REQUEST_DIGEST).then_some(digest);
        let message = MessageBuf::reply(&envelope, &header, &Reply { code, digest, response });
        let certifies = flags.has(OpFlags::CERTIFY);
        let refuse = |refused: &OperationRefusal| {
            let reply = Reply { code: refused.code, digest: None, response: failure(refused) };
            MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap_or_default()
        };
        let key = self.key.as_ref().filter(|_| certifies && to.session.is_none());
        let signed = match key {
            None => Ok(None),
            Some(key) => self.sign(key, &envelope, message.covered(), to.origin, signing),
        };
        let Ok(credential) = signed else { return refuse(&TOO_MANY_SIGNATURES) };
        let credential = credential.as_deref().and_then(|bytes| Credential::decode(bytes).ok());
        let sealed = match &credential {
            None => message.unsigned(),
            Some(credential) => message.signed(credential),
        };
        let mut sealed = sealed.unwrap_or_else(|too_long| {
            refuse(&OperationRefusal { code: ResponseCode::ERROR, text: too_long.to_string().into() })
        });
        if let Some(session) = &to.session {
            let hides =
                flags.has(OpFlags::ENCRYPT) || to.version >= PRIVATE_SINCE && shows_private(&response);
            if let Err(error) = session.seal(&mut sealed, certifies, hides) {
                tracing::error!(%error, "cannot seal an answer in its session");
            }
        }
        sealed
    }
}

/// The flags of a request that its reply repeats.
const REPEATED_FLAGS: OpFlags = OpFlags(
    OpFlags::AUTHORITATIVE.0
        | OpFlags::CERTIFY.0
        | OpFlags::ENCRYPT.0
        | OpFlags::CACHE_CERTIFY.0
        | OpFlags::CONTINUOUS.0
        | OpFlags::KEEP_CONNECTION.0
        | OpFlags::PUBLIC_ONLY.0
        | OpFlags::REQUEST_DIGEST.0
        | OpFlags::OVERWRITE.0
        | OpFlags::MINT_SUFFIX.0
        | OpFlags::DO_NOT_REFER.0,
);

impl ReplyTarget {
    /// The response to a change; `handle` is the one that was created.
    fn changed<'a>(&self, handle: Option<&'a [u8]>) -> Response<'a> {
        match (self.position, handle) {
            (Some(position), _) => Response::Changed(CommittedChange { handle, position }),
            (None, Some(_)) => Response::Created(CreatedHandle { handle }),
            (None, None) => Response::Done,
        }
    }

    const fn envelope(&self) -> Envelope {
        Envelope {
            version: self.version,
            flags: EnvelopeFlags(0),
            suggested: self.suggested,
            session_id: self.session_id,
            request_id: self.request_id,
            sequence: 0,
            message_len: 0,
        }
    }

    /// The header of a reply with those of `flags` that replies have.
    fn header(&self, site: &SiteRecord, code: ResponseCode, flags: OpFlags, now_unix_s: u32) -> Header {
        // The flag for keeping the connection tells clients that they may reuse it: deployed
        // servers close their connections and never set it. Answers to queries do not repeat the
        // flags about changes and lists. Shown by `conversations.jsonl`, category `flags`.
        let repeated = match self.op_code.is_admin() {
            true => REPEATED_FLAGS,
            false => REPEATED_FLAGS
                .without(OpFlags::CONTINUOUS)
                .without(OpFlags::OVERWRITE)
                .without(OpFlags::MINT_SUFFIX),
        };
        let primary = if site.is_primary() { OpFlags::AUTHORITATIVE } else { OpFlags(0) };
        Header {
            op_code: self.op_code,
            response_code: code,
            flags: OpFlags(flags.0 & repeated.0).with(OpFlags::RECURSIVE).with(primary),
            site_serial: site.view().serial,
            recursion_count: self.recursion_count,
            reserved: 0,
            expiration: now_unix_s.wrapping_add(MESSAGE_EXPIRATION_S),
            body_len: 0,
        }
    }
}

/// How a signature gets its permit in the queue for costly work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SigningLane {
    /// It waits for its turn; without a permit, the request is refused.
    Queued,
    /// It is made at once: the request has changed the store, or was allowed to list.
    Reserved,
}

/// The queue for costly work has no permit left for the source of a request.
#[derive(Debug)]
struct NoPermit;

impl ReplySealer {
    /// The credential over `covered`; `None` if the key does not sign.
    ///
    /// # Errors
    /// When the queue has no permit for the signature.
    fn sign(
        &self,
        key: &Arc<PrivateKey>,
        envelope: &Envelope,
        covered: &[u8],
        origin: RequestOrigin,
        signing: SigningLane,
    ) -> Result<Option<Vec<u8>>, NoPermit> {
        let signed = match &self.costly {
            Some(costly) if signing == SigningLane::Queued => {
                let (key, envelope, covered) = (Arc::clone(key), *envelope, covered.to_vec());
                let work = move || sign_message(&envelope, 0, &covered, &key);
                costly.run(origin, cost::SIGNATURE, work).ok_or(NoPermit)?
            }
            _ => sign_message(envelope, 0, covered, key),
        };
        Ok(signed.inspect_err(|error| tracing::error!(%error, "cannot sign an answer")).ok())
    }
}

/// First version in which values that are not public are always encrypted in a session.
const PRIVATE_SINCE: Version = Version::new(2, 8);

/// Whether a response contains values that are not public.
fn shows_private(response: &Response<'_>) -> bool {
    matches!(response, Response::Answer(answer) if answer.values.iter().any(|value| !value.is_public()))
}

fn failure(refused: &OperationRefusal) -> Response<'_> {
    Response::Failure(Failure { message: refused.text.as_bytes() })
}

/// The answer to a message that cannot be parsed: in the oldest form, referring to no request.
#[must_use]
pub fn unreadable(op_code: OpCode, refused: &OperationRefusal, now_unix_s: u32) -> Vec<u8> {
    let envelope = Envelope { version: Version::COMPATIBLE, ..Envelope::request(UNREADABLE_REQUEST_ID) };
    let header = Header::request(op_code, OpFlags::PLAIN_REQUEST, now_unix_s);
    let reply = Reply { code: refused.code, digest: None, response: failure(refused) };
    MessageBuf::reply(&envelope, &header, &reply).unsigned().unwrap_or_default()
}
