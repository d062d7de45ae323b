//! Listing: the handles of a prefix, and the prefixes of the service.
//!
//! The service returns all names in any order. Of these, only as many are kept as the answer shows.

use crate::api::body::ApiBody;
use crate::api::caller::Caller;
use crate::api::request::{
    ApiRefusal, ApiRequest, NO_ADMIN, admin_refusal, challenge, reason, respond, status_of, unauthorized,
    unsupported,
};
use crate::reply::GatewayResponse;
use crate::state::GatewayState;
use handle_client::administration::{Administrator, AskError};
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::name::{BLANK, PREFIX_RECORDS};
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode};
use hyper::{Method, StatusCode};
use serde_json::{Map, Value};
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

/// Maximum number of names that one request collects.
const NAMES_MAX: usize = 1 << 20;

/// Names of an answer with `after` and without `limit`.
const LIMIT_DEFAULT: usize = 1000;
/// Maximum of `limit`.
const LIMIT_MAX: usize = NAMES_MAX - 1;

/// The part of a listing that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ListingPart {
    All,
    /// One page of this size; the first is 0.
    Page {
        page: usize,
        size: usize,
    },
    /// The names behind one, or from the start, up to a limit.
    After {
        name: Option<String>,
        limit: usize,
    },
}

impl ListingPart {
    /// How many of the first names are needed: with a limit, one more tells whether there are
    /// others.
    fn names_count(&self) -> usize {
        let count = match self {
            Self::All => NAMES_MAX,
            Self::Page { page, size } => page.saturating_add(1).saturating_mul(*size),
            Self::After { limit, .. } => limit.saturating_add(1),
        };
        count.min(NAMES_MAX)
    }
}

/// The first names of a listing.
#[derive(Debug)]
struct NameCollector {
    /// Names up to this one are counted only.
    after: Vec<u8>,
    /// Most names that are kept.
    names_max: usize,
    names: BinaryHeap<Vec<u8>>,
    /// Number of all names.
    total: u64,
    /// Number of names behind `after`.
    candidates: u64,
}

