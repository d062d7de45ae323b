//! What is not for a worker: requests whose answer takes a signature, depends on who asks, or is computed.
//!
//! A worker finds such a request by [`answer`](crate::answer()), which gives [`AnswerOutcome::Slow`]: it is copied to
//! another thread, answered by what is here, and signed there. Nothing here waits or draws random numbers:
//! challenges come in as arguments, and keys are checked by who calls.

use crate::answer::{
    AnswerOutcome, KeyBuf, LocalRecord, NotLocal, RecordLookup, RecordQuestion, find_local, locate,
    locate_handle, other_operation, refuse,
};
use crate::authority::{AuthorityOutcome, ServerAdministrators, entitles};
use crate::digest::RequestDigest;
use crate::refusal::RefusalReason;
use crate::reply::ReplyParts;
use crate::request::ParsedRequest;
use crate::select::{SelectedValues, ValueFilter};
use crate::service::{AnswerContext, ServiceFacts};
use handle_proto::data::admin::{Admin, AdminPermissions};
use handle_proto::name::SITE_STATUS;
use handle_proto::wire::Envelope;
use handle_proto::wire::list::Reference;
use handle_proto::wire::query::Query;
use handle_proto::{Handle, OpCode, OpFlags, Permissions, ResponseCode, Value, Version, fold};
use handle_snapshot::EncodedRecord;

/// Type of the values that say who may do what with a handle.
const HS_ADMIN: &[u8] = b"HS_ADMIN";

/// Why a request goes the slow way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowReason {
    /// The answer is to be signed.
    Certify,
    /// The answer depends on who asks.
    Identity,
    /// The handle is not stored, but may have computed values, or another service that has it; or indexes and types are
    /// asked for that are too many to be compared with its values one by one.
    Template,
    /// It answers a challenge.
    ChallengeAnswer,
    /// Another server asks whether the answer to its challenge is right.
    Verification,
    /// A session is to be set up.
    SessionSetup,
    /// It is in a session, and more than a request for public values.
    Session,
}

impl SlowReason {
    /// What can be told without looking anything up.
    fn of(service: &ServiceFacts<'_>, request: &ParsedRequest<'_>) -> Option<Self> {
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

/// A request that goes the slow way.
#[derive(Clone, Copy, Debug)]
pub struct SlowPathRequest<'a> {
    request: ParsedRequest<'a>,
    reason: SlowReason,
}

/// What comes of a request before anybody has said who they are.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every one is a reply, and nothing is allocated")]
pub enum FirstEvaluation<'a> {
    /// This answer, to be signed where that was asked for.
    Reply(ReplyParts<'a>),
    /// It depends on who asks: a [`challenge`](SlowPathRequest::challenge) is due.
    Identity,
    /// The handle is not stored, but may have [`computed`](SlowPathRequest::computed) values.
    Template,
}

/// What is not plain, in one go: nothing is staged for it.
#[cold]
#[inline(never)]
pub(crate) fn answer_unusual<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    key: &mut KeyBuf<N>,
) -> AnswerOutcome<'a> {
    if let Some(why) = SlowReason::of(&context.service, request) {
        return AnswerOutcome::Slow(SlowPathRequest { request: *request, reason: why });
    }
    match evaluate(context, request, key) {
        FirstEvaluation::Reply(reply)
            if reply.refused() == Some(RefusalReason::QueryTooLong) && can_sort(context) =>
        {
            AnswerOutcome::Slow(SlowPathRequest::template(request))
        }
        FirstEvaluation::Reply(reply) => AnswerOutcome::Reply(reply),
        FirstEvaluation::Identity => {
            AnswerOutcome::Slow(SlowPathRequest { request: *request, reason: SlowReason::Identity })
        }
        FirstEvaluation::Template => AnswerOutcome::Slow(SlowPathRequest::template(request)),
    }
}

/// Whether there are threads that can sort the lists of a query, and this is none of them.
const fn can_sort<B>(context: &AnswerContext<'_, B>) -> bool {
    context.service.authenticates && context.sorting.is_none()
}

