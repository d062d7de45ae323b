//! Reading records: `GET /api/handles/{handle}`.

use crate::api::body::ApiBody;
use crate::api::caller::Caller;
use crate::api::request::{
    ApiRequest, NO_ADMIN, admin_refusal, challenge, reason, respond, status_of, unauthorized, unsupported,
};
use crate::api::source_time::ReadTime;
use crate::record::{HttpQuestion, RecordAnswer, RecordOrigin};
use crate::reply::{BodyTag, Freshness, GatewayResponse, no_capacity, set_number};
use crate::selection::ValueSelection;
use crate::state::GatewayState;
use crate::target;
use crate::upstream::UpstreamError;
use handle_client::Question;
use handle_client::administration::{Administrator, ClientIdentity};
use handle_client::question::AnswerWants;
use handle_daemon::clock::now_unix_s;
use handle_daemon::record_tag::record_tag;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response, put};
use handle_proto::{ResponseCode, Value};
use hyper::header;
use hyper::{Method, StatusCode};
use std::sync::Arc;

/// Answers a question for the values of `handle`, which is percent-encoded.
pub async fn read(state: &GatewayState, request: &ApiRequest<'_>, handle: &str) -> GatewayResponse {
    let bad = |code, message: &str| {
        let body = ApiBody::failure(code, Some(message), None);
        respond(state, request, StatusCode::BAD_REQUEST, body)
    };
    let handle = match target::decode(handle) {
        Ok(handle) => handle,
        Err(error) => return bad(ResponseCode::INVALID_HANDLE, error.message()),
    };
    if handle.len() > HANDLE_LEN_MAX {
        return bad(ResponseCode::INVALID_HANDLE, &format!("A handle has at most {HANDLE_LEN_MAX} bytes"));
    }
    // Before the parameters are read, which takes time as well.
    let mut time = ReadTime::begin(state, request.peer.address, &request.parameters).await;
    let mut http_question = match question(request, &handle) {
        Ok(http_question) => http_question,
        Err(message) => return bad(ResponseCode::PROTOCOL_ERROR, &message),
    };
    let caller = Caller::of(state, request).await;
    // `handle-admin` may have been asked about the caller.
    time.iter_mut().for_each(ReadTime::go_on);
    match caller {
        Caller::Refused(response) => return response,
        // Callers see all values that they may read, unless they ask for the public ones.
        Caller::Identity(identity) if request.parameters.flag("publicOnly") != Some(true) => {
            http_question.question.wants.public_only = false;
            return read_as(state, request, identity, http_question.question, &handle).await;
        }
        Caller::Identity(_) | Caller::Anonymous => {}
    }
    let render = |answer: &RecordAnswer<'_>| {
        if let (Some(time), RecordOrigin::Upstream { .. }) = (&mut time, answer.origin) {
            time.go_on();
        }
        let has_capacity = has_capacity(state, request, &http_question, answer);
        let body = has_capacity.then(|| AnswerBody::of(state, &http_question, answer, &handle));
        if let Some(time) = time.take() {
            time.end(state);
        }
        body
    };
    match state.answer(&http_question, render).await {
        Ok(Some(body)) => body.respond(state, request, &handle),
        Ok(None) => no_capacity(),
        Err(error) => AnswerBody::of_failure(&error, &handle).respond(state, request, &handle),
    }
}

/// Fewest bytes of a value in an answer besides its type and data.
const VALUE_LEN: usize = 96;

/// Whether `answer` may be made: it is not so long that there is no capacity for it.
fn has_capacity(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    http_question: &HttpQuestion,
    answer: &RecordAnswer<'_>,
) -> bool {
    let fits = |len| state.has_capacity_for(request.peer.address, len);
    let data_len = |value: Value<'_>| VALUE_LEN + value.kind.len() + value.data.len();
    // The body of an answer to `HEAD` is not sent. There is usually capacity for all values, and
    // those that are selected need not be found twice.
    *request.head.method == Method::HEAD
        || fits(answer.values.iter().map(data_len).sum())
        || fits(answer.selected(http_question).map(data_len).sum())
}

