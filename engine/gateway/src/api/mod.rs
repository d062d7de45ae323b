//! The JSON API: `/api/...`.
//!
//! - [`handles`]: reading records. [`change`]: changing them. [`listing`]: names.
//! - [`resolve`] reads many records in one request; [`batch`] changes many.
//! - [`caller`]: the authenticated caller of a request; [`scheme`], [`sessions`]: callers that sign
//!   a nonce; [`certificates`]: callers with client certificates.
//! - [`verifications`]: whether a proof was made with a secret key.
//! - `proof`: callers that are proven before their bodies are read.
//! - `json_input`: JSON within bounds.
//! - [`search`]: handles by their values, at a path outside `/api`.
//! - [`body`]: the bodies of all answers. [`route_table`](crate::route_table): the paths.
//!
//! Every answer is JSON with a `responseCode`, also for errors. Requests that need a caller are
//! refused over plain HTTP, where `Authorization` is ignored.

pub mod batch;
pub mod body;
pub mod caller;
pub mod certificates;
pub mod change;
pub mod handles;
mod json_input;
pub mod listing;
pub(crate) mod proof;
pub mod resolve;
pub mod scheme;
pub mod search;
pub mod sessions;
pub mod verifications;

use crate::administration::ServiceError;
use crate::connections::certificate::ConnectionCertificate;
use crate::connections::request_body::RequestBody;
use crate::parameters::Parameters;
use crate::refusal::HttpRefusal;
use crate::reply::{Freshness, GatewayResponse, RequestHeaders, SharedText, set_number};
use crate::route::HttpPeer;
use crate::route_table::{HttpRoute, OPENAPI};
use crate::secret_guesses::SecretGuess;
use crate::server::GatewayState;
use body::{ApiBody, ApiFormat};
use handle_client::administration::AskError;
use handle_proto::ResponseCode;
use handle_proto::json::site_to_json;
use handle_proto::limit::MESSAGE_LEN_MAX;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::json;
use std::sync::Arc;

/// A request to the API.
#[derive(Debug)]
pub struct ApiRequest<'r> {
    /// The method and headers.
    pub head: RequestHeaders<'r>,
    /// The other side of the connection.
    pub peer: HttpPeer,
    /// The certificate of the client, where clients may show one.
    pub certificate: Option<&'r ConnectionCertificate>,
    /// The path behind `/api`, as it was sent.
    pub path: &'r str,
    /// The parameters in the query.
    pub parameters: Parameters<'r>,
    /// How the body of the answer is written.
    pub format: ApiFormat,
}

