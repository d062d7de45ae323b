//! The answer to a question: from the set that is mapped here, or from upstream.

use crate::state::{GatewayState, ReadingState};
use crate::upstream::{UpstreamAnswer, UpstreamError};
use handle_client::service::keeps_s;
use handle_client::{LookupAnswer, Question, driver};
use handle_daemon::clock::now_unix_s;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::value::Ttl;
use handle_proto::wire::list::{Indexes, Strings, Values};
use handle_proto::wire::query::{Query, SortedQuery};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response, put};
use handle_proto::{Handle, OpCode, OpFlags, ResponseCode, Value};
use handle_resolver::{AnswerContext, AnswerOutcome, ServiceFacts, WireReply as _, answer_message};
use handle_snapshot::{EncodedRecord, PublishedSet, RecordSet, fold_key, hash_key};
use std::net::{IpAddr, SocketAddr};

/// A question of an HTTP client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpQuestion {
    /// The handle and the choice of values.
    pub question: Question,
    /// Whether a referral is followed or reported. Otherwise a delegated prefix is not found.
    pub refers: bool,
    /// The address of the client.
    pub source: IpAddr,
    /// The lists of the question, sorted, if they are long.
    sorted: Option<SortedQuery>,
}

impl HttpQuestion {
    /// The question of a client at `source`, for whom a referral is followed or reported.
    #[must_use]
    pub fn new(question: Question, source: IpAddr) -> Self {
        let sorted = question.sorted();
        Self { question, refers: true, source, sorted }
    }

    /// The same question, for which a referral is followed or reported if `refers` says so.
    #[must_use]
    pub fn refers_if(self, refers: bool) -> Self {
        Self { refers, ..self }
    }

    /// Whether the question selects `value`.
    #[must_use]
    pub fn selects(&self, value: &Value<'_>) -> bool {
        self.sorted.as_ref().map_or_else(|| self.question.selects(value), |sorted| sorted.selects(value))
    }
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOrigin {
    /// The set of this generation.
    Set {
        /// The generation.
        generation: u64,
    },
    /// Another server.
    Upstream {
        /// Whether the answer is from the cache.
        cached: bool,
        /// The server that answered.
        server: Option<SocketAddr>,
    },
}

/// The answer to a question.
#[derive(Clone, Copy, Debug)]
pub struct RecordAnswer<'a> {
    /// The response code. With values, the ones that the question selects are still to be chosen:
    /// see [`selected`](Self::selected).
    pub code: ResponseCode,
    /// The text of an error; usually empty.
    pub text: &'a str,
    /// The values: all public ones of the record, or those of a referral.
    pub values: Values<'a>,
    /// Whether the question selects values that are not public, although it asks for all values.
    pub is_partial: bool,
    /// Whether its signature was requested and verified.
    pub certified: bool,
    /// Whether the answer has expired, and is served during its renewal or because no server
    /// answers.
    pub is_stale: bool,
    /// Seconds for which it has been in the cache of this process; 0 if it is not from there.
    pub age_s: u32,
    /// Where the answer comes from.
    pub origin: RecordOrigin,
}

impl<'a> RecordAnswer<'a> {
    fn of(answer: &'a LookupAnswer, origin: RecordOrigin) -> Self {
        let (values, certified) = (answer.values(), answer.certified);
        let age_s = answer.age_s(driver::now().ms);
        Self {
            code: answer.code,
            text: &answer.text,
            values,
            is_partial: false,
            certified,
            is_stale: false,
            age_s,
            origin,
        }
    }

    /// Seconds for which a value with this time to live may still be cached.
    #[must_use]
    pub fn keeps_s(&self, ttl: Ttl, now_unix_s: u32) -> u32 {
        let keeps_s = keeps_s(ttl, now_unix_s);
        match ttl.kind {
            _ if self.is_stale => 0,
            Ttl::RELATIVE => keeps_s.saturating_sub(self.age_s),
            _ => keeps_s,
        }
    }

    /// The values that `question` selects, in stored order.
    pub fn selected<'q>(&self, question: &'q HttpQuestion) -> impl Iterator<Item = Value<'a>> + use<'a, 'q> {
        self.values.iter().filter(move |value| question.selects(value))
    }
}

