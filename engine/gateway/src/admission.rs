//! Checks of a request before it is routed: the rules of HTTP that hyper does not enforce, and
//! limits.

use crate::answers::{CountedAnswer, NoAnswerCapacity};
use crate::config::Config;
use crate::connections::activity::ConnectionActivity;
use crate::connections::request_body::RequestBody;
use crate::connections::served_connection::ServedConnection;
use crate::counters::RequestKind;
use crate::dispatch;
use crate::fast_path::{self, PlainAnswer};
use crate::peer::HttpPeer;
use crate::proxies::{client_address, client_is_https};
use crate::refusal::HttpRefusal;
use crate::reply::{GatewayResponse, allow_origin_of, no_capacity};
use crate::request_head::HeaderFacts;
use crate::request_log::{LoggedRequest, LoggedResponse, RequestLogEntry};
use crate::route::{Route, RoutedPath};
use crate::state::GatewayState;
use crate::stream::ResponseBody;
use crate::uncounted_refusal::UncountedRefusal;
use handle_daemon::source_rates::RetryAfter;
use hyper::body::{Body as _, Buf as _};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Version};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// A request whose answer is not counted yet.
#[derive(Debug)]
pub struct OpenRequest {
    /// The client.
    pub peer: HttpPeer,
    path: RoutedPath,
    /// Its line in the log.
    entry: Option<RequestLogEntry>,
    /// The answer if there is no capacity for another one.
    refused: UncountedRefusal,
    since: Instant,
}

/// What has become of a request that was admitted or refused without waiting.
#[derive(Debug)]
pub enum Admission {
    /// It has been answered.
    Answered(GatewayResponse),
    /// It is answered later: it has to be routed or, if there is an answer, its body has to end.
    Open(OpenRequest, Option<Box<GatewayResponse>>),
}

/// Answers a request that arrived at `since`, if it can be answered without waiting. The headers of
/// an answered request are used up.
pub fn answer_at_once(
    served: &ServedConnection,
    parts: &mut Parts,
    has_body: bool,
    since: Instant,
) -> Admission {
    let state = &served.state;
    let settings = state.settings.current();
    let path = RoutedPath::parse(parts.uri.path());
    let facts = HeaderFacts::of(&parts.headers);
    let peer = client(served, &settings, parts);
    let origin = facts.origin.cloned();
    let refused = UncountedRefusal::new(path.route, parts.version, origin.clone());
    let entry = RequestLogEntry::of(LoggedRequest::of(parts, path.route), peer, &settings.request_log);
    let request = OpenRequest { peer, path, entry, refused, since };
    let refuse = |refusal| refuse(&settings, parts, path.route, refusal);
    // The authority of the certificate has a few requests, which no rate may refuse.
    let response = refusal(served, parts, &facts, has_body)
        .map(refuse)
        .or_else(|| challenge(state, parts, path))
        .or_else(|| limit(state, &settings, peer.address, since).map(refuse));
    if let Some(mut response) = response {
        allow_origin_of(origin, &mut response);
        return request.answered(served, response, has_body);
    }
    match fast_path::answer(state, &settings, parts, path, &facts, peer.address) {
        Some(answer) => {
            let is_api = matches!(answer, PlainAnswer::Json(_));
            let kind = if is_api { RequestKind::Api } else { RequestKind::Proxy };
            state.counters.count_request(kind);
            let response = answer.respond(std::mem::take(&mut parts.headers), origin);
            request.answered(served, response, has_body)
        }
        None => Admission::Open(request, None),
    }
}

impl OpenRequest {
    /// Routes the request, unless `made` is its answer.
    pub async fn answer(
        self,
        served: &ServedConnection,
        mut parts: Parts,
        body: RequestBody,
        made: Option<Box<GatewayResponse>>,
    ) -> GatewayResponse {
        let response = match made {
            Some(response) => *response,
            None => {
                if let Some(certificate) = &served.certificate {
                    Arc::clone(certificate).add_to(&mut parts);
                }
                dispatch::answer(&served.state, self.peer, &parts, self.path, body).await
            }
        };
        self.complete(served, response)
    }

    /// Refuses the request, because there is no capacity to wait for its answer.
    #[must_use]
    pub fn refuse(self, served: &ServedConnection) -> GatewayResponse {
        self.complete(served, no_capacity())
    }

    /// Completes a request that was answered without waiting, unless its body has to end first: if
    /// there is no capacity to wait for that, it gets another answer.
    fn answered(self, served: &ServedConnection, response: GatewayResponse, has_body: bool) -> Admission {
        match has_body {
            true => Admission::Open(self, Some(Box::new(response))),
            false => Admission::Answered(self.complete(served, response)),
        }
    }

