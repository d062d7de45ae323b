//! Requests for the slow path: the answer is signed, depends on the identity of the client, or is
//! computed.
//!
//! A worker recognises such a request by [`answer`](crate::answer()), which returns
//! [`AnswerOutcome::Slow`](crate::AnswerOutcome::Slow). The request is copied to another thread,
//! which answers it with the functions of this module and signs the answer. Nothing here waits or
//! draws random numbers: challenges come in as arguments, and the caller checks keys.

use crate::authority::{AuthorityOutcome, ServerAdministrators, entitles};
use crate::digest::RequestDigest;
use crate::local_record::{LocalRecord, NotLocal, find_local};
use crate::question::{RecordQuestion, decode, is_homed, locate, locate_handle, other_operation, refuse};
use crate::record_key::{KeyBuf, RecordLookup};
use crate::refusal::RefusalReason;
use crate::reply::{ReplyParts, WireReply as _};
use crate::request::ParsedRequest;
use crate::select::{SelectedValues, ValueFilter};
use crate::service::{AnswerContext, ServiceFacts};
use handle_proto::data::admin::{Admin, AdminPermissions};
use handle_proto::data::kind::HS_ADMIN;
use handle_proto::name::SITE_STATUS;
use handle_proto::wire::Envelope;
use handle_proto::wire::list::Reference;
use handle_proto::wire::query::Query;
use handle_proto::{Handle, OpCode, OpFlags, Permissions, ResponseCode, Value, Version, fold};
use handle_snapshot::EncodedRecord;

/// The reason why a request goes to the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowReason {
    /// The answer must be signed.
    Certify,
    /// The answer depends on the identity of the client.
    Identity,
    /// The handle is not stored, but its values may be computed or another service may have it; or
    /// it is not in the cache; or the query has more indexes and types than a worker compares one
    /// by one.
    Template,
    /// The request answers a challenge.
    ChallengeAnswer,
    /// Another server asks whether the answer to its challenge is right.
    Verification,
    /// The request sets up a session.
    SessionSetup,
    /// The request is in a session, and asks for anything but unencrypted public values.
    Session,
}

impl SlowReason {
    /// The reason that is known before a record is looked up.
    pub(crate) fn of(service: &ServiceFacts<'_>, request: &ParsedRequest<'_>) -> Option<Self> {
        match request.op_code {
            _ if request.is_in_session(service) => Some(Self::Session),
            OpCode::SESSION_SETUP if service.sessions => Some(Self::SessionSetup),
            OpCode::RESPONSE_TO_CHALLENGE if service.authenticates => Some(Self::ChallengeAnswer),
            OpCode::VERIFY_CHALLENGE if service.authenticates && request.session_id <= 0 => {
                Some(Self::Verification)
            }
            _ if service.signs && request.flags.has(OpFlags::CERTIFY) => Some(Self::Certify),
            _ => None,
        }
    }
}

/// A request on the slow path.
#[derive(Clone, Copy, Debug)]
pub struct SlowPathRequest<'a> {
    request: ParsedRequest<'a>,
    reason: SlowReason,
}

/// The result of a request before its sender is authenticated.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every one is a reply, and nothing is allocated")]
pub enum FirstEvaluation<'a> {
    /// Send this reply, signed if the request asks for that.
    Reply(ReplyParts<'a>),
    /// The answer depends on the identity of the client: send a
    /// [`challenge`](SlowPathRequest::challenge).
    Identity,
    /// The handle is not stored, but may have [`computed`](SlowPathRequest::computed) values.
    Template,
    /// Another service has the handle, and the [cache](crate::RecordCache) does not know it.
    Uncached,
}

/// The answer that does not depend on the identity of the client.
pub(crate) fn evaluate<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    key: &mut KeyBuf<N>,
) -> FirstEvaluation<'a> {
    let reply = if request.op_code == OpCode::RESOLUTION {
        match decode(context, request, key) {
            Ok(question) if is_homed(context, key.as_bytes()) => {
                match evaluate_question(context, &question, key) {
                    Some(reply) => reply,
                    None => return FirstEvaluation::Template,
                }
            }
            Ok(question) => {
                let mut reply = question.success(context);
                if question.answer_not_homed(context, key.as_bytes(), &mut reply) {
                    return FirstEvaluation::Uncached;
                }
                reply
            }
            Err(reply) => reply,
        }
    } else {
        other_operation(context, request)
    };
    match reply.refused() {
        Some(RefusalReason::NotPublic) if context.service.authenticates => FirstEvaluation::Identity,
        _ => FirstEvaluation::Reply(reply),
    }
}