/// The answer to whoever asks.
fn evaluate<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    key: &mut KeyBuf<N>,
) -> FirstEvaluation<'a> {
    let reply = if request.op_code == OpCode::RESOLUTION {
        match locate(context, request, key) {
            Ok(question) => match evaluate_question(context, &question, key) {
                Some(reply) => reply,
                None => return FirstEvaluation::Template,
            },
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
    pub(crate) const fn template(request: &ParsedRequest<'a>) -> Self {
        Self { request: *request, reason: SlowReason::Template }
    }

    /// Why it goes the slow way.
    #[must_use]
    pub const fn reason(&self) -> SlowReason {
        self.reason
    }

    /// Whether the answer is to be signed.
    #[must_use]
    pub const fn certifies(&self) -> bool {
        self.request.flags.has(OpFlags::CERTIFY)
    }

    /// The version in which to answer.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.request.version
    }

    /// What is to be done.
    #[must_use]
    pub const fn op_code(&self) -> OpCode {
        self.request.op_code
    }

    /// The session, or the challenge that is answered.
    #[must_use]
    pub const fn session_id(&self) -> i32 {
        self.request.session_id
    }

    /// The body of the request.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.request.body()
    }

    /// Whether its sender does not understand a referral to another service, and is to be resolved for.
    #[must_use]
    pub fn wants_no_referral<B>(&self, context: &AnswerContext<'a, B>) -> bool {
        context.service.resolves_for_old && self.request.wants_no_referral()
    }

    /// The answer to whoever asks, or that it depends on who that is.
    #[must_use]
    pub fn evaluate<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>) -> FirstEvaluation<'a> {
        let mut key: KeyBuf = KeyBuf::new();
        evaluate(context, &self.request, &mut key)
    }

    /// The handle that is asked for; nothing where the request is about none.
    #[must_use]
    pub fn handle(&self) -> &'a [u8] {
        Query::decode(self.request.body()).map_or(&[], |query| query.handle)
    }

    /// The reply once it is known that there are no computed values either.
    #[must_use]
    pub fn not_computed<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>) -> ReplyParts<'a> {
        let mut key: KeyBuf = KeyBuf::new();
        match locate(context, &self.request, &mut key) {
            Ok(question) => question.answer(context, &RecordLookup::new(context, key.as_bytes()), Ok(None)),
            Err(reply) => reply,
        }
    }

    /// Why computed values, `count` of them in wire form in `values`, are not for whoever asks; as for
    /// [stored ones](Self::evaluate), the first decides that is asked for and not public.
    #[must_use]
    pub fn hides<B>(
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

    /// The reply with computed values: `count` of them in wire form in `values`, of which those stay that are
    /// asked for and public.
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

    /// The reply that says why there is no other.
    #[must_use]
    pub fn refuse<B>(&self, context: &AnswerContext<'a, B>, refused: RefusalReason) -> ReplyParts<'a> {
        refuse(context, &self.request, refused)
    }

    /// The digest of the request that an answer to its challenge covers together with the nonce, without the
    /// code of its algorithm. RFC 3652 section 3.5.1.
    #[must_use]
    pub fn digest(&self) -> SlowDigest {
        RequestDigest::of(self.request.covered, self.request.version).map_or_else(
            || SlowDigest::old(self.request.covered),
            |digest| SlowDigest::new(&digest.as_bytes()[1..]),
        )
    }

    /// The challenge with the number `id`. `body` is the nonce; below version 2.1 it is the whole body, nonce
    /// and digest, both counted.
    #[must_use]
    pub fn challenge<B>(&self, context: &AnswerContext<'a, B>, id: i32, body: &'a [u8]) -> ReplyParts<'a> {
        let request = ParsedRequest {
            session_id: id,
            // A challenge carries the digest, asked for or not.
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

    /// Whether challenges have the form they had below version 2.1.
    #[must_use]
    pub fn has_old_form(&self) -> bool {
        self.request.version < Version::LOWEST
    }

    /// Whether the answers to challenges that use the keys of `handle` are verified here.
    ///
    /// # Errors
    /// The reply: another server has the handle, or another service, which is named where it is known.
    #[expect(clippy::result_large_err, reason = "replies are never allocated")]
    pub fn verifies<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        handle: &'a [u8],
    ) -> Result<(), ReplyParts<'a>> {
        locate_handle(context, &self.request, handle)
    }

    /// What another server is told about the answer to its challenge. RFC 3652 section 3.5.3.
    #[must_use]
    pub fn verdict<B>(&self, context: &AnswerContext<'a, B>, is_valid: bool) -> ReplyParts<'a> {
        let mut reply =
            ReplyParts::to(&self.request, ResponseCode::SUCCESS, &context.service, context.now_unix_s);
        reply.push_rest(if is_valid { &[1] } else { &[0] });
        reply.finish()
    }

    /// The answer that something is done, of which there is no more to say.
    #[must_use]
    pub fn done<B>(&self, context: &AnswerContext<'a, B>) -> ReplyParts<'a> {
        ReplyParts::to(&self.request, ResponseCode::SUCCESS, &context.service, context.now_unix_s).finish()
    }

    /// The answer that there is a new session with the number `id`; `body` is what follows the digest. RFC 3652
    /// section 3.8.1.
    #[must_use]
    pub fn session<B>(&self, context: &AnswerContext<'a, B>, id: i32, body: &'a [u8]) -> ReplyParts<'a> {
        let request = ParsedRequest { session_id: id, ..self.request };
        let mut reply = ReplyParts::to(&request, ResponseCode::SUCCESS, &context.service, context.now_unix_s);
        reply.push_rest(body);
        reply.finish()
    }

    /// The request itself as one whose sender is known, by the session.
    ///
    /// # Errors
    /// The reply, where nobody's identity can change it.
    #[expect(clippy::result_large_err, reason = "replies are never allocated")]
    pub fn by_somebody_known<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
    ) -> Result<AnsweredChallenge<'a>, ReplyParts<'a>> {
        challenged(context, &self.request)
    }

    /// Takes up the request that was challenged, `message` behind `envelope`, now that `self` has answered: it
    /// is decided anew, and the reply goes to the sender of the answer; with the number of the session if it was
    /// challenged in one, and else with none.
    ///
    /// # Errors
    /// The reply, where nobody's identity can change it: the handle is gone, say.
    #[expect(clippy::result_large_err, reason = "replies are never allocated")]
    pub fn take_up<B: AsRef<[u8]>>(
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

/// Computed values, with their wire form.
fn computed<'v>(mut values: &'v [u8]) -> impl Iterator<Item = (Value<'v>, &'v [u8])> {
    core::iter::from_fn(move || {
        let (value, rest) = Value::split(values).ok()?;
        let encoded = &values[..values.len() - rest.len()];
        values = rest;
        Some((value, encoded))
    })
}

/// What a request is about whose sender says who they are.
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
    /// A digest of these bytes.
    ///
    /// # Panics
    /// When they are more than 32.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "no digest has more than 32 bytes")]
    pub fn new(digest: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { bytes, len: digest.len() as u8 }
    }

    /// The MD5, as below version 2.1.
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

/// A request whose sender has answered the challenge; whether rightly, the caller finds out.
///
/// The order is that of deployed servers: [`permits`](Self::permits) first, then the key, then
/// [`answer`](Self::answer). Who is not permitted does not learn whether the key was right.
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
    /// The state of the server; with the name as it was asked for.
    Status(&'a [u8]),
}

impl<'a> AnsweredChallenge<'a> {
    /// Whether the state of the server is asked for, which only the server can tell.
    #[must_use]
    pub const fn is_status(&self) -> bool {
        matches!(self.subject, RequestSubject::Status(_))
    }

    /// Whether it is a stored record that is asked for.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        matches!(self.subject, RequestSubject::Record(..))
    }

    /// The handle, where it is one whose values have to be [computed](Self::with_computed).
    #[must_use]
    pub const fn to_compute(&self) -> Option<&'a [u8]> {
        match self.subject {
            RequestSubject::Computed(question, _) => Some(question.query.handle),
            RequestSubject::Record(..) | RequestSubject::Status(_) => None,
        }
    }

    /// With these as its computed values, in wire form.
    #[must_use]
    pub const fn with_computed(self, values: &'a [u8]) -> Self {
        match self.subject {
            RequestSubject::Computed(question, _) => {
                Self { subject: RequestSubject::Computed(question, values), ..self }
            }
            RequestSubject::Record(..) | RequestSubject::Status(_) => self,
        }
    }

    /// The reply once it is known that there are no computed values either.
    #[must_use]
    pub fn not_computed<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>) -> ReplyParts<'a> {
        SlowPathRequest::template(&self.request).not_computed(context)
    }

    /// Whether `identity` may read: it has the right through one administrator's value of the handle, or is an
    /// administrator of the server. For the state of the server, those of the server and of the state.
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
            // Those of the base, which is stored: what is computed may say whatever the asker wants.
            RequestSubject::Computed(question, _) => {
                let base = context.base_of(question.query.handle);
                let base = base.and_then(|base| find_local(context, Handle(base)).ok()?.record);
                let values = base.into_iter().flat_map(|base| base.values_in_order().map_while(Result::ok));
                entitles(context, server.chain(readers(values)), identity, max)
            }
        }
    }

    /// The reply that says why there is no other.
    #[must_use]
    pub fn refuse<B>(&self, context: &AnswerContext<'a, B>, refused: RefusalReason) -> ReplyParts<'a> {
        refuse(context, &self.request, refused)
    }

    /// The selected values, those included that only administrators may read. Values that nobody may read are
    /// left out, where the reference shows them; if nothing else was selected, that is said.
    ///
    /// The values are copied to `room`.
    #[must_use]
    pub fn answer<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        room: &'a mut [u8],
    ) -> ReplyParts<'a> {
        match self.subject {
            RequestSubject::Record(question, record) => {
                let mut values = record.values_in_order();
                let values = core::iter::from_fn(|| values.next_encoded()).map(Result::ok);
                self.answer_with(context, question, record.values_count(), values, room)
            }
            RequestSubject::Computed(question, values) => {
                let count = computed(values).count();
                self.answer_with(context, question, count, computed(values).map(Some), room)
            }
            RequestSubject::Status(_) => self.refuse(context, RefusalReason::NotPublic),
        }
    }

    /// The same with `values`, in their order; `None` for one that is damaged.
    fn answer_with<'v, B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        question: RecordQuestion<'a>,
        values_count: usize,
        values: impl Iterator<Item = Option<(Value<'v>, &'v [u8])>>,
        room: &'a mut [u8],
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
            let Some(room) = room.get_mut(len..len + encoded.len()) else {
                return self.refuse(context, RefusalReason::AnswerTooLong);
            };
            room.copy_from_slice(encoded);
            private |= !value.is_public();
            len += encoded.len();
            count += 1;
        }
        if count == 0 && withheld {
            return self.refuse(context, RefusalReason::Unreadable);
        }
        match SelectedValues::from(&room[..len], count, ValueFilter::All) {
            Some(selected) if private => question.show(context, selected).private(),
            Some(selected) => question.show(context, selected),
            None => self.refuse(context, RefusalReason::DamagedRecord),
        }
    }

    /// The state of the server: `count` values in wire form. Index and type lists do not apply, as deployed.
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