    /// Counts and logs the answer, whoever made it. It is the one that the client gets.
    fn complete(self, served: &ServedConnection, response: GatewayResponse) -> GatewayResponse {
        let state = &served.state;
        let settings = state.settings.current();
        let response = count_bytes(state, &settings, self.peer.address, response, self.refused);
        let status = response.status().as_u16();
        state.counters.count_answer(status);
        if let Some(entry) = self.entry {
            let body_len = response.body().size_hint().exact();
            state.request_log.record(entry, LoggedResponse { status, body_len, since: self.since });
        }
        response
    }
}

/// Counts the bytes of an answer to `source`, and refuses it if there is no capacity for them.
fn count_bytes(
    state: &GatewayState,
    settings: &Config,
    source: IpAddr,
    mut response: GatewayResponse,
    refused: UncountedRefusal,
) -> GatewayResponse {
    if response.extensions().get::<NoAnswerCapacity>().is_some() {
        return refused.respond(state);
    }
    let ResponseBody::Whole(body) = response.body_mut() else { return response };
    if !body.has_remaining() {
        return response;
    }
    match CountedAnswer::whole(&state.answers, source, std::mem::take(body), settings.limits.answers()) {
        Some(counted) => {
            *body = counted;
            response
        }
        None => refused.respond(state),
    }
}

/// The client: the peer of the connection, or the one that a trusted proxy describes.
fn client(served: &ServedConnection, settings: &Config, parts: &Parts) -> HttpPeer {
    let mut peer = served.peer;
    if served.is_trusted {
        let trusted = &served.state.settings.networks().trusted;
        let config = &settings.proxies;
        peer.address = client_address(peer.address, &parts.headers, config.header, trusted);
        if let Some(is_https) = client_is_https(&parts.headers, config.scheme, trusted) {
            peer.is_https = is_https;
            peer.is_confidential = is_https && (peer.is_tls || config.credentials);
        }
    }
    peer
}

/// Counts a request in the rate of its source.
///
/// # Errors
/// When the source is beyond its rate.
pub fn admit(
    state: &GatewayState,
    settings: &Config,
    address: IpAddr,
    now: Instant,
) -> Result<(), RetryAfter> {
    let config = &settings.request_rate;
    if config.requests_per_s == 0 || state.settings.networks().exempt.contains(address) {
        return Ok(());
    }
    config.admit(&state.rates, address, now)
}

/// Counts a request, and refuses it if its source is beyond its rate.
fn limit(state: &GatewayState, settings: &Config, address: IpAddr, now: Instant) -> Option<HttpRefusal> {
    let retry_after = admit(state, settings, address, now).err()?;
    state.counters.requests_limited.add();
    Some(HttpRefusal::TooMany(retry_after))
}

fn refuse(settings: &Config, parts: &Parts, route: Route, refusal: HttpRefusal) -> GatewayResponse {
    let mut response = refusal.respond(route, &parts.headers, settings);
    if parts.version < Version::HTTP_2 && !matches!(refusal, HttpRefusal::TooMany(_)) {
        // The end of the body is unknown, so no further request can be read.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Why a request is not routed.
fn refusal(
    served: &ServedConnection,
    parts: &Parts,
    facts: &HeaderFacts<'_>,
    has_body: bool,
) -> Option<HttpRefusal> {
    if let Err(message) = check_host(parts.version, facts).and_then(|()| check_target(parts)) {
        return Some(HttpRefusal::Malformed(message));
    }
    if parts.version >= Version::HTTP_2 {
        // hyper limits heads itself, and bodies have no other framing.
        return None;
    }
    if served.activity.exceeds_head() && head_len(parts) > served.settings.limits.header_bytes {
        return Some(HttpRefusal::HeadTooLong);
    }
    if !has_body {
        return None;
    }
    check_framing(&parts.headers, &served.activity).err().map(HttpRefusal::Malformed)
}

/// The length of a body is given once, in lines that end with both characters. hyper accepts more,
/// and a proxy in front may read the same request differently. RFC 9112 sections 2.2, 6.1 and 6.3.
///
/// # Errors
/// What is wrong.
pub fn check_framing(headers: &HeaderMap, activity: &ConnectionActivity) -> Result<(), &'static str> {
    if activity.has_framing_with_bare_line_feed() {
        return Err("A line about the length of the body ends without carriage return");
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if codings.next().is_some() || !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
        return Err("The request has another Transfer-Encoding than chunked");
    }
    // hyper drops `Content-Length` in favour of `Transfer-Encoding`.
    if headers.contains_key(header::CONTENT_LENGTH) || activity.has_line("content-length") {
        return Err("The request has Content-Length and Transfer-Encoding");
    }
    Ok(())
}

/// A target that is no path of this server is for OPTIONS or CONNECT. RFC 9112 section 3.2.
fn check_target(parts: &Parts) -> Result<(), &'static str> {
    let path = parts.uri.path();
    let is_allowed = path.starts_with('/')
        || parts.method == Method::CONNECT
        || (parts.method == Method::OPTIONS && path == "*");
    if is_allowed { Ok(()) } else { Err("The target of the request has no path") }
}

