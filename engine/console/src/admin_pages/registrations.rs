//! Requests for prefixes: listing, accepting, refusing and deleting them.

use super::{AdminPage, AdminRequest, copyable, error, operand};
use crate::host::ConsoleHost;
use crate::pages::admin::AdminNotice;
use crate::pages::registration::{RegistrationsPage, RequestView, ReviewPage};
use crate::pages::{fill, shell_quoted};
use crate::parameters::Parameters;
use crate::registration::record::{self, AcceptOutcome, KEY_INDEX, record_name};
use crate::registration::request::{RegistrationRequest, RequestId, RequestState, is_prefix, is_same_prefix};
use crate::registration::store::{DecisionClaim, RegistrationStore};
use crate::reply::{ConsoleResponse, guard, no_page, plain, response};
use handle_client::administration::ClientIdentity;
use handle_daemon::clock::now_unix_s;
use handle_proto::ResponseCode;
use handle_proto::data::{AdminPermissions, Site};
use handle_proto::json::site_to_json;
use handle_proto::printable::is_unprintable;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use std::io;
use std::sync::Arc;

type Refusal = (StatusCode, AdminNotice);

/// What a reviewer typed into a form that is shown again.
#[derive(Debug, Default)]
struct TypedTexts {
    prefix: Option<String>,
    reason: String,
}

/// The store, if the user may see it.
fn store<'r>(request: &AdminRequest<'r, impl ConsoleHost>) -> Option<&'r Arc<RegistrationStore>> {
    let registrations = request.host.registrations().filter(|_| request.is_reviewer());
    registrations.map(|registrations| &registrations.store)
}

/// The answer to users who may not see it.
fn not_allowed(request: &AdminRequest<'_, impl ConsoleHost>) -> ConsoleResponse {
    if request.host.registrations().is_none() {
        return no_page();
    }
    let mut page = list_page(request);
    page.notice = Some(error(request.frame.registration_texts().only_reviewers));
    request.html(StatusCode::FORBIDDEN, page.html())
}

/// A page below `/admin/registration`.
pub(super) async fn show(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    page: AdminPage,
    query: &Parameters<'_>,
) -> ConsoleResponse {
    let Some(store) = store(request) else { return not_allowed(request) };
    let texts = request.frame.registration_texts();
    let done = match query.first("done") {
        Some("accepted") => Some(texts.now_accepted),
        Some("refused") => Some(texts.now_refused),
        Some("deleted") => Some(texts.now_deleted),
        _ => None,
    };
    let notice = done.map(|text| AdminNotice { text: text.to_owned(), is_error: false });
    if page == AdminPage::Registrations {
        return list(request, store, query, notice);
    }
    let found = query.first("id").and_then(RequestId::parse).and_then(|id| store.find(id));
    let Some(found) = found else { return unknown(request) };
    match page {
        AdminPage::Registration => {
            review(request, identity, &found, StatusCode::OK, notice, TypedTexts::default()).await
        }
        AdminPage::RegistrationSite => {
            let site = Site::decode(&found.site).map(|site| site_to_json(&site)).unwrap_or_default();
            let json = serde_json::to_string_pretty(&site).unwrap_or_default();
            file("application/json;charset=utf-8", "attachment; filename=\"siteinfo.json\"", json.into())
        }
        AdminPage::RegistrationKey => {
            let name = "attachment; filename=\"admin-public.bin\"";
            file("application/octet-stream", name, found.administrator_key.clone())
        }
        _ => no_page(),
    }
}

fn file(kind: &'static str, name: &'static str, bytes: Vec<u8>) -> ConsoleResponse {
    let mut file = response(StatusCode::OK, kind, bytes);
    guard(&mut file);
    file.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(name));
    file
}

fn list_page<'r>(request: &AdminRequest<'r, impl ConsoleHost>) -> RegistrationsPage<'r> {
    RegistrationsPage {
        frame: request.frame,
        user: request.user(),
        notice: None,
        commands: Vec::new(),
        count: None,
        requests: Vec::new(),
        previous: None,
        next: None,
    }
}

fn list(
    request: &AdminRequest<'_, impl ConsoleHost>,
    store: &RegistrationStore,
    query: &Parameters<'_>,
    notice: Option<AdminNotice>,
) -> ConsoleResponse {
    let all = store.all();
    let size = request.head.admin_pages.list_handles;
    let number: usize = query.first("page").and_then(|page| page.parse().ok()).unwrap_or(0);
    let mut page = list_page(request);
    page.notice = notice;
    page.count = Some(fill(request.frame.registration_texts().requests_count, all.len()));
    page.previous = number.checked_sub(1);
    page.next = number.checked_add(1).filter(|next| next.saturating_mul(size) < all.len());
    let shown = all.iter().skip(number.saturating_mul(size)).take(size);
    page.requests = shown.map(|one| RequestView::new(one, &request.frame)).collect();
    request.html(StatusCode::OK, page.html())
}

