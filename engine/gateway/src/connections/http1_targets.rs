//! The targets of requests in the bytes of a connection of HTTP/1.1.

use super::target_bytes::{encoded, is_encoded};
use memchr::memchr;

/// Maximum length of a line that is kept to learn the length of a body.
const LINE_LEN_MAX: usize = 64;

/// Follows the requests in a stream of bytes, so as to percent-encode what may not stand in their
/// targets.
///
/// It follows them only as long as every reader finds the same ends of bodies: it gives up, and
/// changes nothing any more, at a body in chunks, at any unusual line about a length, and at what
/// is not a request line.
#[derive(Debug)]
pub struct TargetFollower {
    position: RequestPart,
    /// The start of the current line of a head, without its end.
    line: Vec<u8>,
    /// Length of the body, once a line has given it.
    body_len: Option<u64>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPart {
    /// Empty lines before a request, or its method.
    Method,
    Target,
    /// The rest of the request line.
    Version,
    /// A line of the head after the first.
    Header,
    /// The rest of a body: so many bytes.
    Body(u64),
    /// Nothing is followed any more.
    Unknown,
}

impl Default for TargetFollower {
    fn default() -> Self {
        Self { position: RequestPart::Method, line: Vec::new(), body_len: None }
    }
}

impl TargetFollower {
    /// Follows `bytes`. Returns the position of the first one of a target that has to be
    /// percent-encoded, and has followed only those before it; `None` if there is none.
    pub fn follow(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.position {
                RequestPart::Unknown => return None,
                RequestPart::Body(left) => {
                    let len = left.min((bytes.len() - at) as u64);
                    at += usize::try_from(len).unwrap_or(usize::MAX);
                    self.position =
                        if left == len { RequestPart::Method } else { RequestPart::Body(left - len) };
                }
                RequestPart::Target if is_encoded(byte) => return Some(at),
                RequestPart::Target => {
                    let rest = &bytes[at..];
                    let is_end = |&byte: &u8| byte <= b' ' || is_encoded(byte);
                    let len = rest.iter().position(is_end).unwrap_or(rest.len());
                    at += len;
                    if let Some(&end) = rest.get(len).filter(|&&end| !is_encoded(end)) {
                        self.position = if end == b' ' { RequestPart::Version } else { RequestPart::Unknown };
                        at += 1;
                    }
                }
                RequestPart::Method => {
                    self.follow_method(byte);
                    at += 1;
                }
                RequestPart::Version | RequestPart::Header => at += self.follow_line(&bytes[at..]),
            }
        }
        None
    }

    /// Follows `bytes`, and percent-encodes what may not stand in the targets among them.
    #[must_use]
    pub fn encode(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let Some(mut end) = self.follow(&bytes) else { return bytes };
        let (mut changed, mut rest) = (Vec::with_capacity(2 * bytes.len()), &bytes[..]);
        loop {
            changed.extend_from_slice(&rest[..end]);
            changed.extend_from_slice(&encoded(&rest[end..=end]));
            rest = &rest[end + 1..];
            match self.follow(rest) {
                Some(next) => end = next,
                None => break,
            }
        }
        changed.extend_from_slice(rest);
        changed
    }

    fn follow_method(&mut self, byte: u8) {
        match byte {
            b'\r' | b'\n' if self.line.is_empty() => {}
            // What follows the answer to CONNECT is not HTTP.
            b' ' if !self.line.is_empty() && self.line != b"CONNECT" => {
                self.line.clear();
                self.position = RequestPart::Target;
            }
            b'A'..=b'Z' if self.line.len() < LINE_LEN_MAX => self.line.push(byte),
            _ => self.position = RequestPart::Unknown,
        }
    }

