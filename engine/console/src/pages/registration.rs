//! Pages about registrations of prefixes: for applicants, and for reviewers.

use super::admin::{AdminNotice, AdminUser};
use super::dates::{DateView, date};
use super::facts::{KeyView, SiteView, mail_url};
use super::{PageFrame, fill, html};
use crate::registration::application::ApplicationForm;
use crate::registration::request::{RegistrationRequest, RequestState};
use askama::Template;
use handle_proto::data::{PublicKey, Site};
use std::net::{IpAddr, Ipv6Addr};

/// The form for applicants.
#[derive(Clone, Debug, Template)]
#[template(path = "register.html")]
pub struct RegisterPage<'a> {
    /// The frame of all pages.
    pub frame: PageFrame<'a>,
    /// The notice at the top.
    pub notice: Option<AdminNotice>,
    /// What was typed.
    pub form: &'a ApplicationForm,
    /// Maximum length of an archive, in KiB.
    pub bundle_kib: usize,
    /// Maximum length of a field.
    pub field_bytes: usize,
}

impl RegisterPage<'_> {
    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }

    fn bundle_hint(&self) -> String {
        fill(self.frame.registration_texts().bundle_hint, self.bundle_kib)
    }
}

/// The state of a request, for its applicant.
#[derive(Clone, Debug, Template)]
#[template(path = "registered.html")]
pub struct RegisteredPage<'a> {
    /// The frame of all pages.
    pub frame: PageFrame<'a>,
    /// The request; `None` if there is no such request.
    pub request: Option<RequestView>,
    /// The URL of the page.
    pub url: String,
    /// What is to be done after the request is accepted.
    pub next: Option<NextSteps>,
}

/// What an applicant does after the request is accepted.
#[derive(Clone, Debug)]
pub struct NextSteps {
    /// The path of the page with the prefix record.
    pub record_path: String,
    /// Its name.
    pub record: String,
    /// The administrator of the record.
    pub administrator: String,
    /// The command that homes the prefix at the new service.
    pub home: String,
    /// The command that shows the prefix record.
    pub show: String,
    /// The command that changes the prefix record.
    pub change: String,
}

impl RegisteredPage<'_> {
    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }
}

/// A request, as pages show it.
#[derive(Clone, Debug)]
pub struct RequestView {
    /// Its number.
    pub id: String,
    /// The prefix that it is about; may be empty.
    pub prefix: String,
    /// The name of its state.
    pub state: &'static str,
    /// The sentence about its state, for the applicant.
    pub sentence: String,
    /// The reason of a refusal.
    pub reason: Option<String>,
    /// Whether it is decided, and not merely about to be.
    pub is_decided: bool,
    /// The reviewer.
    pub decided_by: Option<String>,
    arrived: DateView,
    decided: Option<DateView>,
    /// The organisation.
    pub organization: String,
}

impl RequestView {
    /// The view of `request`.
    #[must_use]
    pub fn new(request: &RegistrationRequest, frame: &PageFrame<'_>) -> Self {
        let (texts, common) = (frame.registration_texts(), frame.texts());
        let day = |unix_s: u64| date(i32::try_from(unix_s).unwrap_or(i32::MAX), common);
        let (state, sentence) = match &request.state {
            RequestState::Pending => (texts.pending, texts.pending_text.to_owned()),
            RequestState::Accepting { .. } => (texts.accepting, texts.pending_text.to_owned()),
            RequestState::Accepted { prefix, .. } => (texts.accepted, fill(texts.accepted_text, prefix)),
            RequestState::Refused { .. } => (texts.refused, texts.refused_text.to_owned()),
        };
        let (reason, decided_by, decided) = match &request.state {
            RequestState::Pending => (None, None, None),
            RequestState::Accepting { by, .. } => (None, Some(by.clone()), None),
            RequestState::Accepted { by, unix_s, .. } => (None, Some(by.clone()), Some(day(*unix_s))),
            RequestState::Refused { reason, by, unix_s } => {
                (Some(reason.clone()), Some(by.clone()), Some(day(*unix_s)))
            }
        };
        Self {
            id: request.id().to_string(),
            prefix: request.current_prefix().to_owned(),
            state,
            sentence,
            reason,
            is_decided: request.state.is_decided(),
            decided_by,
            arrived: day(request.submitted_unix_s),
            decided,
            organization: request.details.organization.clone(),
        }
    }
}

