//! Which part of the process answers a request: the JSON API, the handle protocol, or the proxy.

use crate::api::body::{ApiBody, ApiFormat};
use crate::api::request::ApiRequest;
use crate::api::{self, search};
use crate::body_collection::read_body;
use crate::connections::certificate::ConnectionCertificate;
use crate::connections::request_body::RequestBody;
use crate::parameters::Parameters;
use crate::peer::HttpPeer;
use crate::refusal::{HttpRefusal, is_api};
use crate::registration::applicant_pages;
use crate::reply::{Freshness, GatewayResponse, RequestHeaders, allow_origin, preflight};
use crate::state::GatewayState;
use crate::{admin_pages, native, proxy};
use handle_proto::ResponseCode;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use std::sync::Arc;

/// Answers a request.
pub async fn answer(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: Parts,
    body: RequestBody,
) -> GatewayResponse {
    let request_headers = RequestHeaders { method: &parts.method, headers: &parts.headers };
    let mut response = match preflight(request_headers) {
        Some(response) => response,
        None => dispatch(state, peer, &parts, body).await,
    };
    // Pages about one person must not be readable by other origins.
    let path = parts.uri.path();
    if !admin_pages::is_served(state, path) && !applicant_pages::is_served(state, path) {
        allow_origin(request_headers, &mut response);
    }
    response
}

async fn dispatch(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: &Parts,
    body: RequestBody,
) -> GatewayResponse {
    let path = parts.uri.path();
    if is_api(path) {
        state.counters.api_requests.add();
        return api(state, peer, parts, &path["/api".len()..], Some(body)).await;
    }
    if search::is_search(path) {
        state.counters.api_requests.add();
        return api(state, peer, parts, path, None).await;
    }
    if parts.method == Method::POST && native::is_asked(&parts.headers) {
        state.counters.native_requests.add();
        return match read_body(state, peer.address, body, native::BODY_LEN_MAX).await {
            Ok((message, _reservation)) => native::answer(state, peer, parts.version, &message).await,
            Err(status) => {
                let settings = state.settings.current();
                HttpRefusal::of_body(status).respond(path, &parts.headers, &settings)
            }
        };
    }
    if admin_pages::is_served(state, path) {
        state.counters.admin_requests.add();
        return admin_pages::answer(state, peer, parts, body).await;
    }
    if applicant_pages::is_served(state, path) {
        state.counters.registration_requests.add();
        return applicant_pages::answer(state, peer, parts, body).await;
    }
    state.counters.proxy_requests.add();
    proxy::answer(state, peer, parts, body).await
}

/// Answers a request to the API, or a search, which has no body.
async fn api(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: &Parts,
    path: &str,
    body: Option<RequestBody>,
) -> GatewayResponse {
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default());
    let format = ApiFormat::of(&parameters);
    let is_valid = format.is_ok();
    let request = ApiRequest {
        head: RequestHeaders { method: &parts.method, headers: &parts.headers },
        peer,
        certificate: ConnectionCertificate::of_request(parts),
        path,
        parameters,
        format: format.unwrap_or_default(),
    };
    if !is_valid {
        let message = "Invalid callback: expected the name of a function";
        let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(message), None);
        let settings = &state.settings.current();
        return body.respond(StatusCode::BAD_REQUEST, Freshness::NoStore, &request, settings);
    }
    match body {
        Some(body) => api::answer(state, &request, body).await,
        None => search::answer(state, &request).await,
    }
}
