//! The fast path: requests without parameters for records of the set, the most frequent ones.
//!
//! It answers without waiting and with few allocations: a redirect to the first URL of a record, or
//! the record as JSON. The general path is the definition; a test compares both. It handles
//! everything else: unusual characters, aliases, 10320/loc, credentials, and browsers, which get a
//! page with a redirect.

use crate::api::body::ApiBody;
use crate::config::Config;
use crate::location::{is_document, is_url};
use crate::record::stored_values;
use crate::reply::{
    CacheableBody, Freshness, GatewayResponse, RequestHeaders, cache_control, empty, http_date, names_html,
};
use crate::server::GatewayState;
use handle_client::service::keeps_s;
use handle_daemon::clock::now_unix_s;
use handle_proto::data::kind;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::{ResponseCode, fold};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

/// Start of the path of a record in the JSON API.
const API_HANDLES: &str = "/api/handles/";
/// Start of the name of a prefix record.
const PREFIX_RECORD: &[u8] = b"0.NA/";
/// Maximum length of a prefix.
const PREFIX_LEN_MAX: usize = 64;

/// The answer to a plain request; `None` if it is left to the general path.
#[must_use]
pub fn answer(state: &GatewayState, parts: &Parts) -> Option<GatewayResponse> {
    if !matches!(parts.method, Method::GET | Method::HEAD) || parts.uri.query().is_some() {
        return None;
    }
    let path = parts.uri.path();
    let response = if let Some(handle) = path.strip_prefix(API_HANDLES) {
        let handle = PlainHandle::of(handle)?;
        json(state, parts, handle)?
    } else {
        let handle = PlainHandle::of(path.strip_prefix('/')?)?;
        redirect(state, parts, handle)?
    };
    let counters = &state.counters;
    let counter =
        if path.starts_with(API_HANDLES) { &counters.api_requests } else { &counters.proxy_requests };
    counter.add();
    Some(response)
}

/// A handle in a path without percent-encoding: the prefix has digits and dots, the local name
/// letters, digits and a few other characters.
#[derive(Clone, Copy, Debug)]
struct PlainHandle<'p> {
    text: &'p str,
    prefix_len: usize,
}

impl<'p> PlainHandle<'p> {
    fn of(text: &'p str) -> Option<Self> {
        let bytes = text.as_bytes();
        let prefix_len = bytes.iter().position(|&byte| !byte.is_ascii_digit() && byte != b'.')?;
        let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/');
        let is_whole = (1..=PREFIX_LEN_MAX).contains(&prefix_len)
            && bytes[prefix_len] == b'/'
            && (prefix_len + 2..=HANDLE_LEN_MAX).contains(&bytes.len())
            && bytes[prefix_len..].iter().all(is_plain);
        is_whole.then_some(Self { text, prefix_len })
    }

    const fn bytes(self) -> &'p [u8] {
        self.text.as_bytes()
    }

    /// The name of the record of the prefix, written to `room`.
    fn prefix_record(self, room: &mut [u8; PREFIX_LEN_MAX + PREFIX_RECORD.len()]) -> &[u8] {
        let len = PREFIX_RECORD.len() + self.prefix_len;
        room[..PREFIX_RECORD.len()].copy_from_slice(PREFIX_RECORD);
        room[PREFIX_RECORD.len()..len].copy_from_slice(&self.bytes()[..self.prefix_len]);
        &room[..len]
    }
}

/// The redirect to the first URL of a record.
fn redirect(state: &GatewayState, parts: &Parts, handle: PlainHandle<'_>) -> Option<GatewayResponse> {
    if parts.headers.get_all(header::ACCEPT).iter().any(names_html) {
        return None;
    }
    let set = state.set.as_ref()?.current();
    let (records, service) = (set.records(), state.service());
    let values = stored_values(&records, &service, handle.bytes())?;
    let mut url = None;
    for value in values.iter().filter(handle_proto::Value::is_public) {
        if is_document(&value) || fold::eq(value.kind, kind::HS_ALIAS) {
            return None;
        }
        if url.is_none() && is_url(&value) {
            url = Some(value);
        }
    }
    let url = url?;
    let target = plain_target(url.data)?;
    let mut room = [0; PREFIX_LEN_MAX + PREFIX_RECORD.len()];
    let prefix = stored_values(&records, &service, handle.prefix_record(&mut room));
    if prefix.is_some_and(|values| values.iter().any(|value| is_document(&value))) {
        return None;
    }
    let settings = state.settings.current();
    let scheme = url.data.split(|&byte| byte == b':').next();
    if !settings.proxy.schemes.iter().any(|allowed| Some(allowed.as_bytes()) == scheme) {
        return None;
    }
    let now = now_unix_s();
    Some(redirect_to(target, keeps_s(url.ttl, now), now, &settings))
}

