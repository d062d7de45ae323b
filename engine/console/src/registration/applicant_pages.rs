//! The pages for applicants: `/register` with the form, and `/register/request` with the state of a
//! request. They are served over TLS only, and work without scripts.

use super::Registrations;
use super::application::{ApplicationError, ApplicationForm, BUNDLE};
use super::record::{KEY_INDEX, record_name};
use super::request::{RegistrationRequest, RequestOrigin, RequestState, RequestToken};
use super::store::AddError;
use crate::host::ConsoleHost;
use crate::pages::admin::AdminNotice;
use crate::pages::registration::{NextSteps, RegisterPage, RegisteredPage, RequestView};
use crate::pages::{PageFrame, REGISTRATION_SECURITY_POLICY, RegistrationMessages, fill, shell_quoted};
use crate::parameters::Parameters;
use crate::reply::{ConsoleResponse, MethodRefusal, empty, guard, no_page, response};
use crate::request::ConsoleRequest;
use handle_client::reference;
use handle_daemon::clock::now_unix_s;
use handle_daemon::source_rates::RetryAfter;
use handle_proto::data::Site;
use handle_proto::data::site::{InterfaceKind, InterfaceProtocol};
use handle_proto::printable::Printable;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::sync::Arc;

/// A page for applicants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplicantPage {
    /// The form.
    Form,
    /// The state of a request.
    Request,
    /// None of these.
    Unknown,
}

/// A request for one of these pages.
struct ApplicantRequest<'r, H> {
    host: &'r H,
    registrations: &'r Registrations,
    head: &'r ConsoleRequest<'r>,
    frame: PageFrame<'r>,
}

/// Why a form is not stored.
#[derive(Debug)]
enum FormRefusal {
    ForeignOrigin,
    TooMany(RetryAfter),
    Body(StatusCode),
    Application(ApplicationError),
    Full,
    FullForSource,
    NotStored,
}

/// Answers a request for a page for applicants.
///
/// # Errors
/// When the page does not have its method.
pub async fn answer<H: ConsoleHost>(
    host: &H,
    head: &ConsoleRequest<'_>,
    page: ApplicantPage,
    body: H::Body,
) -> Result<ConsoleResponse, MethodRefusal> {
    if !head.is_confidential {
        return Ok(head.to_tls());
    }
    let Some(registrations) = host.registrations() else { return Ok(empty(StatusCode::NOT_FOUND)) };
    let request = ApplicantRequest { host, registrations, head, frame: head.frame };
    match (&head.parts.method, page) {
        (&Method::GET | &Method::HEAD, ApplicantPage::Form) => {
            Ok(request.form(StatusCode::OK, None, &ApplicationForm::default()))
        }
        (&Method::GET | &Method::HEAD, ApplicantPage::Request) => Ok(request.show()),
        (&Method::POST, ApplicantPage::Form) => Ok(request.submit(body).await),
        (&Method::GET | &Method::HEAD | &Method::POST, ApplicantPage::Unknown) => Ok(no_page()),
        _ => Err(MethodRefusal),
    }
}

/// The URL of the page of a request.
fn request_url(base: &str, token: RequestToken) -> String {
    format!("{base}register/request?token={}", token.secret_text())
}

