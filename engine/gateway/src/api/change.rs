//! Changing records: `PUT` and `DELETE` on `/api/handles/{handle}`.
//!
//! `handle-admin` decides and carries out; this module translates both ways.

use crate::api::body::ApiBody;
use crate::api::caller::Caller;
use crate::api::json_input::{self, BodyValues, ValuesError, parse_beside};
use crate::api::proof::{self, ProvenCaller, needs_proof};
use crate::api::request::{
    ApiRefusal, ApiRequest, NO_ADMIN, admin_refusal, challenge, reason, respond, status_of, unauthorized,
    unsupported,
};
use crate::body_collection::read_body;
use crate::conditions;
use crate::connections::request_body::RequestBody;
use crate::reply::GatewayResponse;
use crate::state::GatewayState;
use crate::target;
use handle_client::administration::record_change::{
    ALLOW_ORPHANS, ChangeKind, ChangeOutcome, RecordChange, carry_out,
};
use handle_daemon::permits::SourcePermit;
use handle_proto::limit::{HANDLE_LEN_MAX, VALUES_COUNT_MAX};
use handle_proto::{ResponseCode, ValueBuf};
use hyper::header;
use hyper::{Method, StatusCode};
use std::collections::BTreeSet;

/// Carries out a `PUT` or `DELETE`.
pub async fn change(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    handle: &str,
    body: RequestBody,
) -> GatewayResponse {
    let name = match target::decode(handle) {
        Ok(name) => name,
        Err(error) => {
            return ApiRefusal::bad(ResponseCode::INVALID_HANDLE, error.message())
                .respond(state, request, None);
        }
    };
    let identity = match Caller::of(state, request).await {
        Caller::Anonymous => return challenge(state, request, Some(&name)),
        Caller::Refused(response) => return response,
        Caller::Identity(identity) => identity,
    };
    // Only a PUT has its body read.
    let is_long = *request.head.method == Method::PUT && needs_proof(&body);
    let proven = match is_long {
        true => match proof::prove(state, request, identity).await {
            Ok(proven) => proven,
            Err(refusal) => return refusal,
        },
        false => ProvenCaller::of(state, identity),
    };
    let identity = proven.identity();
    let (change, reservation) = match read_change(state, request, &name, body).await {
        Ok(read) => read,
        Err(refusal) => return refusal.respond(state, request, Some(&name)),
    };
    let Some(admin) = &state.writing.admin else { return unsupported(state, request, NO_ADMIN) };
    let deletes = *request.head.method == Method::DELETE;
    let changed = admin.ask(request.peer.address, Some(identity), move |client| {
        let _reservation = reservation;
        carry_out(client, &change)
    });
    match changed.await {
        Ok(outcome) => {
            let handle = outcome.minted.as_deref().unwrap_or(name.as_bytes());
            if outcome.code == ResponseCode::SUCCESS {
                state.until_visible(request.peer.address, [handle], outcome.position).await;
            }
            show(state, request, &name, &outcome, deletes)
        }
        Err(error) => admin_refusal(state, request, &error, Some(&name)),
    }
}

fn show(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    name: &str,
    outcome: &ChangeOutcome,
    deletes: bool,
) -> GatewayResponse {
    let minted = outcome.minted.as_ref().map(|minted| String::from_utf8_lossy(minted));
    let name = minted.as_deref().unwrap_or(name);
    let status = match outcome.code {
        ResponseCode::SUCCESS if deletes || outcome.has_replaced => StatusCode::OK,
        ResponseCode::SUCCESS => StatusCode::CREATED,
        // The service says so of an identity that it does not know, or whose proof is wrong.
        code @ ResponseCode(403..=406) => {
            return unauthorized(state, request, code, &outcome.text, Some(name));
        }
        code => status_of(code, false),
    };
    let message = match outcome.code {
        ResponseCode::SERVER_NOT_RESPONSIBLE => Some("That prefix doesn't live here"),
        ResponseCode::HANDLE_NOT_FOUND | ResponseCode::HANDLE_ALREADY_EXISTS | ResponseCode(500..) => None,
        _ => reason(&outcome.text),
    };
    respond(state, request, status, ApiBody::failure(outcome.code, message, Some(name)))
}

