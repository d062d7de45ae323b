//! Checks of a request before it is routed: the rules of HTTP that hyper does not enforce, and
//! limits.

use crate::config::Config;
use crate::connections::ServedConnection;
use crate::fast_path;
use crate::proxies::client_address;
use crate::refusal::HttpRefusal;
use crate::reply::{GatewayResponse, RequestHeaders, allow_origin};
use crate::request_log::{LoggedResponse, RequestLogEntry, RequestLogFormat};
use crate::route::{self, HttpPeer};
use crate::server::GatewayState;
use hyper::Version;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use std::net::IpAddr;
use std::time::Instant;

/// Answers a request that can be answered without waiting.
///
/// # Errors
/// The client, if the request has to be routed.
pub fn answer_at_once(
    served: &ServedConnection,
    parts: &Parts,
    body: &Incoming,
    now: Instant,
) -> Result<GatewayResponse, HttpPeer> {
    let state = &served.state;
    let settings = state.settings.current();
    let peer = client(served, &settings, parts);
    let refusal = refusal(served, parts, body).or_else(|| limit(state, &settings, peer.address, now));
    let response = match refusal {
        Some(refusal) => Some(refuse(&settings, parts, refusal)),
        None => fast_path::answer(state, parts),
    };
    let mut response = response.ok_or(peer)?;
    allow_origin(RequestHeaders { method: &parts.method, headers: &parts.headers }, &mut response);
    state.counters.count_answer(response.status().as_u16());
    if let Some(entry) = log_entry(&settings, parts, peer) {
        record(served, entry, &response, now);
    }
    Ok(response)
}

/// Routes a request of `peer` that arrived at `since`.
pub async fn answer(
    served: &ServedConnection,
    peer: HttpPeer,
    parts: Parts,
    body: Incoming,
    since: Instant,
) -> GatewayResponse {
    let entry = log_entry(&served.state.settings.current(), &parts, peer);
    let response = route::answer(&served.state, peer, parts, body).await;
    if let Some(entry) = entry {
        record(served, entry, &response, since);
    }
    response
}

/// The client: the peer of the connection, or the address that a trusted proxy names.
fn client(served: &ServedConnection, settings: &Config, parts: &Parts) -> HttpPeer {
    let mut peer = served.peer;
    if served.is_trusted {
        let trusted = &served.state.settings.networks().trusted;
        peer.address = client_address(peer.address, &parts.headers, settings.proxies.header, trusted);
    }
    peer
}

/// Counts a request, and refuses it if its source is beyond its rate.
fn limit(state: &GatewayState, settings: &Config, address: IpAddr, now: Instant) -> Option<HttpRefusal> {
    let config = &settings.request_rate;
    if config.requests_per_s == 0 || state.settings.networks().exempt.contains(address) {
        return None;
    }
    let retry_after = state.rates.admit(address, now, config).err()?;
    state.counters.requests_limited.add();
    Some(HttpRefusal::TooMany(retry_after))
}

fn log_entry(settings: &Config, parts: &Parts, peer: HttpPeer) -> Option<RequestLogEntry> {
    let config = &settings.request_log;
    let is_logged = config.format != RequestLogFormat::Off;
    is_logged.then(|| RequestLogEntry::of(parts, peer.address, peer.is_tls, config))
}

fn record(served: &ServedConnection, entry: RequestLogEntry, response: &GatewayResponse, since: Instant) {
    let (status, body_len) = (response.status().as_u16(), response.body().size_hint().exact());
    served.state.request_log.record(entry, LoggedResponse { status, body_len, since });
}

fn refuse(settings: &Config, parts: &Parts, refusal: HttpRefusal) -> GatewayResponse {
    let mut response = refusal.respond(parts.uri.path(), &parts.headers, settings);
    if parts.version < Version::HTTP_2 && !matches!(refusal, HttpRefusal::TooMany(_)) {
        // The end of the body is unknown, so no further request can be read.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Why a request is not routed.
fn refusal(served: &ServedConnection, parts: &Parts, body: &Incoming) -> Option<HttpRefusal> {
    if let Err(message) = check_host(parts) {
        return Some(HttpRefusal::Malformed(message));
    }
    if parts.version >= Version::HTTP_2 {
        // hyper limits heads itself, and bodies have no other framing.
        return None;
    }
    if served.activity.exceeds_head() && head_len(parts) > served.settings.limits.header_bytes {
        return Some(HttpRefusal::HeadTooLong);
    }
    // hyper obeys `Transfer-Encoding` and drops `Content-Length`; a proxy in front may do the
    // opposite. RFC 9112 section 6.1.
    let is_framed_twice = !body.is_end_stream()
        && parts.headers.contains_key(header::TRANSFER_ENCODING)
        && (parts.headers.contains_key(header::CONTENT_LENGTH) || served.activity.has_line("content-length"));
    is_framed_twice.then_some(HttpRefusal::Malformed("The request has Content-Length and Transfer-Encoding"))
}

/// A request of HTTP/1.1 has exactly one `Host` header. RFC 9112 section 3.2.
fn check_host(parts: &Parts) -> Result<(), &'static str> {
    match parts.headers.get_all(header::HOST).iter().count() {
        0 if parts.version == Version::HTTP_11 => Err("The request has no Host header"),
        0 | 1 => Ok(()),
        _ => Err("The request has several Host headers"),
    }
}

/// Length of the head of a request, without optional whitespace.
fn head_len(parts: &Parts) -> usize {
    let line = parts.method.as_str().len() + " ".len() + target_len(parts) + " HTTP/1.1\r\n".len();
    let header = |(name, value): (&header::HeaderName, &HeaderValue)| {
        name.as_str().len() + ": ".len() + value.len() + "\r\n".len()
    };
    line + parts.headers.iter().map(header).sum::<usize>() + "\r\n".len()
}

fn target_len(parts: &Parts) -> usize {
    let origin = parts.uri.scheme_str().map_or(0, |scheme| scheme.len() + "://".len());
    let authority = parts.uri.authority().map_or(0, |authority| authority.as_str().len());
    origin + authority + parts.uri.path_and_query().map_or(0, |path| path.as_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn parts(target: &str, hosts: &[&str]) -> Parts {
        let mut request = Request::builder().uri(target);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_head_has_the_length_with_which_it_was_sent() {
        for (target, head) in [
            ("/a/b?c", "GET /a/b?c HTTP/1.1\r\nhost: x\r\n\r\n"),
            ("http://x/a", "GET http://x/a HTTP/1.1\r\nhost: x\r\n\r\n"),
        ] {
            assert_eq!(head_len(&parts(target, &["x"])), head.len(), "{target}");
        }
    }

    #[test]
    fn a_request_names_its_host_once() {
        assert!(check_host(&parts("/", &["x"])).is_ok());
        assert!(check_host(&parts("/", &[])).is_err());
        assert!(check_host(&parts("/", &["x", "x"])).is_err());
        let mut old = parts("/", &[]);
        old.version = Version::HTTP_10;
        assert!(check_host(&old).is_ok());
    }
}
