//! Searches for handles by the public values of their records: `/hrls`, as pyhandle and B2SAFE ask
//! the reverse lookup of EUDAT.
//!
//! Parameters are types with the values that a record must have, in which `*` stands for any
//! characters. `handle-admin` finds, among the handles that the caller may list; this module cuts
//! what it finds into pages, and adds the records if they are asked for.

use crate::administration::{AdministrationService, ServiceError};
use crate::api::body::ApiBody;
use crate::api::caller::Caller;
use crate::api::guarded::guarded;
use crate::api::request::{ApiRefusal, ApiRequest, NO_ADMIN, admin_refusal, challenge, respond, unsupported};
use crate::bulk::{self, BulkError};
use crate::refusal::refuse_method;
use crate::reply::{GatewayResponse, plain};
use crate::route::Route;
use crate::state::GatewayState;
use crate::target;
use handle_client::administration::Administrator;
use handle_local::bulk::BulkSearch;
use handle_local::connection::LocalConnection;
use handle_local::kind::LocalKind;
use handle_proto::json::data_to_json;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode};
use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Handles of a page if `limit` is not given.
const LIMIT_DEFAULT: usize = 1000;
/// Maximum number of handles up to the end of a page.
const FOUND_MAX: usize = 100_000;
/// Maximum number of questions to `handle-admin` for one page. Each looks at up to
/// 10,000 values.
const QUESTIONS_MAX: usize = 200;
/// Maximum number of handles of a page with records.
const RECORDS_MAX: usize = 1000;
/// Maximum length of the records of a page, as JSON.
const RECORDS_LEN_MAX: usize = 16 << 20;
/// Bytes of a handle in a page, about. What handles of a page really take is looked at as they
/// arrive.
const HANDLE_LEN: usize = 32;
/// Parameters that are not types.
const OWN_PARAMETERS: [&str; 6] = ["limit", "page", "prefix", "pretty", "callback", "retrieverecords"];
/// The message where searches are switched off.
const OFF: &str = "This gateway does not search for handles (`admin.search`)";

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct PageSearch {
    conditions: Vec<(String, String)>,
    prefix: String,
    skip: usize,
    limit: usize,
    /// Whether the records are asked for.
    has_records: bool,
}

/// Why there is no page.
#[derive(Debug)]
enum SearchFailure {
    Bulk(BulkError),
    /// There is too much to look at.
    TooMuch,
    /// The records are too long.
    TooLong,
    /// The source leaves too many bytes of other answers unread.
    NoCapacity,
    /// The records could not be read.
    Records(ServiceError),
}

/// Answers a search.
pub async fn answer(state: &Arc<GatewayState>, request: &ApiRequest<'_>) -> GatewayResponse {
    guarded(state, request, async {
        match *request.head.method {
            Method::GET | Method::HEAD if !state.settings.current().admin.search => {
                unsupported(state, request, OFF)
            }
            Method::GET | Method::HEAD => search(state, request).await,
            _ => refuse_method(request.route, request.head.method),
        }
    })
    .await
}