/// The question that the parameters ask.
///
/// # Errors
/// One sentence that names the parameter.
fn question(request: &ApiRequest<'_>, handle: &str) -> Result<HttpQuestion, String> {
    let parameters = &request.parameters;
    let selection = ValueSelection::of_parameters(parameters)?;
    let wants = AnswerWants {
        certified: parameters.flag("cert").unwrap_or_default(),
        authoritative: parameters.flag("auth").unwrap_or_default(),
        public_only: parameters.flag("publicOnly").unwrap_or(true),
    };
    let question = selection.question(handle.as_bytes(), wants);
    let refers = !parameters.flag("doNotRefer").unwrap_or_default();
    Ok(HttpQuestion::new(question, request.peer.address).refers_if(refers))
}

/// The answer to a question, before it becomes a response.
#[derive(Debug)]
pub(super) struct AnswerBody {
    /// The status of the response.
    pub(super) status: StatusCode,
    /// The body.
    pub(super) body: ApiBody,
    freshness: Freshness,
    tag: BodyTag,
    /// Whether the caller has to authenticate to get an answer.
    challenges: bool,
}

impl AnswerBody {
    /// The body that shows `answer` to `http_question`.
    pub(super) fn of(
        state: &GatewayState,
        http_question: &HttpQuestion,
        answer: &RecordAnswer<'_>,
        handle: &str,
    ) -> Self {
        let negative_s = state.settings.current().caching.negative_s.saturating_sub(answer.age_s);
        if answer.is_partial || answer.code == ResponseCode::AUTHENTICATION_NEEDED {
            let body = ApiBody::failure(ResponseCode::AUTHENTICATION_NEEDED, None, Some(handle));
            let status = StatusCode::FORBIDDEN;
            return Self {
                status,
                freshness: Freshness::NoStore,
                tag: BodyTag::Bytes,
                body,
                challenges: true,
            };
        }
        let (code, freshness, body) = contents(negative_s, http_question, answer, handle);
        let is_upstream = matches!(answer.origin, RecordOrigin::Upstream { .. });
        let status = match status_of(code, true) {
            StatusCode::INTERNAL_SERVER_ERROR if is_upstream => StatusCode::BAD_GATEWAY,
            status => status,
        };
        Self { status, freshness, tag: tag_of(&http_question.question, answer), body, challenges: false }
    }

    /// The body when upstream gave no answer. It never says that the handle does not exist.
    pub(super) fn of_failure(error: &UpstreamError, handle: &str) -> Self {
        let (status, code) = match error.status() {
            status @ StatusCode::SERVICE_UNAVAILABLE => (status, ResponseCode::SERVER_BUSY),
            status => (status, ResponseCode::ERROR),
        };
        let body = ApiBody::failure(code, Some(&error.to_string()), Some(handle));
        Self { status, freshness: Freshness::NoStore, tag: BodyTag::Bytes, body, challenges: false }
    }

    fn respond(self, state: &GatewayState, request: &ApiRequest<'_>, handle: &str) -> GatewayResponse {
        if self.challenges {
            return challenge(state, request, Some(handle));
        }
        let settings = state.settings.current();
        let mut response =
            self.body.respond_tagged(self.status, self.freshness, self.tag, request, &settings);
        if matches!(self.status.as_u16(), 502..=504) {
            set_number(&mut response, header::RETRY_AFTER, settings.upstream.retry_after_s);
        }
        response
    }
}

/// What the tag of the answer to a question is made of: with all public values of a record it is
/// that of the record, which conditions on changes name.
fn tag_of(question: &Question, answer: &RecordAnswer<'_>) -> BodyTag {
    let is_whole = question.indexes.is_empty() && question.types.is_empty();
    match answer.code {
        ResponseCode::SUCCESS | ResponseCode::VALUES_NOT_FOUND if is_whole => {
            BodyTag::Record(record_tag(answer.values.iter()))
        }
        _ => BodyTag::Bytes,
    }
}

