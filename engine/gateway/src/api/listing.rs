//! Listing: the handles of a prefix, and the prefixes of the service.

use crate::api::body::ApiBody;
use crate::api::caller::Caller;
use crate::api::{ApiRefusal, ApiRequest, NO_ADMIN, admin_refusal, challenge, respond, status_of};
use crate::reply::GatewayResponse;
use crate::server::GatewayState;
use handle_client::administration::{Administrator, AskError};
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::name::{BLANK, PREFIX_RECORDS};
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode};
use hyper::{Method, StatusCode};
use serde_json::{Map, Value};
use std::ops::ControlFlow;

/// Maximum number of names that one request collects.
const NAMES_MAX: usize = 1 << 20;

/// The names of a listing, and the code that ended it.
struct CollectedNames {
    code: ResponseCode,
    names: Vec<Vec<u8>>,
}

/// Lists the handles of a prefix.
pub async fn handles(state: &GatewayState, request: &ApiRequest<'_>, prefix: &str) -> GatewayResponse {
    let paging = match paging(request) {
        Ok(paging) => paging,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    if prefix.is_empty() || prefix.ends_with('/') {
        let refusal = ApiRefusal::bad(ResponseCode::SERVER_NOT_RESPONSIBLE, "That prefix doesn't live here");
        return refusal.respond(state, request, None);
    }
    let record = match prefix.as_bytes().strip_prefix(PREFIX_RECORDS) {
        Some(_) => prefix.as_bytes().to_vec(),
        None => [PREFIX_RECORDS, prefix.as_bytes()].concat(),
    };
    let list = move |client: &mut Administrator| {
        collect(client, &Request::ListHandles(HandleBody { handle: &record }))
    };
    let names = match ask(state, request, Some(prefix), list).await {
        Ok(names) => names,
        Err(response) => return response,
    };
    let mut body = Map::new();
    body.insert("responseCode".to_owned(), ResponseCode::SUCCESS.0.into());
    body.insert("prefix".to_owned(), prefix.into());
    insert_page(&mut body, "handles", names, paging);
    respond(state, request, StatusCode::OK, ApiBody::of(&Value::Object(body)))
}

/// Lists the homed prefixes.
pub async fn prefixes(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let list =
        |client: &mut Administrator| collect(client, &Request::ListHomedNas(HandleBody { handle: BLANK }));
    let paging = match paging(request) {
        Ok(paging) => paging,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    match ask(state, request, None, list).await {
        Ok(names) => {
            let mut body = Map::new();
            body.insert("responseCode".to_owned(), ResponseCode::SUCCESS.0.into());
            insert_page(&mut body, "prefixes", names, paging);
            respond(state, request, StatusCode::OK, ApiBody::of(&Value::Object(body)))
        }
        Err(response) => response,
    }
}

/// Adds the count of all names, and the names of the page.
fn insert_page(
    body: &mut Map<String, Value>,
    member: &str,
    names: Vec<String>,
    paging: Option<(usize, usize)>,
) {
    body.insert("totalCount".to_owned(), names.len().to_string().into());
    let shown = match paging {
        Some((page, size)) => {
            body.insert("page".to_owned(), page.into());
            body.insert("pageSize".to_owned(), size.into());
            names.into_iter().skip(page.saturating_mul(size)).take(size).collect()
        }
        None => names,
    };
    body.insert(member.to_owned(), shown.into());
}

/// Homes a prefix, or ends that with `DELETE`.
pub async fn home(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let refuse = |code, message: &str, about| ApiRefusal::bad(code, message).respond(state, request, about);
    let Some(prefix) = request.parameters.first("prefix") else {
        let message = "Prefix not specified in homing request";
        return refuse(ResponseCode::PROTOCOL_ERROR, message, None);
    };
    let identity = match Caller::of(state, request).await {
        Caller::Anonymous => return challenge(state, request, Some(prefix)),
        Caller::Refused(response) => return response,
        Caller::Identity(identity) => identity,
    };
    if !prefix.as_bytes().starts_with(PREFIX_RECORDS) || prefix.len() > HANDLE_LEN_MAX {
        return refuse(ResponseCode::INVALID_HANDLE, "Handle is not a prefix handle", Some(prefix));
    }
    let Some(admin) = &state.admin else { return super::unsupported(state, request, NO_ADMIN) };
    let (handle, ends) = (prefix.as_bytes().to_vec(), *request.head.method == Method::DELETE);
    let change = move |client: &mut Administrator| {
        let body = HandleBody { handle: &handle };
        let homing = if ends { Request::UnhomeNa(body) } else { Request::HomeNa(body) };
        let answer = client.ask(&homing, OpFlags::PLAIN_REQUEST.with(OpFlags::SHOW_TRANSACTION))?;
        let position = match answer.reply().response {
            Response::Changed(change) => Some(change.position),
            _ => None,
        };
        Ok((answer.code(), position))
    };
    match admin.ask(request.peer.address, Some(identity), change).await {
        Ok((ResponseCode(403..=406), _)) => super::unauthorized(),
        Ok((code, position)) => {
            if code == ResponseCode::SUCCESS {
                state.until_visible(request.peer.address, [prefix.as_bytes()], position).await;
            }
            respond(state, request, status_of(code, false), ApiBody::failure(code, None, Some(prefix)))
        }
        Err(error) => admin_refusal(state, request, &error, Some(prefix)),
    }
}

/// The page and its size, if both are given and neither is negative.
fn paging(request: &ApiRequest<'_>) -> Result<Option<(usize, usize)>, ApiRefusal> {
    let number = |name: &str| match request.parameters.first(name) {
        None => Ok(None),
        Some(text) => text.parse::<i64>().map(Some).map_err(|_| {
            ApiRefusal::bad(
                ResponseCode::PROTOCOL_ERROR,
                &format!("Invalid {name}: {text:?} is not a number"),
            )
        }),
    };
    let (page, size) = (number("page")?, number("pageSize")?);
    let both = page
        .zip(size)
        .and_then(|(page, size)| Some((usize::try_from(page).ok()?, usize::try_from(size).ok()?)));
    Ok(both)
}

/// Asks the service for names as the caller, in ascending order.
async fn ask(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    about: Option<&str>,
    list: impl FnOnce(&mut Administrator) -> Result<CollectedNames, AskError> + Send + 'static,
) -> Result<Vec<String>, GatewayResponse> {
    let identity = match Caller::of(state, request).await {
        Caller::Anonymous => return Err(challenge(state, request, about)),
        Caller::Refused(response) => return Err(response),
        Caller::Identity(identity) => identity,
    };
    let Some(admin) = &state.admin else { return Err(super::unsupported(state, request, NO_ADMIN)) };
    let collected = admin.ask(request.peer.address, Some(identity), list).await;
    let CollectedNames { code, mut names } =
        collected.map_err(|error| admin_refusal(state, request, &error, about))?;
    match code {
        ResponseCode::SUCCESS => {
            names.sort_unstable();
            Ok(names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
        }
        ResponseCode(403..=406) => Err(super::unauthorized()),
        code => {
            let is_remote = code == ResponseCode::SERVER_NOT_RESPONSIBLE;
            let message = is_remote.then_some("That prefix doesn't live here");
            Err(respond(state, request, status_of(code, false), ApiBody::failure(code, message, about)))
        }
    }
}

/// The names of the handles whose prefix has the record `record`, in ascending order, and the code of
/// the answer.
pub(crate) fn of_prefix(
    client: &mut Administrator,
    record: &[u8],
) -> Result<(ResponseCode, Vec<String>), AskError> {
    let CollectedNames { code, mut names } =
        collect(client, &Request::ListHandles(HandleBody { handle: record }))?;
    names.sort_unstable();
    Ok((code, names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()))
}

fn collect(client: &mut Administrator, request: &Request<'_>) -> Result<CollectedNames, AskError> {
    let mut names = Vec::new();
    let answer = client.list(request, |name| {
        names.push(name.to_vec());
        if names.len() < NAMES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(CollectedNames { code: answer.code(), names })
}
