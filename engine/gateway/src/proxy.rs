//! The proxy: redirects from a handle to a URL of its record, and pages.

use crate::config::Config;
use crate::parameters::Parameters;
use crate::record::RecordAnswer;
use crate::reply::{GatewayResponse, RequestHeaders, empty, plain, set_number};
use crate::route::HttpPeer;
use crate::upstream::UpstreamError;
use handle_client::Question;
use handle_client::reference::ReferenceError;
use handle_client::service::keeps_s;
use handle_daemon::clock::now_unix_s;
use handle_proto::data::kind::URL;
use handle_proto::{ResponseCode, Value, data};
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::cell::RefCell;
use std::fmt::Write as _;

/// A request for a handle.
#[derive(Debug)]
pub struct ProxyRequest<'r> {
    /// The method and headers.
    pub asked: RequestHeaders<'r>,
    /// Who asks.
    pub peer: HttpPeer,
    /// The handle.
    pub handle: &'r str,
    /// The parameters, from the query or the form.
    pub parameters: Parameters<'r>,
    /// The question that they ask: the values to choose from.
    pub question: &'r Question,
}

/// Bytes that may not stand in a `Location`.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'{')
    .add(b'}')
    .add(b'|')
    .add(b'^')
    .add(b'`')
    .add(b'\\');

/// Redirects to the first URL of the record, or shows its values.
#[must_use]
pub fn answer(request: &ProxyRequest<'_>, answer: &RecordAnswer<'_>, config: &Config) -> GatewayResponse {
    match answer.code {
        ResponseCode::SUCCESS => {}
        ResponseCode::HANDLE_NOT_FOUND | ResponseCode::VALUES_NOT_FOUND => {
            return plain(StatusCode::NOT_FOUND, format!("{}: handle not found\n", request.handle));
        }
        code => return plain(StatusCode::BAD_REQUEST, format!("{}: {code}\n", request.handle)),
    }
    let (parameters, now) = (&request.parameters, now_unix_s());
    let mut urls = answer.selected(request.question).filter(|value| value.is_a(URL));
    let location = urls.find_map(|value| Some((location(&value)?, keeps_s(value.ttl, now))));
    match location {
        Some((location, keeps_s)) if !parameters.has("noredirect") => {
            let suffix = parameters.first("urlappend").unwrap_or_default();
            redirect(&format!("{location}{suffix}"), keeps_s.min(config.caching.seconds_max), u64::from(now))
        }
        _ => values(request, answer),
    }
}

/// The text of a URL to which redirecting is safe.
fn location<'a>(value: &Value<'a>) -> Option<&'a str> {
    let text = data::text(value.data)?.trim();
    let (scheme, _) = text.split_once(':')?;
    let is_safe = ["http", "https"].iter().any(|safe| scheme.eq_ignore_ascii_case(safe));
    is_safe.then_some(text)
}

fn redirect(location: &str, keeps_s: u32, now_unix_s: u64) -> GatewayResponse {
    let location = utf8_percent_encode(location, ESCAPED).to_string();
    let Ok(location) = HeaderValue::try_from(location) else { return empty(StatusCode::BAD_GATEWAY) };
    let mut response = empty(StatusCode::FOUND);
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, location);
    if let Some(expires) = http_date(now_unix_s + u64::from(keeps_s)) {
        headers.insert(header::EXPIRES, expires);
    }
    if let Ok(age) = HeaderValue::try_from(format!("max-age={keeps_s}")) {
        headers.insert(header::CACHE_CONTROL, age);
    }
    response
}

/// A time as in `Expires`. Most redirects of a second expire at the same time, so each worker keeps
/// the last one.
fn http_date(unix_s: u64) -> Option<HeaderValue> {
    thread_local! {
        static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| {
        if last.as_ref().is_none_or(|(at, _)| *at != unix_s) {
            let time = jiff::Timestamp::from_second(unix_s.cast_signed()).ok()?;
            let text = time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            *last = Some((unix_s, HeaderValue::try_from(text).ok()?));
        }
        last.as_ref().map(|(_, value)| value.clone())
    })
}

/// The values as text, one on each line.
fn values(request: &ProxyRequest<'_>, answer: &RecordAnswer<'_>) -> GatewayResponse {
    let mut text = format!("{}\n", request.handle);
    for value in answer.selected(request.question) {
        let shown =
            data::text(value.data).map_or_else(|| format!("{} bytes", value.data.len()), str::to_owned);
        let _ = writeln!(text, "{} {} {shown}", value.index, String::from_utf8_lossy(value.kind));
    }
    plain(StatusCode::OK, text)
}

/// The answer to a path that names no handle.
#[must_use]
pub fn refuse_reference(error: &ReferenceError) -> GatewayResponse {
    match error {
        ReferenceError::Empty => plain(StatusCode::OK, "handle-gateway: put a handle behind the slash\n"),
        error => plain(StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

/// The answer when upstream gave none.
#[must_use]
pub fn refuse(error: &UpstreamError, config: &Config) -> GatewayResponse {
    let mut response = plain(error.status(), format!("{error}\n"));
    set_number(&mut response, header::RETRY_AFTER, config.upstream.retry_after_s);
    response
}