impl NameCollector {
    fn new(part: &ListingPart) -> Self {
        let after = match part {
            ListingPart::After { name: Some(name), .. } => name.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let names_max = part.names_count();
        Self { after, names_max, names: BinaryHeap::new(), total: 0, candidates: 0 }
    }

    fn add(&mut self, name: &[u8]) {
        self.total += 1;
        if name <= &*self.after {
            return;
        }
        self.candidates += 1;
        if self.names.len() < self.names_max {
            self.names.push(name.to_vec());
        } else if let Some(mut last) = self.names.peek_mut().filter(|last| name < last.as_slice()) {
            name.clone_into(&mut last);
        }
    }

    /// The kept names in ascending order, and the number of all.
    fn finish(self) -> ListedNames {
        let (total, is_whole) = (self.total, self.candidates <= self.names.len() as u64);
        let names = self.names.into_sorted_vec();
        let names = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        ListedNames { names, total, is_whole }
    }
}

/// The first names of a listing, in ascending order.
#[derive(Debug)]
struct ListedNames {
    names: Vec<String>,
    /// Number of all names.
    total: u64,
    /// Whether there are no others behind the first ones.
    is_whole: bool,
}

/// Lists the handles of a prefix.
pub async fn handles(state: &GatewayState, request: &ApiRequest<'_>, prefix: &str) -> GatewayResponse {
    if prefix.is_empty() || prefix.ends_with('/') {
        let refusal = ApiRefusal::bad(ResponseCode::SERVER_NOT_RESPONSIBLE, "That prefix doesn't live here");
        return refusal.respond(state, request, None);
    }
    let record = match prefix.as_bytes().strip_prefix(PREFIX_RECORDS) {
        Some(_) => prefix.as_bytes().to_vec(),
        None => [PREFIX_RECORDS, prefix.as_bytes()].concat(),
    };
    let list = move |client: &mut Administrator, part: &ListingPart| {
        collect(client, &Request::ListHandles(HandleBody { handle: &record }), part)
    };
    answer(state, request, "handles", Some(prefix), list).await
}

/// Lists the homed prefixes.
pub async fn prefixes(state: &GatewayState, request: &ApiRequest<'_>) -> GatewayResponse {
    let list = |client: &mut Administrator, part: &ListingPart| {
        collect(client, &Request::ListHomedNas(HandleBody { handle: BLANK }), part)
    };
    answer(state, request, "prefixes", None, list).await
}

/// Answers with the part of a listing that the request asks for.
async fn answer(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    member: &str,
    prefix: Option<&str>,
    list: impl FnOnce(&mut Administrator, &ListingPart) -> Result<(ListingOutcome, NameCollector), AskError>
    + Send
    + 'static,
) -> GatewayResponse {
    let part = match part(request) {
        Ok(part) => part,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    let asked = part.clone();
    let listed = match ask(state, request, prefix, move |client| list(client, &asked)).await {
        Ok(listed) => listed,
        Err(response) => return response,
    };
    // The first names have the page unless there are too many before its end.
    let is_limited = matches!(part, ListingPart::After { .. });
    if !is_limited && !listed.is_whole && part.names_count() == NAMES_MAX {
        let message = format!("There are more than {NAMES_MAX} names: ask for them with limit and after");
        return ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, &message).respond(state, request, prefix);
    }
    let mut body = Map::new();
    body.insert("responseCode".to_owned(), ResponseCode::SUCCESS.0.into());
    if let Some(prefix) = prefix {
        body.insert("prefix".to_owned(), prefix.into());
    }
    insert_part(&mut body, member, listed, &part);
    respond(state, request, StatusCode::OK, ApiBody::of(&Value::Object(body)))
}

/// Adds the count of all names, and the names of the part.
fn insert_part(body: &mut Map<String, Value>, member: &str, listed: ListedNames, part: &ListingPart) {
    body.insert("totalCount".to_owned(), listed.total.to_string().into());
    let mut names = listed.names;
    let mut next = None;
    match *part {
        ListingPart::All => {}
        ListingPart::Page { page, size } => {
            body.insert("page".to_owned(), page.into());
            body.insert("pageSize".to_owned(), size.into());
            names.drain(..page.saturating_mul(size).min(names.len()));
        }
        ListingPart::After { limit, .. } => {
            body.insert("limit".to_owned(), limit.into());
            let has_more = names.len() > limit;
            names.truncate(limit);
            next = names.last().cloned().filter(|_| has_more);
        }
    }
    body.insert(member.to_owned(), names.into());
    if let Some(next) = next {
        body.insert("next".to_owned(), next.into());
    }
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
    let Some(admin) = &state.writing.admin else { return unsupported(state, request, NO_ADMIN) };
    let (handle, ends) = (prefix.as_bytes().to_vec(), *request.head.method == Method::DELETE);
    let change = move |client: &mut Administrator| {
        let body = HandleBody { handle: &handle };
        let homing = if ends { Request::UnhomeNa(body) } else { Request::HomeNa(body) };
        let answer = client.ask(&homing, OpFlags::PLAIN_REQUEST.with(OpFlags::SHOW_TRANSACTION))?;
        let position = match answer.reply().response {
            Response::Changed(change) => Some(change.position),
            _ => None,
        };
        Ok((answer.code(), answer.text(), position))
    };
    match admin.ask(request.peer.address, Some(identity), change).await {
        Ok((code @ ResponseCode(403..=406), text, _)) => {
            unauthorized(state, request, code, &text, Some(prefix))
        }
        Ok((code, text, position)) => {
            if code == ResponseCode::SUCCESS {
                state.until_visible(request.peer.address, [prefix.as_bytes()], position).await;
            }
            let why = reason(&text).filter(|_| matches!(code, ResponseCode(400..=401)));
            respond(state, request, status_of(code, false), ApiBody::failure(code, why, Some(prefix)))
        }
        Err(error) => admin_refusal(state, request, &error, Some(prefix)),
    }
}

/// The part that a request asks for: with `limit` or `after`, the names behind one; with a page and
/// its size, neither negative, a page; else all names.
fn part(request: &ApiRequest<'_>) -> Result<ListingPart, ApiRefusal> {
    let parameters = &request.parameters;
    let bad = |message: &str| ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, message);
    let number = |name: &str| match parameters.first(name) {
        None => Ok(None),
        Some(text) => {
            let number = text.parse::<i64>().map(Some);
            number.map_err(|_| bad(&format!("Invalid {name}: {text:?} is not a number")))
        }
    };
    let (after, limit) = (parameters.first("after"), number("limit")?);
    if after.is_some() || limit.is_some() {
        let limit = limit.map_or(Some(LIMIT_DEFAULT), |limit| usize::try_from(limit).ok());
        let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
        let limit = limit.ok_or_else(|| bad(&format!("Invalid limit: allowed are 1 to {LIMIT_MAX}")))?;
        return Ok(ListingPart::After { name: after.map(str::to_owned), limit });
    }
    let size = |number: Option<i64>| number.and_then(|number| usize::try_from(number).ok());
    Ok(match (size(number("page")?), size(number("pageSize")?)) {
        (Some(page), Some(size)) => ListingPart::Page { page, size },
        _ => ListingPart::All,
    })
}

