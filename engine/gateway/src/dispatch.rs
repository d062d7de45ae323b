//! Which part of the process answers a request: the JSON API, the handle protocol, pages, or the
//! proxy.

use crate::api::body::{ApiBody, ApiFormat};
use crate::api::request::ApiRequest;
use crate::api::{self, search};
use crate::body_collection::read_body;
use crate::connections::certificate::ConnectionCertificate;
use crate::connections::request_body::RequestBody;
use crate::counters::RequestKind;
use crate::peer::HttpPeer;
use crate::refusal::HttpRefusal;
use crate::reply::{Freshness, GatewayResponse, RequestHeaders, allow_origin, preflight};
use crate::route::{RouteGroup, RoutedPath};
use crate::state::GatewayState;
use crate::{console, native, proxy};
use handle_console::parameters::Parameters;
use handle_proto::ResponseCode;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use std::sync::Arc;

/// Answers a request for `path`.
pub async fn answer(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: &Parts,
    path: RoutedPath,
    body: RequestBody,
) -> GatewayResponse {
    let request_headers = RequestHeaders { method: &parts.method, headers: &parts.headers };
    let mut response = match preflight(request_headers) {
        Some(response) => response,
        None => {
            let kind = kind_of(state, parts, path);
            state.counters.count_request(kind);
            answer_kind(state, peer, parts, path, kind, body).await
        }
    };
    // Pages about one person must not be readable by other origins.
    let is_personal = |group| match group {
        RouteGroup::Admin(_) => console::has_admin_pages(state),
        RouteGroup::Applicant(_) => console::has_applicant_pages(state),
        RouteGroup::Api | RouteGroup::Search | RouteGroup::Proxy => false,
    };
    if !is_personal(path.route.group()) {
        allow_origin(request_headers, &mut response);
    }
    response
}

/// What a request is for. Pages that are not served leave their paths to the proxy.
fn kind_of(state: &GatewayState, parts: &Parts, path: RoutedPath) -> RequestKind {
    let is_native = || parts.method == Method::POST && native::is_asked(&parts.headers);
    match path.route.group() {
        RouteGroup::Api | RouteGroup::Search => RequestKind::Api,
        _ if is_native() => RequestKind::Native,
        RouteGroup::Admin(_) if console::has_admin_pages(state) => RequestKind::Admin,
        RouteGroup::Applicant(_) if console::has_applicant_pages(state) => RequestKind::Registration,
        RouteGroup::Admin(_) | RouteGroup::Applicant(_) | RouteGroup::Proxy => RequestKind::Proxy,
    }
}

async fn answer_kind(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: &Parts,
    path: RoutedPath,
    kind: RequestKind,
    body: RequestBody,
) -> GatewayResponse {
    match kind {
        RequestKind::Api => api(state, peer, parts, path, body).await,
        RequestKind::Native => match read_body(state, peer.address, body, native::BODY_LEN_MAX).await {
            Ok((message, _reservation)) => native::answer(state, peer, parts.version, &message).await,
            Err(status) => {
                let settings = state.settings.current();
                HttpRefusal::of_body(status).respond(path.route, &parts.headers, &settings)
            }
        },
        RequestKind::Admin | RequestKind::Registration => {
            console::answer(state, peer, parts, path.route, body).await
        }
        RequestKind::Proxy => proxy::answer(state, peer, parts, path, body).await,
    }
}

/// Answers a request to the API, or a search, which has no body.
async fn api(
    state: &Arc<GatewayState>,
    peer: HttpPeer,
    parts: &Parts,
    path: RoutedPath,
    body: RequestBody,
) -> GatewayResponse {
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default());
    let format = ApiFormat::of(&parameters);
    let is_valid = format.is_ok();
    let request = ApiRequest {
        head: RequestHeaders { method: &parts.method, headers: &parts.headers },
        peer,
        certificate: ConnectionCertificate::of_request(parts),
        path: parts.uri.path(),
        route: path.route,
        name: path.variable(parts.uri.path()),
        parameters,
        format: format.unwrap_or_default(),
    };
    if !is_valid {
        let message = "Invalid callback: expected the name of a function";
        let body = ApiBody::failure(ResponseCode::PROTOCOL_ERROR, Some(message), None);
        let settings = &state.settings.current();
        return body.respond(StatusCode::BAD_REQUEST, Freshness::NoStore, &request, settings);
    }
    match path.route.group() {
        RouteGroup::Search => search::answer(state, &request).await,
        _ => api::answer(state, &request, body).await,
    }
}
