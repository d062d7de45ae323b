//! What a request passes before it is routed: the rules of HTTP that hyper does not enforce, and
//! limits.

use crate::connections::ServedConnection;
use crate::refusal::HttpRefusal;
use crate::reply::{GatewayResponse, RequestHeaders, allow_origin};
use crate::route;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Version};

/// Answers a request of a connection.
pub async fn answer(served: &ServedConnection, request: Request<Incoming>) -> GatewayResponse {
    let (parts, body) = request.into_parts();
    if let Some(refusal) = refusal(served, &parts, &body) {
        let mut response = refusal.respond(parts.uri.path(), &parts.headers, &served.settings);
        if parts.version < Version::HTTP_2 {
            // Where the next request begins is uncertain.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        allow_origin(RequestHeaders { method: &parts.method, headers: &parts.headers }, &mut response);
        served.state.counters.count_answer(response.status().as_u16());
        return response;
    }
    route::answer(&served.state, served.peer, parts, body).await
}

/// Why a request is not routed.
fn refusal(served: &ServedConnection, parts: &Parts, body: &Incoming) -> Option<HttpRefusal> {
    if let Err(message) = check_host(parts) {
        return Some(HttpRefusal::Malformed(message));
    }
    if parts.version >= Version::HTTP_2 {
        // hyper has its own limit of heads, and bodies have no other framing.
        return None;
    }
    if served.activity.exceeds_head() && head_len(parts) > served.settings.limits.header_bytes {
        return Some(HttpRefusal::HeadTooLong);
    }
    // Of both headers, hyper obeys `Transfer-Encoding` and drops `Content-Length`; what another
    // server before this one obeys is unknown. RFC 9112 section 6.1.
    let is_framed_twice = !body.is_end_stream()
        && parts.headers.contains_key(header::TRANSFER_ENCODING)
        && (parts.headers.contains_key(header::CONTENT_LENGTH) || served.activity.has_line("content-length"));
    is_framed_twice.then_some(HttpRefusal::Malformed("The request has Content-Length and Transfer-Encoding"))
}

/// A request of HTTP/1.1 names its host once. RFC 9112 section 3.2.
fn check_host(parts: &Parts) -> Result<(), &'static str> {
    match parts.headers.get_all(header::HOST).iter().count() {
        0 if parts.version == Version::HTTP_11 => Err("The request has no Host header"),
        0 | 1 => Ok(()),
        _ => Err("The request has several Host headers"),
    }
}

/// Bytes of the head of a request, without optional blanks.
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
