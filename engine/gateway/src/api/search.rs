//! Searches for handles by the public values of their records: `/hrls/handles`, as pyhandle asks.
//!
//! Parameters are types with the values that a record must have, in which `*` stands for any
//! characters. `handle-admin` finds, among the handles that the caller may list; this module cuts
//! what it finds into pages.

use crate::administration::AdministrationService;
use crate::api::body::ApiBody;
use crate::api::caller::Caller;
use crate::api::{ApiRefusal, ApiRequest, NO_ADMIN, challenge, guarded, respond, unsupported};
use crate::bulk::{self, BulkError};
use crate::reply::GatewayResponse;
use crate::server::GatewayState;
use handle_daemon::bulk::BulkSearch;
use handle_proto::ResponseCode;
use hyper::{Method, StatusCode};
use serde_json::Value;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;

/// The path of searches.
pub const PATH: &str = "/hrls/handles";
/// Handles of a page if `limit` is not given.
const LIMIT_DEFAULT: usize = 1000;
/// Maximum number of handles up to the end of a page.
const FOUND_MAX: usize = 100_000;
/// Maximum number of questions to `handle-admin` for one page. Each looks at up to its
/// `index.values` values.
const QUESTIONS_MAX: usize = 200;
/// Parameters that are not types.
const OWN_PARAMETERS: [&str; 5] = ["limit", "page", "prefix", "pretty", "callback"];

/// Whether searches are served, and `path` is theirs.
#[must_use]
pub fn is_served(state: &GatewayState, path: &str) -> bool {
    path.trim_end_matches('/') == PATH && state.settings.current().admin.search
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct PageSearch {
    conditions: Vec<(String, String)>,
    prefix: String,
    skip: usize,
    limit: usize,
}

/// Why there is no page.
#[derive(Debug)]
enum SearchFailure {
    Bulk(BulkError),
    /// There is too much to look at.
    TooMuch,
}

/// Answers a search.
pub async fn answer(state: &Arc<GatewayState>, request: &ApiRequest<'_>) -> GatewayResponse {
    guarded(state, request, async {
        match *request.head.method {
            Method::GET | Method::HEAD => search(state, request).await,
            _ => crate::route_table::HttpRoute::SEARCH.refuse(request.head.method),
        }
    })
    .await
}

async fn search(state: &Arc<GatewayState>, request: &ApiRequest<'_>) -> GatewayResponse {
    let search = match parse(request) {
        Ok(search) => search,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    let identity = match Caller::of(state, request).await {
        Caller::Anonymous => None,
        Caller::Refused(response) => return response,
        Caller::Identity(identity) => Some(identity),
    };
    let Some((admin, socket)) = state.admin.as_ref().and_then(|admin| Some((admin, admin.bulk_socket()?)))
    else {
        return unsupported(state, request, NO_ADMIN);
    };
    let source = request.peer.address;
    let Some(_place) = admin.place(source) else {
        let refusal = BulkError::Refused(
            ResponseCode::SERVER_BUSY,
            "Too many requests to the administration service are under way".to_owned(),
        );
        return super::batch::refuse(state, request, refusal);
    };
    let is_anonymous = identity.is_none();
    let found = match connect(admin, socket, identity, source).await {
        Ok(mut stream) => page(&mut stream, admin, source, &search).await,
        Err(error) => Err(SearchFailure::Bulk(error)),
    };
    let is_lost = matches!(&found, Err(SearchFailure::Bulk(BulkError::Lost(_))));
    let lost = is_lost.then_some("a search got no answer");
    admin.bulk_failures().note(lost.as_ref(), Instant::now());
    match found {
        Ok(handles) => {
            let handles: Vec<Value> = handles.into_iter().map(Value::String).collect();
            respond(state, request, StatusCode::OK, ApiBody::of(&Value::Array(handles)))
        }
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
    }
}

/// A connection for the caller. Without an identity, the first frame is the search.
async fn connect(
    admin: &AdministrationService,
    socket: &Path,
    identity: Option<Arc<handle_client::administration::ClientIdentity>>,
    source: IpAddr,
) -> Result<UnixStream, BulkError> {
    match identity {
        Some(identity) => bulk::open(socket, admin.patience(), identity, source, None).await,
        None => Ok(UnixStream::connect(socket).await?),
    }
}

/// The handles of the page.
async fn page(
    stream: &mut UnixStream,
    admin: &AdministrationService,
    source: IpAddr,
    search: &PageSearch,
) -> Result<Vec<String>, SearchFailure> {
    let needed = search.skip + search.limit;
    let (mut handles, mut count, mut after) = (Vec::new(), 0, Vec::new());
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
        let found = bulk::search(stream, admin.patience(), question).await.map_err(SearchFailure::Bulk)?;
        let skipped = search.skip.saturating_sub(count).min(found.handles.len());
        count += found.handles.len();
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
    let (limit, page): (usize, usize) = (number("limit", LIMIT_DEFAULT)?, number("page", 0)?);
    let end = page.checked_add(1).and_then(|pages| pages.checked_mul(limit));
    if limit == 0 || end.is_none_or(|end| end > FOUND_MAX) {
        return Err(bad(format!("Invalid limit and page: a page ends within {FOUND_MAX} handles")));
    }
    let conditions: Vec<(String, String)> = parameters
        .iter()
        .filter(|(name, _)| !OWN_PARAMETERS.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    if conditions.is_empty() {
        return Err(bad(
            "No values to find: name a type and a value, as URL=https://example.org/*".to_owned()
        ));
    }
    let prefix = parameters.first("prefix").unwrap_or_default().to_owned();
    Ok(PageSearch { conditions, prefix, skip: page * limit, limit })
}