impl<H: ConsoleHost> ApplicantRequest<'_, H> {
    const fn texts(&self) -> &'static RegistrationMessages {
        self.frame.registration_texts()
    }

    fn wants_json(&self) -> bool {
        let accepted = self.head.header(header::ACCEPT);
        accepted.is_some_and(|accepted| accepted.trim_start().starts_with("application/json"))
    }

    fn html(&self, status: StatusCode, html: String) -> ConsoleResponse {
        let mut page = response(status, "text/html;charset=utf-8", html);
        let language = HeaderValue::from_static(self.frame.language.tag);
        page.headers_mut().insert(header::CONTENT_LANGUAGE, language);
        guarded(page)
    }

    fn form(
        &self,
        status: StatusCode,
        notice: Option<AdminNotice>,
        form: &ApplicationForm,
    ) -> ConsoleResponse {
        let config = self.head.registration;
        let (bundle_kib, field_bytes) = (config.bundle_bytes >> 10, config.field_bytes);
        let page = RegisterPage { frame: self.frame, notice, form, bundle_kib, field_bytes };
        let mut page = self.html(status, page.html());
        // Without a referrer, browsers send `Origin: null` with the form.
        page.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
        page
    }

    /// The state of the request whose token is in the query.
    fn show(&self) -> ConsoleResponse {
        let query = Parameters::parse(self.head.query());
        let token = query.first("token").and_then(RequestToken::parse);
        let found = token.and_then(|token| self.registrations.store.of_applicant(token));
        let status = if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
        if self.wants_json() {
            let body = match &found {
                Some(request) => as_json(request),
                None => json!({ "message": self.texts().unknown_request }),
            };
            return json_response(status, &body);
        }
        let page = RegisteredPage {
            frame: self.frame,
            request: found.as_ref().map(|request| RequestView::new(request, &self.frame)),
            url: token.map(|token| self.url(token)).unwrap_or_default(),
            next: found.as_ref().and_then(|request| self.next_steps(request)),
        };
        self.html(status, page.html())
    }

    /// The URL of the page of a request.
    fn url(&self, token: RequestToken) -> String {
        request_url(self.frame.base, token)
    }

    fn next_steps(&self, request: &RegistrationRequest) -> Option<NextSteps> {
        let RequestState::Accepted { prefix, .. } = &request.state else { return None };
        let record = record_name(prefix);
        let administrator = format!("{KEY_INDEX}:{record}");
        let server = Site::decode(&request.site).ok().and_then(|site| administration_address(&site));
        let server = server.map_or_else(|| "SERVER".to_owned(), |address| address.to_string());
        Some(NextSteps {
            record_path: format!("{}?noredirect", reference::url(&record, self.frame.root())),
            home: format!(
                "hdl handle home {record} --server {} --auth IDENTITY --key admin-private.bin",
                shell_quoted(&server)
            ),
            show: format!(
                "curl {}",
                shell_quoted(&reference::url(&record, &format!("{}api/handles/", self.frame.base)))
            ),
            change: format!(
                "hdl handle update {record} --auth {administrator} --key admin-private.bin \
                 1:HS_SITE=@siteinfo.json"
            ),
            record,
            administrator,
        })
    }

    /// Stores what an applicant sends.
    async fn submit(&self, body: H::Body) -> ConsoleResponse {
        let mut form = ApplicationForm::default();
        let token = match self.store(body, &mut form).await {
            Ok(token) => token,
            Err(refusal) => {
                self.host.refused_forms().add();
                return self.refuse(&refusal, &form);
            }
        };
        let location = request_url(self.head.redirect_base, token);
        let (url, location) = (self.url(token), HeaderValue::try_from(location).ok());
        let mut response = match self.wants_json() {
            true => {
                let id = token.digest().id().to_string();
                json_response(StatusCode::CREATED, &json!({ "id": id, "state": "pending", "url": url }))
            }
            false => guarded(empty(StatusCode::SEE_OTHER)),
        };
        if let Some(location) = location {
            response.headers_mut().insert(header::LOCATION, location);
        }
        response
    }

    /// Reads a form into `form`, checks it, and stores the request.
    async fn store(&self, body: H::Body, form: &mut ApplicationForm) -> Result<RequestToken, FormRefusal> {
        if !self.head.has_own_origin() {
            return Err(FormRefusal::ForeignOrigin);
        }
        let (config, address) = (self.head.registration, self.head.address);
        if let Some(networks) = self.head.rate_networks {
            self.registrations.admit(address, config, networks).map_err(FormRefusal::TooMany)?;
        }
        let read = self.host.read_body(address, body, config.form_bytes()).await;
        let (body, reservation) = read.map_err(FormRefusal::Body)?;
        let kind = self.head.header(header::CONTENT_TYPE);
        let read = ApplicationForm::read(kind.unwrap_or_default(), body.to_vec(), config).await;
        *form = read.map_err(FormRefusal::Application)?;
        let origin = RequestOrigin {
            token: RequestToken::generate(),
            unix_s: u64::from(now_unix_s()),
            source: address,
        };
        let (form, config) = (form.clone(), config.clone());
        let store = Arc::clone(&self.registrations.store);
        let stored = self.host.run(address, move || {
            let _reservation = reservation;
            let request = form.check(origin, &config).map_err(FormRefusal::Application)?;
            store.add(request, &config).map_err(|error| match error {
                AddError::Full => FormRefusal::Full,
                AddError::FullForSource => FormRefusal::FullForSource,
                AddError::NotLocked => FormRefusal::NotStored,
                AddError::File(error) => {
                    tracing::error!(%error, "cannot store a request for a prefix");
                    FormRefusal::NotStored
                }
            })
        });
        match stored.await {
            Ok(stored) => stored.map(|()| origin.token),
            Err(_) => Err(FormRefusal::Full),
        }
    }

    /// The answer to a form that is not stored. What was typed is in the form again.
    fn refuse(&self, refusal: &FormRefusal, form: &ApplicationForm) -> ConsoleResponse {
        let text = refusal.text(self.texts());
        let mut response = match self.wants_json() {
            true => json_response(refusal.status(), &json!({ "message": text })),
            false => self.form(refusal.status(), Some(AdminNotice { text, is_error: true }), form),
        };
        if let FormRefusal::TooMany(RetryAfter { seconds }) = refusal {
            response.headers_mut().insert(header::RETRY_AFTER, (*seconds).into());
        }
        response
    }
}

