//! Answers to plain requests, as the bytes that hyper sends for them.

use super::head::PlainHead;
use crate::fast_path::RecordRedirect;
use crate::reply::{EXPOSED_HEADERS, Freshness, NegotiatedBody, cache_control, http_date};
use handle_daemon::clock::{now_unix, wire_s};
use hyper::header::{self, HeaderName, HeaderValue};
use std::time::{Duration, Instant};

/// Ends of redirects that are kept. Most records of a set have one of a few times to live.
const ENDS_COUNT: usize = 8;

/// Writes answers. A worker has one writer for all its connections.
#[derive(Debug, Default)]
pub struct AnswerWriter {
    clock: WorkerClock,
    ends: [RedirectEnd; ENDS_COUNT],
}

/// The time of day, which is asked for once a second.
#[derive(Debug, Default)]
struct WorkerClock {
    /// The end of the second; `None` before the first.
    until: Option<Instant>,
    unix_s: u64,
    /// The value of `Date`.
    date: Option<HeaderValue>,
}

/// The bytes after the target of a redirect for GET without an origin.
#[derive(Debug, Default)]
struct RedirectEnd {
    /// The time of the answer, and for how many seconds it may be cached.
    times: (u64, u32),
    bytes: Vec<u8>,
}

impl WorkerClock {
    fn set(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        let unix = now_unix();
        let rest = Duration::from_secs(1) - Duration::from_nanos(unix.subsec_nanos().into());
        (self.until, self.unix_s) = (Some(now + rest), unix.as_secs());
        self.date = http_date(self.unix_s);
    }
}

impl AnswerWriter {
    /// Sets the time of the answers that follow.
    pub fn set_time(&mut self, now: Instant) {
        self.clock.set(now);
    }

    /// The time of the answers, in seconds since 1970.
    #[must_use]
    pub const fn unix_s(&self) -> u32 {
        wire_s(Duration::from_secs(self.clock.unix_s))
    }

    /// Appends a redirect.
    pub fn write_redirect(
        &mut self,
        redirect: &RecordRedirect<'_>,
        head: &PlainHead<'_>,
        output: &mut Vec<u8>,
    ) {
        output.extend_from_slice(b"HTTP/1.1 302 Found\r\nlocation: ");
        output.extend_from_slice(redirect.target);
        if head.origin.is_some() || head.is_head {
            return self.write_redirect_end(redirect.seconds, head, output);
        }
        let times = (self.clock.unix_s, redirect.seconds);
        let at = redirect.seconds as usize % ENDS_COUNT;
        if self.ends[at].times != times || self.ends[at].bytes.is_empty() {
            let mut bytes = std::mem::take(&mut self.ends[at].bytes);
            bytes.clear();
            self.write_redirect_end(redirect.seconds, head, &mut bytes);
            self.ends[at] = RedirectEnd { times, bytes };
        }
        output.extend_from_slice(&self.ends[at].bytes);
    }

    fn write_redirect_end(&self, seconds: u32, head: &PlainHead<'_>, output: &mut Vec<u8>) {
        output.extend_from_slice(b"\r\n");
        if let Some(expires) = http_date(u64::from(self.unix_s()) + u64::from(seconds)) {
            put_header(&header::EXPIRES, expires.as_bytes(), output);
        }
        let caching = cache_control(Freshness::Seconds(seconds), u32::MAX);
        put_header(&header::CACHE_CONTROL, caching.as_bytes(), output);
        put_header(&header::VARY, b"Origin", output);
        self.write_head_end(head, 0, output);
    }

    /// Appends a record as JSON, without the body if the method is HEAD.
    ///
    /// `body` is one that the client does not have, because a plain request names no tags.
    pub fn write_json(&self, body: &NegotiatedBody, head: &PlainHead<'_>, output: &mut Vec<u8>) {
        let Some((content_type, bytes)) = &body.body else { return };
        output.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        put_header(&header::X_CONTENT_TYPE_OPTIONS, b"nosniff", output);
        put_header(&header::CONTENT_TYPE, content_type.as_bytes(), output);
        if let Some(coding) = body.coding {
            put_header(&header::CONTENT_ENCODING, coding.token().as_bytes(), output);
        }
        put_header(&header::VARY, b"Accept-Encoding, Origin", output);
        if let Some(tag) = &body.tag {
            put_header(&header::ETAG, tag.as_bytes(), output);
        }
        put_header(&header::CACHE_CONTROL, body.caching.as_bytes(), output);
        self.write_head_end(head, bytes.bytes().len(), output);
        if !head.is_head {
            output.extend_from_slice(bytes.bytes());
        }
    }

    /// Appends the headers with which all answers end, and the empty line.
    fn write_head_end(&self, head: &PlainHead<'_>, body_len: usize, output: &mut Vec<u8>) {
        if let Some(origin) = head.origin {
            put_header(&header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.as_bytes(), output);
            put_header(&header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS.as_bytes(), output);
        }
        // Like hyper, which does not say of an answer to HEAD that the other one has no body.
        if body_len > 0 || !head.is_head {
            put_header(&header::CONTENT_LENGTH, HeaderValue::from(body_len).as_bytes(), output);
        }
        if let Some(date) = &self.clock.date {
            put_header(&header::DATE, date.as_bytes(), output);
        }
        output.extend_from_slice(b"\r\n");
    }
}

fn put_header(name: &HeaderName, value: &[u8], output: &mut Vec<u8>) {
    output.extend_from_slice(name.as_str().as_bytes());
    output.extend_from_slice(b": ");
    output.extend_from_slice(value);
    output.extend_from_slice(b"\r\n");
}