/// A request of HTTP/1.1 has exactly one `Host` header, with one host. RFC 9112 section 3.2.
fn check_host(version: Version, facts: &HeaderFacts<'_>) -> Result<(), &'static str> {
    match (facts.host, facts.hosts_count) {
        (None, _) if version == Version::HTTP_11 => Err("The request has no Host header"),
        (None, _) => Ok(()),
        (Some(host), 1) if is_host(host.as_bytes()) => Ok(()),
        (Some(_), 1) => Err("The Host header has no valid host"),
        (Some(_), _) => Err("The request has several Host headers"),
    }
}

/// Whether a value of `Host` has only characters of a host and its port.
#[must_use]
pub fn is_host(value: &[u8]) -> bool {
    value.iter().all(|&byte| OF_HOST[usize::from(byte)])
}

/// The bytes that may be in a host and its port.
const OF_HOST: [bool; 256] = {
    let (mut table, mut byte) = ([false; 256], 0_u8);
    while byte < 128 {
        let is_separator = matches!(byte, b'/' | b'?' | b'#' | b'@' | b'\\' | b',' | b'"' | b'<' | b'>');
        table[byte as usize] = byte.is_ascii_graphic() && !is_separator;
        byte += 1;
    }
    table
};

/// Length of the head of a request, without optional whitespace.
pub(crate) fn head_len(parts: &Parts) -> usize {
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

/// The answer to a request of the authority that issues the certificate.
fn challenge(state: &GatewayState, parts: &Parts, path: RoutedPath) -> Option<GatewayResponse> {
    let token = (path.route == Route::Challenge).then(|| path.variable(parts.uri.path()))?;
    state.tls.as_ref()?.acme()?.challenges().for_request(&parts.method, token)
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
    fn targets_are_paths() {
        for (target, is_path) in
            [("/a", true), ("http://x", true), ("http://x/a", true), ("x:80", false), ("*", false)]
        {
            let mut parts = parts(target, &["x"]);
            assert_eq!(check_target(&parts).is_ok(), is_path, "{target}");
            parts.method = Method::OPTIONS;
            assert_eq!(check_target(&parts).is_ok(), is_path || target == "*", "{target}");
            parts.method = Method::CONNECT;
            assert!(check_target(&parts).is_ok(), "{target}");
        }
    }

    #[test]
    fn the_length_of_a_body_is_given_in_one_way() {
        let framing = |lines: &str| {
            let activity = ConnectionActivity::new(1000);
            activity.add_head(format!("POST / HTTP/1.1\r\nHost: x\r\n{lines}\r\n").as_bytes());
            let mut parts = parts("/", &["x"]);
            for (name, value) in lines.lines().filter_map(|line| line.split_once(": ")) {
                let name = header::HeaderName::from_bytes(name.as_bytes()).unwrap();
                parts.headers.append(name, HeaderValue::from_str(value).unwrap());
            }
            if parts.headers.contains_key(header::TRANSFER_ENCODING) {
                parts.headers.remove(header::CONTENT_LENGTH);
            }
            check_framing(&parts.headers, &activity)
        };
        for good in
            ["Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n", "transfer-encoding: CHUNKED \r\n"]
        {
            assert_eq!(framing(good), Ok(()), "{good:?}");
        }
        let [both, other, bare] = [
            "has Content-Length and Transfer-Encoding",
            "another Transfer-Encoding than chunked",
            "ends without carriage return",
        ];
        for (bad, why) in [
            ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", both),
            ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", both),
            ("Transfer-Encoding: gzip, chunked\r\n", other),
            ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", other),
            ("X: y\nContent-Length: 4\r\n", bare),
            ("Content-Length: 4\n", bare),
            ("X: y\ntransfer-encoding: chunked\r\n", bare),
        ] {
            let refused = framing(bad).unwrap_err();
            assert!(refused.ends_with(why), "{bad:?}: {refused}");
        }
    }

    #[test]
    fn a_request_names_its_host_once() {
        let check = |hosts: &[&str]| {
            let parts = parts("/", hosts);
            check_host(parts.version, &HeaderFacts::of(&parts.headers))
        };
        assert!(check(&["x"]).is_ok());
        assert_eq!(check(&[]), Err("The request has no Host header"));
        assert_eq!(check(&["x", "x"]), Err("The request has several Host headers"));
        for host in ["", "a.example:8000", "[::1]:80", "192.0.2.1", "xn--a_b"] {
            assert!(check(&[host]).is_ok(), "{host}");
        }
        for host in ["a b", "a, b", "a/b", "a@b", "a?b", "a#b", "\u{e9}"] {
            assert_eq!(check(&[host]), Err("The Host header has no valid host"), "{host}");
        }
        assert!(check_host(Version::HTTP_10, &HeaderFacts::default()).is_ok());
    }
}
