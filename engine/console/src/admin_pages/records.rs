//! Records: listing, creating, changing, copying and deleting them.

use super::form::{self, ValueChanges};
use super::{AdminRequest, copyable, encoded, error, operand};
use crate::host::{ConsoleHost, ServiceFailure};
use crate::pages::admin::{AdminNotice, EditPage, ListPage, ListedHandle, ValueRow};
use crate::pages::shell_quoted;
use crate::parameters::Parameters;
use crate::reply::{ConsoleResponse, plain};
use handle_client::administration::record_change::{
    ALLOW_ORPHANS, ChangeKind, ChangeOutcome, RecordChange, carry_out,
};
use handle_client::administration::{Administrator, AskError, ClientIdentity};
use handle_proto::json::value_to_json;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::printable::Printable;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode, ValueBuf};
use hyper::StatusCode;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A record, with the values that the caller may read.
struct ShownRecord {
    code: ResponseCode,
    text: String,
    values: Vec<ValueBuf>,
}

/// Asks for all values of a record that the caller may read.
fn read(client: &mut Administrator, handle: &[u8]) -> Result<ShownRecord, AskError> {
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    // No PUBLIC_ONLY flag: restricted values are requested too.
    let answer = client.ask(&Request::Resolution(query), OpFlags::PLAIN_REQUEST)?;
    let values = match answer.reply().response {
        Response::Answer(found) => found.values.iter().map(|value| ValueBuf::from(&value)).collect(),
        _ => Vec::new(),
    };
    let code = match answer.code() {
        ResponseCode::VALUES_NOT_FOUND => ResponseCode::SUCCESS,
        code => code,
    };
    Ok(ShownRecord { code, text: answer.text(), values })
}

/// Asks the service as the signed-in user.
pub(super) async fn ask<T: Send + 'static>(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    work: impl FnOnce(&mut Administrator) -> Result<T, AskError> + Send + 'static,
) -> Result<T, ServiceFailure> {
    request.host.ask(request.head.address, identity, work).await
}

/// Sends a change to the service, and waits until readers see it.
pub(super) async fn apply(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    change: RecordChange,
) -> Result<ChangeOutcome, ServiceFailure> {
    let handle = change.handle.clone();
    let outcome = ask(request, identity, move |client| carry_out(client, &change)).await?;
    if outcome.code == ResponseCode::SUCCESS {
        request.host.until_visible(request.head.address, &handle, outcome.position).await;
    }
    Ok(outcome)
}

/// The page with the search form and its results.
pub(super) async fn list(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    query: &Parameters<'_>,
) -> ConsoleResponse {
    let deleted = query.first("deleted").map(|handle| AdminNotice {
        text: request.texts().deleted.replacen("{}", &Printable(handle).to_string(), 1),
        is_error: false,
    });
    let prefix = query.first("prefix").unwrap_or_default().trim().to_owned();
    let mut page = ListPage {
        frame: request.frame,
        user: request.user(),
        notice: deleted,
        commands: Vec::new(),
        prefix_encoded: encoded(&prefix),
        prefix,
        count: None,
        handles: Vec::new(),
        previous: None,
        next: None,
    };
    if page.prefix.is_empty() {
        return request.html(StatusCode::OK, page.html());
    }
    let authority = match page.prefix.split_once('/') {
        Some((authority, _)) => authority,
        None => &page.prefix,
    };
    let record = [PREFIX_RECORDS, authority.as_bytes()].concat();
    page.commands = copyable(vec![
        format!("hdl handle list {} {}", request.hdl_auth(), operand(authority)),
        format!(
            "curl {} {}",
            request.curl_auth(),
            shell_quoted(&format!("{}api/handles?prefix={}", request.frame.base, encoded(authority)))
        ),
    ]);
    let (code, mut names) = match request.host.list(request.head.address, identity, record).await {
        Ok(found) => found,
        Err(failure) => {
            let (status, notice) = request.unanswered(failure);
            page.notice = Some(notice);
            return request.html(status, page.html());
        }
    };
    if code != ResponseCode::SUCCESS {
        let (status, notice) = request.refusal(code, "");
        page.notice = Some(notice);
        return request.html(status, page.html());
    }
    let name_start = page.prefix.to_lowercase();
    names.retain(|name| !name_start.contains('/') || name.to_lowercase().starts_with(&name_start));
    let size = request.head.admin_pages.list_handles;
    let number: usize = query.first("page").and_then(|page| page.parse().ok()).unwrap_or(0);
    page.count = Some(request.texts().found_count.replacen("{}", &names.len().to_string(), 1));
    page.previous = number.checked_sub(1);
    page.next = number.checked_add(1).filter(|next| next.saturating_mul(size) < names.len());
    let shown = names.iter().skip(number.saturating_mul(size)).take(size);
    page.handles = shown
        .map(|name| ListedHandle { text: Printable(name).to_string(), encoded: encoded(name) })
        .collect();
    request.html(StatusCode::OK, page.html())
}

