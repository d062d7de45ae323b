//! Whether an answer of `handle-gateway` is one that its OpenAPI document describes.

use crate::gateway_server::HttpAnswer;
use crate::json_schema::{fault, follow};
use handle_gateway::route::OPENAPI;
use serde_json::Value as Json;
use std::sync::OnceLock;

/// Headers that an answer has only if its response describes them.
const DESCRIBED_HEADERS: [&str; 4] = ["ETag", "Expires", "Location", "Retry-After"];

/// The document.
///
/// # Panics
/// When it is not JSON.
pub fn document() -> &'static Json {
    static DOCUMENT: OnceLock<Json> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::from_str(OPENAPI).expect("the OpenAPI document is JSON"))
}

/// The path of the document that a target without its query is for; `None` below `/api` if there is
/// no such endpoint. Case does not matter in `/api`.
#[must_use]
pub fn described_path(path: &str) -> Option<&'static str> {
    let paths = document()["paths"].as_object()?;
    let (name, rest) = path.split_at_checked("/api".len()).unwrap_or((path, ""));
    let lower = format!("{}{rest}", name.to_ascii_lowercase());
    let is_any_case = lower == "/api" || lower.starts_with("/api/");
    let path = if is_any_case { lower.as_str() } else { path };
    let is_api = path == "/api" || path.starts_with("/api/");
    let plain = if is_api { path.trim_end_matches('/') } else { path };
    let matches = |described: &str| match described.split_once('{') {
        Some((start, _)) => path.strip_prefix(start).is_some_and(|rest| !rest.is_empty()),
        None => described == plain,
    };
    let is_any = |described: &str| described == "/{handle}";
    let mut known = paths.keys().map(String::as_str);
    let exact = known.find(|described| !is_any(described) && matches(described));
    exact.or_else(|| paths.keys().map(String::as_str).find(|described| is_any(described) && !is_api))
}

/// What the document lacks to describe the answer to a request; `None` if it lacks nothing.
#[must_use]
pub fn undescribed(method: &str, target: &str, answer: &HttpAnswer) -> Option<String> {
    let is_head = method == "HEAD";
    let method = match method {
        "HEAD" => "get".to_owned(),
        "GET" | "POST" | "PUT" | "DELETE" => method.to_ascii_lowercase(),
        // Every path has OPTIONS and refuses others, without a word about it for each.
        _ => return None,
    };
    let status = answer.status;
    let path = described_path(target.split('?').next().unwrap_or_default());
    let operation = path.map_or(&Json::Null, |path| &document()["paths"][path][&method]);
    if operation.is_null() {
        let is_refused = matches!(status, 400 | 403 | 404 | 405 | 408 | 413 | 429 | 431);
        // POST acts as GET outside `/api`, or has a message as on `/{handle}`.
        let is_any_path = path.is_some_and(|path| !path.starts_with("/api") && !path.starts_with("/admin"));
        return match is_refused {
            true => None,
            false if is_any_path && method == "post" => {
                undescribed("GET", target, answer).and_then(|_| undescribed("POST", "/x", answer))
            }
            false => Some(format!("{method} {target} has no operation, and got {status}")),
        };
    }
    let response = follow(document(), &operation["responses"][status.to_string()]);
    if response.is_null() {
        return Some(format!("{method} {target}: status {status} is not described"));
    }
    // Where nobody is refused, the security scheme `handle` describes it.
    let challenge = (status == 401).then_some("WWW-Authenticate");
    for name in DESCRIBED_HEADERS.into_iter().chain(challenge) {
        if answer.header(name).is_some() && response["headers"][name].is_null() {
            return Some(format!("{method} {target}: {status} has {name}, which is not described"));
        }
    }
    // What is not HTTP at all is refused without a body.
    let is_http = !matches!(status, 400 | 431);
    // Lines may be none at all, and what a back end answers is relayed as it is.
    let is_any_len = !response["content"]["application/x-ndjson"].is_null() || is_relayed(answer);
    let has_body = is_http && !is_head && !is_any_len && !response["content"].is_null();
    if has_body && answer.body.is_empty() {
        return Some(format!("{method} {target}: {status} without a body"));
    }
    let wrong = content_fault(response, answer)?;
    Some(format!("{method} {target}: {status} with {wrong}"))
}

/// Whether a back end has made the answer.
fn is_relayed(answer: &HttpAnswer) -> bool {
    answer.header("content-security-policy").is_some_and(|policy| policy.contains("sandbox"))
}

/// Why the body of an answer is not one of those of a response.
fn content_fault(response: &Json, answer: &HttpAnswer) -> Option<String> {
    if answer.body.is_empty() || is_relayed(answer) {
        return None;
    }
    let media = answer.header("content-type").and_then(|kind| kind.split(';').next()).unwrap_or_default();
    let contents = ["content", "x-optional-content"].map(|name| &response[name]);
    let content = contents.map(|contents| &contents[media]).into_iter().find(|content| !content.is_null());
    let content = content.unwrap_or(&Json::Null);
    if content.is_null() {
        return Some(format!("the media type {media:?}, which is not described"));
    }
    if answer.header("content-encoding").is_some() {
        return None;
    }
    let check = |schema: &Json, text: &str, place: &str| match serde_json::from_str::<Json>(text) {
        Ok(body) => fault(document(), schema, &body, place),
        Err(error) => Some(format!("{place} that is not JSON: {error}")),
    };
    let text = answer.text();
    match media {
        "application/json" => check(&content["schema"], &text, "a body"),
        "application/x-ndjson" => {
            let schema = &content["x-line-schema"];
            text.lines().find_map(|line| check(schema, line, "a line"))
        }
        "application/javascript" => {
            let call = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(");"));
            let schemas = contents.map(|contents| &contents["application/json"]["schema"]);
            let schema = schemas.into_iter().find(|schema| !schema.is_null()).unwrap_or(&Json::Null);
            call.map_or_else(|| Some("no call".to_owned()), |argument| check(schema, argument, "a call"))
        }
        _ => None,
    }
}

/// Checks that the document describes the answer to a request.
///
/// # Panics
/// When it does not.
pub fn require_described(method: &str, target: &str, answer: &HttpAnswer) {
    let wrong = undescribed(method, target, answer);
    assert!(wrong.is_none(), "engine/gateway/openapi.json: {}", wrong.unwrap_or_default());
}
