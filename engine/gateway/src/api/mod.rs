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
//! - [`body`]: the bodies of all answers. [`route`](crate::route): the paths.
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
use crate::refusal::refuse_method;
use crate::reply::{Freshness, GatewayResponse, SharedText};
use crate::route::{OPENAPI, Route};
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
    let (method, route) = (request.head.method, request.route);
    let is_read = matches!(*method, Method::GET | Method::HEAD | Method::POST);
    let is_write = matches!(*method, Method::PUT | Method::DELETE);
    if matches!(*method, Method::OPTIONS | Method::TRACE) {
        return refuse_method(route, method);
    }
    if !is_read && !is_write {
        let message = format!("Unknown method {method}");
        let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(&message), None);
        return respond(state, request, StatusCode::NOT_IMPLEMENTED, body);
    }
    match route {
        Route::Record if is_read => handles::read(state, request, request.name).await,
        Route::Record => change::change(state, request, request.name, body).await,
        Route::Handles if is_read => match request.parameters.first("prefix") {
            Some(prefix) => listing::handles(state, request, prefix).await,
            None => empty_handle(state, request),
        },
        // As deployed; `http.jsonl`, `delete/no_handle`.
        Route::Handles if *method == Method::DELETE => {
            let body = ApiBody::failure(ResponseCode::HANDLE_NOT_FOUND, None, None);
            respond(state, request, StatusCode::NOT_FOUND, body)
        }
        Route::Handles => empty_handle(state, request),
        Route::Resolve if *method == Method::POST => resolve::resolve(state, request, body).await,
        Route::Batch if *method == Method::POST => batch::batch(state, request, body).await,
        Route::Batch | Route::Resolve => not_allowed(state, request),
        Route::Prefixes if matches!(*method, Method::GET | Method::HEAD) => {
            listing::prefixes(state, request).await
        }
        Route::Prefixes if *method != Method::PUT => listing::home(state, request).await,
        Route::Site if is_read => site(state, request),
        Route::Document if matches!(*method, Method::GET | Method::HEAD) => document(state, request),
        Route::Document => not_allowed(state, request),
        // As deployed: a session id is a secret.
        Route::Sessions | Route::ThisSession if !request.peer.is_confidential => {
            let body = ApiBody::failure(ResponseCode::AUTHENTICATION_NEEDED, Some("Sessions need TLS"), None);
            respond(state, request, StatusCode::FORBIDDEN, body)
        }
        Route::Sessions | Route::ThisSession => sessions::answer(state, request, body).await,
        Route::Verifications if is_read => verifications::verify(state, request, request.name).await,
        _ => unknown(state, request),
    }
}

fn empty_handle(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let body = ApiBody::failure(ResponseCode::INVALID_HANDLE, Some("Empty handle invalid"), None);
    respond(state, request, StatusCode::BAD_REQUEST, body)
}

fn unknown(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let path = request.path.get("/api".len()..).unwrap_or_default();
    let message = format!("Unknown HTTP API endpoint {} /api{path}", request.head.method);
    let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(&message), None);
    respond(state, request, StatusCode::NOT_FOUND, body)
}

/// Refuses a method that the endpoint does not have.
fn not_allowed(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let message = format!("{} is not allowed here", request.head.method);
    let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(&message), None);
    let mut response = respond(state, request, StatusCode::METHOD_NOT_ALLOWED, body);
    response.headers_mut().insert(header::ALLOW, request.route.allow());
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