/// The answer about a request that is not there.
fn unknown(request: &AdminRequest<'_, impl ConsoleHost>) -> ConsoleResponse {
    let mut page = list_page(request);
    page.notice = Some(error(request.frame.registration_texts().unknown_request));
    request.html(StatusCode::NOT_FOUND, page.html())
}

/// The page with one request.
async fn review(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    shown: &RegistrationRequest,
    status: StatusCode,
    notice: Option<AdminNotice>,
    typed: TypedTexts,
) -> ConsoleResponse {
    let texts = request.frame.registration_texts();
    let mut page = ReviewPage::new(request.frame, request.user(), shown);
    page.field_bytes = request.head.registration.field_bytes;
    page.notice = notice;
    page.commands = commands(request, shown);
    let prefix = shown.current_prefix();
    if let Some(registrations) = request.host.registrations().filter(|_| !prefix.is_empty()) {
        let all = registrations.store.all();
        let others = all.iter().filter(|other| {
            other.id() != shown.id()
                && is_same_prefix(other.current_prefix(), prefix)
                && !matches!(other.state, RequestState::Refused { .. })
        });
        page.others = others.map(|other| RequestView::new(other, &request.frame)).collect();
    }
    if shown.state == RequestState::Pending && is_prefix(prefix) && page.notice.is_none() {
        let name = prefix.to_owned();
        let asked = super::records::ask(request, identity, move |client| record::exists(client, &name)).await;
        if asked.is_ok_and(|exists| exists) {
            page.warnings.push(fill(texts.prefix_exists, prefix));
        }
    }
    if let Some(prefix) = typed.prefix.filter(|_| !page.is_begun) {
        page.typed_prefix = prefix;
    }
    page.typed_reason = typed.reason;
    request.html(status, page.html())
}

/// The command that creates the prefix record, or shows it.
fn commands(request: &AdminRequest<'_, impl ConsoleHost>, shown: &RegistrationRequest) -> Vec<String> {
    let prefix = match shown.current_prefix() {
        "" => "PREFIX",
        prefix => prefix,
    };
    let (auth, record) = (request.hdl_auth(), record_name(prefix));
    let command = match shown.state {
        RequestState::Pending | RequestState::Accepting { .. } => format!(
            "hdl handle create {auth} {} 1:HS_SITE=@siteinfo.json {} 100:HS_ADMIN={}:{KEY_INDEX}:{record} \
             {KEY_INDEX}:HS_PUBKEY=@admin-public.bin",
            operand(&record),
            shell_quoted(&format!("2:EMAIL={}", shown.details.email)),
            "1".repeat(AdminPermissions::COUNT),
        ),
        RequestState::Accepted { .. } => format!("hdl handle get {auth} {}", operand(&record)),
        RequestState::Refused { .. } => return Vec::new(),
    };
    copyable(vec![command])
}

/// Handles a submitted form.
pub(super) async fn submit(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    form: &Parameters<'_>,
) -> ConsoleResponse {
    let Some(store) = store(request) else { return not_allowed(request) };
    let found = form.first("id").and_then(RequestId::parse).and_then(|id| store.find(id));
    let Some(found) = found else { return unknown(request) };
    let id = found.id();
    let decided = match form.first("action") {
        Some("accept") => accept(request, identity, store, id, form).await,
        Some("refuse") => refuse(request, store, id, form).await,
        Some("delete") => delete(request, store, id, form).await,
        _ => return plain(StatusCode::BAD_REQUEST, "the form is not whole\n"),
    };
    match decided {
        Ok(path) => request.see_other(&path),
        Err((status, notice)) => {
            let prefix = form.first("prefix").map(str::to_owned);
            let reason = form.first("reason").unwrap_or_default().to_owned();
            let shown = store.find(id).unwrap_or(found);
            review(request, identity, &shown, status, Some(notice), TypedTexts { prefix, reason }).await
        }
    }
}

/// Claims the decision about a request.
fn claim(
    request: &AdminRequest<'_, impl ConsoleHost>,
    store: &Arc<RegistrationStore>,
    id: RequestId,
) -> Result<DecisionClaim, Refusal> {
    store.claim(id).ok_or_else(|| decided_already(request))
}

fn decided_already(request: &AdminRequest<'_, impl ConsoleHost>) -> Refusal {
    (StatusCode::CONFLICT, error(request.frame.registration_texts().being_decided))
}

