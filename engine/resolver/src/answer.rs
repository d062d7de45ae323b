//! Decode, find, select, assemble: one request. The definition that the batch form is tested against.

use crate::referral;
use crate::refusal::RefusalReason;
use crate::reply::{ReplyParts, too_long};
use crate::request::{DropReason, ParsedRequest, UndecidableMessage, UnreadableRequest};
use crate::select::{SelectedValues, ValueFilter};
use crate::service::AnswerContext;
use crate::slow::{self, SlowPathRequest};
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::name::{PREFIX_RECORDS, SITE_STATUS};
use handle_proto::wire::Envelope;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::{Handle, OpCode, OpFlags, Permissions, ResponseCode, Value, fold};
use handle_snapshot::{CorruptRecord, EncodedRecord, HomedTable, hash_key};

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug)]
pub enum AnswerOutcome<'a> {
    /// This answer goes back.
    Reply(ReplyParts<'a>),
    /// Nothing goes back.
    Drop(DropReason),
    /// The datagram is one fragment of a message. Once the message is whole,
    /// [`answer_message`] answers it.
    Fragment(Envelope),
    /// This answer to a request for public values in a session. It goes back if there is such a session, and if the
    /// MAC of the request, if it has one, is right; with a MAC where that was asked for.
    InSession(ReplyParts<'a>),
    /// It is encrypted in a session. Once it is decrypted, [`answer_message`] answers it.
    Encrypted,
    /// It asks for names to be listed, which another process does; [`refuse_listing`] where that cannot be asked.
    Listing,
    /// It takes too long for a worker: a signature, who asks, or computed values.
    /// [`slow`](mod@crate::slow) goes on with it.
    Slow(SlowPathRequest<'a>),
}

/// Answers one datagram.
///
/// What cannot be read still gets an answer: the sender is told why, where that is safe.
pub fn answer<'a, B: AsRef<[u8]>>(context: &AnswerContext<'a, B>, datagram: &'a [u8]) -> AnswerOutcome<'a> {
    answer_request(context, ParsedRequest::from_datagram(datagram))
}

/// Answers one whole message: `bytes` are what followed `envelope`, or the fragments put together.
pub fn answer_message<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    envelope: Envelope,
    bytes: &'a [u8],
) -> AnswerOutcome<'a> {
    answer_request(context, ParsedRequest::from_message(envelope, bytes))
}

/// What a stream is told that cannot be read on, whether or not a request had begun: `text`, or what goes with
/// `refused` where that is empty.
pub fn refuse_stream<'a, B>(
    context: &AnswerContext<'_, B>,
    refused: RefusalReason,
    text: &'a [u8],
) -> ReplyParts<'a> {
    let reply = ReplyParts::unreadable(refused, OpCode::RESERVED, context.now_unix_s);
    if text.is_empty() { reply } else { reply.with_text(text) }
}

/// The reply to a request to list names, `bytes` behind `envelope`, that is not carried out because of `refused`.
#[cold]
pub fn refuse_listing<'a, B>(
    context: &AnswerContext<'_, B>,
    envelope: Envelope,
    bytes: &'a [u8],
    refused: RefusalReason,
) -> ReplyParts<'a> {
    match ParsedRequest::from_operation(&envelope, bytes) {
        Some(request) => {
            ReplyParts::to(&request, refused.code(), &context.service, context.now_unix_s).refuse(refused)
        }
        None => refuse_stream(context, refused, b""),
    }
}

pub(crate) fn answer_request<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    request: Result<ParsedRequest<'a>, UndecidableMessage>,
) -> AnswerOutcome<'a> {
    let mut key: KeyBuf = KeyBuf::new();
    match prepare(context, request, &mut key) {
        PreparedRequest::Done(outcome) => outcome,
        PreparedRequest::Find(question) => {
            let lookup = RecordLookup::new(context, key.as_bytes());
            let found = context.records.find(lookup.hash, lookup.key);
            question.outcome(context, &lookup, found)
        }
    }
}

