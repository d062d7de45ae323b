//! The administration pages: `/admin/`, over TLS only.
//!
//! - Sign-in is that of the JSON API: `handle-admin` verifies the identity, and the gateway has no
//!   rights. A cookie that scripts and other sites cannot use has the session id.
//! - A change needs a token that only pages of this gateway have, and the right origin if the
//!   browser names one.
//! - Only key files and the progress of an upload need scripts.

pub mod config;
mod form;
mod records;
mod registrations;
mod sign_in;
mod upload;

use crate::administration::ServiceError;
use crate::body_collection::read_body;
use crate::caller_sessions;
use crate::connections::request_body::RequestBody;
use crate::pages::admin::{AdminNotice, AdminUser};
use crate::pages::{ADMIN_SECURITY_POLICY, AdminMessages, LANGUAGES, Language, PageFrame};
use crate::parameters::Parameters;
use crate::peer::HttpPeer;
use crate::proxy::base;
use crate::refusal::refuse_method;
use crate::reply::{GatewayResponse, empty, plain, response};
use crate::route::Route;
use crate::sessions::{HttpSession, SessionId};
use crate::state::GatewayState;
use data_encoding::BASE64URL_NOPAD;
use handle_client::administration::ClientIdentity;
use handle_proto::ResponseCode;
use handle_proto::printable::{Printable, is_unprintable};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// The cookie with the id of the session. Browsers accept the name for the whole host over TLS
/// only.
const COOKIE: &str = "__Host-handle-session";
/// Bytes of a name that stay unencoded in a query.
const IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'/');

/// A request for an administration page.
struct AdminRequest<'r> {
    state: &'r GatewayState,
    peer: HttpPeer,
    parts: &'r Parts,
    frame: PageFrame<'r>,
    /// The session that the cookie names, if it has an identity.
    session: Option<HttpSession>,
}

/// Whether administration pages are served.
#[must_use]
pub fn are_served(state: &GatewayState) -> bool {
    let has_callers = || state.writing.admin.as_ref().is_some_and(|admin| admin.callers().is_some());
    let settings = state.settings.current();
    let has_tls = state.tls.is_some() || settings.proxies.credentials;
    settings.admin_pages.enabled && has_tls && has_callers()
}

/// Maximum length of a form of somebody who has not signed in.
const STRANGER_FORM_LEN: usize = 64 << 10;

/// Answers a request for an administration page.
pub async fn answer(
    state: &GatewayState,
    peer: HttpPeer,
    parts: &Parts,
    route: Route,
    body: RequestBody,
) -> GatewayResponse {
    let settings = state.settings.current_shared();
    let base = base(parts, peer.is_https, &settings.proxy);
    if !peer.is_confidential {
        return to_tls(parts, &base);
    }
    let accepted = parts.headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let language = accepted.map_or(&LANGUAGES[0], Language::of_header);
    let frame = PageFrame { language, service: &settings.pages.service_name, base: &base };
    let session = cookie(parts).and_then(|id| caller_sessions::find(state, id));
    let session = session.filter(|session| session.identity.is_some());
    let request = AdminRequest { state, peer, parts, frame, session };
    match parts.method {
        Method::GET | Method::HEAD => show(&request, route).await,
        Method::POST => submit(&request, route, body).await,
        _ => refuse_method(route, &parts.method),
    }
}

async fn show(request: &AdminRequest<'_>, route: Route) -> GatewayResponse {
    let query = Parameters::parse(request.parts.uri.query().unwrap_or_default());
    let Some(identity) = request.identity() else {
        return match route {
            Route::AdminSignIn => sign_in::page(request, StatusCode::OK, None, String::new()).await,
            _ => request.see_other("admin/sign-in"),
        };
    };
    match route {
        Route::AdminHome => records::list(request, identity, &query).await,
        Route::AdminNew => records::new(request, identity, &query),
        Route::AdminRecord => records::edit(request, identity, &query).await,
        Route::AdminUpload => upload::page(request),
        Route::AdminSignIn => request.see_other("admin/"),
        Route::AdminRegistrations
        | Route::AdminRegistration
        | Route::AdminRegistrationSite
        | Route::AdminRegistrationKey => registrations::show(request, identity, route, &query).await,
        _ => plain(StatusCode::NOT_FOUND, "there is no such page\n"),
    }
}

