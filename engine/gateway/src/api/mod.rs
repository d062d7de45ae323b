//! The JSON API: `/api/...`.
//!
//! - [`handles`]: reading records. [`change`]: changing them. [`listing`]: names.
//! - [`resolve`] reads many records in one request; [`batch`] changes many.
//! - [`request`]: a request, and the answers that all endpoints have in common.
//! - [`caller`]: the authenticated caller of a request; [`basic`]: callers with a secret;
//!   [`scheme`], [`sessions`]: callers that sign a nonce; [`certificates`]: callers with client
//!   certificates.
//! - [`verifications`]: whether a proof was made with a secret key.
//! - `proof`: callers that are proven before their bodies are read.
//! - `json_input`: JSON within bounds.
//! - [`search`]: handles by their values, at a path outside `/api`.
//! - [`body`]: the bodies of all answers. [`route_table`](crate::route_table): the paths.
//!
//! Every answer is JSON with a `responseCode`, also for errors. Requests that need a caller are
//! refused over plain HTTP, where `Authorization` is ignored.

pub mod basic;
pub mod batch;
pub mod body;
pub mod caller;
pub mod certificates;
pub mod change;
mod guarded;
pub mod handles;
mod json_input;
pub mod listing;
pub(crate) mod proof;
pub mod request;
pub mod resolve;
pub mod scheme;
pub mod search;
pub mod sessions;
mod source_time;
pub mod verifications;

use crate::connections::request_body::RequestBody;
use crate::reply::{Freshness, GatewayResponse, SharedText};
use crate::route_table::{HttpRoute, OPENAPI};
use crate::state::GatewayState;
use body::ApiBody;
use guarded::guarded;
use handle_proto::ResponseCode;
use handle_proto::json::site_to_json;
use hyper::header;
use hyper::{Method, StatusCode};
use request::{ApiRequest, respond, unsupported};
use serde_json::json;
use std::sync::Arc;

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

fn site(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let Some(site) = &state.reading.site else {
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
    request::respond_shared(&DOCUMENT, freshness, request, &state.settings.current())
}