impl FormRefusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::ForeignOrigin => StatusCode::FORBIDDEN,
            Self::TooMany(_) | Self::FullForSource => StatusCode::TOO_MANY_REQUESTS,
            Self::Body(status) => *status,
            Self::Application(ApplicationError::Long(_)) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Application(_) => StatusCode::BAD_REQUEST,
            Self::Full | Self::NotStored => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn text(&self, texts: &RegistrationMessages) -> String {
        use ApplicationError as Error;
        let field = |name: &str| match name {
            "prefix" => texts.prefix,
            "organization" => texts.organization,
            "name" => texts.name,
            "phone" => texts.phone,
            "email" => texts.email,
            "note" => texts.note,
            _ => texts.bundle,
        };
        match self {
            Self::ForeignOrigin => texts.foreign_form.to_owned(),
            Self::TooMany(_) => texts.too_many.to_owned(),
            Self::Body(StatusCode::PAYLOAD_TOO_LARGE) => fill(texts.too_long, field(BUNDLE)),
            Self::Body(StatusCode::SERVICE_UNAVAILABLE) | Self::Full => texts.full.to_owned(),
            Self::Body(_) | Self::Application(Error::Form) => texts.bad_form.to_owned(),
            Self::Application(Error::Long(name)) => fill(texts.too_long, field(name)),
            Self::Application(Error::Characters(name)) => fill(texts.bad_characters, field(name)),
            Self::Application(Error::NoBundle) => texts.no_bundle.to_owned(),
            Self::Application(Error::Bundle(error)) => fill(texts.bad_bundle, Printable(&error.to_string())),
            Self::Application(Error::Site(fault)) => fill(texts.bad_bundle, fault),
            Self::Application(Error::Key) => texts.bad_key.to_owned(),
            Self::Application(Error::Prefix) => texts.bad_prefix.to_owned(),
            Self::Application(Error::Email) => texts.bad_email.to_owned(),
            Self::FullForSource => texts.full_for_source.to_owned(),
            Self::NotStored => texts.not_stored.to_owned(),
        }
    }
}

/// A request, as its applicant gets it.
fn as_json(request: &RegistrationRequest) -> Json {
    let mut json = json!({
        "id": request.id().to_string(),
        "state": request.state.name(),
        "submitted": time_text(request.submitted_unix_s),
    });
    let prefix = match &request.state {
        RequestState::Accepted { prefix, .. } => prefix,
        _ => &request.details.prefix,
    };
    if !prefix.is_empty() {
        json["prefix"] = prefix.as_str().into();
    }
    match &request.state {
        RequestState::Accepted { unix_s, .. } => json["decided"] = time_text(*unix_s).into(),
        RequestState::Refused { reason, unix_s, .. } => {
            json["decided"] = time_text(*unix_s).into();
            json["reason"] = reason.as_str().into();
        }
        RequestState::Pending | RequestState::Accepting { .. } => {}
    }
    json
}

fn time_text(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|unix_s| jiff::Timestamp::from_second(unix_s).ok());
    time.map(|time| time.to_string()).unwrap_or_default()
}

/// The first address at which the site accepts changes.
fn administration_address(site: &Site<'_>) -> Option<SocketAddr> {
    site.servers.iter().find_map(|server| {
        let interface = server.interface(InterfaceProtocol::TCP, InterfaceKind::ADMIN)?;
        Some(SocketAddr::new(server.address.ip(), interface.port()?))
    })
}

fn json_response(status: StatusCode, body: &Json) -> ConsoleResponse {
    guarded(response(status, "application/json;charset=utf-8", body.to_string()))
}

/// Sets the headers of these pages. The URL of a page is a secret, so other pages do not learn it.
fn guarded(mut page: ConsoleResponse) -> ConsoleResponse {
    guard(&mut page);
    let headers = page.headers_mut();
    let policy = HeaderValue::from_static(REGISTRATION_SECURITY_POLICY);
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_is_no_fault_of_the_applicant() {
        assert_eq!(FormRefusal::Full.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(FormRefusal::NotStored.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(FormRefusal::FullForSource.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}