async fn submit(request: &AdminRequest<'_>, route: Route, body: RequestBody) -> GatewayResponse {
    let texts = request.texts();
    if !request.has_own_origin() {
        return sign_in::page(request, StatusCode::FORBIDDEN, Some(error(texts.form_expired)), String::new())
            .await;
    }
    let len_max = if request.identity().is_some() { usize::MAX } else { STRANGER_FORM_LEN };
    let (body, _reservation) = match read_body(request.state, request.peer.address, body, len_max).await {
        Ok(read) => read,
        Err(status) => return plain(status, "the form is too long, or did not arrive in time\n"),
    };
    if route == Route::AdminSignIn {
        return sign_in::sign_in(request, &body).await;
    }
    let form = String::from_utf8_lossy(&body);
    let form = Parameters::parse(&form);
    let token = form.first("csrf").unwrap_or_default();
    let (Some(identity), true) = (request.identity(), request.is_token(token)) else {
        return sign_in::page(request, StatusCode::FORBIDDEN, Some(error(texts.form_expired)), String::new())
            .await;
    };
    match route {
        Route::AdminSignOut => sign_in::sign_out(request),
        Route::AdminRecord => records::submit(request, identity, &form).await,
        Route::AdminUpload => upload::upload(request, identity, &form).await,
        Route::AdminRegistration => registrations::submit(request, identity, &form).await,
        Route::AdminResult => upload::download(form.first("result").unwrap_or_default()),
        _ => plain(StatusCode::NOT_FOUND, "there is no such page\n"),
    }
}

/// Redirects to the same page over TLS, on the same port.
pub(crate) fn to_tls(parts: &Parts, base: &str) -> GatewayResponse {
    let secure = base.strip_prefix("http://").filter(|_| parts.method == Method::GET);
    let target = secure.and_then(|rest| {
        let path = parts.uri.path_and_query()?.as_str();
        HeaderValue::try_from(format!("https://{}{path}", rest.trim_end_matches('/'))).ok()
    });
    match target {
        Some(target) => {
            let mut response = empty(StatusCode::TEMPORARY_REDIRECT);
            response.headers_mut().insert(header::LOCATION, target);
            // Another scheme needs the name of the host, which may be what the sender made up.
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        None => plain(StatusCode::FORBIDDEN, "administration needs TLS\n"),
    }
}

/// The session that the cookie names.
fn cookie(parts: &Parts) -> Option<SessionId> {
    let cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).and_then(|(_, id)| SessionId::parse(id))
}

/// The token of the forms of a session.
fn token(id: SessionId) -> String {
    let mut digest = Sha256::new();
    digest.update(b"form token");
    digest.update(id.bytes());
    BASE64URL_NOPAD.encode(&digest.finalize())
}

fn error(text: &str) -> AdminNotice {
    AdminNotice { text: text.to_owned(), is_error: true }
}

impl<'r> AdminRequest<'r> {
    const fn texts(&self) -> &'static AdminMessages {
        self.frame.admin_texts()
    }

    fn identity(&self) -> Option<&Arc<ClientIdentity>> {
        self.session.as_ref().and_then(|session| session.identity.as_ref())
    }

    /// The signed-in user, as pages show it.
    fn user(&self) -> Option<AdminUser> {
        let identity = Printable(&self.identity_name()?).to_string();
        let is_reviewer = self.is_reviewer();
        Some(AdminUser { identity, csrf: token(self.session.as_ref()?.id), is_reviewer })
    }

    /// Whether the user reviews requests for prefixes.
    fn is_reviewer(&self) -> bool {
        let settings = self.state.settings.current();
        let has_requests = self.state.writing.registrations.is_some();
        has_requests && self.identity().is_some_and(|identity| settings.registration.is_reviewer(identity))
    }

    /// The identity as `index:handle`.
    fn identity_name(&self) -> Option<String> {
        let identity = self.session.as_ref()?.identity.as_ref()?;
        Some(format!("{}:{}", identity.index, String::from_utf8_lossy(&identity.handle)))
    }

    fn csrf(&self) -> String {
        self.session.as_ref().map(|session| token(session.id)).unwrap_or_default()
    }

    fn is_token(&self, text: &str) -> bool {
        self.session.as_ref().is_some_and(|session| {
            // Hashes are compared, so that the time of the comparison reveals nothing about the
            // token.
            Sha256::digest(token(session.id)) == Sha256::digest(text)
        })
    }

    /// Whether the `Origin` header, if there is one, is that of this gateway. Programs may omit it.
    fn has_own_origin(&self) -> bool {
        has_own_origin(self.parts, self.frame.base)
    }

    /// A page.
    fn html(&self, status: StatusCode, html: String) -> GatewayResponse {
        let mut page = response(status, "text/html;charset=utf-8", html);
        page.headers_mut()
            .insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(self.frame.language.tag));
        guard(&mut page);
        page
    }

    /// Redirects to another page.
    fn see_other(&self, path: &str) -> GatewayResponse {
        let mut response = empty(StatusCode::SEE_OTHER);
        if let Ok(target) = HeaderValue::try_from(format!("{}{path}", self.frame.root())) {
            response.headers_mut().insert(header::LOCATION, target);
        }
        guard(&mut response);
        response
    }

    /// The status and notice for a request that the service refused.
    fn refusal(&self, code: ResponseCode, text: &str) -> (StatusCode, AdminNotice) {
        let texts = self.texts();
        let (status, message) = match code {
            ResponseCode(400..=406) => (StatusCode::FORBIDDEN, texts.not_permitted.to_owned()),
            ResponseCode::HANDLE_NOT_FOUND => (StatusCode::NOT_FOUND, texts.not_found.to_owned()),
            ResponseCode::HANDLE_ALREADY_EXISTS => (StatusCode::CONFLICT, texts.exists.to_owned()),
            ResponseCode::SERVER_NOT_RESPONSIBLE => (StatusCode::BAD_REQUEST, texts.not_here.to_owned()),
            code => {
                let reason = if text.is_empty() { code.to_string() } else { Printable(text).to_string() };
                (StatusCode::BAD_REQUEST, texts.refused.replacen("{}", &reason, 1))
            }
        };
        (status, AdminNotice { text: message, is_error: true })
    }

    /// The status and notice for a request that the service did not answer.
    fn unanswered(&self, error: &ServiceError) -> (StatusCode, AdminNotice) {
        let status = match error {
            ServiceError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        (status, self::error(self.texts().unreachable))
    }

    /// The option of `hdl` that names the identity.
    fn hdl_auth(&self) -> String {
        self.identity_name()
            .map_or_else(String::new, |identity| format!("--auth {} --key KEY", quoted(&identity)))
    }

    /// The option of `curl` that names the identity.
    fn curl_auth(&self) -> String {
        self.identity_name().map_or_else(String::new, |identity| {
            format!("-u {}", quoted(&identity.replace('%', "%25").replace(':', "%3A")))
        })
    }

    /// The URL of a handle in the JSON API, for a shell.
    fn api_url(&self, handle: &str, query: &str) -> String {
        quoted(&format!("{}api/handles/{}{query}", self.frame.base, encoded(handle)))
    }
}

