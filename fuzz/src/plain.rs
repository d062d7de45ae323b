//! The reader of plain requests in front of hyper.

use handle_gateway::admission::check_framing;
use handle_gateway::connections::activity::ConnectionActivity;
use handle_gateway::connections::plain::head::{PlainHead, UnreadHead};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Maximum length of a head here.
const HEAD_LEN_MAX: usize = 8192;
/// Bytes of which every start is read.
const STARTS_LEN_MAX: usize = 512;
/// Maximum number of headers that hyper reads.
const HEADERS_MAX: usize = 100;

/// The reader says the same about a head however much of it has arrived. A head that it accepts has
/// complete line ends, one host and no header about a body or an upgrade, and httparse, which hyper
/// uses, reads it alike. What a connection notes about a head does not depend on its parts.
///
/// Input: a byte for the length of parts, and the head of a request.
pub fn plain_head(bytes: &[u8]) {
    let Some((&part, bytes)) = bytes.split_first() else { return };
    let (part_len, bytes) = (usize::from(part) + 1, &bytes[..bytes.len().min(HEAD_LEN_MAX)]);
    let reading = PlainHead::read(bytes);
    for len in 0..bytes.len().min(STARTS_LEN_MAX) {
        match PlainHead::read(&bytes[..len]) {
            Err(UnreadHead::Incomplete) => {
                assert!(reading.is_err() || reading.is_ok_and(|head| head.len > len))
            }
            early => assert_eq!(early, reading, "{len} bytes"),
        }
    }
    let facts = |part_len| {
        let activity = ConnectionActivity::new(HEAD_LEN_MAX / 2);
        bytes.chunks(part_len).for_each(|part| activity.add_head(part));
        let lines = ["content-length", "transfer-encoding"].map(|name| activity.has_line(name));
        (activity.has_framing_with_bare_line_feed(), activity.exceeds_head(), lines)
    };
    assert_eq!(facts(part_len), facts(HEAD_LEN_MAX));
    if let Ok(head) = reading {
        check(&head, &bytes[..head.len]);
    }
}

fn check(head: &PlainHead<'_>, bytes: &[u8]) {
    let text = str::from_utf8(bytes).expect("plain heads are ASCII");
    assert!(!text.replace("\r\n", "").bytes().any(|byte| byte.is_ascii_control()), "{text:?}");
    let mut buffer = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut buffer);
    assert_eq!(request.parse(bytes), Ok(httparse::Status::Complete(bytes.len())), "{text:?}");
    let method = if head.is_head { "HEAD" } else { "GET" };
    assert_eq!((request.method, request.path, request.version), (Some(method), Some(head.target), Some(1)));
    let headers: HeaderMap = request
        .headers
        .iter()
        .map(|header| {
            let name = HeaderName::from_bytes(header.name.as_bytes()).expect("a name");
            (name, HeaderValue::from_bytes(header.value).expect("a value"))
        })
        .collect();
    for (name, count) in [
        (header::HOST, 1),
        (header::CONTENT_LENGTH, 0),
        (header::TRANSFER_ENCODING, 0),
        (header::UPGRADE, 0),
        (header::EXPECT, 0),
        (header::TE, 0),
        (header::AUTHORIZATION, 0),
    ] {
        assert_eq!(headers.get_all(name).iter().count(), count, "{text:?}");
    }
    let is_kept = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"keep-alive");
    assert!(headers.get_all(header::CONNECTION).iter().all(is_kept), "{text:?}");
    for (name, value) in [(header::ORIGIN, head.origin), (header::ACCEPT_ENCODING, head.accept_encoding)] {
        assert!(headers.get_all(name).iter().eq(value), "{text:?}");
    }
    let activity = ConnectionActivity::new(HEAD_LEN_MAX);
    activity.add_head(bytes);
    assert_eq!(check_framing(&headers, &activity), Ok(()), "{text:?}");
}