/// `None` where the values may be computed.
fn evaluate_question<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    question: &RecordQuestion<'a>,
    key: &KeyBuf<N>,
) -> Option<ReplyParts<'a>> {
    let lookup = RecordLookup::new(context, key.as_bytes());
    let found = context.records.find(lookup.hash, lookup.key());
    if matches!(found, Ok(None)) && context.may_compute(question.query.handle) {
        return None;
    }
    if !question.request.flags.has(OpFlags::PUBLIC_ONLY)
        && let Ok(Some(record)) = &found
        && let Some(refused) = question.private(context, record)
    {
        return Some(question.refuse(context, refused));
    }
    Some(question.answer(context, &lookup, found))
}

impl<'a> SlowPathRequest<'a> {
    pub(crate) const fn new(request: &ParsedRequest<'a>, reason: SlowReason) -> Self {
        Self { request: *request, reason }
    }

    pub(crate) const fn template(request: &ParsedRequest<'a>) -> Self {
        Self::new(request, SlowReason::Template)
    }

    /// The reason why the request goes to the slow path.
    #[must_use]
    pub const fn reason(&self) -> SlowReason {
        self.reason
    }

    /// Whether the client lets the server ask other services on its behalf.
    #[must_use]
    pub const fn allows_recursion(&self) -> bool {
        self.request.flags.has(OpFlags::RECURSIVE)
    }

    /// Whether only public values are asked for.
    #[must_use]
    pub const fn is_public(&self) -> bool {
        self.request.flags.has(OpFlags::PUBLIC_ONLY)
    }

    /// Number of servers that the request has passed through.
    #[must_use]
    pub const fn recursion_count(&self) -> u8 {
        self.request.recursion_count
    }

    /// Whether the request asks that no cache answers it.
    #[must_use]
    pub const fn is_authoritative(&self) -> bool {
        self.request.flags.has(OpFlags::AUTHORITATIVE)
    }

    /// Whether the answer must be signed.
    #[must_use]
    pub const fn certifies(&self) -> bool {
        self.request.flags.has(OpFlags::CERTIFY)
    }

