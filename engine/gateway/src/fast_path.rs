//! The fast path: requests without parameters for records of the set, the most frequent ones.
//!
//! It answers without waiting and with few allocations: a redirect to the first URL of a record, or
//! the record as JSON. The general path is the definition; a test compares both. It handles
//! everything else: unusual characters, aliases, 10320/loc, credentials, and browsers, which get a
//! page with a redirect.

use crate::answers::LOOKED_LEN;
use crate::api::body::ApiBody;
use crate::config::Config;
use crate::location::{is_document, is_url};
use crate::record::stored_record;
use crate::reply::{
    BodyTag, CacheableBody, Freshness, GatewayResponse, NegotiatedBody, RequestHeaders, allow,
    allow_origin_of, cache_control, empty, http_date,
};
use crate::request_head::HeaderFacts;
use crate::route::{Route, RoutedPath};
use crate::set::MappedGeneration;
use crate::state::GatewayState;
use handle_client::service::keeps_s;
use handle_daemon::clock::now_unix_s;
use handle_daemon::record_tag::tag_of_public_values;
use handle_proto::data::kind;
use handle_proto::limit::HANDLE_LEN_MAX;
use handle_proto::{ResponseCode, fold};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use std::net::IpAddr;

/// Start of the name of a prefix record.
const PREFIX_RECORD: &[u8] = b"0.NA/";
/// Maximum length of a prefix.
const PREFIX_LEN_MAX: usize = 64;
/// Headers of a request whose memory is used again for those of the response. Longer lists are not
/// kept for it, because hyper keeps the memory for as long as the connection.
const HEADERS_KEPT_MAX: usize = 32;

/// Number of headers of a redirect and of JSON, with those that hyper adds, and of those for the
/// scripts of another origin. A list that grows while it is filled costs more than the answer.
const REDIRECT_HEADERS: usize = 6;
const JSON_HEADERS: usize = 8;
const ORIGIN_HEADERS: usize = 2;

/// The answer to a plain request.
#[derive(Debug)]
pub enum PlainAnswer {
    /// A redirect.
    Redirect {
        /// The value of `Location`.
        target: HeaderValue,
        /// The time in `Expires`.
        expires: Option<HeaderValue>,
        /// The value of `Cache-Control`.
        caching: HeaderValue,
    },
    /// A record as JSON.
    Json(NegotiatedBody),
}

/// The answer to a plain request for `path` with these facts; `None` if it is left to the general
/// path.
#[must_use]
pub fn answer(
    state: &GatewayState,
    settings: &Config,
    parts: &Parts,
    path: RoutedPath,
    facts: &HeaderFacts<'_>,
    source: IpAddr,
) -> Option<PlainAnswer> {
    if !matches!(parts.method, Method::GET | Method::HEAD) || parts.uri.query().is_some() {
        return None;
    }
    let handle = || PlainHandle::of(path.variable(parts.uri.path()));
    let set = state.reading.set.as_ref()?.current();
    let (query, now) = (RecordQuery { state, set: &set, settings, counted: Some(source) }, now_unix_s());
    match path.route {
        // Credentials select other values.
        Route::Record if !facts.has_credentials => {
            let head = RequestHeaders { method: &parts.method, headers: &parts.headers };
            let body = query.json(handle()?, now)?.negotiate(StatusCode::OK, &head, settings);
            Some(PlainAnswer::Json(body))
        }
        // Browsers get a page with the redirect.
        Route::Handle if !facts.names_html => {
            let redirect = query.redirect(handle()?, now)?;
            let answer = PlainAnswer::Redirect {
                target: HeaderValue::from_bytes(redirect.target).ok()?,
                expires: http_date(u64::from(now) + u64::from(redirect.seconds)),
                caching: cache_control(Freshness::Seconds(redirect.seconds), u32::MAX),
            };
            Some(answer)
        }
        _ => None,
    }
}