async fn search(state: &Arc<GatewayState>, request: &ApiRequest<'_>) -> GatewayResponse {
    let is_ping = request.route == Route::SearchPing;
    let search = match parse(request) {
        Ok(search) => search,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    let identity = match Caller::of(state, request).await {
        Caller::Anonymous => None,
        Caller::Refused(response) => return response,
        Caller::Identity(identity) => Some(identity),
    };
    let Some((admin, socket)) = state.writing.admin.as_ref().and_then(|admin| Some((admin, admin.socket()?)))
    else {
        return unsupported(state, request, NO_ADMIN);
    };
    let source = request.peer.address;
    if !state.has_capacity_for(source, search.limit * HANDLE_LEN) {
        return refuse_unread(state, request);
    }
    let fits = |len| state.has_capacity_for(source, len);
    let Some(permit) = admin.permit(source) else {
        return super::batch::refuse(state, request, BulkError::busy());
    };
    let is_anonymous = identity.is_none();
    let found = match connect(admin, socket, identity, source).await {
        Ok(_) if is_ping && !is_anonymous => Ok(Vec::new()),
        Ok(mut connection) => page(&mut connection, admin, source, &search, fits).await,
        Err(error) => Err(SearchFailure::Bulk(error)),
    };
    let is_lost = matches!(&found, Err(SearchFailure::Bulk(BulkError::Lost(_))));
    let lost = is_lost.then_some("a search got no answer");
    admin.bulk_failures().note(lost.as_ref(), Instant::now());
    // Reading records takes a permit of its own.
    drop(permit);
    let found = match found {
        Ok(handles) if search.has_records => records(state, admin, source, handles).await,
        Ok(handles) => Ok(Value::Array(handles.into_iter().map(Value::String).collect())),
        Err(failure) => Err(failure),
    };
    match found {
        // As the reverse lookup of EUDAT answers it.
        Ok(_) if is_ping => plain(StatusCode::OK, "OK\n"),
        Err(SearchFailure::Bulk(BulkError::Refused(ResponseCode::PROTOCOL_ERROR, _))) if is_ping => {
            // Everybody may search: only a condition was missing.
            plain(StatusCode::OK, "OK\n")
        }
        Ok(found) => respond(state, request, StatusCode::OK, ApiBody::of(&found)),
        Err(SearchFailure::Bulk(BulkError::Refused(ResponseCode::AUTHENTICATION_NEEDED, _)))
            if is_anonymous =>
        {
            challenge(state, request, None)
        }
        Err(SearchFailure::Bulk(error)) => super::batch::refuse(state, request, error),
        Err(SearchFailure::TooMuch) => {
            let message = "The search looks at too many values: give more of their beginning, or a prefix";
            ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, message).respond(state, request, None)
        }
        Err(SearchFailure::TooLong) => {
            let message = format!("The records have more than {RECORDS_LEN_MAX} bytes: give a lower limit");
            ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, &message).respond(state, request, None)
        }
        Err(SearchFailure::NoCapacity) => refuse_unread(state, request),
        Err(SearchFailure::Records(error)) => admin_refusal(state, request, &error, None),
    }
}

/// Refuses a search of a source that leaves too many bytes of other answers unread.
fn refuse_unread(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    state.answers.note_refusal();
    let text = "Too many bytes of other answers to your network are unread".to_owned();
    super::batch::refuse(state, request, BulkError::Refused(ResponseCode::SERVER_BUSY, text))
}

/// The public values of the records of `handles`, as the reverse lookup of EUDAT shows them. They
/// are read where the handles were found; a record that has been deleted since is left out.
async fn records(
    state: &Arc<GatewayState>,
    admin: &AdministrationService,
    source: IpAddr,
    handles: Vec<String>,
) -> Result<Value, SearchFailure> {
    let state = Arc::clone(state);
    let read = move |client: &mut Administrator| {
        let (mut records, mut len) = (Map::new(), 0);
        for handle in handles {
            let query = Query { handle: handle.as_bytes(), indexes: Indexes::EMPTY, types: Strings::EMPTY };
            let answer = client.ask(&Request::Resolution(query), OpFlags::PLAIN_REQUEST)?;
            let Response::Answer(found) = answer.reply().response else { continue };
            let values: Vec<(Value, usize)> = found.values.iter().map(|value| shown_value(&value)).collect();
            len += values.iter().map(|(_, len)| len).sum::<usize>() + handle.len();
            if len > RECORDS_LEN_MAX {
                return Ok(Err(SearchFailure::TooLong));
            }
            if !state.has_capacity_for(source, len) {
                return Ok(Err(SearchFailure::NoCapacity));
            }
            records.insert(handle, values.into_iter().map(|(value, _)| value).collect());
        }
        Ok(Ok(Value::Object(records)))
    };
    match admin.ask(source, None, read).await {
        Ok(records) => records,
        Err(error) => Err(SearchFailure::Records(error)),
    }
}

