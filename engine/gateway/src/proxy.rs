//! The proxy: redirects from handles to what they refer to, and pages.
//!
//! [`input`](crate::input) finds the handle in a request, [`redirect`](crate::redirect) decides
//! what its record leads to, and [`pages`](crate::pages) writes HTML. This module has what these
//! leave to their caller: it resolves handles, has a clock and random numbers, and makes responses
//! of decisions.

pub mod config;
mod notice;
mod resolve;
mod respond;
pub mod rules;

use crate::agency;
use crate::body_collection::read_body;
use crate::connections::certificate::ConnectionCertificate;
use crate::connections::request_body::RequestBody;
use crate::identifiers::{BackendError, IdentifierMatch};
use crate::input::{InputError, InputRules};
use crate::pages::{ErrorPage, FormPage, LANGUAGES, PageError, PageFrame, language_of};
use crate::peer::HttpPeer;
use crate::redirect::{ProxyParameters, ProxyRedirect, ProxyRequest};
use crate::refusal::{HttpRefusal, refuse_method};
use crate::reply::{Freshness, GatewayResponse, RequestHeaders};
use crate::route::{Route, RoutedPath};
use crate::set::MappedSet;
use crate::state::{GatewayState, ReadingState};
use config::{ProxyConfig, is_host};
use handle_console::parameters::Parameters;
use handle_daemon::clock::now_unix_s;
use handle_daemon::permits::SourcePermit;
use handle_proto::fold;
use hyper::header;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use resolve::{HandleRequest, RecordAges};
use respond::PageRequest;
use rules::ProxyRules;
use std::borrow::Cow;
use std::time::Instant;

/// Maximum length of the form.
const FORM_LEN_MAX: usize = 64 << 10;
/// Seconds for which the page with the form may be cached.
const FORM_KEEPS_S: u32 = 3600;

/// Answers a request for a handle, for the form, or for a file of pages.
pub async fn answer(
    state: &GatewayState,
    peer: HttpPeer,
    parts: &Parts,
    path: RoutedPath,
    body: RequestBody,
) -> GatewayResponse {
    let route = path.route;
    if parts.method == Method::OPTIONS || !route.has(&parts.method) {
        return refuse_method(route, &parts.method);
    }
    let (form, _reservation) = match read_form(state, peer, parts, route, body).await {
        Ok(form) => form.unzip(),
        Err(status) => {
            let settings = state.settings.current();
            return HttpRefusal::of_body(status).respond(route, &parts.headers, &settings);
        }
    };
    let since = Instant::now();
    let settings = state.settings.current_shared();
    let request_headers = RequestHeaders { method: &parts.method, headers: &parts.headers };
    if let Some(response) = respond::file(route, request_headers, &settings) {
        return response;
    }
    let rules = state.reading.rules.load_full();
    let base = base(parts, peer.is_https, &settings.proxy);
    let accepted = parts.headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let language = accepted.map_or(&LANGUAGES[0], language_of);
    let frame = PageFrame { language, service: &settings.pages.service_name, base: &base };
    let page = PageRequest { head: request_headers, frame, settings: &settings };
    if let Some(response) = answer_non_handle(state, peer, &page, &rules, parts, path).await {
        return response;
    }
    let query = match &form {
        Some(form) => Cow::Owned(without_handle(form)),
        None => Cow::Borrowed(parts.uri.query().unwrap_or_default()),
    };
    let parse = |input: &InputRules| match form.as_deref() {
        Some(form) => input.handle_of_field(Parameters::parse(form).first("hdl").unwrap_or_default()),
        None => input.handle_of_path(parts.uri.path().as_bytes()),
    };
    let has_literal =
        || parse(&rules.input).is_ok_and(|reference| state.reading.has_prefix_with_at(&reference.handle));
    let encoded = rules.encoded_input.as_ref().filter(|_| !has_literal());
    let reference = match parse(encoded.unwrap_or(&rules.input)) {
        Ok(reference) => reference,
        Err(error) => return without_reference(&page, &error, &query),
    };
    let mut parameters = ProxyParameters::parse(&query);
    parameters.add(&reference);
    let proxy = ProxyRequest {
        query: &query,
        address: Some(peer.address),
        now_unix_s: now_unix_s(),
        ..ProxyRequest::new(redirect_base(&base, &settings.proxy), &parameters, &rules.redirect)
    };
    HandleRequest {
        state,
        rules: &rules,
        page,
        proxy,
        peer,
        certificate: ConnectionCertificate::of_request(parts),
        handle: &reference.handle,
        since,
        ages: RecordAges::default(),
    }
    .answer()
    .await
}

/// The fields of the form, if the body has them, and its reservation.
async fn read_form(
    state: &GatewayState,
    peer: HttpPeer,
    parts: &Parts,
    route: Route,
    body: RequestBody,
) -> Result<Option<(String, SourcePermit)>, StatusCode> {
    if route != Route::Form || !is_form(parts) {
        return Ok(None);
    }
    let (form, reservation) = read_body(state, peer.address, body, FORM_LEN_MAX).await?;
    Ok(Some((String::from_utf8_lossy(&form).into_owned(), reservation)))
}

/// Whether the body of a request for the page with the form has its fields.
fn is_form(parts: &Parts) -> bool {
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    parts.method == Method::POST
        && content_type.is_some_and(|kind| kind.trim().starts_with("application/x-www-form-urlencoded"))
}

