//! The question of a resolution request: which record it is about, and the reply once that record
//! was looked up.

use crate::record_key::{KeyBuf, RecordLookup};
use crate::referral;
use crate::refusal::RefusalReason;
use crate::reply::{ReplyParts, WireReply as _, too_long};
use crate::request::{ParsedRequest, UnreadableRequest};
use crate::select::{SelectedValues, ValueFilter};
use crate::service::{AnswerContext, CachedLookup, StagedCacheLookup};
use handle_proto::name::SITE_STATUS;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::{Handle, OpCode, OpFlags, Permissions, ResponseCode, Value, fold};
use handle_snapshot::{CorruptRecord, EncodedRecord};

/// A resolution request that this server is responsible for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordQuestion<'a> {
    pub(crate) request: ParsedRequest<'a>,
    pub(crate) query: Query<'a>,
}

/// Like [`decode`], and also checks that the prefix of the record is homed here.
#[expect(clippy::result_large_err, reason = "replies are never allocated")]
pub(crate) fn locate<'a, B: AsRef<[u8]>, const N: usize>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    key: &mut KeyBuf<N>,
) -> Result<RecordQuestion<'a>, ReplyParts<'a>> {
    let question = decode(context, request, key)?;
    match is_homed(context, key.as_bytes()) {
        true => Ok(question),
        false => Err(refuse(context, request, reason_not_homed(context, key.as_bytes()))),
    }
}

/// Decodes a resolution request and writes the key of its record, if this server is responsible for
/// the handle. Whether the prefix is homed is checked after the record was looked up, because the
/// record usually answers that.
#[inline(always)]
#[expect(clippy::result_large_err, reason = "replies are never allocated")]
pub(crate) fn decode<'a, B: AsRef<[u8]>, const N: usize>(
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

/// The question that `query` asks, with the key of its record, if this server is responsible for
/// the handle.
#[inline(always)]
#[expect(clippy::result_large_err, reason = "replies are never allocated")]
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
        // The handle is too long to be stored: it is not found, or not homed here.
        return Err(match context.homed.map_or(Ok(false), |homed| homed.find(handle.naming_authority())) {
            Ok(true) => none(context, request, ResponseCode::HANDLE_NOT_FOUND),
            Ok(false) => refuse(context, request, RefusalReason::NotHomed),
            Err(CorruptRecord { .. }) => refuse(context, request, unreadable(context)),
        });
    }
    Ok(RecordQuestion { request: *request, query })
}

/// Checks that this server is responsible for `handle`, stored or not. For requests that ask for
/// none of its values.
///
/// # Errors
/// The reply, if another server of the site or another service is responsible.
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
        match context.records.find(lookup.hash, lookup.key()) {
            _ if !is_homed(context, lookup.key()) => {
                Err(question.refuse(context, reason_not_homed(context, lookup.key())))
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(question.refer(context, &lookup)),
            Err(CorruptRecord { .. }) => Err(question.refuse(context, unreadable(context))),
        }
    });
    match located {
        Err(reply) if reply.response_code() == ResponseCode::HANDLE_NOT_FOUND => Ok(()),
        located => located,
    }
}

/// Why a lookup did not get to a record.
#[cold]
pub(crate) fn unreadable<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>) -> RefusalReason {
    if context.records.is_stale() { RefusalReason::StaleSet } else { RefusalReason::DamagedRecord }
}

/// Whether the prefix of the handle with `key` is homed here. The record of a derived prefix is
/// also homed if the records under one of its ancestors are.
pub(crate) fn is_homed<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>, key: &[u8]) -> bool {
    // The keys are folded only where the service folds.
    context.homed.is_some_and(|homed| homed.has_record(key, context.records.folds()))
}

/// Whether the prefix of the handle with `key` may be homed although it is not found: what says
/// that it is missing is damaged.
#[cold]
pub(crate) fn is_table_damaged<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>, key: &[u8]) -> bool {
    context.homed.is_some_and(|homed| homed.find_record(key) != Ok(false))
}

/// Why the prefix of the handle with `key`, which is not found among the homed ones, has no answer.
/// A client that is told that it is not homed asks no other server about it, so damage is an error.
#[cold]
fn reason_not_homed<B: AsRef<[u8]>>(context: &AnswerContext<'_, B>, key: &[u8]) -> RefusalReason {
    if is_table_damaged(context, key) { unreadable(context) } else { RefusalReason::NotHomed }
}

impl<'a> RecordQuestion<'a> {
    /// Whether the answer for a handle that is not stored would be a referral that this client
    /// does not understand. The server then resolves the handle for the client.
    #[inline]
    fn is_resolved_for_client<B: AsRef<[u8]>>(
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
        Handle(lookup.key()).is_derived_prefix_record()
            && matches!(referral::find(context, lookup), Ok(Some(_)))
    }

    /// The reply, once the record was looked up and there are no computed values. Lists that are
    /// too long for a worker are refused.
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

