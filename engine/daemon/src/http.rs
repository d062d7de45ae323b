//! The part of HTTP that a scraper needs: one `GET` or `HEAD` in, one response out, then the end.
//!
//! Pure functions over bytes; sockets are in [`scrape`](crate::scrape). Bodies of requests are not
//! read, and every response says `Connection: close`.

use std::fmt::Write as _;

/// Maximum number of header lines of a request; more than any scraper or load balancer sends.
const HEADERS_MAX: usize = 64;

/// A parsed HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpRequest<'a> {
    /// The path, without a query.
    pub path: &'a str,
    /// Whether the method is `HEAD`.
    pub is_head: bool,
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// The request is not HTTP/1.
    Malformed,
    /// The head is longer than the limit.
    TooLong,
    /// The method is neither `GET` nor `HEAD`.
    Method,
}

impl BadRequest {
    /// The status for this reason.
    #[must_use]
    pub const fn status(self) -> HttpStatus {
        match self {
            Self::Malformed => HttpStatus::BadRequest,
            Self::TooLong => HttpStatus::HeaderTooLarge,
            Self::Method => HttpStatus::MethodNotAllowed,
        }
    }
}

/// Parses the head of a request. `bytes` is the input so far, and `len_max` the maximum length of
/// the head. `None` while the head is incomplete.
///
/// # Errors
/// When the request has to be refused, whatever input follows.
pub fn parse(bytes: &[u8], len_max: usize) -> Result<Option<HttpRequest<'_>>, BadRequest> {
    let read = &bytes[..bytes.len().min(len_max)];
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(read) {
        Err(httparse::Error::TooManyHeaders) => Err(BadRequest::TooLong),
        Err(_) => Err(BadRequest::Malformed),
        Ok(httparse::Status::Partial) if bytes.len() >= len_max => Err(BadRequest::TooLong),
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(_)) => {
            let is_head = match request.method {
                Some("GET") => false,
                Some("HEAD") => true,
                _ => return Err(BadRequest::Method),
            };
            let target = request.path.unwrap_or_default();
            let path = target.split(['?', '#']).next().unwrap_or_default();
            Ok(Some(HttpRequest { path, is_head }))
        }
    }
}

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpStatus {
    /// 200.
    Ok,
    /// 400.
    BadRequest,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 431.
    HeaderTooLarge,
    /// 503.
    Unavailable,
}

impl HttpStatus {
    /// All statuses; the position of each is its discriminant.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::BadRequest,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::HeaderTooLarge,
        Self::Unavailable,
    ];

    /// Status code and reason phrase of the status line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeaderTooLarge => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }

    /// The status code, as three digits.
    #[must_use]
    pub fn code(self) -> &'static str {
        &self.text()[..3]
    }
}

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status.
    pub status: HttpStatus,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl HttpResponse {
    /// A response with a plain text body.
    #[must_use]
    pub fn text(status: HttpStatus, body: impl Into<String>) -> Self {
        let mut body = body.into();
        body.push('\n');
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// The bytes to send; without the body for `HEAD`.
    #[must_use]
    pub fn to_bytes(&self, is_head: bool) -> Vec<u8> {
        let mut text = String::with_capacity(256 + self.body.len());
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n",
            self.status.text(),
            self.content_type,
            self.body.len()
        );
        if self.status == HttpStatus::MethodNotAllowed {
            text.push_str("Allow: GET, HEAD\r\n");
        }
        text.push_str("Connection: close\r\n\r\n");
        if !is_head {
            text.push_str(&self.body);
        }
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET /metrics?name=x HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";

    #[test]
    fn waits_for_every_missing_byte() {
        for len in 0..GET.len() {
            assert_eq!(parse(&GET[..len], 4096), Ok(None), "cut to {len}");
        }
        assert_eq!(parse(GET, 4096), Ok(Some(HttpRequest { path: "/metrics", is_head: false })));
        let head = b"HEAD /healthz HTTP/1.0\r\n\r\nbytes of a body that nobody reads";
        assert_eq!(parse(head, 4096), Ok(Some(HttpRequest { path: "/healthz", is_head: true })));
    }

    #[test]
    fn the_head_may_be_as_long_as_the_limit_and_not_longer() {
        assert!(parse(GET, GET.len()).unwrap().is_some());
        assert_eq!(parse(GET, GET.len() - 1), Err(BadRequest::TooLong));
        assert_eq!(parse(&GET[..20], 20), Err(BadRequest::TooLong), "it can only become longer");
        let many = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count)).into_bytes();
        assert!(parse(&many(HEADERS_MAX), 4096).unwrap().is_some());
        assert_eq!(parse(&many(HEADERS_MAX + 1), 4096), Err(BadRequest::TooLong));
    }

    #[test]
    fn refuses_what_is_no_request_and_methods_that_change_something() {
        for bytes in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..],
            b"GET /metrics\r\n\r\n",
            b"GET /metrics HTTP/2.0\r\n\r\n",
            b"GET /a b HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
            b"\0\0\0\0",
        ] {
            assert_eq!(parse(bytes, 4096), Err(BadRequest::Malformed), "{}", bytes.escape_ascii());
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "get"] {
            let bytes = format!("{method} /metrics HTTP/1.1\r\n\r\n");
            assert_eq!(parse(bytes.as_bytes(), 4096), Err(BadRequest::Method), "{method}");
        }
    }

    #[test]
    fn a_head_has_the_length_of_the_body_it_does_not_send() {
        let response = HttpResponse::text(HttpStatus::Ok, "fine");
        let get = String::from_utf8(response.to_bytes(false)).unwrap();
        let head = String::from_utf8(response.to_bytes(true)).unwrap();
        assert!(head.contains("\r\nContent-Length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert_eq!(get, format!("{head}fine\n"));
        let refused = HttpResponse::text(HttpStatus::MethodNotAllowed, "no").to_bytes(false);
        assert!(String::from_utf8(refused).unwrap().contains("\r\nAllow: GET, HEAD\r\n"));
        assert_eq!(HttpStatus::ALL.map(HttpStatus::code), ["200", "400", "404", "405", "431", "503"]);
        for (at, status) in HttpStatus::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, at);
        }
    }
}