/// A request after the first stage.
pub(crate) enum PreparedRequest<'a> {
    /// No record is needed.
    Done(AnswerOutcome<'a>),
    /// The record with the key that was written must be found first.
    Find(RecordQuestion<'a>),
}

/// A resolution request that this server is responsible for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordQuestion<'a> {
    pub(crate) request: ParsedRequest<'a>,
    pub(crate) query: Query<'a>,
}

/// What a record is found by.
pub(crate) struct RecordLookup<'k> {
    key: &'k [u8],
    pub(crate) hash: u64,
}

impl<'k> RecordLookup<'k> {
    pub(crate) fn new<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>, key: &'k [u8]) -> Self {
        Self { key, hash: hash_key(context.records.seed(), key) }
    }

    pub(crate) const fn hashed(key: &'k [u8], hash: u64) -> Self {
        Self { key, hash }
    }

    pub(crate) const fn key(&self) -> &'k [u8] {
        self.key
    }
}

/// Room for the key of one record.
///
/// A handle of more bytes than may be stored is not found, whatever its key.
pub(crate) struct KeyBuf<const N: usize = { HANDLE_LEN_MAX + PREFIX_RECORDS.len() }> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> KeyBuf<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the key of `handle`. False when there is no room for it.
    #[inline]
    pub(crate) fn write(&mut self, handle: Handle<'_>, folds: bool) -> bool {
        if handle.slash_at().is_none() {
            return self.write_prefix_record(handle);
        }
        let Some(room) = self.bytes.get_mut(..handle.0.len()) else { return false };
        room.copy_from_slice(handle.0);
        if folds {
            fold::fold(room);
        }
        self.len = handle.0.len();
        true
    }

    /// A name without a slash stands for `0.NA/` and its folded form.
    #[cold]
    fn write_prefix_record(&mut self, name: Handle<'_>) -> bool {
        let len = PREFIX_RECORDS.len() + name.0.len();
        let Some(room) = self.bytes.get_mut(..len) else { return false };
        let (lead, rest) = room.split_at_mut(PREFIX_RECORDS.len());
        lead.copy_from_slice(PREFIX_RECORDS);
        rest.copy_from_slice(name.0);
        fold::fold(rest);
        self.len = len;
        true
    }
}

/// The first stage: everything that can be said without a record.
#[inline]
pub(crate) fn prepare<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: Result<ParsedRequest<'a>, UndecidableMessage>,
    key: &mut KeyBuf<N>,
) -> PreparedRequest<'a> {
    let request = match request {
        Ok(request) => request,
        Err(UndecidableMessage::Reply(unreadable))
            if unreadable.is_listing() && context.service.forwards_listing =>
        {
            return PreparedRequest::Done(AnswerOutcome::Listing);
        }
        Err(UndecidableMessage::Reply(unreadable)) => {
            return PreparedRequest::Done(AnswerOutcome::Reply(unreadable.reply(context.now_unix_s)));
        }
        Err(UndecidableMessage::Drop(reason)) => return PreparedRequest::Done(AnswerOutcome::Drop(reason)),
        Err(UndecidableMessage::Fragment(envelope)) => {
            return PreparedRequest::Done(AnswerOutcome::Fragment(envelope));
        }
        Err(UndecidableMessage::Encrypted) if context.service.sessions => {
            return PreparedRequest::Done(AnswerOutcome::Encrypted);
        }
        Err(UndecidableMessage::Encrypted) => {
            let refused = UnreadableRequest::from(RefusalReason::EncryptedInUnknownSession);
            return PreparedRequest::Done(AnswerOutcome::Reply(refused.reply(context.now_unix_s)));
        }
    };
    let is_in_session = request.is_in_session(&context.service);
    if !(request.is_plain() && !is_in_session || is_in_session && request.is_public_in_the_clear()) {
        return PreparedRequest::Done(slow::answer_unusual(context, &request, key));
    }
    match decode(context, &request, key) {
        Ok(question) => PreparedRequest::Find(question),
        Err(reply) if is_in_session => PreparedRequest::Done(AnswerOutcome::InSession(reply)),
        Err(reply) => PreparedRequest::Done(AnswerOutcome::Reply(reply)),
    }
}