    /// Like [`answer`](Self::answer), but writes into the reply that [`success`](Self::success)
    /// made. A reply is large, and copying it right after its fields were written stalls the
    /// processor.
    ///
    /// Returns true if the request goes to the slow path and nothing was written: there is no such
    /// record but its values may be computed or another service may have it, nothing is known about
    /// the handle in a cache, or the lists of the query are too long.
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
            _ if !is_homed(context, lookup.key()) => {
                return self.answer_not_homed(context, lookup.key(), reply);
            }
            Ok(Some(record)) => return self.select(context, &record, reply),
            Ok(None) if context.may_compute(self.query.handle) => return true,
            Ok(None) if self.is_resolved_for_client(context, lookup) => return true,
            Ok(None) => *reply = self.refer(context, lookup),
            Err(CorruptRecord { .. }) => *reply = self.refuse(context, unreadable(context)),
        }
        false
    }

    /// Answers about a handle whose prefix is not homed: from the cache, if there is one. Returns
    /// true as [`answer_into`](Self::answer_into) does, also where another service is to answer.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer_not_homed<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        key: &[u8],
        reply: &mut ReplyParts<'a>,
    ) -> bool {
        let flags = self.request.flags;
        let reason = reason_not_homed(context, key);
        if reason != RefusalReason::NotHomed {
            *reply = self.refuse(context, reason);
            return false;
        }
        if context.service.relays && !flags.has(OpFlags::PUBLIC_ONLY) {
            return true;
        }
        let Some(cached) = context.cached.filter(|_| flags.has(OpFlags::PUBLIC_ONLY)) else {
            *reply = self.refuse(context, RefusalReason::NotHomed);
            return false;
        };
        let handle = Handle(self.query.handle);
        let mut lookup = [StagedCacheLookup::new(handle, !flags.has(OpFlags::AUTHORITATIVE))];
        cached.prefetch(&mut lookup);
        cached.find(&mut lookup);
        let [StagedCacheLookup { known, .. }] = lookup;
        self.answer_cached(context, known, reply)
    }

    /// Answers with what the cache knows. Returns true as [`answer_into`](Self::answer_into) does.
    pub(crate) fn answer_cached<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        known: CachedLookup<'a>,
        reply: &mut ReplyParts<'a>,
    ) -> bool {
        match known {
            CachedLookup::Record(record) => return self.select(context, &record, reply),
            CachedLookup::NoHandle => *reply = none(context, &self.request, ResponseCode::HANDLE_NOT_FOUND),
            CachedLookup::Unknown => return true,
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
            None => *reply = self.refuse(context, unreadable(context)),
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

    /// The reason why `selected` must not be shown while public-only is off. The first selected
    /// value that is not public decides. In a session the identity always matters.
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

    /// Fills in the lengths. An answer that is too long becomes a refusal.
    #[inline]
    fn finish<B: AsRef<[u8]>>(&self, context: &AnswerContext<'a, B>, reply: &mut ReplyParts<'a>) {
        reply.fill_in_lengths();
        if let Some(refused) = too_long(reply.message_len(), context.service.answer_datagrams_max) {
            *reply = self.refuse(context, refused);
        }
    }

    /// The reply when there is no such record: a referral, if another service has the derived
    /// prefix.
    #[cold]
    fn refer<B: AsRef<[u8]>>(
        &self,
        context: &AnswerContext<'a, B>,
        lookup: &RecordLookup<'_>,
    ) -> ReplyParts<'a> {
        let not_found = || none(context, &self.request, ResponseCode::HANDLE_NOT_FOUND);
        let refers = !self.request.flags.has(OpFlags::DO_NOT_REFER);
        if !refers || !Handle(lookup.key()).is_derived_prefix_record() {
            return not_found();
        }
        match referral::find(context, lookup) {
            Ok(None) => not_found(),
            Err(CorruptRecord { .. }) => self.refuse(context, unreadable(context)),
            Ok(Some(delegation)) => {
                let mut reply = self.reply(context, ResponseCode::PREFIX_REFERRAL);
                reply.push_text(b"");
                reply.push_values(delegation);
                self.finish(context, &mut reply);
                reply
            }
        }
    }

    /// A reply with the frame of a success, before its values are added.
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

/// Answers operations other than resolution.
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

/// The reply that refuses the request.
#[cold]
pub(crate) fn refuse<'a, B>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    refused: RefusalReason,
) -> ReplyParts<'a> {
    ReplyParts::to(request, refused.code(), &context.service, context.now_unix_s).refuse(refused)
}

/// The negative answer: no such handle, or no such value.
fn none<'a, B>(
    context: &AnswerContext<'a, B>,
    request: &ParsedRequest<'a>,
    code: ResponseCode,
) -> ReplyParts<'a> {
    let mut reply = ReplyParts::to(request, code, &context.service, context.now_unix_s);
    reply.push_text(b"");
    reply.finish()
}