    /// The version of the reply.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.request.version
    }

    /// The operation.
    #[must_use]
    pub const fn op_code(&self) -> OpCode {
        self.request.op_code
    }

    /// The number of the session, or of the challenge that is answered.
    #[must_use]
    pub const fn session_id(&self) -> i32 {
        self.request.session_id
    }

    /// The body of the request.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.request.body()
    }

    /// Whether the client does not understand a referral to another service, so that the server has
    /// to resolve on its behalf.
    #[must_use]
    pub fn wants_no_referral<B>(&self, context: &AnswerContext<'a, B>) -> bool {
        context.service.resolves_for_old && self.request.wants_no_referral()
    }

    /// The answer, if it does not depend on the identity of the client.
    #[must_use]
    pub fn evaluate<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>) -> FirstEvaluation<'a> {
        let mut key: KeyBuf = KeyBuf::new();
        evaluate(context, &self.request, &mut key)
    }

    /// The handle of the request; empty if the operation has none.
    #[must_use]
    pub fn handle(&self) -> &'a [u8] {
        Query::decode(self.request.body()).map_or(&[], |query| query.handle)
    }

    /// The reply if there are no computed values either.
    #[must_use]
    pub fn not_computed<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>) -> ReplyParts<'a> {
        let mut key: KeyBuf = KeyBuf::new();
        match locate(context, &self.request, &mut key) {
            Ok(question) => question.answer(context, &RecordLookup::new(context, key.as_bytes()), Ok(None)),
            Err(reply) => reply,
        }
    }

    /// The reason why the `count` computed values in `values` (wire form) must not be shown without
    /// authentication. The first selected value that is not public decides, as among [stored
    /// values](Self::evaluate).
    #[must_use]
    pub fn reason_to_withhold<B>(
        &self,
        context: &AnswerContext<'a, B>,
        values: &[u8],
        count: usize,
    ) -> Option<RefusalReason> {
        if self.request.flags.has(OpFlags::PUBLIC_ONLY) {
            return None;
        }
        let query = Query::decode(self.request.body()).ok()?;
        let filter = match ValueFilter::among(context, query, count) {
            Ok(filter) => filter,
            Err(refused) => return Some(refused),
        };
        let selected = || computed(values).filter(|(value, _)| filter.selects(value));
        match selected().find(|(value, _)| !value.is_public()) {
            Some((value, _)) if !value.permissions.has(Permissions::ADMIN_READ) => {
                Some(RefusalReason::Unreadable)
            }
            Some(_) => Some(RefusalReason::NotPublic),
            None => (self.request.session_id != 0 && selected().next().is_some())
                .then_some(RefusalReason::NotPublic),
        }
    }

    /// The reply with those of the `count` computed values in `values` (wire form) that are
    /// selected and public.
    #[must_use]
    pub fn computed<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        values: &'a mut [u8],
        count: usize,
    ) -> ReplyParts<'a> {
        let mut key: KeyBuf = KeyBuf::new();
        let question = match locate(context, &self.request, &mut key) {
            Ok(question) => question,
            Err(reply) => return reply,
        };
        let filter = match ValueFilter::among(context, question.query, count) {
            Ok(filter) => filter,
            Err(refused) => return self.refuse(context, refused),
        };
        let (mut at, mut kept_len, mut kept_count) = (0, 0, 0);
        for _ in 0..count {
            let Ok((value, _)) = Value::split(&values[at..]) else {
                return self.refuse(context, RefusalReason::TemplateFailed);
            };
            let len = value.encoded_len();
            if value.is_public() && filter.selects(&value) {
                values.copy_within(at..at + len, kept_len);
                kept_len += len;
                kept_count += 1;
            }
            at += len;
        }
        match SelectedValues::from(&values[..kept_len], kept_count, ValueFilter::All) {
            Some(selected) => question.show(context, selected),
            None => self.refuse(context, RefusalReason::TemplateFailed),
        }
    }

    /// The reply that refuses the request.
    #[must_use]
    pub fn refuse<B>(&self, context: &AnswerContext<'a, B>, refused: RefusalReason) -> ReplyParts<'a> {
        refuse(context, &self.request, refused)
    }

    /// The digest of the request, without the code of its algorithm. The answer to a challenge
    /// covers it together with the nonce. RFC 3652 section 3.5.1.
    #[must_use]
    pub fn digest(&self) -> SlowDigest {
        RequestDigest::of(self.request.covered, self.request.version).map_or_else(
            || SlowDigest::old(self.request.covered),
            |digest| SlowDigest::new(&digest.as_bytes()[1..]),
        )
    }

    /// The challenge with the number `id`. `body` is the nonce; below version 2.1 it is the whole
    /// body, nonce and digest, each with its length.
    #[must_use]
    pub fn challenge<B>(&self, context: &AnswerContext<'a, B>, id: i32, body: &'a [u8]) -> ReplyParts<'a> {
        let request = ParsedRequest {
            session_id: id,
            // A challenge carries the digest whether or not the request asks for it.
            flags: self.request.flags.with(OpFlags::REQUEST_DIGEST),
            ..self.request
        };
        let code = ResponseCode::AUTHENTICATION_NEEDED;
        let mut reply = ReplyParts::to(&request, code, &context.service, context.now_unix_s);
        match self.has_old_form() {
            true => reply.push_rest(body),
            false => reply.push_text(body),
        }
        reply.finish()
    }

    /// Whether challenges have the form of versions below 2.1.
    #[must_use]
    pub fn has_old_form(&self) -> bool {
        self.request.version < Version::LOWEST
    }

    /// Checks that this server is responsible for `handle`, whose keys an answer to a challenge
    /// uses.
    ///
    /// # Errors
    /// The reply, if another server of the site or another service has the handle; a referral where
    /// the service is known.
    #[expect(clippy::result_large_err, reason = "replies are never allocated")]
    pub fn check_responsibility<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        handle: &'a [u8],
    ) -> Result<(), ReplyParts<'a>> {
        locate_handle(context, &self.request, handle)
    }

    /// The reply that tells another server whether the answer to its challenge is correct. RFC 3652
    /// section 3.5.3.
    #[must_use]
    pub fn verdict<B>(&self, context: &AnswerContext<'a, B>, is_valid: bool) -> ReplyParts<'a> {
        let mut reply =
            ReplyParts::to(&self.request, ResponseCode::SUCCESS, &context.service, context.now_unix_s);
        reply.push_rest(if is_valid { &[1] } else { &[0] });
        reply.finish()
    }

    /// The reply that the operation succeeded, without a body.
    #[must_use]
    pub fn done<B>(&self, context: &AnswerContext<'a, B>) -> ReplyParts<'a> {
        ReplyParts::to(&self.request, ResponseCode::SUCCESS, &context.service, context.now_unix_s).finish()
    }

    /// The reply that a session with the number `id` was set up; `body` follows the digest. RFC
    /// 3652 section 3.8.1.
    #[must_use]
    pub fn session<B>(&self, context: &AnswerContext<'a, B>, id: i32, body: &'a [u8]) -> ReplyParts<'a> {
        let request = ParsedRequest { session_id: id, ..self.request };
        let mut reply = ReplyParts::to(&request, ResponseCode::SUCCESS, &context.service, context.now_unix_s);
        reply.push_rest(body);
        reply.finish()
    }

    /// Evaluates the request again, with its sender authenticated by the session.
    ///
    /// # Errors
    /// The reply, if it does not depend on the identity.
    #[expect(clippy::result_large_err, reason = "replies are never allocated")]
    pub fn evaluate_identified<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
    ) -> Result<AnsweredChallenge<'a>, ReplyParts<'a>> {
        challenged(context, &self.request)
    }

    /// Resumes the challenged request, which is `message` behind `envelope`; `self` is the answer
    /// to the challenge. The request is evaluated again, and the reply goes to the sender of
    /// `self`. The reply has the number of the session if the challenge was made in one, and 0
    /// otherwise.
    ///
    /// # Errors
    /// The reply, if it does not depend on the identity, for example because the handle was
    /// deleted.
    #[expect(clippy::result_large_err, reason = "replies are never allocated")]
    pub fn resume<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        envelope: Envelope,
        message: &'a [u8],
        in_session: bool,
    ) -> Result<AnsweredChallenge<'a>, ReplyParts<'a>> {
        let Ok(request) = ParsedRequest::from_message(envelope, message) else {
            return Err(self.refuse(context, RefusalReason::NoChallenge));
        };
        let (version, request_id) = (self.request.version, self.request.request_id);
        let session_id = if in_session { self.request.session_id } else { 0 };
        challenged(context, &ParsedRequest { version, request_id, session_id, ..request })
    }
}