/// How a listing ends: the code and the text of the answer.
type ListingOutcome = (ResponseCode, String);

/// Asks the service for names as the caller.
async fn ask(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    about: Option<&str>,
    list: impl FnOnce(&mut Administrator) -> Result<(ListingOutcome, NameCollector), AskError> + Send + 'static,
) -> Result<ListedNames, GatewayResponse> {
    let identity = match Caller::of(state, request).await {
        Caller::Anonymous => return Err(challenge(state, request, about)),
        Caller::Refused(response) => return Err(response),
        Caller::Identity(identity) => identity,
    };
    let Some(admin) = &state.writing.admin else { return Err(unsupported(state, request, NO_ADMIN)) };
    let collected = admin.ask(request.peer.address, Some(identity), list).await;
    let ((code, text), names) = collected.map_err(|error| admin_refusal(state, request, &error, about))?;
    match code {
        ResponseCode::SUCCESS => Ok(names.finish()),
        code @ ResponseCode(403..=406) => Err(unauthorized(state, request, code, &text, about)),
        code => {
            let message = match code {
                ResponseCode::SERVER_NOT_RESPONSIBLE => Some("That prefix doesn't live here"),
                ResponseCode(400..=401) => reason(&text),
                _ => None,
            };
            Err(respond(state, request, status_of(code, false), ApiBody::failure(code, message, about)))
        }
    }
}

/// The names of the handles whose prefix has the record `record`, in ascending order, and the code
/// of the answer.
pub(crate) fn of_prefix(
    client: &mut Administrator,
    record: &[u8],
) -> Result<(ResponseCode, Vec<String>), AskError> {
    let request = Request::ListHandles(HandleBody { handle: record });
    let ((code, _), names) = collect(client, &request, &ListingPart::All)?;
    Ok((code, names.finish().names))
}

fn collect(
    client: &mut Administrator,
    request: &Request<'_>,
    part: &ListingPart,
) -> Result<(ListingOutcome, NameCollector), AskError> {
    let mut names = NameCollector::new(part);
    let answer = client.list(request, |name| {
        names.add(name);
        ControlFlow::Continue(())
    })?;
    Ok(((answer.code(), answer.text()), names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed(names: &[String], part: &ListingPart) -> Value {
        let mut collector = NameCollector::new(part);
        names.iter().for_each(|name| collector.add(name.as_bytes()));
        let mut body = Map::new();
        insert_part(&mut body, "handles", collector.finish(), part);
        Value::Object(body)
    }

    #[test]
    fn a_listing_is_cut_into_pages() {
        let names = ["B", "D", "A", "C"].map(str::to_owned);
        let page = |page, size| listed(&names, &ListingPart::Page { page, size })["handles"].clone();
        assert_eq!(page(0, 3), serde_json::json!(["A", "B", "C"]));
        assert_eq!(page(1, 3), serde_json::json!(["D"]));
        assert_eq!((page(2, 3), page(0, 0)), (serde_json::json!([]), serde_json::json!([])));
        assert_eq!(page(usize::MAX, usize::MAX), serde_json::json!([]));
        assert_eq!(listed(&names, &ListingPart::All)["handles"], serde_json::json!(["A", "B", "C", "D"]));
    }

    proptest! {
        #[test]
        fn all_names_are_found_by_following_next(
            names in proptest::collection::btree_set("[A-Z]{1,3}", 0..30), limit in 1_usize..8,
        ) {
            let sorted: Vec<String> = names.into_iter().collect();
            let shuffled: Vec<String> = sorted.iter().rev().cloned().collect();
            let (mut found, mut name) = (Vec::new(), None);
            loop {
                let part = listed(&shuffled, &ListingPart::After { name, limit });
                prop_assert_eq!(&part["totalCount"], &Value::from(sorted.len().to_string()));
                let handles = part["handles"].as_array().unwrap();
                prop_assert!(handles.len() <= limit);
                found.extend(handles.iter().map(|handle| handle.as_str().unwrap().to_owned()));
                name = part["next"].as_str().map(str::to_owned);
                if name.is_none() {
                    break;
                }
            }
            prop_assert_eq!(found, sorted);
        }
    }
}
