//! HTTP responses, and the headers that all of them share.

use crate::answers::{AnswerPart, NoAnswerCapacity};
use crate::compression::ContentCoding;
use crate::config::Config;
use crate::stream::ResponseBody;
use handle_proto::wire::guard::RecordTag;
use hyper::body::Bytes;
use hyper::header::{self, Entry, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use std::cell::RefCell;
use std::sync::OnceLock;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// A response.
pub type GatewayResponse = Response<ResponseBody>;

/// The headers of a request on which headers of every response depend.
#[derive(Clone, Copy, Debug)]
pub struct RequestHeaders<'r> {
    /// The method.
    pub method: &'r Method,
    /// All headers.
    pub headers: &'r HeaderMap,
}

/// A request, as far as the form of the body of its response depends on it.
pub trait BodyRequest {
    /// The method.
    fn method(&self) -> &Method;
    /// The values of `Accept-Encoding`.
    fn accepted_codings(&self) -> impl Iterator<Item = &str>;
    /// The values of `If-None-Match`.
    fn known_tags(&self) -> impl Iterator<Item = &str>;
}

impl RequestHeaders<'_> {
    fn all(&self, name: HeaderName) -> impl Iterator<Item = &str> {
        self.headers.get_all(name).iter().filter_map(|list| list.to_str().ok())
    }
}

impl BodyRequest for RequestHeaders<'_> {
    fn method(&self) -> &Method {
        self.method
    }

    fn accepted_codings(&self) -> impl Iterator<Item = &str> {
        self.all(header::ACCEPT_ENCODING)
    }

    fn known_tags(&self) -> impl Iterator<Item = &str> {
        self.all(header::IF_NONE_MATCH)
    }
}

/// How long an answer may be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Not at all.
    NoStore,
    /// So many seconds.
    Seconds(u32),
}

/// A response with this body.
#[must_use]
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> GatewayResponse {
    let mut response = Response::new(ResponseBody::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A response without a body.
#[must_use]
pub fn empty(status: StatusCode) -> GatewayResponse {
    let mut response = Response::new(ResponseBody::from(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Stands for an answer that was not made, because there is no capacity for it.
#[must_use]
pub fn no_capacity() -> GatewayResponse {
    let mut response = empty(StatusCode::SERVICE_UNAVAILABLE);
    response.extensions_mut().insert(NoAnswerCapacity);
    response
}

/// A response with `text` for people.
#[must_use]
pub fn plain(status: StatusCode, text: impl Into<Bytes>) -> GatewayResponse {
    response(status, "text/plain;charset=utf-8", text)
}

/// A body that may be cached and compressed, with the headers for both.
#[derive(Debug)]
pub struct CacheableBody {
    /// The media type.
    pub content_type: &'static str,
    /// The bytes.
    pub bytes: BodyText,
    /// How long it may be cached.
    pub freshness: Freshness,
    /// What its tag is made of.
    pub tag: BodyTag,
}

/// What the entity tag of a body is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyTag {
    /// The bytes.
    Bytes,
    /// The tag of the record that the body shows. Clients name it in conditions on changes.
    Record(RecordTag),
    /// The tag of the record, and the bytes, which show values that the tag does not cover.
    RecordAndBytes(RecordTag),
}

impl BodyTag {
    fn entity_tag(self, bytes: &[u8]) -> EntityTag {
        match self {
            Self::Bytes => EntityTag { hash: xxh3_128(bytes), detail: None },
            Self::Record(tag) => EntityTag { hash: u128::from_be_bytes(tag), detail: None },
            Self::RecordAndBytes(tag) => {
                EntityTag { hash: u128::from_be_bytes(tag), detail: Some(xxh3_64(bytes)) }
            }
        }
    }
}

/// A strong entity tag without the coding of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntityTag {
    hash: u128,
    /// Hash of what `hash` does not cover.
    detail: Option<u64>,
}

/// The bytes of a body.
#[derive(Debug)]
pub enum BodyText {
    /// Bytes of this answer alone.
    Own(Vec<u8>),
    /// A text of the program, which all answers with it share.
    Shared(&'static SharedText),
}

impl From<Vec<u8>> for BodyText {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Own(bytes)
    }
}

impl BodyText {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(text) => text.text.as_bytes(),
        }
    }

    /// The bytes in `coding`, if that makes them shorter.
    fn encode(&self, coding: ContentCoding) -> Option<AnswerPart> {
        match self {
            Self::Own(bytes) => coding.encode(bytes).map(|bytes| AnswerPart::new(bytes.into())),
            Self::Shared(text) => text.encode(coding).map(AnswerPart::shared),
        }
    }

    fn into_part(self) -> AnswerPart {
        match self {
            Self::Own(bytes) => AnswerPart::new(bytes.into()),
            Self::Shared(text) => AnswerPart::shared(Bytes::from_static(text.text.as_bytes())),
        }
    }
}

/// A text of the program, and what it is in each coding, from the first answer in it on.
#[derive(Debug)]
pub struct SharedText {
    /// The text.
    pub text: &'static str,
    encoded: [OnceLock<Option<Bytes>>; ContentCoding::ALL.len()],
}

impl SharedText {
    /// A text.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self { text, encoded: [const { OnceLock::new() }; ContentCoding::ALL.len()] }
    }

    fn encode(&self, coding: ContentCoding) -> Option<Bytes> {
        let at = ContentCoding::ALL.into_iter().position(|other| other == coding)?;
        self.encoded[at].get_or_init(|| coding.encode(self.text.as_bytes()).map(Bytes::from)).clone()
    }
}