/// The answer of `set` to `question`, passed to `render` where it is a stored record. Every other
/// answer is returned.
///
/// # Errors
/// The answer of the resolver: negative, a referral, or that another server has the handle.
pub fn find<T>(
    set: &PublishedSet,
    service: &ServiceFacts<'_>,
    http_question: &HttpQuestion,
    render: impl FnOnce(&RecordAnswer<'_>) -> T,
) -> Result<T, Box<LookupAnswer>> {
    stored(set, service, &http_question.question, render)
        .ok_or_else(|| Box::new(evaluate(set, service, http_question)))
}

/// Bytes of a name that can be folded without clearing a large buffer first.
const USUAL_LEN: usize = 128;

/// The record with this name, if `records` have it and its prefix is homed.
#[must_use]
pub fn stored_record<'a, B: AsRef<[u8]>>(
    records: &RecordSet<'a, B>,
    service: &ServiceFacts<'_>,
    name: &[u8],
) -> Option<EncodedRecord<'a>> {
    match name.len() {
        0..=USUAL_LEN => stored_within::<USUAL_LEN, B>(records, service, name),
        _ => stored_within::<HANDLE_LEN_MAX, B>(records, service, name),
    }
}

fn stored_within<'a, const LEN_MAX: usize, B: AsRef<[u8]>>(
    records: &RecordSet<'a, B>,
    service: &ServiceFacts<'_>,
    name: &[u8],
) -> Option<EncodedRecord<'a>> {
    let handle = Handle(name);
    handle.slash_at().filter(|_| service.has(handle))?;
    let mut buffer = [0; LEN_MAX];
    let key = buffer.get_mut(..name.len())?;
    key.copy_from_slice(name);
    fold_key(key, records.folds());
    let hash = hash_key(records.seed(), key);
    let staged = records.probe(hash);
    // All lines of the record are loaded at once.
    records.prefetch_record(staged);
    let record = records.resolve(staged, hash, key).ok()??;
    // A layer need not vouch for its records. Records of prefixes that are homed only because an
    // ancestor is are left to the resolver.
    (record.is_homed() || records.homed(Handle(key).naming_authority())).then_some(record)
}

/// Renders the record, if `set` has it and its prefix is homed.
fn stored<T>(
    set: &PublishedSet,
    service: &ServiceFacts<'_>,
    question: &Question,
    render: impl FnOnce(&RecordAnswer<'_>) -> T,
) -> Option<T> {
    let record = stored_record(&set.records(), service, &question.handle)?;
    let values = Values::from_encoded(record.public_count(), record.public_bytes()).ok()?;
    let is_partial = !question.wants.public_only && {
        let sorted = question.sorted();
        let selects = |value: &Value<'_>| match &sorted {
            Some(sorted) => sorted.selects(value),
            None => question.selects(value),
        };
        record.private().any(|(_, encoded)| Value::split(encoded).is_ok_and(|(value, _)| selects(&value)))
    };
    let origin = RecordOrigin::Set { generation: set.generation() };
    let (code, certified, is_stale) = (ResponseCode::SUCCESS, false, false);
    Some(render(&RecordAnswer { code, text: "", values, is_partial, certified, is_stale, age_s: 0, origin }))
}

/// The answer of the resolver, which is what `handled` answers.
#[cold]
fn evaluate(set: &PublishedSet, service: &ServiceFacts<'_>, http_question: &HttpQuestion) -> LookupAnswer {
    let question = &http_question.question;
    let failed = || LookupAnswer::new(question.handle.clone(), ResponseCode::ERROR, []);
    let mut flags = question.flags();
    if !http_question.refers {
        flags = flags.with(OpFlags::DO_NOT_REFER);
    }
    let Some(message) = encode(question, flags) else { return failed() };
    let Ok((envelope, body)) = Envelope::split(&message) else { return failed() };
    let context = AnswerContext::new(set.records(), *service, now_unix_s());
    let AnswerOutcome::Reply(reply) = answer_message(&context, envelope, body) else { return failed() };
    let mut bytes = vec![0; reply.stream_len()];
    reply.write_stream(&mut bytes);
    let mut answer = decode(&bytes, question).unwrap_or_else(failed);
    // This process makes no challenges, so the resolver says that it shows public values only.
    if answer.code == ResponseCode::OPERATION_NOT_SUPPORTED && !question.wants.public_only {
        answer.code = ResponseCode::AUTHENTICATION_NEEDED;
    }
    answer
}