/// Computed values, each with its wire form.
fn computed<'v>(mut values: &'v [u8]) -> impl Iterator<Item = (Value<'v>, &'v [u8])> {
    core::iter::from_fn(move || {
        let (value, rest) = Value::split(values).ok()?;
        let encoded = &values[..values.len() - rest.len()];
        values = rest;
        Some((value, encoded))
    })
}

/// Finds what a request with an authenticated sender is about.
#[expect(clippy::result_large_err, reason = "replies are never allocated")]
fn challenged<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
) -> Result<AnsweredChallenge<'a>, ReplyParts<'a>> {
    let mut key: KeyBuf = KeyBuf::new();
    let question = match locate(context, request, &mut key) {
        Ok(question) => question,
        Err(reply) if reply.refused() == Some(RefusalReason::NotPublic) => {
            let spelt = Query::decode(request.body()).map_or(SITE_STATUS, |query| query.handle);
            return Ok(AnsweredChallenge { request: *request, subject: RequestSubject::Status(spelt) });
        }
        Err(reply) => return Err(reply),
    };
    let lookup = RecordLookup::new(context, key.as_bytes());
    match context.records.find(lookup.hash, lookup.key()) {
        Ok(Some(record)) => {
            Ok(AnsweredChallenge { request: *request, subject: RequestSubject::Record(question, record) })
        }
        Ok(None) if context.may_compute(question.query.handle) => {
            Ok(AnsweredChallenge { request: *request, subject: RequestSubject::Computed(question, &[]) })
        }
        found => Err(question.answer(context, &lookup, found)),
    }
}

/// The digest of a request, for a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowDigest {
    bytes: [u8; 32],
    len: u8,
}

impl SlowDigest {
    /// Wraps the bytes of a digest.
    ///
    /// # Panics
    /// If there are more than 32 bytes.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "no digest has more than 32 bytes")]
    pub fn new(digest: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { bytes, len: digest.len() as u8 }
    }

    /// The MD5 digest of versions below 2.1.
    fn old(covered: &[u8]) -> Self {
        use md5::Digest as _;
        Self::new(&md5::Md5::digest(covered))
    }