/// The form for a record.
fn edit_page<'r>(
    request: &AdminRequest<'r, impl ConsoleHost>,
    handle: &str,
    rows: Vec<ValueRow>,
    is_new: bool,
) -> EditPage<'r> {
    let commands = if is_new || handle.is_empty() {
        Vec::new()
    } else {
        copyable(vec![
            format!(
                "hdl handle update {} {} 1:URL=https://example.org/",
                request.hdl_auth(),
                operand(handle)
            ),
            format!("hdl handle delete {} {}", request.hdl_auth(), operand(handle)),
            format!(
                "curl {} -X PUT -H 'Content-Type: application/json' -d @record.json {}",
                request.curl_auth(),
                request.api_url(handle, "")
            ),
            format!("curl {} -X DELETE {}", request.curl_auth(), request.api_url(handle, "")),
        ])
    };
    EditPage {
        frame: request.frame,
        user: request.user(),
        notice: None,
        commands,
        csrf: request.csrf(),
        is_new,
        shown_handle: Printable(handle).to_string(),
        encoded: encoded(handle),
        handle: handle.to_owned(),
        rows,
    }
}

/// The form for a new record.
pub(super) fn new(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &ClientIdentity,
    query: &Parameters<'_>,
) -> ConsoleResponse {
    let handle = query.first("handle").unwrap_or_default();
    let mut row = form::empty_row(&[], request.texts());
    row.kind = "URL".to_owned();
    let mut page = edit_page(request, handle, vec![row, form::owner_row(identity, request.texts())], true);
    page.commands = copyable(vec![
        format!("hdl handle create {} 20.500.12345/new 1:URL=https://example.org/", request.hdl_auth()),
        format!(
            "curl {} -X PUT -H 'Content-Type: application/json' -d @record.json {}",
            request.curl_auth(),
            request.api_url("20.500.12345/new", "?overwrite=false")
        ),
    ]);
    request.html(StatusCode::OK, page.html())
}

/// The form with the values of a record, or with a copy of them.
pub(super) async fn edit(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    query: &Parameters<'_>,
) -> ConsoleResponse {
    let handle = query.first("handle").unwrap_or_default().trim().to_owned();
    let is_copy = query.flag("clone").unwrap_or_default();
    let done = match query.first("done") {
        Some("saved") => Some(request.texts().saved),
        Some("created") => Some(request.texts().created),
        _ => None,
    };
    let notice = done.map(|text| AdminNotice { text: text.to_owned(), is_error: false });
    show(request, identity, &handle, is_copy, StatusCode::OK, notice).await
}

async fn show(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    handle: &str,
    is_copy: bool,
    status: StatusCode,
    notice: Option<AdminNotice>,
) -> ConsoleResponse {
    let name = handle.as_bytes().to_vec();
    let (status, notice, values) = match ask(request, identity, move |client| read(client, &name)).await {
        Ok(ShownRecord { code: ResponseCode::SUCCESS, values, .. }) => (status, notice, values),
        Ok(ShownRecord { code, text, .. }) => {
            let (status, notice) = request.refusal(code, &text);
            (status, Some(notice), Vec::new())
        }
        Err(failure) => {
            let (status, notice) = request.unanswered(failure);
            (status, Some(notice), Vec::new())
        }
    };
    let rows = values.iter().map(|value| form::row(&value.view(), request.texts(), is_copy)).collect();
    let mut page = edit_page(request, handle, rows, is_copy);
    page.notice = notice;
    request.html(status, page.html())
}