/// The code, freshness and body that show `answer`.
fn contents(
    negative_s: u32,
    question: &HttpQuestion,
    answer: &RecordAnswer<'_>,
    handle: &str,
) -> (ResponseCode, Freshness, ApiBody) {
    match answer.code {
        ResponseCode::SUCCESS => {
            let now = now_unix_s();
            let keeps = answer.selected(question).map(|value| answer.keeps_s(value.ttl, now)).min();
            let code = if keeps.is_some() { ResponseCode::SUCCESS } else { ResponseCode::VALUES_NOT_FOUND };
            let freshness = Freshness::Seconds(keeps.unwrap_or(if answer.is_stale { 0 } else { negative_s }));
            (code, freshness, ApiBody::values(code, handle, answer.selected(question)))
        }
        code @ (ResponseCode::SERVICE_REFERRAL | ResponseCode::PREFIX_REFERRAL) => {
            (code, Freshness::NoStore, ApiBody::values(code, handle, answer.values.iter()))
        }
        code @ ResponseCode::VALUES_NOT_FOUND => {
            (code, Freshness::Seconds(negative_s), ApiBody::values(code, handle, [].into_iter()))
        }
        code @ ResponseCode::HANDLE_NOT_FOUND => {
            (code, Freshness::Seconds(negative_s), ApiBody::failure(code, None, Some(handle)))
        }
        code => (code, Freshness::NoStore, ApiBody::failure(code, message(answer), Some(handle))),
    }
}

/// Answers as the administration service answers the caller.
async fn read_as(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    identity: Arc<ClientIdentity>,
    question: Question,
    handle: &str,
) -> GatewayResponse {
    let Some(admin) = &state.writing.admin else { return unsupported(state, request, NO_ADMIN) };
    let is_whole = question.indexes.is_empty() && question.types.is_empty();
    let read = move |client: &mut Administrator| {
        let (mut indexes, mut types) = (Vec::new(), Vec::new());
        let indexes = Indexes::build(question.indexes.iter().copied(), &mut indexes);
        question.types.iter().for_each(|kind| put::string(&mut types, kind));
        let types = Strings::from_encoded(question.types.len(), &types).unwrap_or(Strings::EMPTY);
        let query = Query { handle: &question.handle, indexes, types };
        client.ask(&Request::Resolution(query), question.flags())
    };
    let answer = match admin.ask(request.peer.address, Some(identity), read).await {
        Ok(answer) => answer,
        Err(error) => return admin_refusal(state, request, &error, Some(handle)),
    };
    let mut tag = BodyTag::Bytes;
    let body = match (answer.code(), answer.reply().response) {
        (code @ ResponseCode::SUCCESS, Response::Answer(answer)) if !answer.values.is_empty() => {
            if is_whole {
                tag = BodyTag::RecordAndBytes(record_tag(answer.values.iter()));
            }
            ApiBody::values(code, handle, answer.values.iter())
        }
        (ResponseCode::SUCCESS | ResponseCode::VALUES_NOT_FOUND, _) => {
            if is_whole {
                tag = BodyTag::RecordAndBytes(record_tag([]));
            }
            ApiBody::values(ResponseCode::VALUES_NOT_FOUND, handle, [].into_iter())
        }
        (code @ ResponseCode(403..=406), _) => {
            return unauthorized(state, request, code, &answer.text(), Some(handle));
        }
        (code @ ResponseCode::SERVER_NOT_RESPONSIBLE, _) => {
            ApiBody::failure(code, Some("That prefix doesn't live here"), Some(handle))
        }
        (code @ ResponseCode(400..=401), _) => ApiBody::failure(code, reason(&answer.text()), Some(handle)),
        (code, _) => ApiBody::failure(code, None, Some(handle)),
    };
    let settings = state.settings.current();
    body.respond_tagged(status_of(answer.code(), true), Freshness::NoStore, tag, request, &settings)
}

/// The sentence that goes with a code.
fn message<'a>(answer: &RecordAnswer<'a>) -> Option<&'a str> {
    match answer.code {
        ResponseCode::SERVER_NOT_RESPONSIBLE => Some("That prefix doesn't live here"),
        ResponseCode::AUTHENTICATION_NEEDED => None,
        _ if answer.text.is_empty() => None,
        _ => Some(answer.text),
    }
}