/// As [`decode`], for a record whose prefix is homed here.
#[expect(clippy::result_large_err, reason = "a reply is what most things come to, and nothing is allocated")]
pub(crate) fn locate<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    key: &mut KeyBuf<N>,
) -> Result<RecordQuestion<'a>, ReplyParts<'a>> {
    let question = decode(context, request, key)?;
    match is_homed(context, key.as_bytes()) {
        true => Ok(question),
        false => Err(refuse(context, request, RefusalReason::NotHomed)),
    }
}

/// Decodes a resolution and writes the key of the record that it is about, if the record is this server's to look
/// for. Whether its prefix is homed is asked when it has been looked for: mostly the record tells.
#[inline(always)]
#[expect(clippy::result_large_err, reason = "a reply is what most things come to, and nothing is allocated")]
fn decode<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    key: &mut KeyBuf<N>,
) -> Result<RecordQuestion<'a>, ReplyParts<'a>> {
    let refuse = |refused| Err(refuse(context, request, refused));
    let Ok(query) = Query::decode(request.body()) else {
        return Err(UnreadableRequest::from(RefusalReason::Malformed).reply(context.now_unix_s));
    };
    if request.session_id > 0 && !context.service.sessions {
        return refuse(RefusalReason::UnknownSession);
    }
    if fold::eq(query.handle, SITE_STATUS) {
        return match request.flags.has(OpFlags::PUBLIC_ONLY) {
            true => Err(none(context, request, ResponseCode::VALUES_NOT_FOUND)),
            false => refuse(RefusalReason::NotPublic),
        };
    }
    question(context, request, query, key)
}

/// The question of `query` with the key of its record, if the record is this server's to look for.
#[inline(always)]
#[expect(clippy::result_large_err, reason = "a reply is what most things come to, and nothing is allocated")]
fn question<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    query: Query<'a>,
    key: &mut KeyBuf<N>,
) -> Result<RecordQuestion<'a>, ReplyParts<'a>> {
    let handle = Handle(query.handle);
    if !context.service.has(handle) {
        return Err(refuse(context, request, RefusalReason::OtherServer));
    }
    if !key.write(handle, context.records.folds()) {
        // Too long to be stored: not found, or not ours to look for.
        return Err(match context.homed.is_some_and(|homed| homed.has(handle.naming_authority())) {
            true => none(context, request, ResponseCode::HANDLE_NOT_FOUND),
            false => refuse(context, request, RefusalReason::NotHomed),
        });
    }
    Ok(RecordQuestion { request: *request, query })
}

/// Whether `handle`, which a request is about that asks for none of its values, is this server's, stored or not.
///
/// # Errors
/// The reply: another server has it, or another service.
#[expect(clippy::result_large_err, reason = "replies are never allocated")]
pub(crate) fn locate_handle<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    handle: &'a [u8],
) -> Result<(), ReplyParts<'a>> {
    let mut key: KeyBuf = KeyBuf::new();
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    let located = question(context, request, query, &mut key).and_then(|question| {
        let lookup = RecordLookup::new(context, key.as_bytes());
        match context.records.find(lookup.hash, lookup.key) {
            _ if !is_homed(context, lookup.key) => Err(question.refuse(context, RefusalReason::NotHomed)),
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(question.refer(context, &lookup)),
            Err(CorruptRecord { .. }) => Err(question.refuse(context, RefusalReason::DamagedRecord)),
        }
    });
    match located {
        Err(reply) if reply.response_code() == ResponseCode::HANDLE_NOT_FOUND => Ok(()),
        located => located,
    }
}

/// A record that was looked for on behalf of administrators.
pub(crate) struct LocalRecord<'a> {
    /// The record, if there is one.
    pub(crate) record: Option<EncodedRecord<'a>>,
    /// Whether it is a copy of a record that another service has, which need not be complete.
    pub(crate) is_copy: bool,
}