/// What a path of the API names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiEndpoint<'r> {
    /// A handle, percent-encoded.
    Handle(&'r str),
    /// The handles of a prefix.
    Handles,
    Prefixes,
    /// Reading many records.
    Resolve,
    /// Changing many records.
    Batch,
    Site,
    Sessions,
    /// The session that the credentials name.
    ThisSession,
    /// An identity, percent-encoded.
    Verifications(&'r str),
    /// The OpenAPI document.
    Document,
    Unknown,
}

impl<'r> ApiEndpoint<'r> {
    fn of(path: &'r str) -> Self {
        let (name, rest) = path.strip_prefix('/').unwrap_or_default().split_once('/').map_or_else(
            || (path.strip_prefix('/').unwrap_or_default(), None),
            |(name, rest)| (name, Some(rest)),
        );
        // As deployed, in this case of letters only: vector `endpoint/api/HANDLES/10.5072/URL-ONE`.
        match (name, rest) {
            ("handles", None | Some("")) => Self::Handles,
            ("handles", Some(handle)) => Self::Handle(handle),
            ("prefixes", None | Some("")) => Self::Prefixes,
            ("batch", None | Some("")) => Self::Batch,
            ("resolve", None | Some("")) => Self::Resolve,
            ("site", None | Some("")) => Self::Site,
            ("sessions", None | Some("")) => Self::Sessions,
            ("sessions", Some("this")) => Self::ThisSession,
            ("verifications", rest) => Self::Verifications(rest.unwrap_or_default()),
            ("openapi.json", None) => Self::Document,
            _ => Self::Unknown,
        }
    }

    /// Its methods.
    const fn route(self) -> HttpRoute {
        match self {
            Self::Handle(_) => HttpRoute::HANDLE,
            Self::Handles => HttpRoute::HANDLES,
            Self::Prefixes => HttpRoute::PREFIXES,
            Self::Resolve => HttpRoute::RESOLVE,
            Self::Batch => HttpRoute::BATCH,
            Self::Site => HttpRoute::SITE,
            Self::Sessions => HttpRoute::SESSIONS,
            Self::ThisSession => HttpRoute::THIS_SESSION,
            Self::Verifications(_) => HttpRoute::VERIFICATIONS,
            Self::Document => HttpRoute::DOCUMENT,
            Self::Unknown => HttpRoute::UNKNOWN,
        }
    }
}

/// Answers a request to the API.
pub async fn answer(
    state: &Arc<GatewayState>,
    request: &ApiRequest<'_>,
    body: RequestBody,
) -> GatewayResponse {
    guarded(state, request, answer_endpoint(state, request, body)).await
}

/// Has `answer` answer a request, unless its source has guessed too many secrets; a refusal tells
/// how to authenticate.
async fn guarded(
    state: &Arc<GatewayState>,
    request: &ApiRequest<'_>,
    answer: impl Future<Output = GatewayResponse>,
) -> GatewayResponse {
    let headers = &request.head.headers;
    let guess =
        SecretGuess::of_headers(request.peer.address, headers).filter(|_| request.peer.is_confidential);
    if let Some(Err(retry_after)) = guess.as_ref().map(|guess| guess.check(state)) {
        let settings = state.settings.current();
        return HttpRefusal::TooManySecrets(retry_after).respond("/api", headers, &settings);
    }
    let mut response = answer.await;
    // Proofs of sessions are counted where they are verified.
    let is_counted = request.path.starts_with("/sessions");
    if let Some(guess) = guess.filter(|_| response.status() == StatusCode::UNAUTHORIZED && !is_counted) {
        guess.count(state);
    }
    sessions::add_authentication_headers(state, request, &mut response).await;
    response
}

async fn answer_endpoint(
    state: &Arc<GatewayState>,
    request: &ApiRequest<'_>,
    body: RequestBody,
) -> GatewayResponse {
    let (method, endpoint) = (request.head.method, ApiEndpoint::of(request.path));
    let is_read = matches!(*method, Method::GET | Method::HEAD | Method::POST);
    let is_write = matches!(*method, Method::PUT | Method::DELETE);
    if matches!(*method, Method::OPTIONS | Method::TRACE) {
        return endpoint.route().refuse(method);
    }
    if !is_read && !is_write {
        let message = format!("Unknown method {method}");
        let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(&message), None);
        return respond(state, request, StatusCode::NOT_IMPLEMENTED, body);
    }
    match endpoint {
        ApiEndpoint::Handle(handle) if is_read => handles::read(state, request, handle).await,
        ApiEndpoint::Handle(handle) => change::change(state, request, handle, body).await,
        ApiEndpoint::Handles if is_read => match request.parameters.first("prefix") {
            Some(prefix) => listing::handles(state, request, prefix).await,
            None => empty_handle(state, request),
        },
        // As deployed; `http.jsonl`, `delete/no_handle`.
        ApiEndpoint::Handles if *method == Method::DELETE => {
            let body = ApiBody::failure(ResponseCode::HANDLE_NOT_FOUND, None, None);
            respond(state, request, StatusCode::NOT_FOUND, body)
        }
        ApiEndpoint::Handles => empty_handle(state, request),
        ApiEndpoint::Resolve if *method == Method::POST => resolve::resolve(state, request, body).await,
        ApiEndpoint::Batch if *method == Method::POST => batch::batch(state, request, body).await,
        ApiEndpoint::Batch | ApiEndpoint::Resolve => not_allowed(state, request, endpoint),
        ApiEndpoint::Prefixes if matches!(*method, Method::GET | Method::HEAD) => {
            listing::prefixes(state, request).await
        }
        ApiEndpoint::Prefixes if *method != Method::PUT => listing::home(state, request).await,
        ApiEndpoint::Site if is_read => site(state, request),
        ApiEndpoint::Document if matches!(*method, Method::GET | Method::HEAD) => document(state, request),
        ApiEndpoint::Document => not_allowed(state, request, endpoint),
        // As deployed: a session id is a secret.
        ApiEndpoint::Sessions | ApiEndpoint::ThisSession if !request.peer.is_confidential => {
            let body = ApiBody::failure(ResponseCode::AUTHENTICATION_NEEDED, Some("Sessions need TLS"), None);
            respond(state, request, StatusCode::FORBIDDEN, body)
        }
        ApiEndpoint::Sessions | ApiEndpoint::ThisSession => sessions::answer(state, request, body).await,
        ApiEndpoint::Verifications(name) if is_read => verifications::verify(state, request, name).await,
        _ => unknown(state, request),
    }
}

