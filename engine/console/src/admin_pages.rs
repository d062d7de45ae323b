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

use crate::host::{ConsoleHost, ServiceFailure};
use crate::pages::admin::{AdminNotice, AdminUser};
use crate::pages::{AdminMessages, PageFrame, shell_quoted};
use crate::parameters::Parameters;
use crate::reply::{ConsoleResponse, MethodRefusal, empty, guard, no_page, plain, response};
use crate::request::ConsoleRequest;
use data_encoding::BASE64URL_NOPAD;
use handle_client::administration::ClientIdentity;
use handle_proto::ResponseCode;
use handle_proto::printable::{Printable, is_unprintable};
use hyper::header::{self, HeaderValue};
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

/// Maximum length of a form of somebody who has not signed in.
const STRANGER_FORM_LEN: usize = 64 << 10;

/// An administration page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminPage {
    /// The records that the user administers.
    Home,
    /// Signing in.
    SignIn,
    /// Signing out.
    SignOut,
    /// The form for a new record.
    New,
    /// The form of a record.
    Record,
    /// Many records from a file.
    Upload,
    /// The outcome of each of them, as a file.
    Result,
    /// Requests for prefixes.
    Registrations,
    /// One of them.
    Registration,
    /// Its site record.
    RegistrationSite,
    /// Its key.
    RegistrationKey,
    /// None of these.
    Unknown,
}

/// A request for an administration page.
struct AdminRequest<'r, H> {
    host: &'r H,
    head: &'r ConsoleRequest<'r>,
    frame: PageFrame<'r>,
    session: Option<AdminSession<'r>>,
}

/// The session of a signed-in user.
struct AdminSession<'r> {
    /// The text of its id, which is a secret of the user.
    id: &'r str,
    identity: Arc<ClientIdentity>,
}

/// Answers a request for an administration page.
///
/// # Errors
/// When pages do not have its method.
pub async fn answer<H: ConsoleHost>(
    host: &H,
    head: &ConsoleRequest<'_>,
    page: AdminPage,
    body: H::Body,
) -> Result<ConsoleResponse, MethodRefusal> {
    if !head.is_confidential {
        return Ok(head.to_tls());
    }
    let session =
        cookie(head.parts).and_then(|id| Some(AdminSession { id, identity: host.find_session(id)? }));
    let request = AdminRequest { host, head, frame: head.frame, session };
    match head.parts.method {
        Method::GET | Method::HEAD => Ok(show(&request, page).await),
        Method::POST => Ok(submit(&request, page, body).await),
        _ => Err(MethodRefusal),
    }
}

async fn show(request: &AdminRequest<'_, impl ConsoleHost>, page: AdminPage) -> ConsoleResponse {
    let query = Parameters::parse(request.head.query());
    let Some(identity) = request.identity() else {
        return match page {
            AdminPage::SignIn => sign_in::page(request, StatusCode::OK, None, String::new()).await,
            _ => request.see_other("admin/sign-in"),
        };
    };
    match page {
        AdminPage::Home => records::list(request, identity, &query).await,
        AdminPage::New => records::new(request, identity, &query),
        AdminPage::Record => records::edit(request, identity, &query).await,
        AdminPage::Upload => upload::page(request),
        AdminPage::SignIn => request.see_other("admin/"),
        AdminPage::Registrations
        | AdminPage::Registration
        | AdminPage::RegistrationSite
        | AdminPage::RegistrationKey => registrations::show(request, identity, page, &query).await,
        _ => no_page(),
    }
}

async fn submit<H: ConsoleHost>(
    request: &AdminRequest<'_, H>,
    page: AdminPage,
    body: H::Body,
) -> ConsoleResponse {
    let texts = request.texts();
    if !request.head.has_own_origin() {
        return sign_in::page(request, StatusCode::FORBIDDEN, Some(error(texts.form_expired)), String::new())
            .await;
    }
    let len_max = if request.identity().is_some() { usize::MAX } else { STRANGER_FORM_LEN };
    let read = request.host.read_body(request.head.address, body, len_max).await;
    let (body, _reservation) = match read {
        Ok(read) => read,
        Err(status) => return plain(status, "the form is too long, or did not arrive in time\n"),
    };
    if page == AdminPage::SignIn {
        return sign_in::sign_in(request, &body).await;
    }
    let form = String::from_utf8_lossy(&body);
    let form = Parameters::parse(&form);
    let token = form.first("csrf").unwrap_or_default();
    let (Some(identity), true) = (request.identity(), request.is_token(token)) else {
        return sign_in::page(request, StatusCode::FORBIDDEN, Some(error(texts.form_expired)), String::new())
            .await;
    };
    match page {
        AdminPage::SignOut => sign_in::sign_out(request),
        AdminPage::Record => records::submit(request, identity, &form).await,
        AdminPage::Upload => upload::upload(request, identity, &form).await,
        AdminPage::Registration => registrations::submit(request, identity, &form).await,
        AdminPage::Result => upload::download(form.first("result").unwrap_or_default()),
        _ => no_page(),
    }
}