/// The record of `handle`, if this server has it, or a copy of it where it is that of a prefix homed here: for keys and
/// groups of administrators.
///
/// # Errors
/// When another server has the record and there is no copy, or it is damaged.
pub(crate) fn find_local<'a, B: AsRef<[u8]>>(
    context: &AnswerContext<'a, B>,
    handle: Handle<'_>,
) -> Result<LocalRecord<'a>, NotLocal> {
    let mut key: KeyBuf = KeyBuf::new();
    if !key.write(handle, context.records.folds()) {
        return Err(NotLocal::Remote);
    }
    let is_here = context.service.has(handle) && is_homed(context, key.as_bytes());
    if !is_here && !is_record_of_homed_prefix(context, key.as_bytes()) {
        return Err(NotLocal::Remote);
    }
    let lookup = RecordLookup::new(context, key.as_bytes());
    match context.records.find(lookup.hash, lookup.key) {
        Ok(None) if !is_here => Err(NotLocal::Remote),
        Ok(record) => Ok(LocalRecord { record, is_copy: !is_here }),
        Err(CorruptRecord { .. }) => Err(NotLocal::Damaged),
    }
}

/// Whether this is the key of the record of a prefix that is homed here. The record itself is at the registry, but its
/// operator may have put a copy into the set, whose keys and groups count.
fn is_record_of_homed_prefix<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>, key: &[u8]) -> bool {
    let prefix = Handle(key).is_prefix_record().then(|| &key[PREFIX_RECORDS.len()..]);
    prefix.zip(context.homed).is_some_and(|(prefix, homed)| homed.has(prefix))
}

/// Why a record cannot be read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLocal {
    /// Another server, or another service, has it.
    Remote,
    /// What is stored is damaged.
    Damaged,
}

/// Whether this server has homed the prefix of the handle with this key, or, for the record of a derived
/// prefix, the records under one of its ancestors.
fn is_homed<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>, key: &[u8]) -> bool {
    let Some(homed) = context.homed else { return false };
    let prefix = Handle(key).naming_authority();
    // Keys are folded where the service folds, and prefixes always are in the table.
    let is_here = if context.records.folds() { homed.has_folded(prefix) } else { homed.has(prefix) };
    is_here || (Handle(key).is_derived_prefix_record() && is_homed_by_ancestor(&homed, key))
}

/// `0.NA/a.b` is ours too when `0.NA/0.NA/a` is homed: "derived prefixes only".
#[cold]
fn is_homed_by_ancestor(homed: &HomedTable<'_>, key: &[u8]) -> bool {
    let mut name = Handle(key);
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = name.parent_prefix_record() else { return false };
        // What is homed then is all that is derived from the parent, and is called as its record.
        if homed.has(parent.0) {
            return true;
        }
        name = parent;
    }
    false
}

/// Most ancestors of a prefix that are looked at for one request; a name of dots would have thousands.
pub(crate) const ANCESTORS_MAX: usize = 16;