impl CacheableBody {
    /// The response with `status`: 304 where the client has this body, compressed where that
    /// is accepted and worth it.
    #[must_use]
    pub fn respond(
        self,
        status: StatusCode,
        request_headers: RequestHeaders<'_>,
        settings: &Config,
    ) -> GatewayResponse {
        self.negotiate(status, &request_headers, settings).respond(HeaderMap::with_capacity(HEADERS_COUNT))
    }

    /// Chooses what [`respond`](Self::respond) sends.
    #[must_use]
    pub fn negotiate(
        self,
        status: StatusCode,
        request: &impl BodyRequest,
        settings: &Config,
    ) -> NegotiatedBody {
        let (caching, compression) = (&settings.caching, &settings.compression);
        // What a HEAD request asks about is not compressed only to be dropped.
        let is_compressible = compression.enabled
            && *request.method() != Method::HEAD
            && (compression.least_bytes..=compression.most_bytes).contains(&self.bytes.bytes().len());
        let coding = is_compressible.then(|| ContentCoding::choose(request.accepted_codings())).flatten();
        // The tag of an answer to PUT would be that of the new representation. RFC 9110 section
        // 9.3.4.
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let has_tag = is_read && status == StatusCode::OK;
        let tag = has_tag.then(|| self.tag.entity_tag(self.bytes.bytes()));
        let is_not_modified = tag.is_some_and(|tag| has_current_copy(request, tag, coding));
        let (body, coding) = if is_not_modified {
            (None, coding)
        } else {
            let encoded = coding.and_then(|coding| self.bytes.encode(coding));
            let coding = coding.filter(|_| encoded.is_some());
            (Some((self.content_type, encoded.unwrap_or_else(|| self.bytes.into_part()))), coding)
        };
        NegotiatedBody {
            status: if is_not_modified { StatusCode::NOT_MODIFIED } else { status },
            body,
            coding,
            varies: status.is_success() || compression.enabled,
            tag: tag.map(|tag| tag.header(coding)),
            caching: cache_control(self.freshness, caching.seconds_max),
        }
    }
}

/// Number of headers of most responses.
const HEADERS_COUNT: usize = 6;

/// What a [`CacheableBody`] amounts to for one request.
#[derive(Debug)]
pub struct NegotiatedBody {
    /// The status.
    pub status: StatusCode,
    /// Media type and bytes; `None` for a client that has the body.
    pub body: Option<(&'static str, AnswerPart)>,
    /// The coding of the bytes.
    pub coding: Option<ContentCoding>,
    /// Whether it depends on `Accept-Encoding`.
    pub varies: bool,
    /// The value of `ETag`.
    pub tag: Option<HeaderValue>,
    /// The value of `Cache-Control`.
    pub caching: HeaderValue,
}

impl NegotiatedBody {
    /// The response, whose headers are added to `headers`.
    #[must_use]
    pub fn respond(self, mut headers: HeaderMap) -> GatewayResponse {
        let Self { status, body, coding, varies, tag, caching } = self;
        let bytes = body.map(|(content_type, bytes)| {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            if let Some(coding) = coding {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.token()));
            }
            bytes
        });
        if varies {
            headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if let Some(tag) = tag {
            headers.insert(header::ETAG, tag);
        }
        headers.insert(header::CACHE_CONTROL, caching);
        let mut response = empty(status);
        *response.headers_mut() = headers;
        if let Some(bytes) = bytes {
            *response.body_mut() = ResponseBody::Whole(bytes);
        }
        response
    }
}

/// The last header values that were formatted from numbers on this thread. Most of them repeat.
struct RecentValues {
    values: RefCell<[Option<(u64, HeaderValue)>; RECENT_LEN]>,
}

const RECENT_LEN: usize = 8;

impl RecentValues {
    const fn new() -> Self {
        Self { values: RefCell::new([const { None }; RECENT_LEN]) }
    }