/// The request for `question` as one message.
fn encode(question: &Question, flags: OpFlags) -> Option<Vec<u8>> {
    let indexes: Vec<[u8; 4]> = question.indexes.iter().map(|index| index.to_be_bytes()).collect();
    let mut types = Vec::new();
    question.types.iter().for_each(|kind| put::string(&mut types, kind));
    let types = Strings::from_encoded(question.types.len(), &types).ok()?;
    let query = Query { handle: &question.handle, indexes: Indexes::new(&indexes), types };
    let header = Header::request(OpCode::RESOLUTION, flags, now_unix_s());
    MessageBuf::request(&Envelope::request(1), &header, &Request::Resolution(query)).unsigned().ok()
}

fn decode(bytes: &[u8], question: &Question) -> Option<LookupAnswer> {
    let (envelope, rest) = Envelope::split(bytes).ok()?;
    let Body::Reply(reply) = Message::decode(rest).ok()?.decode_body(envelope.version).ok()? else {
        return None;
    };
    let (values, text) = match reply.response {
        Response::Answer(answer) => (answer.values, &b""[..]),
        Response::Referral(referral) => (referral.values.unwrap_or(Values::EMPTY), &b""[..]),
        Response::Failure(failure) => (Values::EMPTY, failure.message),
        _ => (Values::EMPTY, &b""[..]),
    };
    let mut answer = LookupAnswer::new(question.handle.clone(), reply.code, values);
    answer.text = String::from_utf8_lossy(text).into_owned();
    Some(answer)
}

/// Whether an answer says that another server or service has the handle.
const fn is_elsewhere(code: ResponseCode) -> bool {
    matches!(
        code,
        ResponseCode::SERVER_NOT_RESPONSIBLE | ResponseCode::SERVICE_REFERRAL | ResponseCode::PREFIX_REFERRAL
    )
}

impl ReadingState {
    /// What `render` makes of the record, if the set has it. Nothing waits.
    pub fn stored<T>(&self, question: &Question, render: impl FnOnce(&RecordAnswer<'_>) -> T) -> Option<T> {
        let set = self.set.as_ref()?.current();
        stored(&set, &self.service(), question, render)
    }
}

impl GatewayState {
    /// Answers `http_question` from the set without waiting; `None` if another server has the
    /// handle.
    pub fn answer_here<T>(
        &self,
        http_question: &HttpQuestion,
        mut render: impl FnMut(&RecordAnswer<'_>) -> T,
    ) -> Option<T> {
        let set = self.reading.set.as_ref()?.current();
        match find(&set, &self.reading.service(), http_question, &mut render) {
            Ok(rendered) => Some(rendered),
            Err(answer) if !self.asks_upstream(&answer) => {
                let origin = RecordOrigin::Set { generation: set.generation() };
                Some(render(&RecordAnswer::of(&answer, origin)))
            }
            Err(_) => None,
        }
    }

    /// Whether upstream is to answer instead of the set.
    fn asks_upstream(&self, answer: &LookupAnswer) -> bool {
        let is_missing = answer.code == ResponseCode::HANDLE_NOT_FOUND;
        let may_be_there = is_elsewhere(answer.code)
            || is_missing && self.settings.current().upstream.may_have(&answer.handle);
        may_be_there && self.reading.upstream.is_some()
    }

    /// Answers `http_question` from the set, or from upstream if another server has the handle.
    ///
    /// # Errors
    /// When upstream was asked and did not answer.
    pub async fn answer<T>(
        &self,
        http_question: &HttpQuestion,
        mut render: impl FnMut(&RecordAnswer<'_>) -> T,
    ) -> Result<T, UpstreamError> {
        if let Some(rendered) = self.answer_here(http_question, &mut render) {
            return Ok(rendered);
        }
        let Some(upstream) = &self.reading.upstream else { return Err(UpstreamError::Busy) };
        self.counters.upstream_questions.add();
        let outcome = upstream.ask(http_question.source, &http_question.question).await;
        let UpstreamAnswer { answer, is_stale } = outcome.inspect_err(|error| {
            self.counters.upstream_failures.add();
            tracing::debug!(%error, "a question to the Handle System failed");
        })?;
        let origin = RecordOrigin::Upstream { cached: answer.cached, server: answer.from };
        Ok(render(&RecordAnswer { is_stale, ..RecordAnswer::of(&answer, origin) }))
    }
}