/// A value as the reverse lookup of EUDAT shows it, and about its length.
fn shown_value(value: &handle_proto::Value<'_>) -> (Value, usize) {
    let data = data_to_json(value.kind, value.data).get_mut("value").map(Value::take);
    let kind = String::from_utf8_lossy(value.kind);
    let len = 64 + 2 * value.data.len() + kind.len();
    (json!({ "index": value.index, "type": kind, "value": data }), len)
}

/// A connection for the caller. Without an identity, the first frame is the search.
async fn connect(
    admin: &AdministrationService,
    socket: &Path,
    identity: Option<Arc<handle_client::administration::ClientIdentity>>,
    source: IpAddr,
) -> Result<LocalConnection, BulkError> {
    match identity {
        Some(identity) => bulk::open(socket, admin.timeout(), identity, source, None).await,
        None => Ok(LocalConnection::connect(socket, LocalKind::Bulk).await?),
    }
}

/// The handles of the page, as long as `fits` says that there is capacity for so many bytes.
async fn page(
    connection: &mut LocalConnection,
    admin: &AdministrationService,
    source: IpAddr,
    search: &PageSearch,
    fits: impl Fn(usize) -> bool,
) -> Result<Vec<String>, SearchFailure> {
    let needed = search.skip + search.limit;
    let (mut handles, mut count, mut after, mut len) = (Vec::new(), 0, Vec::new(), 0);
    let conditions: Vec<(&[u8], &[u8])> =
        search.conditions.iter().map(|(kind, value)| (kind.as_bytes(), value.as_bytes())).collect();
    for _ in 0..QUESTIONS_MAX {
        let question = BulkSearch {
            source,
            prefix: search.prefix.as_bytes(),
            after: &after,
            handles: u32::try_from(needed - count).unwrap_or(u32::MAX),
            conditions: conditions.clone(),
        };
        let found = bulk::search(connection, admin.timeout(), question).await.map_err(SearchFailure::Bulk)?;
        let skipped = search.skip.saturating_sub(count).min(found.handles.len());
        count += found.handles.len();
        len += found.handles.iter().skip(skipped).map(String::len).sum::<usize>();
        if !fits(len) {
            return Err(SearchFailure::NoCapacity);
        }
        handles.extend(found.handles.into_iter().skip(skipped));
        match found.next {
            Some(next) if count < needed => after = next,
            _ => return Ok(handles),
        }
    }
    Err(SearchFailure::TooMuch)
}

/// The search of a request.
fn parse(request: &ApiRequest<'_>) -> Result<PageSearch, ApiRefusal> {
    let parameters = &request.parameters;
    let bad = |message: String| ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, &message);
    let number = |name: &str, default: usize| match parameters.first(name) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| bad(format!("Invalid {name}: {text:?} is not a number"))),
    };
    let has_records = parameters.flag("retrieverecords").unwrap_or_default();
    let limit_max = if has_records { RECORDS_MAX } else { FOUND_MAX };
    let (limit, page): (usize, usize) = (number("limit", LIMIT_DEFAULT)?, number("page", 0)?);
    let limit = limit.min(limit_max);
    let end = page.checked_add(1).and_then(|pages| pages.checked_mul(limit));
    if limit == 0 || end.is_none_or(|end| end > FOUND_MAX) {
        return Err(bad(format!("Invalid limit and page: a page ends within {FOUND_MAX} handles")));
    }
    let conditions: Vec<(String, String)> = parameters
        .iter()
        .filter(|(name, _)| !OWN_PARAMETERS.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    if conditions.is_empty() && request.route != Route::SearchPing {
        return Err(bad(
            "No values to find: name a type and a value, as URL=https://example.org/*".to_owned()
        ));
    }
    let prefix = match request.route {
        Route::SearchPrefix => {
            let decoded = target::decode(request.name.trim_end_matches('/'));
            decoded
                .map_err(|error| ApiRefusal::bad(ResponseCode::INVALID_HANDLE, error.message()))?
                .into_owned()
        }
        _ => parameters.first("prefix").unwrap_or_default().to_owned(),
    };
    Ok(PageSearch { conditions, prefix, skip: page * limit, limit, has_records })
}