/// The response with a body of JSON that is not cached.
fn respond(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    status: StatusCode,
    body: ApiBody,
) -> GatewayResponse {
    body.respond(status, Freshness::NoStore, request, &state.settings.current())
}

/// Why a request is refused.
#[derive(Debug)]
struct ApiRefusal {
    status: StatusCode,
    code: ResponseCode,
    message: String,
}

impl ApiRefusal {
    fn new(status: StatusCode, code: ResponseCode, message: &str) -> Self {
        Self { status, code, message: message.to_owned() }
    }

    /// A request that is wrong in itself.
    fn bad(code: ResponseCode, message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A request that met a bug.
    fn bug() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ResponseCode::ERROR, "The request met a bug")
    }

    /// The response. Errors of form name no handle, as deployed.
    fn respond(
        &self,
        state: &GatewayState,
        request: &ApiRequest<'_>,
        about: Option<&str>,
    ) -> GatewayResponse {
        let about = about.filter(|_| self.code != ResponseCode::PROTOCOL_ERROR);
        respond(state, request, self.status, ApiBody::failure(self.code, Some(&self.message), about))
    }
}

/// Refuses a request without a caller: over TLS the client is told how to authenticate.
fn challenge(state: &GatewayState, request: &ApiRequest<'_>, about: Option<&str>) -> GatewayResponse {
    let body = ApiBody::failure(ResponseCode::AUTHENTICATION_NEEDED, None, about);
    if !request.peer.is_confidential {
        return respond(state, request, StatusCode::FORBIDDEN, body);
    }
    // `sessions::add_authentication_headers` adds the schemes to every refusal.
    respond(state, request, StatusCode::UNAUTHORIZED, body)
}

/// The message for callers if no administration service is configured.
const NO_ADMIN: &str = "This gateway has no administration service";
/// The message about a change that does not fit into [`MESSAGE_LEN_MAX`] bytes.
const TOO_LONG: &str =
    "The values are longer than a message of the handle protocol, which has at most 256 KiB";
const _: () = assert!(MESSAGE_LEN_MAX == 256 << 10, "as the message says");
/// How a client can authenticate.
const BASIC: HeaderValue = HeaderValue::from_static("Basic realm=\"handle\"");

/// The answer to credentials that `handle-admin` refuses with `code` and `text`.
fn unauthorized(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    (code, text): (ResponseCode, &str),
    about: Option<&str>,
) -> GatewayResponse {
    let message = match code {
        ResponseCode::AUTHENTICATION_FAILED if text.is_empty() => WRONG_SECRET.to_owned(),
        ResponseCode::AUTHENTICATION_FAILED => format!("{WRONG_SECRET}: {text}"),
        _ if text.is_empty() => "The identity could not be verified".to_owned(),
        _ => text.to_owned(),
    };
    respond(state, request, StatusCode::UNAUTHORIZED, ApiBody::failure(code, Some(&message), about))
}

const WRONG_SECRET: &str = "Wrong secret, or unknown identity";