/// Whom the administrators' values among `values` allow to read; each value by itself must do so.
fn readers<'a>(values: impl Iterator<Item = Value<'a>>) -> impl Iterator<Item = Reference<'a>> {
    values.filter(|value| fold::eq(value.kind, HS_ADMIN)).filter_map(|value| {
        let admin = Admin::decode(value.data).ok()?;
        admin.permissions.has(AdminPermissions::READ_VALUE).then_some(admin.reference)
    })
}

/// The values that may hold the key of `identity`, in ascending order of their index: the one with its index,
/// or all of its type where that is 0. Read permissions do not matter. Of a prefix that is homed here, a copy of its record
/// counts.
///
/// # Errors
/// When the handle is not here, or damaged.
pub fn keys<'a, 'k, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    identity: Reference<'_>,
    kind: &'k [u8],
) -> Result<KeyCandidates<'a, 'k>, NotLocal> {
    let LocalRecord { record, is_copy } = find_local(context, Handle(identity.handle))?;
    let keys = KeyCandidates { record, kind, index: identity.index, after: None };
    // A copy need not have all that the registry has.
    if is_copy && keys.clone().next().is_none() {
        return Err(NotLocal::Remote);
    }
    Ok(keys)
}

/// See [`keys`].
#[derive(Clone, Copy, Debug)]
pub struct KeyCandidates<'a, 'k> {
    record: Option<EncodedRecord<'a>>,
    kind: &'k [u8],
    /// The index that is asked for, or 0 for any.
    index: i32,
    /// The last one that was given.
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