impl PlainAnswer {
    /// The response to a request from `origin`. The memory of the headers of the request is used
    /// again.
    #[must_use]
    pub fn respond(self, mut headers: HeaderMap, origin: Option<HeaderValue>) -> GatewayResponse {
        headers.clear();
        if headers.capacity() > HEADERS_KEPT_MAX {
            headers = HeaderMap::new();
        }
        let count = if matches!(self, Self::Redirect { .. }) { REDIRECT_HEADERS } else { JSON_HEADERS };
        headers.reserve(count + if origin.is_some() { ORIGIN_HEADERS } else { 0 });
        match self {
            Self::Redirect { target, expires, caching } => {
                headers.insert(header::LOCATION, target);
                if let Some(expires) = expires {
                    headers.insert(header::EXPIRES, expires);
                }
                headers.insert(header::CACHE_CONTROL, caching);
                headers.insert(header::VARY, HeaderValue::from_static("Origin"));
                allow(origin, &mut headers);
                let mut response = empty(StatusCode::FOUND);
                *response.headers_mut() = headers;
                response
            }
            Self::Json(body) => {
                headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                let mut response = body.respond(headers);
                allow_origin_of(origin, &mut response);
                response
            }
        }
    }
}

/// A table of the characters that are letters, digits or in `others`.
const fn characters(others: &[u8]) -> [bool; 256] {
    let (mut table, mut at) = ([false; 256], 0);
    while at < table.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let byte = at as u8;
        table[at] = byte.is_ascii_alphanumeric();
        at += 1;
    }
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    table
}

/// Whether the table has all of `bytes`.
fn has_all(table: &[bool; 256], bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| table[usize::from(byte)])
}

/// A handle in a path without percent-encoding: the prefix has digits and dots, the local name
/// letters, digits and a few other characters.
#[derive(Clone, Copy, Debug)]
pub struct PlainHandle<'p> {
    text: &'p str,
    prefix_len: usize,
}

impl<'p> PlainHandle<'p> {
    /// The handle that `text` is, if it is one without percent-encoding.
    #[must_use]
    pub fn of(text: &'p str) -> Option<Self> {
        const PLAIN: [bool; 256] = characters(b".-_/");
        let bytes = text.as_bytes();
        let prefix_len = bytes.iter().position(|&byte| !byte.is_ascii_digit() && byte != b'.')?;
        let is_whole = (1..=PREFIX_LEN_MAX).contains(&prefix_len)
            && bytes[prefix_len] == b'/'
            && (prefix_len + 2..=HANDLE_LEN_MAX).contains(&bytes.len())
            && has_all(&PLAIN, &bytes[prefix_len..]);
        is_whole.then_some(Self { text, prefix_len })
    }

    const fn bytes(self) -> &'p [u8] {
        self.text.as_bytes()
    }

    /// The name of the record of the prefix, written to `buffer`.
    fn prefix_record(self, buffer: &mut [u8; PREFIX_LEN_MAX + PREFIX_RECORD.len()]) -> &[u8] {
        let len = PREFIX_RECORD.len() + self.prefix_len;
        buffer[..PREFIX_RECORD.len()].copy_from_slice(PREFIX_RECORD);
        buffer[PREFIX_RECORD.len()..len].copy_from_slice(&self.bytes()[..self.prefix_len]);
        &buffer[..len]
    }
}

/// The redirect to the first URL of a record.
#[derive(Clone, Copy, Debug)]
pub struct RecordRedirect<'r> {
    /// The URL, in characters that need no encoding.
    pub target: &'r [u8],
    /// For how many seconds it may be cached.
    pub seconds: u32,
}

/// Where the records of a plain request are, and the settings for the answer.
#[derive(Clone, Copy, Debug)]
pub struct RecordQuery<'r> {
    /// The state of the process.
    pub state: &'r GatewayState,
    /// The set.
    pub set: &'r MappedGeneration,
    /// The settings in force.
    pub settings: &'r Config,
    /// The source of the request, if the bytes of the answer count before they are sent.
    pub counted: Option<IpAddr>,
}

