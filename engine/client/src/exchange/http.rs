//! Messages as bodies of HTTP/1.1: one request on a connection, and its response.
//!
//! Servers dispatch on the content type, so the path only shows the handle. Deployed servers
//! delimit the body by a length, by the end of the connection, or in chunks.

use super::AttemptError;
use crate::http_answer::{HttpAnswerReader, MalformedAnswer};
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use std::net::SocketAddr;

/// Most bytes of a body: the longest message, and an empty line that deployed clients skip.
const BODY_LEN_MAX: usize = Envelope::LEN + MESSAGE_LEN_MAX as usize + 1;

const CONTENT_TYPE: &str = "application/x-hdl-message";
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &UNRESERVED.remove(b'/').remove(b'%').remove(b':').remove(b'@').remove(b'+');

/// The HTTP request that carries `message`, which is about `handle`.
///
/// `host` is the name of the server, if it is valid in a header field, and `path` the part of the
/// path before the handle.
pub(super) fn request(
    address: SocketAddr,
    port_default: u16,
    host: Option<&str>,
    path: &str,
    handle: &[u8],
    message: &[u8],
) -> Vec<u8> {
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let mut host = match (host.filter(is_name), address) {
        (Some(name), _) => name.to_owned(),
        (None, SocketAddr::V4(address)) => address.ip().to_string(),
        (None, SocketAddr::V6(address)) => format!("[{}]", address.ip()),
    };
    if address.port() != port_default {
        host.push_str(&format!(":{}", address.port()));
    }
    let path = path.trim_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    let (path, handle) = (percent_encode(path.as_bytes(), PATH), percent_encode(handle, UNRESERVED));
    let head = format!(
        "POST {slash}{path}/{handle} HTTP/1.1\r\nHost: {host}\r\nAccept: {CONTENT_TYPE}\r\n\
         User-Agent: handled\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        message.len()
    );
    [head.as_bytes(), message].concat()
}

/// Reads the message in a response incrementally.
#[derive(Debug, Default)]
pub(super) struct HttpMessageReader {
    /// Received bytes that were not parsed yet.
    buffer: Vec<u8>,
    answer: HttpAnswerReader,
    body_len: usize,
}