/// The refusal when a file cannot be written.
fn not_stored(request: &AdminRequest<'_, impl ConsoleHost>, failure: &io::Error) -> Refusal {
    tracing::error!(error = %failure, "cannot store a decision about a request for a prefix");
    (StatusCode::SERVICE_UNAVAILABLE, error(request.frame.registration_texts().not_stored))
}

async fn accept(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    store: &Arc<RegistrationStore>,
    id: RequestId,
    form: &Parameters<'_>,
) -> Result<String, Refusal> {
    let texts = request.frame.registration_texts();
    let prefix = form.first("prefix").unwrap_or_default().trim().to_owned();
    if !is_prefix(&prefix) {
        return Err((StatusCode::BAD_REQUEST, error(texts.bad_prefix)));
    }
    let claim = claim(request, store, id)?;
    let (by, name) = (request.identity_name().unwrap_or_default(), prefix.clone());
    let accepted =
        super::records::ask(request, identity, move |client| record::accept(client, &claim, &name, &by));
    match accepted.await {
        Ok(AcceptOutcome::Accepted { prefix, position }) => {
            let record = record_name(&prefix);
            request.host.until_visible(request.head.address, record.as_bytes(), position).await;
            Ok(format!("admin/registration?id={id}&done=accepted"))
        }
        Ok(AcceptOutcome::PrefixExists) => {
            Err((StatusCode::CONFLICT, error(&fill(texts.prefix_exists, &prefix))))
        }
        Ok(AcceptOutcome::Refused(ResponseCode::SERVER_NOT_RESPONSIBLE, _)) => {
            Err((StatusCode::BAD_REQUEST, error(texts.not_kept)))
        }
        Ok(AcceptOutcome::Refused(code, text)) => Err(request.refusal(code, &text)),
        Ok(AcceptOutcome::Decided) => Err(decided_already(request)),
        Ok(AcceptOutcome::File(failure)) => Err(not_stored(request, &failure)),
        Err(failure) => Err(request.unanswered(failure)),
    }
}

/// Claims a request whose state is open for the decision, and writes the decision of this reviewer.
/// As `write` waits for a disk, it runs on a thread that may.
async fn decide(
    request: &AdminRequest<'_, impl ConsoleHost>,
    store: &Arc<RegistrationStore>,
    id: RequestId,
    is_open: impl FnOnce(&RequestState) -> bool,
    write: impl FnOnce(&DecisionClaim, String) -> io::Result<()> + Send + 'static,
) -> Result<(), Refusal> {
    let claim = claim(request, store, id)?;
    if !claim.request().is_some_and(|request| is_open(&request.state)) {
        return Err(decided_already(request));
    }
    let busy = || (StatusCode::SERVICE_UNAVAILABLE, error(request.texts().unreachable));
    let by = request.identity_name().unwrap_or_default();
    let written = request.host.run(request.head.address, move || write(&claim, by)).await;
    written.map_err(|_| busy())?.map_err(|failure| not_stored(request, &failure))
}

async fn refuse(
    request: &AdminRequest<'_, impl ConsoleHost>,
    store: &Arc<RegistrationStore>,
    id: RequestId,
    form: &Parameters<'_>,
) -> Result<String, Refusal> {
    let texts = request.frame.registration_texts();
    let reason = form.first("reason").unwrap_or_default().trim().replace("\r\n", "\n");
    if reason.is_empty() {
        return Err((StatusCode::BAD_REQUEST, error(texts.needs_reason)));
    }
    if reason.len() > request.head.registration.field_bytes {
        return Err((StatusCode::BAD_REQUEST, error(&fill(texts.too_long, texts.reason))));
    }
    if reason.contains(|c| is_unprintable(c) && c != '\n') {
        return Err((StatusCode::BAD_REQUEST, error(&fill(texts.bad_characters, texts.reason))));
    }
    let is_open = |state: &RequestState| *state == RequestState::Pending;
    let unix_s = u64::from(now_unix_s());
    let set = move |claim: &DecisionClaim, by| claim.set(RequestState::Refused { reason, by, unix_s });
    decide(request, store, id, is_open, set).await?;
    Ok(format!("admin/registration?id={id}&done=refused"))
}

async fn delete(
    request: &AdminRequest<'_, impl ConsoleHost>,
    store: &Arc<RegistrationStore>,
    id: RequestId,
    form: &Parameters<'_>,
) -> Result<String, Refusal> {
    if !form.flag("confirmed").unwrap_or_default() {
        return Err((StatusCode::BAD_REQUEST, error(request.frame.registration_texts().not_confirmed)));
    }
    // Whether a prefix that is being created exists would no longer be known.
    let is_open = |state: &RequestState| !matches!(state, RequestState::Accepting { .. });
    decide(request, store, id, is_open, |claim: &DecisionClaim, by| claim.delete(&by)).await?;
    Ok("admin/registrations?done=deleted".to_owned())
}