impl<'r> RecordQuery<'r> {
    /// The redirect to the first URL of a record.
    #[must_use]
    pub fn redirect(self, handle: PlainHandle<'_>, now_unix_s: u32) -> Option<RecordRedirect<'r>> {
        let Self { state, set, settings, .. } = self;
        let (records, service) = (set.records(), state.reading.service());
        let record = stored_record(&records, &service, handle.bytes())?;
        let mut url = None;
        for value in record.public_values() {
            let value = value.ok()?;
            if is_document(&value) || (value.is_public() && fold::eq(value.kind, kind::HS_ALIAS)) {
                return None;
            }
            if url.is_none() && is_url(&value) {
                url = Some(value);
            }
        }
        let url = url?;
        let scheme = plain_scheme(url.data)?;
        if set.homes_prefix_records() {
            let mut buffer = [0; PREFIX_LEN_MAX + PREFIX_RECORD.len()];
            let prefix = stored_record(&records, &service, handle.prefix_record(&mut buffer));
            let mut values = prefix.into_iter().flat_map(|record| record.public_values());
            // Damage is for the general path as well.
            if values.any(|value| value.is_ok_and(|value| is_document(&value))) {
                return None;
            }
        }
        if !settings.proxy.schemes.iter().any(|allowed| allowed == scheme) {
            return None;
        }
        let seconds = keeps_s(url.ttl, now_unix_s).min(settings.caching.seconds_max);
        Some(RecordRedirect { target: url.data, seconds })
    }

    /// Whether an answer with at least so many bytes is not refused for lack of capacity.
    fn has_capacity(self, source: IpAddr, len: usize) -> bool {
        len < LOOKED_LEN || self.state.answers.has_capacity(source, len, self.settings.limits.answers().bytes)
    }

    /// The record as JSON.
    #[must_use]
    pub fn json(self, handle: PlainHandle<'_>, now_unix_s: u32) -> Option<CacheableBody> {
        let record = stored_record(&self.set.records(), &self.state.reading.service(), handle.bytes())?;
        if let Some(source) = self.counted
            && !self.has_capacity(source, record.public_bytes().len())
        {
            return None;
        }
        let (mut keeps, mut is_damaged) = (u32::MAX, false);
        let values = record.public_values().map_while(|value| {
            is_damaged |= value.is_err();
            value.inspect(|value| keeps = keeps.min(keeps_s(value.ttl, now_unix_s))).ok()
        });
        let body = ApiBody::values(ResponseCode::SUCCESS, handle.text, values);
        if is_damaged || record.public_count() == 0 {
            return None;
        }
        let content_type = "application/json;charset=utf-8";
        let freshness = Freshness::Seconds(keeps);
        let tag = BodyTag::Record(tag_of_public_values(record.public_bytes()));
        Some(CacheableBody { content_type, bytes: body.into_bytes().into(), freshness, tag })
    }
}

/// The scheme of a URL that has a host, and no character that has to be encoded.
fn plain_scheme(url: &[u8]) -> Option<&'static str> {
    const PLAIN: [bool; 256] = characters(b"-._/~:?=");
    let (scheme, rest) = match url.strip_prefix(b"https://") {
        Some(rest) => ("https", rest),
        None => ("http", url.strip_prefix(b"http://")?),
    };
    let begins = rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric());
    (begins && has_all(&PLAIN, rest)).then_some(scheme)
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
            if let Some(scheme) = plain_scheme(url.as_bytes()) {
                let general = redirect_target(&url, b"", &schemes).unwrap();
                prop_assert_eq!(&*url, general.as_str());
                prop_assert!(HeaderValue::from_str(&url).is_ok());
                prop_assert_eq!(url.split(':').next(), Some(scheme));
            }
        }
    }

    #[test]
    fn most_handles_and_urls_are_plain() {
        for handle in ["10.1045/july95-arms", "20.500.12345/a_b/c.d", "10.1/00000001"] {
            let plain = PlainHandle::of(handle).unwrap();
            let mut buffer = [0; PREFIX_LEN_MAX + PREFIX_RECORD.len()];
            let (prefix, _) = handle.split_once('/').unwrap();
            assert_eq!(plain.prefix_record(&mut buffer), format!("0.NA/{prefix}").as_bytes());
        }
        for other in ["", "/", "10.1/", "/10.1/a", "hdl.handle.net/10.1/a", "10.1%2Fa", "10.1/a b", "10.1"] {
            assert!(PlainHandle::of(other).is_none(), "{other}");
        }
        assert!(plain_scheme(b"https://example.org/a?b=c").is_some());
        for other in ["http://", "http:///a", "ftp://a/", "http://a/%zz\"", "javascript:x", "http://[::1]/"] {
            assert!(plain_scheme(other.as_bytes()).is_none(), "{other}");
        }
    }
}
