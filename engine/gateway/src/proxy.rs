//! The proxy: redirects from handles to what they refer to, and pages.
//!
//! [`input`](crate::input) finds the handle in a request, [`redirect`](crate::redirect) decides what
//! its record leads to, and [`pages`](crate::pages) writes HTML. This module has what these leave to
//! their caller: it resolves handles, has a clock and random numbers, and makes responses of
//! decisions.

mod resolve;
mod respond;

use crate::input::{InputError, InputRules};
use crate::pages::{ErrorPage, FormPage, LANGUAGES, Language, PageError, PageFrame};
use crate::parameters::Parameters;
use crate::redirect::{ProxyParameters, ProxyRequest, RedirectRules};
use crate::refusal::HttpRefusal;
use crate::reply::{Freshness, GatewayResponse, RequestHeaders, empty};
use crate::route::{HttpPeer, read_body};
use crate::server::GatewayState;
use handle_daemon::clock::now_unix_s;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use resolve::HandleRequest;
use respond::PageRequest;
use std::borrow::Cow;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// How handles are written in requests.
static INPUT_RULES: LazyLock<InputRules> = LazyLock::new(|| InputRules::new(&[], false, &[]));
/// Where redirects may lead.
static REDIRECT_RULES: LazyLock<RedirectRules> = LazyLock::new(RedirectRules::default);

/// What pages call this service.
pub(crate) const SERVICE_NAME: &str = "Handles";
/// Most bytes of the form.
const FORM_LEN_MAX: usize = 64 << 10;
/// Seconds for which the page with the form may be cached.
const FORM_KEEPS_S: u32 = 3600;

/// Answers a request for a handle, for the form, or for a file of pages.
pub async fn answer(state: &GatewayState, peer: HttpPeer, parts: &Parts, body: Incoming) -> GatewayResponse {
    if !matches!(parts.method, Method::GET | Method::HEAD | Method::POST) {
        let is_asked = parts.method == Method::OPTIONS;
        let mut response = empty(if is_asked { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED });
        let allowed = HeaderValue::from_static("GET, HEAD, POST, OPTIONS");
        response.headers_mut().insert(header::ALLOW, allowed);
        return response;
    }
    let form = match is_form(parts) {
        true => match read_body(state, body, FORM_LEN_MAX).await {
            Ok(form) => Some(String::from_utf8_lossy(&form).into_owned()),
            Err(status) => {
                let settings = state.settings.current();
                return HttpRefusal::of_body(status).respond(parts.uri.path(), &parts.headers, &settings);
            }
        },
        false => None,
    };
    let since = Instant::now();
    let settings = state.settings.current_shared();
    let request_headers = RequestHeaders { method: &parts.method, headers: &parts.headers };
    if let Some(response) = respond::file(parts.uri.path(), request_headers, &settings) {
        return response;
    }
    let base = base(parts, peer.is_tls);
    let accepted = parts.headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let language = accepted.map_or(&LANGUAGES[0], Language::of_header);
    let frame = PageFrame { language, service: SERVICE_NAME, base: &base };
    let page = PageRequest { head: request_headers, frame, settings: &settings };
    let query = match &form {
        Some(form) => Cow::Owned(without_handle(form)),
        None => Cow::Borrowed(parts.uri.query().unwrap_or_default()),
    };
    let reference = match form.as_deref() {
        Some(form) => INPUT_RULES.handle_of_field(Parameters::parse(form).first("hdl").unwrap_or_default()),
        None => INPUT_RULES.handle_of_path(parts.uri.path().as_bytes()),
    };
    let reference = match reference {
        Ok(reference) => reference,
        Err(error) => return without_reference(&page, &error, &query),
    };
    let mut parameters = ProxyParameters::parse(&query);
    parameters.add(&reference);
    let proxy = ProxyRequest {
        query: &query,
        address: Some(peer.address),
        now_unix_s: now_unix_s(),
        ..ProxyRequest::new(&base, &parameters, &REDIRECT_RULES)
    };
    HandleRequest {
        state,
        page,
        proxy,
        peer,
        handle: &reference.handle,
        since,
        uses_stale: AtomicBool::new(false),
    }
    .answer()
    .await
}

/// Whether the body has the fields of the form.
fn is_form(parts: &Parts) -> bool {
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    parts.method == Method::POST
        && parts.uri.path() == "/"
        && content_type.is_some_and(|kind| kind.trim().starts_with("application/x-www-form-urlencoded"))
}

/// The fields of the form as the query of the URL that means the same.
fn without_handle(form: &str) -> String {
    let options: Vec<&str> = form.split('&').filter(|pair| !pair.starts_with("hdl=")).collect();
    options.join("&")
}

/// The URL of the proxy, as the client sees it, or its path if the request names no host.
pub(crate) fn base(parts: &Parts, is_tls: bool) -> String {
    let is_host = |host: &&str| {
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        !host.is_empty() && host.bytes().all(is_of_host)
    };
    let named = || parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = parts.uri.authority().map(|authority| authority.as_str()).or_else(named);
    match host.filter(is_host) {
        Some(host) => format!("{}://{host}/", if is_tls { "https" } else { "http" }),
        None => "/".to_owned(),
    }
}

/// The answer to a request that has no valid handle.
fn without_reference(page: &PageRequest<'_>, error: &InputError, query: &str) -> GatewayResponse {
    match error {
        InputError::Empty => {
            let parameters = Parameters::parse(query);
            let form = FormPage { frame: page.frame, handle: parameters.first("hdl").unwrap_or_default() };
            page.html(StatusCode::OK, form.html(), Freshness::Seconds(FORM_KEEPS_S))
        }
        error => {
            let reason = error.to_string();
            page.error(&ErrorPage::new(page.frame, PageError::Invalid).because(&reason), Freshness::NoStore)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    #[test]
    fn urls_of_the_proxy_begin_with_the_host_that_the_client_asks_for() {
        let of = |target: &str, host: &str, is_tls| {
            let request = Request::builder().uri(target).header(header::HOST, host).body(()).unwrap();
            base(&request.into_parts().0, is_tls)
        };
        assert_eq!(of("/x", "localhost:4680", false), "http://localhost:4680/");
        assert_eq!(of("/x", "hdl.example.org", true), "https://hdl.example.org/");
        assert_eq!(of("/x", "[2001:db8::1]:8000", false), "http://[2001:db8::1]:8000/");
        assert_eq!(of("http://a.example/x", "b.example", false), "http://a.example/");
        for odd in ["", "a/b", "a b", "user@a", "a\"><b>", "a?b"] {
            assert_eq!(of("/x", odd, false), "/", "{odd}");
        }
    }

    #[test]
    fn the_fields_of_the_form_are_a_query() {
        assert_eq!(
            without_handle("hdl=20.500.1%2Fx&auth=true&ignore_aliases=true"),
            "auth=true&ignore_aliases=true"
        );
        assert_eq!(without_handle("hdl=x"), "");
    }
}