/// Handles a submitted form.
pub(super) async fn submit(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    fields: &Parameters<'_>,
) -> ConsoleResponse {
    let handle = fields.first("handle").unwrap_or_default().trim().to_owned();
    if fields.first("action") == Some("delete") {
        return delete(request, identity, handle, fields).await;
    }
    let is_new = fields.flag("new").unwrap_or_default();
    let Some(mut rows) = form::rows_of(fields, request.texts()) else {
        return plain(StatusCode::BAD_REQUEST, "the form is not whole, or has too many values\n");
    };
    if fields.first("action") == Some("more") {
        let row = form::empty_row(&rows, request.texts());
        rows.push(row);
        return request.html(StatusCode::OK, edit_page(request, &handle, rows, is_new).html());
    }
    let removed: BTreeSet<&str> = fields.all("remove").collect();
    let saved = match is_new {
        true => create(request, identity, &handle, &rows).await,
        false => {
            let allows_orphans = fields.flag(ALLOW_ORPHANS).unwrap_or_default();
            save(request, identity, &handle, &rows, &removed, allows_orphans).await
        }
    };
    match saved {
        Ok(()) => {
            let done = if is_new { "created" } else { "saved" };
            request.see_other(&format!("admin/record?handle={}&done={done}", encoded(&handle)))
        }
        Err((status, notice)) => {
            let mut page = edit_page(request, &handle, rows, is_new);
            page.notice = Some(notice);
            request.html(status, page.html())
        }
    }
}

type Refusal = (StatusCode, AdminNotice);

async fn create(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    handle: &str,
    rows: &[ValueRow],
) -> Result<(), Refusal> {
    let changes = form::changes(rows, &BTreeSet::new(), &Default::default());
    let ValueChanges { put, .. } = changes.map_err(|why| (StatusCode::BAD_REQUEST, error(&why)))?;
    let kind = ChangeKind::Put { values: put, mints: false };
    apply_or_refuse(request, identity, RecordChange::new(handle.as_bytes(), kind, false)).await
}

/// Adds or replaces values, and then removes others. Values that the caller may not read stay.
async fn save(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    handle: &str,
    rows: &[ValueRow],
    removed: &BTreeSet<&str>,
    allows_orphans: bool,
) -> Result<(), Refusal> {
    let name = handle.as_bytes().to_vec();
    let stored = ask(request, identity, move |client| read(client, &name)).await;
    let stored = stored.map_err(|failure| request.unanswered(failure))?;
    if stored.code != ResponseCode::SUCCESS {
        return Err(request.refusal(stored.code, &stored.text));
    }
    let stored_json =
        stored.values.iter().map(|value| (value.view().index, value_to_json(&value.view()))).collect();
    let changes = form::changes(rows, removed, &stored_json);
    let ValueChanges { put, removed } = changes.map_err(|why| (StatusCode::BAD_REQUEST, error(&why)))?;
    if !put.is_empty() {
        let kind = ChangeKind::PutValues(put);
        let change = RecordChange::by_hand(handle.as_bytes(), kind, true, allows_orphans);
        apply_or_refuse(request, identity, change).await?;
    }
    if !removed.is_empty() {
        let kind = ChangeKind::DeleteValues(removed);
        let change = RecordChange::by_hand(handle.as_bytes(), kind, true, allows_orphans);
        apply_or_refuse(request, identity, change).await?;
    }
    Ok(())
}

async fn apply_or_refuse(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    change: RecordChange,
) -> Result<(), Refusal> {
    match apply(request, identity, change).await {
        Ok(ChangeOutcome { code: ResponseCode::SUCCESS, .. }) => Ok(()),
        Ok(outcome) => Err(request.refusal(outcome.code, &outcome.text)),
        Err(failure) => Err(request.unanswered(failure)),
    }
}

async fn delete(
    request: &AdminRequest<'_, impl ConsoleHost>,
    identity: &Arc<ClientIdentity>,
    handle: String,
    fields: &Parameters<'_>,
) -> ConsoleResponse {
    if !fields.flag("confirmed").unwrap_or_default() {
        let notice = Some(error(request.texts().not_confirmed));
        return show(request, identity, &handle, false, StatusCode::BAD_REQUEST, notice).await;
    }
    let change = RecordChange::new(handle.as_bytes(), ChangeKind::Delete, true);
    match apply_or_refuse(request, identity, change).await {
        Ok(()) => {
            let (authority, _) = handle.split_once('/').unwrap_or((&handle, ""));
            let (prefix, deleted) = (encoded(authority), encoded(&handle));
            request.see_other(&format!("admin/?prefix={prefix}&deleted={deleted}"))
        }
        Err((status, notice)) => show(request, identity, &handle, false, status, Some(notice)).await,
    }
}
