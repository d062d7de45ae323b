//! Answers of HTTP/1.1: with a length, in chunks, or up to the end.

use handle_client::http_answer::{HttpAnswerHead, HttpAnswerReader};

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

/// Parses the first answer in `bytes`; `is_over` tells that no more data follows.
#[must_use]
pub fn parse(bytes: &[u8], is_over: bool) -> ParsedAnswer {
    let (mut reader, mut body) = (HttpAnswerReader::default(), Vec::new());
    let Ok(used) = reader.read(bytes, &mut body) else { return ParsedAnswer::Broken };
    // A truncated body is returned as far as it goes.
    let ends_here = is_over && reader.is_in_plain_body();
    match reader.head() {
        Some(head) if reader.is_over() || ends_here => {
            let HttpAnswerHead { status, location, closes } = head.clone();
            ParsedAnswer::Whole { body, status, location, used, closes: closes || ends_here }
        }
        _ if is_over => ParsedAnswer::Broken,
        _ => ParsedAnswer::Partial,
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