/// Reads what is to be changed, from parameters and body, and the reservation of the body.
async fn read_change(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    name: &str,
    body: RequestBody,
) -> Result<(RecordChange, Option<SourcePermit>), ApiRefusal> {
    let bad = |message: &str| ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, message);
    if name.len() > HANDLE_LEN_MAX {
        let message = format!("A handle has at most {HANDLE_LEN_MAX} bytes");
        return Err(ApiRefusal::bad(ResponseCode::INVALID_HANDLE, &message));
    }
    if !name.contains('/') {
        return Err(ApiRefusal::bad(ResponseCode::INVALID_HANDLE, "A handle has a slash behind its prefix"));
    }
    let parameters = &request.parameters;
    let index_texts: Vec<&str> = parameters.all("index").collect();
    let is_various = index_texts == ["various"];
    let number = |text: &&str| {
        text.parse::<i32>().map_err(|_| bad(&format!("Invalid index: {text:?} is not a number")))
    };
    let deletes = *request.head.method == Method::DELETE;
    let indexes = match is_various && !deletes {
        true => Vec::new(),
        false => index_texts.iter().map(number).collect::<Result<Vec<_>, _>>()?,
    };
    let (handle, overwrites) = (name.as_bytes().to_vec(), parameters.flag("overwrite").unwrap_or(true));
    let mut guard = conditions::guard_of(request.head.headers).map_err(|error| bad(&error.to_string()))?;
    if deletes {
        let kind =
            if index_texts.is_empty() { ChangeKind::Delete } else { ChangeKind::DeleteValues(indexes) };
        return Ok((RecordChange { handle, kind, overwrites, guard }, None));
    }
    let media = request.head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = media.and_then(|media| media.split(';').next());
    if !is_json.is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json")) {
        return Err(bad("Unsupported media type: send application/json"));
    }
    let (body, reservation) =
        read_body(state, request.peer.address, body, usize::MAX).await.map_err(|status| {
            ApiRefusal::new(
                status,
                ResponseCode::PROTOCOL_ERROR,
                "The body is too long, or did not arrive in time",
            )
        })?;
    let own_name = name.to_owned();
    let read = parse_beside(body.len(), move || read_values(&body, &own_name)).await;
    let values = read.unwrap_or_else(|| Err(ApiRefusal::bug()))?;
    let found: BTreeSet<i32> = values.iter().map(|value| value.view().index).collect();
    if found.iter().any(|&index| index <= 0) {
        return Err(ApiRefusal::bad(ResponseCode::INVALID_VALUE, "Value indexes must be positive"));
    }
    if found.len() < values.len() {
        let message = "An index stands twice in the body";
        return Err(ApiRefusal::new(StatusCode::CONFLICT, ResponseCode::VALUE_ALREADY_EXISTS, message));
    }
    if !is_various && !index_texts.is_empty() && found != indexes.into_iter().collect() {
        return Err(bad("The indexes in the query are not those in the body"));
    }
    let mints = parameters.flag("mintNewSuffix").unwrap_or_default();
    let kind = if index_texts.is_empty() {
        guard.keeps_admins = !parameters.flag(ALLOW_ORPHANS).unwrap_or_default();
        ChangeKind::Put { values, mints }
    } else {
        ChangeKind::PutValues(values)
    };
    Ok((RecordChange { handle, kind, overwrites, guard }, Some(reservation)))
}

/// The values in the body of a PUT for the handle `name`; `None` if the body is refused.
#[must_use]
pub fn values_of_body(body: &[u8], name: &str) -> Option<Vec<ValueBuf>> {
    read_values(body, name).ok()
}

/// Reads values: an array, an object with `values`, or one value.
fn read_values(body: &[u8], name: &str) -> Result<Vec<ValueBuf>, ApiRefusal> {
    let BodyValues { values, handle } = json_input::read_values(body)?;
    if handle.is_some_and(|handle| handle != name) {
        let message = "The handle in the body is not that of the path";
        return Err(ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, message));
    }
    Ok(values)
}

impl From<ValuesError> for ApiRefusal {
    fn from(error: ValuesError) -> Self {
        match error {
            ValuesError::TooMany => {
                let message = format!("A record has at most {VALUES_COUNT_MAX} values");
                Self::bad(ResponseCode::INVALID_VALUE, &message)
            }
            ValuesError::Malformed(message) => Self::bad(ResponseCode::PROTOCOL_ERROR, &message),
        }
    }
}
