//! Answers to requests for pages, and the headers that protect them.

use crate::pages::ADMIN_SECURITY_POLICY;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

/// An answer, which is always whole.
pub type ConsoleResponse = Response<Bytes>;

/// The page does not have the method of the request: the process answers as at its other paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodRefusal;

/// An answer with this body.
#[must_use]
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> ConsoleResponse {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer without a body.
#[must_use]
pub fn empty(status: StatusCode) -> ConsoleResponse {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// An answer with `text` for people.
#[must_use]
pub fn plain(status: StatusCode, text: &'static str) -> ConsoleResponse {
    response(status, "text/plain;charset=utf-8", text)
}

/// The answer for a path without a page.
#[must_use]
pub fn no_page() -> ConsoleResponse {
    plain(StatusCode::NOT_FOUND, "there is no such page\n")
}

/// Sets the headers that keep a page out of caches, frames and other sites.
pub fn guard(page: &mut ConsoleResponse) {
    let headers = page.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, ADMIN_SECURITY_POLICY),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
