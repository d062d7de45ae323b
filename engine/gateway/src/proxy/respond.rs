//! Responses of the proxy.

use crate::config::Config;
use crate::identifiers::BackendAnswer;
use crate::pages::{
    ADMIN_SCRIPT, CONTENT_SECURITY_POLICY, ErrorPage, ICON, PageFrame, ROBOTS, RedirectPage, STYLE,
};
use crate::redirect::{ProxyRedirect, redirect_target};
use crate::reply::{
    BodyTag, BodyText, CacheableBody, Freshness, GatewayResponse, RequestHeaders, SharedText, cache_control,
    empty, http_date, names_html, response, set_number,
};
use crate::route::Route;
use handle_daemon::clock::now_unix_s;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};

/// Seconds for which files of pages may be cached.
const FILES_KEEP_S: u32 = 86_400;
/// The media type of pages.
const HTML: &str = "text/html;charset=utf-8";

/// What the pages of a request depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRequest<'r> {
    /// The method and headers.
    pub(super) head: RequestHeaders<'r>,
    /// What all pages have in common.
    pub(super) frame: PageFrame<'r>,
    /// The settings in force.
    pub(super) settings: &'r Config,
}

/// The files of pages: their routes, media types and contents.
static FILES: [(Route, &str, SharedText); 5] = [
    (Route::Style, "text/css;charset=utf-8", SharedText::new(STYLE)),
    (Route::Icon, "image/svg+xml", SharedText::new(ICON)),
    // Well-known paths: browsers request the icon without a page, and crawlers their rules.
    (Route::Favicon, "image/svg+xml", SharedText::new(ICON)),
    (Route::Robots, "text/plain;charset=utf-8", SharedText::new(ROBOTS)),
    (Route::AdminScript, "text/javascript;charset=utf-8", SharedText::new(ADMIN_SCRIPT)),
];

/// The file of pages of a route.
pub(super) fn file(
    route: Route,
    request_headers: RequestHeaders<'_>,
    settings: &Config,
) -> Option<GatewayResponse> {
    let (_, content_type, text) = FILES.iter().find(|(known, ..)| *known == route)?;
    let freshness = Freshness::Seconds(FILES_KEEP_S);
    let body = CacheableBody { content_type, bytes: BodyText::Shared(text), freshness, tag: BodyTag::Bytes };
    let mut response = body.respond(StatusCode::OK, request_headers, settings);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Some(response)
}

impl PageRequest<'_> {
    /// A page.
    pub(super) fn html(&self, status: StatusCode, html: String, freshness: Freshness) -> GatewayResponse {
        let body = CacheableBody {
            content_type: HTML,
            bytes: html.into_bytes().into(),
            freshness,
            tag: BodyTag::Bytes,
        };
        let mut response = body.respond(status, self.head, self.settings);
        self.set_page_headers(response.headers_mut());
        response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Language"));
        response
    }

    /// The page about an error, with its status.
    pub(super) fn error(&self, page: &ErrorPage<'_>, freshness: Freshness) -> GatewayResponse {
        let status = StatusCode::from_u16(page.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.html(status, page.html(), freshness)
    }

    /// The page about an error that may be over when the client asks again.
    pub(super) fn try_again(&self, page: ErrorPage<'_>) -> GatewayResponse {
        let seconds = self.settings.upstream.retry_after_s;
        let mut response = self.error(&page.retry_after(seconds), Freshness::NoStore);
        set_number(&mut response, header::RETRY_AFTER, seconds);
        response
    }

    /// The answer of a back end; `None` if it is not passed to clients. Browsers run no scripts in
    /// it.
    pub(super) fn relay(&self, answer: BackendAnswer, schemes: &[String]) -> Option<GatewayResponse> {
        let status = answer.status;
        if status.is_redirection() {
            let target = redirect_target(answer.location.as_deref()?, b"", schemes)?;
            let redirect = ProxyRedirect { status: status.as_u16(), ..ProxyRedirect::to(target.as_str(), 0) };
            return Some(self.redirect(redirect, now_unix_s()));
        }
        if !matches!(status.as_u16(), 200 | 400 | 404 | 410) {
            return None;
        }
        let mut relayed = response(status, "application/octet-stream", answer.body);
        let headers = relayed.headers_mut();
        if let Some(content_type) = answer.content_type {
            headers.insert(header::CONTENT_TYPE, content_type);
        }
        headers
            .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.append(header::VARY, HeaderValue::from_static("Accept"));
        Some(relayed)
    }

    fn set_page_headers(&self, headers: &mut HeaderMap) {
        let policy = HeaderValue::from_static(CONTENT_SECURITY_POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(self.frame.language.tag));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }

    /// Locations as XML.
    pub(super) fn xml(&self, xml: String, freshness: Freshness) -> GatewayResponse {
        let body = CacheableBody {
            content_type: "text/xml;charset=utf-8",
            bytes: xml.into_bytes().into(),
            freshness,
            tag: BodyTag::Bytes,
        };
        let mut response = body.respond(StatusCode::OK, self.head, self.settings);
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    /// A redirect. Browsers get a page with it, whose language does not divide what caches keep.
    pub(super) fn redirect(&self, redirect: ProxyRedirect, now_unix_s: u32) -> GatewayResponse {
        let ProxyRedirect { status, location, cache_s, vary_accept, is_private } = redirect;
        let status = match status {
            // Nothing of a form is for the target.
            307 | 308 if *self.head.method == Method::POST => StatusCode::SEE_OTHER,
            status => StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND),
        };
        let mut response = if self.head.headers.get_all(header::ACCEPT).iter().any(names_html) {
            let page = RedirectPage { frame: self.frame, location: &location }.html();
            let mut response = response(status, HTML, page);
            self.set_page_headers(response.headers_mut());
            response
        } else {
            empty(status)
        };
        let keeps_s = cache_s.min(self.settings.caching.seconds_max);
        let headers = response.headers_mut();
        // A location is printable ASCII.
        if let Ok(location) = HeaderValue::try_from(location) {
            headers.insert(header::LOCATION, location);
        }
        if let Some(expires) = http_date(u64::from(now_unix_s) + u64::from(keeps_s)) {
            headers.insert(header::EXPIRES, expires);
        }
        let mut caching = cache_control(Freshness::Seconds(keeps_s), keeps_s);
        if is_private {
            caching = HeaderValue::try_from(format!("private, max-age={keeps_s}")).unwrap_or(caching);
        }
        headers.insert(header::CACHE_CONTROL, caching);
        if vary_accept {
            headers.append(header::VARY, HeaderValue::from_static("Accept"));
        }
        response
    }
}
