//! HTTP responses, and the headers that all of them share.

use crate::config::CachingConfig;
use crate::stream::ResponseBody;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use std::io::Write as _;
use xxhash_rust::xxh3::xxh3_128;

/// A response.
pub type GatewayResponse = Response<ResponseBody>;

/// Bodies of at least this many bytes are compressed for clients that accept it.
const COMPRESSED_LEN_MIN: usize = 1024;

/// The headers of a request on which headers of every response depend.
#[derive(Clone, Copy, Debug)]
pub struct RequestHeaders<'r> {
    /// The method.
    pub method: &'r Method,
    /// All headers.
    pub headers: &'r HeaderMap,
}

/// How long an answer may be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Not at all.
    NoStore,
    /// So many seconds.
    Seconds(u32),
}

/// A response with this body.
#[must_use]
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> GatewayResponse {
    let mut response = Response::new(ResponseBody::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A response without a body.
#[must_use]
pub fn empty(status: StatusCode) -> GatewayResponse {
    let mut response = Response::new(ResponseBody::from(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// A response with `text` for people.
#[must_use]
pub fn plain(status: StatusCode, text: impl Into<Bytes>) -> GatewayResponse {
    response(status, "text/plain;charset=utf-8", text)
}

/// A body that may be cached and compressed, with the headers for both.
#[derive(Debug)]
pub struct CacheableBody {
    /// The media type.
    pub content_type: &'static str,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How long it may be cached.
    pub freshness: Freshness,
}

impl CacheableBody {
    /// The response with `status`: 304 where the client has this body, compressed where that
    /// is accepted and worth it.
    #[must_use]
    pub fn respond(
        self,
        status: StatusCode,
        request_headers: RequestHeaders<'_>,
        caching: &CachingConfig,
    ) -> GatewayResponse {
        let is_compressed = self.bytes.len() >= COMPRESSED_LEN_MIN && accepts_gzip(request_headers.headers);
        let tag =
            (caching.headers && status == StatusCode::OK).then(|| entity_tag(&self.bytes, is_compressed));
        let is_read = matches!(*request_headers.method, Method::GET | Method::HEAD);
        let is_known = tag.as_deref().is_some_and(|tag| is_read && has_tag(request_headers.headers, tag));
        let mut response = if is_known {
            empty(StatusCode::NOT_MODIFIED)
        } else {
            let bytes = if is_compressed { compress(&self.bytes) } else { self.bytes };
            response(status, self.content_type, bytes)
        };
        let headers = response.headers_mut();
        if is_compressed && !is_known {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if status.is_success() {
            headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if caching.headers {
            if let Some(tag) = tag.and_then(|tag| HeaderValue::try_from(tag).ok()) {
                headers.insert(header::ETAG, tag);
            }
            headers.insert(header::CACHE_CONTROL, cache_control(self.freshness, caching));
        }
        response
    }
}

fn cache_control(freshness: Freshness, caching: &CachingConfig) -> HeaderValue {
    match freshness {
        Freshness::NoStore => HeaderValue::from_static("no-store"),
        Freshness::Seconds(seconds) => {
            let text = format!("max-age={}", seconds.min(caching.seconds_max));
            HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("no-store"))
        }
    }
}

/// A strong entity tag: a hash of the body, and its coding.
fn entity_tag(bytes: &[u8], is_compressed: bool) -> String {
    let coding = if is_compressed { "-gzip" } else { "" };
    format!("\"{:032x}{coding}\"", xxh3_128(bytes))
}

/// Whether `If-None-Match` has `tag`, by weak comparison.
fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let lists = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// Whether the client accepts gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse::<f32>().ok());
        is_named && quality.is_none_or(|quality| quality > 0.0)
    })
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET,POST,HEAD,PUT,DELETE");
const ALLOWED_HEADERS: HeaderValue =
    HeaderValue::from_static("X-Requested-With,Authorization,Origin,Accept,Content-Type,If-None-Match");
const EXPOSED_HEADERS: HeaderValue =
    HeaderValue::from_static("Content-Length,WWW-Authenticate,Location,ETag");
/// Seconds for which a browser keeps the answer to a preflight request.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("86400");

/// The answer to the preflight request of a browser; `None` if the request is none.
#[must_use]
pub fn preflight(request_headers: RequestHeaders<'_>) -> Option<GatewayResponse> {
    let is_preflight = *request_headers.method == Method::OPTIONS
        && request_headers.headers.contains_key(header::ORIGIN)
        && request_headers.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    is_preflight.then(|| {
        let mut response = empty(StatusCode::OK);
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
        response
    })
}

/// Allows scripts of other origins to read the response.
pub fn allow_origin(request_headers: RequestHeaders<'_>, response: &mut GatewayResponse) {
    let Some(origin) = request_headers.headers.get(header::ORIGIN) else { return };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

/// Sets a header to a number.
pub fn set_number(response: &mut GatewayResponse, name: HeaderName, number: u32) {
    response.headers_mut().insert(name, HeaderValue::from(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(HeaderName, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn gzip_is_used_where_it_is_accepted() {
        for (accepted, is_accepted) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("deflate", false),
            ("x-gzip", false),
        ] {
            assert_eq!(
                accepts_gzip(&headers(&[(header::ACCEPT_ENCODING, accepted)])),
                is_accepted,
                "{accepted}"
            );
        }
    }

    #[test]
    fn a_body_that_the_client_has_is_not_sent_again() {
        let body = || CacheableBody {
            content_type: "application/json",
            bytes: vec![b'x'; 2000],
            freshness: Freshness::Seconds(200_000),
        };
        let caching = CachingConfig::default();
        let respond = |list: &[(HeaderName, &'static str)], status| {
            let headers = headers(list);
            body().respond(status, RequestHeaders { method: &Method::GET, headers: &headers }, &caching)
        };
        let whole = respond(&[], StatusCode::OK);
        let tag = whole.headers()[header::ETAG].to_str().unwrap().to_owned();
        assert_eq!(whole.headers()[header::CACHE_CONTROL], "max-age=172800");
        let tag: &'static str = tag.leak();
        let again = respond(&[(header::IF_NONE_MATCH, tag)], StatusCode::OK);
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(again.headers()[header::ETAG], tag);
        let other =
            respond(&[(header::IF_NONE_MATCH, tag), (header::ACCEPT_ENCODING, "gzip")], StatusCode::OK);
        assert_eq!(other.status(), StatusCode::OK, "the compressed body is another representation");
        assert_eq!(other.headers()[header::CONTENT_ENCODING], "gzip");
        let missing = respond(&[(header::IF_NONE_MATCH, "*")], StatusCode::NOT_FOUND);
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    }
}