/// Whether the `Origin` header, if there is one, is that of the gateway at the URL `base`.
pub(crate) fn has_own_origin(parts: &Parts, base: &str) -> bool {
    let origin = parts.headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
    origin.is_none_or(|origin| base.strip_suffix('/').is_some_and(|base| base.as_bytes() == origin))
}

/// Sets the headers that keep a page out of caches, frames and other sites.
pub(crate) fn guard(page: &mut GatewayResponse) {
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

/// Percent-encodes a name for a query or path.
fn encoded(name: &str) -> String {
    utf8_percent_encode(name, IN_QUERY).to_string()
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    crate::pages::shell_quoted(word)
}

/// A word for a POSIX shell that is no option of its program. It stands behind all options.
fn operand(word: &str) -> String {
    let end = if word.starts_with('-') { "-- " } else { "" };
    format!("{end}{}", quoted(word))
}

/// Those commands that can be copied: without control characters, and others that do not show.
fn copyable(mut commands: Vec<String>) -> Vec<String> {
    commands.retain(|command| !command.contains(is_unprintable));
    commands
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    #[test]
    fn the_cookie_is_found_among_others() {
        let id = SessionId::new([7; 16]);
        let of = |text: &str| {
            let request = Request::builder().uri("/admin/").header(header::COOKIE, text).body(()).unwrap();
            cookie(&request.into_parts().0)
        };
        let text = id.secret_text();
        assert_eq!(of(&format!("a=b; {COOKIE}={text}; c=d")), Some(id));
        assert_eq!(of(&format!("x{COOKIE}={text}")), None);
        assert_eq!((of(""), of(&format!("{COOKIE}=short"))), (None, None));
    }

    #[test]
    fn commands_have_no_options_and_no_control_characters_of_a_name() {
        assert_eq!(operand("--config=x/y z"), "-- '--config=x/y z'");
        assert_eq!([operand("20.500/-x"), operand("it's")], ["20.500/-x", r"'it'\''s'"]);
        let commands = ["a\nrm -rf x", "b\x1b[2J", "c\u{202e}", "d"].map(|name| format!("hdl {name}"));
        assert_eq!(copyable(commands.to_vec()), ["hdl d"]);
    }

    #[test]
    fn tokens_belong_to_their_session() {
        let [one, other] = [[7; 16], [8; 16]].map(SessionId::new);
        assert_eq!(token(one), token(one));
        assert_ne!(token(one), token(other));
        assert!(!token(one).contains(&one.secret_text()));
    }
}
