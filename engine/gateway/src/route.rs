//! Which part of the process answers a request: the JSON API, the handle protocol, or the proxy.

use crate::api::body::{ApiBody, ApiFormat};
use crate::api::{self, ApiRequest};
use crate::parameters::Parameters;
use crate::places::BodyRoom;
use crate::refusal::{HttpRefusal, is_api};
use crate::reply::{Freshness, GatewayResponse, RequestHeaders, allow_origin, preflight};
use crate::server::GatewayState;
use crate::{admin_pages, native, proxy};
use handle_proto::ResponseCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpPeer {
    /// Its address; IPv4 not mapped.
    pub address: IpAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}

/// Answers a request.
pub async fn answer(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: Parts,
    body: Incoming,
) -> GatewayResponse {
    let request_headers = RequestHeaders { method: &parts.method, headers: &parts.headers };
    let mut response = match preflight(request_headers) {
        Some(response) => response,
        None => dispatch(state, peer, &parts, body).await,
    };
    // Pages that change records are for nobody but the browser of their administrator.
    if !admin_pages::is_asked(state, parts.uri.path()) {
        allow_origin(request_headers, &mut response);
    }
    state.counters.count_answer(response.status().as_u16());
    response
}

async fn dispatch(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: &Parts,
    body: Incoming,
) -> GatewayResponse {
    let path = parts.uri.path();
    if is_api(path) {
        state.counters.api_requests.add();
        return api(state, peer, parts, &path["/api".len()..], body).await;
    }
    if parts.method == Method::POST && native::is_asked(&parts.headers) {
        state.counters.native_requests.add();
        return match read_body(state, body, native::BODY_LEN_MAX).await {
            Ok((message, _room)) => native::answer(state, peer.address, &message).await,
            Err(status) => {
                let settings = state.settings.current();
                HttpRefusal::of_body(status).respond(path, &parts.headers, &settings)
            }
        };
    }
    if admin_pages::is_asked(state, path) {
        state.counters.admin_requests.add();
        return admin_pages::answer(state, peer, parts, body).await;
    }
    state.counters.proxy_requests.add();
    proxy::answer(state, peer, parts, body).await
}

async fn api(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: &Parts,
    path: &str,
    body: Incoming,
) -> GatewayResponse {
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default());
    let format = ApiFormat::of(&parameters);
    let is_valid = format.is_ok();
    let request = ApiRequest {
        head: RequestHeaders { method: &parts.method, headers: &parts.headers },
        peer,
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
    api::answer(state, &request, body).await
}

/// Reads the body of a request: at most `len_max` bytes and what `limits.body_bytes` allows, within
/// the bounds of time and of all bodies together. Its bytes count as long as the room is kept, which
/// is until they are no longer used for the answer.
///
/// # Errors
/// The status for a body that is too long, too slow or broken, or for which there is no room.
pub(crate) async fn read_body(
    state: &GatewayState,
    body: Incoming,
    len_max: usize,
) -> Result<(Vec<u8>, BodyRoom), StatusCode> {
    let settings = state.settings.current_shared();
    let limits = &settings.limits;
    let len_max = len_max.min(limits.body_bytes);
    let patience = Duration::from_millis(limits.body_ms.into());
    let collected = collect(state, body, len_max, limits.bodies_bytes);
    let read = tokio::time::timeout(patience, collected).await;
    let read = read.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT));
    if read.is_err() {
        state.counters.bodies_refused.add();
    }
    read
}

/// Reads the body of a request: at most `len_max` bytes, and `all_max` of all bodies together. Its
/// bytes count as long as the room is kept.
///
/// # Errors
/// The status for a body that is too long or broken, or for which there is no room.
pub(crate) async fn collect(
    state: &GatewayState,
    mut body: Incoming,
    len_max: usize,
    all_max: usize,
) -> Result<(Vec<u8>, BodyRoom), StatusCode> {
    if body.size_hint().lower() > len_max as u64 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let (mut bytes, mut room) = (Vec::new(), state.bodies.room());
    while let Some(frame) = body.frame().await {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
        if bytes.len() + data.len() > len_max {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        if !room.grow(data.len(), all_max) {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, room))
}