    /// Follows the rest of a line. Returns its length in `bytes`.
    fn follow_line(&mut self, bytes: &[u8]) -> usize {
        let end = memchr(b'\n', bytes);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let capacity = LINE_LEN_MAX - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(capacity)]);
        if end.is_some() {
            self.end_line();
        }
        part.len() + usize::from(end.is_some())
    }

    fn end_line(&mut self) {
        let is_cut = self.line.len() == LINE_LEN_MAX;
        let kept = std::mem::take(&mut self.line);
        let line = kept.strip_suffix(b"\r").unwrap_or(&kept);
        let position = self.position;
        self.position = match position {
            RequestPart::Version if line == b"HTTP/1.1" || line == b"HTTP/1.0" => RequestPart::Header,
            RequestPart::Header if line.is_empty() => match self.body_len.take() {
                None | Some(0) => RequestPart::Method,
                Some(len) => RequestPart::Body(len),
            },
            RequestPart::Header if self.reads_header(line, is_cut) => RequestPart::Header,
            _ => RequestPart::Unknown,
        };
        self.line = kept;
        self.line.clear();
    }

    /// Reads a line of a head. Returns false if the end of the request is not known with it.
    fn reads_header(&mut self, line: &[u8], is_cut: bool) -> bool {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            // A name that long is not about the length.
            return is_cut;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.first().is_none_or(u8::is_ascii_whitespace) || name.eq_ignore_ascii_case(b"transfer-encoding")
        {
            return false;
        }
        if !name.eq_ignore_ascii_case(b"content-length") {
            return true;
        }
        let is_number = !value.is_empty() && value.len() < 19 && value.iter().all(u8::is_ascii_digit);
        let number = str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
        let len = number.filter(|_| is_number && !is_cut && self.body_len.is_none());
        self.body_len = len;
        len.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of `text`, in parts of at most `len` bytes.
    fn sent(text: &str, len: usize) -> String {
        let mut targets = TargetFollower::default();
        let parts = text.as_bytes().chunks(len).flat_map(|part| targets.encode(part.to_vec()));
        String::from_utf8(parts.collect()).unwrap()
    }

    /// One request after another, with `<` where it becomes `%3C` and `_` where it stays.
    #[test]
    fn targets_are_found_behind_bodies_of_known_length() {
        for text in [
            "GET /< HTTP/1.1\r\nA: _\r\n\r\nGET /a<b?<c HTTP/1.1\r\nHost: _\n\nHEAD /<< HTTP/1.0\r\n\r\n",
            "\r\n\nPUT /< HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET__GET /< HTTP/1.1\r\n\r\n",
            "PUT /< HTTP/1.1\r\ncontent-LENGTH:0 \r\n\r\nGET /< HTTP/1.1\r\n",
            "GET http://x/< HTTP/1.1\r\n",
            "PUT /< HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /_ HTTP/1.1\r\n",
            "PUT /< HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nxGET /_ HTTP/1.1\r\n",
            "PUT /< HTTP/1.1\r\nContent-Length: +1\r\n\r\nxGET /_ HTTP/1.1\r\n",
            "PUT /< HTTP/1.1\r\nContent-Length:\r\n\r\nxGET /_ HTTP/1.1\r\n",
            "PUT /< HTTP/1.1\r\nA\r\n\r\nxGET /_ HTTP/1.1\r\n",
            "PUT /< HTTP/1.1\r\n A: b\r\n\r\nxGET /_ HTTP/1.1\r\n",
            "PUT /< _ HTTP/1.1\r\n\r\nGET /_ HTTP/1.1\r\n",
            "PUT /<\r\n\r\nGET /_ HTTP/1.1\r\n",
            "CONNECT /_ HTTP/1.1\r\n\r\nGET /_ HTTP/1.1\r\n",
            "get /_ HTTP/1.1\r\n\r\n",
            " GET /_ HTTP/1.1\r\n\r\n",
            "GET /< HTTP/2.0\r\n\r\nGET /_ HTTP/1.1\r\n",
        ] {
            let (raw, expected) = (text.replace('_', "<"), text.replace('<', "%3C").replace('_', "<"));
            for len in [1, 2, 7, 1000] {
                assert_eq!(sent(&raw, len), expected, "{len}");
            }
        }
    }

    #[test]
    fn long_lines_are_not_lengths() {
        let long = "a".repeat(200);
        for line in [format!("{long}: <"), format!("A: {long}<"), long] {
            let raw = format!("GET /< HTTP/1.1\r\n{line}\r\n\r\nGET /< HTTP/1.1\r\n");
            let expected = raw.replace("/<", "/%3C");
            assert_eq!(sent(&raw, 3), expected);
        }
    }
}