    /// The value for `number`, made by `make` if it is not among the last ones.
    fn get(&self, number: u64, make: impl FnOnce() -> Option<HeaderValue>) -> Option<HeaderValue> {
        let slot = usize::try_from(number % RECENT_LEN as u64).unwrap_or(0);
        let mut values = self.values.borrow_mut();
        if let Some((_, value)) = values[slot].as_ref().filter(|(known, _)| *known == number) {
            return Some(value.clone());
        }
        let value = make()?;
        values[slot] = Some((number, value.clone()));
        Some(value)
    }
}

/// The value of `Cache-Control`.
#[must_use]
pub fn cache_control(freshness: Freshness, seconds_max: u32) -> HeaderValue {
    thread_local! {
        static RECENT: RecentValues = const { RecentValues::new() };
    }
    let no_store = HeaderValue::from_static("no-store");
    let Freshness::Seconds(seconds) = freshness else { return no_store };
    let seconds = seconds.min(seconds_max);
    let make = || HeaderValue::try_from(format!("max-age={seconds}")).ok();
    RECENT.with(|recent| recent.get(seconds.into(), make)).unwrap_or(no_store)
}

/// A time as in `Expires`; `None` for one that is too far in the future.
#[must_use]
pub fn http_date(unix_s: u64) -> Option<HeaderValue> {
    thread_local! {
        static RECENT: RecentValues = const { RecentValues::new() };
    }
    RECENT.with(|recent| {
        recent.get(unix_s, || {
            let time = jiff::Timestamp::from_second(unix_s.cast_signed()).ok()?;
            HeaderValue::try_from(time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()).ok()
        })
    })
}

impl EntityTag {
    /// The value of `ETag`: the hashes in digits, and the coding.
    fn header(self, coding: Option<ContentCoding>) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut tag = [b'"'; 57];
        for (digit, at) in tag[1..33].iter_mut().zip((0..32).rev()) {
            *digit = DIGITS[usize::from((self.hash >> (4 * at)).to_le_bytes()[0] & 15)];
        }
        let mut len = 33;
        if let Some(detail) = self.detail {
            tag[len] = b'-';
            for (digit, at) in tag[len + 1..len + 17].iter_mut().zip((0..16).rev()) {
                *digit = DIGITS[usize::from((detail >> (4 * at)).to_le_bytes()[0] & 15)];
            }
            len += 17;
        }
        if let Some(coding) = coding {
            let token = coding.token().as_bytes();
            tag[len] = b'-';
            tag[len + 1..=len + token.len()].copy_from_slice(token);
            len += 1 + token.len();
        }
        tag[len] = b'"';
        HeaderValue::from_bytes(&tag[..=len]).expect("printable ASCII")
    }
}

/// Whether `If-None-Match` has the tag of this body, by weak comparison.
fn has_current_copy(request: &impl BodyRequest, tag: EntityTag, coding: Option<ContentCoding>) -> bool {
    let mut lists = request.known_tags().peekable();
    if lists.peek().is_none() {
        return false;
    }
    let tag = tag.header(coding);
    let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known).as_bytes() == tag.as_bytes())
}

/// Whether a value of `Accept` contains HTML, as those of browsers do.
#[must_use]
pub fn names_html(list: impl AsRef<[u8]>) -> bool {
    list.as_ref().windows("text/html".len()).any(|part| part == b"text/html")
}

const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET,POST,HEAD,PUT,DELETE");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "X-Requested-With,Authorization,Origin,Accept,Content-Type,If-None-Match,If-Match,Idempotency-Key",
);
/// The value of `Access-Control-Expose-Headers`.
pub const EXPOSED_HEADERS: HeaderValue =
    HeaderValue::from_static("Content-Length,WWW-Authenticate,Location,ETag");
/// Seconds for which a browser keeps the answer to a preflight request.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("86400");

/// The answer to the preflight request of a browser; `None` if the request is none.
#[must_use]
pub fn preflight(request_headers: RequestHeaders<'_>) -> Option<GatewayResponse> {
    let is_preflight = *request_headers.method == Method::OPTIONS
        && request_headers.headers.contains_key(header::ORIGIN)
        && request_headers.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    is_preflight.then(|| {
        let mut response = empty(StatusCode::OK);
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
        response
    })
}

/// Allows scripts of other origins to read the response.
pub fn allow_origin(request_headers: RequestHeaders<'_>, response: &mut GatewayResponse) {
    allow_origin_of(request_headers.headers.get(header::ORIGIN).cloned(), response);
}