/// The fields of the form as the query of the URL that means the same.
fn without_handle(form: &str) -> String {
    let options: Vec<&str> = form.split('&').filter(|pair| !pair.starts_with("hdl=")).collect();
    options.join("&")
}

impl ReadingState {
    /// Whether the prefix of a handle has an `@` and is homed in the set.
    fn has_prefix_with_at(&self, handle: &str) -> bool {
        let prefix = handle.split_once('/').map_or(handle, |(prefix, _)| prefix);
        let is_homed = |set: &MappedSet| set.current().records().homed(&fold::folded(prefix.as_bytes()));
        prefix.contains('@') && self.set.as_ref().is_some_and(is_homed)
    }
}

/// The answer to a request for an agency or another identifier; `None` for a handle.
async fn answer_non_handle(
    state: &GatewayState,
    peer: HttpPeer,
    page: &PageRequest<'_>,
    rules: &ProxyRules,
    parts: &Parts,
    routed: RoutedPath,
) -> Option<GatewayResponse> {
    let path = parts.uri.path();
    if let Some(url) = page.settings.pages.help_url.as_deref().filter(|_| routed.route == Route::Help) {
        return Some(page.redirect(ProxyRedirect::to(url, FORM_KEEPS_S), now_unix_s()));
    }
    if routed.route == Route::Agencies
        && let Some(response) = agency::answer(state, peer, page.head, routed.variable(path)).await
    {
        return Some(response);
    }
    let invalid = || page.error(&ErrorPage::new(page.frame, PageError::Invalid), Freshness::NoStore);
    Some(match rules.identifiers.find(path, &rules.redirect.schemes)? {
        IdentifierMatch::Redirect(url) => page.redirect(ProxyRedirect::to(&url, FORM_KEEPS_S), now_unix_s()),
        IdentifierMatch::Invalid => invalid(),
        IdentifierMatch::Ask(backend, path) => {
            let accept = parts.headers.get(header::ACCEPT);
            match backend.ask(peer.address, &path, accept).await {
                Ok(answer) => page
                    .relay(answer, &rules.redirect.schemes)
                    .unwrap_or_else(|| page.try_again(ErrorPage::new(page.frame, PageError::Upstream))),
                Err(error) => {
                    let kind = match error {
                        BackendError::Busy => PageError::Busy,
                        BackendError::Late => PageError::Timeout,
                        BackendError::Failed | BackendError::Handshake | BackendError::TooLong => {
                            PageError::Upstream
                        }
                    };
                    let reason = error.to_string();
                    page.try_again(ErrorPage::new(page.frame, kind).because(&reason))
                }
            }
        }
    })
}

/// The URL of the proxy, as the client sees it, or its path if the request names no host.
pub(crate) fn base(parts: &Parts, is_https: bool, config: &ProxyConfig) -> String {
    if let Some(url) = &config.base_url {
        return url.clone();
    }
    let is_own = |host: &&str| {
        let mut hosts = config.hosts.iter();
        is_host(host) && (config.hosts.is_empty() || hosts.any(|own| own.eq_ignore_ascii_case(host)))
    };
    let named = || parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = parts.uri.authority().map(|authority| authority.as_str()).or_else(named);
    match host.filter(is_own).or_else(|| config.hosts.first().map(String::as_str)) {
        Some(host) => format!("{}://{host}/", if is_https { "https" } else { "http" }),
        None => "/".to_owned(),
    }
}

/// What the locations of redirects to this gateway begin with: the URL of the proxy if the settings
/// name it, otherwise its path. The name in a request is what its sender made up, and caches keep
/// redirects for others. Clients complete a path by the URL that they asked for. RFC 9110 section
/// 10.2.2.
pub(crate) fn redirect_base<'b>(base: &'b str, config: &ProxyConfig) -> &'b str {
    if config.base_url.is_some() || !config.hosts.is_empty() { base } else { "/" }
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
            let contact = page.settings.pages.contact.as_deref();
            let error = ErrorPage::new(page.frame, PageError::Invalid).with_notice(contact, None);
            page.error(&error.because(&reason), Freshness::NoStore)
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
            base(&request.into_parts().0, is_tls, &ProxyConfig::default())
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
    fn configured_names_come_before_that_of_the_request() {
        let of = |config: &str, host: &str| {
            let request = Request::builder().uri("/x").header(header::HOST, host).body(()).unwrap();
            base(&request.into_parts().0, false, &toml::from_str(config).unwrap())
        };
        let hosts = "hosts = ['hdl.example.org', 'localhost:8000']";
        assert_eq!(of(hosts, "LOCALHOST:8000"), "http://LOCALHOST:8000/");
        assert_eq!(of(hosts, "attacker.example"), "http://hdl.example.org/");
        assert_eq!(of("base_url = 'https://hdl.example.org/p/'", "a.example"), "https://hdl.example.org/p/");
        for (config, expected) in [
            ("", "/"),
            ("hosts = ['hdl.example.org']", "http://x/"),
            ("base_url = 'https://x/'", "http://x/"),
        ] {
            assert_eq!(redirect_base("http://x/", &toml::from_str(config).unwrap()), expected, "{config}");
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