impl<'a> RecordQuestion<'a> {
    /// Whether the handle, which is not stored, is one for which the asker would be referred to another service, and
    /// does not understand that.
    #[inline]
    fn is_resolved_for_asker<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        lookup: &RecordLookup<'_>,
    ) -> bool {
        context.service.resolves_for_old
            && self.request.wants_no_referral()
            && Self::is_referred(context, lookup)
    }

    #[cold]
    fn is_referred<B: AsRef<[u8]>>(context: &AnswerContext<'a, B>, lookup: &RecordLookup<'_>) -> bool {
        Handle(lookup.key).is_derived_prefix_record()
            && matches!(referral::find(context, lookup), Ok(Some(_)))
    }

    /// The last stage: what becomes of the request, once the record was looked for.
    #[inline]
    pub(crate) fn outcome<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        lookup: &RecordLookup<'_>,
        found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
    ) -> AnswerOutcome<'a> {
        let mut reply = self.success(context);
        match self.answer_into(context, lookup, found, &mut reply) {
            true => AnswerOutcome::Slow(SlowPathRequest::template(&self.request)),
            false if self.request.is_in_session(&context.service) => AnswerOutcome::InSession(reply),
            false => AnswerOutcome::Reply(reply),
        }
    }

    /// The reply, once the record was looked for, when there are no computed values. Lists that are too long for a worker
    /// are refused.
    #[inline]
    pub(crate) fn answer<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        lookup: &RecordLookup<'_>,
        found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
    ) -> ReplyParts<'a> {
        let mut reply = self.success(context);
        let is_stored = matches!(found, Ok(Some(_)));
        match self.answer_into(context, lookup, found, &mut reply) {
            false => reply,
            true if is_stored => self.refuse(context, RefusalReason::QueryTooLong),
            true => self.refer(context, lookup),
        }
    }

    /// As [`answer`](Self::answer), into what [`success`](Self::success) gave. A reply is large, and to copy
    /// what was just written field by field makes the processor wait.
    ///
    /// True when it goes the slow way, and nothing was written: there is no such record, but its values may be computed
    /// or asked for elsewhere, or the lists of the query are too long.
    #[inline]
    #[must_use]
    pub(crate) fn answer_into<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        lookup: &RecordLookup<'_>,
        found: Result<Option<EncodedRecord<'a>>, CorruptRecord>,
        reply: &mut ReplyParts<'a>,
    ) -> bool {
        match found {
            Ok(Some(record)) if record.is_homed() => return self.select(context, &record, reply),
            _ if !is_homed(context, lookup.key) => *reply = self.refuse(context, RefusalReason::NotHomed),
            Ok(Some(record)) => return self.select(context, &record, reply),
            Ok(None) if context.may_compute(self.query.handle) => return true,
            Ok(None) if self.is_resolved_for_asker(context, lookup) => return true,
            Ok(None) => *reply = self.refer(context, lookup),
            Err(CorruptRecord { .. }) => *reply = self.refuse(context, RefusalReason::DamagedRecord),
        }
        false
    }

    #[inline]
    fn select<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        record: &EncodedRecord<'a>,
        reply: &mut ReplyParts<'a>,
    ) -> bool {
        let filter = match ValueFilter::among(context, self.query, record.public_count()) {
            Ok(filter) => filter,
            Err(RefusalReason::QueryTooLong) if context.service.authenticates => return true,
            Err(refused) => {
                *reply = self.refuse(context, refused);
                return false;
            }
        };
        match SelectedValues::from(record.public_bytes(), record.public_count(), filter) {
            Some(selected) => self.show_in(context, selected, reply),
            None => *reply = self.refuse(context, RefusalReason::DamagedRecord),
        }
        false
    }

    /// The reply that shows `selected`.
    pub(crate) fn show<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        selected: SelectedValues<'a>,
    ) -> ReplyParts<'a> {
        let mut reply = self.success(context);
        self.show_in(context, selected, &mut reply);
        reply
    }

    #[inline]
    fn show_in<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        selected: SelectedValues<'a>,
        reply: &mut ReplyParts<'a>,
    ) {
        if selected.count == 0 {
            *reply = none(context, &self.request, ResponseCode::VALUES_NOT_FOUND);
            return;
        }
        reply.push_text(self.query.handle);
        reply.push_values(selected);
        self.finish(context, reply);
    }

    /// Why values must not be shown where public-only is off: the first selected one that is not
    /// public decides. In a session identity always matters.
    pub(crate) fn private<B>(
        &self,
        context: &AnswerContext<'a, B>,
        record: &EncodedRecord<'a>,
    ) -> Option<RefusalReason> {
        let filter = match ValueFilter::among(context, self.query, record.values_count()) {
            Ok(filter) => filter,
            Err(refused) => return Some(refused),
        };
        let Some(public) = SelectedValues::from(record.public_bytes(), record.public_count(), filter) else {
            return Some(RefusalReason::DamagedRecord);
        };
        for (_, bytes) in record.private() {
            let Ok((value, _)) = Value::split(bytes) else { return Some(RefusalReason::DamagedRecord) };
            if filter.selects(&value) {
                let readable = value.permissions.has(Permissions::ADMIN_READ);
                return Some(if readable { RefusalReason::NotPublic } else { RefusalReason::Unreadable });
            }
        }
        (self.request.session_id != 0 && public.count > 0).then_some(RefusalReason::NotPublic)
    }

    /// Fills in the lengths, unless they are too much.
    #[inline]
    fn finish<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>, reply: &mut ReplyParts<'a>) {
        reply.fill_in_lengths();
        if let Some(refused) = too_long(reply.message_len(), context.service.answer_datagrams_max) {
            *reply = self.refuse(context, refused);
        }
    }

    /// There is no such record: the service of a derived prefix may have it.
    #[cold]
    fn refer<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        lookup: &RecordLookup<'_>,
    ) -> ReplyParts<'a> {
        let not_found = || none(context, &self.request, ResponseCode::HANDLE_NOT_FOUND);
        let refers = !self.request.flags.has(OpFlags::DO_NOT_REFER);
        if !refers || !Handle(lookup.key).is_derived_prefix_record() {
            return not_found();
        }
        match referral::find(context, lookup) {
            Ok(None) => not_found(),
            Err(CorruptRecord { .. }) => self.refuse(context, RefusalReason::DamagedRecord),
            Ok(Some(delegation)) => {
                let mut reply = self.reply(context, ResponseCode::PREFIX_REFERRAL);
                reply.push_text(b"");
                reply.push_values(delegation);
                self.finish(context, &mut reply);
                reply
            }
        }
    }

    /// A reply that is going to show values.
    #[inline]
    pub(crate) fn success<B>(&self, context: &AnswerContext<'a, B>) -> ReplyParts<'a> {
        self.reply(context, ResponseCode::SUCCESS)
    }

    #[inline]
    fn reply<B>(&self, context: &AnswerContext<'a, B>, code: ResponseCode) -> ReplyParts<'a> {
        ReplyParts::to(&self.request, code, &context.service, context.now_unix_s)
    }

    pub(crate) fn refuse<B>(&self, context: &AnswerContext<'a, B>, refused: RefusalReason) -> ReplyParts<'a> {
        refuse(context, &self.request, refused)
    }
}

/// Operations other than resolution.
pub(crate) fn other_operation<'a, B>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
) -> ReplyParts<'a> {
    let refused = match request.op_code {
        OpCode::SESSION_EXCHANGE_KEY if request.is_in_session(&context.service) => RefusalReason::KeyExchange,
        _ if request.session_id > 0 && !context.service.sessions => RefusalReason::UnknownSession,
        OpCode::GET_SITE_INFO if context.service.site.is_empty() => RefusalReason::NoSiteRecord,
        OpCode::GET_SITE_INFO => {
            let mut reply =
                ReplyParts::to(request, ResponseCode::SUCCESS, &context.service, context.now_unix_s);
            reply.push_rest(context.service.site);
            return reply.finish();
        }
        OpCode::RESPONSE_TO_CHALLENGE => RefusalReason::NoChallenge,
        OpCode::SESSION_SETUP => RefusalReason::NoSessions,
        OpCode::SESSION_EXCHANGE_KEY => RefusalReason::UnknownSession,
        OpCode::SESSION_TERMINATE => RefusalReason::NoSession,
        _ => RefusalReason::NotSupported,
    };
    refuse(context, request, refused)
}

/// A reply that says why there is no answer.
#[cold]
pub(crate) fn refuse<'a, B>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    refused: RefusalReason,
) -> ReplyParts<'a> {
    ReplyParts::to(request, refused.code(), &context.service, context.now_unix_s).refuse(refused)
}

/// The answer that there is no such handle or value.
fn none<'a, B>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    code: ResponseCode,
) -> ReplyParts<'a> {
    let mut reply = ReplyParts::to(request, code, &context.service, context.now_unix_s);
    reply.push_text(b"");
    reply.finish()
}