    /// The bytes, without the code of the algorithm.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A request whose sender answered the challenge. The caller checks whether the answer is correct.
///
/// The order of checks is that of deployed servers: [`permits`](Self::permits) first, then the key,
/// then [`answer`](Self::answer). A client that is not permitted does not learn whether its key was
/// correct.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredChallenge<'a> {
    request: ParsedRequest<'a>,
    subject: RequestSubject<'a>,
}

/// What the request is about.
#[derive(Clone, Copy, Debug)]
enum RequestSubject<'a> {
    Record(RecordQuestion<'a>, EncodedRecord<'a>),
    /// A handle that is not stored, with its computed values in wire form.
    Computed(RecordQuestion<'a>, &'a [u8]),
    /// The state of the server, with its name as the client spelt it.
    Status(&'a [u8]),
}

impl<'a> AnsweredChallenge<'a> {
    /// Whether the request asks for the state of the server, which only the server knows.
    #[must_use]
    pub const fn is_status(&self) -> bool {
        matches!(self.subject, RequestSubject::Status(_))
    }

    /// Whether the request asks for a stored record.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        matches!(self.subject, RequestSubject::Record(..))
    }

    /// The handle, if its values have to be [computed](Self::with_computed).
    #[must_use]
    pub const fn to_compute(&self) -> Option<&'a [u8]> {
        match self.subject {
            RequestSubject::Computed(question, _) => Some(question.query.handle),
            RequestSubject::Record(..) | RequestSubject::Status(_) => None,
        }
    }

    /// Adds the computed values, in wire form.
    #[must_use]
    pub const fn with_computed(self, values: &'a [u8]) -> Self {
        match self.subject {
            RequestSubject::Computed(question, _) => {
                Self { subject: RequestSubject::Computed(question, values), ..self }
            }
            RequestSubject::Record(..) | RequestSubject::Status(_) => self,
        }
    }

    /// The reply when there are no computed values either.
    #[must_use]
    pub fn not_computed<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>) -> ReplyParts<'a> {
        SlowPathRequest::template(&self.request).not_computed(context)
    }

    /// Whether `identity` may read the values, as an administrator of the handle or of the server.
    /// The state of the server may be read by administrators of the server and by those of its
    /// state.
    #[must_use]
    pub fn permits<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        identity: Reference<'_>,
        administrators: &ServerAdministrators<'a>,
    ) -> AuthorityOutcome {
        let max = administrators.lookups_max;
        let server: &[_] = if administrators.server_reads_all { administrators.server } else { &[] };
        let server = server.iter().copied();
        match self.subject {
            RequestSubject::Status(_) => {
                let all = administrators.server.iter().chain(administrators.status);
                entitles(context, all.copied(), identity, max)
            }
            RequestSubject::Record(_, record) => {
                let values = record.values_in_order().map_while(Result::ok);
                entitles(context, server.chain(readers(values)), identity, max)
            }
            // Only the administrators of the base, which is stored, have rights. Computed values
            // may depend on the handle that the client chose.
            RequestSubject::Computed(question, _) => {
                let base = context.base_of(question.query.handle);
                let base = base.and_then(|base| find_local(context, Handle(base)).ok()?.record);
                let values = base.into_iter().flat_map(|base| base.values_in_order().map_while(Result::ok));
                entitles(context, server.chain(readers(values)), identity, max)
            }
        }
    }

    /// The reply that refuses the request.
    #[must_use]
    pub fn refuse<B>(&self, context: &AnswerContext<'a, B>, refused: RefusalReason) -> ReplyParts<'a> {
        refuse(context, &self.request, refused)
    }

    /// The reply with the selected values, including those that only administrators may read.
    /// Values that nobody may read are left out, as deployed servers do; if no other value was
    /// selected, the reply is an error.
    ///
    /// The values are copied to `buffer`.
    #[must_use]
    pub fn answer<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        buffer: &'a mut [u8],
    ) -> ReplyParts<'a> {
        match self.subject {
            RequestSubject::Record(question, record) => {
                let mut values = record.values_in_order();
                let values = core::iter::from_fn(|| values.next_encoded()).map(Result::ok);
                self.answer_with(context, question, record.values_count(), values, buffer)
            }
            RequestSubject::Computed(question, values) => {
                let count = computed(values).count();
                self.answer_with(context, question, count, computed(values).map(Some), buffer)
            }
            RequestSubject::Status(_) => self.refuse(context, RefusalReason::NotPublic),
        }
    }

    /// Like [`answer`](Self::answer) with `values`, in their order; `None` stands for a damaged
    /// value.
    fn answer_with<'v, B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        question: RecordQuestion<'a>,
        values_count: usize,
        values: impl Iterator<Item = Option<(Value<'v>, &'v [u8])>>,
        buffer: &'a mut [u8],
    ) -> ReplyParts<'a> {
        let filter = match ValueFilter::among(context, question.query, values_count) {
            Ok(filter) => filter,
            Err(refused) => return self.refuse(context, refused),
        };
        let readable = Permissions(Permissions::PUBLIC_READ.0 | Permissions::ADMIN_READ.0);
        let (mut len, mut count, mut withheld, mut private) = (0, 0, false, false);
        for value in values {
            let Some((value, encoded)) = value else {
                return self.refuse(context, RefusalReason::DamagedRecord);
            };
            if !filter.selects(&value) {
                continue;
            }
            if value.permissions.0 & readable.0 == 0 {
                withheld = true;
                continue;
            }
            let Some(buffer) = buffer.get_mut(len..len + encoded.len()) else {
                return self.refuse(context, RefusalReason::AnswerTooLong);
            };
            buffer.copy_from_slice(encoded);
            private |= !value.is_public();
            len += encoded.len();
            count += 1;
        }
        if count == 0 && withheld {
            return self.refuse(context, RefusalReason::Unreadable);
        }
        match SelectedValues::from(&buffer[..len], count, ValueFilter::All) {
            Some(selected) if private => question.show(context, selected).private(),
            Some(selected) => question.show(context, selected),
            None => self.refuse(context, RefusalReason::DamagedRecord),
        }
    }

    /// The reply with the state of the server: `count` values in wire form. Index and type lists do
    /// not apply, as in deployed servers.
    #[must_use]
    pub fn status<B>(
        &self,
        context: &AnswerContext<'a, B>,
        values: &'a [u8],
        count: usize,
    ) -> ReplyParts<'a> {
        let (RequestSubject::Status(spelt), Some(selected)) =
            (self.subject, SelectedValues::from(values, count, ValueFilter::All))
        else {
            return self.refuse(context, RefusalReason::NotPublic);
        };
        let mut reply =
            ReplyParts::to(&self.request, ResponseCode::SUCCESS, &context.service, context.now_unix_s);
        reply.push_text(spelt);
        reply.push_values(selected);
        reply.finish().private()
    }
}

