//! Answers of HTTP/1.1: with a length, in chunks, or up to the end.

/// The state of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum ParsedAnswer {
    /// More data is needed.
    Partial,
    /// A whole answer.
    Whole {
        /// Its body, joined if it was chunked.
        body: Vec<u8>,
        /// Its status.
        status: u16,
        /// The target of a redirect.
        location: Option<Vec<u8>>,
        /// Number of bytes used.
        used: usize,
        /// Whether the server closes the connection after it.
        closes: bool,
    },
    /// Not an HTTP answer.
    Broken,
}

const HEADERS_MAX: usize = 64;
/// Maximum number of interim answers before the final one.
const PRECEDING_MAX: usize = 8;

/// Parses the first answer in `bytes`; `is_over` tells that no more data follows.
#[must_use]
pub fn parse(bytes: &[u8], is_over: bool) -> ParsedAnswer {
    let mut preceding_len = 0;
    for _ in 0..=PRECEDING_MAX {
        match parse_one(&bytes[preceding_len..], is_over) {
            // An interim answer.
            ParsedAnswer::Whole { status: 100..200, used, .. } => preceding_len += used,
            ParsedAnswer::Whole { body, status, location, used, closes } => {
                return ParsedAnswer::Whole { body, status, location, used: preceding_len + used, closes };
            }
            other => return other,
        }
    }
    ParsedAnswer::Broken
}

/// Parses one answer; an interim answer has no body.
fn parse_one(bytes: &[u8], is_over: bool) -> ParsedAnswer {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let head_len = match response.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if !is_over => return ParsedAnswer::Partial,
        _ => return ParsedAnswer::Broken,
    };
    let status = response.code.unwrap_or(0);
    if (100..200).contains(&status) {
        let (body, location) = (Vec::new(), None);
        return ParsedAnswer::Whole { body, status, location, used: head_len, closes: false };
    }
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok().map(str::trim)
    };
    let has_header = |name, value: &str| header(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
    let is_old = response.version == Some(0);
    let closes = has_header("connection", "close") || (is_old && !has_header("connection", "keep-alive"));
    let location = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("location"));
    let rest = &bytes[head_len..];
    let whole = |body: Vec<u8>, len: usize, closes| ParsedAnswer::Whole {
        body,
        status,
        location: location.map(|header| header.value.to_vec()),
        used: head_len + len,
        closes,
    };
    // Neither has a body, even if the head announces one.
    if matches!(status, 204 | 304) {
        return whole(Vec::new(), 0, closes);
    }
    if has_header("transfer-encoding", "chunked") {
        return match dechunk(rest) {
            Ok(Some((body, len))) => whole(body, len, closes),
            Ok(None) if !is_over => ParsedAnswer::Partial,
            _ => ParsedAnswer::Broken,
        };
    }
    match header("content-length").map(str::parse::<usize>) {
        Some(Ok(len)) if rest.len() >= len => whole(rest[..len].to_vec(), len, closes),
        // A truncated body is returned as far as it goes.
        Some(Ok(_)) | None if is_over => whole(rest.to_vec(), rest.len(), true),
        Some(Ok(_)) => ParsedAnswer::Partial,
        Some(Err(_)) => ParsedAnswer::Broken,
        None => ParsedAnswer::Partial,
    }
}

/// Joins a chunked body and returns the number of bytes used; `None` if more data is needed.
fn dechunk(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, httparse::InvalidChunkSize> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let httparse::Status::Complete((head_len, len)) = httparse::parse_chunk_size(&bytes[at..])? else {
            return Ok(None);
        };
        let start = at + head_len;
        let Some(end) = usize::try_from(len).ok().and_then(|len| start.checked_add(len)) else {
            return Err(httparse::InvalidChunkSize);
        };
        let Some(after) = bytes.get(end..) else { return Ok(None) };
        if len == 0 {
            // Trailers may follow, up to an empty line.
            let found = if after.starts_with(b"\r\n") {
                Some(2)
            } else {
                after.windows(4).position(|part| part == b"\r\n\r\n").map(|position| position + 4)
            };
            return Ok(found.map(|len| (body, end + len)));
        }
        body.extend_from_slice(&bytes[start..end]);
        match after.get(..2) {
            Some(b"\r\n") => at = end + 2,
            Some(_) => return Err(httparse::InvalidChunkSize),
            None => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> (String, u16, usize, bool) {
        match parse(text.as_bytes(), false) {
            ParsedAnswer::Whole { body, status, used, closes, .. } => {
                (String::from_utf8(body).unwrap(), status, used, closes)
            }
            other => panic!("{text:?} is {other:?}"),
        }
    }

    #[test]
    fn answers_end_where_their_head_says() {
        let with_len = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(whole(&format!("{with_len}HTTP/1.1 2")), ("hello".to_owned(), 200, with_len.len(), false));
        let chunked = "HTTP/1.1 404 No\r\ntransfer-encoding: Chunked\r\nConnection: close\r\n\r\n\
                       5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nTrailer: x\r\n\r\n";
        assert_eq!(whole(chunked), ("hello!".to_owned(), 404, chunked.len(), true));
        let continued = format!("HTTP/1.1 100 Continue\r\n\r\n{with_len}");
        assert_eq!(whole(&continued).2, continued.len());
        for text in [with_len, chunked] {
            for len in 0..text.len() {
                assert_eq!(parse(&text.as_bytes()[..len], false), ParsedAnswer::Partial, "{len} of {text}");
            }
        }
    }

    #[test]
    fn some_answers_have_no_body_whatever_follows() {
        for (head, status) in
            [("HTTP/1.1 204 No\r\n\r\n", 204), ("HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", 304)]
        {
            let text = format!("{head}HTTP/1.1 2");
            let (body, location) = (Vec::new(), None);
            let expected = ParsedAnswer::Whole { body, status, location, used: head.len(), closes: false };
            assert_eq!(parse(text.as_bytes(), false), expected, "{text}");
            assert_eq!(parse(text.as_bytes(), true), expected, "{text}");
        }
    }

    #[test]
    fn few_heads_may_precede_an_answer() {
        let after = |count| format!("{}HTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 102 Wait\r\n\r\n".repeat(count));
        assert_eq!(whole(&after(8)), (String::new(), 204, after(8).len(), false));
        assert_eq!(parse(after(9).as_bytes(), false), ParsedAnswer::Broken);
        assert_eq!(parse(after(100_000).as_bytes(), false), ParsedAnswer::Broken);
    }

    #[test]
    fn without_a_length_an_answer_ends_with_the_connection() {
        let text = b"HTTP/1.0 200 OK\r\n\r\nhello";
        assert_eq!(parse(text, false), ParsedAnswer::Partial);
        let body = b"hello".to_vec();
        assert_eq!(
            parse(text, true),
            ParsedAnswer::Whole { body, status: 200, location: None, used: text.len(), closes: true }
        );
    }

    #[test]
    fn redirects_name_their_target() {
        let text = b"HTTP/1.1 302 Found\r\nlocation: https://example.org/\r\nContent-Length: 0\r\n\r\n";
        let ParsedAnswer::Whole { status, location, .. } = parse(text, false) else { panic!("whole") };
        assert_eq!((status, location.as_deref()), (302, Some(&b"https://example.org/"[..])));
    }

    #[test]
    fn invalid_answers_are_broken() {
        for text in [
            &b"NONSENSE\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        ] {
            assert_eq!(parse(text, false), ParsedAnswer::Broken, "{}", String::from_utf8_lossy(text));
        }
    }
}