/// The sentence of a refusal that the service explains; `None` for one without a text.
fn reason(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The answer when the administration service gave none.
fn admin_refusal(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    error: &ServiceError,
    about: Option<&str>,
) -> GatewayResponse {
    if let ServiceError::Ask(AskError::TooLong(_)) = error {
        let refusal = ApiRefusal::bad(ResponseCode::INVALID_VALUE, TOO_LONG);
        return refusal.respond(state, request, about);
    }
    let (status, code) = match error {
        ServiceError::Busy => (StatusCode::SERVICE_UNAVAILABLE, ResponseCode::SERVER_BUSY),
        ServiceError::Ask(AskError::Late) => (StatusCode::GATEWAY_TIMEOUT, ResponseCode::ERROR),
        ServiceError::Ask(_) => (StatusCode::BAD_GATEWAY, ResponseCode::ERROR),
        ServiceError::Bug => (StatusCode::INTERNAL_SERVER_ERROR, ResponseCode::ERROR),
    };
    let body = ApiBody::failure(code, Some("The administration service did not answer"), about);
    let mut response = respond(state, request, status, body);
    set_number(&mut response, header::RETRY_AFTER, state.settings.current().upstream.retry_after_s);
    response
}

fn empty_handle(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let body = ApiBody::failure(ResponseCode::INVALID_HANDLE, Some("Empty handle invalid"), None);
    respond(state, request, StatusCode::BAD_REQUEST, body)
}

fn unknown(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let message = format!("Unknown HTTP API endpoint {} /api{}", request.head.method, request.path);
    let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(&message), None);
    respond(state, request, StatusCode::NOT_FOUND, body)
}

/// Refuses a method that the endpoint does not have.
fn not_allowed(state: &GatewayState, request: &ApiRequest<'_>, endpoint: ApiEndpoint<'_>) -> GatewayResponse {
    let message = format!("{} is not allowed here", request.head.method);
    let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(&message), None);
    let mut response = respond(state, request, StatusCode::METHOD_NOT_ALLOWED, body);
    response.headers_mut().insert(header::ALLOW, endpoint.route().allow());
    response
}

fn unsupported(state: &GatewayState, request: &ApiRequest<'_>, message: &str) -> GatewayResponse {
    let body = ApiBody::failure(ResponseCode::OPERATION_NOT_SUPPORTED, Some(message), None);
    respond(state, request, StatusCode::NOT_IMPLEMENTED, body)
}

fn site(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let Some(site) = &state.site else {
        return unsupported(state, request, "This server has no site record");
    };
    let site = site_to_json(&site.view());
    let body = ApiBody::of(&json!({ "responseCode": ResponseCode::SUCCESS.0, "site": site }));
    let freshness = Freshness::Seconds(state.settings.current().caching.negative_s);
    body.respond(StatusCode::OK, freshness, request, &state.settings.current())
}

/// The OpenAPI document, as it is sent.
static DOCUMENT: SharedText = SharedText::new(OPENAPI);
/// Seconds for which the OpenAPI document may be cached.
const DOCUMENT_KEEPS_S: u32 = 3600;

fn document(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let freshness = Freshness::Seconds(DOCUMENT_KEEPS_S);
    body::respond_shared(&DOCUMENT, freshness, request, &state.settings.current())
}

/// The HTTP status for a response code.
#[must_use]
pub fn status_of(code: ResponseCode, resolves: bool) -> StatusCode {
    match code {
        ResponseCode::SUCCESS => StatusCode::OK,
        ResponseCode::VALUES_NOT_FOUND if resolves => StatusCode::OK,
        ResponseCode::ERROR | ResponseCode::RECURSION_COUNT_TOO_HIGH => StatusCode::INTERNAL_SERVER_ERROR,
        ResponseCode::SERVER_BUSY | ResponseCode::SERVER_READ_ONLY => StatusCode::SERVICE_UNAVAILABLE,
        ResponseCode::OPERATION_NOT_SUPPORTED => StatusCode::NOT_IMPLEMENTED,
        ResponseCode::HANDLE_NOT_FOUND => StatusCode::NOT_FOUND,
        ResponseCode::HANDLE_ALREADY_EXISTS | ResponseCode::VALUE_ALREADY_EXISTS => StatusCode::CONFLICT,
        // As deployed; `http.jsonl`, `get/name/referral_site`.
        ResponseCode::SERVICE_REFERRAL | ResponseCode::PREFIX_REFERRAL => StatusCode::MULTIPLE_CHOICES,
        ResponseCode(400..=406) => StatusCode::FORBIDDEN,
        ResponseCode::CONDITION_FAILED => StatusCode::PRECONDITION_FAILED,
        ResponseCode(500..=505) => StatusCode::UNAUTHORIZED,
        _ => StatusCode::BAD_REQUEST,
    }
}