/// The administrators whom the HS_ADMIN values among `values` permit to read. One value alone must
/// grant the permission.
fn readers<'a>(values: impl Iterator<Item = Value<'a>>) -> impl Iterator<Item = Reference<'a>> {
    values.filter(|value| fold::eq(value.kind, HS_ADMIN)).filter_map(|value| {
        let admin = Admin::decode(value.data).ok()?;
        admin.permissions.has(AdminPermissions::READ_VALUE).then_some(admin.reference)
    })
}

/// The values that may hold the key of `identity`, in ascending order of index: the value with its
/// index, or all values of its type if the index is 0, whatever their read permissions. A copy of
/// the record of a prefix that is homed here is used as well.
///
/// # Errors
/// The record is not on this server, or is damaged.
pub fn keys<'a, 'k, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    identity: Reference<'_>,
    kind: &'k [u8],
) -> Result<KeyCandidates<'a, 'k>, NotLocal> {
    let LocalRecord { record, is_copy } = find_local(context, Handle(identity.handle))?;
    let keys = KeyCandidates { record, kind, index: identity.index, after: None };
    // A copy may lack keys that the record at the registry has.
    if is_copy && keys.clone().next().is_none() {
        return Err(NotLocal::Remote);
    }
    Ok(keys)
}

/// The iterator that [`keys`] returns.
#[derive(Clone, Copy, Debug)]
pub struct KeyCandidates<'a, 'k> {
    record: Option<EncodedRecord<'a>>,
    kind: &'k [u8],
    /// The index of the identity, or 0 for any.
    index: i32,
    /// The index of the value that was returned last.
    after: Option<i32>,
}

impl<'a> Iterator for KeyCandidates<'a, '_> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let values = self.record?.values_in_order().map_while(Result::ok);
        let (index, kind, after) = (self.index, self.kind, self.after);
        let candidates = values.filter(|value| {
            (index == 0 || value.index == index)
                && fold::eq(value.kind, kind)
                && after.is_none_or(|after| value.index > after)
        });
        let next = candidates.min_by_key(|value| value.index)?;
        self.after = Some(next.index);
        Some(next)
    }
}
