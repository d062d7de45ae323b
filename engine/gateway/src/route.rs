//! Which part of the process answers a request: the JSON API, the handle protocol, or the proxy.

use crate::api::body::{ApiBody, ApiFormat};
use crate::api::{self, ApiRequest, search};
use crate::connections::certificate::ConnectionCertificate;
use crate::connections::request_body::RequestBody;
use crate::parameters::Parameters;
use crate::places::{BodyLimits, BodyRoom};
use crate::refusal::{HttpRefusal, is_api};
use crate::registration::applicant_pages;
use crate::reply::{Freshness, GatewayResponse, RequestHeaders, allow_origin, preflight};
use crate::server::GatewayState;
use crate::{admin_pages, native, proxy};
use handle_proto::ResponseCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpPeer {
    /// Its address; IPv4 not mapped.
    pub address: IpAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// Whether the scheme of the client's URL is `https`.
    pub is_https: bool,
    /// Whether credentials are accepted.
    pub is_confidential: bool,
}

impl HttpPeer {
    /// The peer of a connection, who is the client itself as far as is known.
    #[must_use]
    pub const fn new(address: IpAddr, is_tls: bool) -> Self {
        Self { address, is_tls, is_https: is_tls, is_confidential: is_tls }
    }
}

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
            Ok((message, _room)) => native::answer(state, peer, parts.version, &message).await,
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

/// Reads the body of a request of a client at `source`: at most `len_max` bytes and what
/// `limits.body_bytes` allows, within the bounds of time and of all bodies together. Its bytes
/// count as long as the room is kept, which is until they are no longer used for the answer.
///
/// # Errors
/// The status for a body that is too long, too slow or broken, or for which there is no room.
pub(crate) async fn read_body(
    state: &GatewayState,
    source: IpAddr,
    body: RequestBody,
    len_max: usize,
) -> Result<(Zeroizing<Vec<u8>>, BodyRoom), StatusCode> {
    let settings = state.settings.current_shared();
    let limits = &settings.limits;
    let len_max = len_max.min(limits.body_bytes);
    let patience = Duration::from_millis(limits.body_ms.into());
    let collected = collect(state.bodies.room(source), body, len_max, limits.bodies());
    let read = tokio::time::timeout(patience, collected).await;
    let read = read.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT));
    if read.is_err() {
        state.counters.bodies_refused.add();
    }
    read
}

/// Reads a body: at most `len_max` bytes, for which `room` takes as much as `limits` allow. They
/// count as long as the room is kept. They may be a secret, so no other copy stays in memory.
///
/// # Errors
/// The status for a body that is too long or broken, or for which there is no room.
pub(crate) async fn collect<B: Body<Data = Bytes> + Unpin>(
    mut room: BodyRoom,
    mut body: B,
    len_max: usize,
    limits: BodyLimits,
) -> Result<(Zeroizing<Vec<u8>>, BodyRoom), StatusCode> {
    let announced = body.size_hint().lower();
    if announced > len_max as u64 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let first = usize::try_from(announced).unwrap_or(len_max).min(FIRST_LEN);
    let mut bytes = Zeroizing::new(Vec::with_capacity(first));
    while let Some(frame) = body.frame().await {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
        if bytes.len() + data.len() > len_max {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        if !room.grow(data.len(), limits) {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        append(&mut bytes, &data);
    }
    Ok((bytes, room))
}

/// Bytes of a body for which there is memory before they have arrived.
const FIRST_LEN: usize = 64 << 10;

/// Appends to a secret. A vector that grows by itself leaves a copy behind, which is not zeroed.
pub(crate) fn append(bytes: &mut Zeroizing<Vec<u8>>, more: &[u8]) {
    let len = bytes.len() + more.len();
    if len > bytes.capacity() {
        let mut longer = Zeroizing::new(Vec::with_capacity(len.max(2 * bytes.capacity())));
        longer.extend_from_slice(bytes);
        *bytes = longer;
    }
    bytes.extend_from_slice(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::BodyBytes;
    use crate::stream::ResponseBody;

    #[test]
    fn a_body_grows_into_memory_that_is_zeroed_and_has_the_room_of_its_source() {
        let text = "x".repeat(300_000);
        let all = BodyBytes::default();
        let limits = BodyLimits { bytes: 1 << 20, per_source: text.len() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let of_text = || ResponseBody::from(Bytes::from(text.clone()));
            let room = || all.room([192, 0, 2, 1].into());
            let (bytes, kept) = collect(room(), of_text(), text.len(), limits).await.unwrap();
            assert!(*bytes == text.as_bytes());
            let refused = collect(room(), of_text(), text.len(), limits).await;
            assert_eq!(refused.err(), Some(StatusCode::SERVICE_UNAVAILABLE));
            drop(kept);
            let long = collect(room(), of_text(), text.len() - 1, limits).await;
            assert_eq!(long.err(), Some(StatusCode::PAYLOAD_TOO_LARGE));
            assert!(collect(room(), of_text(), text.len(), limits).await.is_ok());
        });
        let mut bytes = Zeroizing::new(Vec::new());
        for part in text.as_bytes().chunks(1000) {
            append(&mut bytes, part);
        }
        assert!(*bytes == text.as_bytes());
    }
}