/// The text of the id of the session that the cookie names.
fn cookie(parts: &Parts) -> Option<&str> {
    let cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, id)| id)
}

/// The token of the forms of a session.
fn token(id: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(b"form token");
    digest.update(id);
    BASE64URL_NOPAD.encode(&digest.finalize())
}

fn error(text: &str) -> AdminNotice {
    AdminNotice { text: text.to_owned(), is_error: true }
}

impl<'r, H: ConsoleHost> AdminRequest<'r, H> {
    const fn texts(&self) -> &'static AdminMessages {
        self.frame.admin_texts()
    }

    fn identity(&self) -> Option<&Arc<ClientIdentity>> {
        self.session.as_ref().map(|session| &session.identity)
    }

    /// The signed-in user, as pages show it.
    fn user(&self) -> Option<AdminUser> {
        let identity = Printable(&self.identity_name()?).to_string();
        let is_reviewer = self.is_reviewer();
        Some(AdminUser { identity, csrf: token(self.session.as_ref()?.id), is_reviewer })
    }

    /// Whether the user reviews requests for prefixes.
    fn is_reviewer(&self) -> bool {
        let is_named = |identity: &Arc<ClientIdentity>| self.head.registration.is_reviewer(identity);
        self.host.registrations().is_some() && self.identity().is_some_and(is_named)
    }

    /// The identity as `index:handle`.
    fn identity_name(&self) -> Option<String> {
        let identity = self.identity()?;
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

    /// A page.
    fn html(&self, status: StatusCode, html: String) -> ConsoleResponse {
        let mut page = response(status, "text/html;charset=utf-8", html);
        page.headers_mut()
            .insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(self.frame.language.tag));
        guard(&mut page);
        page
    }

    /// Redirects to another page.
    fn see_other(&self, path: &str) -> ConsoleResponse {
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
    fn unanswered(&self, error: ServiceFailure) -> (StatusCode, AdminNotice) {
        let status = match error {
            ServiceFailure::Busy => StatusCode::SERVICE_UNAVAILABLE,
            ServiceFailure::Failed => StatusCode::BAD_GATEWAY,
        };
        (status, self::error(self.texts().unreachable))
    }

    /// The option of `hdl` that names the identity.
    fn hdl_auth(&self) -> String {
        self.identity_name()
            .map_or_else(String::new, |identity| format!("--auth {} --key KEY", shell_quoted(&identity)))
    }

    /// The option of `curl` that names the identity.
    fn curl_auth(&self) -> String {
        self.identity_name().map_or_else(String::new, |identity| {
            format!("-u {}", shell_quoted(&identity.replace('%', "%25").replace(':', "%3A")))
        })
    }

    /// The URL of a handle in the JSON API, for a shell.
    fn api_url(&self, handle: &str, query: &str) -> String {
        shell_quoted(&format!("{}api/handles/{}{query}", self.frame.base, encoded(handle)))
    }
}

/// Percent-encodes a name for a query or path.
fn encoded(name: &str) -> String {
    utf8_percent_encode(name, IN_QUERY).to_string()
}

/// A word for a POSIX shell that is no option of its program. It stands behind all options.
fn operand(word: &str) -> String {
    let end = if word.starts_with('-') { "-- " } else { "" };
    format!("{end}{}", shell_quoted(word))
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
        let of = |text: &str| {
            let request = Request::builder().uri("/admin/").header(header::COOKIE, text).body(()).unwrap();
            cookie(&request.into_parts().0).map(str::to_owned)
        };
        assert_eq!(of(&format!("a=b; {COOKIE}=secret; c=d")).as_deref(), Some("secret"));
        assert_eq!((of(""), of(&format!("x{COOKIE}=secret"))), (None, None));
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
        assert_eq!(token("one"), token("one"));
        assert_ne!(token("one"), token("other"));
        assert!(!token("one").contains("one"));
    }
}