impl HttpMessageReader {
    /// Takes received bytes, and returns those of the body.
    ///
    /// Each byte is copied once, however the sender divides the body into chunks.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<Vec<u8>, AttemptError> {
        let mut body = vec![];
        if self.is_over() {
            return Ok(body);
        }
        let mut input = std::mem::take(&mut self.buffer);
        input.extend_from_slice(bytes);
        let read = self.answer.read(&input, &mut body);
        if let Some(head) = self.answer.head().filter(|head| head.status != 200) {
            return Err(AttemptError::Http(Some(head.status)));
        }
        match read {
            Ok(used) if !self.is_over() => self.buffer = input.split_off(used),
            Err(MalformedAnswer) if !self.is_over() => return Err(AttemptError::Http(None)),
            _ => {}
        }
        self.body_len += body.len();
        if self.body_len > BODY_LEN_MAX {
            return Err(AttemptError::Http(None));
        }
        Ok(body)
    }

    /// Whether the body is complete. Trailers after the last chunk do not concern the message.
    pub(super) const fn is_over(&self) -> bool {
        self.answer.has_whole_body()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_answer::{CHUNK_HEAD_LEN_MAX, HEAD_LEN_MAX};

    fn read(parts: &[&[u8]]) -> Result<Vec<u8>, AttemptError> {
        let mut incoming = HttpMessageReader::default();
        let mut body = vec![];
        for part in parts {
            body.extend(incoming.receive(part)?);
        }
        Ok(body)
    }

    #[test]
    fn the_request_is_that_of_deployed_clients() {
        let ask = |address: &str, host, path| {
            let bytes = request(address.parse().unwrap(), 80, host, path, "10.1/a/ü".as_bytes(), b"message");
            String::from_utf8(bytes).unwrap()
        };
        let plain = ask("192.0.2.1:8000", None, "");
        let expected = "POST /10.1%2Fa%2F%C3%BC HTTP/1.1\r\nHost: 192.0.2.1:8000\r\n\
            Accept: application/x-hdl-message\r\nUser-Agent: handled\r\n\
            Content-Type: application/x-hdl-message\r\nContent-Length: 7\r\nConnection: close\r\n\r\nmessage";
        assert_eq!(plain, expected);
        let named = ask("[2001:db8::1]:80", Some("hdl.example.org"), "/handles/");
        assert!(named.starts_with("POST /handles/10.1%2Fa%2F%C3%BC HTTP/1.1\r\nHost: hdl.example.org\r\n"));
        let six = ask("[2001:db8::1]:443", None, "api");
        assert!(six.starts_with("POST /api/10.1") && six.contains("\r\nHost: [2001:db8::1]:443\r\n"));
        // Text from a site record cannot start another line.
        let hostile = ask("192.0.2.1:80", Some("a\r\nX: y"), "p\r\nX: y");
        assert!(hostile.starts_with("POST /p%0D%0AX:%20y/10.1"), "{hostile}");
        assert!(hostile.contains("\r\nHost: 192.0.2.1\r\n"), "{hostile}");
    }

    #[test]
    fn bodies_come_with_a_length_in_chunks_or_up_to_the_end() {
        let answers: [&[u8]; 5] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nmessage",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nmessage and more",
            b"HTTP/1.0 200 OK\r\n\r\nmessage",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nmes\r\n4;x=y\r\nsage\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nmessage\r\n00\r\nTrailer: x\r\n\r\n",
        ];
        for answer in answers {
            let text = String::from_utf8_lossy(answer);
            assert_eq!(read(&[answer]).unwrap(), b"message", "{text}");
            for at in 0..answer.len() {
                let (one, other) = answer.split_at(at);
                assert_eq!(read(&[one, other]).unwrap(), b"message", "{text} cut at {at}");
            }
            let bytes: Vec<&[u8]> = answer.chunks(1).collect();
            assert_eq!(read(&bytes).unwrap(), b"message", "{text}");
        }
    }

    #[test]
    fn bytes_after_the_body_are_dropped() {
        let mut incoming = HttpMessageReader::default();
        assert_eq!(incoming.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), Ok(vec![]));
        assert!(incoming.is_over());
        for _ in 0..16 {
            assert_eq!(incoming.receive(&[b'x'; 1 << 16]), Ok(vec![]));
            assert!(incoming.buffer.is_empty());
        }
    }

    /// The cost of a chunk depends on its own bytes, whatever follows it: moving the rest each time
    /// would copy 400 GB here.
    #[test]
    fn a_body_of_the_smallest_chunks_is_read_in_one_pass() {
        let body_len = BODY_LEN_MAX - 1;
        let chunks = b"1\r\nx\r\n".repeat(body_len);
        let answer =
            [&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..], &chunks, b"0\r\n\r\n"].concat();
        assert_eq!(read(&[&answer]).unwrap().len(), body_len);
    }

    #[test]
    fn malformed_answers_are_refused() {
        for (answer, status) in [
            (&b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nmessage"[..], Some(404)),
            (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", Some(302)),
            (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", None),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", None),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", None),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nmessage", None),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nmmm", None),
            (b"\x02\x0b\x02\x0b not HTTP", None),
        ] {
            let text = String::from_utf8_lossy(answer);
            assert_eq!(read(&[answer]), Err(AttemptError::Http(status)), "{text}");
        }
    }

    #[test]
    fn heads_chunk_lengths_and_bodies_are_bounded_at_their_edges() {
        const START: &[u8] = b"HTTP/1.1 200 OK\r\nX: ";
        let head = |len: usize| [START, &vec![b'x'; len - START.len() - 4], b"\r\n\r\n"].concat();
        assert_eq!(read(&[&head(HEAD_LEN_MAX), b"message"]).unwrap(), b"message");
        assert!(read(&[&head(HEAD_LEN_MAX + 1), b"message"]).is_err());
        assert!(read(&[&[b'x'; 8]]).is_err());
        assert!(read(&[START, &vec![b'x'; HEAD_LEN_MAX]]).is_err(), "one that does not end");
        let interim = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(HEAD_LEN_MAX / 25 + 1);
        assert!(read(&[&interim]).is_err(), "nor a row of them");
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7;";
        assert!(read(&[chunked, &[b'x'; CHUNK_HEAD_LEN_MAX]]).is_err());
        let body = |len: usize| read(&[b"HTTP/1.1 200 OK\r\n\r\n", &vec![0; len]]);
        assert_eq!(body(BODY_LEN_MAX).unwrap().len(), BODY_LEN_MAX);
        assert!(body(BODY_LEN_MAX + 1).is_err());
    }
}