/// The list of requests, for reviewers.
#[derive(Clone, Debug, Template)]
#[template(path = "admin_registrations.html")]
pub struct RegistrationsPage<'a> {
    /// The frame of all pages.
    pub frame: PageFrame<'a>,
    /// The signed-in user.
    pub user: Option<AdminUser>,
    /// The notice at the top.
    pub notice: Option<AdminNotice>,
    /// Commands that do the same.
    pub commands: Vec<String>,
    /// The number of requests, as a text; `None` if they are not shown.
    pub count: Option<String>,
    /// The requests on this page.
    pub requests: Vec<RequestView>,
    /// The number of the previous page.
    pub previous: Option<usize>,
    /// The number of the next page.
    pub next: Option<usize>,
}

impl RegistrationsPage<'_> {
    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }
}

/// One request, for reviewers.
#[derive(Template)]
#[template(path = "admin_registration.html")]
pub struct ReviewPage<'a> {
    /// The frame of all pages.
    pub frame: PageFrame<'a>,
    /// The signed-in user.
    pub user: Option<AdminUser>,
    /// The notice at the top.
    pub notice: Option<AdminNotice>,
    /// Commands that do the same.
    pub commands: Vec<String>,
    /// The token of forms.
    pub csrf: String,
    /// What the reviewer has to know, before the forms.
    pub warnings: Vec<String>,
    /// Other requests for the same prefix.
    pub others: Vec<RequestView>,
    /// The prefix in the form.
    pub typed_prefix: String,
    /// Whether the prefix is fixed, because its record may have been created.
    pub is_begun: bool,
    /// The reason in the form.
    pub typed_reason: String,
    /// Maximum length of a field.
    pub field_bytes: usize,
    view: RequestView,
    contact: [(&'static str, String); 3],
    email: String,
    email_url: Option<String>,
    note: String,
    source: String,
    site: Option<SiteView>,
    key: Option<KeyView>,
}

impl<'a> ReviewPage<'a> {
    /// The page about `request`, without notices and typed texts.
    #[must_use]
    pub fn new(frame: PageFrame<'a>, user: Option<AdminUser>, request: &RegistrationRequest) -> Self {
        let texts = frame.registration_texts();
        let site = Site::decode(&request.site).ok();
        let is_begun = matches!(request.state, RequestState::Accepting { .. });
        let mut warnings: Vec<String> =
            site.iter().flat_map(local_addresses).map(|address| fill(texts.local_address, address)).collect();
        if is_begun {
            warnings.push(fill(texts.accepting_text, request.current_prefix()));
        }
        Self {
            csrf: user.as_ref().map(|user| user.csrf.clone()).unwrap_or_default(),
            frame,
            user,
            notice: None,
            commands: Vec::new(),
            warnings,
            others: Vec::new(),
            typed_prefix: request.current_prefix().to_owned(),
            is_begun,
            typed_reason: String::new(),
            field_bytes: 0,
            view: RequestView::new(request, &frame),
            contact: [
                (texts.organization, request.details.organization.clone()),
                (texts.name, request.details.name.clone()),
                (texts.phone, request.details.phone.clone()),
            ],
            email: request.details.email.clone(),
            email_url: mail_url(&request.details.email),
            note: request.details.note.clone(),
            source: request.source.to_string(),
            site: site.map(|site| SiteView::new(&site, frame.texts())),
            key: PublicKey::decode(&request.administrator_key).ok().map(|key| KeyView::new(&key)),
        }
    }

    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        html(self)
    }
}

/// The addresses of a site that cannot be reached from the internet.
fn local_addresses(site: &Site<'_>) -> Vec<IpAddr> {
    let is_unique_local = |ip: Ipv6Addr| ip.segments()[0] & 0xfe00 == 0xfc00;
    let is_local = |ip: &IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_documentation(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || is_unique_local(ip),
    };
    site.servers.iter().map(|server| server.address.ip()).filter(is_local).collect()
}