/// The redirect to `target`, which may be cached for `seconds`.
fn redirect_to(target: HeaderValue, seconds: u32, now_unix_s: u32, settings: &Config) -> GatewayResponse {
    let seconds = seconds.min(settings.caching.seconds_max);
    let mut response = empty(StatusCode::FOUND);
    let headers = response.headers_mut();
    headers.reserve(4);
    headers.insert(header::LOCATION, target);
    if let Some(expires) = http_date(u64::from(now_unix_s) + u64::from(seconds)) {
        headers.insert(header::EXPIRES, expires);
    }
    headers.insert(header::CACHE_CONTROL, cache_control(Freshness::Seconds(seconds), u32::MAX));
    response
}

/// The URL as the value of `Location`, if it has a host and no character that has to be encoded.
fn plain_target(url: &[u8]) -> Option<HeaderValue> {
    let rest = url.strip_prefix(b"https://").or_else(|| url.strip_prefix(b"http://"))?;
    let is_plain = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/' | b'~' | b':' | b'?' | b'=')
    };
    let begins = rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric());
    (begins && rest.iter().all(is_plain)).then(|| HeaderValue::from_bytes(url).ok()).flatten()
}

/// The record as JSON.
fn json(state: &GatewayState, parts: &Parts, handle: PlainHandle<'_>) -> Option<GatewayResponse> {
    if has_credentials(&parts.headers) {
        return None;
    }
    let set = state.set.as_ref()?.current();
    let records = set.records();
    let values = stored_values(&records, &state.service(), handle.bytes())?;
    let now = now_unix_s();
    let freshness = Freshness::Seconds(values.iter().map(|value| keeps_s(value.ttl, now)).min()?);
    let body = ApiBody::values(ResponseCode::SUCCESS, handle.text, values.iter());
    let head = RequestHeaders { method: &parts.method, headers: &parts.headers };
    let content_type = "application/json;charset=utf-8";
    let body = CacheableBody { content_type, bytes: body.into_bytes(), freshness };
    let mut response = body.respond(StatusCode::OK, head, &state.settings.current());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Some(response)
}

fn has_credentials(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::InputRules;
    use crate::redirect::{SCHEMES, redirect_target};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn plain_handles_are_what_the_general_path_reads(text in "([0-9.]{1,4}|[0-9]a)/[a-z0-9./_%:?-]{0,8}") {
            let general = InputRules::new(&[], false, &[]).handle_of_path(format!("/{text}").as_bytes());
            if let Some(plain) = PlainHandle::of(&text) {
                prop_assert_eq!(general.unwrap().handle, plain.text);
            }
        }

        #[test]
        fn plain_targets_are_what_the_general_path_makes(url in "(http|https|HTTP|ftp)://?[a-z0-9./_%:?= \"@-]{0,12}") {
            let schemes = SCHEMES.map(str::to_owned);
            if let Some(target) = plain_target(url.as_bytes()) {
                let general = redirect_target(&url, b"", &schemes).unwrap();
                prop_assert_eq!(target.to_str().unwrap(), general.as_str());
            }
        }
    }

    #[test]
    fn most_handles_and_urls_are_plain() {
        for handle in ["10.1045/july95-arms", "20.500.12345/a_b/c.d", "10.1/00000001"] {
            let plain = PlainHandle::of(handle).unwrap();
            let mut room = [0; PREFIX_LEN_MAX + PREFIX_RECORD.len()];
            let (prefix, _) = handle.split_once('/').unwrap();
            assert_eq!(plain.prefix_record(&mut room), format!("0.NA/{prefix}").as_bytes());
        }
        for other in ["", "/", "10.1/", "/10.1/a", "hdl.handle.net/10.1/a", "10.1%2Fa", "10.1/a b", "10.1"] {
            assert!(PlainHandle::of(other).is_none(), "{other}");
        }
        assert!(plain_target(b"https://example.org/a?b=c").is_some());
        for other in ["http://", "http:///a", "ftp://a/", "http://a/%zz\"", "javascript:x", "http://[::1]/"] {
            assert!(plain_target(other.as_bytes()).is_none(), "{other}");
        }
    }
}