/// Allows scripts of `origin`, from which the request comes, to read the response.
pub fn allow_origin_of(origin: Option<HeaderValue>, response: &mut GatewayResponse) {
    let headers = response.headers_mut();
    // Also without an origin: a cache must not show this response to a script.
    match headers.entry(header::VARY) {
        Entry::Vacant(none) => {
            none.insert(HeaderValue::from_static("Origin"));
        }
        // One line for the usual two names.
        Entry::Occupied(mut varies) if varies.iter().eq(["Accept-Encoding"]) => {
            varies.insert(HeaderValue::from_static("Accept-Encoding, Origin"));
        }
        Entry::Occupied(mut varies) => varies.append(HeaderValue::from_static("Origin")),
    }
    allow(origin, headers);
}

/// Allows scripts of `origin` to read the response with these headers, which has to vary with
/// `Origin`.
pub fn allow(origin: Option<HeaderValue>, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
}

/// Sets a header to a number.
pub fn set_number(response: &mut GatewayResponse, name: HeaderName, number: u32) {
    response.headers_mut().insert(name, HeaderValue::from(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(HeaderName, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_tag_is_the_hash_in_digits_and_the_coding() {
        let hash = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;
        let detail = 0x0011_2233_4455_6677_u64;
        for (tag, digits) in [
            (EntityTag { hash, detail: None }, format!("{hash:032x}")),
            (EntityTag { hash, detail: Some(detail) }, format!("{hash:032x}-{detail:016x}")),
        ] {
            assert_eq!(tag.header(None), format!("\"{digits}\""));
            for coding in ContentCoding::ALL {
                assert_eq!(tag.header(Some(coding)), format!("\"{digits}-{}\"", coding.token()));
            }
        }
    }

    #[test]
    fn values_of_numbers_are_right_however_often_they_are_made() {
        for _ in 0..2 {
            for seconds in 0..20 {
                assert_eq!(cache_control(Freshness::Seconds(seconds), 100), format!("max-age={seconds}"));
                let date = http_date(784_111_777 + u64::from(seconds)).unwrap();
                assert_eq!(date, format!("Sun, 06 Nov 1994 08:49:{} GMT", 37 + seconds));
            }
        }
        assert_eq!(cache_control(Freshness::Seconds(5), 3), "max-age=3");
        assert_eq!(cache_control(Freshness::NoStore, 3), "no-store");
    }

    #[test]
    fn bodies_of_medium_length_are_compressed() {
        let settings = Config::default();
        let headers = headers(&[(header::ACCEPT_ENCODING, "gzip")]);
        for (len, is_compressed) in [(1023, false), (1024, true), (256 << 10, true), ((256 << 10) + 1, false)]
        {
            let body = CacheableBody {
                content_type: "application/json",
                bytes: vec![b'x'; len].into(),
                freshness: Freshness::NoStore,
                tag: BodyTag::Bytes,
            };
            let request = RequestHeaders { method: &Method::GET, headers: &headers };
            let answer = body.respond(StatusCode::OK, request, &settings);
            assert_eq!(answer.headers().contains_key(header::CONTENT_ENCODING), is_compressed, "{len} bytes");
        }
    }

    #[test]
    fn a_body_that_the_client_has_is_not_sent_again() {
        let body = || CacheableBody {
            content_type: "application/json",
            bytes: vec![b'x'; 2000].into(),
            freshness: Freshness::Seconds(200_000),
            tag: BodyTag::Bytes,
        };
        let settings = Config::default();
        let answer = |method, list: &[(HeaderName, &'static str)], status| {
            let headers = headers(list);
            body().respond(status, RequestHeaders { method: &method, headers: &headers }, &settings)
        };
        let respond = |list: &[(HeaderName, &'static str)], status| answer(Method::GET, list, status);
        let whole = respond(&[], StatusCode::OK);
        let tag = whole.headers()[header::ETAG].to_str().unwrap().to_owned();
        assert_eq!(whole.headers()[header::CACHE_CONTROL], "max-age=172800");
        let tag: &'static str = tag.leak();
        let again = respond(&[(header::IF_NONE_MATCH, tag)], StatusCode::OK);
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(again.headers()[header::ETAG], tag);
        let other =
            respond(&[(header::IF_NONE_MATCH, tag), (header::ACCEPT_ENCODING, "gzip")], StatusCode::OK);
        assert_eq!(other.status(), StatusCode::OK, "the compressed body is another representation");
        assert_eq!(other.headers()[header::CONTENT_ENCODING], "gzip");
        let changed = answer(Method::PUT, &[(header::IF_NONE_MATCH, tag)], StatusCode::OK);
        assert_eq!((changed.status(), changed.headers().get(header::ETAG)), (StatusCode::OK, None));
        let missing = respond(&[(header::IF_NONE_MATCH, "*")], StatusCode::NOT_FOUND);
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    }
}
